//! The positions of one subtask, and the only place where they move.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use super::{
    consumer_thread::Assignment,
    deserialization::{DeserializationSchema, schema_of},
    error::{JobError, SinkError},
    parked::{LeftOut, Parking},
    watermarks::{EventTime, EventTimes},
};
use crate::model::{
    ids::CheckpointId,
    job::Format,
    job_status::FailedRecord,
    offset::{Offset, PartitionOffsets},
    record::{BatchRun, RecordBatch},
    resolver::{SinkPosition, SinkProgress},
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
    /// Records that cannot be processed and were left out.
    pub skipped: AtomicU64,
    /// Records that cannot be processed and were written elsewhere.
    pub dead_lettered: AtomicU64,
}

/// A partition's live position as others may read it, and what was seen of its time stamps up to there.
#[derive(Debug)]
pub(super) struct LivePosition {
    next_offset: AtomicI64,
    event_times: EventTimes,
}

impl LivePosition {
    pub(super) fn at(offset: Offset) -> Arc<Self> {
        Arc::new(Self {
            next_offset: AtomicI64::new(offset.get()),
            event_times: EventTimes::default(),
        })
    }

    fn set(&self, offset: Offset) {
        self.next_offset.store(offset.get(), Ordering::Release);
    }

    pub(super) fn get(&self) -> Option<Offset> {
        Offset::new(self.next_offset.load(Ordering::Acquire))
    }

    /// Read behind the position it has everything before that.
    pub(super) fn event_times(&self) -> &EventTimes {
        &self.event_times
    }
}

struct PartitionState {
    /// The checkpoint that decided where it began.
    position_id: CheckpointId,
    /// What the sink has made durable at least, by its own word.
    durable: Offset,
    /// Next record to read: everything before was given to the sink.
    position: Offset,
    /// The position once everything that was admitted is written.
    admitted: Offset,
    /// The furthest position there was: what lies before it and is written is written again.
    furthest: Offset,
    /// What was fetched before that many requests were served is of an older assignment.
    since: u64,
    /// Whether nothing of it counts any more until it is given again, and who wants that.
    parked: Option<ParkedBy>,
    live: Arc<LivePosition>,
}

/// Who parked a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParkedBy {
    /// What is read of it: it comes to the same again if it is read again.
    Itself,
    /// The job task.
    Order,
}

/// What was found in a batch that cannot be given to the sink.
#[derive(Debug, Default)]
pub(super) struct Admitted {
    /// Partitions that come to such a record and are parked.
    pub parked: Vec<Parking>,
    /// Such records that are left out.
    pub left_out: Vec<LeftOut>,
}

/// A partition that is to be read again from where the sink has it.
#[derive(Debug)]
pub(super) struct Rewound {
    /// Which.
    pub partition: TopicPartition,
    /// Where it goes on.
    pub from: SinkPosition,
    /// Whether it is read; else it only stands there.
    pub read: bool,
}

/// A record that the sink has refused.
struct Refused {
    why: SinkError,
    /// Whether it was counted among those that are left out.
    counted: bool,
}

/// Checks batches, gives them back for writing, and advances positions once they are written.
pub(super) struct Fetcher {
    states: HashMap<TopicPartition, PartitionState>,
    /// Where the partitions of a bounded run end; empty for a run without an end.
    ends: PartitionOffsets,
    /// Partitions that have come to their ends, until somebody asks for them.
    ended: Vec<TopicPartition>,
    schema: Box<dyn DeserializationSchema>,
    /// Records that the sink has refused: they cannot be given to it a second time.
    refused: BTreeMap<(TopicPartition, i64), Refused>,
    /// Of a job that keeps event time.
    event_time: Option<EventTime>,
    counters: Arc<Counters>,
}

impl Fetcher {
    pub(super) fn new(format: Format, counters: Arc<Counters>) -> Self {
        Self {
            states: HashMap::new(),
            ends: PartitionOffsets::new(),
            ended: Vec::new(),
            schema: schema_of(format),
            refused: BTreeMap::new(),
            event_time: None,
            counters,
        }
    }

