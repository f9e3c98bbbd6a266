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
    parked::Parking,
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
    /// What was fetched before that many requests were served is of an older assignment.
    since: u64,
    /// Whether nothing of it counts any more until it is given again.
    parked: bool,
    live: Arc<LivePosition>,
}

/// Checks batches, gives them back for writing, and advances positions once they are written.
pub(super) struct Fetcher {
    states: HashMap<TopicPartition, PartitionState>,
    /// Where the partitions of a bounded run end; empty for a run without an end.
    ends: PartitionOffsets,
    /// Partitions that have come to their ends, until somebody asks for them.
    ended: Vec<TopicPartition>,
    schema: Box<dyn DeserializationSchema>,
    counters: Arc<Counters>,
}

impl Fetcher {
    pub(super) fn new(format: Format, counters: Arc<Counters>) -> Self {
        Self {
            states: HashMap::new(),
            ends: PartitionOffsets::new(),
            ended: Vec::new(),
            schema: schema_of(format),
            counters,
        }
    }

    /// Ends partitions before these offsets: nothing at or behind them is ever given on.
    pub(super) fn end_at(&mut self, ends: PartitionOffsets) {
        self.ends = ends;
    }

    /// Registers a partition before it is assigned, so that no record of it can arrive unknown. What was fetched before
    /// `since` requests were served does not count: a partition that was parked may still be on its way.
    pub(super) fn register(
        &mut self,
        (partition, position): &Assignment,
        since: u64,
        live: Arc<LivePosition>,
    ) {
        self.note_if_ended(partition, *position);
        self.states.insert(
            partition.clone(),
            PartitionState {
                position: *position,
                admitted: *position,
                since,
                parked: false,
                live,
            },
        );
    }

    /// Lets nothing of a partition count any more, until it is registered again; its position stays in the snapshots.
    /// Answers the position; `None` if it is not read here, or parked already.
    pub(super) fn park(&mut self, partition: &TopicPartition, served: u64) -> Option<Offset> {
        let state = self.states.get_mut(partition)?;
        if state.parked || served < state.since {
            return None;
        }
        state.parked = true;
        Some(state.position)
    }

    /// Drops what lies below the expected positions and checks what is left.
    ///
    /// A client may deliver a record twice after a reconnect, also within one batch; giving it on would write it twice.
    /// What is admitted must be written next, and advanced over: the next batch is measured against it.
    ///
    /// Answers the partitions that come to a record that is not what the format says. Of those the batch ends before it:
    /// what is left must be written and advanced over all the same, which brings the partition to exactly this record.
    pub(super) fn admit(&mut self, batch: &mut RecordBatch, served: u64) -> Vec<Parking> {
        for index in 0..batch.runs().len() {
            self.cut_at_the_end(batch, index);
            self.narrow(batch, index, served);
        }
        if self.schema.accepts_everything() {
            return Vec::new();
        }
        let mut parked = Vec::new();
        for index in 0..batch.runs().len() {
            let run = &batch.runs()[index];
            let Some(state) = self.states.get_mut(&*run.partition) else {
                continue;
            };
            if state.parked {
                // A run before this one has come to a bad record.
                empty(batch, index);
                continue;
            }
            let Some((bad, cause)) = first_bad(&*self.schema, batch, run) else {
                continue;
            };
            let partition = TopicPartition::clone(&run.partition);
            state.parked = true;
            state.admitted = end_before(batch, index, bad).unwrap_or(state.position);
            parked.push(Parking { partition, cause });
        }
        parked
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

    /// Narrows a run to what lies at or above the expected position; records of a partition that is not ours, is parked, or
    /// was given anew since they were fetched, are none.
    fn narrow(&mut self, batch: &mut RecordBatch, index: usize, served: u64) {
        let run = &batch.runs()[index];
        let Some(state) = self.states.get_mut(&*run.partition) else {
            tracing::error!(kafka.topic = %run.partition.topic, kafka.partition = run.partition.partition, "records of a partition that was not assigned");
            return empty(batch, index);
        };
        if state.parked || served < state.since {
            return empty(batch, index);
        }
        let below = run
            .records
            .clone()
            .take_while(|index| batch.record(*index).record_offset < state.admitted.get())
            .count();
        let records = run.records.start + below..run.records.end;
        if let Some(reached) = reached(batch, &records, run.advance_to) {
            state.admitted = state.admitted.max(reached);
        }
        if below > 0 {
            self.counters
                .redelivered
                .fetch_add(below as u64, Ordering::Relaxed);
            let run = &mut batch.runs_mut()[index];
            tracing::debug!(kafka.topic = %run.partition.topic, kafka.partition = run.partition.partition, dropped = below, "dropped redelivered records");
            run.records = records;
        }
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
                self.note_if_ended(&run.partition, reached);
            }
            bytes += batch.payload_bytes(run.records.clone());
        }
        self.counters
            .records
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn note_if_ended(&mut self, partition: &TopicPartition, position: Offset) {
        if self.ends.get(partition).is_some_and(|end| position >= *end) {
            self.ended.push(partition.clone());
        }
    }

    /// The partitions that have come to their ends since this was asked last: nothing of them is wanted any more.
    pub(super) fn take_ended(&mut self) -> Vec<TopicPartition> {
        std::mem::take(&mut self.ended)
    }

    /// Where a partition stands between two batches.
    pub(super) fn position(&self, partition: &TopicPartition) -> Option<Offset> {
        self.states.get(partition).map(|state| state.position)
    }

