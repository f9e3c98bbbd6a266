//! What the store says: lease, state and checkpoints of one job, seen by one transaction.

use std::{collections::BTreeMap, str::FromStr};

use oracle::run::{Checkpoint, Event, Lease, Position, Snapshot, Status, StoredState, Vector};
use sqlx::{
    Connection, PgConnection, Row,
    postgres::{PgConnectOptions, PgRow},
};
use uuid::Uuid;

use super::clock::Clock;
use crate::support::client::block_on;

/// By this name our own sessions are known.
const APPLICATION: &str = "chaos";
/// Older checkpoints change no more.
const NEWEST: i64 = 12;

/// Reads one job's rows.
pub(crate) struct StoreReader {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    job: Uuid,
    clock: Clock,
    known: BTreeMap<i64, Checkpoint>,
}

impl StoreReader {
    pub(crate) fn new(url: &str, job: Uuid, clock: Clock) -> Self {
        Self {
            options: options(url),
            connection: None,
            job,
            clock,
            known: BTreeMap::new(),
        }
    }

    /// The rows that are new or have changed since the look before; `None` when the store is away.
    pub(crate) fn look(&mut self) -> Option<Event> {
        self.snapshot().map(Event::Store)
    }

    fn snapshot(&mut self) -> Option<Snapshot> {
        let began = self.clock.now();
        let found = block_on(self.read());
        let at = self.clock.now();
        let (lease, state, rows) = match found {
            Ok(found) => found,
            Err(error) => {
                println!("the store did not answer: {error}");
                self.connection = None;
                return None;
            }
        };
        let news = rows
            .into_iter()
            .filter(|row| self.known.get(&row.id) != Some(row));
        let rows: Vec<Checkpoint> = news.collect();
        self.known
            .extend(rows.iter().map(|row| (row.id, row.clone())));
        Some(Snapshot {
            began,
            at,
            lease: Some(lease),
            state: Some(state),
            rows,
        })
    }

    /// Where the job stands now.
    pub(crate) fn standing(&mut self) -> Standing {
        let snapshot = self.snapshot().expect("the store answers");
        let epoch = snapshot.lease.map_or(0, |lease| lease.epoch);
        let completed = || {
            let known = self.known.values();
            known.filter(|row| row.status == Status::Completed)
        };
        let start = completed().find(|row| row.epoch == epoch && row.kind == "start");
        Standing {
            epoch,
            start: start.map(vector),
            newest: completed().next_back().map(vector).unwrap_or_default(),
        }
    }

    async fn read(&mut self) -> sqlx::Result<(Lease, StoredState, Vec<Checkpoint>)> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none @ None => none.insert(PgConnection::connect_with(&self.options).await?),
        };
        read(connection, self.job).await
    }
}

/// Where a job stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) epoch: i64,
    /// Where the present owner began to read, once it has.
    pub(crate) start: Option<Vector>,
    /// Positions of the newest completed checkpoint.
    pub(crate) newest: Vector,
}

fn vector(row: &Checkpoint) -> Vector {
    let positions = row.vector.iter();
    positions
        .filter_map(|(partition, position)| Some((*partition, position.next_offset?)))
        .collect()
}

pub(crate) fn options(url: &str) -> PgConnectOptions {
    PgConnectOptions::from_str(url)
        .expect("a URL")
        .application_name(APPLICATION)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a witness reads the store behind the server's back, with statements of its own"
)]
async fn read(
    connection: &mut PgConnection,
    job: Uuid,
) -> sqlx::Result<(Lease, StoredState, Vec<Checkpoint>)> {
    let mut transaction = connection
        .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let of_job = sqlx::query(
        "SELECT l.owner::text, l.epoch, j.state, j.desired_state, j.state_since::text,
                (SELECT o.kind FROM operations o
                 WHERE o.job_uid = j.uid AND o.status IN ('queued', 'running') AND o.kind <> 'checkpoint' LIMIT 1)
         FROM jobs j JOIN job_leases l ON l.job_uid = j.uid WHERE j.uid = $1",
    )
    .bind(job)
    .fetch_one(&mut *transaction)
    .await?;
    let lease = Lease {
        owner: of_job.get(0),
        epoch: of_job.get(1),
    };
    let state = StoredState {
        state: of_job.get(2),
        desired: of_job.get(3),
        since: of_job.get(4),
        operation: of_job.get(5),
    };
    let found = sqlx::query(
        "SELECT c.id, c.kind, c.status, c.epoch, o.partition, o.topic_id, o.next_offset, o.position_id
         FROM checkpoints c
         LEFT JOIN checkpoint_offsets o ON o.job_uid = c.job_uid AND o.checkpoint_id = c.id
         WHERE c.job_uid = $1 AND c.id > (SELECT max(id) FROM checkpoints WHERE job_uid = $1) - $2
         ORDER BY c.id, o.partition",
    )
    .bind(job)
    .bind(NEWEST)
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok((lease, state, checkpoints(&found)))
}

