//! The end of a job, and of work on a job that does not run.
//!
//! A deleted job's row stays for as long as its history: operations and events refer to it. Its name is free at once, and
//! whatever could be found by the name (idempotency keys) goes with it; everything else hangs on its uid, which no other job
//! will ever have.

use serde_json::json;
use sqlx::PgConnection;

use super::{
    OperationOutcome, Result, Store, bounded_runs,
    events::note,
    jobs::{instance_actor, lock, read_name},
    leases::{Release, hold_lease, release_lease},
    operations::{finish, supersede_all_but},
};
use crate::{
    engine::{error::StoreError, ports::JobLease},
    model::{
        event::{EventKind, HistoryEntry},
        ids::{JobName, JobUid, OperationId},
        job_state::{DesiredState, JobState},
    },
};

impl Store {
    /// Deletes a job that does not run, with the outcome of the operation that asked for it. With `purge` its checkpoints go
    /// at once. Fenced; repeating it after an unknown outcome succeeds.
    ///
    /// # Errors
    /// `Refused` when the job runs or is to run.
    pub async fn delete_job(
        &self,
        lease: &JobLease,
        operation: &OperationId,
        outcome: &OperationOutcome,
        purge: bool,
    ) -> Result<()> {
        let (lease, operation, outcome) = (*lease, operation.clone(), outcome.clone());
        self.in_transaction(format!("delete job {}", lease.job), move |connection| {
            Box::pin(async move { delete(connection, &lease, &operation, &outcome, purge).await })
        })
        .await
    }

    /// Ends an operation on a job that does not run, and gives the lease back under which it was carried out. Fenced;
    /// repeating it after an unknown outcome succeeds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_at_rest(
        &self,
        lease: &JobLease,
        operation: &OperationId,
        outcome: &OperationOutcome,
        entry: Option<&HistoryEntry>,
    ) -> Result<()> {
        let (lease, operation, outcome) = (*lease, operation.clone(), outcome.clone());
        let entry = entry.cloned();
        self.in_transaction(
            format!("store the outcome of operation {operation}"),
            move |connection| {
                Box::pin(async move {
                    let owner = match release_lease(connection, &lease).await? {
                        Release::Already => return Ok(()),
                        Release::Released { owner } => owner,
                    };
                    finish(connection, &operation, &outcome).await?;
                    let Some(HistoryEntry { kind, details }) = entry else {
                        return Ok(());
                    };
                    note(
                        connection,
                        Some(lease.job),
                        kind,
                        &instance_actor(&owner),
                        &details,
                    )
                    .await
                })
            },
        )
        .await
    }

    /// Notes the step before something that must not be done twice: unlike [`Store::operation_step`] it is fenced, and an
    /// error means that it must not be done.
    ///
    /// # Errors
    /// `Refused` when the operation has ended.
    pub async fn point_of_no_return(
        &self,
        lease: &JobLease,
        operation: &OperationId,
        step: &str,
    ) -> Result<()> {
        let (lease, operation, step) = (*lease, operation.clone(), step.to_owned());
        self.in_transaction(
            format!("note a step of operation {operation}"),
            move |connection| {
                Box::pin(async move {
                    hold_lease(connection, &lease).await?;
                    let noted = sqlx::query!(
                        "UPDATE operations SET status = 'running', step = $2 WHERE id = $1 AND status IN ('queued', 'running')",
                        operation.as_str(),
                        step,
                    )
                    .execute(connection)
                    .await?;
                    if noted.rows_affected() == 0 {
                        return Err(StoreError::Refused("the operation has ended".to_owned()));
                    }
                    Ok(())
                })
            },
        )
        .await
    }

    /// Other jobs that use a group of a connection.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn other_users_of_group(
        &self,
        job: JobUid,
        connection: &str,
        group: &str,
    ) -> Result<Vec<JobName>> {
        let (kafka, group) = (connection.to_owned(), group.to_owned());
        self.query(format!("read who uses group {group}"), move |connection| {
            Box::pin(async move {
                let names = sqlx::query_scalar!(
                    "SELECT name FROM jobs
                     WHERE deleted_at IS NULL AND uid <> $1
                       AND spec #>> '{source,connection}' = $2 AND spec #>> '{source,group_id}' = $3
                     ORDER BY name",
                    job.0,
                    kafka,
                    group,
                )
                .fetch_all(connection)
                .await?;
                names.iter().map(|name| read_name(name)).collect()
            })
        })
        .await
    }

    /// How many checkpoints of a job are stored, failed attempts included.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn count_checkpoints(&self, job: JobUid) -> Result<i64> {
        self.query(
            format!("count the checkpoints of job {job}"),
            move |connection| {
                Box::pin(async move {
                    Ok(sqlx::query_scalar!(
                        r#"SELECT count(*) AS "count!" FROM checkpoints WHERE job_uid = $1"#,
                        job.0,
                    )
                    .fetch_one(connection)
                    .await?)
                })
            },
        )
        .await
    }
}

