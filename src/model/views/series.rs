use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{ids::JobName, series::SeriesName, topic::TopicPartition};

/// Numbers of a job over time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct SeriesView {
    /// The job.
    pub job: JobName,
    /// The partition whose numbers they are; left out where they are the whole job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<TopicPartition>,
    /// When this server began to keep the job's numbers; `null` before the first. They outlive a stop of the job and not a
    /// restart of the server.
    pub since: Option<DateTime<Utc>>,
    /// How much time the points cover, in milliseconds.
    pub window_ms: i64,
    /// How much time lies between two points, in milliseconds.
    pub step_ms: i64,
    /// The time of each point, oldest first: a point tells of the step that ends there.
    pub at: Vec<DateTime<Utc>>,
    /// The series that were asked for.
    pub series: Vec<Series>,
}

/// One number over time.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Series {
    /// Which.
    pub name: SeriesName,
    /// `records/s`, `bytes/s`, `offsets`, `s` or `share` (between 0 and 1).
    pub unit: &'static str,
    /// A point for each of `at`; `null` where it is not known: the job did not run, or something did not answer. Six to seven
    /// digits of a number are kept.
    pub points: Vec<Option<f32>>,
}
