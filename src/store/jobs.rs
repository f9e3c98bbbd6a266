//! Jobs: their spec, what they should do and what they do.

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{
    OperationOutcome, Result, Store,
    attempts::{close_lost, keep_loop},
    bounded_runs,
    checkpoints::delete_checkpoints,
    events::note,
    leases::{Release, release_lease},
    operations::{finish, open_start},
    turns::Turnstile,
    words::{document, read_word, word},
};
use crate::{
    engine::{error::StoreError, ports::JobLease},
    model::{
        event::EventKind,
        ids::{JobName, JobUid, LeaseEpoch, OperationId},
        job::JobSpec,
        job_state::{DesiredState, JobState},
        job_status::{FailedRecord, JobFailure},
        operation::Operation,
        parked::ParkedPartition,
        restart::CrashLoop,
        start::PendingStart,
        startup_mode::StartupMode,
    },
};

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    /// Its identity.
    pub uid: JobUid,
    /// Its name.
    pub name: JobName,
    /// The spec as it was last put.
    pub spec: JobSpec,
    /// Counts the changes of the spec, from 1.
    pub generation: i64,
    /// What an operator asked for last.
    pub desired_state: DesiredState,
    /// What its owner said last that it does.
    pub state: JobState,
    /// Since when.
    pub state_since: DateTime<Utc>,
    /// Why it gave up.
    pub failure: Option<JobFailure>,
    /// The record that it failed at last, kept over stops and starts: only this one may be stepped over.
    pub failed_record: Option<FailedRecord>,
    /// Partitions that the last run did not read, with the reasons; kept over stops and starts.
    pub parked: Vec<ParkedPartition>,
    /// The crash loop that it is in, or that it gave up after.
    pub crash_loop: Option<CrashLoop>,
    /// A start that was asked for ahead of time.
    pub pending_start: Option<PendingStart>,
    /// The spec of the run; `None` unless a run has begun and not been settled.
    pub running: Option<RunningSpec>,
    /// The startup mode was changed while there was a checkpoint, and no start has used it since.
    pub startup_mode_shadowed: bool,
    /// Who holds the lease; `None` if nobody does.
    pub owner: Option<OwnerRow>,
    /// When it was first put.
    pub created_at: DateTime<Utc>,
}

impl JobRow {
    /// The spec that counts: the one of the run that has begun, else the declared one.
    #[must_use]
    pub fn running_spec(&self) -> &JobSpec {
        self.running
            .as_ref()
            .map_or(&self.spec, |running| &running.spec)
    }

    /// When the next run begins, for a job that backs off after a crash.
    #[must_use]
    pub fn backs_off_until(&self) -> Option<DateTime<Utc>> {
        self.crash_loop
            .as_ref()
            .filter(|_| self.state == JobState::BackingOff)?
            .next_attempt_at
    }
}

/// The spec under which a job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningSpec {
    /// Its generation.
    pub generation: i64,
    /// The spec.
    pub spec: JobSpec,
}

/// Who holds a job's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRow {
    /// Its instance id.
    pub instance: String,
    /// Under which epoch.
    pub epoch: LeaseEpoch,
    /// Whether that process has shown signs of life in time.
    pub live: bool,
}

/// What must hold for a spec to be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecPrecondition {
    /// Nothing: create or replace.
    Any,
    /// There is no such job (`If-None-Match: *`).
    Absent,
    /// There is such a job (`If-Match: *`).
    Present,
    /// The job's generation is this one (`If-Match: "7"`).
    Generation(i64),
}

/// What became of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutSpec {
    /// The job is new.
    Created(JobRow),
    /// The spec was replaced.
    Replaced(JobRow),
    /// It was the same already.
    Unchanged(JobRow),
    /// The precondition names another generation than this one.
    Stale {
        /// The generation that is stored.
        generation: i64,
    },
    /// The precondition wants a new job.
    Exists,
    /// The precondition wants an existing job.
    Missing,
    /// Another job uses the consumer group on the same connection.
    GroupTaken {
        /// That job.
        job: JobName,
    },
}

/// What became of a startup mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetMode {
    /// Changed.
    Changed(JobRow),
    /// It was the same already.
    Unchanged(JobRow),
    /// The precondition names another generation than this one.
    Stale {
        /// The generation that is stored.
        generation: i64,
    },
}

