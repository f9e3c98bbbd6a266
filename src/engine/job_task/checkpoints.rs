//! Checkpoints and commits: what the coordinator decides is carried out here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{Background, JobTask, millis, waiters::failed_report};
use crate::{
    crash_point::CrashPoint,
    engine::{
        checkpoint_coordinator::{CoordinatorAction, CoordinatorEvent},
        error::{ErrorClass, JobError, KafkaError, StoreError},
        fetcher::LivePosition,
        group_commits::{self, PendingCommit},
        subtask::{Activity, Barrier, NewPartition, PartitionChange, Prepared},
    },
    model::{
        checkpoint::{
            Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
            FailedCheckpoint, GroupCommit, GroupCommitStatus,
        },
        code::Code,
        ids::CheckpointId,
        job_status::CheckpointSummary,
        offset::{Offset, PartitionOffsets},
        topic::TopicPartition,
        views::CheckpointReport,
    },
};

/// How often unchanged positions are confirmed in the store and committed again, because group offsets of a consumer that
/// was assigned expire from the last commit.
const CONFIRM_PERIOD: Duration = Duration::from_secs(30);
/// How long the end of a stop waits for the last commit to the group, within the stop's own time.
const FINAL_COMMIT: Duration = Duration::from_secs(10);
/// What it waits at least, even if the checkpoint has used up the stop's time: a commit usually takes milliseconds.
const FINAL_COMMIT_AT_LEAST: Duration = Duration::from_secs(1);
/// Most notes about checkpoints that wait for a store that is away. Further ones are left out: checkpoints do not need them.
const OPEN_NOTES: usize = 32;

/// The attempt under way.
pub(super) struct Attempt {
    pub(super) id: CheckpointId,
    pub(super) kind: CheckpointKind,
    pub(super) started_at: DateTime<Utc>,
    pub(super) prepared: Vec<Prepared>,
    /// What was sent to the store.
    pub(super) checkpoint: Option<Checkpoint>,
    /// Partitions whose positions were decided when the barrier was sent. Later decisions are for the next one: their
    /// subtasks may have answered before they left the partition.
    pub(super) decided: BTreeSet<TopicPartition>,
    /// The write that sent it.
    pub(super) store_write: Option<u64>,
    /// When it was sent.
    pub(super) store_began: Option<Instant>,
}

impl Attempt {
    /// What the phases took until now, of one that the store has not answered: that one's is not over.
    pub(super) fn phases_until(&self, now: Instant) -> CheckpointPhases {
        let waited = |began: Instant| millis(now.saturating_duration_since(began));
        CheckpointPhases {
            store_ms: self.store_began.map(waited),
            ..self.phases()
        }
    }

    /// What the phases took until now: the slowest subtask counts.
    fn phases(&self) -> CheckpointPhases {
        let slowest =
            |of: fn(&Prepared) -> Duration| self.prepared.iter().map(of).max().map(millis);
        CheckpointPhases {
            barrier_ms: slowest(|prepared| prepared.barrier),
            sink_flush_ms: slowest(|prepared| prepared.flush),
            ..CheckpointPhases::default()
        }
    }
}

impl JobTask {
    // --- checkpoints -------------------------------------------------------------------------------------------------

    pub(super) fn coordinate(&mut self, event: CoordinatorEvent) {
        let actions = self.coordinator.on(event, Instant::now());
        self.carry_out(actions);
    }

    pub(super) fn carry_out(&mut self, actions: Vec<CoordinatorAction>) {
        for action in actions {
            match action {
                CoordinatorAction::Due => self.on_due(),
                CoordinatorAction::SendBarrier { id, kind } => self.send_barrier(id, kind),
                CoordinatorAction::Store { id } => self.store(id),
                CoordinatorAction::Complete { id } => self.completed(id),
                CoordinatorAction::Fail { id, failure } => self.failed(id, failure),
            }
        }
    }

