//! Each run of a job, for whoever asks later what happened.
//!
//! A run is noted in the transaction that stores its positions, and its end behind the fence before the lease is given back.
//! What a dead owner has left open is closed by whoever writes next: so there is one open run at most.

use serde_json::json;
use sqlx::{PgConnection, types::Json};

use super::{
    Result, StartRecord, Store,
    checkpoints::Inserted,
    events::note,
    jobs::{forget_run, instance_actor, write_state},
    words::{document, read_word, storable, word},
};
use crate::{
    engine::{error::StoreError, ports::JobLease},
    model::{
        attempt::{Attempt, AttemptKind, AttemptOutcome},
        event::EventKind,
        ids::{CheckpointId, JobUid, LeaseEpoch, OperationId},
        job_state::JobState,
        job_status::JobFailure,
        restart::CrashLoop,
    },
};

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEnd {
    /// In one word.
    pub outcome: AttemptOutcome,
    /// What it ended with, if that was not asked for.
    pub cause: Option<JobFailure>,
    /// Records given to the sink.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether a crash loop begins with it.
    pub first_of_loop: bool,
}

/// A run that crashed before its positions were stored, so that nothing is known of it yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeverBegun {
    /// Why it was to begin.
    pub kind: AttemptKind,
    /// Generation of the spec that was to run.
    pub generation: i64,
    /// The operation that asked for it.
    pub operation: Option<OperationId>,
}

impl Store {
    /// Notes how the run ended. Fenced; a repetition changes nothing.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn end_attempt(&self, lease: &JobLease, end: &AttemptEnd) -> Result<()> {
        let (job, end) = (lease.job, end.clone());
        self.fenced(
            format!("store the end of a run of job {job}"),
            lease,
            move |connection, _| {
                Box::pin(async move {
                    close(connection, job, &end).await?;
                    Ok(())
                })
            },
        )
        .await
    }

    /// Notes that the run crashed: how it ended, and what is known of the loop. With a next start in it the job backs off,
    /// and its lease stays. Fenced; a repetition changes nothing.
    ///
    /// Without an open run it is `never_begun` that crashed; without that, the settling of the newest run of this epoch,
    /// which then has the crash as its end.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn crashed(
        &self,
        lease: &JobLease,
        crash_loop: &CrashLoop,
        end: &AttemptEnd,
        never_begun: Option<&NeverBegun>,
    ) -> Result<()> {
        let (job, epoch) = (lease.job, lease.epoch);
        let (crash_loop, end) = (crash_loop.clone(), end.clone());
        let never_begun = never_begun.cloned();
        self.fenced(
            format!("store the crash of job {job}"),
            lease,
            move |connection, owner| {
                Box::pin(async move {
                    let closed = close(connection, job, &end).await?;
                    if !keep_loop(connection, job, Some(&crash_loop)).await? {
                        return Ok(());
                    }
                    match never_begun {
                        _ if closed => {}
                        Some(run) => add_crashed(connection, job, epoch, &owner, &run, &end).await?,
                        None => crash_newest(connection, job, epoch, &end).await?,
                    }
                    if crash_loop.next_attempt_at.is_none() {
                        return Ok(());
                    }
                    write_state(connection, job, JobState::BackingOff, None).await?;
                    forget_run(connection, job).await?;
                    let details = json!({
                        "epoch": epoch, "cause": &end.cause, "restart": crash_loop.restarts,
                        "next_attempt_at": crash_loop.next_attempt_at, "first_cause": &crash_loop.first_cause,
                    });
                    let actor = instance_actor(&owner);
                    note(connection, Some(job), EventKind::JobCrashed, &actor, &details).await
                })
            },
        )
        .await
    }

    /// Runs of a job, newest first: at most `limit`, only older ones than `before`.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn attempts(
        &self,
        job: JobUid,
        limit: u32,
        before: Option<i64>,
    ) -> Result<Vec<Attempt>> {
        self.query(format!("read the runs of job {job}"), move |connection| {
            Box::pin(async move { select(connection, job, limit, before).await })
        })
        .await
    }
}

/// Notes that a run begins. What was open ended without a word; what is kept too long goes.
pub(super) async fn begin(
    connection: &mut PgConnection,
    lease: &JobLease,
    owner: &str,
    start: Option<CheckpointId>,
    record: &StartRecord,
) -> Result<()> {
    close_lost(connection, lease.job).await?;
    sqlx::query!(
        "INSERT INTO attempts (job_uid, id, kind, epoch, instance, generation, operation_id, checkpoint_id, without_checkpoints)
         SELECT $1, coalesce(max(id), 0) + 1, $2, $3, $4, $5, $6, $7, $8 FROM attempts WHERE job_uid = $1",
        lease.job.0,
        word(&record.kind)?,
        lease.epoch.0,
        owner,
        record.generation,
        record.operation.as_ref().map(|(id, _)| id.as_str()),
        start.map(|start| start.0),
        record.without_checkpoints.as_deref().map(storable),
    )
    .execute(&mut *connection)
    .await?;
    forget_old(connection, lease.job).await?;
    keep_loop(connection, lease.job, record.crash_loop.as_ref()).await?;
    Ok(())
}

