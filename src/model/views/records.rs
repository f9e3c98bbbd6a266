//! A look at single records.

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// Records of one partition, in the order of their offsets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RecordsView {
    /// The records; fewer than asked for where the log ends.
    pub items: Vec<RecordView>,
}

/// One record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RecordView {
    /// Its topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its own offset: where it lies in the log.
    pub offset: i64,
    /// As the producer or the broker stamped it.
    pub timestamp: Option<DateTime<Utc>>,
    /// The key, as `as` says; `null` without a key.
    pub key: Option<String>,
    /// The value, as `as` says; `null` for a tombstone.
    pub value: Option<String>,
    /// Length of the key in bytes.
    pub key_bytes: Option<usize>,
    /// Length of the value in bytes.
    pub value_bytes: Option<usize>,
    /// Whether key or value are longer than the 64 KiB that are shown of each.
    pub truncated: bool,
}
