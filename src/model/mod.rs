//! The words of the field as pure values: no I/O, no clock, no runtime.
//!
//! Everything above speaks in these types. An *offset* always means the next record to read
//! ([`Offset`]); a record's own place in the log is a plain number on
//! [`ConsumerRecord`](record::ConsumerRecord) and becomes an offset in one function only,
//! [`Offset::after`]. Special positions ("latest", "no offset yet") are variants, never numbers.

pub mod attempt;
pub mod checkpoint;
pub mod code;
pub mod commit_mode;
pub mod deletion;
pub mod duration;
pub mod errors_spec;
pub mod event;
pub mod field_error;
pub mod group_reset;
pub mod health;
pub mod ids;
pub mod job;
pub mod job_state;
pub mod job_status;
pub mod json_path;
pub mod limits;
pub mod offset;
pub mod operation;
pub mod parked;
pub mod reader;
pub mod record;
pub mod resolver;
pub mod restart;
pub mod series;
pub mod sink_spec;
pub mod skip;
#[cfg(test)]
mod spec_laws;
pub mod stages;
pub mod start;
pub mod startup_mode;
pub mod stop_at;
pub mod subtask;
pub mod topic;
pub mod topic_pattern;
pub mod views;
pub mod watermark;

pub use checkpoint::{Checkpoint, CheckpointKind, CheckpointStatus};
pub use code::Code;
pub use duration::HumanDuration;
pub use field_error::FieldError;
pub use ids::{CheckpointId, InstallId, JobName, JobUid, LeaseEpoch, OperationId, PlanId};
pub use job::JobSpec;
pub use job_state::{DesiredState, JobState};
pub use offset::{Offset, PartitionOffsets};
pub use startup_mode::StartupMode;
pub use stop_at::StopAt;
pub use topic::{TopicId, TopicPartition};