    /// Keeps event time: a record without a time stamp cannot be processed.
    pub(super) fn keep_event_time(&mut self, event_time: EventTime) {
        self.event_time = Some(event_time);
    }

    /// Waits until the job task has looked, where a partition may be too far ahead of the others. May be dropped and called
    /// again.
    pub(super) async fn looked_at(&mut self) {
        if let Some(event_time) = &mut self.event_time {
            event_time.looked_at().await;
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
        position_id: CheckpointId,
        since: u64,
        live: Arc<LivePosition>,
    ) {
        self.note_if_ended(partition, *position);
        self.states.insert(
            partition.clone(),
            PartitionState {
                position_id,
                durable: *position,
                position: *position,
                admitted: *position,
                furthest: *position,
                since,
                parked: None,
                live,
            },
        );
    }

    /// Lets nothing of a partition count any more, until it is registered again; its position stays in the snapshots.
    /// Answers the position; `None` if it is not read here, or parked already.
    pub(super) fn park(&mut self, partition: &TopicPartition, served: u64) -> Option<Offset> {
        let state = self.states.get_mut(partition)?;
        if state.parked.is_some() || served < state.since {
            return None;
        }
        state.parked = Some(ParkedBy::Itself);
        Some(state.position)
    }

    /// Parks a partition by order. Answers whether it was read until now.
    pub(super) fn park_by_order(&mut self, partition: &TopicPartition) -> bool {
        let Some(state) = self.states.get_mut(partition) else {
            return false;
        };
        state.parked.replace(ParkedBy::Order).is_none()
    }

    /// Drops what lies below the expected positions and checks what is left.
    ///
    /// A client may deliver a record twice after a reconnect, also within one batch; giving it on would write it twice.
    /// What is admitted must be written next, and advanced over: the next batch is measured against it.
    ///
    /// A record that is not what the format says, or that the sink has refused, is left out, or parks its partition: of that
    /// one the batch ends before the record. What is left must be written and advanced over all the same, which brings the
    /// partition to exactly this record.
    pub(super) fn admit(
        &mut self,
        batch: &mut RecordBatch,
        served: u64,
        leave_out: bool,
    ) -> Admitted {
        for index in 0..batch.runs().len() {
            self.cut_at_the_end(batch, index);
            self.narrow(batch, index, served);
        }
        let mut found = Admitted::default();
        let mut event_time = self.event_time.take();
        if self.schema.accepts_everything() && self.refused.is_empty() && event_time.is_none() {
            return found;
        }
        let mut next = 0;
        while let Some(run) = batch.runs().get(next) {
            let index = next;
            next += 1;
            let Some((bad, cause)) = self.first_bad(batch, run, event_time.as_mut()) else {
                continue;
            };
            let partition = TopicPartition::clone(&run.partition);
            if leave_out {
                batch.leave_out(index, bad);
                found.left_out.push(LeftOut {
                    partition,
                    index: bad,
                    cause,
                });
            } else {
                self.park_in(batch, &partition, bad);
                found.parked.push(Parking { partition, cause });
            }
        }
        self.event_time = event_time;
        found
    }

    /// Parks a partition before one of the records of a batch that was admitted: of this partition the batch ends there. It
    /// advances to the record itself, over whatever lies between it and the record before (compacted offsets, transaction
    /// markers): its position names the record.
    pub(super) fn park_in(
        &mut self,
        batch: &mut RecordBatch,
        partition: &TopicPartition,
        record: usize,
    ) {
        let Some(at) = Offset::new(batch.record(record).record_offset) else {
            return;
        };
        let mut cut = false;
        for index in 0..batch.runs().len() {
            let run = &batch.runs()[index];
            if *run.partition != *partition {
                continue;
            }
            if cut {
                empty(batch, index);
                continue;
            }
            let mut records = run.records.clone();
            let end = records.find(|record| batch.record(*record).record_offset >= at.get());
            let reaches = run.advance_to.is_some_and(|reached| reached >= at);
            if end.is_none() && !reaches {
                continue;
            }
            cut = true;
            let run = &mut batch.runs_mut()[index];
            run.records.end = end.unwrap_or(run.records.end);
            run.advance_to = Some(at);
        }
        if let Some(state) = self.states.get_mut(partition) {
            state.parked = Some(ParkedBy::Itself);
            state.admitted = at;
        }
    }

    /// The index of a run's first record that cannot be given to the sink, and why.
    fn first_bad(
        &self,
        batch: &RecordBatch,
        run: &BatchRun,
        mut event_time: Option<&mut EventTime>,
    ) -> Option<(usize, JobError)> {
        let takes_apart = event_time
            .as_ref()
            .is_some_and(|found| found.reads_values());
        let checks = !self.schema.accepts_everything() && !takes_apart;
        run.records.clone().find_map(|index| {
            let record = batch.record(index);
            if let Some(refusal) = self.refusal(&run.partition, record.record_offset) {
                return Some((index, JobError::Sink(refusal.clone())));
            }
            let checked = if checks {
                self.schema.check(&record)
            } else {
                Ok(())
            };
            let stamped = checked.and_then(|()| match &mut event_time {
                Some(event_time) => event_time.find(index, &record),
                None => Ok(()),
            });
            let detail = stamped.err()?;
            let error = JobError::Decode {
                record: Box::new(FailedRecord::of(&run.partition, &record)),
                detail,
            };
            Some((index, error))
        })
    }

    fn refusal(&self, partition: &TopicPartition, record_offset: i64) -> Option<&SinkError> {
        if self.refused.is_empty() {
            return None;
        }
        let refused = self.refused.get(&(partition.clone(), record_offset))?;
        Some(&refused.why)
    }

    /// Notes that the sink refuses a record, which is not given to it again.
    pub(super) fn refuse(&mut self, error: &SinkError) {
        let Some(record) = &error.record else {
            return;
        };
        let partition = TopicPartition::new(record.topic.as_str(), record.partition);
        let refused = Refused {
            why: error.clone(),
            counted: false,
        };
        self.refused.insert((partition, record.offset), refused);
    }

    /// Whether a record that is left out is new, to be asked once before its batch is advanced over: what is read again after
    /// a rewind was counted before. A record that the sink refused after it had taken it lies below the furthest position,
    /// and is new all the same.
    pub(super) fn is_newly_left_out(
        &mut self,
        partition: &TopicPartition,
        record_offset: i64,
    ) -> bool {
        if let Some(refused) = self.refused.get_mut(&(partition.clone(), record_offset)) {
            return !std::mem::replace(&mut refused.counted, true);
        }
        let state = self.states.get(partition);
        state.is_none_or(|state| record_offset >= state.furthest.get())
    }

    /// Notes what the sink has made durable.
    pub(super) fn prepared(&mut self, positions: &PartitionOffsets) {
        for (partition, position) in positions {
            if let Some(state) = self.states.get_mut(partition) {
                state.durable = state.durable.max(*position);
            }
        }
        let states = &self.states;
        self.refused.retain(|(partition, record_offset), _| {
            let state = states.get(partition);
            state.is_none_or(|state| *record_offset >= state.durable.get())
        });
    }

    /// Takes everything back that a sink's writer had and that is not durable. Answers every partition with the position that
    /// the next writer hears; those that went back are to be read again. What was fetched before counts no more.
    pub(super) fn rewind(&mut self, progress: &SinkProgress) -> Vec<Rewound> {
        let rewound = self.states.iter_mut().map(|(partition, state)| {
            let held = progress
                .get(partition)
                .filter(|held| held.position_id == state.position_id)
                .map(|held| held.next_offset);
            let durable = held.map_or(state.durable, |held| held.max(state.durable));
            let goes_back = durable < state.admitted;
            if goes_back {
                state.position = durable;
                state.admitted = durable;
                state.live.set(durable);
                state.parked = state.parked.filter(|by| *by == ParkedBy::Order);
            }
            Rewound {
                partition: partition.clone(),
                from: SinkPosition {
                    next_offset: state.position,
                    position_id: state.position_id,
                },
                read: goes_back && state.parked.is_none(),
            }
        });
        rewound.collect()
    }

    /// A partition is given again: what was fetched before `since` requests were served does not count.
    pub(super) fn given_again(&mut self, partition: &TopicPartition, since: u64) {
        if let Some(state) = self.states.get_mut(partition) {
            state.since = since;
        }
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
        if state.parked.is_some() || served < state.since {
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
        // Before the positions: whoever sees that everything is read sees everything counted.
        let bytes = batch
            .runs()
            .iter()
            .map(|run| batch.payload_bytes(run.records.clone()));
        self.counters
            .bytes
            .fetch_add(bytes.sum(), Ordering::Relaxed);
        self.counters
            .records
            .fetch_add(batch.len() as u64, Ordering::Relaxed);
        for run in batch.runs() {
            let Some(state) = self.states.get_mut(&*run.partition) else {
                continue;
            };
            if let Some(event_time) = &mut self.event_time {
                let furthest = state.furthest.get();
                let mut records = run.records.clone();
                let first_new =
                    records.find(|index| batch.record(*index).record_offset >= furthest);
                let first_new = first_new.unwrap_or(run.records.end);
                let times = state.live.event_times();
                event_time.note(times, run.records.clone(), first_new);
            }
            if let Some(reached) = reached(batch, &run.records, run.advance_to)
                && reached > state.position
            {
                state.position = reached;
                state.furthest = state.furthest.max(reached);
                state.live.set(reached);
                self.note_if_ended(&run.partition, reached);
            }
        }
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

    /// Where a partition goes on if it is read; `None` if it is not: parked, at its end, or not of this subtask.
    pub(super) fn reads(&self, partition: &TopicPartition) -> Option<Offset> {
        let state = self.states.get(partition)?;
        let end = self.ends.get(partition);
        let has_ended = end.is_some_and(|end| state.position >= *end);
        (state.parked.is_none() && !has_ended).then_some(state.position)
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
            CheckpointId(1),
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
        assert!(fetcher.admit(&mut batch, 0, false).parked.is_empty());
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
        assert!(fetcher.admit(&mut twice, 0, false).parked.is_empty());
        assert_eq!(twice.len(), 1);
        fetcher.advance(&twice);
        assert_eq!(live.get(), Some(offset(7)));
        assert_eq!(fetcher.counters.redelivered.load(Ordering::Relaxed), 2);

        let mut all_known = batch(vec![(4, b"a"), (5, b"b")], None);
        assert!(fetcher.admit(&mut all_known, 0, false).parked.is_empty());
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
        assert!(fetcher.admit(&mut batch, 0, false).parked.is_empty());
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
        assert!(fetcher.admit(&mut with_marker, 0, false).parked.is_empty());
        fetcher.advance(&with_marker);
        assert_eq!(live.get(), Some(offset(2)));
    }

    #[test]
    fn a_bad_record_is_named_and_the_position_stands_at_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 0);
        let other = Arc::new(TopicPartition::new("orders", 1));
        let other_live = LivePosition::at(offset(3));
        fetcher.register(
            &((*other).clone(), offset(3)),
            CheckpointId(1),
            0,
            Arc::clone(&other_live),
        );
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
        let parked = fetcher.admit(&mut batch, 0, false).parked;
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
        assert!(fetcher.admit(&mut late, 0, false).parked.is_empty());
        assert_eq!((late.len(), late.runs()[0].advance_to), (0, None));
        fetcher.register(
            &(TopicPartition::clone(&orders), offset(3)),
            CheckpointId(2),
            2,
            live,
        );
        for (served, records) in [(1, 0), (2, 2)] {
            let mut late = on_its_way();
            assert!(fetcher.admit(&mut late, served, false).parked.is_empty());
            assert_eq!(late.len(), records, "{served} requests were served");
        }
    }

    #[test]
    fn a_bad_record_at_the_beginning_moves_the_position_to_it() {
        let (mut fetcher, live) = fetcher(Format::Json, 5);
        let mut batch = batch(vec![(4, b"{}"), (8, b"nope")], Some(9));
        assert_eq!(fetcher.admit(&mut batch, 0, false).parked.len(), 1);
        assert!(batch.is_empty());
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(8)));
    }

    #[test]
    fn records_of_a_partition_that_is_not_ours_reach_no_sink() {
        let mut fetcher = Fetcher::new(Format::Bytes, Arc::new(Counters::default()));
        let mut foreign = batch(vec![(0, b"a")], None);
        assert!(fetcher.admit(&mut foreign, 0, false).parked.is_empty());
        assert!(foreign.is_empty());
    }

    #[test]
    fn records_that_are_left_out_are_passed_over_and_what_lies_between_is_given() {
        let (mut fetcher, live) = fetcher(Format::Json, 0);
        let records = vec![
            (0, &b"no"[..]),
            (1, b"{}"),
            (3, b"no"),
            (4, b"no"),
            (6, b"{}"),
            (7, b"no"),
        ];
        let mut batch = batch(records, Some(9));
        let admitted = fetcher.admit(&mut batch, 0, true);
        let left_out: Vec<i64> = admitted
            .left_out
            .iter()
            .map(|left_out| batch.record(left_out.index).record_offset)
            .collect();
        assert_eq!(left_out, [0, 3, 4, 7]);
        let given: Vec<i64> = batch
            .runs()
            .iter()
            .flat_map(|run| batch.records_of(run))
            .map(|record| record.record_offset)
            .collect();
        assert_eq!(given, [1, 6]);
        // One that cannot be left out after all parks the partition before it.
        let partition = TopicPartition::new("orders", 0);
        fetcher.park_in(&mut batch, &partition, admitted.left_out[2].index);
        assert_eq!(batch.len(), 1);
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(4)));
        let mut behind = self::batch(vec![(8, b"{}")], None);
        fetcher.admit(&mut behind, 0, true);
        assert!(behind.is_empty(), "it is parked");
    }

    #[test]
    fn a_batch_of_nothing_but_bad_records_moves_the_position_behind_them() {
        let (mut fetcher, live) = fetcher(Format::Json, 0);
        let mut batch = batch(vec![(0, b"no"), (5, b"no")], None);
        assert_eq!(fetcher.admit(&mut batch, 0, true).left_out.len(), 2);
        assert!(batch.is_empty());
        fetcher.advance(&batch);
        assert_eq!(live.get(), Some(offset(6)));
    }

    #[test]
    fn what_a_writer_lost_is_read_again_from_where_the_sink_stands() {
        let (mut fetcher, live) = fetcher(Format::Bytes, 0);
        let partition = TopicPartition::new("orders", 0);
        let mut taken = batch(vec![(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")], None);
        fetcher.admit(&mut taken, 0, false);
        fetcher.advance(&taken);
        fetcher.prepared(&PartitionOffsets::from([(partition.clone(), offset(1))]));
        let held = |next, id| {
            let position = SinkPosition {
                next_offset: offset(next),
                position_id: CheckpointId(id),
            };
            SinkProgress::from([(partition.clone(), position)])
        };
        for (progress, from) in [
            (held(3, 1), 3),
            // Of another decision: it says nothing of this one.
            (held(0, 7), 1),
            (SinkProgress::new(), 1),
        ] {
            fetcher.admit(&mut batch(vec![(4, b"e")], None), 0, false);
            let rewound = fetcher.rewind(&progress);
            assert_eq!(rewound[0].from.next_offset, offset(from));
            assert!(rewound[0].read);
            assert_eq!(live.get(), Some(offset(from)), "{progress:?}");
        }
        assert!(!fetcher.rewind(&held(1, 1))[0].read, "nothing was lost");
        fetcher.given_again(&partition, 2);
        let mut stale = batch(vec![(5, b"f")], None);
        fetcher.admit(&mut stale, 1, false);
        assert!(stale.is_empty());

        fetcher.refuse(&SinkError {
            record: Some(Box::new(FailedRecord {
                topic: "orders".to_owned(),
                partition: 0,
                offset: 2,
                timestamp: None,
                key_bytes: None,
                value_bytes: None,
            })),
            ..SinkError::refused("no")
        });
        let mut again = batch(vec![(1, b"b"), (2, b"c"), (3, b"d")], None);
        let admitted = fetcher.admit(&mut again, 2, false);
        assert_eq!((again.len(), admitted.parked.len()), (1, 1));
        fetcher.advance(&again);
        assert_eq!(live.get(), Some(offset(2)));
    }
}
