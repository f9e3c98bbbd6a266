//! The numbers of a job that are kept for a day.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::stages::Stage;

/// A number that is kept over time. Each point tells of the step that ends at its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum SeriesName {
    /// Records given to the sink in a second.
    #[serde(rename = "records_per_s")]
    RecordsPerS,
    /// Bytes of keys and values given to the sink in a second.
    #[serde(rename = "bytes_per_s")]
    BytesPerS,
    /// Offsets from the live position to the readable end.
    #[serde(rename = "position_lag")]
    PositionLag,
    /// Offsets from the checkpointed position to the readable end.
    #[serde(rename = "checkpoint_lag")]
    CheckpointLag,
    /// Offsets from the group's committed offset to the readable end.
    #[serde(rename = "group_lag")]
    GroupLag,
    /// Seconds that the job's watermark is behind the clock; of a job that keeps event time.
    #[serde(rename = "watermark_lag_s")]
    WatermarkLag,
    /// The share of the time that the stage took, the mean of the subtasks; see `stages` in the job's view.
    #[serde(rename = "stages.fetch_wait")]
    FetchWait,
    /// The same of `decode`.
    #[serde(rename = "stages.decode")]
    Decode,
    /// The same of `sink_write`.
    #[serde(rename = "stages.sink_write")]
    SinkWrite,
    /// The same of `sink_flush`.
    #[serde(rename = "stages.sink_flush")]
    SinkFlush,
    /// The same of `checkpoint`.
    #[serde(rename = "stages.checkpoint")]
    Checkpoint,
    /// The same of `rate_limit`.
    #[serde(rename = "stages.rate_limit")]
    RateLimit,
    /// The same of `alignment`.
    #[serde(rename = "stages.alignment")]
    Alignment,
    /// The same of `idle`.
    #[serde(rename = "stages.idle")]
    Idle,
    /// The same of `handover_wait`, which is beside the others.
    #[serde(rename = "stages.handover_wait")]
    HandoverWait,
}

impl SeriesName {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::RecordsPerS,
        Self::BytesPerS,
        Self::PositionLag,
        Self::CheckpointLag,
        Self::GroupLag,
        Self::WatermarkLag,
        Self::FetchWait,
        Self::Decode,
        Self::SinkWrite,
        Self::SinkFlush,
        Self::Checkpoint,
        Self::RateLimit,
        Self::Alignment,
        Self::Idle,
        Self::HandoverWait,
    ];

    /// What a point is counted in.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::RecordsPerS => "records/s",
            Self::BytesPerS => "bytes/s",
            Self::PositionLag | Self::CheckpointLag | Self::GroupLag => "offsets",
            Self::WatermarkLag => "s",
            Self::FetchWait
            | Self::Decode
            | Self::SinkWrite
            | Self::SinkFlush
            | Self::Checkpoint
            | Self::RateLimit
            | Self::Alignment
            | Self::Idle
            | Self::HandoverWait => "share",
        }
    }

    /// Those that are kept for each partition, too.
    pub const OF_PARTITION: [Self; 4] = [
        Self::PositionLag,
        Self::CheckpointLag,
        Self::GroupLag,
        Self::WatermarkLag,
    ];

    /// The stage that it is the share of. `handover_wait` is none: it stands beside the stages.
    #[must_use]
    pub const fn stage(self) -> Option<Stage> {
        Some(match self {
            Self::RecordsPerS
            | Self::BytesPerS
            | Self::PositionLag
            | Self::CheckpointLag
            | Self::GroupLag
            | Self::WatermarkLag
            | Self::HandoverWait => return None,
            Self::FetchWait => Stage::FetchWait,
            Self::Decode => Stage::Decode,
            Self::SinkWrite => Stage::SinkWrite,
            Self::SinkFlush => Stage::SinkFlush,
            Self::Checkpoint => Stage::Checkpoint,
            Self::RateLimit => Stage::RateLimit,
            Self::Alignment => Stage::Alignment,
            Self::Idle => Stage::Idle,
        })
    }
}
