//! What a running job shows of itself, and how it ended.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    checkpoint::{CheckpointFailure, CheckpointKind, CheckpointPhases, GroupCommit},
    code::Code,
    ids::{CheckpointId, LeaseEpoch},
    limits::LimitsSpec,
    offset::Offset,
    parked::ParkedPartition,
    record::ConsumerRecord,
    resolver::StartReason,
    stages::RunStages,
    topic::{TopicId, TopicPartition},
    watermark::{JobWatermark, PartitionWatermark},
};

/// What a job's engine shows while it runs. Published as a whole; readers see the newest.
#[derive(Debug, Clone)]
pub struct JobStatus {
    /// The lease it runs under.
    pub epoch: LeaseEpoch,
    /// When this run began to consume.
    pub since: DateTime<Utc>,
    /// When this status was made.
    pub observed_at: DateTime<Utc>,
    /// Whether the last checkpoint of a stop is under way.
    pub stopping: bool,
    /// Each partition's live position.
    pub partitions: Arc<BTreeMap<TopicPartition, LivePartition>>,
    /// Records given to the sink in this run.
    pub records: u64,
    /// Bytes of keys and values given to the sink in this run.
    pub bytes: u64,
    /// Records dropped because they lay below the expected position (redelivered by the client).
    pub redelivered: u64,
    /// The limits it is held to.
    pub limits: LimitsSpec,
    /// Whether a subtask has records that the limits hold back.
    pub throttled: bool,
    /// How long subtasks were held back in this run, all together.
    pub throttled_for: Duration,
    /// Where the time of its subtasks goes.
    pub stages: Arc<RunStages>,
    /// The newest completed checkpoint; `None` in a job without checkpoints.
    pub last_checkpoint: Option<CheckpointSummary>,
    /// The attempt under way.
    pub in_progress: Option<AttemptInProgress>,
    /// The newest failed attempt of this run, and how many failed one after the other until now.
    pub last_failed: Option<(CheckpointId, CheckpointFailure)>,
    /// Attempts that failed since the last completed one.
    pub consecutive_failures: u32,
    /// Commits to the group: how the last ones went.
    pub commits: CommitCounters,
    /// What the job waits for; empty when it goes on.
    pub waiting: Vec<Waiting>,
    /// How it looks for new partitions.
    pub discovery: DiscoveryStatus,
    /// Partitions that are not read, each at a position that stays in every checkpoint.
    pub parked: Arc<BTreeMap<TopicPartition, ParkedPartition>>,
    /// Records that could not be processed and were left out in this run.
    pub bad_records: BadRecordCounters,
    /// Whether the sink works at records that it has taken and not made durable yet.
    pub sink_writes: bool,
    /// Positions that their logs did not hold, or whose topics were created again, and that were moved as the spec says, by the
    /// start of this run or in it.
    pub positions_moved: u64,
    /// How far event time has come; `None` for a job that keeps none.
    pub watermark: Option<JobWatermark>,
}

/// Records of one run that could not be processed and were left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct BadRecordCounters {
    /// Left out.
    pub skipped: u64,
    /// Written to the topic for dead letters.
    pub dead_lettered: u64,
}

/// A partition as its subtask sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePartition {
    /// Which subtask reads it.
    pub subtask: u32,
    /// Next record to read: everything before was given to the sink. `None` while it waits for a leader.
    pub position: Option<Offset>,
    /// The creation of the topic that the position belongs to; `None` where it is not known.
    pub topic_id: Option<TopicId>,
    /// Where it ends in a bounded run: the first offset that is not read.
    pub stop_offset: Option<Offset>,
    /// Why the run began to read it where it did; `None` while it waits for its first position.
    pub reason: Option<StartReason>,
    /// How far its event time has come; `None` for a job that keeps none.
    pub watermark: Option<PartitionWatermark>,
}

/// What a run shows of its looks at the brokers' metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct DiscoveryStatus {
    /// When the last look that was answered ended; `null` before the first.
    pub looked_at: Option<DateTime<Utc>>,
    /// How many topics that look saw of those that the spec reads.
    pub topics: Option<usize>,
    /// Partitions that this run has found since its start.
    pub discovered: u64,
    /// Looks that failed since the last one that was answered; they are repeated.
    pub failures: u32,
    /// Why the last look failed, while looks fail.
    pub last_error: Option<String>,
}

/// A completed checkpoint in brief.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointSummary {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// When it was stored.
    pub completed_at: DateTime<Utc>,
    /// When its positions were last found unchanged, or `completed_at`.
    pub confirmed_at: DateTime<Utc>,
    /// What became of its commit to the group.
    pub group_commit: GroupCommit,
    /// What its phases took.
    pub phases: CheckpointPhases,
}

/// An attempt that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptInProgress {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was triggered.
    pub kind: CheckpointKind,
    /// When.
    pub started_at: DateTime<Utc>,
    /// Whether it was sent to the store and its outcome is not known.
    pub uncertain: bool,
}

/// Commits to the group since the run began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CommitCounters {
    /// Commits that the broker confirmed.
    pub succeeded: u64,
    /// Commits that failed or were not answered in time.
    pub failed: u64,
    /// Commits that were not sent because a newer checkpoint took their place.
    pub displaced: u64,
    /// When the broker last confirmed one.
    pub last_success_at: Option<DateTime<Utc>>,
    /// Which checkpoint that was; `null` in a job without checkpoints.
    pub last_committed: Option<CheckpointId>,
    /// The last error, until a commit succeeds.
    pub last_error: Option<String>,
}

/// Something outside that the job waits for. It goes on by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Waiting {
    /// What is away: `kafka-unreachable`, `store-unreachable`, `no-leader`, `sink-error`.
    pub code: Code,
    /// Since when.
    pub since: DateTime<Utc>,
    /// The words of whoever noticed.
    pub detail: String,
}

/// Why a job gave up; kept with the job until the next start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobFailure {
    /// A code of the vocabulary.
    pub code: Code,
    /// One sentence with the cause.
    pub summary: String,
    /// The record, if there is one.
    pub record: Option<FailedRecord>,
    /// What was done to the record: `decode` or `write`.
    pub phase: Option<String>,
    /// When it happened first.
    pub first_seen: DateTime<Utc>,
}

/// The record that a job gave up at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedRecord {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its own offset: where it lies in the log.
    pub offset: i64,
    /// Its time stamp.
    pub timestamp: Option<DateTime<Utc>>,
    /// Length of its key in bytes; `null` without a key.
    pub key_bytes: Option<usize>,
    /// Length of its value in bytes; `null` for a tombstone.
    pub value_bytes: Option<usize>,
}

impl FailedRecord {
    /// Names a record of a partition.
    #[must_use]
    pub fn of(partition: &TopicPartition, record: &ConsumerRecord<'_>) -> Self {
        Self {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset: record.record_offset,
            timestamp: record
                .timestamp_ms
                .and_then(DateTime::from_timestamp_millis),
            key_bytes: record.key.map(<[u8]>::len),
            value_bytes: record.value.map(<[u8]>::len),
        }
    }
}
