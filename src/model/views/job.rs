use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{BottleneckView, StagesView};
use crate::model::{
    checkpoint::{CheckpointKind, GroupCommit},
    commit_mode::{Checkpointing, CommitMode},
    health::Health,
    ids::{CheckpointId, JobName, LeaseEpoch},
    job::JobSpec,
    job_state::{DesiredState, JobState},
    job_status::{BadRecordCounters, CommitCounters, DiscoveryStatus, JobFailure, Waiting},
    parked::ParkedPartition,
    resolver::{PlanTotals, Warning},
    start::PendingStart,
    startup_mode::StartupMode,
    stop_at::StopAt,
    topic::TopicPartition,
    watermark::{SubtaskWatermark, WatermarkStrategy},
};

/// A step that makes sense now, as a line to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextStep {
    /// Why one would.
    pub why: String,
    /// The whole command.
    pub curl: String,
}

/// Lags in offsets; `null` where unknown. Offsets also count transaction markers and compacted records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobLag {
    /// From the live position to the readable end; `null` for a job that does not run.
    pub position: Option<i64>,
    /// From the checkpointed position to the readable end: what a restart would read.
    pub checkpoint: Option<i64>,
    /// Why there is no lag of a checkpoint: `checkpoints-off`, `no-checkpoint`; `null` where there is one, or it is not known.
    #[schema(value_type = Option<String>)]
    pub checkpoint_because: Option<&'static str>,
    /// From the group's committed offset to the readable end: what other tools show.
    pub group: Option<i64>,
    /// Partitions that the sums could not include.
    pub unknown_partitions: usize,
}

/// The newest completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LastCheckpoint {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// Always `completed`.
    pub status: &'static str,
    /// When it was stored.
    pub completed_at: DateTime<Utc>,
    /// When its positions were last found unchanged.
    pub confirmed_at: DateTime<Utc>,
    /// Milliseconds since its positions were last known to be right.
    pub age_ms: i64,
    /// Its commit to the group.
    pub group_commit: GroupCommit,
}

/// Whether the startup mode would be used by a start, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ModeEffect {
    /// The mode of the spec.
    #[serde(flatten)]
    pub mode: StartupMode,
    /// Whether a bare start would use it.
    pub effective: bool,
    /// Why not: `checkpoint-exists` or `pending-start`; `null` when it is effective.
    pub because: Option<&'static str>,
}

/// Who runs the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Owner {
    /// The server's instance id.
    pub instance: String,
    /// The lease's fencing number.
    pub epoch: LeaseEpoch,
}

/// Crashes that follow each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CrashLoopView {
    /// Which restart of the loop it is: the one that is waited for, or that began the run.
    pub restart: u32,
    /// How many the strategy allows; `null` if it does not count them.
    pub of: Option<u32>,
    /// The strategy that decides.
    pub strategy: &'static str,
    /// When the next run begins; `null` unless the job is `backing-off`.
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// What the loop began with.
    pub first_cause: JobFailure,
    /// What the newest run ended with.
    pub last_cause: JobFailure,
}

/// How fast a job may go, and whether that holds it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct LimitsView {
    /// Records in a second; `null` for no limit.
    pub records_per_s: Option<u64>,
    /// Bytes of keys and values in a second; `null` for no limit.
    pub bytes_per_s: Option<u64>,
    /// Whether there are records now that the limits hold back; `null` when it does not run.
    pub throttled: Option<bool>,
    /// Milliseconds that subtasks were held back in this run, all together; `null` when it does not run.
    pub throttled_ms: Option<i64>,
}

/// How far the event time of a job has come. What it has seen is not part of a checkpoint: a new run begins without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct WatermarkView {
    /// How a partition's watermark follows from its time stamps; the run's.
    pub strategy: WatermarkStrategy,
    /// The watermark: no record at or before this instant is expected any more. It never goes back in a run. `null` while one
    /// of the active partitions has shown no record, and for a job that does not run.
    pub timestamp: Option<DateTime<Utc>>,
    /// Milliseconds from the watermark to now; `null` where there is none.
    pub lag_ms: Option<i64>,
    /// Whether no partition is active, all being idle or at their ends: then the watermark stays where it is. `null` for a job
    /// that does not run.
    pub idle: Option<bool>,
    /// The partition that holds the watermark where it is: the one furthest behind of those that are active.
    pub held_by: Option<TopicPartition>,
    /// Partitions that have had nothing to read for `idle_after`; `null` for a job that does not run.
    pub idle_partitions: Option<usize>,
    /// Partitions that are not read at the moment because they are further ahead than `alignment` allows.
    pub paused_partitions: Vec<TopicPartition>,
    /// Records of this run that were late: at or before the watermark when they were given to the sink. `null` for a job that
    /// does not run.
    pub late_records: Option<u64>,
    /// The subtasks.
    pub subtasks: Vec<SubtaskWatermark>,
}

