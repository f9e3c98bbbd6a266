//! Stepping over a record: the checkpoint, the state, the lease and the operation in one transaction.
//!
//! There is nothing in between that a crash could leave: either the skip is in the store and done, or it was not begun.

use serde_json::json;
use sqlx::PgConnection;

use super::{
    Result, Store,
    checkpoints::{NewCheckpoint, insert_completed},
    events::note,
    jobs::{forget_run, instance_actor, lock, write_state},
    leases::{Release, release_lease},
    operations::{finish, is_open},
};
use crate::{
    engine::ports::JobLease,
    model::{
        checkpoint::Checkpoint,
        event::EventKind,
        ids::{JobUid, OperationId},
        job_state::JobState,
        skip::SkipRequest,
        views::SkipReport,
    },
    store::OperationOutcome,
};

impl Store {
    /// Ends a skip that was asked for: with its checkpoint, or refused. The lease is released in any case. A skip that was
    /// called off meanwhile leaves nothing. Fenced; repeating it after an unknown outcome succeeds.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn end_skip(
        &self,
        lease: &JobLease,
        operation: &OperationId,
        outcome: &OperationOutcome,
        skip: Option<(&Checkpoint, &SkipReport)>,
    ) -> Result<()> {
        let (lease, id, outcome) = (*lease, operation.clone(), outcome.clone());
        let skip = skip.map(|(checkpoint, report)| (NewCheckpoint::of(checkpoint), report.clone()));
        self.in_transaction(format!("end the skip {id}"), move |connection| {
            Box::pin(async move {
                let owner = match release_lease(connection, &lease).await? {
                    Release::Already => return Ok(()),
                    Release::Released { owner } => owner,
                };
                // The job's row before the operation's, like everybody else.
                lock(connection, lease.job).await?;
                if !is_open(connection, &id).await? {
                    return Ok(());
                }
                if let Some((row, report)) = &skip {
                    insert_completed(connection, &lease, row).await?;
                    write_state(connection, lease.job, JobState::Stopped, None).await?;
                    forget_run(connection, lease.job).await?;
                    forget_parked(connection, lease.job, &report.skipped).await?;
                    let details = json!({"operation": &id, "epoch": lease.epoch, "skip": report});
                    let actor = instance_actor(&owner);
                    note(
                        connection,
                        Some(lease.job),
                        EventKind::RecordSkipped,
                        &actor,
                        &details,
                    )
                    .await?;
                }
                finish(connection, &id, &outcome).await
            })
        })
        .await
    }

    /// Ends a skip that a run has carried out: its checkpoint is stored, the lease stays with the run. Repeating it after an
    /// unknown outcome succeeds.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn end_live_skip(
        &self,
        lease: &JobLease,
        operation: &OperationId,
        outcome: &OperationOutcome,
        report: &SkipReport,
    ) -> Result<()> {
        let (lease, id, outcome, report) =
            (*lease, operation.clone(), outcome.clone(), report.clone());
        self.fenced(
            format!("end the skip {id}"),
            &lease,
            move |connection, owner| {
                Box::pin(async move {
                    // The job's row before the operation's, like everybody else.
                    lock(connection, lease.job).await?;
                    if !is_open(connection, &id).await? {
                        return Ok(());
                    }
                    let details = json!({"operation": &id, "epoch": lease.epoch, "skip": report});
                    note(
                        connection,
                        Some(lease.job),
                        EventKind::RecordSkipped,
                        &instance_actor(&owner),
                        &details,
                    )
                    .await?;
                    finish(connection, &id, &outcome).await
                })
            },
        )
        .await
    }

    /// The SHA-256 of some bytes in hexadecimal. PostgreSQL has it built in, and it is asked for once for each skip.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn sha256(&self, bytes: Vec<u8>) -> Result<String> {
        self.query("hash a record", move |connection: &mut PgConnection| {
            Box::pin(async move {
                let hash =
                    sqlx::query_scalar!(r#"SELECT encode(sha256($1), 'hex') AS "hash!""#, bytes)
                        .fetch_one(connection)
                        .await?;
                Ok(hash)
            })
        })
        .await
    }
}

/// The partition of a record that was stepped over is parked no longer.
async fn forget_parked(
    connection: &mut PgConnection,
    job: JobUid,
    skipped: &SkipRequest,
) -> Result<()> {
    sqlx::query!(
        "UPDATE jobs SET parked = coalesce(
             (SELECT json_agg(p) FROM json_array_elements(parked) p
              WHERE NOT (p ->> 'topic' = $2 AND (p ->> 'partition')::int = $3)), '[]')
         WHERE uid = $1",
        job.0,
        skipped.topic,
        skipped.partition,
    )
    .execute(connection)
    .await?;
    Ok(())
}
