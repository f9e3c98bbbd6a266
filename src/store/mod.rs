//! What outlives the process: jobs, leases, checkpoints and operations, in PostgreSQL.
//!
//! One idea carries it: **a write that belongs to a running job begins with the fence.** The first statement of its
//! transaction locks the job's lease row `FOR SHARE` under the epoch that the writer holds. No row: another owner has it,
//! nothing was written. A row: a taker has to wait until this transaction has ended. So whatever a dead or late owner still
//! has under way is either before the takeover or refused (`leases`).
//!
//! Every call may end with an unknown outcome, because a connection can break between a COMMIT and its answer. Therefore
//! every protected write can be repeated and then succeeds. And no caller's cancellation reaches a connection: statements
//! run on tasks of their own (`transaction`).
//!
//! Statements are checked at compile time against the migrations (`.sqlx/`). Times that decide anything come from the
//! database's `clock_timestamp()`; times of checkpoints come with them, so that they agree with the server's logs.

mod attempts;
mod bounded_runs;
mod checkpoints;
mod deletions;
mod errors;
mod events;
mod jobs;
mod leases;
mod migrations;
mod operations;
mod plans;
mod session;
mod skips;
mod transaction;
mod turns;
mod words;

use std::sync::Arc;

use tokio_util::task::TaskTracker;

pub use attempts::{AttemptEnd, NeverBegun};
pub use checkpoints::{CheckpointFilter, StartRecord, StoredCheckpoint};
pub use jobs::{CancelStart, JobRow, OwnerRow, PutSpec, RunningSpec, SetMode, SpecPrecondition};
pub use leases::{ClaimInstance, Incarnation, Renewal};
pub use operations::{
    CreateOperation, IdempotencyKey, NewOperation, OperationFilter, OperationOutcome,
};
pub use plans::StoredPlan;

use self::{session::Sessions, turns::Turns};
use crate::{engine::error::StoreError, model::ids::InstallId};

/// What every call of the store answers.
pub type Result<T> = std::result::Result<T, StoreError>;

/// How the store reaches its database.
#[derive(Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database?sslmode=...`. TLS is rustls; `sslmode` and `sslrootcert` are libpq's.
    pub url: String,
    /// Connections at most, besides the one that renews the instance.
    pub max_connections: u32,
}

impl std::fmt::Debug for StoreConfig {
    /// Without the URL, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreConfig")
            .field("max_connections", &self.max_connections)
            .finish_non_exhaustive()
    }
}

/// The store. Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct Store {
    /// For everything but renewals.
    work: Sessions,
    /// One connection for signs of life, so that they never queue behind work.
    renewals: Sessions,
    /// The tasks on which statements run.
    tasks: TaskTracker,
    /// Who stands before a job's row without a connection.
    turns: Turns,
    /// For migrations, whose connection has other limits.
    options: Arc<sqlx::postgres::PgConnectOptions>,
}

impl std::fmt::Debug for Store {
    /// Without its options, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Makes a store without connecting: the database may be away when the server comes up. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Refused` when the URL cannot be understood.
    pub fn connect_lazy(config: &StoreConfig) -> Result<Self> {
        let options = session::connect_options(&config.url)?;
        Ok(Self {
            work: Sessions::new(&options, &session::WORK, config.max_connections),
            renewals: Sessions::new(&options, &session::RENEWALS, 1),
            tasks: TaskTracker::new(),
            turns: Turns::default(),
            options: Arc::new(options),
        })
    }

    /// Asks whether the database answers, is a primary and waits for its disk at each commit.
    ///
    /// # Errors
    /// `Unavailable`, with what is wrong.
    pub async fn ping(&self) -> Result<()> {
        self.query("ask whether the database can be used", |connection| {
            Box::pin(async move {
                // Asked again: a connection outlives a switch-over and a change of the settings.
                let standing = session::standing(connection).await?;
                standing.check().map_err(StoreError::Unavailable)
            })
        })
        .await
    }

    /// The identity that the first migration made.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn install_id(&self) -> Result<InstallId> {
        self.query("read the installation's id", |connection| {
            Box::pin(async move {
                let id = sqlx::query_scalar!("SELECT install_id FROM installation")
                    .fetch_one(connection)
                    .await?;
                Ok(InstallId(id))
            })
        })
        .await
    }

    /// Waits for what is under way (each part has a deadline of its own), then closes all connections. Calls made after it
    /// are `Unavailable`.
    pub async fn close(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.work.close().await;
        self.renewals.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_debug_output_holds_the_password() {
        let config = StoreConfig {
            url: "postgres://u:geheim@127.0.0.1/db".to_owned(),
            max_connections: 4,
        };
        let store = Store::connect_lazy(&config).unwrap();
        assert!(!format!("{config:?} {store:?}").contains("geheim"));
    }
}
