//! A verdict over a job that does not depend on the cadence of commits.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{code::Code, topic::TopicPartition};

/// How a job fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HealthStatus {
    /// It reads as fast as the topics are written.
    Ok,
    /// Its lag has grown in every sample of the window.
    Behind,
    /// There are unread records and no position moved for the whole window.
    Stalled,
    /// A failure needs a decision.
    Blocked,
    /// An open transaction of somebody else holds its readers back.
    Held,
    /// Something outside does not answer; the job goes on by itself when it does.
    Waiting,
    /// Not watched long enough to say.
    Unknown,
    /// It does not run, as asked.
    Stopped,
}

/// The verdict with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    /// The verdict.
    pub status: HealthStatus,
    /// What it rests on, worst first.
    pub reasons: Vec<HealthReason>,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HealthReason {
    /// What it is.
    pub code: Code,
    /// Where, if it is about partitions.
    pub partitions: Vec<TopicPartition>,
    /// Since when.
    pub since: Option<DateTime<Utc>>,
    /// One sentence.
    pub summary: String,
    /// The page of the code.
    pub problem: String,
}

impl HealthReason {
    /// Evidence about the whole job.
    #[must_use]
    pub fn new(code: Code, since: Option<DateTime<Utc>>, summary: impl Into<String>) -> Self {
        Self {
            code,
            partitions: Vec::new(),
            since,
            summary: summary.into(),
            problem: format!("/problems/{code}"),
        }
    }
}
