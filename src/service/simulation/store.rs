//! A model of the store: the rows that a job has there, each statement at once or not at all, behind the fence.
//!
//! It follows `src/store`: `leases.rs` (an incarnation of a server, the job's owner and epoch), `checkpoints.rs` (a number and
//! its epoch name a checkpoint, so a repeated write finds it), `jobs.rs` (states, the one-shot start, the end of a run).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    broker::shown,
    world::{Defect, Peer, ServerId, State, World},
};
use crate::{
    engine::{
        error::StoreError,
        ports::{CheckpointStore, JobLease},
    },
    model::{
        checkpoint::{Checkpoint, CheckpointPhases, FailedCheckpoint, GroupCommit},
        code::Code,
        event::HistoryEntry,
        ids::{CheckpointId, JobUid, LeaseEpoch},
        job_state::{DesiredState, JobState},
        job_status::FailedRecord,
        resolver::RestorableState,
        skip::SkipRequest,
        start::{PendingStart, StartRequest, StopCheckpoint},
        stop_at::BoundedRun,
    },
};

/// What an operator asked for and is not done.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) asked: Asked,
    /// The start's positions are stored: whoever takes it up goes on from them.
    pub(super) stored: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Asked {
    Start(StartRequest),
    Stop(StopCheckpoint, Duration),
    Skip(SkipRequest),
}

/// A life of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Incarnation {
    pub(super) server: ServerId,
    pub(super) life: u64,
}

/// The rows of one job.
pub(super) struct Table {
    /// The newest life of each server, and until when it counts as alive.
    instances: BTreeMap<ServerId, (Incarnation, Instant)>,
    pub(super) epoch: i64,
    pub(super) owner: Option<Incarnation>,
    pub(super) completed: BTreeMap<CheckpointId, Checkpoint>,
    superseded: BTreeSet<CheckpointId>,
    failed: BTreeMap<CheckpointId, i64>,
    pub(super) desired: DesiredState,
    pub(super) state: JobState,
    /// Whether a run was begun and its end is not noted.
    pub(super) is_running: bool,
    pub(super) failure: Option<Code>,
    pub(super) failed_record: Option<FailedRecord>,
    pub(super) pending_start: Option<PendingStart>,
    pub(super) operation: Option<Operation>,
    /// The bounded run, as a start has stored it.
    pub(super) bounded: Option<BoundedRun>,
    /// Epochs that were told that they are over, and when.
    fenced: BTreeMap<i64, Instant>,
    /// How often a server took the job from another one.
    pub(super) takeovers: u64,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            instances: BTreeMap::new(),
            epoch: 0,
            owner: None,
            completed: BTreeMap::new(),
            superseded: BTreeSet::new(),
            failed: BTreeMap::new(),
            desired: DesiredState::Running,
            state: JobState::Stopped,
            is_running: false,
            failure: None,
            failed_record: None,
            pending_start: None,
            operation: None,
            bounded: None,
            fenced: BTreeMap::new(),
            takeovers: 0,
        }
    }
}

/// What a server reads of the job.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) owned_by_other: bool,
    pub(super) desired: DesiredState,
    pub(super) state: JobState,
    pub(super) is_running: bool,
    pub(super) failed_record: Option<FailedRecord>,
    pub(super) pending_start: Option<PendingStart>,
    pub(super) operation: Option<Operation>,
}

/// How a run ends in the store.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    pub(super) state: JobState,
    pub(super) failure: Option<(Code, Option<FailedRecord>)>,
    pub(super) operation: Option<u64>,
    pub(super) desired: Option<DesiredState>,
}

impl Table {
    pub(super) fn newest(&self) -> Option<&Checkpoint> {
        self.completed
            .values()
            .rev()
            .find(|checkpoint| !self.superseded.contains(&checkpoint.id))
    }

    pub(super) fn restorable(&self) -> Option<RestorableState> {
        let newest = self.newest()?;
        let with_output = self.completed.values().rev().find(|known| known.has_output);
        Some(RestorableState {
            id: newest.id,
            positions: newest.positions.clone(),
            sink_identity: newest.sink_identity.clone(),
            newest_output: with_output.map(|known| known.id),
        })
    }