/// What became of calling off a start that was asked for ahead.
#[derive(Debug, Clone, PartialEq)]
pub enum CancelStart {
    /// This one is called off.
    Cancelled(PendingStart),
    /// There is none, or another one.
    NotPending,
    /// This start or restart is under way, and may use it.
    Busy(Box<Operation>),
}

impl Store {
    /// The job of this name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn job(&self, name: &JobName) -> Result<Option<JobRow>> {
        let name = name.clone();
        self.query(format!("read job {name}"), move |connection| {
            Box::pin(async move { one(connection, Some(&name), None).await })
        })
        .await
    }

    /// The job of this identity, unless it was deleted.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn job_by_uid(&self, job: JobUid) -> Result<Option<JobRow>> {
        self.query(format!("read job {job}"), move |connection| {
            Box::pin(async move { one(connection, None, Some(job)).await })
        })
        .await
    }

    /// All jobs, by name.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn jobs(&self) -> Result<Vec<JobRow>> {
        self.query("read the jobs", |connection| {
            Box::pin(select(connection, None, None))
        })
        .await
    }

    /// Creates a job or replaces its spec, if the precondition holds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn put_spec(
        &self,
        name: &JobName,
        spec: &JobSpec,
        precondition: &SpecPrecondition,
        by: &str,
    ) -> Result<PutSpec> {
        let (name, spec, precondition, by) =
            (name.clone(), spec.clone(), *precondition, by.to_owned());
        self.in_turn(
            format!("put the spec of job {name}"),
            Turnstile::Specs,
            move |connection| {
                Box::pin(async move { put(connection, &name, &spec, precondition, &by).await })
            },
        )
        .await
    }

    /// Changes the startup mode alone, if the spec has the generation given.
    ///
    /// # Errors
    /// `NoSuchJob`; see [`StoreError`].
    pub async fn set_startup_mode(
        &self,
        job: JobUid,
        mode: &StartupMode,
        if_match: Option<i64>,
        by: &str,
    ) -> Result<SetMode> {
        let (mode, by) = (mode.clone(), by.to_owned());
        self.in_turn(
            format!("set the startup mode of job {job}"),
            Turnstile::Job(job),
            move |connection| {
                Box::pin(async move {
                    let row = lock(connection, job).await?;
                    if if_match.is_some_and(|generation| generation != row.generation) {
                        return Ok(SetMode::Stale {
                            generation: row.generation,
                        });
                    }
                    if row.spec.startup_mode == mode {
                        return Ok(SetMode::Unchanged(row));
                    }
                    let spec = JobSpec {
                        startup_mode: mode,
                        ..row.spec.clone()
                    };
                    let row = replace(connection, &row, &spec, &by).await?;
                    Ok(SetMode::Changed(row))
                })
            },
        )
        .await
    }

    /// Keeps a one-shot start until an operator's start consumes it. The latest one wins; gives back the one it discarded.
    ///
    /// # Errors
    /// `NoSuchJob`; see [`StoreError`].
    pub async fn set_pending_start(
        &self,
        job: JobUid,
        pending: &PendingStart,
    ) -> Result<Option<PendingStart>> {
        let pending = pending.clone();
        self.in_turn(
            format!("keep a start of job {job} for later"),
            Turnstile::Job(job),
            move |connection| {
                Box::pin(async move {
                    let row = lock(connection, job).await?;
                    sqlx::query!(
                        "UPDATE jobs SET pending_start = $2::text::json WHERE uid = $1",
                        job.0,
                        document(&pending)?,
                    )
                    .execute(&mut *connection)
                    .await?;
                    // A repetition after an unknown outcome finds itself.
                    let discarded = row.pending_start.filter(|old| old.id != pending.id);
                    let details = json!({"set": &pending, "discarded": &discarded});
                    note(
                        connection,
                        Some(job),
                        EventKind::NextStartSet,
                        &pending.requested_by,
                        &details,
                    )
                    .await?;
                    Ok(discarded)
                })
            },
        )
        .await
    }

    /// Calls off the start that was asked for ahead, whichever it is, or only the one of this id. Not while a start is under
    /// way, which may have read it already.
    ///
    /// # Errors
    /// `NoSuchJob`; see [`StoreError`].
    pub async fn cancel_pending_start(
        &self,
        job: JobUid,
        only: Option<&str>,
        by: &str,
        reason: Option<&str>,
    ) -> Result<CancelStart> {
        let (only, by) = (only.map(str::to_owned), by.to_owned());
        let reason = reason.map(str::to_owned);
        self.in_turn(
            format!("call off the start of job {job} that was asked for ahead"),
            Turnstile::Job(job),
            move |connection| {
                Box::pin(async move {
                    let row = lock(connection, job).await?;
                    let is_meant = |pending: &PendingStart| {
                        only.as_ref().is_none_or(|only| *only == pending.id)
                    };
                    let Some(pending) = row.pending_start.filter(is_meant) else {
                        return Ok(CancelStart::NotPending);
                    };
                    if let Some(start) = open_start(connection, job).await? {
                        return Ok(CancelStart::Busy(Box::new(start)));
                    }
                    sqlx::query!("UPDATE jobs SET pending_start = NULL WHERE uid = $1", job.0,)
                        .execute(&mut *connection)
                        .await?;
                    let details = json!({"cancelled": &pending, "reason": reason});
                    note(
                        connection,
                        Some(job),
                        EventKind::NextStartCancelled,
                        &by,
                        &details,
                    )
                    .await?;
                    Ok(CancelStart::Cancelled(pending))
                })
            },
        )
        .await
    }

    /// Says what the job does now. Fenced.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn set_state(
        &self,
        lease: &JobLease,
        state: JobState,
        failure: Option<&JobFailure>,
    ) -> Result<()> {
        let (job, failure) = (lease.job, failure.cloned());
        self.fenced(
            format!("store that job {job} is {}", state.name()),
            lease,
            move |connection, _| {
                Box::pin(async move { write_state(connection, job, state, failure.as_ref()).await })
            },
        )
        .await
    }

    /// Keeps which partitions a run does not read. Fenced.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn set_parked(&self, lease: &JobLease, parked: Vec<ParkedPartition>) -> Result<()> {
        let job = lease.job;
        self.fenced(
            format!("store the parked partitions of job {job}"),
            lease,
            move |connection, _| {
                Box::pin(async move { write_parked(connection, job, &parked).await })
            },
        )
        .await
    }

    /// Ends a run: state, desired state, lease and operation in one transaction, and answers the state: a job that should be
    /// stopped and was finished before stays finished. Fenced; repeating it after an unknown
    /// outcome succeeds. With `keep_desired` the job starts again when a server comes up. Of the failure of a job that is
    /// stopped all the same, only the record is kept.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn settle_stopped(
        &self,
        lease: &JobLease,
        operation: Option<(&OperationId, &OperationOutcome)>,
        state: JobState,
        failure: Option<&JobFailure>,
        keep_desired: bool,
    ) -> Result<JobState> {
        let settlement = Settlement {
            state,
            failure: failure.cloned(),
            desired: (!keep_desired).then_some(DesiredState::Stopped),
            operation: operation.map(|(id, outcome)| (id.clone(), outcome.clone())),
            event: match state {
                JobState::Failed => EventKind::JobFailed,
                JobState::Finished => EventKind::JobFinished,
                JobState::Stopped
                | JobState::Starting
                | JobState::Running
                | JobState::Stopping
                | JobState::BackingOff => EventKind::JobStopped,
            },
            deletes_checkpoints: false,
        };
        self.settle(lease, settlement).await
    }

    /// Ends a run that somebody stopped, like [`settle_stopped`](Self::settle_stopped), and deletes its checkpoints: nothing is
    /// left that a start would resume from. The newest one stays, set aside, because the numbers count on from it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn settle_canceled(
        &self,
        lease: &JobLease,
        operation: (&OperationId, &OperationOutcome),
        failure: Option<&JobFailure>,
    ) -> Result<JobState> {
        let (id, outcome) = operation;
        let settlement = Settlement {
            state: JobState::Stopped,
            failure: failure.cloned(),
            desired: Some(DesiredState::Stopped),
            operation: Some((id.clone(), outcome.clone())),
            event: EventKind::JobStopped,
            deletes_checkpoints: true,
        };
        self.settle(lease, settlement).await
    }

    /// Ends a start that was refused: the job is stopped, or finished as before, wants what it wanted before, and its lease is
    /// released. Fenced; repeating it after an unknown outcome succeeds.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn refuse_start(
        &self,
        lease: &JobLease,
        operation: Option<(&OperationId, &OperationOutcome)>,
        desired: DesiredState,
    ) -> Result<JobState> {
        let settlement = Settlement {
            state: JobState::Stopped,
            failure: None,
            desired: Some(desired),
            operation: operation.map(|(id, outcome)| (id.clone(), outcome.clone())),
            event: EventKind::StartRefused,
            deletes_checkpoints: false,
        };
        self.settle(lease, settlement).await
    }

    async fn settle(&self, lease: &JobLease, settlement: Settlement) -> Result<JobState> {
        let lease = *lease;
        self.in_transaction(format!("settle job {}", lease.job), move |connection| {
            Box::pin(async move { settle(connection, &lease, &settlement).await })
        })
        .await
    }
}