    /// A periodic checkpoint is due. Positions that have not moved write no row: the newest checkpoint says the same.
    pub(super) fn on_due(&mut self) {
        let now = Instant::now();
        let moved = self.live_offsets() != self.last_offsets;
        if moved || self.commits_start || !self.pending.resolved().is_empty() {
            let actions = self.coordinator.begin_due(now);
            return self.carry_out(actions);
        }
        let commit_is_open = self.commits.counters.last_error.is_some();
        let is_old = self.confirmed.elapsed() >= CONFIRM_PERIOD || commit_is_open;
        if is_old && self.keeps_none() {
            // Nothing but the group says where the next start begins: a former owner must not even repeat what it said.
            let actions = self.coordinator.begin_due(now);
            return self.carry_out(actions);
        }
        self.coordinator.skipped(now);
        if !is_old {
            return;
        }
        self.confirmed = now;
        self.last.confirmed_at = self.run.clock.now();
        let (store, lease, id, at) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.last.id,
            self.last.confirmed_at,
        );
        self.note(async move { store.confirm(&lease, id, at).await });
        if !self.commits.is_busy() {
            self.offer_commit(id, self.last_offsets.clone());
        }
    }

    pub(super) fn live_offsets(&self) -> PartitionOffsets {
        let live = self.partitions.iter().filter_map(|(partition, state)| {
            Some((partition.clone(), state.live.as_ref()?.get()?))
        });
        live.collect()
    }

    pub(super) fn send_barrier(&mut self, id: CheckpointId, kind: CheckpointKind) {
        let queued = std::mem::take(&mut self.queued_waiters);
        self.waiters
            .extend(queued.into_iter().map(|waiter| waiter.reply));
        let mut insist_until = None;
        if let Some(stopping) = self
            .stopping
            .as_mut()
            .filter(|stopping| stopping.kind == kind)
        {
            stopping.attempt.get_or_insert(id);
            insist_until = Some(stopping.insist_until);
        }
        self.attempt = Some(Attempt {
            id,
            kind,
            started_at: self.run.clock.now(),
            prepared: Vec::new(),
            decided: self.pending.resolved().keys().cloned().collect(),
            checkpoint: None,
            store_write: None,
            store_began: None,
        });
        let barrier = Barrier {
            id,
            sent_at: Instant::now(),
            insist_until,
        };
        for subtask in &self.subtasks {
            subtask.barrier.send_replace(Some(barrier));
        }
        // Nobody may find a checkpoint in the store that the job does not know of.
        self.publish();
    }

    pub(super) fn store(&mut self, id: CheckpointId) {
        let decides = self.attempt.as_ref().and_then(|attempt| {
            if self.skips_a_record(&attempt.decided) {
                return Some(CheckpointKind::Skip);
            }
            let moves = self.moves_a_position(&attempt.decided);
            moves.then_some(CheckpointKind::Reset)
        });
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.id == id) else {
            return;
        };
        let mut positions: BTreeMap<TopicPartition, CheckpointPosition> = BTreeMap::new();
        for (partition, state) in &mut self.partitions {
            let snapshot = attempt
                .prepared
                .iter()
                .find_map(|prepared| prepared.positions.get(partition));
            let decided = self.pending.resolved().get(partition);
            let decided = decided.filter(|_| attempt.decided.contains(partition));
            if let Some(decided) = decided {
                // This checkpoint is the one that decides the position, whatever a subtask knows of a parked partition.
                state.position_id = decided.position_id.unwrap_or(id);
                state.topic_id.clone_from(&decided.topic_id);
                state.reason = decided.reason.or(state.reason);
            }
            // One that goes on where it stood: a batch of it may have been under way when it was left.
            let moves = decided.filter(|decided| decided.position_id.is_none());
            // A partition that a subtask does not have yet keeps what is stored of it.
            let next_offset = moves
                .map(|decided| decided.offset)
                .or_else(|| snapshot.copied())
                .or_else(|| decided.map(|decided| decided.offset))
                .or_else(|| self.last_offsets.get(partition).copied());
            if let (Some(_), Some(offset)) = (decided, next_offset) {
                self.pending.send(partition, offset, id);
            }
            if next_offset.is_none() && !state.by_mode {
                // Nothing is known of it, and the next start finds it as new as it is.
                continue;
            }
            let (position_id, topic_id) = (state.position_id, state.topic_id.clone());
            positions.insert(
                partition.clone(),
                CheckpointPosition {
                    next_offset,
                    position_id,
                    topic_id,
                },
            );
        }
        positions.extend(self.kept.clone());
        if let Some(kind) = decides.filter(|_| attempt.kind == CheckpointKind::Periodic) {
            attempt.kind = kind;
        }
        let checkpoint = Checkpoint {
            id,
            kind: attempt.kind,
            epoch: self.run.lease.epoch,
            started_at: attempt.started_at,
            completed_at: self.run.clock.now(),
            phases: attempt.phases(),
            has_output: self.output_before
                || attempt.prepared.iter().any(|prepared| prepared.has_output),
            sink_identity: self.run.sink.identity(),
            positions,
        };
        attempt.checkpoint = Some(checkpoint.clone());
        let (store, lease, write) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.store_writes.begin(),
        );
        attempt.store_write = Some(write.key());
        let began = Instant::now();
        attempt.store_began = Some(began);
        CrashPoint::BeforeCheckpointStored.reached();
        self.background.spawn(async move {
            let outcome = write
                .until_known(|| store.complete(&lease, &checkpoint))
                .await;
            if outcome.is_ok() {
                CrashPoint::CheckpointStored.reached();
            }
            Background::Stored {
                id,
                outcome,
                took: began.elapsed(),
            }
        });
    }

    pub(super) fn on_stored(
        &mut self,
        id: CheckpointId,
        outcome: Result<(), StoreError>,
        took: Duration,
    ) {
        match outcome {
            Ok(()) => {
                if let Some(checkpoint) = self
                    .attempt
                    .as_mut()
                    .and_then(|attempt| attempt.checkpoint.as_mut())
                {
                    checkpoint.phases.store_ms = Some(millis(took));
                }
                self.coordinate(CoordinatorEvent::Stored { id });
            }
            Err(error) => self.fail(store_failure(error)),
        }
    }

    pub(super) fn completed(&mut self, id: CheckpointId) {
        let attempt = self.attempt.take().filter(|attempt| attempt.id == id);
        let Some(checkpoint) = attempt.and_then(|attempt| attempt.checkpoint) else {
            return;
        };
        self.consecutive_failures = 0;
        self.tell_completed(id);
        self.commits_start = false;
        self.output_before = false;
        self.confirmed = Instant::now();
        self.last_offsets = checkpoint.offsets();
        // What is kept of partitions that the spec does not read never moves, and the group does not hear of it.
        self.last_offsets
            .retain(|partition, _| self.partitions.contains_key(partition));
        // As the store notes it: the next checkpoint tells the group.
        let is_reported = checkpoint.kind != CheckpointKind::Skip || self.keeps_none();
        let commits = self.commits_to_group() && is_reported;
        let group_commit = if commits {
            GroupCommit::PENDING
        } else {
            GroupCommit::OFF
        };
        self.last = CheckpointSummary {
            id,
            kind: checkpoint.kind,
            completed_at: checkpoint.completed_at,
            confirmed_at: checkpoint.completed_at,
            group_commit: group_commit.clone(),
            phases: checkpoint.phases,
        };
        for (partition, offset) in self.pending.stored(id) {
            self.assign(partition, offset);
        }
        self.answer_skips(id);
        let report = CheckpointReport {
            id,
            status: "completed".to_owned(),
            completed_at: Some(checkpoint.completed_at),
            group_commit,
            phases: checkpoint.phases,
            failure: None,
        };
        let waiters = std::mem::take(&mut self.waiters);
        if let Some(stopping) = self
            .stopping
            .as_mut()
            .filter(|stopping| stopping.attempt == Some(id))
        {
            stopping.report = Some(report.clone());
            let now = Instant::now();
            stopping.deadline = stopping
                .deadline
                .clamp(now + FINAL_COMMIT_AT_LEAST, now + FINAL_COMMIT);
        }
        self.awaiting_commit.insert(id, (report, waiters));
        if commits {
            self.offer_commit(id, self.last_offsets.clone());
        } else {
            self.commit_is_settled(id, &GroupCommit::OFF, None);
        }
        self.publish();
    }

    pub(super) fn assign(&mut self, partition: TopicPartition, offset: Offset) {
        let Some(state) = self.partitions.get_mut(&partition) else {
            return;
        };
        let live = LivePosition::at(offset);
        let position_id = state.position_id;
        state.live = Some(Arc::clone(&live));
        let subtask = state.subtask;
        tracing::info!(kafka.topic = %partition.topic, kafka.partition = partition.partition, kafka.offset = offset.get(), "the position is stored: the partition begins");
        self.replaced.remove(&partition);
        self.goes_on(&partition, offset);
        let begins = PartitionChange::Begin(NewPartition {
            assignment: (partition, offset),
            position_id,
            live,
        });
        self.tell_subtask(subtask, begins);
    }

    pub(super) fn failed(&mut self, id: CheckpointId, mut failure: CheckpointFailure) {
        let Some(attempt) = self.attempt.take().filter(|attempt| attempt.id == id) else {
            return;
        };
        self.name_the_slow_part(&mut failure);
        if self.keeps_none() {
            tracing::warn!(
                code = failure.code,
                phase = failure.phase,
                failure.summary,
                "the sink did not get everything durable; nothing is committed"
            );
            if self.commits_to_group() {
                self.commits.gave_up(&failure.summary);
            }
        } else {
            tracing::warn!(checkpoint.id = %id, code = failure.code, phase = failure.phase, failure.summary, "a checkpoint failed");
        }
        self.consecutive_failures += 1;
        self.output_before |= attempt.prepared.iter().any(|prepared| prepared.has_output);
        self.last_failed = Some((id, failure.clone()));
        let phases = attempt.phases();
        let report = failed_report(id, phases, failure.clone());
        for waiter in std::mem::take(&mut self.waiters) {
            // A caller that went away loses only the answer.
            let _unheard = waiter.send(report.clone());
        }
        let failed = FailedCheckpoint {
            id,
            kind: attempt.kind,
            epoch: self.run.lease.epoch,
            started_at: attempt.started_at,
            failed_at: self.run.clock.now(),
            phases,
            failure,
        };
        self.note_failure(failed);
        if self
            .stopping
            .as_ref()
            .is_some_and(|stopping| stopping.attempt == Some(id))
        {
            self.stop_failed(report);
        }
        self.publish();
    }

    pub(super) fn note_failure(&mut self, failed: FailedCheckpoint) {
        self.tell_failed(&failed);
        let (store, lease, write) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.store_writes.begin(),
        );
        self.note(write.until_known(move || {
            let (store, failed) = (Arc::clone(&store), failed.clone());
            async move { store.record_failure(&lease, &failed).await }
        }));
    }

    /// Tells the store something that it can do without.
    pub(super) fn note(
        &mut self,
        note: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        if self.is_fenced {
            return;
        }
        if self.open_notes >= OPEN_NOTES {
            tracing::debug!("the store is away: a note about a checkpoint is left out");
            return;
        }
        self.open_notes += 1;
        self.background
            .spawn(async move { Background::Noted(note.await) });
    }

    pub(super) fn name_the_slow_part(&self, failure: &mut CheckpointFailure) {
        let (mut flushing, mut sink_is_slow, mut sink_said) = (false, false, None);
        for slow in &mut failure.slowest {
            let Some(subtask) = self.subtasks.get(slow.subtask as usize) else {
                continue;
            };
            if !slow.at.is_empty() {
                continue;
            }
            let activity = subtask.view.activity();
            slow.at = activity.name().to_owned();
            flushing |= activity == Activity::SinkFlush;
            sink_is_slow |= activity.waits_for_sink();
            sink_said = sink_said.or_else(|| subtask.view.sink_problem());
        }
        if flushing {
            failure.phase = "sink_flush".to_owned();
        }
        if sink_is_slow {
            failure
                .summary
                .push_str("; the sink had not taken the records");
        }
        if let Some(said) = sink_said {
            failure.summary.push_str(&format!(": {said}"));
        }
    }

    pub(super) fn on_noted(&mut self, outcome: Result<(), StoreError>) {
        self.open_notes -= 1;
        match outcome {
            Ok(()) => {}
            // History and housekeeping: the next one is as good.
            Err(StoreError::Unavailable(detail)) => {
                tracing::debug!(detail, "the store does not answer");
            }
            Err(error) => self.fail(store_failure(error)),
        }
    }

    pub(super) fn commits_to_group(&self) -> bool {
        self.run.spec.commit_mode().commits()
    }

    /// Whether the job takes no checkpoints: what is called one here is kept nowhere.
    pub(super) fn keeps_none(&self) -> bool {
        self.run.spec.checkpointing().is_off()
    }

    /// What may be shown of a checkpoint: nothing in a job that takes none.
    pub(super) fn if_kept<T>(&self, of_checkpoint: T) -> Option<T> {
        (!self.keeps_none()).then_some(of_checkpoint)
    }

    pub(super) fn offer_commit(&mut self, id: CheckpointId, offsets: PartitionOffsets) {
        if !self.commits_to_group() {
            return;
        }
        let offsets = self.committable(offsets);
        if offsets.is_empty() {
            return self.commit_is_settled(id, &GroupCommit::OFF, None);
        }
        let offered = self.commits.offer(PendingCommit { id, offsets });
        if let Some(displaced) = offered.displaced {
            let outcome = GroupCommit {
                status: GroupCommitStatus::Displaced,
                error: None,
            };
            self.commit_is_settled(displaced, &outcome, None);
        }
        if let Some(commit) = offered.send {
            self.send_commit(commit);
        }
    }

    pub(super) fn send_commit(&mut self, commit: PendingCommit) {
        let Some(committer) = self.committer.clone() else {
            let too_late = KafkaError {
                operation: "commit to the group".to_owned(),
                detail: "the job ended before it was sent".to_owned(),
                code: Code::KafkaError,
                class: ErrorClass::Infrastructure,
            };
            return self.on_committed(commit.id, &Err(too_late), Duration::ZERO);
        };
        let (install, job) = (self.run.install, &self.run.name);
        let note = if self.keeps_none() {
            group_commits::periodic_note(install, job)
        } else {
            group_commits::note(install, job, commit.id)
        };
        let until = *self.run.lease_until.borrow();
        self.threads.spawn_blocking(&mut self.background, move || {
            let began = Instant::now();
            CrashPoint::BeforeGroupCommitted.reached();
            let outcome = group_commits::send(&committer, &commit, &note, until);
            if outcome.is_ok() {
                CrashPoint::GroupCommitted.reached();
            }
            Background::Committed {
                id: commit.id,
                outcome,
                took: began.elapsed(),
            }
        });
    }

    pub(super) fn on_committed(
        &mut self,
        id: CheckpointId,
        outcome: &Result<(), KafkaError>,
        took: Duration,
    ) {
        if let Err(error) = outcome {
            if self.keeps_none() {
                tracing::warn!(error = %error, "the commit to the group failed");
            } else {
                tracing::warn!(checkpoint.id = %id, error = %error, "the commit to the group failed; the checkpoint stands");
            }
        }
        self.commit_was_refused =
            matches!(outcome, Err(error) if error.class == ErrorClass::Deterministic);
        let (group_commit, next) = self.commits.ended(id, outcome, self.run.clock.now());
        self.commit_is_settled(id, &group_commit, Some(took));
        if let Some(commit) = next {
            self.send_commit(commit);
        }
        self.publish();
    }

    /// Notes what became of a checkpoint's commit and answers those who waited for it.
    pub(super) fn commit_is_settled(
        &mut self,
        id: CheckpointId,
        group_commit: &GroupCommit,
        took: Option<Duration>,
    ) {
        if self.last.id == id {
            let changed = self.last.group_commit.status != group_commit.status;
            self.last.group_commit = group_commit.clone();
            self.last.phases.group_commit_ms = took.map(millis);
            // Offsets that were committed again, after the checkpoint's own commit had failed.
            if changed && !self.awaiting_commit.contains_key(&id) {
                self.note_outcome(id, self.last.phases, group_commit.clone());
            }
        }
        let Some((mut report, waiters)) = self.awaiting_commit.remove(&id) else {
            return;
        };
        report.group_commit = group_commit.clone();
        report.phases.group_commit_ms = took.map(millis);
        for waiter in waiters {
            // A caller that went away loses only the answer.
            let _unheard = waiter.send(report.clone());
        }
        self.note_outcome(id, report.phases, group_commit.clone());
        let is_last_of_stop = self
            .stopping
            .as_ref()
            .and_then(|stopping| stopping.report.as_ref())
            .is_some_and(|last| last.id == id);
        if is_last_of_stop && !self.commits_again(&report) {
            self.stopped(Some(report));
        }
    }

    fn note_outcome(&mut self, id: CheckpointId, phases: CheckpointPhases, commit: GroupCommit) {
        let (store, lease, write) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.store_writes.begin(),
        );
        self.note(write.until_known(move || {
            let (store, commit) = (Arc::clone(&store), commit.clone());
            async move { store.record_outcome(&lease, id, &phases, &commit).await }
        }));
    }
}

pub(super) fn store_failure(error: StoreError) -> JobError {
    match error {
        StoreError::Fenced => JobError::Fenced,
        StoreError::NoSuchJob => JobError::Store(error.to_string()),
        StoreError::Unavailable(detail) | StoreError::Refused(detail) => JobError::Store(detail),
    }
}