    /// The positions between two batches.
    pub(super) fn snapshot(&self) -> PartitionOffsets {
        self.states
            .iter()
            .map(|(partition, state)| (partition.clone(), state.position))
            .collect()
    }
}

/// The index of a run's first record that is not what the format says, and the failure that names it.
fn first_bad(
    schema: &dyn DeserializationSchema,
    batch: &RecordBatch,
    run: &BatchRun,
) -> Option<(usize, JobError)> {
    run.records.clone().find_map(|index| {
        let record = batch.record(index);
        let detail = schema.check(&record).err()?;
        let error = JobError::Decode {
            record: Box::new(FailedRecord::of(&run.partition, &record)),
            detail,
        };
        Some((index, error))
    })
}

/// Ends a run before a record, and answers that record's place. The partition advances to the record itself, over whatever
/// lies between it and the record before (compacted offsets, transaction markers): its position names the record.
fn end_before(batch: &mut RecordBatch, run: usize, record: usize) -> Option<Offset> {
    let offset = Offset::new(batch.record(record).record_offset);
    let run = &mut batch.runs_mut()[run];
    run.records.end = record;
    run.advance_to = offset;
    offset
}

fn empty(batch: &mut RecordBatch, run: usize) {
    let run = &mut batch.runs_mut()[run];
    run.records.end = run.records.start;
    run.advance_to = None;
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
            0,
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
        assert!(fetcher.admit(&mut batch, 0).is_empty());
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
        assert!(fetcher.admit(&mut twice, 0).is_empty());
        assert_eq!(twice.len(), 1);
        fetcher.advance(&twice);
        assert_eq!(live.get(), Some(offset(7)));
        assert_eq!(fetcher.counters.redelivered.load(Ordering::Relaxed), 2);

        let mut all_known = batch(vec![(4, b"a"), (5, b"b")], None);
        assert!(fetcher.admit(&mut all_known, 0).is_empty());
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
        assert!(fetcher.admit(&mut batch, 0).is_empty());
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
        assert!(fetcher.admit(&mut with_marker, 0).is_empty());
        fetcher.advance(&with_marker);
        assert_eq!(live.get(), Some(offset(2)));
    }

    #[test]
    fn a_bad_record_is_named_and_the_position_stands_at_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 0);
        let other = Arc::new(TopicPartition::new("orders", 1));
        let other_live = LivePosition::at(offset(3));
        fetcher.register(&((*other).clone(), offset(3)), 0, Arc::clone(&other_live));
        let run = |partition: &Arc<TopicPartition>, records, advance_to| BatchRun {
            partition: Arc::clone(partition),
            records,
            advance_to: Some(offset(advance_to)),
        };
        let orders = Arc::new(TopicPartition::new("orders", 0));
        // Offset 1 is a marker; the partition's end was reached, and another partition follows.
        let records = vec![
            (0, &b"{}"[..]),
            (2, b"nope"),
            (4, b"{}"),
            (3, b"{}"),
            (5, b"{}"),
        ];
        let runs = vec![
            run(&orders, 0..3, 7),
            run(&other, 3..4, 9),
            run(&orders, 4..5, 9),
        ];
        let mut batch = RecordBatch::new(runs, Box::new(Records(records)));
        let parked = fetcher.admit(&mut batch, 0);
        assert_eq!(parked.len(), 1);
        assert!(
            parked[0]
                .cause
                .to_string()
                .starts_with("cannot decode orders/0@2: the value is no JSON"),
            "{}",
            parked[0].cause
        );
        assert_eq!(batch.len(), 2);
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(2)));
        assert_eq!(other_live.get(), Some(offset(9)), "the other one goes on");
        assert_eq!(fetcher.counters.records.load(Ordering::Relaxed), 2);
        assert_eq!(fetcher.snapshot().get(&orders), Some(&offset(2)));

        // What is still on its way does not count, neither before nor after the partition is given again.
        let on_its_way = || {
            let records = vec![(3, &b"{}"[..]), (4, b"{}")];
            RecordBatch::new(vec![run(&orders, 0..2, 7)], Box::new(Records(records)))
        };
        let mut late = on_its_way();
        assert!(fetcher.admit(&mut late, 0).is_empty());
        assert_eq!((late.len(), late.runs()[0].advance_to), (0, None));
        fetcher.register(&(TopicPartition::clone(&orders), offset(3)), 2, live);
        for (served, records) in [(1, 0), (2, 2)] {
            let mut late = on_its_way();
            assert!(fetcher.admit(&mut late, served).is_empty());
            assert_eq!(late.len(), records, "{served} requests were served");
        }
    }

    #[test]
    fn a_bad_record_at_the_beginning_moves_the_position_to_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 5);
        let mut batch = batch(vec![(4, b"{}"), (8, b"nope")], Some(9));
        assert_eq!(fetcher.admit(&mut batch, 0).len(), 1);
        assert!(batch.is_empty());
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(8)));
    }

    #[test]
    fn records_of_a_partition_that_is_not_ours_reach_no_sink() {
        let mut fetcher = Fetcher::new(Format::Bytes, Arc::new(Counters::default()));
        let mut foreign = batch(vec![(0, b"a")], None);
        assert!(fetcher.admit(&mut foreign, 0).is_empty());
        assert!(foreign.is_empty());
    }
}
