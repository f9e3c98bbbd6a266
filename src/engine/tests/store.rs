//! A store in memory whose answers a test chooses.

use std::{collections::BTreeMap, sync::Mutex};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::Pulse;
use crate::{
    engine::{
        error::StoreError,
        ports::{CheckpointStore, JobLease},
    },
    model::{
        CheckpointId, TopicPartition,
        checkpoint::{
            Checkpoint, CheckpointPhases, FailedCheckpoint, GroupCommit, GroupCommitStatus,
        },
        event::{EventKind, HistoryEntry},
    },
};

/// How the store answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Yes,
    /// Away before anything took effect.
    AwayBefore,
    /// The answer gets lost: the write took effect.
    AwayAfter,
    /// Another owner has the lease.
    Fenced,
    /// Does not answer until that changes.
    Slow,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    Complete,
    Failure,
    Outcome,
    Confirm,
    Event,
    Hold,
}

struct State {
    completed: Vec<Checkpoint>,
    failed: Vec<FailedCheckpoint>,
    outcomes: BTreeMap<CheckpointId, GroupCommitStatus>,
    confirmed: usize,
    events: Vec<(EventKind, serde_json::Value)>,
    answers: BTreeMap<Call, Answers>,
    calls: BTreeMap<Call, usize>,
    was_fenced: bool,
    keeps_none: bool,
}

pub(super) struct MemoryStore {
    state: Mutex<State>,
    pulse: Pulse,
}

impl MemoryStore {
    pub(super) fn new(pulse: Pulse) -> Self {
        Self {
            state: Mutex::new(State {
                completed: Vec::new(),
                failed: Vec::new(),
                outcomes: BTreeMap::new(),
                confirmed: 0,
                events: Vec::new(),
                answers: BTreeMap::new(),
                calls: BTreeMap::new(),
                was_fenced: false,
                keeps_none: false,
            }),
            pulse,
        }
    }

    pub(super) fn begin_with(&self, start: Checkpoint) {
        self.state.lock().unwrap().completed.push(start);
    }

    /// The job takes no checkpoints: nothing but its start is here, and nothing may be brought.
    pub(super) fn keep_none(&self) {
        self.state.lock().unwrap().keeps_none = true;
    }

    /// Whether what is kept here says where the job stands.
    pub(super) fn knows_the_job(&self) -> bool {
        !self.state.lock().unwrap().keeps_none
    }

    /// How every call is answered from now on.
    pub(super) fn answer(&self, answers: Answers) {
        for call in [
            Call::Complete,
            Call::Failure,
            Call::Outcome,
            Call::Confirm,
            Call::Event,
            Call::Hold,
        ] {
            self.answer_to(call, answers);
        }
    }

    /// How one kind of call is answered from now on.
    pub(super) fn answer_to(&self, call: Call, answers: Answers) {
        self.state.lock().unwrap().answers.insert(call, answers);
        self.pulse.beat();
    }

    /// How many calls of a kind have begun.
    pub(super) fn calls(&self, call: Call) -> usize {
        let state = self.state.lock().unwrap();
        state.calls.get(&call).copied().unwrap_or_default()
    }

    /// Completed checkpoints, with the one of the start.
    pub(super) fn completed(&self) -> Vec<Checkpoint> {
        self.state.lock().unwrap().completed.clone()
    }

    pub(super) fn newest(&self) -> Checkpoint {
        let state = self.state.lock().unwrap();
        state.completed.last().unwrap().clone()
    }

    pub(super) fn failed(&self) -> Vec<FailedCheckpoint> {
        self.state.lock().unwrap().failed.clone()
    }

    /// Entries of the history, in order.
    pub(super) fn events(&self) -> Vec<(EventKind, serde_json::Value)> {
        self.state.lock().unwrap().events.clone()
    }

    pub(super) fn outcome(&self, id: CheckpointId) -> Option<GroupCommitStatus> {
        self.state.lock().unwrap().outcomes.get(&id).copied()
    }

