//! What the API shows. The services build these values, the HTTP layer only writes them as JSON.
//!
//! Unknown is `null`, never 0, and each sum says how many partitions it could not include.

mod attempt;
mod checkpoint;
mod deletion;
mod event;
mod job;
mod offsets;
mod plan;
mod records;
mod reset;
mod series;
mod skip;
mod stages;

pub use attempt::AttemptList;
pub use checkpoint::{CheckpointList, CheckpointView};
pub use deletion::{DeleteReport, DeletedGroup, GroupOutcome};
pub use event::EventList;
pub use job::{
    BoundedView, Commands, CrashLoopView, JobItem, JobLag, JobList, JobView, LastCheckpoint,
    LimitsView, ModeEffect, NextStep, Owner, SpecApplied, StartupModeView, WatermarkView,
};
pub use offsets::{
    Divergence, DivergenceCause, Flag, OffsetsTotals, OffsetsView, PartitionLag,
    PartitionOffsetsView, Retention, SourceStatus, SourceView, Sources,
};
pub use plan::{CheckpointReport, Fence, OperationList, StartPlanView, StartReport, StopReport};
pub use records::{RecordView, RecordsView};
pub use reset::{PartitionRef, ResetPartition, ResetReport};
pub use series::{Series, SeriesView};
pub use skip::{RestartReport, SkipReport, SkippedRecord};
pub use stages::{BottleneckView, StagesView, SubtaskStages};
