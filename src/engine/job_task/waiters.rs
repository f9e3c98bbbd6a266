//! Those who ask for a checkpoint and wait for it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::{sync::oneshot, time::Instant};

use super::JobTask;
use crate::{
    engine::checkpoint_coordinator::CoordinatorEvent,
    model::{
        checkpoint::{
            CheckpointFailure, CheckpointKind, CheckpointPhases, FailedCheckpoint, GroupCommit,
        },
        code::Code,
        ids::CheckpointId,
        views::CheckpointReport,
    },
};

pub(super) type Waiters = Vec<oneshot::Sender<CheckpointReport>>;

/// Somebody who asked for a checkpoint that has not begun.
pub(super) struct QueuedWaiter {
    pub(super) reply: oneshot::Sender<CheckpointReport>,
    /// Until when it must have begun; a stop's own time bounds those that wait for its checkpoint.
    pub(super) deadline: Instant,
    pub(super) asked_at: DateTime<Utc>,
}

impl JobTask {
    pub(super) fn on_trigger(
        &mut self,
        timeout: Option<Duration>,
        reply: oneshot::Sender<CheckpointReport>,
    ) {
        if let Some(stopping) = &self.stopping {
            // No record is taken any more: the stop's checkpoint covers everything that this one would.
            let last = stopping
                .attempt
                .and_then(|id| self.awaiting_commit.get_mut(&id));
            match last {
                Some((_, waiters)) => waiters.push(reply),
                None if stopping.attempt.is_some() => self.waiters.push(reply),
                None => self.queue_waiter(timeout, reply),
            }
            return;
        }
        self.queue_waiter(timeout, reply);
        self.trigger_manual(timeout);
    }

    pub(super) fn trigger_manual(&mut self, timeout: Option<Duration>) {
        let event = CoordinatorEvent::Trigger {
            kind: CheckpointKind::Manual,
            timeout,
        };
        self.coordinate(event);
    }

    fn queue_waiter(
        &mut self,
        timeout: Option<Duration>,
        reply: oneshot::Sender<CheckpointReport>,
    ) {
        let timeout = timeout.unwrap_or(self.run.spec.checkpoint.timeout.0);
        self.queued_waiters.push(QueuedWaiter {
            reply,
            deadline: Instant::now() + timeout,
            asked_at: self.run.clock.now(),
        });
    }

    /// Answers those whose checkpoint has not begun in their time, because the attempt before it waits for the store.
    pub(super) fn answer_late_waiters(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        let all = std::mem::take(&mut self.queued_waiters);
        let (late, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiter| waiter.deadline <= now);
        self.queued_waiters = waiting;
        let Some(asked_at) = late.iter().map(|waiter| waiter.asked_at).min() else {
            return;
        };
        if self.queued_waiters.is_empty() {
            self.coordinator.withdraw(CheckpointKind::Manual);
        }
        let report = self.never_began(CheckpointKind::Manual, asked_at, "its timeout");
        for waiter in late {
            // A caller that went away loses only the answer.
            let _unheard = waiter.reply.send(report.clone());
        }
        self.publish();
    }

    /// Notes a checkpoint that was asked for and could not begin, because another attempt was under way.
    pub(super) fn never_began(
        &mut self,
        kind: CheckpointKind,
        asked_at: DateTime<Utc>,
        limit: &str,
    ) -> CheckpointReport {
        let in_the_way = self.attempt.as_ref().map_or_else(String::new, |attempt| {
            format!(": checkpoint {} was still under way", attempt.id)
        });
        let mut failure = CheckpointFailure {
            code: Code::CheckpointTimeout.to_string(),
            phase: "barrier".to_owned(),
            summary: format!("the checkpoint could not begin within {limit}{in_the_way}"),
            slowest: self.coordinator.missing(Instant::now()),
        };
        self.name_the_slow_part(&mut failure);
        let id = self.coordinator.spend_id();
        self.last_failed = Some((id, failure.clone()));
        self.note_failure(FailedCheckpoint {
            id,
            kind,
            epoch: self.run.lease.epoch,
            started_at: asked_at,
            failed_at: self.run.clock.now(),
            phases: CheckpointPhases::default(),
            failure: failure.clone(),
        });
        failed_report(id, CheckpointPhases::default(), failure)
    }
}

pub(super) fn failed_report(
    id: CheckpointId,
    phases: CheckpointPhases,
    failure: CheckpointFailure,
) -> CheckpointReport {
    CheckpointReport {
        id,
        status: "failed".to_owned(),
        completed_at: None,
        group_commit: GroupCommit::OFF,
        phases,
        failure: Some(failure),
    }
}
