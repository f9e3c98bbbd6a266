use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{
    checkpoint::{
        CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition, CheckpointStatus,
        GroupCommit,
    },
    ids::{CheckpointId, LeaseEpoch},
};

/// One checkpoint, whatever became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckpointView {
    /// Its number.
    pub id: CheckpointId,
    /// Why it was taken.
    pub kind: CheckpointKind,
    /// How far it has come.
    pub status: CheckpointStatus,
    /// When it was triggered.
    pub started_at: DateTime<Utc>,
    /// When it completed or failed.
    pub ended_at: Option<DateTime<Utc>>,
    /// When its positions were last found unchanged, for a completed one.
    pub confirmed_at: Option<DateTime<Utc>>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Why it failed.
    pub failure: Option<CheckpointFailure>,
    /// Its commit to the group.
    pub group_commit: GroupCommit,
    /// The lease under which it was taken.
    pub epoch: LeaseEpoch,
    /// Whether a later start set it aside: `auto` never resumes from it.
    pub superseded: bool,
    /// Topic to partition to position, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offsets: Option<BTreeMap<String, BTreeMap<i32, CheckpointPosition>>>,
}

/// A page of checkpoints, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckpointList {
    /// The checkpoints.
    pub items: Vec<CheckpointView>,
    /// Cursor of the next page: pass it as `after`; `null` on the last one.
    pub next: Option<String>,
    /// That checkpoints are off, and what that means; `null` for a job that takes them. What is listed then is of an earlier
    /// time.
    pub off: Option<String>,
}
