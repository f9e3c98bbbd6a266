//! Deleting a job: what goes with it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What becomes of the consumer group of a deleted job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupFate {
    /// It stays, with its offsets, until the broker lets them expire.
    #[default]
    Keep,
    /// It is deleted, if it has no live members; otherwise the job is not deleted either.
    Delete,
}

/// What goes with a deleted job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteRequest {
    /// Whether the checkpoints are deleted at once instead of after 30 days.
    pub purge: bool,
    /// What becomes of the consumer group.
    pub group: GroupFate,
}
