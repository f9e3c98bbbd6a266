//! Start plans that somebody looked at.

use chrono::{DateTime, Utc};
use sqlx::types::Json;

use super::{
    Result, Store,
    words::{document, storable},
};
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
    /// Id of the one-shot start that was pending.
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
    pub async fn save_plan(&self, plan: &StoredPlan) -> Result<()> {
        let plan = plan.clone();
        self.query(format!("keep plan {}", plan.id), move |connection| {
            Box::pin(async move {
                // A repetition after an unknown outcome changes nothing.
                sqlx::query!(
                    "INSERT INTO start_plans (id, job_uid, generation, checkpoint_id, pending_start, request, resolved, valid_until)
                     VALUES ($1, $2, $3, $4, $5, $6::text::json, $7::text::json, $8) ON CONFLICT (id) DO NOTHING",
                    plan.id.as_str(),
                    plan.job.0,
                    plan.generation,
                    plan.state.map(|id| id.0),
                    plan.pending_start,
                    document(&plan.request)?,
                    document(&plan.resolved)?,
                    plan.valid_until,
                )
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// A plan, also one that is no longer valid but still kept.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn plan(&self, id: &PlanId) -> Result<Option<StoredPlan>> {
        let id = id.clone();
        self.query(format!("read plan {id}"), move |connection| {
            Box::pin(async move {
                let row = sqlx::query!(
                    r#"SELECT job_uid, generation, checkpoint_id, pending_start, request AS "request: Json<StartRequest>",
                              resolved AS "resolved: Json<ResolvedStart>", valid_until
                       FROM start_plans WHERE id = $1"#,
                    storable(id.as_str()),
                )
                .fetch_optional(connection)
                .await?;
                Ok(row.map(|row| StoredPlan {
                    id,
                    job: JobUid(row.job_uid),
                    generation: row.generation,
                    state: row.checkpoint_id.map(CheckpointId),
                    pending_start: row.pending_start,
                    request: row.request.0,
                    resolved: row.resolved.0,
                    valid_until: row.valid_until,
                }))
            })
        })
        .await
    }
}
