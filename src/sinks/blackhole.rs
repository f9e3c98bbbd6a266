//! Takes everything and keeps nothing; the engine's counters say how much. For trying and for measuring.

use async_trait::async_trait;

use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkWriter},
    },
    model::{CheckpointId, LeaseEpoch, record::RecordBatch, resolver::SinkProgress},
};

pub(super) struct Blackhole;

#[async_trait]
impl Sink for Blackhole {
    async fn recover(&self, _epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        Ok(SinkProgress::new())
    }

    async fn writer(&self, _subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        Ok(Box::new(BlackholeWriter))
    }

    fn identity(&self) -> String {
        "blackhole".to_owned()
    }
}

struct BlackholeWriter;

#[async_trait]
impl SinkWriter for BlackholeWriter {
    async fn write(&mut self, _batch: &RecordBatch) -> Result<(), SinkError> {
        Ok(())
    }

    async fn prepare(&mut self, _checkpoint: CheckpointId) -> Result<(), SinkError> {
        Ok(())
    }

    async fn abort(&mut self) {}

    async fn close(&mut self) {}
}
