//! The history of a job: what happened to it, when, and by whom.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Every kind of entry, for whoever filters by one.
pub const EVENT_KINDS: &[&str] = &[
    "checkpoint-failed",
    "group-moved",
    "job-crashed",
    "job-created",
    "job-deleted",
    "job-failed",
    "job-finished",
    "job-started",
    "job-stopped",
    "next-start-cancelled",
    "next-start-set",
    "operation-created",
    "operation-finished",
    "operation-superseded",
    "partition-goes-on",
    "partition-gone",
    "partition-parked",
    "partition-returned",
    "position-moved",
    "positions-decided",
    "record-skipped",
    "records-dead-lettered",
    "records-read",
    "records-skipped",
    "spec-replaced",
    "start-refused",
    "topic-recreated",
];

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Event {
    /// Its number: later entries have greater ones.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// What happened.
    #[schema(example = "job-started")]
    pub kind: String,
    /// Who did it: a caller, or `handover` and `instance:...` where the server did by itself.
    pub actor: String,
    /// What else is known of it; the members depend on the kind.
    #[schema(value_type = Object)]
    pub details: Value,
}
