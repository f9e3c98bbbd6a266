use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{
    ids::{CheckpointId, JobName},
    job::Isolation,
    job_state::JobState,
    offset::Offset,
    parked::ParkedPartition,
    resolver::StartReason,
    watermark::PartitionWatermark,
};

use super::NextStep;

/// Where a job stands, partition by partition, running or stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct OffsetsView {
    /// How it stands, in one sentence.
    pub summary: String,
    /// What to do next, if anything.
    pub next: Vec<NextStep>,
    /// The job.
    pub job: JobName,
    /// What it does.
    pub state: JobState,
    /// When the view was put together.
    pub observed_at: DateTime<Utc>,
    /// Which records the job sees.
    pub isolation: Isolation,
    /// The consumer group.
    pub group_id: String,
    /// Whether each source of numbers answered.
    pub sources: Sources,
    /// Sums.
    pub totals: OffsetsTotals,
    /// The partitions, in order.
    pub partitions: Vec<PartitionOffsetsView>,
}

/// The five places the numbers come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Sources {
    /// The running engine.
    pub live: SourceView,
    /// The newest completed checkpoint in the store; `absent` because of `checkpoints-off` for a job that takes none.
    pub checkpoint: SourceView,
    /// The consumer group's committed offsets.
    pub group: SourceView,
    /// The brokers' ends of the logs.
    pub brokers: SourceView,
    /// The sink's own progress, where it keeps one.
    pub sink: SourceView,
}

/// Whether a source answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceStatus {
    /// It answered.
    Ok,
    /// There is nothing to ask: the job does not run, there is no checkpoint, the sink keeps no progress.
    Absent,
    /// It did not answer in time.
    Timeout,
    /// It cannot be reached.
    Unreachable,
    /// It refused.
    Error,
}

/// One source of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct SourceView {
    /// Whether it answered.
    pub status: SourceStatus,
    /// Why not, or why there is nothing to ask: `checkpoints-off`, `no-checkpoint`, `job-stopped` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Milliseconds since its numbers were taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<i64>,
    /// The checkpoint's number (source `checkpoint`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<CheckpointId>,
    /// When the checkpoint completed (source `checkpoint`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<DateTime<Utc>>,
    /// Live members of the group (source `group`); handover itself is never one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<usize>,
    /// Partitions without an answer (source `brokers`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered_partitions: Option<usize>,
}

impl SourceView {
    /// A source of this status, with nothing more to say.
    #[must_use]
    pub fn new(status: SourceStatus) -> Self {
        Self {
            status,
            because: None,
            age_ms: None,
            id: None,
            completed_at: None,
            members: None,
            unanswered_partitions: None,
        }
    }
}

/// Sums over the partitions whose numbers are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct OffsetsTotals {
    /// How many partitions there are.
    pub partitions: usize,
    /// How many of them the sums could not include.
    pub unknown_partitions: usize,
    /// From the live positions to the readable ends.
    pub position_lag: Option<i64>,
    /// From the checkpointed positions to the readable ends.
    pub checkpoint_lag: Option<i64>,
    /// Why there is no lag of a checkpoint: `checkpoints-off`, `no-checkpoint`; `null` where there is one, or it is not known.
    #[schema(value_type = Option<String>)]
    pub checkpoint_because: Option<&'static str>,
    /// From the group's offsets to the readable ends.
    pub group_lag: Option<i64>,
    /// From where the sink stands to the readable ends.
    pub sink_lag: Option<i64>,
    /// From the group's offsets to the checkpointed positions, where the group is behind. What is ahead elsewhere is not set
    /// off against it: `group_ahead_of_checkpoint`.
    pub group_behind_checkpoint: Option<i64>,
    /// From the checkpointed positions to the group's offsets, where the group is ahead: something else moved it there.
    pub group_ahead_of_checkpoint: Option<i64>,
    /// The greatest `oldest_unread_age_ms` that is known; `null` where the known ones are all 0 and others are not known.
    pub oldest_unread_age_ms: Option<i64>,
}

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PartitionOffsetsView {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// The broker that leads it.
    pub leader: Option<i32>,
    /// The subtask that reads it (or would, by the owner rule).
    pub subtask: u32,
    /// First offset of the log.
    pub earliest: Option<Offset>,
    /// End of what `read_committed` may see.
    pub last_stable: Option<Offset>,
    /// End of the log.
    pub latest: Option<Offset>,
    /// Up to where this job can read: `last_stable` or `latest`, by its isolation. Lags are measured to it, or to
    /// `stop_offset` where that comes before.
    pub readable_end: Option<Offset>,
    /// Where the bounded run ends: the first offset that is not read. `null` for a job without an end.
    pub stop_offset: Option<Offset>,
    /// The live position: next record to read.
    pub position: Option<Offset>,
    /// Why the run began to read it where it did; `null` for a job that does not run, and while it waits for a position.
    pub start_reason: Option<StartReason>,
    /// The position in the newest completed checkpoint.
    pub checkpointed: Option<Offset>,
    /// The checkpoint that last decided its position from outside: a start, a skip, a discovery.
    pub position_id: Option<CheckpointId>,
    /// The group's committed offset.
    pub group_committed: Option<Offset>,
    /// Where the sink stands, by its own word: everything before is in the target. `null` for a sink that keeps no progress.
    pub sink_committed: Option<Offset>,
    /// The lags.
    pub lag: PartitionLag,
    /// How the group's offset differs from the checkpoint's.
    pub divergence: Divergence,
    /// `sink_committed - checkpointed`: where a start would go on beyond the checkpoint; `null` unless both come from the same
    /// decision about this partition's position.
    pub sink_ahead_of_checkpoint: Option<i64>,
    /// Milliseconds since the time stamp of the first record at or after `checkpointed` that the job can see; 0 where nothing
    /// is unread, `null` where it is not known (yet): a look begins to read it aside, at most every 30 s, and a later look
    /// has it.
    pub oldest_unread_age_ms: Option<i64>,
    /// How far unread records are from being deleted.
    pub retention: Retention,
    /// How far its event time has come; only of a job that keeps event time, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watermark: Option<PartitionWatermark>,
    /// Why it is not read at the moment; `null` if it is.
    pub parked: Option<ParkedPartition>,
    /// What is notable.
    pub flags: Vec<Flag>,
}

