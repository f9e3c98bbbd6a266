use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::NextStep;
use crate::model::stages::{BottleneckKind, StageShares};

/// Where the time of a running job goes.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StagesView {
    /// When the time began that the shares are of: a minute ago, or with the run.
    pub since: DateTime<Utc>,
    /// How many milliseconds it is.
    pub window_ms: i64,
    /// The mean of the subtasks; `null` in the first ten seconds of a run.
    pub shares: Option<StageShares>,
    /// Each subtask; empty in the first ten seconds of a run.
    pub subtasks: Vec<SubtaskStages>,
}

/// Where the time of a subtask goes.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SubtaskStages {
    /// Which.
    pub subtask: u32,
    /// Its shares.
    pub shares: StageShares,
}

/// What holds a job back, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct BottleneckView {
    /// What it is; `null` while that is not known, in the first ten seconds of a run.
    pub kind: Option<BottleneckKind>,
    /// In which subtask that was seen, the one with the least time to spare; `null` for a job with one subtask.
    pub subtask: Option<u32>,
    /// What was seen, in one sentence.
    pub summary: String,
    /// What helps; `null` where nothing is needed.
    pub hint: Option<String>,
    /// Members of the spec that the hint is about, as JSON pointers.
    pub settings: Vec<String>,
    /// Changes of these as lines to copy; the numbers are a beginning, not a measurement.
    pub next: Vec<NextStep>,
}
