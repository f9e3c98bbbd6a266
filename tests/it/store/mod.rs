//! The store against a real PostgreSQL.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the database behind the store's back, from tasks of their own, with the time of the wall"
)]

mod attempts;
mod cancellation;
mod checkpoints;
mod deletions;
mod fences;
mod jobs;
mod leases;
mod operations;
mod outages;
mod plans;
mod retention;
mod schema;
mod skips;

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use handover::{
    engine::ports::JobLease,
    model::{
        attempt::AttemptKind,
        checkpoint::{
            Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
            FailedCheckpoint,
        },
        ids::{CheckpointId, JobName},
        job::JobSpec,
        offset::Offset,
        topic::{TopicId, TopicPartition},
    },
    store::{
        ClaimInstance, Incarnation, JobRow, PutSpec, SpecPrecondition, StartRecord, Store,
        StoreConfig,
    },
};
use serde_json::{Value, json};
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::support::Database;

const TTL: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(20);

/// A migrated database, the store on it, and a way to look at it behind the store's back.
struct World {
    store: Store,
    sql: PgPool,
    database: Database,
}

impl World {
    async fn new() -> Self {
        let world = Self::without_schema().await;
        world.store.migrate().await.unwrap();
        world
    }

    async fn without_schema() -> Self {
        let database = Database::create().await;
        let sql = PgPoolOptions::new()
            .max_connections(8)
            .connect_lazy(&database.url())
            .unwrap();
        Self {
            store: open(&database.url()),
            sql,
            database,
        }
    }

    async fn job(&self, name: &str) -> JobRow {
        put(&self.store, name, &spec(name, json!({}))).await
    }

    async fn instance(&self, id: &str) -> Incarnation {
        instance(&self.store, id).await
    }

    /// A job whose lease is held, and who holds it.
    async fn owned_job(&self, name: &str) -> (JobRow, Incarnation, JobLease) {
        let job = self.job(name).await;
        let owner = self.instance(&format!("owner-of-{name}")).await;
        let lease = self
            .store
            .take_lease(job.uid, &owner)
            .await
            .unwrap()
            .unwrap();
        (job, owner, lease)
    }

    async fn reload(&self, job: &JobRow) -> JobRow {
        self.store.job_by_uid(job.uid).await.unwrap().unwrap()
    }

    /// Ends an instance's time without waiting for it.
    async fn expire(&self, instance: &Incarnation) {
        sqlx::query("UPDATE instances SET expires_at = clock_timestamp() - interval '1 second' WHERE incarnation = $1")
            .bind(instance.id)
            .execute(&self.sql)
            .await
            .unwrap();
    }

    async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.sql).await.unwrap()
    }

    /// How many sessions of the store wait for a lock.
    async fn waiting_for_locks(&self) -> i64 {
        self.count(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'handover' AND wait_event_type = 'Lock'",
        )
        .await
    }
}

fn open(url: &str) -> Store {
    Store::connect_lazy(&StoreConfig {
        url: url.to_owned(),
        max_connections: 4,
    })
    .unwrap()
}

async fn put(store: &Store, name: &str, spec: &JobSpec) -> JobRow {
    let outcome = store
        .put_spec(&name.parse().unwrap(), spec, &SpecPrecondition::Any, "test")
        .await
        .unwrap();
    match outcome {
        PutSpec::Created(row) | PutSpec::Replaced(row) => row,
        other => panic!("{other:?}"),
    }
}

async fn instance(store: &Store, id: &str) -> Incarnation {
    match store.claim_instance(id, "here", TTL).await.unwrap() {
        ClaimInstance::Claimed(incarnation) => incarnation,
        held @ ClaimInstance::HeldByOtherHost { .. } => panic!("{held:?}"),
    }
}

/// A spec, with members replaced.
fn spec(job: &str, members: Value) -> JobSpec {
    let mut document = json!({
        "source": {"connection": "main", "topics": ["orders"]},
        "startup_mode": {"mode": "earliest"},
        "sink": {"type": "blackhole"},
    });
    merge(&mut document, members);
    JobSpec::read(&JobName::new(job).unwrap(), &document).unwrap()
}

fn merge(document: &mut Value, members: Value) {
    match (document, members) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in new {
                merge(old.entry(name).or_insert(Value::Null), value);
            }
        }
        (slot, value) => *slot = value,
    }
}

/// PostgreSQL keeps microseconds.
fn now() -> DateTime<Utc> {
    DateTime::from_timestamp_micros(Utc::now().timestamp_micros()).unwrap()
}

fn position(next_offset: Option<i64>, position_id: i64) -> CheckpointPosition {
    CheckpointPosition {
        next_offset: next_offset.map(|number| Offset::new(number).unwrap()),
        position_id: CheckpointId(position_id),
        topic_id: Some(TopicId("Xv4wq7kRQ2iVbH0vC3m1sA".into())),
    }
}

fn checkpoint(lease: &JobLease, id: i64, kind: CheckpointKind, offset: i64) -> Checkpoint {
    Checkpoint {
        id: CheckpointId(id),
        kind,
        epoch: lease.epoch,
        started_at: now() - Duration::from_millis(40),
        completed_at: now(),
        phases: CheckpointPhases {
            barrier_ms: Some(3),
            sink_flush_ms: Some(5),
            store_ms: None,
            group_commit_ms: None,
        },
        has_output: true,
        sink_identity: "blackhole".to_owned(),
        positions: BTreeMap::from([(TopicPartition::new("orders", 0), position(Some(offset), 1))]),
    }
}

fn failed(lease: &JobLease, id: i64) -> FailedCheckpoint {
    FailedCheckpoint {
        id: CheckpointId(id),
        kind: CheckpointKind::Periodic,
        epoch: lease.epoch,
        started_at: now() - Duration::from_secs(60),
        failed_at: now(),
        phases: CheckpointPhases::default(),
        failure: CheckpointFailure {
            code: "checkpoint-timeout".to_owned(),
            phase: "sink_flush".to_owned(),
            summary: "the sink had not answered after 60 s".to_owned(),
            slowest: Vec::new(),
        },
    }
}

fn start_record(job: &JobRow) -> StartRecord {
    StartRecord {
        moved: Vec::new(),
        generation: job.generation,
        spec: job.spec.clone(),
        consumed_pending: None,
        forgotten: Vec::new(),
        set_aside: false,
        bounded: None,
        kind: AttemptKind::Start,
        crash_loop: None,
        without_checkpoints: None,
        operation: None,
    }
}
