//! What outlives the process: jobs, leases, checkpoints and operations in PostgreSQL.

mod checkpoints;
mod events;
mod jobs;
mod leases;
mod operations;
mod plans;

pub use checkpoints::{CheckpointFilter, StartRecord, StoredCheckpoint};
pub use jobs::{JobRow, OwnerRow, PutSpec, RunningSpec, SetMode, SpecPrecondition};
pub use leases::{ClaimInstance, Incarnation};
pub use operations::{
    CreateOperation, IdempotencyKey, NewOperation, OperationFilter, OperationOutcome,
};
pub use plans::StoredPlan;

use crate::{engine::error::StoreError, model::ids::InstallId};

/// What every call of the store answers.
pub type Result<T> = std::result::Result<T, StoreError>;

/// How the store reaches its database.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `postgres://user:password@host:port/database?sslmode=...`.
    pub url: String,
    /// Connections at most, besides the one that renews leases.
    pub max_connections: u32,
}

/// The store. Cheap to clone; all clones share one pool.
#[derive(Debug, Clone)]
pub struct Store {}

impl Store {
    /// Makes a store without connecting: the database may be away when the server comes up. Needs a Tokio runtime.
    ///
    /// # Errors
    /// `Refused` when the URL cannot be understood.
    pub fn connect_lazy(_config: &StoreConfig) -> Result<Self> {
        todo!()
    }

    /// Asks whether the database answers, is a primary and waits for its disk at each commit.
    ///
    /// # Errors
    /// `Unavailable` or `Refused`, with what is wrong.
    pub async fn ping(&self) -> Result<()> {
        todo!()
    }

    /// Applies the migrations that are missing, under a lock that other servers respect. Names the ones applied.
    ///
    /// # Errors
    /// `Refused` when the schema is newer than this program or a migration failed.
    pub async fn migrate(&self) -> Result<Vec<String>> {
        todo!()
    }

    /// Names the migrations that `migrate` would apply.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn pending_migrations(&self) -> Result<Vec<String>> {
        todo!()
    }

    /// The identity that the first migration made.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn install_id(&self) -> Result<InstallId> {
        todo!()
    }

    /// Waits for transactions that are under way, then closes all connections.
    pub async fn close(&self) {
        todo!()
    }
}
