//! Ends a run, in a bounded time, and says how it went.

use std::time::Duration;

use tokio::time::Instant;

use super::{Background, JobTask};
use crate::{
    engine::{
        error::JobError,
        job_handle::{JobEnd, StopOutcome},
    },
    model::{
        checkpoint::{GroupCommit, GroupCommitStatus},
        views::CheckpointReport,
    },
};

/// How long subtasks may take to end after they were cancelled.
const SUBTASK_CLOSE: Duration = Duration::from_secs(5);
/// How long subtasks may take to end after they were aborted; one that blocks its thread inside the sink never does.
const SUBTASK_ABORT: Duration = Duration::from_secs(1);
/// How long the client of a consumer thread may take to close; librdkafka may wait for a broker that is away.
const CONSUMER_CLOSE: Duration = Duration::from_secs(3);
/// How long the end of a run waits for calls that were made aside.
const LAST_NOTES: Duration = Duration::from_secs(2);

impl JobTask {
    /// Ends everything that runs and says how it went. Bounded: what does not end in time is left behind and counted.
    pub(super) async fn close(mut self) -> JobEnd {
        if self.is_fenced {
            self.background.abort_all();
        }
        self.cancel.cancel();
        // The committer shares the first consumer's client, which cannot close while it is held.
        self.committer = None;
        let all_ended = tokio::time::timeout(SUBTASK_CLOSE, async {
            while self.tasks.join_next().await.is_some() {}
        });
        let some_were_stuck = all_ended.await.is_err();
        if some_were_stuck {
            // A task that is stuck in its sink is ended here; its end of the hand-over closes with it.
            let _still_stuck = tokio::time::timeout(SUBTASK_ABORT, self.tasks.shutdown()).await;
        }
        let cut_off = some_were_stuck
            || self
                .subtasks
                .iter()
                .any(|subtask| subtask.view.was_cut_off());
        self.publish();
        let mut leaked_threads = 0;
        let deadline = Instant::now() + CONSUMER_CLOSE;
        for subtask in self.subtasks.drain(..) {
            let closed = tokio::time::timeout_at(deadline, subtask.thread_ended).await;
            leaked_threads += usize::from(closed.is_err());
        }
        self.tell_left_out_rest();
        self.tell_failed_rest();
        self.settle_calls().await;
        self.log_untold();
        self.note_open_commit().await;
        leaked_threads += usize::from(self.commits.in_flight().is_some());
        if leaked_threads > 0 {
            tracing::warn!(
                leaked_threads,
                "consumer clients or a commit did not end in time; they are left to end by themselves"
            );
        }
        for (report, waiters) in std::mem::take(&mut self.awaiting_commit).into_values() {
            let report = self.as_it_ended(report);
            for waiter in waiters {
                // A caller that went away loses only the answer.
                let _unheard = waiter.send(report.clone());
            }
        }
        let store_has_not_said = self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.checkpoint.is_some());
        let is_known = !cut_off && !store_has_not_said;
        let end = self.end.take();
        let mut whole = |outcome: Box<StopOutcome>| {
            Box::new(StopOutcome {
                checkpoint: outcome.checkpoint.map(|report| self.as_it_ended(report)),
                will_replay: is_known.then(|| self.unsaved_offsets()),
                leaked_threads,
                blocked: self.blocked.take(),
            })
        };
        match end {
            Some(JobEnd::Stopped(outcome)) => JobEnd::Stopped(whole(outcome)),
            Some(JobEnd::Finished(outcome)) => JobEnd::Finished(whole(outcome)),
            Some(failed @ JobEnd::Failed(_)) => failed,
            None => JobEnd::Failed(JobError::Panicked {
                part: "job task".to_owned(),
                detail: "it ended without a reason".to_owned(),
            }),
        }
    }

    /// Waits a moment for calls that were made aside: what they bring still counts, and the lease is still ours.
    async fn settle_calls(&mut self) {
        let deadline = Instant::now() + LAST_NOTES;
        while let Ok(Some(done)) =
            tokio::time::timeout_at(deadline, self.background.join_next()).await
        {
            match done {
                Ok(
                    Background::LookedUp(_)
                    | Background::Bounds(_)
                    | Background::ReadableEnds(_)
                    | Background::Discovered(_),
                )
                | Err(_) => {}
                Ok(
                    Background::Stored { .. }
                    | Background::Noted(_)
                    | Background::Told(_)
                    | Background::Committed { .. },
                ) => self.on_background(done),
            }
        }
    }

    /// A stop's report with what became known after it was made.
    fn as_it_ended(&self, report: CheckpointReport) -> CheckpointReport {
        if self.last.id != report.id {
            return report;
        }
        let group_commit = match self.last.group_commit.status {
            GroupCommitStatus::Pending => self.commit_without_answer(),
            GroupCommitStatus::Ok
            | GroupCommitStatus::Failed
            | GroupCommitStatus::Displaced
            | GroupCommitStatus::Off => self.last.group_commit.clone(),
        };
        CheckpointReport {
            id: report.id,
            status: "completed".to_owned(),
            completed_at: Some(self.last.completed_at),
            group_commit,
            phases: self.last.phases,
            failure: None,
        }
    }

    /// What the end of the run makes of the newest checkpoint's commit if it is still open.
    fn commit_without_answer(&self) -> GroupCommit {
        let error = if self.commits.in_flight() == Some(self.last.id) {
            "no answer came before the job ended; it may still take effect"
        } else {
            "the job ended before it was sent"
        };
        GroupCommit {
            status: GroupCommitStatus::Failed,
            error: Some(error.to_owned()),
        }
    }

    /// The history must not show a commit as under way for ever.
    async fn note_open_commit(&self) {
        if self.last.group_commit.status != GroupCommitStatus::Pending || self.is_fenced {
            return;
        }
        let (id, phases, outcome) = (
            self.last.id,
            &self.last.phases,
            self.commit_without_answer(),
        );
        let noted = self
            .run
            .store
            .record_outcome(&self.run.lease, id, phases, &outcome);
        if let Ok(Err(error)) = tokio::time::timeout(LAST_NOTES, noted).await {
            tracing::debug!(%error, "the open commit could not be noted");
        }
    }

    /// Offsets given to the sink after the newest completed checkpoint.
    fn unsaved_offsets(&self) -> i64 {
        let positions = self.partitions.iter().filter_map(|(partition, state)| {
            let live = state.live.as_ref()?.get()?;
            let saved = self.last_offsets.get(partition)?;
            Some(live.distance_from(*saved).max(0))
        });
        positions.sum()
    }
}