    pub(super) fn next_id(&self) -> CheckpointId {
        let largest = self.completed.keys().chain(self.failed.keys()).max();
        largest.map_or(CheckpointId(1), |id| id.next())
    }

    pub(super) fn is_alive(&self, incarnation: Incarnation) -> bool {
        let known = self.instances.get(&incarnation.server);
        known.is_some_and(|(now, until)| *now == incarnation && *until > Instant::now())
    }

    pub(super) fn claim_instance(&mut self, incarnation: Incarnation, ttl: Duration) {
        let until = Instant::now() + ttl;
        self.instances
            .insert(incarnation.server, (incarnation, until));
    }

    /// `false`: another life has the server's name.
    pub(super) fn renew(&mut self, incarnation: Incarnation, ttl: Duration) -> bool {
        match self.instances.get_mut(&incarnation.server) {
            Some((known, until)) if *known == incarnation => {
                *until = Instant::now() + ttl;
                true
            }
            Some(_) | None => false,
        }
    }

    pub(super) fn release_instance(&mut self, incarnation: Incarnation) {
        if let Some((known, until)) = self.instances.get_mut(&incarnation.server)
            && *known == incarnation
        {
            *until = Instant::now();
        }
    }

    /// `None`: a live other server holds it.
    pub(super) fn take_lease(
        &mut self,
        incarnation: Incarnation,
    ) -> Result<Option<JobLease>, StoreError> {
        let known = self.instances.get(&incarnation.server);
        if known.is_none_or(|(known, _)| *known != incarnation) {
            return Err(StoreError::Fenced);
        }
        let held_by_other = self
            .owner
            .is_some_and(|owner| owner != incarnation && self.is_alive(owner));
        if held_by_other {
            return Ok(None);
        }
        self.takeovers += u64::from(
            self.owner
                .is_some_and(|owner| owner.server != incarnation.server),
        );
        self.epoch += 1;
        self.owner = Some(incarnation);
        Ok(Some(lease(self.epoch)))
    }

    pub(super) fn row(&self, reader: Incarnation) -> Row {
        let owner = self.owner.filter(|owner| owner.server != reader.server);
        Row {
            owned_by_other: owner.is_some_and(|owner| self.is_alive(owner)),
            desired: self.desired,
            state: self.state,
            is_running: self.is_running,
            failed_record: self.failed_record.clone(),
            pending_start: self.pending_start.clone(),
            operation: self.operation.clone(),
        }
    }

    pub(super) fn finish(&mut self, operation: u64) {
        self.operation.take_if(|open| open.id == operation);
    }
}

pub(super) fn lease(epoch: i64) -> JobLease {
    JobLease {
        job: JobUid(uuid::Uuid::nil()),
        epoch: LeaseEpoch(epoch),
    }
}

impl State {
    fn hold(&self, epoch: i64) -> Result<(), StoreError> {
        let is_held = self.store.epoch == epoch && self.store.owner.is_some();
        if is_held || self.has(Defect::StoreWithoutFence) {
            return Ok(());
        }
        Err(StoreError::Fenced)
    }

    /// Keeps a completed checkpoint. `false`: it was kept before.
    fn keep(
        &mut self,
        epoch: i64,
        checkpoint: &Checkpoint,
        begins: bool,
    ) -> Result<bool, StoreError> {
        self.hold(epoch)?;
        assert_eq!(checkpoint.epoch.0, epoch, "a checkpoint of another lease");
        if let Some(kept) = self.store.completed.get(&checkpoint.id) {
            if kept.epoch.0 != epoch {
                return Err(StoreError::Fenced);
            }
            if kept.positions != checkpoint.positions {
                let id = checkpoint.id;
                self.violation(format_args!("I2: checkpoint {id} came again as another"));
            }
            return Ok(false);
        }
        if self.store.failed.contains_key(&checkpoint.id) {
            return Err(StoreError::Refused(
                "it is stored as a failed one already".to_owned(),
            ));
        }
        self.trace.note(format_args!(
            "store keeps {:?} {} e{epoch} {}",
            checkpoint.kind,
            checkpoint.id,
            shown(&checkpoint.offsets())
        ));
        self.judge_checkpoint(checkpoint, begins);
        self.store
            .completed
            .insert(checkpoint.id, checkpoint.clone());
        Ok(true)
    }

