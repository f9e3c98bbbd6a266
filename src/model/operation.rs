//! What was asked for, by whom, and what became of it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::{JobName, OperationId};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// Start a job.
    Start,
    /// Stop a job.
    Stop,
    /// Take a checkpoint.
    Checkpoint,
    /// Move the consumer group.
    ResetOffsets,
    /// Delete a job.
    Delete,
    /// Step over one record.
    Skip,
    /// Stop a job and start it again.
    Restart,
}

/// How far an operation has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OperationStatus {
    /// Stored; nobody works at it yet.
    Queued,
    /// Being carried out.
    Running,
    /// Done; `result` says what.
    Succeeded,
    /// Not done; `error` says why.
    Failed,
    /// Called off before it was done.
    Canceled,
}

impl OperationStatus {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }
}

/// A stored operation.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Operation {
    /// `op_` and a ULID.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// The job.
    #[schema(value_type = String)]
    pub job: JobName,
    /// How far it has come.
    pub status: OperationStatus,
    /// Whether it changed anything; `null` until it is known.
    pub changed: Option<bool>,
    /// The step it is at or ended with, for people.
    pub step: String,
    /// Who asked.
    pub requested_by: String,
    /// Why, in the caller's words.
    pub reason: Option<String>,
    /// When it was asked for.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// What came of it; its shape depends on the kind.
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    /// Why it failed: the problem document that a waiting caller gets.
    #[schema(value_type = Option<Object>)]
    pub error: Option<serde_json::Value>,
    /// The request that asked.
    pub request_id: Option<String>,
}
