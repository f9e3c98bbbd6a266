//! Who lives, and who owns which job.

use std::time::Duration;

use uuid::Uuid;

use super::{Result, Store};
use crate::{engine::ports::JobLease, model::ids::JobUid};

/// One life of a server process under its instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// The instance id of the server's file.
    pub instance: String,
    /// Made anew each time a process claims the instance id.
    pub id: Uuid,
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimInstance {
    /// The instance id is ours; what a dead predecessor owned can be taken at once.
    Claimed(Incarnation),
    /// A process on another host holds it and was alive lately.
    HeldByOtherHost {
        /// That host.
        host: String,
        /// After this time without a sign of life the claim succeeds.
        expires_in: Duration,
    },
}

impl Store {
    /// Takes an instance id for this process. A predecessor on the same host is replaced at once: the caller holds the lock
    /// file that proves it dead.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn claim_instance(
        &self,
        _instance: &str,
        _host: &str,
        _ttl: Duration,
    ) -> Result<ClaimInstance> {
        todo!()
    }

    /// Says that this process lives, for `ttl` from now by the database's clock. `false`: another process has taken the
    /// instance id, and all jobs must stop.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn renew_instance(&self, _incarnation: &Incarnation, _ttl: Duration) -> Result<bool> {
        todo!()
    }

    /// Says that this process ends; its jobs can be taken at once.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn release_instance(&self, _incarnation: &Incarnation) -> Result<()> {
        todo!()
    }

    /// Takes the right to write for a job, under a new epoch. `None`: a live other process holds it.
    ///
    /// # Errors
    /// `Fenced` when this incarnation has itself been replaced.
    pub async fn take_lease(
        &self,
        _job: JobUid,
        _incarnation: &Incarnation,
    ) -> Result<Option<JobLease>> {
        todo!()
    }
}
