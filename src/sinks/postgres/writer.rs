//! A subtask's writer: encodes records into the chunk that its flusher takes. It never talks to the database itself.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{task::JoinSet, time::timeout};
use tracing::Instrument as _;

use super::{chunk::Chunk, flusher::Flusher, mapping::RowEncoder, slot::Slot};
use crate::{
    engine::{error::SinkError, ports::SinkWriter},
    model::{
        CheckpointId, Code, Offset, PartitionOffsets, TopicPartition,
        job_status::FailedRecord,
        record::{BatchRun, RecordBatch},
        resolver::SinkPosition,
    },
};

/// How long a flusher may take to end what it is at.
const END_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct PostgresWriter {
    encoder: RowEncoder,
    slot: Arc<Slot>,
    /// A record of a batch that cannot become a row. What lies before it is written first.
    refusal: Option<SinkError>,
    /// The flusher. It is aborted with the writer, and its connection closed with it.
    task: JoinSet<()>,
}

impl PostgresWriter {
    pub(super) fn new(encoder: RowEncoder, slot: Arc<Slot>, flusher: Flusher) -> Self {
        let mut task = JoinSet::new();
        // What it logs is the job's.
        task.spawn(flusher.run().in_current_span());
        Self {
            encoder,
            slot,
            refusal: None,
            task,
        }
    }
}

#[async_trait]
impl SinkWriter for PostgresWriter {
    async fn assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        self.slot.assign(positions.to_vec());
        self.slot.settled().await
    }

    async fn write(&mut self, batch: &RecordBatch) -> Result<(), SinkError> {
        if self.refusal.is_none() {
            self.slot.room().await?;
            // From here to the end nothing is waited for: the batch is taken whole.
            let encoder = &mut self.encoder;
            match self.slot.fill(|chunk| encode(encoder, batch, chunk)) {
                Ok(()) => return Ok(()),
                Err(refusal) => self.refusal = Some(*refusal),
            }
        }
        self.slot.flush_now();
        self.slot.settled().await?;
        self.refusal.clone().map_or(Ok(()), Err)
    }

    async fn troubled(&mut self, known: Option<&str>) -> Result<(), SinkError> {
        self.slot.troubled(known).await
    }

    fn flushing(&self) -> Arc<AtomicBool> {
        self.slot.flushing()
    }

    async fn prepare(
        &mut self,
        _checkpoint: CheckpointId,
        positions: &PartitionOffsets,
    ) -> Result<(), SinkError> {
        self.slot.fill(|chunk| {
            for (partition, position) in positions {
                chunk.advance(partition, *position);
            }
        });
        self.slot.flush_now();
        self.slot.settled().await
    }

    async fn abort(&mut self) {
        self.slot.end();
        let _aborted_otherwise = timeout(END_WITHIN, self.task.join_next()).await;
        self.task.abort_all();
    }

    async fn close(&mut self) {
        self.abort().await;
    }
}

/// Puts a batch into a chunk. At a record that cannot become a row it stops, and the chunk ends before that record.
fn encode(
    encoder: &mut RowEncoder,
    batch: &RecordBatch,
    chunk: &mut Chunk,
) -> Result<(), Box<SinkError>> {
    for run in batch.runs() {
        let mut last = None;
        for record in batch.records_of(run) {
            let rows = chunk.rows.len();
            if let Err(rejection) = encoder.encode(run, &record, &mut chunk.rows) {
                advance(chunk, run, last, None);
                return Err(Box::new(SinkError {
                    record: Some(Box::new(FailedRecord::of(&run.partition, &record))),
                    code: Code::BlockedOnRecord,
                    ..SinkError::refused(format!(
                        "{}@{}: {}",
                        run.partition, record.record_offset, rejection.detail
                    ))
                }));
            }
            if chunk.rows.len() > rows {
                chunk.note(&record);
            }
            last = Some(record.record_offset);
        }
        advance(chunk, run, last, run.advance_to);
    }
    Ok(())
}

fn advance(chunk: &mut Chunk, run: &BatchRun, last: Option<i64>, reached: Option<Offset>) {
    if let Some(to) = last.and_then(Offset::after).max(reached) {
        chunk.advance(&run.partition, to);
    }
}
