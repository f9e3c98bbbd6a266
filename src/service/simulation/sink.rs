//! Models of two targets: one that keeps progress beside its rows and takes each record once, and one that only takes.
//!
//! The first follows `src/sinks/postgres`: a claim with an epoch and a number is the fence, a transaction moves the progress
//! from where its writer knows it to behind its rows, and one whose outcome is not known is sent again: the progress tells
//! whether it took place.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;

use super::{
    broker::partition,
    world::{Defect, Peer, ServerId, State, World},
};
use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkWriter},
    },
    model::{
        ids::{CheckpointId, LeaseEpoch},
        offset::{Offset, PartitionOffsets},
        record::RecordBatch,
        resolver::{SinkPosition, SinkProgress},
        topic::TopicPartition,
    },
};

/// The rows and what is kept beside them.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Epoch and number.
    claim: (i64, i64),
    pub(super) progress: SinkProgress,
    /// Record offsets by partition in the order in which they came, each with the decision under which it was read.
    pub(super) rows: BTreeMap<i32, Vec<(i64, CheckpointId)>>,
}

/// A partition's part of a transaction.
#[derive(Debug, Clone)]
struct Step {
    from: SinkPosition,
    to: Offset,
    rows: Vec<i64>,
}

type Steps = BTreeMap<TopicPartition, Step>;

/// What a model sink is, and who uses it.
#[derive(Clone)]
pub(super) struct ModelSink {
    pub(super) world: Arc<World>,
    pub(super) server: ServerId,
    pub(super) once: bool,
    /// By the last `recover`.
    claim: Arc<Mutex<(i64, i64)>>,
}

impl ModelSink {
    pub(super) fn new(world: &Arc<World>, server: ServerId, once: bool) -> Self {
        Self {
            world: Arc::clone(world),
            server,
            once,
            claim: Arc::default(),
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        effect: impl FnOnce(&mut State) -> Result<T, SinkError> + Send + 'static,
    ) -> Result<T, SinkError> {
        let answer = self.world.call(self.server, Peer::Sink, effect).await;
        answer.unwrap_or_else(|| Err(SinkError::away("no answer")))
    }
}

#[async_trait]
impl Sink for ModelSink {
    async fn progress(&self) -> Result<SinkProgress, SinkError> {
        self.ask(|state| Ok(state.target.progress.clone())).await
    }

    async fn recover(&self, epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        let epoch = epoch.0;
        if !self.once {
            *self.claim.lock().unwrap() = (epoch, 0);
            return Ok(SinkProgress::new());
        }
        let (claim, progress) = self
            .ask(move |state| {
                let (known, number) = state.target.claim;
                if known > epoch {
                    return Err(SinkError::fenced("claimed under a newer epoch"));
                }
                state.target.claim = (epoch, number + 1);
                state
                    .trace
                    .note(format_args!("sink is claimed by e{epoch}, {}", number + 1));
                Ok((state.target.claim, state.target.progress.clone()))
            })
            .await?;
        *self.claim.lock().unwrap() = claim;
        Ok(progress)
    }

    async fn writer(&self, _subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        self.ask(|_| Ok(())).await?;
        Ok(Box::new(ModelWriter {
            sink: self.clone(),
            claim: *self.claim.lock().unwrap(),
            stands: SinkProgress::new(),
            read: SinkProgress::new(),
            buffer: BTreeMap::new(),
            open: None,
        }))
    }

    async fn forget(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn identity(&self) -> String {
        "model".to_owned()
    }

    fn has_fence(&self) -> bool {
        self.once
    }
}

struct ModelWriter {
    sink: ModelSink,
    claim: (i64, i64),
    /// What the target has, as far as this writer knows.
    stands: SinkProgress,
    /// Behind everything that was given to it.
    read: SinkProgress,
    /// Given and not sent.
    buffer: BTreeMap<TopicPartition, Vec<i64>>,
    /// Sent, and not known whether it took place.
    open: Option<Steps>,
}

impl ModelWriter {
    /// Sends what was sent before again until it is known to have taken place.
    async fn settle(&mut self) -> Result<(), SinkError> {
        let Some(steps) = self.open.clone() else {
            return Ok(());
        };
        let (claim, once) = (self.claim, self.sink.once);
        let sent = steps.clone();
        self.sink
            .ask(move |state| state.apply(claim, once, &sent))
            .await?;
        for (partition, step) in steps {
            if let Some(stands) = self.stands.get_mut(&partition) {
                stands.next_offset = step.to;
            }
        }
        self.open = None;
        Ok(())
    }

