//! Checkpoints and their positions.
//!
//! A checkpoint and its positions are written in one transaction, behind the fence. Its number and epoch name it: whoever
//! writes it again after an unknown outcome finds it and has succeeded.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::{PgConnection, types::Json};

use super::{
    Result, Store, attempts, bounded_runs,
    events::note,
    jobs::{has_state, instance_actor},
    operations::reach,
    words::{document, read_word, storable, word, words},
};
use crate::{
    engine::{
        error::StoreError,
        ports::{CheckpointStore, JobLease},
    },
    model::{
        attempt::AttemptKind,
        checkpoint::{
            Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
            CheckpointStatus, FailedCheckpoint, GroupCommit,
        },
        event::{EventKind, HistoryEntry},
        ids::{CheckpointId, JobUid, LeaseEpoch, OperationId},
        job::{CommitToGroup, JobSpec},
        offset::Offset,
        resolver::ForgottenPosition,
        restart::CrashLoop,
        stop_at::BoundedRun,
        topic::{TopicId, TopicPartition},
    },
};

/// A checkpoint as it is stored: completed or failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// `Completed` or `Failed`.
    pub status: CheckpointStatus,
    /// The lease under which it was taken.
    pub epoch: LeaseEpoch,
    /// When it was triggered.
    pub started_at: DateTime<Utc>,
    /// When it completed or failed.
    pub ended_at: DateTime<Utc>,
    /// When its positions were last found unchanged; `None` for a failed one.
    pub confirmed_at: Option<DateTime<Utc>>,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Why it failed.
    pub failure: Option<CheckpointFailure>,
    /// Its commit to the group.
    pub group_commit: GroupCommit,
    /// Whether a later start set it aside.
    pub superseded: bool,
    /// Whether any record reached the sink since the checkpoint before.
    pub has_output: bool,
    /// Which target the sink wrote to; empty for a failed one.
    pub sink_identity: String,
    /// The positions; empty for a failed one and where they were not asked for.
    pub positions: BTreeMap<TopicPartition, CheckpointPosition>,
}

/// What a start leaves in the store besides its checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRecord {
    /// Generation of the spec that runs now.
    pub generation: i64,
    /// That spec.
    pub spec: JobSpec,
    /// Id of the one-shot start that this start used up.
    pub consumed_pending: Option<String>,
    /// Whether the start leaves the older checkpoints aside.
    pub set_aside: bool,
    /// Where the partitions end, for a bounded job: replaces what was stored of an earlier run.
    pub bounded: Option<BoundedRun>,
    /// Why the run begins.
    pub kind: AttemptKind,
    /// What is known of the crash loop that the run belongs to.
    pub crash_loop: Option<CrashLoop>,
    /// Positions that the start moved because their logs do not hold them, or are those of other topics, as the history tells
    /// them: one object for each.
    pub moved: Vec<serde_json::Value>,
    /// Positions that the start dropped.
    pub forgotten: Vec<ForgottenPosition>,
    /// Of a job without checkpoints: where the run begins, in words. Then no checkpoint is stored.
    pub without_checkpoints: Option<String>,
    /// The operation that asked for it, and the step it has come to: whoever finds it later goes on and moves nothing twice.
    pub operation: Option<(OperationId, String)>,
}

/// Which checkpoints are wanted, newest first.
#[derive(Debug, Clone, Default)]
pub struct CheckpointFilter {
    /// Of these statuses; empty for all.
    pub statuses: Vec<CheckpointStatus>,
    /// Of these kinds; empty for all.
    pub kinds: Vec<CheckpointKind>,
    /// At most this many.
    pub limit: u32,
    /// Only older ones than this.
    pub before: Option<CheckpointId>,
    /// Whether the positions are read too.
    pub with_positions: bool,
}

