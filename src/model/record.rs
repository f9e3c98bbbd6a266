//! Records as they travel from a consumer to a sink.
//!
//! A [`RecordBatch`] owns the memory its records lie in (at first librdkafka's own messages) and lends views of them, so
//! that nothing is copied between the network buffer and the sink. Records of one partition that follow each other form a
//! [`BatchRun`]: state is looked up once per run, not once per record.

use std::{fmt, ops::Range, sync::Arc};

use super::{offset::Offset, topic::TopicPartition};

/// A view of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerRecord<'a> {
    /// Where the record lies in its partition's log: *not* a position; see [`Offset::after`].
    pub record_offset: i64,
    /// Milliseconds since 1970 as the producer or the broker stamped it; `None` if there is no time stamp.
    pub timestamp_ms: Option<i64>,
    /// The key, if there is one.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
}

/// One header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value; `None` is null.
    pub value: Option<Vec<u8>>,
}

/// What owns the records of a batch.
pub trait RecordSource: Send + Sync {
    /// The record at `index`, counted over the whole batch.
    fn record(&self, index: usize) -> ConsumerRecord<'_>;

    /// The headers of the record at `index`, in order, as they came: names need not be UTF-8, nor differ. Asked for rarely.
    fn headers(&self, index: usize) -> Vec<RecordHeader> {
        let _none = index;
        Vec::new()
    }

    /// Bytes of keys and values of the records in `range`.
    fn payload_bytes(&self, range: Range<usize>) -> u64 {
        let length = |part: Option<&[u8]>| part.map_or(0, |bytes| bytes.len() as u64);
        range
            .map(|index| self.record(index))
            .map(|record| length(record.key) + length(record.value))
            .sum()
    }
}

/// Records of one partition that follow each other in a batch, and the position after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRun {
    /// The partition.
    pub partition: Arc<TopicPartition>,
    /// Indices of its records, offsets strictly growing; may be empty. Where a client goes back (it delivers records
    /// again after a reconnect) a new run begins.
    pub records: Range<usize>,
    /// A position that the client reached behind these records (the end of the partition, past transaction markers and
    /// compacted offsets). Counts once the records before it are written.
    pub advance_to: Option<Offset>,
}

/// The records of one poll.
pub struct RecordBatch {
    runs: Vec<BatchRun>,
    source: Box<dyn RecordSource>,
}

impl RecordBatch {
    /// Puts a batch together. Indices in `runs` count over `source`.
    #[must_use]
    pub fn new(runs: Vec<BatchRun>, source: Box<dyn RecordSource>) -> Self {
        Self { runs, source }
    }

    /// The runs in the order in which the client delivered them.
    #[must_use]
    pub fn runs(&self) -> &[BatchRun] {
        &self.runs
    }

    /// The runs, to be narrowed (records below the expected position are dropped).
    pub fn runs_mut(&mut self) -> &mut [BatchRun] {
        &mut self.runs
    }

    /// Keeps the first records and gives back the runs of the others, which [`RecordBatch::set_runs`] takes again. A position
    /// behind a run's records stays with its last ones.
    #[must_use]
    pub fn keep_first(&mut self, records: usize) -> Vec<BatchRun> {
        let mut left = records;
        let cut = self.runs.iter().position(|run| {
            let rest = left.checked_sub(run.records.len());
            left = rest.unwrap_or(left);
            rest.is_none()
        });
        let Some(cut) = cut else {
            return Vec::new();
        };
        let mut rest = self.runs.split_off(cut);
        if let Some(divided) = rest.first_mut()
            && left > 0
        {
            let middle = divided.records.start + left;
            self.runs.push(BatchRun {
                partition: Arc::clone(&divided.partition),
                records: divided.records.start..middle,
                advance_to: None,
            });
            divided.records.start = middle;
        }
        rest
    }

    /// Puts other runs over the same records.
    pub fn set_runs(&mut self, runs: Vec<BatchRun>) {
        self.runs = runs;
    }

    /// How many records the runs hold.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.records.len()).sum()
    }

    /// Whether there is no record (there may still be positions to advance to).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.iter().all(|run| run.records.is_empty())
    }

    /// The record at an index of a run.
    #[must_use]
    pub fn record(&self, index: usize) -> ConsumerRecord<'_> {
        self.source.record(index)
    }

    /// The headers of the record at an index of a run.
    #[must_use]
    pub fn headers(&self, index: usize) -> Vec<RecordHeader> {
        self.source.headers(index)
    }

    /// Takes one record out of a run, which becomes two: what lies before it, up to behind the record, and what lies behind.
    pub fn leave_out(&mut self, run: usize, record: usize) {
        let behind = Offset::after(self.record(record).record_offset);
        let Some(before) = self.runs.get_mut(run) else {
            return;
        };
        let after = BatchRun {
            partition: Arc::clone(&before.partition),
            records: record + 1..before.records.end,
            advance_to: before.advance_to,
        };
        before.records.end = record;
        before.advance_to = behind;
        self.runs.insert(run + 1, after);
    }

    /// Bytes of keys and values of the records at `range`.
    #[must_use]
    pub fn payload_bytes(&self, range: Range<usize>) -> u64 {
        self.source.payload_bytes(range)
    }

    /// The records of a run.
    pub fn records_of<'a>(
        &'a self,
        run: &BatchRun,
    ) -> impl Iterator<Item = ConsumerRecord<'a>> + use<'a> {
        run.records.clone().map(|index| self.source.record(index))
    }
}

impl fmt::Debug for RecordBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordBatch")
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Numbers;

    impl RecordSource for Numbers {
        fn record(&self, index: usize) -> ConsumerRecord<'_> {
            ConsumerRecord {
                record_offset: i64::try_from(index).unwrap_or(i64::MAX),
                timestamp_ms: None,
                key: None,
                value: None,
            }
        }
    }

    proptest! {
        /// Cut anywhere and as often as one likes, a batch says the same in the same order, and a run's last position comes
        /// with its last records.
        #[test]
        fn a_batch_that_is_cut_loses_nothing(
            lengths in prop::collection::vec(0_usize..5, 1..6),
            cuts in prop::collection::vec(1_usize..4, 1..30),
        ) {
            let mut begin = 0;
            let runs: Vec<BatchRun> = lengths.iter().enumerate().map(|(index, length)| {
                let records = begin..begin + length;
                begin += length;
                BatchRun {
                    partition: Arc::new(TopicPartition::new("orders", i32::try_from(index).unwrap())),
                    records,
                    advance_to: Offset::new(i64::try_from(begin).unwrap()),
                }
            }).collect();
            let mut batch = RecordBatch::new(runs.clone(), Box::new(Numbers));
            let mut seen: Vec<BatchRun> = Vec::new();
            for cut in cuts.iter().chain(std::iter::repeat_n(&usize::MAX, 1)) {
                let rest = batch.keep_first(*cut);
                prop_assert!(batch.len() <= *cut);
                for run in batch.runs() {
                    match seen.last_mut().filter(|last| last.partition == run.partition) {
                        Some(last) => {
                            prop_assert_eq!(last.advance_to, None);
                            prop_assert_eq!(last.records.end, run.records.start);
                            last.records.end = run.records.end;
                            last.advance_to = run.advance_to;
                        }
                        None => seen.push(run.clone()),
                    }
                }
                batch.set_runs(rest);
            }
            prop_assert_eq!(seen, runs);
        }
    }
}
