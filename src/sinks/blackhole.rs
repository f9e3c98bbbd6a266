//! Takes everything and keeps nothing; the engine's counters say how much. For trying and for measuring.

use async_trait::async_trait;

use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkWriter},
    },
    model::{
        CheckpointId, LeaseEpoch, PartitionOffsets, TopicPartition,
        record::RecordBatch,
        resolver::{SinkPosition, SinkProgress},
    },
};

pub(super) struct Blackhole;

#[async_trait]
impl Sink for Blackhole {
    async fn progress(&self) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn recover(&self, _epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn writer(&self, _subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        Ok(Box::new(BlackholeWriter))
    }

    async fn forget(&self) -> Result<(), SinkError> {
        Ok(())
    }

    fn identity(&self) -> String {
        "blackhole".to_owned()
    }

    fn has_fence(&self) -> bool {
        false
    }
}

struct BlackholeWriter;

#[async_trait]
impl SinkWriter for BlackholeWriter {
    async fn assign(
        &mut self,
        _positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        Ok(())
    }

    async fn write(&mut self, _batch: &RecordBatch) -> Result<(), SinkError> {
        Ok(())
    }

    async fn prepare(
        &mut self,
        _checkpoint: CheckpointId,
        _positions: &PartitionOffsets,
    ) -> Result<(), SinkError> {
        Ok(())
    }

    async fn abort(&mut self) {}

    async fn close(&mut self) {}
}
