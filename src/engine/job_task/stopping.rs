//! A stop: no record is taken any more, a last checkpoint covers those that were, and the run ends with it. A run that comes to a
//! record which ends it stops the same way.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::{sync::oneshot, time::Instant};

use super::{JobTask, waiters::failed_report};
use crate::{
    engine::{
        checkpoint_coordinator::CoordinatorEvent,
        error::JobError,
        job_handle::{JobEnd, StopOutcome, StopRefused},
    },
    model::{
        checkpoint::{CheckpointFailure, CheckpointKind, CheckpointPhases},
        code::Code,
        ids::CheckpointId,
        start::StopCheckpoint,
        views::CheckpointReport,
    },
};

/// How long the last checkpoint of a run that fails at a record may take, if the spec does not give it less.
const LAST_CHECKPOINT: Duration = Duration::from_secs(30);
/// The share of a stop's time in which a sink that is away is tried again.
const INSIST_SHARE: f64 = 0.9;

/// A stop under way: an asked one, or that of a run which fails at a record.
pub(super) struct Stopping {
    /// `Stop`, or `Failure` for a run that fails.
    pub(super) kind: CheckpointKind,
    pub(super) required: bool,
    /// Whether it is the end of a bounded run, which nobody has to ask for.
    pub(super) finishes: bool,
    /// Until when the checkpoint may take.
    pub(super) deadline: Instant,
    pub(super) asked_at: DateTime<Utc>,
    /// How long a sink that is away is tried again, so that there is time left to tell what it said.
    pub(super) insist_until: Instant,
    /// The attempt that is this stop's own. One that an earlier, refused stop left behind does not count: records were
    /// taken after it.
    pub(super) attempt: Option<CheckpointId>,
    pub(super) refused: Vec<oneshot::Sender<StopRefused>>,
    /// The last checkpoint once it has completed, while its commit is awaited.
    pub(super) report: Option<CheckpointReport>,
}

impl JobTask {
    pub(super) fn on_stop(
        &mut self,
        checkpoint: StopCheckpoint,
        timeout: Duration,
        refused: oneshot::Sender<StopRefused>,
    ) {
        if checkpoint == StopCheckpoint::None {
            let last = self
                .stopping
                .as_ref()
                .and_then(|stopping| stopping.report.clone());
            if let Some(stopping) = &mut self.stopping {
                // Somebody asks now.
                stopping.finishes = false;
            }
            return self.stopped(last);
        }
        let deadline = Instant::now() + timeout;
        if let Some(stopping) = &mut self.stopping {
            stopping.refused.push(refused);
            stopping.required &= checkpoint == StopCheckpoint::Required;
            stopping.deadline = stopping.deadline.min(deadline);
            return;
        }
        let required = checkpoint == StopCheckpoint::Required;
        self.begin_last_checkpoint(CheckpointKind::Stop, required, timeout, vec![refused]);
    }

    pub(super) fn begin_last_checkpoint(
        &mut self,
        kind: CheckpointKind,
        required: bool,
        timeout: Duration,
        refused: Vec<oneshot::Sender<StopRefused>>,
    ) {
        let now = Instant::now();
        self.stopping = Some(Stopping {
            kind,
            required,
            finishes: false,
            deadline: now + timeout,
            asked_at: self.run.clock.now(),
            insist_until: now + timeout.mul_f64(INSIST_SHARE),
            attempt: None,
            refused,
            report: None,
        });
        self.coordinator.set_periodic(false);
        self.apply_intake();
        self.coordinate(CoordinatorEvent::Trigger {
            kind,
            timeout: Some(timeout),
        });
        self.publish();
    }

    /// A record cannot be processed: the run ends, with everything before the record in a last checkpoint.
    pub(super) fn on_blocked(&mut self, error: JobError) {
        if self.blocked.is_some() {
            // Another partition came to a record of its own. Its position is covered, and the next start comes to it.
            return;
        }
        let before_it = if self.run.spec.checkpointing().is_off() {
            "what lies before it goes to the sink"
        } else {
            "a last checkpoint is taken before it"
        };
        tracing::error!(error = %error, "a record cannot be processed; {before_it}");
        self.blocked = Some(error);
        if self.stopping.is_none() {
            self.fail_after_checkpoint();
        }
    }

    fn fail_after_checkpoint(&mut self) {
        let timeout = self.run.spec.checkpoint.timeout.0.min(LAST_CHECKPOINT);
        self.begin_last_checkpoint(CheckpointKind::Failure, false, timeout, Vec::new());
    }

    /// The time of a stop is over before its checkpoint has ended.
    pub(super) fn stop_ran_out(&mut self) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        if let Some(report) = stopping.report.clone() {
            // The checkpoint is stored; only its commit to the group is open.
            if self.waits_for_last_commit(&report) {
                return;
            }
            return self.stopped(Some(report));
        }
        let (own, asked_at, kind) = (stopping.attempt, stopping.asked_at, stopping.kind);
        let under_way = self.attempt.as_ref().map(|attempt| attempt.id);
        if let Some(id) = own.filter(|own| under_way == Some(*own)) {
            let actions = self.coordinator.give_up(id, Instant::now());
            if actions.is_empty() {
                let now = Instant::now();
                let attempt = self.attempt.as_ref();
                let phases = attempt.map(|attempt| attempt.phases_until(now));
                return self.stop_failed(uncertain_report(id, phases.unwrap_or_default()));
            }
            return self.carry_out(actions);
        }
        self.coordinator.withdraw(kind);
        let report = self.never_began(kind, asked_at, "the time of the stop");
        self.stop_failed(report);
    }

    pub(super) fn stop_failed(&mut self, report: CheckpointReport) {
        let Some(stopping) = self.stopping.take_if(|stopping| stopping.required) else {
            return self.stopped(Some(report));
        };
        for refused in stopping.refused {
            // A caller that went away loses only the answer.
            let _unheard = refused.send(StopRefused {
                checkpoint: report.clone(),
            });
        }
        if self.blocked.is_some() {
            // It cannot go on: the record that came up meanwhile ends it.
            return self.fail_after_checkpoint();
        }
        self.coordinator.set_periodic(true);
        self.apply_intake();
        if !self.queued_waiters.is_empty() {
            // They waited for the stop's checkpoint.
            self.trigger_manual(None);
        }
        self.publish();
    }

    pub(super) fn stopped(&mut self, checkpoint: Option<CheckpointReport>) {
        if self.end.is_some() {
            return;
        }
        if checkpoint.is_some() && self.reads_on() {
            return;
        }
        let fails = self
            .stopping
            .as_ref()
            .is_some_and(|stopping| stopping.kind == CheckpointKind::Failure);
        if fails && let Some(cause) = self.blocked.take() {
            return self.fail(cause);
        }
        let outcome = Box::new(StopOutcome {
            checkpoint,
            will_replay: None,
            leaked_threads: 0,
            blocked: None,
        });
        self.end = Some(if self.is_finished() {
            JobEnd::Finished(outcome)
        } else {
            JobEnd::Stopped(outcome)
        });
    }
}

/// A checkpoint that was sent to the store, which has not said whether it keeps it: every subtask has answered, and the
/// store is what is slow.
fn uncertain_report(id: CheckpointId, phases: CheckpointPhases) -> CheckpointReport {
    let failure = CheckpointFailure {
        code: Code::CheckpointTimeout.to_string(),
        phase: "store".to_owned(),
        summary: "the store has not said whether it keeps the checkpoint".to_owned(),
        slowest: Vec::new(),
    };
    CheckpointReport {
        status: "uncertain".to_owned(),
        ..failed_report(id, phases, failure)
    }
}