    /// Sends what is in memory, and moves partitions up to what was read of them.
    async fn flush(&mut self, to: &PartitionOffsets) -> Result<(), SinkError> {
        self.settle().await?;
        let mut steps = Steps::new();
        for (partition, from) in &self.stands {
            let rows = self.buffer.remove(partition).unwrap_or_default();
            let to = to.get(partition).copied().unwrap_or(from.next_offset);
            let to = rows
                .last()
                .and_then(|last| Offset::after(*last))
                .map_or(to, |behind| behind.max(to));
            if to != from.next_offset || !rows.is_empty() {
                let from = *from;
                steps.insert(partition.clone(), Step { from, to, rows });
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        self.open = Some(steps);
        self.settle().await
    }

    fn held(&self) -> usize {
        self.buffer.values().map(Vec::len).sum()
    }
}

#[async_trait]
impl SinkWriter for ModelWriter {
    async fn assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        let (claim, once) = (self.claim, self.sink.once);
        let told = positions.to_vec();
        // What was read under another decision goes first.
        self.flush(&PartitionOffsets::new()).await?;
        if once {
            self.sink
                .ask(move |state| state.note_begin(claim, &told))
                .await?;
        }
        self.stands.extend(positions.iter().cloned());
        self.read.extend(positions.iter().cloned());
        Ok(())
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), SinkError> {
        self.settle().await?;
        let mut given: Vec<(TopicPartition, i64)> = Vec::new();
        let mut read = self.read.clone();
        {
            let mut state = self.sink.world.state();
            for run in batch.runs() {
                for record in batch.records_of(run) {
                    let at = record.record_offset;
                    let stands = read.get(&*run.partition).copied();
                    state.judge_record(self.claim.0, run.partition.partition, at, stands);
                    if let Some(read) = read.get_mut(&*run.partition) {
                        read.next_offset = Offset::after(at).unwrap();
                    }
                    given.push(((*run.partition).clone(), at));
                }
            }
        }
        if !self.sink.once {
            // Nothing of it is taken when the answer is lost, as far as the writer knows; the target may know better.
            let (claim, rows) = (self.claim, given.clone());
            let ids = self.stands.clone();
            let by = move |partition: &TopicPartition| {
                let id = ids.get(partition).map(|stands| stands.position_id);
                id.unwrap_or(CheckpointId(0))
            };
            let pairs: Vec<(i32, i64, CheckpointId)> = rows
                .iter()
                .map(|(partition, at)| (partition.partition, *at, by(partition)))
                .collect();
            self.sink.world.state().judge_repeats(claim.0, &pairs);
            self.sink
                .ask(move |state| {
                    for (number, at, id) in pairs {
                        state.judge_taken(number, at, id);
                        state.target.rows.entry(number).or_default().push((at, id));
                    }
                    Ok(())
                })
                .await?;
            self.read = read;
            return Ok(());
        }
        self.read = read;
        for (partition, at) in given {
            self.buffer.entry(partition).or_default().push(at);
        }
        let is_full = {
            let mut state = self.sink.world.state();
            self.held() >= 24 || state.happens(150)
        };
        if is_full {
            // It was taken: what the target says of it is settled later.
            match self.flush(&PartitionOffsets::new()).await {
                Err(error) if error.class == crate::engine::error::ErrorClass::Deterministic => {
                    return Err(error);
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    async fn prepare(
        &mut self,
        checkpoint: CheckpointId,
        positions: &PartitionOffsets,
    ) -> Result<(), SinkError> {
        {
            let mut state = self.sink.world.state();
            for (partition, to) in positions {
                let read = self.read.get(partition).copied();
                state.judge_barrier(checkpoint, partition.partition, *to, read);
            }
            if state.has(Defect::BarrierBeforeFlush) {
                return Ok(());
            }
        }
        if !self.sink.once {
            return Ok(());
        }
        self.flush(positions).await
    }

    async fn abort(&mut self) {
        self.buffer.clear();
        self.open = None;
    }

    async fn close(&mut self) {}
}

impl State {
    fn check_claim(&self, claim: (i64, i64)) -> Result<(), SinkError> {
        if self.target.claim == claim || self.has(Defect::SinkWithoutFence) {
            return Ok(());
        }
        Err(SinkError::fenced("the target has a newer claim"))
    }

    fn note_begin(
        &mut self,
        claim: (i64, i64),
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        self.check_claim(claim)?;
        for (partition, begins) in positions {
            let found = self.target.progress.get(partition).copied();
            match found {
                Some(found) if found == *begins => {}
                // One that arrives when its writer has long gone on; a run that hears it ends, and that is judged.
                Some(found) if found.position_id >= begins.position_id => {
                    return Err(SinkError::refused("the progress was changed"));
                }
                Some(_) | None => {
                    self.target.progress.insert(partition.clone(), *begins);
                }
            }
        }
        Ok(())
    }

    /// One transaction.
    fn apply(&mut self, claim: (i64, i64), once: bool, steps: &Steps) -> Result<(), SinkError> {
        let epoch = claim.0;
        if once {
            self.check_claim(claim)?;
            let stands = |state: &Self, position: fn(&Step) -> Offset| {
                steps.iter().all(|(partition, step)| {
                    let found = state.target.progress.get(partition);
                    found.is_some_and(|found| {
                        found.position_id == step.from.position_id
                            && found.next_offset == position(step)
                    })
                })
            };
            let is_before = stands(self, |step| step.from.next_offset);
            if !is_before && stands(self, |step| step.to) {
                self.trace
                    .note(format_args!("sink has the transaction of e{epoch} already"));
                return Ok(());
            }
            if !is_before && !self.has(Defect::SinkWithoutFence) {
                // One that arrives after its own writer went on; or nobody should be able to come here.
                self.trace
                    .note(format_args!("sink refuses a late transaction of e{epoch}"));
                return Err(SinkError::refused("the progress was changed"));
            }
        }
        for (at, step) in steps {
            let number = at.partition;
            self.trace.note(format_args!(
                "sink takes e{epoch} {number}: {}..{} {:?}",
                step.from.next_offset, step.to, step.rows
            ));
            self.judge_step(number, step.from, step.to, &step.rows);
            let rows = self.target.rows.entry(number).or_default();
            rows.extend(step.rows.iter().map(|row| (*row, step.from.position_id)));
            let moved = SinkPosition {
                next_offset: step.to,
                position_id: step.from.position_id,
            };
            self.target.progress.insert(partition(number), moved);
        }
        Ok(())
    }
}