fn checkpoints(found: &[PgRow]) -> Vec<Checkpoint> {
    let mut rows: Vec<Checkpoint> = Vec::new();
    for row in found {
        let id: i64 = row.get(0);
        if rows.last().is_none_or(|last| last.id != id) {
            rows.push(Checkpoint {
                id,
                kind: row.get(1),
                status: status(row.get(2)),
                epoch: row.get(3),
                vector: BTreeMap::new(),
            });
        }
        let (Some(partition), Some(checkpoint)) = (row.get(4), rows.last_mut()) else {
            continue;
        };
        let position = Position {
            topic_id: row.get(5),
            next_offset: row.get(6),
            position_id: row.get(7),
        };
        checkpoint.vector.insert(partition, position);
    }
    rows
}

/// A status in the store's and the API's words.
pub(crate) fn status(word: &str) -> Status {
    match word {
        "prepared" => Status::Prepared,
        "completed" => Status::Completed,
        "failed" => Status::Failed,
        "uncertain" => Status::Uncertain,
        other => panic!("an unknown status of a checkpoint: {other}"),
    }
}

/// Sessions of others in the database: all of them, or those that sit in an open transaction.
#[expect(
    clippy::disallowed_methods,
    reason = "a witness reads the database behind the server's back, with statements of its own"
)]
pub(crate) fn sessions(url: &str, in_transaction: bool) -> Vec<String> {
    block_on(async {
        let mut connection = PgConnection::connect_with(&options(url)).await?;
        let found = sqlx::query(
            "SELECT format('session %s of %L, %s since %s: %s', pid, application_name, state, state_change, query)
             FROM pg_stat_activity
             WHERE datname = current_database() AND backend_type = 'client backend' AND application_name <> $1
               AND (NOT $2 OR state LIKE 'idle in transaction%')
             UNION ALL
             SELECT format('prepared transaction %s', gid) FROM pg_prepared_xacts WHERE database = current_database()",
        )
        .bind(APPLICATION)
        .bind(in_transaction)
        .fetch_all(&mut connection)
        .await?;
        Ok::<Vec<String>, sqlx::Error>(found.iter().map(|row| row.get(0)).collect())
    })
    .expect("the database answers")
}

/// The id under which everything of a job is stored.
#[expect(
    clippy::disallowed_methods,
    reason = "a witness reads the store behind the server's back, with statements of its own"
)]
pub(crate) fn job_uid(url: &str, name: &str) -> Uuid {
    block_on(async {
        let mut connection = PgConnection::connect_with(&options(url)).await?;
        sqlx::query_scalar("SELECT uid FROM jobs WHERE name = $1 AND deleted_at IS NULL")
            .bind(name)
            .fetch_one(&mut connection)
            .await
    })
    .expect("the job is stored")
}

/// The version of a database server.
#[expect(
    clippy::disallowed_methods,
    reason = "a question about the server, not about its tables"
)]
pub(crate) fn server_version(url: &str) -> String {
    block_on(async {
        let mut connection = PgConnection::connect_with(&options(url)).await?;
        sqlx::query_scalar("SHOW server_version")
            .fetch_one(&mut connection)
            .await
    })
    .expect("the database answers")
}