impl Store {
    /// The number that the job's next checkpoint has: one more than the largest stored, failed ones included.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn next_checkpoint_id(&self, job: JobUid) -> Result<CheckpointId> {
        self.query(
            format!("number the next checkpoint of job {job}"),
            move |connection| {
                Box::pin(async move {
                    let largest = sqlx::query_scalar!(
                        "SELECT max(id) FROM checkpoints WHERE job_uid = $1",
                        job.0
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(CheckpointId(largest.unwrap_or(0)).next())
                })
            },
        )
        .await
    }

    /// Stores the `start` checkpoint and everything that becomes true with it: the job runs, under this spec; the one-shot
    /// start that was read is used up; what it set aside is superseded. Fenced; repeating it after an unknown outcome succeeds.
    /// Of a job without checkpoints everything but the checkpoint.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn store_start(
        &self,
        lease: &JobLease,
        checkpoint: &Checkpoint,
        record: &StartRecord,
    ) -> Result<()> {
        let (lease, row, record) = (*lease, NewCheckpoint::of(checkpoint), record.clone());
        self.fenced(
            format!("store checkpoint {} of job {}", checkpoint.id, lease.job),
            &lease,
            move |connection, owner| {
                Box::pin(async move {
                    let keeps = record.without_checkpoints.is_none();
                    // Asked before there is a new one: only without state the start has used the startup mode.
                    let had_state = keeps && has_state(connection, lease.job).await?;
                    let inserted = if keeps {
                        insert_completed(connection, &lease, &row).await?
                    } else {
                        attempts::begun_before(connection, &lease).await?
                    };
                    match inserted {
                        Inserted::Before => return Ok(()),
                        Inserted::Now => {}
                    }
                    begin_run(connection, &lease, &row, &record, had_state).await?;
                    let start = keeps.then_some(row.id);
                    attempts::begin(connection, &lease, &owner, start, &record).await?;
                    if keeps && record.kind.is_automatic() {
                        mark_automatic(connection, &lease, &row).await?;
                        if record.kind == AttemptKind::AfterCrash {
                            replace_repeated_start(connection, &lease, &row).await?;
                        }
                        // A run may end before it comes to thin the history.
                        delete_superfluous(connection, lease.job).await?;
                    }
                    let details = json!({
                        "checkpoint": start, "without_checkpoints": &record.without_checkpoints, "epoch": lease.epoch, "generation": record.generation,
                        "consumed": &record.consumed_pending, "set_aside": record.set_aside,
                        "bounded_run": record.bounded.as_ref().map(|run| run.begun_by),
                    });
                    let actor = instance_actor(&owner);
                    for forgotten in &record.forgotten {
                        note(
                            &mut *connection,
                            Some(lease.job),
                            EventKind::PositionForgotten,
                            &actor,
                            &json!(forgotten),
                        )
                        .await?;
                    }
                    for moved in &record.moved {
                        note(
                            &mut *connection,
                            Some(lease.job),
                            EventKind::PositionMoved,
                            &actor,
                            moved,
                        )
                        .await?;
                    }
                    note(connection, Some(lease.job), EventKind::JobStarted, &actor, &details).await
                })
            },
        )
        .await
    }

    /// The checkpoint that a start resumes from: the newest completed one that was not set aside, with positions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn latest_checkpoint(&self, job: JobUid) -> Result<Option<StoredCheckpoint>> {
        self.query(
            format!("read the latest checkpoint of job {job}"),
            move |connection| {
                Box::pin(async move {
                    let query = Query {
                        standing_only: true,
                        statuses: words(&[CheckpointStatus::Completed])?,
                        limit: 1,
                        with_positions: true,
                        ..Query::default()
                    };
                    Ok(select(connection, job, &query).await?.pop())
                })
            },
        )
        .await
    }

    /// The newest completed checkpoint before which records had reached the sink, set aside or not.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn newest_output(&self, job: JobUid) -> Result<Option<CheckpointId>> {
        self.query(
            format!("read which checkpoint of job {job} had output last"),
            move |connection| {
                Box::pin(async move {
                    let newest = sqlx::query_scalar!(
                        "SELECT max(id) FROM checkpoints WHERE job_uid = $1 AND status = 'completed' AND has_output",
                        job.0
                    )
                    .fetch_one(connection)
                    .await?;
                    Ok(newest.map(CheckpointId))
                })
            },
        )
        .await
    }

    /// One checkpoint, with positions.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn checkpoint(
        &self,
        job: JobUid,
        id: CheckpointId,
    ) -> Result<Option<StoredCheckpoint>> {
        self.query(
            format!("read checkpoint {id} of job {job}"),
            move |connection| {
                Box::pin(async move {
                    let query = Query {
                        id: Some(id.0),
                        limit: 1,
                        with_positions: true,
                        ..Query::default()
                    };
                    Ok(select(connection, job, &query).await?.pop())
                })
            },
        )
        .await
    }

    /// Checkpoints, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn checkpoints(
        &self,
        job: JobUid,
        filter: &CheckpointFilter,
    ) -> Result<Vec<StoredCheckpoint>> {
        let query = Query {
            statuses: words(&filter.statuses)?,
            kinds: words(&filter.kinds)?,
            limit: filter.limit,
            before: filter.before.map(|id| id.0),
            with_positions: filter.with_positions,
            ..Query::default()
        };
        self.query(
            format!("read the checkpoints of job {job}"),
            move |connection| Box::pin(async move { select(connection, job, &query).await }),
        )
        .await
    }
}