    /// A start's checkpoint and everything that becomes true with it.
    pub(super) fn store_start(
        &mut self,
        epoch: i64,
        checkpoint: &Checkpoint,
        consumes: Option<&str>,
        sets_aside: bool,
        operation: Option<u64>,
        bounded: Option<BoundedRun>,
    ) -> Result<(), StoreError> {
        if self.has(Defect::StartNotStored) {
            self.hold(epoch)?;
            self.store.is_running = true;
            self.store.state = JobState::Running;
            return Ok(());
        }
        let is_known = self.store.completed.contains_key(&checkpoint.id);
        if let Some(bounded) = bounded.as_ref().filter(|_| !is_known) {
            self.hold(epoch)?;
            self.judge_ends(checkpoint, bounded);
        }
        if !self.keep(epoch, checkpoint, true)? {
            return Ok(());
        }
        let store = &mut self.store;
        if bounded.is_some() {
            store.bounded = bounded;
        }
        if sets_aside {
            let older = store.completed.keys().filter(|id| **id < checkpoint.id);
            store.superseded.extend(older.copied().collect::<Vec<_>>());
        }
        store
            .pending_start
            .take_if(|pending| Some(pending.id.as_str()) == consumes);
        store.failure = None;
        store.state = JobState::Running;
        store.is_running = true;
        if let Some(open) = &mut store.operation
            && Some(open.id) == operation
        {
            open.stored = true;
        }
        Ok(())
    }

    /// A skip's checkpoint, the end of its operation, and the release, together.
    pub(super) fn end_skip(
        &mut self,
        epoch: i64,
        operation: u64,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<(), StoreError> {
        if self.store.epoch == epoch && self.store.owner.is_none() {
            return Ok(());
        }
        self.hold(epoch)?;
        if let Some(checkpoint) = checkpoint {
            self.keep(epoch, checkpoint, true)?;
            self.store.failure = None;
            self.store.state = JobState::Stopped;
            self.store.is_running = false;
        }
        self.store.owner = None;
        self.store.finish(operation);
        Ok(())
    }

    /// The end of a run: its state, the operation's end and the released lease, together.
    pub(super) fn settle(&mut self, epoch: i64, settled: &Settled) -> Result<(), StoreError> {
        if self.store.epoch == epoch && self.store.owner.is_none() {
            return Ok(());
        }
        self.hold(epoch)?;
        self.trace
            .note(format_args!("store settles e{epoch} {settled:?}"));
        if settled.state == JobState::Finished && self.store.state != JobState::Finished {
            self.judge_finish(epoch);
        }
        let store = &mut self.store;
        if settled.state == JobState::Finished
            && let Some(bounded) = &mut store.bounded
        {
            bounded.finished_at = Some(DateTime::UNIX_EPOCH);
        }
        store.owner = None;
        store.state = settled.state;
        store.is_running = false;
        if let Some((code, record)) = &settled.failure {
            store.failure = Some(*code);
            store.failed_record.clone_from(record);
        }
        if let Some(desired) = settled.desired {
            store.desired = desired;
        }
        if let Some(operation) = settled.operation {
            store.finish(operation);
        }
        Ok(())
    }
}

/// The store as one server sees it.
pub(super) struct ModelStore {
    pub(super) world: Arc<World>,
    pub(super) server: ServerId,
}

impl ModelStore {
    /// Asks for something that needs no lease.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut State) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let answer = self.world.call(self.server, Peer::Store, effect).await;
        answer.unwrap_or_else(|| Err(StoreError::Unavailable("no answer".to_owned())))
    }

