//! The history of what happened, and the end of what is kept too long.

use serde_json::Value;
use sqlx::{PgConnection, types::Json};

use super::{
    Result, Store,
    deletions::prune_deleted_jobs,
    words::{document, storable},
};
use crate::model::{
    event::{Event, EventKind},
    ids::JobUid,
};

impl Store {
    /// Adds an entry to the history that is not a run's: nobody needs the lease for it. A run's go by
    /// [`CheckpointStore::note_events`](crate::engine::ports::CheckpointStore::note_events).
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn add_event(
        &self,
        job: Option<JobUid>,
        kind: EventKind,
        actor: &str,
        details: &Value,
    ) -> Result<()> {
        let (actor, details) = (actor.to_owned(), details.clone());
        self.query(
            format!("note the event {}", kind.as_str()),
            move |connection| {
                Box::pin(async move { note(connection, job, kind, &actor, &details).await })
            },
        )
        .await
    }

    /// Entries of a job's history, newest first: at most `limit`, only of these kinds (of all when empty) and before this id.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn events(
        &self,
        job: JobUid,
        kinds: &[EventKind],
        limit: u32,
        before: Option<i64>,
    ) -> Result<Vec<Event>> {
        let kinds: Vec<String> = kinds.iter().map(|kind| kind.as_str().to_owned()).collect();
        self.query(
            format!("read the history of job {job}"),
            move |connection| {
                Box::pin(async move { select(connection, job, &kinds, limit, before).await })
            },
        )
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

async fn select(
    connection: &mut PgConnection,
    job: JobUid,
    kinds: &[String],
    limit: u32,
    before: Option<i64>,
) -> Result<Vec<Event>> {
    let rows = sqlx::query!(
        r#"SELECT id, at, kind, actor, details AS "details: Json<Value>" FROM events
           WHERE job_uid = $1 AND (cardinality($2::text[]) = 0 OR kind = ANY ($2)) AND ($3::bigint IS NULL OR id < $3)
           ORDER BY id DESC LIMIT $4"#,
        job.0,
        kinds,
        before,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    let events = rows.into_iter().map(|row| Event {
        id: row.id,
        at: row.at,
        kind: row.kind,
        actor: row.actor,
        details: row.details.0,
    });
    Ok(events.collect())
}

/// Adds an entry inside the transaction of what it tells.
pub(super) async fn note(
    connection: &mut PgConnection,
    job: Option<JobUid>,
    kind: EventKind,
    actor: &str,
    details: &Value,
) -> Result<()> {
    sqlx::query!(
        "INSERT INTO events (job_uid, kind, actor, details) VALUES ($1, $2, $3, $4::text::json)",
        job.map(|job| job.0),
        kind.as_str(),
        storable(actor),
        document(details)?,
    )
    .execute(connection)
    .await?;
    Ok(())
}