#[async_trait]
impl CheckpointStore for Store {
    /// Its commit to the group is `pending` until it is recorded, or `off` where the spec that runs does not commit.
    async fn complete(&self, lease: &JobLease, checkpoint: &Checkpoint) -> Result<()> {
        let (lease, row) = (*lease, NewCheckpoint::of(checkpoint));
        self.fenced(
            format!("store checkpoint {} of job {}", checkpoint.id, lease.job),
            &lease,
            move |connection, owner| {
                Box::pin(async move {
                    match insert_completed(connection, &lease, &row).await? {
                        Inserted::Before => return Ok(()),
                        Inserted::Now => {}
                    }
                    let Some(details) = row.decided() else {
                        return Ok(());
                    };
                    let actor = instance_actor(&owner);
                    let job = Some(lease.job);
                    note(
                        connection,
                        job,
                        EventKind::PositionsDecided,
                        &actor,
                        &details,
                    )
                    .await
                })
            },
        )
        .await
    }

    async fn hold(&self, lease: &JobLease) -> Result<()> {
        self.fenced(
            format!("hold the lease of job {}", lease.job),
            lease,
            |_, _| Box::pin(async { Ok(()) }),
        )
        .await
    }

    async fn note_events(&self, lease: &JobLease, entries: &[HistoryEntry]) -> Result<()> {
        let (lease, entries) = (*lease, entries.to_vec());
        self.fenced(
            format!("note {} events of job {}", entries.len(), lease.job),
            &lease,
            move |connection, owner| {
                Box::pin(async move {
                    let (job, actor) = (Some(lease.job), instance_actor(&owner));
                    for HistoryEntry { kind, details } in &entries {
                        note(&mut *connection, job, *kind, &actor, details).await?;
                    }
                    Ok(())
                })
            },
        )
        .await
    }

    /// An attempt that was given up but turns out to be stored as completed stays completed.
    async fn record_failure(&self, lease: &JobLease, attempt: &FailedCheckpoint) -> Result<()> {
        let (lease, attempt) = (*lease, attempt.clone());
        self.fenced(
            format!(
                "store the failed checkpoint {} of job {}",
                attempt.id, lease.job
            ),
            &lease,
            move |connection, _| {
                Box::pin(async move { insert_failed(connection, &lease, &attempt).await })
            },
        )
        .await
    }

