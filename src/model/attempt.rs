//! One run of a job, as it is kept: why it began, how it ended.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    ids::{CheckpointId, LeaseEpoch, OperationId},
    job_status::JobFailure,
};

/// Why a run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptKind {
    /// An operator's start.
    Start,
    /// An operator's restart.
    Restart,
    /// The restart strategy, after a crash.
    AfterCrash,
    /// Something outside had been away, and the run before had ended because of it.
    AfterOutage,
    /// The job should run and did not: its server came up, or took it over.
    Recovery,
}

impl AttemptKind {
    /// Whether a server began the run by itself.
    #[must_use]
    pub fn is_automatic(self) -> bool {
        match self {
            Self::Start | Self::Restart => false,
            Self::AfterCrash | Self::AfterOutage | Self::Recovery => true,
        }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AttemptOutcome {
    /// As an operator asked.
    Stopped,
    /// A bounded run came to its ends.
    Finished,
    /// By something that would be the same again; it needs a decision.
    Failed,
    /// By something of which nobody knows whether it would be the same again; the restart strategy decides.
    Crashed,
    /// By something outside that was away for so long that the run could not wait for it.
    Outage,
    /// With its server, which went down in order.
    ServerStopped,
    /// Without a word: its server died, or lost the job to another one. `ended_at` is when that was noticed.
    OwnerLost,
}

/// A run of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Attempt {
    /// Counts the runs of the job, from 1.
    pub attempt: i64,
    /// Why it began.
    pub kind: AttemptKind,
    /// When it began to consume; of one that never came to that, when it crashed.
    pub started_at: DateTime<Utc>,
    /// When it ended; `null` while it runs.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it ended; `null` while it runs.
    pub outcome: Option<AttemptOutcome>,
    /// What it ended with, if that was not asked for.
    pub cause: Option<JobFailure>,
    /// Whether a crash loop began with the end of this run. Such runs are kept longer.
    pub first_of_loop: bool,
    /// Records given to the sink; `null` if the run ended without a word.
    pub records: Option<u64>,
    /// Bytes of keys and values given to the sink; `null` if the run ended without a word.
    pub bytes: Option<u64>,
    /// Generation of the spec that ran.
    pub generation: i64,
    /// The operation that asked for it; `null` if nobody did.
    #[schema(value_type = Option<String>)]
    pub operation: Option<OperationId>,
    /// The `start` checkpoint with the positions that it began at. A repetition of the same start takes its place. `null` for
    /// one that crashed before its positions were stored, and in a job without checkpoints.
    pub checkpoint: Option<CheckpointId>,
    /// Of a run without checkpoints: where it began, and what that means, in a sentence.
    pub without_checkpoints: Option<String>,
    /// The instance id of the server that ran it.
    pub instance: String,
    /// Under which epoch.
    pub epoch: LeaseEpoch,
}
