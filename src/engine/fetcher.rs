//! The positions of one subtask, and the only place where they move.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use super::{
    consumer_thread::Assignment,
    deserialization::{DeserializationSchema, schema_of},
    error::JobError,
};
use crate::model::{
    job::Format,
    job_status::FailedRecord,
    offset::{Offset, PartitionOffsets},
    record::{BatchRun, RecordBatch},
    topic::TopicPartition,
};

/// What a subtask shows of itself while it runs; read by the job task without asking.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Records given to the sink.
    pub records: AtomicU64,
    /// Bytes of their keys and values.
    pub bytes: AtomicU64,
    /// Records dropped because they lay below the expected position.
    pub redelivered: AtomicU64,
}

/// A partition's live position as others may read it.
#[derive(Debug)]
pub(super) struct LivePosition(AtomicI64);

impl LivePosition {
    pub(super) fn at(offset: Offset) -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(offset.get())))
    }

    fn set(&self, offset: Offset) {
        self.0.store(offset.get(), Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<Offset> {
        Offset::new(self.0.load(Ordering::Acquire))
    }
}

struct PartitionState {
    /// Next record to read: everything before was given to the sink.
    position: Offset,
    /// The position once everything that was admitted is written.
    admitted: Offset,
    live: Arc<LivePosition>,
}

/// Checks batches, gives them back for writing, and advances positions once they are written.
pub(super) struct Fetcher {
    states: HashMap<TopicPartition, PartitionState>,
    /// Where the partitions of a bounded run end; empty for a run without an end.
    ends: PartitionOffsets,
    schema: Box<dyn DeserializationSchema>,
    counters: Arc<Counters>,
}

impl Fetcher {
    pub(super) fn new(format: Format, counters: Arc<Counters>) -> Self {
        Self {
            states: HashMap::new(),
            ends: PartitionOffsets::new(),
            schema: schema_of(format),
            counters,
        }
    }

    /// Ends partitions before these offsets: nothing at or behind them is ever given on.
    pub(super) fn end_at(&mut self, ends: PartitionOffsets) {
        self.ends = ends;
    }

    /// Registers a partition before it is assigned, so that no record of it can arrive unknown.
    pub(super) fn register(&mut self, (partition, position): &Assignment, live: Arc<LivePosition>) {
        self.states.insert(
            partition.clone(),
            PartitionState {
                position: *position,
                admitted: *position,
                live,
            },
        );
    }

    /// Drops what lies below the expected positions and checks what is left.
    ///
    /// A client may deliver a record twice after a reconnect, also within one batch; giving it on would write it twice.
    /// What is admitted must be written next, and advanced over: the next batch is measured against it.
    ///
    /// # Errors
    /// The first record that is not what the format says. The batch then ends before it: what is left of it must be written
    /// and advanced over all the same, which brings the record's partition to exactly this record. No batch may be admitted
    /// after that.
    pub(super) fn admit(&mut self, batch: &mut RecordBatch) -> Result<(), JobError> {
        for index in 0..batch.runs().len() {
            self.cut_at_the_end(batch, index);
            let records = self.narrow(batch, &batch.runs()[index]);
            let dropped = batch.runs()[index].records.len() - records.len();
            if dropped > 0 {
                self.counters
                    .redelivered
                    .fetch_add(dropped as u64, Ordering::Relaxed);
                let run = &mut batch.runs_mut()[index];
                tracing::debug!(kafka.topic = %run.partition.topic, kafka.partition = run.partition.partition, dropped, "dropped redelivered records");
                run.records = records;
            }
            if !self.schema.accepts_everything()
                && let Some((bad, error)) = self.first_bad(batch, &batch.runs()[index])
            {
                end_before(batch, index, bad);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes what lies at or behind the end of its partition out of a run. A record there, or a position that the client
    /// reached there, says that the end is reached: the position is then the end itself, wherever the last record lay.
    fn cut_at_the_end(&self, batch: &mut RecordBatch, index: usize) {
        let run = &batch.runs()[index];
        let Some(end) = self.ends.get(&*run.partition).copied() else {
            return;
        };
        let is_behind = |index: &usize| batch.record(*index).record_offset >= end.get();
        let behind = run.records.clone().rev().take_while(is_behind).count();
        if behind > 0 || run.advance_to >= Some(end) {
            let run = &mut batch.runs_mut()[index];
            run.records.end -= behind;
            run.advance_to = Some(end);
        }
    }

    /// The part of a run that lies at or above the expected position; records of a partition that is not ours are none.
    fn narrow(&mut self, batch: &RecordBatch, run: &BatchRun) -> Range<usize> {
        let Some(state) = self.states.get_mut(&*run.partition) else {
            tracing::error!(kafka.topic = %run.partition.topic, kafka.partition = run.partition.partition, "records of a partition that was not assigned");
            return run.records.start..run.records.start;
        };
        let below = run
            .records
            .clone()
            .take_while(|index| batch.record(*index).record_offset < state.admitted.get())
            .count();
        let records = run.records.start + below..run.records.end;
        if let Some(reached) = reached(batch, &records, run.advance_to) {
            state.admitted = state.admitted.max(reached);
        }
        records
    }

    /// The index of a run's first record that is not what the format says, and the failure that names it.
    fn first_bad(&self, batch: &RecordBatch, run: &BatchRun) -> Option<(usize, JobError)> {
        run.records.clone().find_map(|index| {
            let record = batch.record(index);
            let detail = self.schema.check(&record).err()?;
            let error = JobError::Decode {
                record: Box::new(FailedRecord::of(&run.partition, &record)),
                detail,
            };
            Some((index, error))
        })
    }

    /// Moves the positions over a batch that the sink has taken.
    ///
    /// A position that the client reached behind the records (past transaction markers) counts now, in order: without it
    /// the lag of a fully read transactional topic would never be 0.
    pub(super) fn advance(&mut self, batch: &RecordBatch) {
        let mut bytes = 0;
        for run in batch.runs() {
            let Some(state) = self.states.get_mut(&*run.partition) else {
                continue;
            };
            if let Some(reached) = reached(batch, &run.records, run.advance_to)
                && reached > state.position
            {
                state.position = reached;
                state.live.set(reached);
            }
            bytes += batch.payload_bytes(run.records.clone());
        }
        self.counters
            .records
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The positions between two batches.
    pub(super) fn snapshot(&self) -> PartitionOffsets {
        self.states
            .iter()
            .map(|(partition, state)| (partition.clone(), state.position))
            .collect()
    }
}

/// Ends a batch before a record. The run's partition advances to the record itself, over whatever lies between it and the
/// record before (compacted offsets, transaction markers): its position names the record. Later runs do not count.
fn end_before(batch: &mut RecordBatch, run: usize, record: usize) {
    let offset = Offset::new(batch.record(record).record_offset);
    let runs = &mut batch.runs_mut()[run..];
    for later in runs.iter_mut() {
        later.records.end = later.records.start;
        later.advance_to = None;
    }
    if let Some(ended) = runs.first_mut() {
        ended.records.end = record;
        ended.advance_to = offset;
    }
}

/// The position behind the records of a run and what the client reached behind them.
fn reached(
    batch: &RecordBatch,
    records: &Range<usize>,
    advance_to: Option<Offset>,
) -> Option<Offset> {
    let last = records.clone().next_back();
    let after_records = last.and_then(|index| Offset::after(batch.record(index).record_offset));
    after_records.max(advance_to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::record::{ConsumerRecord, RecordSource};

    struct Records(Vec<(i64, &'static [u8])>);

    impl RecordSource for Records {
        fn record(&self, index: usize) -> ConsumerRecord<'_> {
            let (record_offset, value) = self.0[index];
            ConsumerRecord {
                record_offset,
                timestamp_ms: None,
                key: None,
                value: Some(value),
            }
        }
    }

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn fetcher(format: Format, start: i64) -> (Fetcher, Arc<LivePosition>) {
        let mut fetcher = Fetcher::new(format, Arc::new(Counters::default()));
        let live = LivePosition::at(offset(start));
        fetcher.register(
            &(TopicPartition::new("orders", 0), offset(start)),
            Arc::clone(&live),
        );
        (fetcher, live)
    }

    fn batch(records: Vec<(i64, &'static [u8])>, advance_to: Option<i64>) -> RecordBatch {
        let run = BatchRun {
            partition: Arc::new(TopicPartition::new("orders", 0)),
            records: 0..records.len(),
            advance_to: advance_to.map(offset),
        };
        RecordBatch::new(vec![run], Box::new(Records(records)))
    }

    #[test]
    fn a_position_moves_behind_the_last_record_that_was_written() {
        let (mut fetcher, live) = fetcher(Format::Bytes, 5);
        let mut batch = batch(vec![(5, b"a"), (7, b"bc")], None);
        fetcher.admit(&mut batch).unwrap();
        assert_eq!(
            live.get(),
            Some(offset(5)),
            "nothing moves before the sink has taken the batch"
        );
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(8)));
        assert_eq!(fetcher.counters.bytes.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn records_below_the_expected_position_are_dropped_and_counted() {
        let (mut fetcher, live) = fetcher(Format::Bytes, 6);
        let mut twice = batch(vec![(4, b"a"), (5, b"b"), (6, b"c")], None);
        fetcher.admit(&mut twice).unwrap();
        assert_eq!(twice.len(), 1);
        fetcher.advance(&twice);
        assert_eq!(live.get(), Some(offset(7)));
        assert_eq!(fetcher.counters.redelivered.load(Ordering::Relaxed), 2);

        let mut all_known = batch(vec![(4, b"a"), (5, b"b")], None);
        fetcher.admit(&mut all_known).unwrap();
        fetcher.advance(&all_known);
        assert_eq!(live.get(), Some(offset(7)), "a position never goes back");
    }

    #[test]
    fn records_that_come_twice_in_one_batch_are_written_once() {
        let (mut fetcher, live) = fetcher(Format::Bytes, 5);
        let partition = Arc::new(TopicPartition::new("orders", 0));
        let run = |records| BatchRun {
            partition: Arc::clone(&partition),
            records,
            advance_to: None,
        };
        let records = vec![(5, &b"a"[..]), (6, b"b"), (5, b"a"), (6, b"b"), (7, b"c")];
        let mut batch = RecordBatch::new(vec![run(0..2), run(2..5)], Box::new(Records(records)));
        fetcher.admit(&mut batch).unwrap();
        let given: Vec<i64> = batch
            .runs()
            .iter()
            .flat_map(|run| batch.records_of(run))
            .map(|record| record.record_offset)
            .collect();
        assert_eq!(given, [5, 6, 7]);
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(8)));
    }

    #[test]
    fn the_end_of_a_partition_moves_the_position_past_transaction_markers() {
        let (mut fetcher, live) = fetcher(Format::Bytes, 0);
        let mut with_marker = batch(vec![(0, b"a")], Some(2));
        fetcher.admit(&mut with_marker).unwrap();
        fetcher.advance(&with_marker);
        assert_eq!(live.get(), Some(offset(2)));
    }

    #[test]
    fn a_bad_record_is_named_and_the_position_stands_at_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 0);
        let other = Arc::new(TopicPartition::new("orders", 1));
        let other_live = LivePosition::at(offset(3));
        fetcher.register(&((*other).clone(), offset(3)), Arc::clone(&other_live));
        let run = |partition: &Arc<TopicPartition>, records, advance_to| BatchRun {
            partition: Arc::clone(partition),
            records,
            advance_to: Some(offset(advance_to)),
        };
        let orders = Arc::new(TopicPartition::new("orders", 0));
        // Offset 1 is a marker; the partition's end was reached, and another partition follows.
        let records = vec![(0, &b"{}"[..]), (2, b"nope"), (4, b"{}"), (3, b"{}")];
        let runs = vec![run(&orders, 0..3, 7), run(&other, 3..4, 9)];
        let mut batch = RecordBatch::new(runs, Box::new(Records(records)));
        let error = fetcher.admit(&mut batch).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot decode orders/0@2: the value is no JSON"),
            "{error}"
        );
        assert_eq!(batch.len(), 1);
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(2)));
        assert_eq!(other_live.get(), Some(offset(3)), "it was not reached");
        assert_eq!(fetcher.counters.records.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_bad_record_at_the_beginning_moves_the_position_to_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 5);
        let mut batch = batch(vec![(4, b"{}"), (8, b"nope")], Some(9));
        fetcher.admit(&mut batch).unwrap_err();
        assert!(batch.is_empty());
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(8)));
    }

    #[test]
    fn records_of_a_partition_that_is_not_ours_reach_no_sink() {
        let mut fetcher = Fetcher::new(Format::Bytes, Arc::new(Counters::default()));
        let mut foreign = batch(vec![(0, b"a")], None);
        fetcher.admit(&mut foreign).unwrap();
        assert!(foreign.is_empty());
    }
}