    async fn call(&self, call: Call, effect: impl FnOnce(&mut State)) -> Result<(), StoreError> {
        let answers = |state: &State| state.answers.get(&call).copied().unwrap_or(Answers::Yes);
        *self.state.lock().unwrap().calls.entry(call).or_default() += 1;
        self.pulse.beat();
        self.pulse
            .holds(|| answers(&self.state.lock().unwrap()) != Answers::Slow)
            .await;
        let away = || Err(StoreError::Unavailable(format!("{call:?}: no connection")));
        let mut state = self.state.lock().unwrap();
        let answer = answers(&state);
        let outcome = match answer {
            Answers::Yes | Answers::Slow => {
                effect(&mut state);
                Ok(())
            }
            Answers::AwayBefore => away(),
            Answers::AwayAfter => {
                effect(&mut state);
                away()
            }
            Answers::Fenced => {
                if std::mem::replace(&mut state.was_fenced, true) {
                    // I4: what was told so once does not try again.
                    self.pulse.violation(format!("{call:?} by a fenced owner"));
                }
                Err(StoreError::Fenced)
            }
        };
        let must_not_come = state.keeps_none && !matches!(call, Call::Hold | Call::Event);
        drop(state);
        if must_not_come {
            let what = format!("{call:?} of a job without checkpoints");
            self.pulse.violation(what);
        }
        self.pulse.beat();
        outcome
    }

    fn keep(&self, state: &mut State, checkpoint: &Checkpoint) {
        if let Some(kept) = state.completed.iter().find(|kept| kept.id == checkpoint.id) {
            if kept != checkpoint {
                let what = format!("checkpoint {} came again as another", checkpoint.id);
                self.pulse.violation(what);
            }
            return;
        }
        let newest = state.completed.last().unwrap();
        if newest.id >= checkpoint.id {
            let what = format!("checkpoint {} after {}", checkpoint.id, newest.id);
            self.pulse.violation(what);
        }
        // I2: nothing goes back unless that is decided, and nothing is forgotten.
        let now = checkpoint.offsets();
        let is_decided = |partition: &TopicPartition| {
            let position = checkpoint.positions.get(partition);
            position.is_some_and(|position| position.position_id == checkpoint.id)
        };
        for (partition, before) in newest.offsets() {
            if is_decided(&partition) {
                continue;
            }
            if now.get(&partition).is_none_or(|now| *now < before) {
                let now = now.get(&partition);
                let what = format!("{partition} went back from {before} to {now:?}");
                self.pulse.violation(what);
            }
        }
        state.completed.push(checkpoint.clone());
    }
}

#[async_trait]
impl CheckpointStore for MemoryStore {
    async fn hold(&self, _lease: &JobLease) -> Result<(), StoreError> {
        self.call(Call::Hold, |_| {}).await
    }

    async fn complete(&self, _lease: &JobLease, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        self.call(Call::Complete, |state| self.keep(state, checkpoint))
            .await
    }

    async fn record_failure(
        &self,
        _lease: &JobLease,
        attempt: &FailedCheckpoint,
    ) -> Result<(), StoreError> {
        self.call(Call::Failure, |state| state.failed.push(attempt.clone()))
            .await
    }

    async fn confirm(
        &self,
        _lease: &JobLease,
        _id: CheckpointId,
        _at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.call(Call::Confirm, |state| state.confirmed += 1).await
    }

    async fn record_outcome(
        &self,
        _lease: &JobLease,
        id: CheckpointId,
        _phases: &CheckpointPhases,
        group_commit: &GroupCommit,
    ) -> Result<(), StoreError> {
        let status = group_commit.status;
        self.call(Call::Outcome, |state| {
            state.outcomes.insert(id, status);
        })
        .await
    }

    async fn note_events(
        &self,
        _lease: &JobLease,
        entries: &[HistoryEntry],
    ) -> Result<(), StoreError> {
        self.call(Call::Event, |state| {
            let entries = entries.iter().cloned();
            state
                .events
                .extend(entries.map(|entry| (entry.kind, entry.details)));
        })
        .await
    }

    async fn thin(&self, _lease: &JobLease) -> Result<(), StoreError> {
        Ok(())
    }
}
