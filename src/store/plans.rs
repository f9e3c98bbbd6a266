//! Start plans that somebody looked at.

use chrono::{DateTime, Utc};

use super::{Result, Store};
use crate::model::{
    ids::{CheckpointId, JobUid, PlanId},
    resolver::ResolvedStart,
    start::StartRequest,
};

/// A start plan and what it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPlan {
    /// Its identity.
    pub id: PlanId,
    /// The job.
    pub job: JobUid,
    /// The spec's generation.
    pub generation: i64,
    /// The newest completed checkpoint, if there was one.
    pub state: Option<CheckpointId>,
    /// The one-shot start that was pending.
    pub pending_start: Option<String>,
    /// What was asked.
    pub request: StartRequest,
    /// The answer.
    pub resolved: ResolvedStart,
    /// Until when it may be used.
    pub valid_until: DateTime<Utc>,
}

impl Store {
    /// Keeps a plan.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn save_plan(&self, _plan: &StoredPlan) -> Result<()> {
        todo!()
    }

    /// A plan, also one that is no longer valid but still kept.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn plan(&self, _id: &PlanId) -> Result<Option<StoredPlan>> {
        todo!()
    }
}