    async fn confirm(&self, lease: &JobLease, id: CheckpointId, at: DateTime<Utc>) -> Result<()> {
        let lease = *lease;
        self.fenced(
            format!("confirm checkpoint {id} of job {}", lease.job),
            &lease,
            move |connection, _| {
                Box::pin(async move {
                    let updated = sqlx::query!(
                        "UPDATE checkpoints SET confirmed_at = greatest(confirmed_at, $3)
                         WHERE job_uid = $1 AND id = $2 AND status = 'completed'",
                        lease.job.0,
                        id.0,
                        at,
                    )
                    .execute(connection)
                    .await?;
                    must_exist(updated.rows_affected())
                })
            },
        )
        .await
    }

    async fn record_outcome(
        &self,
        lease: &JobLease,
        id: CheckpointId,
        phases: &CheckpointPhases,
        group_commit: &GroupCommit,
    ) -> Result<()> {
        let (lease, phases, outcome) = (*lease, *phases, group_commit.clone());
        self.fenced(
            format!("store the outcome of checkpoint {id} of job {}", lease.job),
            &lease,
            move |connection, _| {
                Box::pin(async move {
                    let updated = sqlx::query!(
                        "UPDATE checkpoints SET barrier_ms = $3, sink_flush_ms = $4, store_ms = $5, group_commit_ms = $6,
                                group_commit_status = $7, group_commit_error = $8
                         WHERE job_uid = $1 AND id = $2 AND status = 'completed'",
                        lease.job.0,
                        id.0,
                        phases.barrier_ms,
                        phases.sink_flush_ms,
                        phases.store_ms,
                        phases.group_commit_ms,
                        word(&outcome.status)?,
                        outcome.error.as_deref().map(storable),
                    )
                    .execute(connection)
                    .await?;
                    must_exist(updated.rows_affected())
                })
            },
        )
        .await
    }

    async fn thin(&self, lease: &JobLease) -> Result<()> {
        let lease = *lease;
        self.fenced(
            format!("thin the checkpoints of job {}", lease.job),
            &lease,
            move |connection, _| {
                Box::pin(async move { delete_superfluous(connection, lease.job).await })
            },
        )
        .await
    }
}

fn must_exist(rows: u64) -> Result<()> {
    if rows == 1 {
        return Ok(());
    }
    Err(StoreError::Refused(
        "there is no such completed checkpoint".to_owned(),
    ))
}

/// A completed checkpoint with its positions in columns, as one INSERT takes them.
pub(super) struct NewCheckpoint {
    id: CheckpointId,
    kind: CheckpointKind,
    epoch: LeaseEpoch,
    started_at: DateTime<Utc>,
    completed_at: DateTime<Utc>,
    phases: CheckpointPhases,
    has_output: bool,
    sink_identity: String,
    topics: Vec<String>,
    partitions: Vec<i32>,
    topic_ids: Vec<Option<String>>,
    next_offsets: Vec<Option<i64>>,
    position_ids: Vec<i64>,
}

impl NewCheckpoint {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let positions = &checkpoint.positions;
        Self {
            id: checkpoint.id,
            kind: checkpoint.kind,
            epoch: checkpoint.epoch,
            started_at: checkpoint.started_at,
            completed_at: checkpoint.completed_at,
            phases: checkpoint.phases,
            has_output: checkpoint.has_output,
            sink_identity: storable(&checkpoint.sink_identity),
            topics: positions.keys().map(|one| one.topic.to_string()).collect(),
            partitions: positions.keys().map(|one| one.partition).collect(),
            topic_ids: positions
                .values()
                .map(|one| one.topic_id.as_ref().map(ToString::to_string))
                .collect(),
            next_offsets: positions
                .values()
                .map(|one| one.next_offset.map(Offset::get))
                .collect(),
            position_ids: positions.values().map(|one| one.position_id.0).collect(),
        }
    }
}