/// What a run leaves behind.
struct Settlement {
    state: JobState,
    failure: Option<JobFailure>,
    /// `None`: as it was.
    desired: Option<DesiredState>,
    operation: Option<(OperationId, OperationOutcome)>,
    event: EventKind,
    deletes_checkpoints: bool,
}

async fn settle(
    connection: &mut PgConnection,
    lease: &JobLease,
    settlement: &Settlement,
) -> Result<JobState> {
    let owner = match release_lease(connection, lease).await? {
        Release::Already => return rests_as(connection, lease.job, settlement.state).await,
        Release::Released { owner } => owner,
    };
    let state = rests_as(connection, lease.job, settlement.state).await?;
    write_state(connection, lease.job, state, settlement.failure.as_ref()).await?;
    if state == JobState::Finished {
        bounded_runs::finished(connection, lease.job).await?;
    }
    forget_run(connection, lease.job).await?;
    if settlement.deletes_checkpoints {
        delete_checkpoints(connection, lease.job).await?;
    }
    // What is open still was not ended by whoever ran it.
    close_lost(connection, lease.job).await?;
    if settlement.desired == Some(DesiredState::Stopped) {
        keep_loop(connection, lease.job, None).await?;
    }
    let desired = settlement.desired.as_ref().map(word).transpose()?;
    sqlx::query!(
        "UPDATE jobs SET desired_state = coalesce($2, desired_state) WHERE uid = $1",
        lease.job.0,
        desired,
    )
    .execute(&mut *connection)
    .await?;
    if let Some((id, outcome)) = &settlement.operation {
        finish(connection, id, outcome).await?;
    }
    let details = json!({
        "epoch": lease.epoch,
        "operation": settlement.operation.as_ref().map(|(id, _)| id),
        "failure": &settlement.failure,
        "checkpoints_deleted": settlement.deletes_checkpoints,
    });
    note(
        connection,
        Some(lease.job),
        settlement.event,
        &instance_actor(&owner),
        &details,
    )
    .await?;
    Ok(state)
}

