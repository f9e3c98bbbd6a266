//! What a skip and a restart did.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{StartReport, StopReport};
use crate::model::{ids::CheckpointId, job_state::DesiredState, offset::Offset, skip::SkipRequest};

/// What a skip did, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkipReport {
    /// One sentence.
    pub summary: String,
    /// The record.
    pub skipped: SkipRequest,
    /// Where its partition stands now.
    pub next_offset: Option<Offset>,
    /// The checkpoint that holds the new position; `null` if nothing was changed.
    pub checkpoint: Option<CheckpointId>,
    /// What was left out; `null` if the record could not be read.
    pub record: Option<SkippedRecord>,
    /// Whether the server starts the job now by itself.
    pub desired_state: DesiredState,
    /// Whether nothing was changed because only a look was asked for.
    pub dry_run: bool,
}

/// What is kept of a record that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkippedRecord {
    /// Milliseconds since 1970 as the producer or the broker stamped it.
    pub timestamp_ms: Option<i64>,
    /// Length of its key in bytes; `null` without a key.
    pub key_bytes: Option<usize>,
    /// Length of its value in bytes; `null` for a tombstone.
    pub value_bytes: Option<usize>,
    /// SHA-256 of its value in hexadecimal, to know it again; `null` for a tombstone.
    pub value_sha256: Option<String>,
}

/// What a restart did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestartReport {
    /// How it stopped; `null` if there was nothing to stop (any more).
    pub stop: Option<StopReport>,
    /// How it started.
    pub start: StartReport,
}
