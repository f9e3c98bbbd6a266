//! A sink that collects, and that blocks, refuses or crashes where a test says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;

use super::Pulse;
use crate::{
    engine::{
        error::{ErrorClass, SinkError},
        ports::{Sink, SinkWriter},
    },
    model::{
        CheckpointId, LeaseEpoch, PartitionOffsets, TopicPartition,
        job_status::FailedRecord,
        record::RecordBatch,
        resolver::{SinkPosition, SinkProgress},
    },
};

/// Where a writer can be held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Open,
    Assign,
    Write,
    Prepare,
    Abort,
    /// Between two calls.
    Idle,
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    Work,
    Block,
    FailForNow,
    Refuse,
    Panic,
}

#[derive(Default)]
struct State {
    /// By step and subtask; `None` for those that have nothing of their own.
    does: BTreeMap<(Step, Option<u32>), Does>,
    entered: BTreeMap<Step, usize>,
    /// Partition and record offset, in the order in which batches were taken.
    written: Vec<(i32, i64)>,
    /// Positions by partition at the last prepare of each checkpoint.
    prepared: BTreeMap<CheckpointId, BTreeMap<i32, i64>>,
    prepares: BTreeSet<(CheckpointId, u32)>,
    /// The record that is refused, and the batch with it.
    refused: Option<(i32, i64)>,
    /// Where partitions begin, as each subtask heard it, in order: subtask, partition, next offset, position id.
    assigned: Vec<(u32, i32, i64, i64)>,
    aborted: usize,
    closed: usize,
}

pub(super) struct TestSink {
    state: Arc<Mutex<State>>,
    pulse: Pulse,
}

impl TestSink {
    pub(super) fn new(pulse: Pulse) -> Self {
        Self {
            state: Arc::default(),
            pulse,
        }
    }

    /// What every subtask's writer does at a step from now on.
    pub(super) fn set(&self, step: Step, does: Does) {
        self.state.lock().unwrap().does.insert((step, None), does);
        self.pulse.beat();
    }

    /// What the writer of one subtask does.
    pub(super) fn set_of(&self, subtask: u32, step: Step, does: Does) {
        let mut state = self.state.lock().unwrap();
        state.does.insert((step, Some(subtask)), does);
        drop(state);
        self.pulse.beat();
    }

    /// Refuses a record from now on: what was written before it in its batch is kept.
    pub(super) fn refuse(&self, partition: i32, record_offset: i64) {
        self.state.lock().unwrap().refused = Some((partition, record_offset));
    }

    /// Where partitions begin, as the sink heard it: subtask, partition, next offset, position id.
    pub(super) fn assigned(&self) -> Vec<(u32, i32, i64, i64)> {
        self.state.lock().unwrap().assigned.clone()
    }

    /// How often a step was entered.
    pub(super) fn entered(&self, step: Step) -> usize {
        let state = self.state.lock().unwrap();
        state.entered.get(&step).copied().unwrap_or_default()
    }

    pub(super) fn written(&self) -> Vec<(i32, i64)> {
        self.state.lock().unwrap().written.clone()
    }

    /// The record offsets of one partition, in the order in which they were taken.
    pub(super) fn written_of(&self, partition: i32) -> Vec<i64> {
        let state = self.state.lock().unwrap();
        let of = state.written.iter().filter(|(of, _)| *of == partition);
        of.map(|(_, offset)| *offset).collect()
    }

    /// Positions behind everything that was durable when a checkpoint was prepared, of partitions with records.
    pub(super) fn prepared(&self, id: CheckpointId) -> BTreeMap<i32, i64> {
        let state = self.state.lock().unwrap();
        state.prepared.get(&id).cloned().unwrap_or_default()
    }

    /// The checkpoints that reached the sink.
    pub(super) fn prepares(&self) -> BTreeSet<(CheckpointId, u32)> {
        self.state.lock().unwrap().prepares.clone()
    }

    /// Writers that have ended.
    pub(super) fn closed(&self) -> usize {
        self.state.lock().unwrap().closed
    }

    pub(super) fn aborted(&self) -> usize {
        self.state.lock().unwrap().aborted
    }
}

/// A writer, or the sink while it makes one.
struct TestWriter {
    subtask: u32,
    state: Arc<Mutex<State>>,
    pulse: Pulse,
    /// Positions of this subtask.
    positions: BTreeMap<i32, i64>,
    /// Where its partitions begin.
    begins: BTreeMap<i32, i64>,
}