/// Lines to copy for the things one does to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Commands {
    /// Where a start would begin.
    pub start_plan: String,
    /// Start it.
    pub start: String,
    /// Stop it with a last checkpoint.
    pub stop: String,
    /// Take a checkpoint.
    pub trigger_checkpoint: String,
    /// Compare the offsets.
    pub offsets: String,
}

/// The bounded run of a job (`source.stop_at`), and how far it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct BoundedView {
    /// Where it is to end, in the words of the spec.
    pub stop_at: StopAt,
    /// The `start` checkpoint that made numbers of it; `null` before the first start with this `stop_at`.
    pub begun_by: Option<CheckpointId>,
    /// When that was.
    pub begun_at: Option<DateTime<Utc>>,
    /// When the job came to be `finished` with it.
    pub finished_at: Option<DateTime<Utc>>,
    /// Partitions with an end; `/offsets` shows each `stop_offset`.
    pub partitions: usize,
    /// Of these, the ones that are read up to it.
    pub ended_partitions: usize,
    /// Offsets from the positions (of a job that does not run, from the checkpoint) to the ends; `null` where unknown.
    pub remaining: Option<i64>,
    /// Partitions that are read as far as can be, whose log does not reach the end yet: it has not grown that far, or a
    /// transaction is open before it. `null` until the ends of the logs are known.
    pub waits_for_log: Option<Vec<TopicPartition>>,
    /// Partitions that are parked before their ends: the run does not end until they go on.
    pub parked: Vec<TopicPartition>,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct JobView {
    /// How it stands, in one sentence.
    pub summary: String,
    /// What to do next, if anything.
    pub next: Vec<NextStep>,
    /// Its name.
    pub job: JobName,
    /// Generation of the spec.
    pub generation: i64,
    /// Generation that runs; `null` when it does not run.
    pub running_generation: Option<i64>,
    /// What was asked for.
    pub desired_state: DesiredState,
    /// What it does.
    pub state: JobState,
    /// Since when.
    pub since: DateTime<Utc>,
    /// The verdict.
    pub health: Health,
    /// The lags, and how old they are.
    pub lag: JobLag,
    /// Milliseconds since the lags were measured; `null` if never.
    pub lag_age_ms: Option<i64>,
    /// Whether it takes checkpoints. Where it does not (`checkpoint.interval: null`) it has no state: every member about
    /// checkpoints is `null`, and each start begins by the startup mode.
    pub checkpointing: Checkpointing,
    /// The newest completed checkpoint.
    pub last_checkpoint: Option<LastCheckpoint>,
    /// The attempt under way, by number.
    pub checkpoint_in_progress: Option<CheckpointId>,
    /// Commits to the group since the run began; `null` when it does not run.
    pub group_commits: Option<CommitCounters>,
    /// The commit mode in effect, in Flink's words.
    pub commit_mode: CommitMode,
    /// Why it is this one.
    pub commit_mode_because: String,
    /// The startup mode and whether it counts.
    pub startup_mode: ModeEffect,
    /// The bounded run; `null` for a job without an end.
    pub bounded: Option<BoundedView>,
    /// A start asked for ahead of time.
    pub pending_start: Option<PendingStart>,
    /// Whether a restart is needed for the spec to count wholly.
    pub restart_required: bool,
    /// The members that wait for it.
    pub pending_fields: Vec<String>,
    /// Who runs it.
    pub owner: Option<Owner>,
    /// What it waits for.
    pub waiting: Vec<Waiting>,
    /// The crashes that the job was started again after, until a run has lasted; `null` if there are none.
    pub crash_loop: Option<CrashLoopView>,
    /// How fast it may go.
    pub limits: LimitsView,
    /// How far its event time has come; only of a job that keeps event time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<WatermarkView>,
    /// Where the time of the last minute went; `null` when it does not run.
    pub stages: Option<StagesView>,
    /// What holds it back; `null` when it does not run.
    pub bottleneck: Option<BottleneckView>,
    /// Why it gave up.
    pub failure: Option<JobFailure>,
    /// Partitions that are not read, each at a position that stays in every checkpoint; of a job that does not run, those of
    /// its last run.
    pub parked: Vec<ParkedPartition>,
    /// Records given to the sink in this run; `null` when it does not run.
    pub records: Option<u64>,
    /// Bytes of keys and values given to the sink in this run; `null` when it does not run.
    pub bytes: Option<u64>,
    /// Records dropped in this run because the client delivered them twice; `null` when it does not run.
    pub redelivered: Option<u64>,
    /// Records that could not be processed and were left out in this run; `null` when it does not run.
    pub bad_records: Option<BadRecordCounters>,
    /// Positions that their logs did not hold, or whose topics were created again, and that were moved by the start of this run or in it; `null` when it does not run.
    pub positions_moved: Option<u64>,
    /// How it looks for new partitions; `null` when it does not run.
    pub discovery: Option<DiscoveryStatus>,
    /// The sink's delivery guarantee, in the words of docs/guarantees.md.
    pub delivery: &'static str,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// What to know.
    pub warnings: Vec<Warning>,
    /// Lines to copy.
    pub commands: Commands,
}

