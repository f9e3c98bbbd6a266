//! A checkpoint: the positions from which a job can go on, and how they were taken.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ids::{CheckpointId, LeaseEpoch},
    offset::{Offset, PartitionOffsets},
    topic::{TopicId, TopicPartition},
};

/// Why a checkpoint was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointKind {
    /// Holds the resolved positions of a start, stored before the first fetch.
    Start,
    /// Taken on the interval.
    Periodic,
    /// Asked for by a caller.
    Manual,
    /// The last one of a stop.
    Stop,
    /// The last one of a run that fails at a record: the record's partition stands exactly at it.
    Failure,
    /// Holds the positions that were decided while the job ran, stored before the first fetch: those of partitions that
    /// appeared, and of topics that were created again.
    Discovery,
    /// Steps over one record for an operator; the other positions are where a start would have begun.
    Skip,
    /// Moves positions that their logs did not hold any more, as the spec's `on_out_of_range` says.
    Reset,
}

impl CheckpointKind {
    /// The kind's word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Periodic => "periodic",
            Self::Manual => "manual",
            Self::Stop => "stop",
            Self::Failure => "failure",
            Self::Discovery => "discovery",
            Self::Skip => "skip",
            Self::Reset => "reset",
        }
    }
}

/// How far a checkpoint has come, as the API shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CheckpointStatus {
    /// Being taken; not stored yet.
    InProgress,
    /// Sent to the store, which has not said whether it is kept; settled by reading it back.
    Uncertain,
    /// Stored; a start may resume from it.
    Completed,
    /// Given up; `failure` says why.
    Failed,
}

/// Times of a checkpoint's phases in milliseconds; `null` for a phase that was not reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointPhases {
    /// From the trigger until the last subtask stopped between two batches.
    pub barrier_ms: Option<i64>,
    /// The slowest sink writer's flush.
    pub sink_flush_ms: Option<i64>,
    /// The transaction in the store; of one that the store has not answered, until now.
    pub store_ms: Option<i64>,
    /// The commit to the consumer group, after completion.
    pub group_commit_ms: Option<i64>,
}

/// Why an attempt failed, and what was slow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointFailure {
    /// A code of the vocabulary, for example `checkpoint-timeout`.
    pub code: String,
    /// `barrier`, `sink_flush` or `store`.
    pub phase: String,
    /// One sentence.
    pub summary: String,
    /// The subtasks that had not answered; none if all of them had and `phase` is `store`.
    pub slowest: Vec<SlowSubtask>,
}

/// A subtask that had not answered when an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlowSubtask {
    /// The subtask's number.
    pub subtask: u32,
    /// How long it had been waited for, in milliseconds.
    pub waiting_ms: i64,
    /// What it was doing: `sink-open`, `sink-write`, `sink-flush`, `decode` or `idle`.
    #[serde(rename = "where")]
    pub at: String,
}

/// What became of the commit to the consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupCommitStatus {
    /// Committed.
    Ok,
    /// Not answered yet.
    Pending,
    /// Refused or not answered in time; harmless, the next one covers it.
    Failed,
    /// A newer checkpoint was committed instead.
    Displaced,
    /// The job does not commit, or this kind of checkpoint is not committed (`start`).
    Off,
}

/// The commit to the consumer group that belongs to a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupCommit {
    /// Outcome.
    pub status: GroupCommitStatus,
    /// The broker's or client's words when it failed.
    pub error: Option<String>,
}

impl GroupCommit {
    /// A commit that does not take place.
    pub const OFF: Self = Self {
        status: GroupCommitStatus::Off,
        error: None,
    };
    /// A commit whose outcome is open.
    pub const PENDING: Self = Self {
        status: GroupCommitStatus::Pending,
        error: None,
    };
}

/// A partition's position inside a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointPosition {
    /// Next record to read; `None` while the partition has no leader and never had a position.
    pub next_offset: Option<Offset>,
    /// The id of the checkpoint that last decided this position from outside (a start, a restore, a discovery): others copy
    /// it.
    pub position_id: CheckpointId,
    /// The topic's id when the position was taken; `None` if the broker has none.
    pub topic_id: Option<TopicId>,
}

/// A completed checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// The lease under which it was taken.
    pub epoch: LeaseEpoch,
    /// When it was triggered.
    pub started_at: DateTime<Utc>,
    /// When it was stored.
    pub completed_at: DateTime<Utc>,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Whether any record reached the sink since the checkpoint before.
    pub has_output: bool,
    /// Which target the sink wrote to; a change means that progress kept there is not comparable.
    pub sink_identity: String,
    /// The positions.
    pub positions: BTreeMap<TopicPartition, CheckpointPosition>,
}

impl Checkpoint {
    /// The positions as plain offsets, without the ones still pending.
    #[must_use]
    pub fn offsets(&self) -> PartitionOffsets {
        self.positions
            .iter()
            .filter_map(|(partition, position)| Some((partition.clone(), position.next_offset?)))
            .collect()
    }
}

/// An attempt that failed, as it is kept in the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCheckpoint {
    /// Its number, never used again.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// The lease under which it was taken.
    pub epoch: LeaseEpoch,
    /// When it was triggered.
    pub started_at: DateTime<Utc>,
    /// When it was given up.
    pub failed_at: DateTime<Utc>,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Why.
    pub failure: CheckpointFailure,
}
