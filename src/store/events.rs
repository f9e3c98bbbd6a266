//! The history of what happened, and the end of what is kept too long.

use serde_json::Value;
use sqlx::PgConnection;

use super::{
    Result, Store,
    deletions::prune_deleted_jobs,
    words::{document, storable},
};
use crate::model::ids::JobUid;

impl Store {
    /// Adds an entry to the history.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn add_event(
        &self,
        job: Option<JobUid>,
        kind: &str,
        actor: &str,
        details: &Value,
    ) -> Result<()> {
        let (kind, actor, details) = (kind.to_owned(), actor.to_owned(), details.clone());
        self.query(format!("note the event {kind}"), move |connection| {
            Box::pin(async move { note(connection, job, &kind, &actor, &details).await })
        })
        .await
    }

    /// Deletes operations and events of more than 30 days, idempotency keys of more than 24 hours, plans that ended more
    /// than 15 minutes ago, and what jobs have left that were deleted more than 30 days ago.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn prune(&self) -> Result<()> {
        self.in_transaction("delete what is kept too long", |connection| {
            Box::pin(async move {
                sqlx::query!("DELETE FROM operations WHERE finished_at < now() - interval '30 days'")
                    .execute(&mut *connection)
                    .await?;
                sqlx::query!(
                    "UPDATE operations SET idempotency_scope = NULL, idempotency_key = NULL, idempotency_body_hash = NULL
                     WHERE idempotency_key IS NOT NULL AND created_at < now() - interval '24 hours'"
                )
                .execute(&mut *connection)
                .await?;
                sqlx::query!("DELETE FROM start_plans WHERE valid_until < now() - interval '15 minutes'")
                    .execute(&mut *connection)
                    .await?;
                sqlx::query!("DELETE FROM events WHERE at < now() - interval '30 days'")
                    .execute(&mut *connection)
                    .await?;
                prune_deleted_jobs(connection).await
            })
        })
        .await
    }
}

/// Adds an entry inside the transaction of what it tells.
pub(super) async fn note(
    connection: &mut PgConnection,
    job: Option<JobUid>,
    kind: &str,
    actor: &str,
    details: &Value,
) -> Result<()> {
    sqlx::query!(
        "INSERT INTO events (job_uid, kind, actor, details) VALUES ($1, $2, $3, $4::text::json)",
        job.map(|job| job.0),
        kind,
        storable(actor),
        document(details)?,
    )
    .execute(connection)
    .await?;
    Ok(())
}