impl NewCheckpoint {
    /// The positions that a checkpoint of kind `discovery` decided, for the history; none for one of another kind.
    fn decided(&self) -> Option<serde_json::Value> {
        if self.kind != CheckpointKind::Discovery {
            return None;
        }
        let decided = (0..self.topics.len()).filter(|index| self.position_ids[*index] == self.id.0);
        let partitions: Vec<serde_json::Value> = decided
            .map(|index| {
                json!({
                    "topic": self.topics[index], "partition": self.partitions[index],
                    "next_offset": self.next_offsets[index], "topic_id": self.topic_ids[index],
                })
            })
            .collect();
        Some(json!({"checkpoint": self.id, "epoch": self.epoch, "partitions": partitions}))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Inserted {
    Now,
    /// The same lease had stored it already.
    Before,
}

pub(super) async fn insert_completed(
    connection: &mut PgConnection,
    lease: &JobLease,
    row: &NewCheckpoint,
) -> Result<Inserted> {
    if row.epoch != lease.epoch {
        return Err(StoreError::Refused(format!(
            "it was taken under epoch {}, not {}",
            row.epoch, lease.epoch
        )));
    }
    let inserted = sqlx::query!(
        "INSERT INTO checkpoints (job_uid, id, kind, status, epoch, started_at, ended_at, confirmed_at,
                                  barrier_ms, sink_flush_ms, store_ms, group_commit_ms, group_commit_status, has_output, sink_identity)
         SELECT uid, $2, $3, 'completed', $4, $5, $6, $6, $7, $8, $9, $10,
                -- The positions of a start are those of somebody else's commit, or of none; the ones of a skip were never read.
                CASE WHEN $3 IN ('start', 'skip') OR running_spec #>> '{source,commit_to_group}' = $13 THEN 'off' ELSE 'pending' END,
                $11, $12
         FROM jobs WHERE uid = $1
         ON CONFLICT (job_uid, id) DO NOTHING",
        lease.job.0,
        row.id.0,
        row.kind.name(),
        lease.epoch.0,
        row.started_at,
        row.completed_at,
        row.phases.barrier_ms,
        row.phases.sink_flush_ms,
        row.phases.store_ms,
        row.phases.group_commit_ms,
        row.has_output,
        row.sink_identity,
        word(&CommitToGroup::Off)?,
    )
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == 0 {
        return stored_before(connection, lease, row.id).await;
    }
    sqlx::query!(
        "INSERT INTO checkpoint_offsets (job_uid, checkpoint_id, topic, partition, topic_id, next_offset, position_id)
         SELECT $1, $2, * FROM unnest($3::text[], $4::int[], $5::text[], $6::bigint[], $7::bigint[])",
        lease.job.0,
        row.id.0,
        &row.topics,
        &row.partitions,
        &row.topic_ids as &[Option<String>],
        &row.next_offsets as &[Option<i64>],
        &row.position_ids,
    )
    .execute(connection)
    .await?;
    Ok(Inserted::Now)
}

/// Who has stored this number? Ourselves, before an answer was lost; or somebody who should not have been able to.
async fn stored_before(
    connection: &mut PgConnection,
    lease: &JobLease,
    id: CheckpointId,
) -> Result<Inserted> {
    let stored = sqlx::query!(
        "SELECT epoch, status FROM checkpoints WHERE job_uid = $1 AND id = $2",
        lease.job.0,
        id.0,
    )
    .fetch_one(connection)
    .await?;
    if stored.epoch != lease.epoch.0 {
        return Err(StoreError::Fenced);
    }
    match read_word(&stored.status)? {
        CheckpointStatus::Completed => Ok(Inserted::Before),
        CheckpointStatus::Failed | CheckpointStatus::InProgress | CheckpointStatus::Uncertain => {
            Err(StoreError::Refused(
                "it is stored as a failed one already".to_owned(),
            ))
        }
    }
}

async fn begin_run(
    connection: &mut PgConnection,
    lease: &JobLease,
    row: &NewCheckpoint,
    record: &StartRecord,
    had_state: bool,
) -> Result<()> {
    if record.set_aside {
        sqlx::query!(
            "UPDATE checkpoints SET superseded = true
             WHERE job_uid = $1 AND id < $2 AND status = 'completed' AND NOT superseded",
            lease.job.0,
            row.id.0,
        )
        .execute(&mut *connection)
        .await?;
    }
    sqlx::query!(
        "UPDATE jobs SET
             -- Only the intent that this start has read: a later one waits for the next start.
             pending_start = CASE WHEN pending_start ->> 'id' = $2 THEN NULL ELSE pending_start END,
             running_generation = $3, running_spec = $4::text::json, failure = NULL, state = 'running',
             state_since = CASE WHEN state = 'running' THEN state_since ELSE clock_timestamp() END,
             startup_mode_shadowed = startup_mode_shadowed AND $5
         WHERE uid = $1",
        lease.job.0,
        record.consumed_pending,
        record.generation,
        document(&record.spec)?,
        had_state,
    )
    .execute(&mut *connection)
    .await?;
    bounded_runs::replace(connection, lease.job, record.bounded.as_ref()).await?;
    match &record.operation {
        Some((id, step)) => reach(connection, id, step).await,
        None => Ok(()),
    }
}

async fn mark_automatic(
    connection: &mut PgConnection,
    lease: &JobLease,
    row: &NewCheckpoint,
) -> Result<()> {
    sqlx::query!(
        "UPDATE checkpoints SET automatic = true WHERE job_uid = $1 AND id = $2",
        lease.job.0,
        row.id.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// A crash loop must not fill the table. Its start takes the place of the one before it, if the server made that one by
/// itself, too, and nothing has moved since: every partition has the same position, decided by the same checkpoint, and no
/// checkpoint was stored in between. Nobody needs the older one: a `start` is referred to by its number only where it decided
/// a position itself, and then its positions are not those of the checkpoint before.
async fn replace_repeated_start(
    connection: &mut PgConnection,
    lease: &JobLease,
    row: &NewCheckpoint,
) -> Result<()> {
    sqlx::query!(
        "WITH old AS (
             SELECT * FROM checkpoints WHERE job_uid = $1 AND id < $2 AND status = 'completed' ORDER BY id DESC LIMIT 1
         ), positions AS (
             SELECT checkpoint_id, topic, partition, topic_id, next_offset, position_id
             FROM checkpoint_offsets WHERE job_uid = $1
         )
         DELETE FROM checkpoints c USING old
         WHERE c.job_uid = $1 AND c.id = old.id AND old.kind = 'start' AND old.automatic AND NOT old.has_output
           AND NOT old.superseded AND old.sink_identity = $3
           AND NOT EXISTS (
               SELECT topic, partition, topic_id, next_offset, position_id FROM positions WHERE checkpoint_id = old.id
               EXCEPT SELECT topic, partition, topic_id, next_offset, position_id FROM positions WHERE checkpoint_id = $2)
           AND NOT EXISTS (
               SELECT topic, partition, topic_id, next_offset, position_id FROM positions WHERE checkpoint_id = $2
               EXCEPT SELECT topic, partition, topic_id, next_offset, position_id FROM positions WHERE checkpoint_id = old.id)",
        lease.job.0,
        row.id.0,
        row.sink_identity,
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn insert_failed(
    connection: &mut PgConnection,
    lease: &JobLease,
    attempt: &FailedCheckpoint,
) -> Result<()> {
    let inserted = sqlx::query!(
        "INSERT INTO checkpoints (job_uid, id, kind, status, epoch, started_at, ended_at,
                                  barrier_ms, sink_flush_ms, store_ms, group_commit_ms, failure, group_commit_status)
         VALUES ($1, $2, $3, 'failed', $4, $5, $6, $7, $8, $9, $10, $11::text::json, 'off')
         ON CONFLICT (job_uid, id) DO NOTHING",
        lease.job.0,
        attempt.id.0,
        attempt.kind.name(),
        lease.epoch.0,
        attempt.started_at,
        attempt.failed_at,
        attempt.phases.barrier_ms,
        attempt.phases.sink_flush_ms,
        attempt.phases.store_ms,
        attempt.phases.group_commit_ms,
        document(&attempt.failure)?,
    )
    .execute(&mut *connection)
    .await?;
    if inserted.rows_affected() == 1 {
        return Ok(());
    }
    let epoch = sqlx::query_scalar!(
        "SELECT epoch FROM checkpoints WHERE job_uid = $1 AND id = $2",
        lease.job.0,
        attempt.id.0,
    )
    .fetch_one(connection)
    .await?;
    if epoch == lease.epoch.0 {
        Ok(())
    } else {
        Err(StoreError::Fenced)
    }
}

/// The retention, in one statement: what is not kept by any of its lines goes.
async fn delete_superfluous(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "WITH ranked AS (
             SELECT id, status, kind, automatic, superseded, has_output,
                    statement_timestamp() - ended_at AS age,
                    row_number() OVER newest AS place,
                    row_number() OVER (PARTITION BY status, superseded ORDER BY id DESC) AS place_in_standing,
                    row_number() OVER (PARTITION BY status, has_output ORDER BY id DESC) AS place_by_output,
                    row_number() OVER (PARTITION BY status, date_trunc('minute', ended_at) ORDER BY id DESC) AS place_in_minute,
                    row_number() OVER (PARTITION BY status, date_trunc('hour', ended_at) ORDER BY id DESC) AS place_in_hour,
                    -- The one that came after it: `lag`, since the window counts backwards.
                    lag(kind) OVER newest AS next_kind, lag(automatic) OVER newest AS next_automatic,
                    statement_timestamp() - lag(ended_at) OVER newest AS next_age,
                    max(id) OVER () AS largest_id
             FROM checkpoints WHERE job_uid = $1
             WINDOW newest AS (PARTITION BY status ORDER BY id DESC)
         ), kept AS (
             SELECT id FROM ranked
             WHERE CASE status
                   WHEN 'completed' THEN
                       place <= 20
                       OR (place_in_standing = 1 AND NOT superseded)
                       -- By it a start tells a sink that lost its progress from one that was never written to.
                       OR (place_by_output = 1 AND has_output)
                       OR (place_in_minute = 1 AND age <= interval '1 hour')
                       OR (place_in_hour = 1 AND age <= interval '7 days')
                       -- Nobody asked for an automatic start, and there may be many.
                       OR (kind IN ('start', 'stop', 'manual', 'skip', 'reset') AND NOT automatic AND age <= interval '30 days')
                       -- From there a start, a stop, a skip or a caller's checkpoint went on: the way back.
                       OR (next_kind IN ('start', 'stop', 'manual', 'skip', 'reset') AND NOT next_automatic AND next_age <= interval '30 days')
                   ELSE place <= 50 AND age <= interval '7 days'
                   END
                -- The next number is counted from it.
                OR id = largest_id
         )
         DELETE FROM checkpoints WHERE job_uid = $1 AND id NOT IN (SELECT id FROM kept)",
        job.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Deletes all but the newest, and sets that one aside.
pub(super) async fn delete_checkpoints(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "DELETE FROM checkpoints WHERE job_uid = $1 AND id < (SELECT max(id) FROM checkpoints WHERE job_uid = $1)",
        job.0,
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "UPDATE checkpoints SET superseded = true WHERE job_uid = $1 AND status = 'completed'",
        job.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Which checkpoints are read.
#[derive(Default)]
struct Query {
    id: Option<i64>,
    /// Without those that were set aside.
    standing_only: bool,
    statuses: Vec<String>,
    kinds: Vec<String>,
    limit: u32,
    before: Option<i64>,
    with_positions: bool,
}

async fn select(
    connection: &mut PgConnection,
    job: JobUid,
    query: &Query,
) -> Result<Vec<StoredCheckpoint>> {
    // Positions come with their checkpoint in one statement: thinning could delete them between two.
    let rows = sqlx::query!(
        r#"SELECT c.id, c.kind, c.status, c.epoch, c.started_at, c.ended_at, c.confirmed_at,
                  c.barrier_ms, c.sink_flush_ms, c.store_ms, c.group_commit_ms, c.failure AS "failure: Json<CheckpointFailure>",
                  c.group_commit_status, c.group_commit_error, c.superseded, c.has_output, c.sink_identity,
                  o.topics AS "topics: Vec<String>", o.partitions AS "partitions: Vec<i32>",
                  o.topic_ids AS "topic_ids: Vec<Option<String>>", o.next_offsets AS "next_offsets: Vec<Option<i64>>",
                  o.position_ids AS "position_ids: Vec<i64>"
           FROM checkpoints c LEFT JOIN LATERAL (
               SELECT array_agg(topic) AS topics, array_agg(partition) AS partitions, array_agg(topic_id) AS topic_ids,
                      array_agg(next_offset) AS next_offsets, array_agg(position_id) AS position_ids
               FROM checkpoint_offsets WHERE $8 AND job_uid = c.job_uid AND checkpoint_id = c.id
           ) o ON true
           WHERE c.job_uid = $1 AND ($2::bigint IS NULL OR c.id = $2) AND ($3::bigint IS NULL OR c.id < $3)
             AND NOT ($4 AND c.superseded)
             AND (cardinality($5::text[]) = 0 OR c.status = ANY ($5)) AND (cardinality($6::text[]) = 0 OR c.kind = ANY ($6))
           ORDER BY c.id DESC LIMIT $7"#,
        job.0,
        query.id,
        query.before,
        query.standing_only,
        &query.statuses,
        &query.kinds,
        i64::from(query.limit),
        query.with_positions,
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let positions = Positions {
                topics: row.topics.unwrap_or_default(),
                partitions: row.partitions.unwrap_or_default(),
                topic_ids: row.topic_ids.unwrap_or_default(),
                next_offsets: row.next_offsets.unwrap_or_default(),
                position_ids: row.position_ids.unwrap_or_default(),
            };
            Ok(StoredCheckpoint {
                id: CheckpointId(row.id),
                kind: read_word(&row.kind)?,
                status: read_word(&row.status)?,
                epoch: LeaseEpoch(row.epoch),
                started_at: row.started_at,
                ended_at: row.ended_at,
                confirmed_at: row.confirmed_at,
                phases: CheckpointPhases {
                    barrier_ms: row.barrier_ms,
                    sink_flush_ms: row.sink_flush_ms,
                    store_ms: row.store_ms,
                    group_commit_ms: row.group_commit_ms,
                },
                failure: row.failure.map(|failure| failure.0),
                group_commit: GroupCommit {
                    status: read_word(&row.group_commit_status)?,
                    error: row.group_commit_error,
                },
                superseded: row.superseded,
                has_output: row.has_output,
                sink_identity: row.sink_identity,
                positions: positions.read()?,
            })
        })
        .collect()
}

/// Positions in columns, all in the same order.
struct Positions {
    topics: Vec<String>,
    partitions: Vec<i32>,
    topic_ids: Vec<Option<String>>,
    next_offsets: Vec<Option<i64>>,
    position_ids: Vec<i64>,
}

impl Positions {
    fn read(self) -> Result<BTreeMap<TopicPartition, CheckpointPosition>> {
        let numbers = self.next_offsets.into_iter().zip(self.position_ids);
        self.topics
            .into_iter()
            .zip(self.partitions)
            .zip(self.topic_ids)
            .zip(numbers)
            .map(
                |(((topic, partition), topic_id), (next_offset, position_id))| {
                    let position = CheckpointPosition {
                        next_offset: next_offset.map(read_offset).transpose()?,
                        position_id: CheckpointId(position_id),
                        topic_id: topic_id.map(|id| TopicId(id.into())),
                    };
                    Ok((TopicPartition::new(topic, partition), position))
                },
            )
            .collect()
    }
}

pub(super) fn read_offset(number: i64) -> Result<Offset> {
    Offset::new(number)
        .ok_or_else(|| StoreError::Refused(format!("the stored number {number} is no offset")))
}
