//! What a job should do, what it does, and which steps lead from one to the other.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What an operator asked for last; kept over restarts of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DesiredState {
    /// The job should run.
    Running,
    /// The job should not run.
    Stopped,
}

/// What a job does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// Nothing of the job runs; its lease is released.
    Stopped,
    /// The lease is taken; positions are being worked out, or what they need is not reachable and is asked again.
    Starting,
    /// Records are consumed.
    Running,
    /// The last checkpoint is being taken.
    Stopping,
    /// The last run has crashed, and the pause before the next one is not over. The lease is kept.
    BackingOff,
    /// The job gave up and needs a decision; `failure` says why.
    Failed,
    /// A bounded job has read everything up to its ends, and its last checkpoint and commit are made; its lease is released.
    Finished,
}

/// What can happen to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobEvent {
    /// An operator's start, or the server came up and the job should run.
    Start,
    /// The start was refused (blockers), or cancelled by a stop.
    StartRefused,
    /// All positions are stored and the consumers are assigned.
    Started,
    /// An operator's stop, or the server goes down.
    Stop,
    /// A required stop could not take its checkpoint: the job goes on.
    StopRefused,
    /// The engine has ended and the lease is released.
    Ended,
    /// The engine crashed, and its restart strategy says to try again.
    Crashed,
    /// The engine gave up.
    Failed,
    /// A bounded job has read everything up to its ends.
    Finished,
}

/// A step that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from:?} cannot take the step {event:?}")]
pub struct InvalidTransition {
    /// Where the job is.
    pub from: JobState,
    /// What was said to have happened.
    pub event: JobEvent,
}

impl JobState {
    /// The word of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::BackingOff => "backing-off",
            Self::Failed => "failed",
            Self::Finished => "finished",
        }
    }

    /// The whole life cycle: every edge there is.
    ///
    /// # Errors
    /// A step that does not exist; the caller has a bug or an old view.
    pub fn on(self, event: JobEvent) -> Result<Self, InvalidTransition> {
        match (self, event) {
            (Self::Stopped | Self::BackingOff | Self::Failed | Self::Finished, JobEvent::Start) => {
                Ok(Self::Starting)
            }
            (Self::Running, JobEvent::Crashed) => Ok(Self::BackingOff),
            (Self::Starting, JobEvent::Started) | (Self::Stopping, JobEvent::StopRefused) => {
                Ok(Self::Running)
            }
            (Self::Starting, JobEvent::StartRefused)
            | (
                Self::Starting
                | Self::Stopping
                | Self::Running
                | Self::BackingOff
                | Self::Failed
                | Self::Stopped,
                JobEvent::Ended,
            ) => Ok(Self::Stopped),
            // Also while a stop is under way: its last checkpoint may be that of the end. And a start that is refused leaves a
            // finished job finished.
            (
                Self::Running | Self::Stopping | Self::Starting | Self::Finished,
                JobEvent::Finished,
            ) => Ok(Self::Finished),
            (Self::Starting | Self::Running, JobEvent::Stop) => Ok(Self::Stopping),
            (Self::Starting | Self::Running | Self::Stopping | Self::Failed, JobEvent::Failed) => {
                Ok(Self::Failed)
            }
            (from, event) => Err(InvalidTransition { from, event }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATES: [JobState; 7] = [
        JobState::Stopped,
        JobState::Starting,
        JobState::Running,
        JobState::Stopping,
        JobState::BackingOff,
        JobState::Failed,
        JobState::Finished,
    ];
    const EVENTS: [JobEvent; 9] = [
        JobEvent::Start,
        JobEvent::StartRefused,
        JobEvent::Started,
        JobEvent::Stop,
        JobEvent::StopRefused,
        JobEvent::Ended,
        JobEvent::Crashed,
        JobEvent::Failed,
        JobEvent::Finished,
    ];

    proptest! {
        #[test]
        fn only_a_start_begins_and_only_a_running_job_crashes(state in prop::sample::select(&STATES[..]), event in prop::sample::select(&EVENTS[..])) {
            let next = state.on(event);
            if next == Ok(JobState::BackingOff) {
                prop_assert_eq!(state, JobState::Running);
            }
            if matches!(state, JobState::Stopped | JobState::BackingOff | JobState::Failed | JobState::Finished) && next == Ok(JobState::Starting) {
                prop_assert_eq!(event, JobEvent::Start);
            }
            if matches!(next, Ok(JobState::Running)) {
                prop_assert!(matches!(state, JobState::Starting | JobState::Stopping));
            }
        }
    }
}