/// A job that was finished is so again when a start was refused or called off: no run has replaced the one it finished.
async fn rests_as(connection: &mut PgConnection, job: JobUid, state: JobState) -> Result<JobState> {
    if state == JobState::Stopped && bounded_runs::is_finished(connection, job).await? {
        return Ok(JobState::Finished);
    }
    Ok(state)
}

/// How a server stands in the history when it acts by itself.
pub(super) fn instance_actor(instance: &str) -> String {
    format!("instance:{instance}")
}

pub(super) async fn write_state(
    connection: &mut PgConnection,
    job: JobUid,
    state: JobState,
    failure: Option<&JobFailure>,
) -> Result<()> {
    let record = failure.and_then(|failure| failure.record.as_ref());
    let failure = failure.filter(|_| state == JobState::Failed);
    sqlx::query!(
        "UPDATE jobs SET state = $2, failure = $3::text::json, failed_record = coalesce($4::text::json, failed_record),
                state_since = CASE WHEN state = $2 THEN state_since ELSE clock_timestamp() END
         WHERE uid = $1",
        job.0,
        state.name(),
        failure.map(document).transpose()?,
        record.map(document).transpose()?,
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn write_parked(
    connection: &mut PgConnection,
    job: JobUid,
    parked: &[ParkedPartition],
) -> Result<()> {
    sqlx::query!(
        "UPDATE jobs SET parked = $2::text::json WHERE uid = $1",
        job.0,
        document(parked)?,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Nothing runs any more.
pub(super) async fn forget_run(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "UPDATE jobs SET running_generation = NULL, running_spec = NULL WHERE uid = $1",
        job.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn put(
    connection: &mut PgConnection,
    name: &JobName,
    spec: &JobSpec,
    precondition: SpecPrecondition,
    by: &str,
) -> Result<PutSpec> {
    // One spec at a time: whether a group is taken depends on all jobs.
    sqlx::query!("SELECT install_id FROM installation FOR UPDATE")
        .fetch_one(&mut *connection)
        .await?;
    let old = match one(connection, Some(name), None).await? {
        // Locked and read again: another transaction may be changing its startup mode.
        Some(row) => match lock(connection, row.uid).await {
            Ok(row) => Some(row),
            // It was deleted at this moment: its name is free.
            Err(StoreError::NoSuchJob) => None,
            Err(error) => return Err(error),
        },
        None => None,
    };
    match (&old, precondition) {
        (Some(_), SpecPrecondition::Absent) => return Ok(PutSpec::Exists),
        (None, SpecPrecondition::Present | SpecPrecondition::Generation(_)) => {
            return Ok(PutSpec::Missing);
        }
        (Some(row), SpecPrecondition::Generation(wanted)) if wanted != row.generation => {
            return Ok(PutSpec::Stale {
                generation: row.generation,
            });
        }
        (Some(_) | None, _) => {}
    }
    if let Some(row) = old.as_ref().filter(|row| row.spec == *spec) {
        return Ok(PutSpec::Unchanged(row.clone()));
    }
    let uid = old.as_ref().map(|row| row.uid);
    if let Some(job) = group_user(connection, uid, spec).await? {
        return Ok(PutSpec::GroupTaken { job });
    }
    match old {
        Some(row) => Ok(PutSpec::Replaced(
            replace(connection, &row, spec, by).await?,
        )),
        None => Ok(PutSpec::Created(create(connection, name, spec, by).await?)),
    }
}

async fn create(
    connection: &mut PgConnection,
    name: &JobName,
    spec: &JobSpec,
    by: &str,
) -> Result<JobRow> {
    let uid = JobUid(Uuid::now_v7());
    sqlx::query!(
        "INSERT INTO jobs (uid, name, spec) VALUES ($1, $2, $3::text::json)",
        uid.0,
        name.as_str(),
        document(spec)?,
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!("INSERT INTO job_leases (job_uid) VALUES ($1)", uid.0)
        .execute(&mut *connection)
        .await?;
    note(
        connection,
        Some(uid),
        EventKind::JobCreated,
        by,
        &json!({"spec": spec}),
    )
    .await?;
    existing(connection, uid).await
}

async fn replace(
    connection: &mut PgConnection,
    old: &JobRow,
    spec: &JobSpec,
    by: &str,
) -> Result<JobRow> {
    let shadowed =
        old.spec.startup_mode != spec.startup_mode && has_state(connection, old.uid).await?;
    sqlx::query!(
        "UPDATE jobs SET spec = $2::text::json, generation = generation + 1, startup_mode_shadowed = startup_mode_shadowed OR $3
         WHERE uid = $1",
        old.uid.0,
        document(spec)?,
        shadowed,
    )
    .execute(&mut *connection)
    .await?;
    let details = json!({"generation": old.generation + 1, "spec": spec, "was": &old.spec});
    note(
        connection,
        Some(old.uid),
        EventKind::SpecReplaced,
        by,
        &details,
    )
    .await?;
    existing(connection, old.uid).await
}

/// Whether a start would resume instead of asking the startup mode.
pub(super) async fn has_state(connection: &mut PgConnection, job: JobUid) -> Result<bool> {
    Ok(sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM checkpoints WHERE job_uid = $1 AND status = 'completed' AND NOT superseded) AS "any!""#,
        job.0,
    )
    .fetch_one(connection)
    .await?)
}

/// Another job that uses the group on the same connection. Both must allow it, since each would move the other's offsets.
async fn group_user(
    connection: &mut PgConnection,
    job: Option<JobUid>,
    spec: &JobSpec,
) -> Result<Option<JobName>> {
    let name = sqlx::query_scalar!(
        "SELECT name FROM jobs
         WHERE deleted_at IS NULL AND uid IS DISTINCT FROM $1
           AND spec #>> '{source,connection}' = $2 AND spec #>> '{source,group_id}' = $3
           AND NOT ($4 AND (spec #>> '{source,allow_shared_group}')::boolean)
         ORDER BY name LIMIT 1",
        job.map(|job| job.0),
        spec.source.connection,
        spec.source.group_id,
        spec.source.allow_shared_group,
    )
    .fetch_optional(connection)
    .await?;
    name.as_deref().map(read_name).transpose()
}

/// Locks a job's row against other changes (checkpoints, which only refer to it, go on) and reads it.
pub(super) async fn lock(connection: &mut PgConnection, job: JobUid) -> Result<JobRow> {
    sqlx::query!(
        "SELECT uid FROM jobs WHERE uid = $1 AND deleted_at IS NULL FOR NO KEY UPDATE",
        job.0,
    )
    .fetch_optional(&mut *connection)
    .await?
    .ok_or(StoreError::NoSuchJob)?;
    existing(connection, job).await
}

async fn existing(connection: &mut PgConnection, job: JobUid) -> Result<JobRow> {
    one(connection, None, Some(job))
        .await?
        .ok_or(StoreError::NoSuchJob)
}

async fn one(
    connection: &mut PgConnection,
    name: Option<&JobName>,
    job: Option<JobUid>,
) -> Result<Option<JobRow>> {
    Ok(select(connection, name, job).await?.pop())
}

/// All jobs, or the one of a name or an identity.
async fn select(
    connection: &mut PgConnection,
    name: Option<&JobName>,
    job: Option<JobUid>,
) -> Result<Vec<JobRow>> {
    let rows = sqlx::query!(
        r#"SELECT j.uid, j.name, j.spec AS "spec: Json<JobSpec>", j.generation, j.desired_state, j.state, j.state_since,
                  j.failure AS "failure: Json<JobFailure>",
                  j.failed_record AS "failed_record: Json<FailedRecord>", j.crash_loop AS "crash_loop: Json<CrashLoop>",
                  j.parked AS "parked: Json<Vec<ParkedPartition>>", j.pending_start AS "pending_start: Json<PendingStart>",
                  j.running_generation, j.running_spec AS "running_spec: Json<JobSpec>", j.startup_mode_shadowed, j.created_at,
                  l.owner_instance, l.epoch, coalesce(i.expires_at > clock_timestamp(), false) AS "live!"
           FROM jobs j JOIN job_leases l ON l.job_uid = j.uid LEFT JOIN instances i ON i.incarnation = l.owner
           WHERE j.deleted_at IS NULL AND ($1::text IS NULL OR j.name = $1) AND ($2::uuid IS NULL OR j.uid = $2)
           ORDER BY j.name COLLATE "C""#,
        name.map(JobName::as_str),
        job.map(|job| job.0),
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let running = row.running_generation.zip(row.running_spec);
            Ok(JobRow {
                uid: JobUid(row.uid),
                name: read_name(&row.name)?,
                spec: row.spec.0,
                generation: row.generation,
                desired_state: read_word(&row.desired_state)?,
                state: read_word(&row.state)?,
                state_since: row.state_since,
                failure: row.failure.map(|failure| failure.0),
                failed_record: row.failed_record.map(|record| record.0),
                parked: row.parked.0,
                crash_loop: row.crash_loop.map(|crash_loop| crash_loop.0),
                pending_start: row.pending_start.map(|pending| pending.0),
                running: running.map(|(generation, spec)| RunningSpec {
                    generation,
                    spec: spec.0,
                }),
                startup_mode_shadowed: row.startup_mode_shadowed,
                owner: row.owner_instance.map(|instance| OwnerRow {
                    instance,
                    epoch: LeaseEpoch(row.epoch),
                    live: row.live,
                }),
                created_at: row.created_at,
            })
        })
        .collect()
}

pub(super) fn read_name(name: &str) -> Result<JobName> {
    JobName::new(name)
        .map_err(|_| StoreError::Refused(format!("the stored name {name:?} is no job name")))
}
