use serde::Serialize;
use utoipa::ToSchema;

use crate::model::ids::JobName;

/// What the deletion of a job deleted, or would delete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeleteReport {
    /// One sentence.
    pub summary: String,
    /// The job.
    pub job: JobName,
    /// Its checkpoints in the store, failed attempts included.
    pub checkpoints: i64,
    /// Whether they are gone at once; otherwise they stay for 30 days, for a look by SQL. No job can resume from them.
    pub purged: bool,
    /// The consumer group.
    pub group: DeletedGroup,
}

/// What became of the consumer group of a deleted job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct DeletedGroup {
    /// Its name.
    pub group_id: String,
    /// The Kafka connection.
    pub connection: String,
    /// What became of it.
    pub outcome: GroupOutcome,
}

/// What became of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GroupOutcome {
    /// It stays, with its offsets.
    Kept,
    /// It is gone.
    Deleted,
    /// There was no such group.
    Absent,
}