/// One job in the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobItem {
    /// How it stands, in one sentence.
    pub summary: String,
    /// What to do next, if anything.
    pub next: Vec<NextStep>,
    /// Its name.
    pub job: JobName,
    /// What was asked for.
    pub desired_state: DesiredState,
    /// What it does.
    pub state: JobState,
    /// The verdict.
    pub health: Health,
    /// The lags.
    pub lag: JobLag,
    /// Milliseconds since they were measured; `null` if never.
    pub lag_age_ms: Option<i64>,
    /// Whether it takes checkpoints.
    pub checkpointing: Checkpointing,
    /// The newest completed checkpoint.
    pub last_checkpoint: Option<LastCheckpoint>,
    /// The sink's type.
    pub sink: &'static str,
    /// The Kafka connection.
    pub connection: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
}

/// A page of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct JobList {
    /// The jobs.
    pub items: Vec<JobItem>,
    /// Cursor of the next page: pass it as `after`; `null` on the last one.
    pub next: Option<String>,
}

/// What came of a spec that was sent.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SpecApplied {
    /// The job.
    pub job: JobName,
    /// The generation now in force (also the `ETag`).
    pub generation: i64,
    /// Whether anything changed.
    pub changed: bool,
    /// `now`, or `next-start` when `pending_fields` is not empty.
    pub applies: &'static str,
    /// Members that count from the next start on.
    pub pending_fields: Vec<String>,
    /// What to know.
    pub warnings: Vec<Warning>,
    /// Whether nothing was stored because the call asked for a dry run.
    pub dry_run: bool,
    /// The spec with its defaults filled in.
    pub spec: JobSpec,
}

/// The startup mode and what became of a change.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StartupModeView {
    /// The mode: the spec's, or after `apply: next-start` the one that the next start uses.
    #[serde(flatten)]
    pub mode: StartupMode,
    /// The mode in the spec: for a job without a checkpoint.
    pub spec_mode: StartupMode,
    /// `if-no-state` or `next-start`, as it was sent; when only shown, `next-start` where the mode was set for the next start.
    pub apply: Option<&'static str>,
    /// Generation of the spec.
    pub generation: i64,
    /// Whether the call changed anything; `null` when only shown.
    pub changed: Option<bool>,
    /// Whether the next start by an operator uses this mode.
    pub effective: bool,
    /// Why not: `checkpoint-exists` or `pending-start`.
    pub because: Option<&'static str>,
    /// `next-start` if it is effective.
    pub takes_effect: Option<&'static str>,
    /// Whether the job runs now (a change never restarts it).
    pub job_is_running: bool,
    /// The checkpoint that the next start sets aside.
    pub will_set_aside_checkpoint: Option<CheckpointId>,
    /// What the next start would do; `null` if it could not be worked out or was not asked for.
    pub estimate: Option<PlanTotals>,
    /// The checkpoint that the estimate counts from, while the job runs: it has read on since, so less is `skipped` and more
    /// is `replayed` once it stops. `null` for a job that does not run: then the estimate is exact.
    pub estimated_from: Option<CheckpointId>,
    /// The start asked for ahead of time, if there is one.
    pub pending_start: Option<PendingStart>,
    /// An earlier intent that this one replaced.
    pub discarded: Option<PendingStart>,
    /// What to know.
    pub warnings: Vec<Warning>,
    /// Whether nothing was stored because the call asked for a dry run.
    pub dry_run: bool,
}