async fn delete(
    connection: &mut PgConnection,
    lease: &JobLease,
    operation: &OperationId,
    outcome: &OperationOutcome,
    purge: bool,
) -> Result<()> {
    let job = lease.job;
    let owner = match release_lease(connection, lease).await? {
        Release::Already => return Ok(()),
        Release::Released { owner } => owner,
    };
    let row = lock(connection, job).await?;
    let at_rest = match row.state {
        JobState::Stopped | JobState::Finished => row.desired_state == DesiredState::Stopped,
        JobState::Failed => true,
        JobState::Starting | JobState::Running | JobState::Stopping | JobState::BackingOff => false,
    };
    if !at_rest {
        return Err(StoreError::Refused(format!(
            "job {} is {}",
            row.name,
            row.state.name()
        )));
    }
    finish(connection, operation, outcome).await?;
    supersede_all_but(connection, job, operation).await?;
    // The keys are looked up by the job's name: one that stayed would give the next job of the name this one's operation.
    sqlx::query!(
        "UPDATE operations SET idempotency_scope = NULL, idempotency_key = NULL, idempotency_body_hash = NULL
         WHERE job_uid = $1 AND idempotency_key IS NOT NULL",
        job.0,
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!("DELETE FROM start_plans WHERE job_uid = $1", job.0)
        .execute(&mut *connection)
        .await?;
    if purge {
        bounded_runs::forget(connection, job).await?;
        // Their positions go with them.
        sqlx::query!("DELETE FROM checkpoints WHERE job_uid = $1", job.0)
            .execute(&mut *connection)
            .await?;
    }
    sqlx::query!(
        "UPDATE jobs SET deleted_at = clock_timestamp(), desired_state = 'stopped', pending_start = NULL,
                running_generation = NULL, running_spec = NULL
         WHERE uid = $1",
        job.0,
    )
    .execute(&mut *connection)
    .await?;
    let details =
        json!({"operation": operation, "purge": purge, "name": row.name, "spec": row.spec});
    note(
        connection,
        Some(job),
        EventKind::JobDeleted,
        &instance_actor(&owner),
        &details,
    )
    .await
}

/// Deletes what deleted jobs have left for more than 30 days. The row of a job goes last, when no history refers to it.
pub(super) async fn prune_deleted_jobs(connection: &mut PgConnection) -> Result<()> {
    sqlx::query!(
        "DELETE FROM checkpoints c USING jobs j
         WHERE j.uid = c.job_uid AND j.deleted_at < now() - interval '30 days'"
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "DELETE FROM attempts a USING jobs j
         WHERE j.uid = a.job_uid AND j.deleted_at < now() - interval '30 days'"
    )
    .execute(&mut *connection)
    .await?;
    let gone = sqlx::query_scalar!(
        "SELECT uid FROM jobs j
         WHERE deleted_at < now() - interval '30 days'
           AND NOT EXISTS (SELECT FROM operations o WHERE o.job_uid = j.uid)
           AND NOT EXISTS (SELECT FROM events e WHERE e.job_uid = j.uid)
           AND NOT EXISTS (SELECT FROM start_plans p WHERE p.job_uid = j.uid)"
    )
    .fetch_all(&mut *connection)
    .await?;
    sqlx::query!("DELETE FROM job_leases WHERE job_uid = ANY ($1)", &gone)
        .execute(&mut *connection)
        .await?;
    sqlx::query!("DELETE FROM jobs WHERE uid = ANY ($1)", &gone)
        .execute(connection)
        .await?;
    Ok(())
}
