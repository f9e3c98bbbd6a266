//! Operations: what was asked for, and what came of it.

use serde_json::Value;

use super::{Result, Store};
use crate::model::{
    ids::{JobUid, OperationId},
    job_state::DesiredState,
    operation::{Operation, OperationKind, OperationStatus},
};

/// An operation to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewOperation {
    /// Its identity.
    pub id: OperationId,
    /// The job.
    pub job: JobUid,
    /// What it does.
    pub kind: OperationKind,
    /// The body of the request, for whoever carries it out.
    pub request: Value,
    /// Who asked.
    pub requested_by: String,
    /// Why.
    pub reason: Option<String>,
    /// The request that asked.
    pub request_id: Option<String>,
    /// The caller's key, if one was sent.
    pub idempotency: Option<IdempotencyKey>,
    /// Open operations of these kinds are called off instead of being in the way.
    pub supersedes: Vec<OperationKind>,
}

/// Names a request, so that repeating it gives the operation of the first time (kept for 24 h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Who asked, by which method, on which path.
    pub scope: String,
    /// The caller's key.
    pub key: String,
    /// A hash of the body, to notice a key that is used for something else.
    pub body_hash: String,
}

/// What became of a request for an operation.
#[derive(Debug, Clone, PartialEq)]
pub enum CreateOperation {
    /// Stored.
    Created(Operation),
    /// It was stored before, under the same key or the same id.
    Replayed(Operation),
    /// The key belongs to another body.
    KeyReused,
    /// This other one is under way.
    Busy(Operation),
    /// This one is queued and will do for both.
    Joined(Operation),
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationOutcome {
    /// Done.
    Succeeded {
        /// Whether it changed anything.
        changed: bool,
        /// The step it ended with.
        step: String,
        /// What came of it.
        result: Value,
    },
    /// Not done.
    Failed {
        /// The step it ended with.
        step: String,
        /// The problem document.
        error: Value,
    },
    /// Called off.
    Canceled {
        /// The step it ended with.
        step: String,
        /// The problem document.
        error: Value,
    },
}

/// Which operations are wanted, newest first.
#[derive(Debug, Clone, Default)]
pub struct OperationFilter {
    /// Of this job.
    pub job: Option<JobUid>,
    /// Of these kinds; empty for all.
    pub kinds: Vec<OperationKind>,
    /// Of these statuses; empty for all.
    pub statuses: Vec<OperationStatus>,
    /// At most this many.
    pub limit: u32,
    /// Only older ones than this.
    pub before: Option<OperationId>,
}

impl Store {
    /// Stores an operation and the desired state that goes with it, unless another one is in the way.
    ///
    /// # Errors
    /// `Refused` when there is no such job.
    pub async fn create_operation(
        &self,
        _new: &NewOperation,
        _desired: Option<DesiredState>,
    ) -> Result<CreateOperation> {
        todo!()
    }

    /// Stores an operation that was done at once: a start of a job that runs, a stop of one that does not.
    ///
    /// # Errors
    /// `Refused` when there is no such job.
    pub async fn insert_finished_operation(
        &self,
        _new: &NewOperation,
        _outcome: &OperationOutcome,
    ) -> Result<CreateOperation> {
        todo!()
    }

    /// The job's operations that have not ended, oldest first, each with its request.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn open_operations(&self, _job: JobUid) -> Result<Vec<(Operation, Value)>> {
        todo!()
    }

    /// Notes the step an operation is at; it is running from the first one on. One that has ended stays as it is.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn operation_step(&self, _id: &OperationId, _step: &str) -> Result<()> {
        todo!()
    }

    /// Notes how an operation ended. The first outcome stays.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn finish_operation(
        &self,
        _id: &OperationId,
        _outcome: &OperationOutcome,
    ) -> Result<()> {
        todo!()
    }

    /// One operation.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn operation(&self, _id: &OperationId) -> Result<Option<Operation>> {
        todo!()
    }

    /// Operations, newest first.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn operations(&self, _filter: &OperationFilter) -> Result<Vec<Operation>> {
        todo!()
    }

    /// Fails the open checkpoint operations of jobs that have no live owner: nobody will carry them out. Says how many.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn fail_orphaned_checkpoints(&self) -> Result<u64> {
        todo!()
    }
}
