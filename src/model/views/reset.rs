use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{
    ids::{CheckpointId, JobName},
    offset::Offset,
    resolver::Warning,
};

/// Where a consumer group was moved, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResetReport {
    /// One sentence.
    pub summary: String,
    /// The job.
    pub job: JobName,
    /// The consumer group.
    pub group_id: String,
    /// What was asked for: the word of `to.mode`.
    #[schema(examples("timestamp"))]
    pub mode: String,
    /// The checkpoint whose positions were taken (mode `checkpoint`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointId>,
    /// Each partition that was meant, in order.
    pub partitions: Vec<ResetPartition>,
    /// Partitions that the job reads and that stay where they are because the checkpoint does not hold them.
    pub left_out: Vec<PartitionRef>,
    /// The note that stands beside each offset in the group from now on; `null` where nothing was moved.
    pub note: Option<String>,
    /// What to know: `group-only-moved` when the job has a checkpoint and so does not follow.
    pub warnings: Vec<Warning>,
}

/// One partition of a group that is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResetPartition {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Where the group stood; `null` where it had no offset.
    pub from: Option<Offset>,
    /// Where it stands now.
    pub to: Offset,
    /// `to - from`; negative means back.
    pub moved_by: Option<i64>,
    /// Whether the position that was asked for lay outside of the log.
    pub clamped: bool,
    /// That position.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<i64>,
}

/// Names a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PartitionRef {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
}