/// Lags in offsets; never negative, `null` where unknown.
///
/// Unknown is also how far a position is from the end of a log that is not its own: the topic
/// was created again since (`topic-recreated`), and its offsets mean other records now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PartitionLag {
    /// From the live position.
    pub position: Option<i64>,
    /// From the checkpointed position.
    pub checkpoint: Option<i64>,
    /// From the group's offset.
    pub group: Option<i64>,
    /// From where the sink stands.
    pub sink: Option<i64>,
}

/// How far unread records are from being deleted with the log's beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Retention {
    /// `checkpointed - earliest`: how far the log's beginning may move before unread records are lost; below zero that many
    /// offsets are gone already. `null` where one of the two is unknown.
    pub offsets_left: Option<i64>,
    /// Milliseconds until the log's beginning reaches `checkpointed`, if it goes on as fast as it was seen to and the job no
    /// faster than it was seen to; 0 where it has passed. `null` where too little was seen of either, where the log's
    /// beginning does not move or does not come nearer, and where nothing is unread.
    pub estimated_ms: Option<i64>,
}

/// How the group's committed offset differs from the checkpoint's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Divergence {
    /// `checkpointed - group_committed`: positive is harmless, negative means something else moved the group.
    pub group_behind_checkpoint: Option<i64>,
    /// Where the difference comes from.
    pub cause: DivergenceCause,
    /// The note that stands beside the group's offset, as text.
    pub group_note: Option<String>,
    /// The checkpoint that the note names, if it is this job's.
    pub group_checkpoint: Option<CheckpointId>,
}

/// Where a difference between group and checkpoint comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DivergenceCause {
    /// There is none.
    None,
    /// The newest checkpoint's commit is not answered yet.
    CommitPending,
    /// The newest commits failed.
    CommitFailed,
    /// The job does not commit.
    CommitOff,
    /// A start moved the job and the group follows at the next commit, or a reset moved the group and the job does not
    /// follow.
    AfterReset,
    /// Something else committed to the group: the note is not this job's.
    ExternalCommit,
    /// The group has no offset: never committed, or expired.
    GroupMissing,
    /// There is no checkpoint to compare with.
    NoCheckpoint,
    /// One of the two numbers could not be read.
    Unknown,
}

/// What is notable about a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Flag {
    /// The log goes on behind the last stable offset: a transaction is open.
    HeldByTransaction,
    /// The checkpointed position lies before the log's beginning.
    BelowEarliest,
    /// The checkpointed position lies beyond the log's end.
    BeyondLatest,
    /// The topic has another id than the checkpoint says.
    TopicRecreated,
    /// The checkpoint does not hold it.
    NewSinceCheckpoint,
    /// The checkpoint holds it, the spec does not read it: its position is kept for the day on which it does again.
    Detached,
    /// It is read, and the brokers do not have it any more. Its position is kept.
    PartitionGone,
    /// It has no leader.
    NoLeader,
    /// The group's offset is ahead of the checkpoint.
    GroupAhead,
    /// The sink holds less than the checkpoint says: its data was restored or deleted.
    SinkBehindStore,
    /// The sink knows a newer decision than the store: the store was restored.
    StoreBehindSink,
    /// The sink was written to and does not know any more how far it has come.
    ProgressLost,
    /// It is parked: not read until somebody decides or its cause goes away.
    Parked,
    /// The numbers were taken at different moments; a lag below zero is shown as 0.
    Skewed,
}