impl TestWriter {
    fn does(&self, step: Step) -> Does {
        let state = self.state.lock().unwrap();
        let own = state.does.get(&(step, Some(self.subtask)));
        let does = own.or_else(|| state.does.get(&(step, None)));
        does.copied().unwrap_or(Does::Work)
    }

    async fn pass(&self, step: Step) -> Result<(), SinkError> {
        *self.state.lock().unwrap().entered.entry(step).or_default() += 1;
        self.pulse.beat();
        self.pulse.holds(|| self.does(step) != Does::Block).await;
        self.says(step)
    }

    fn says(&self, step: Step) -> Result<(), SinkError> {
        let error = |class| SinkError {
            detail: format!("{step:?}: the target said no"),
            class,
            ..SinkError::away(String::new())
        };
        match self.does(step) {
            Does::Work | Does::Block => Ok(()),
            Does::FailForNow => Err(error(ErrorClass::Infrastructure)),
            Does::Refuse => Err(error(ErrorClass::Deterministic)),
            Does::Panic => panic!("{step:?}: the sink fell over"),
        }
    }
}

#[async_trait]
impl Sink for TestSink {
    async fn progress(&self) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn recover(&self, _epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn writer(&self, subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        let writer = TestWriter {
            subtask,
            state: Arc::clone(&self.state),
            pulse: self.pulse.clone(),
            positions: BTreeMap::new(),
            begins: BTreeMap::new(),
        };
        writer.pass(Step::Open).await?;
        Ok(Box::new(writer))
    }

    async fn forget(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn identity(&self) -> String {
        "test".to_owned()
    }

    fn has_fence(&self) -> bool {
        false
    }
}

#[async_trait]
impl SinkWriter for TestWriter {
    async fn assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        self.pass(Step::Assign).await?;
        let mut state = self.state.lock().unwrap();
        for (partition, at) in positions {
            let (partition, next_offset) = (partition.partition, at.next_offset.get());
            self.begins.insert(partition, next_offset);
            let heard = (self.subtask, partition, next_offset, at.position_id.0);
            state.assigned.push(heard);
        }
        drop(state);
        self.pulse.beat();
        Ok(())
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), SinkError> {
        self.pass(Step::Write).await?;
        let mut state = self.state.lock().unwrap();
        for run in batch.runs() {
            let partition = run.partition.partition;
            for record in batch.records_of(run) {
                // I5: a sink hears where a partition begins before its first record.
                let begins = self.begins.get(&partition);
                if begins.is_none_or(|begins| *begins > record.record_offset) {
                    let what = format!(
                        "orders/{partition}@{} was written; the sink heard {begins:?}",
                        record.record_offset
                    );
                    self.pulse.violation(what);
                }
                if state.refused == Some((partition, record.record_offset)) {
                    return Err(SinkError {
                        record: Some(Box::new(FailedRecord::of(&run.partition, &record))),
                        ..SinkError::refused("the target refuses this record")
                    });
                }
                state.written.push((partition, record.record_offset));
                self.positions.insert(partition, record.record_offset + 1);
            }
        }
        drop(state);
        self.pulse.beat();
        Ok(())
    }

    async fn troubled(&mut self, known: Option<&str>) -> Result<(), SinkError> {
        let is_known = || match self.says(Step::Idle) {
            Ok(()) => known.is_none(),
            Err(error) if error.class == ErrorClass::Deterministic => false,
            Err(error) => known == Some(error.detail.as_str()),
        };
        self.pulse.holds(|| !is_known()).await;
        self.says(Step::Idle)
    }

    async fn prepare(
        &mut self,
        checkpoint: CheckpointId,
        _positions: &PartitionOffsets,
    ) -> Result<(), SinkError> {
        self.state
            .lock()
            .unwrap()
            .prepares
            .insert((checkpoint, self.subtask));
        self.pass(Step::Prepare).await?;
        let mut state = self.state.lock().unwrap();
        let prepared = state.prepared.entry(checkpoint).or_default();
        prepared.extend(&self.positions);
        Ok(())
    }

    async fn abort(&mut self) {
        let _passed = self.pass(Step::Abort).await;
        self.state.lock().unwrap().aborted += 1;
    }

    async fn close(&mut self) {
        self.state.lock().unwrap().closed += 1;
        self.pulse.beat();
    }
}