    /// Writes something that the lease protects.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        lease: &JobLease,
        effect: impl FnOnce(&mut State, i64) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let epoch = lease.epoch.0;
        let written = self.ask(move |state| {
            let now = state.store.epoch;
            let outcome = effect(state, epoch);
            if outcome.is_ok() && now != epoch {
                state.violation(format_args!(
                    "I4: epoch {epoch} writes while {now} is the owner"
                ));
            }
            outcome
        });
        let outcome = written.await;
        if matches!(outcome, Err(StoreError::Fenced)) {
            let mut state = self.world.state();
            state
                .trace
                .note(format_args!("e{epoch} hears that it is over"));
            state.store.fenced.entry(epoch).or_insert_with(Instant::now);
        }
        outcome
    }
}

impl ModelStore {
    /// A write of a run, which is quiet once it knows that its lease is lost.
    async fn write_of_run(
        &self,
        lease: &JobLease,
        effect: impl FnOnce(&mut State, i64) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let epoch = lease.epoch.0;
        {
            let mut state = self.world.state();
            let told = state.store.fenced.get(&epoch).copied();
            if told.is_some_and(|told| told < Instant::now()) {
                state.violation(format_args!(
                    "I4: the run of epoch {epoch} writes on after it was told that it is over"
                ));
            }
        }
        self.write(lease, effect).await
    }
}

#[async_trait]
impl CheckpointStore for ModelStore {
    async fn complete(&self, lease: &JobLease, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let checkpoint = checkpoint.clone();
        self.write_of_run(lease, move |state, epoch| {
            if state.has(Defect::CommitBeforeStore) {
                state.hold(epoch)?;
                if state.happens(300) {
                    return Ok(());
                }
            }
            state.keep(epoch, &checkpoint, false).map(drop)
        })
        .await
    }

    async fn hold(&self, lease: &JobLease) -> Result<(), StoreError> {
        self.write_of_run(lease, |state, epoch| state.hold(epoch).map(drop))
            .await
    }

    async fn note_events(
        &self,
        lease: &JobLease,
        _entries: &[HistoryEntry],
    ) -> Result<(), StoreError> {
        self.write_of_run(lease, |state, epoch| state.hold(epoch).map(drop))
            .await
    }

    async fn record_failure(
        &self,
        lease: &JobLease,
        attempt: &FailedCheckpoint,
    ) -> Result<(), StoreError> {
        let attempt = attempt.clone();
        self.write_of_run(lease, move |state, epoch| {
            state.hold(epoch)?;
            state.trace.note(format_args!(
                "store notes that {:?} {} failed: {}",
                attempt.kind, attempt.id, attempt.failure.summary
            ));
            state.judge_failed_checkpoint(&attempt);
            if !state.store.completed.contains_key(&attempt.id) {
                state.store.failed.insert(attempt.id, epoch);
            }
            Ok(())
        })
        .await
    }

    async fn confirm(
        &self,
        lease: &JobLease,
        id: CheckpointId,
        _at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write_of_run(lease, move |state, epoch| {
            state.hold(epoch)?;
            state.must_have(id)
        })
        .await
    }

    async fn record_outcome(
        &self,
        lease: &JobLease,
        id: CheckpointId,
        _phases: &CheckpointPhases,
        _group_commit: &GroupCommit,
    ) -> Result<(), StoreError> {
        self.write_of_run(lease, move |state, epoch| {
            state.hold(epoch)?;
            state.must_have(id)
        })
        .await
    }

    async fn thin(&self, lease: &JobLease) -> Result<(), StoreError> {
        self.write_of_run(lease, |state, epoch| state.hold(epoch))
            .await
    }
}

impl State {
    fn must_have(&self, id: CheckpointId) -> Result<(), StoreError> {
        if self.store.completed.contains_key(&id) {
            return Ok(());
        }
        Err(StoreError::Refused(
            "there is no such completed checkpoint".to_owned(),
        ))
    }
}
