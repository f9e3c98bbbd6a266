//! The PostgreSQL sink, as its contract says it, against a real target.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the target behind the sink's back, from tasks of their own"
)]

mod fences;
mod outages;
mod rejections;
mod rows;
mod schema;

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use handover::{
    engine::{
        error::{ErrorClass, SinkError},
        ports::{Sink, SinkFactory, SinkOwner, SinkWriter},
    },
    model::{
        CheckpointId, Code, InstallId, JobName, JobSpec, JobUid, LeaseEpoch, Offset,
        TopicPartition,
        record::{BatchRun, ConsumerRecord, RecordBatch, RecordSource},
        resolver::{SinkPosition, SinkProgress},
        sink_spec::SinkSpec,
    },
    sinks::{LogOutput, PostgresTarget, Sinks},
};
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Row, postgres::PgPoolOptions,
};
use uuid::Uuid;

use crate::support::Database;

const DEADLINE: Duration = Duration::from_secs(20);
const TOPIC: &str = "orders";

/// A target database with a table of raw records, and a way to look at it behind the sink's back.
struct World {
    database: Database,
    sql: PgPool,
    install: InstallId,
}

impl World {
    async fn new() -> Self {
        let database = Database::create().await;
        let sql = PgPoolOptions::new()
            .max_connections(4)
            .connect(&database.url())
            .await
            .unwrap();
        let world = Self {
            database,
            sql,
            install: InstallId(Uuid::new_v4()),
        };
        world
            .run("CREATE TABLE orders (part int NOT NULL, pos bigint NOT NULL, key text, value text)")
            .await;
        world
    }

    async fn run(&self, sql: &str) {
        self.sql
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        let row = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.sql)
            .await
            .unwrap();
        row.get(0)
    }

    async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&self.sql)
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM orders").await
    }

    /// Offsets of a partition in the table, in their order.
    async fn offsets(&self, partition: i32) -> Vec<i64> {
        let sql = format!("SELECT pos FROM orders WHERE part = {partition} ORDER BY pos");
        let rows = sqlx::query(AssertSqlSafe(sql))
            .fetch_all(&self.sql)
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    fn owner(&self, job: JobUid) -> SinkOwner {
        SinkOwner {
            install: self.install,
            job,
        }
    }

    fn sink(&self, job: JobUid, spec: &Value) -> Arc<dyn Sink> {
        self.sink_by(&self.database.url(), self.owner(job), spec)
    }

    fn sink_by(&self, url: &str, owner: SinkOwner, spec: &Value) -> Arc<dyn Sink> {
        sinks(url)
            .sink(&sink_spec(spec), &job_name(), owner)
            .unwrap()
    }

    /// A sink that was claimed, with a writer that knows where its partitions begin.
    async fn writer(
        &self,
        sink: &Arc<dyn Sink>,
        epoch: i64,
        positions: &[(i32, i64, i64)],
    ) -> Box<dyn SinkWriter> {
        sink.recover(LeaseEpoch(epoch)).await.unwrap();
        let mut writer = sink.writer(0).await.unwrap();
        writer.assign(&beginnings(positions)).await.unwrap();
        writer
    }
}

fn sinks(url: &str) -> Sinks {
    let targets = BTreeMap::from([("warehouse".to_owned(), PostgresTarget::new(url).unwrap())]);
    let sinks = Sinks::new(LogOutput::new(io::sink()).unwrap());
    sinks.replace_targets(targets);
    sinks
}

fn job_name() -> JobName {
    JobName::new("orders").unwrap()
}

fn new_job() -> JobUid {
    JobUid(Uuid::new_v4())
}

/// Raw records, appended.
fn raw() -> Value {
    json!({
        "type": "postgres", "connection": "warehouse", "table": "public.orders",
        "mapping": {"mode": "raw", "columns": {"part": "@partition", "pos": "@offset", "key": "@key", "value": "@value"}},
        "batch": {"max_rows": 1000, "linger": "10ms"}
    })
}

fn sink_spec(sink: &Value) -> SinkSpec {
    let spec = json!({
        "source": {"connection": "main", "topics": [TOPIC]},
        "startup_mode": {"mode": "earliest"},
        "sink": sink
    });
    JobSpec::read(&job_name(), &spec).unwrap().sink
}

fn partition(number: i32) -> TopicPartition {
    TopicPartition::new(TOPIC, number)
}

fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

/// (partition, next offset, position id)
fn beginnings(positions: &[(i32, i64, i64)]) -> Vec<(TopicPartition, SinkPosition)> {
    positions
        .iter()
        .map(|(number, next, id)| {
            let position = SinkPosition {
                next_offset: offset(*next),
                position_id: CheckpointId(*id),
            };
            (partition(*number), position)
        })
        .collect()
}

fn progress(positions: &[(i32, i64, i64)]) -> SinkProgress {
    beginnings(positions).into_iter().collect()
}

fn positions(of: &[(i32, i64)]) -> BTreeMap<TopicPartition, Offset> {
    of.iter()
        .map(|(number, next)| (partition(*number), offset(*next)))
        .collect()
}

/// A record: partition, offset, key, value.
#[derive(Clone)]
struct Record {
    partition: i32,
    offset: i64,
    key: Option<String>,
    value: Option<String>,
}

fn record(partition: i32, offset: i64, value: &str) -> Record {
    Record {
        partition,
        offset,
        key: None,
        value: Some(value.to_owned()),
    }
}

/// Records of a partition, with values `v<offset>`.
fn records(partition: i32, offsets: std::ops::Range<i64>) -> Vec<Record> {
    offsets
        .map(|offset| record(partition, offset, &format!("v{offset}")))
        .collect()
}

struct Records(Vec<Record>);

impl RecordSource for Records {
    fn record(&self, index: usize) -> ConsumerRecord<'_> {
        let record = &self.0[index];
        ConsumerRecord {
            record_offset: record.offset,
            timestamp_ms: Some(1_700_000_000_000 + record.offset),
            key: record.key.as_deref().map(str::as_bytes),
            value: record.value.as_deref().map(str::as_bytes),
        }
    }
}

/// A batch of records in their order, in runs of one partition.
fn batch(records: Vec<Record>) -> RecordBatch {
    let mut runs: Vec<BatchRun> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if run.partition.partition == record.partition => run.records.end = index + 1,
            _ => runs.push(BatchRun {
                partition: Arc::new(partition(record.partition)),
                records: index..index + 1,
                advance_to: None,
            }),
        }
    }
    RecordBatch::new(runs, Box::new(Records(records)))
}

/// Waits until `what` holds in the target.
async fn until<F: Future<Output = bool>>(what: &str, condition: impl FnMut() -> F) {
    crate::support::eventually(what, DEADLINE, condition).await;
}

/// Holds up every COMMIT that has put rows into `orders`, until it is opened.
struct Gate {
    holder: PgConnection,
}

impl Gate {
    async fn close(world: &World) -> Self {
        world
            .run(
                "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
                   BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
                 CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION wait_at_gate()",
            )
            .await;
        let mut holder = PgConnection::connect(&world.database.url()).await.unwrap();
        holder.execute("SELECT pg_advisory_lock(42)").await.unwrap();
        Self { holder }
    }

    /// Waits until a COMMIT has come to the gate.
    async fn somebody_waits(&self, world: &World) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 42 AND NOT granted \
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        until("a COMMIT waits", async || world.number(waiting).await == 1).await;
    }

    async fn open(self) {
        self.holder.close().await.unwrap();
    }
}