/// The newest hundred stay, and of those that began a crash loop twenty more.
async fn forget_old(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "DELETE FROM attempts WHERE job_uid = $1
            AND id NOT IN (SELECT id FROM attempts WHERE job_uid = $1 ORDER BY id DESC LIMIT 100)
            AND id NOT IN (SELECT id FROM attempts WHERE job_uid = $1 AND first_of_loop ORDER BY id DESC LIMIT 20)",
        job.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether this lease has begun a run already: by that a start that keeps no checkpoint knows its own repetition.
pub(super) async fn begun_before(
    connection: &mut PgConnection,
    lease: &JobLease,
) -> Result<Inserted> {
    let begun = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM attempts WHERE job_uid = $1 AND epoch = $2 AND without_checkpoints IS NOT NULL) AS "any!""#,
        lease.job.0,
        lease.epoch.0,
    )
    .fetch_one(connection)
    .await?;
    Ok(if begun {
        Inserted::Before
    } else {
        Inserted::Now
    })
}

/// Closes the run that a dead owner has left open.
pub(super) async fn close_lost(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "UPDATE attempts SET ended_at = clock_timestamp(), outcome = $2 WHERE job_uid = $1 AND ended_at IS NULL",
        job.0,
        word(&AttemptOutcome::OwnerLost)?,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Closes the open run; says whether there was one.
async fn close(connection: &mut PgConnection, job: JobUid, end: &AttemptEnd) -> Result<bool> {
    let closed = sqlx::query!(
        "UPDATE attempts SET ended_at = clock_timestamp(), outcome = $2, cause = $3::text::json, records = $4, bytes = $5,
                first_of_loop = $6
         WHERE job_uid = $1 AND ended_at IS NULL",
        job.0,
        word(&end.outcome)?,
        end.cause.as_ref().map(document).transpose()?,
        i64::try_from(end.records).unwrap_or(i64::MAX),
        i64::try_from(end.bytes).unwrap_or(i64::MAX),
        end.first_of_loop,
    )
    .execute(connection)
    .await?;
    Ok(closed.rows_affected() > 0)
}

async fn add_crashed(
    connection: &mut PgConnection,
    job: JobUid,
    epoch: LeaseEpoch,
    owner: &str,
    run: &NeverBegun,
    end: &AttemptEnd,
) -> Result<()> {
    sqlx::query!(
        "INSERT INTO attempts (job_uid, id, kind, epoch, instance, generation, operation_id,
                               ended_at, outcome, cause, records, bytes, first_of_loop)
         SELECT $1, coalesce(max(id), 0) + 1, $2, $3, $4, $5, $6, clock_timestamp(), $7, $8::text::json, 0, 0, $9
         FROM attempts WHERE job_uid = $1",
        job.0,
        word(&run.kind)?,
        epoch.0,
        owner,
        run.generation,
        run.operation.as_ref().map(OperationId::as_str),
        word(&end.outcome)?,
        end.cause.as_ref().map(document).transpose()?,
        end.first_of_loop,
    )
    .execute(&mut *connection)
    .await?;
    forget_old(connection, job).await
}

/// The run had ended, and what follows its end crashed.
async fn crash_newest(
    connection: &mut PgConnection,
    job: JobUid,
    epoch: LeaseEpoch,
    end: &AttemptEnd,
) -> Result<()> {
    sqlx::query!(
        "UPDATE attempts SET outcome = $3, cause = $4::text::json, first_of_loop = first_of_loop OR $5
         WHERE job_uid = $1 AND epoch = $2 AND id = (SELECT max(id) FROM attempts WHERE job_uid = $1)",
        job.0,
        epoch.0,
        word(&end.outcome)?,
        end.cause.as_ref().map(document).transpose()?,
        end.first_of_loop,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Replaces what is known of the job's crash loop; says whether that is news.
pub(super) async fn keep_loop(
    connection: &mut PgConnection,
    job: JobUid,
    crash_loop: Option<&CrashLoop>,
) -> Result<bool> {
    let replaced = sqlx::query!(
        "UPDATE jobs SET crash_loop = $2::text::json WHERE uid = $1 AND crash_loop::text IS DISTINCT FROM $2",
        job.0,
        crash_loop.map(document).transpose()?,
    )
    .execute(connection)
    .await?;
    Ok(replaced.rows_affected() == 1)
}

async fn select(
    connection: &mut PgConnection,
    job: JobUid,
    limit: u32,
    before: Option<i64>,
) -> Result<Vec<Attempt>> {
    let rows = sqlx::query!(
        r#"SELECT id, kind, epoch, instance, generation, operation_id, checkpoint_id, without_checkpoints, started_at, ended_at, outcome,
                  cause AS "cause: Json<JobFailure>", records, bytes, first_of_loop
           FROM attempts WHERE job_uid = $1 AND ($2::bigint IS NULL OR id < $2) ORDER BY id DESC LIMIT $3"#,
        job.0,
        before,
        i64::from(limit),
    )
    .fetch_all(connection)
    .await?;
    let count = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    rows.into_iter()
        .map(|row| {
            Ok::<_, StoreError>(Attempt {
                attempt: row.id,
                kind: read_word(&row.kind)?,
                started_at: row.started_at,
                ended_at: row.ended_at,
                outcome: row.outcome.as_deref().map(read_word).transpose()?,
                cause: row.cause.map(|cause| cause.0),
                first_of_loop: row.first_of_loop,
                records: count(row.records),
                bytes: count(row.bytes),
                generation: row.generation,
                operation: row.operation_id.as_deref().map(OperationId::from_text),
                checkpoint: row.checkpoint_id.map(CheckpointId),
                without_checkpoints: row.without_checkpoints,
                instance: row.instance,
                epoch: LeaseEpoch(row.epoch),
            })
        })
        .collect()
}
