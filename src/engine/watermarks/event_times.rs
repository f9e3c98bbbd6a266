//! What a subtask notes of the time stamps that it gives to its sink: a few numbers per partition and batch.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use super::timestamps::timestamp_of;
use crate::model::{record::ConsumerRecord, watermark::TimestampSource};

/// Below every time stamp and every watermark.
const NONE: i64 = i64::MIN;

/// What was seen of a partition's time stamps. One task writes; the job task reads.
#[derive(Debug)]
pub(in crate::engine) struct EventTimes {
    greatest: AtomicI64,
    records: AtomicU64,
    late: AtomicU64,
}

impl Default for EventTimes {
    fn default() -> Self {
        Self {
            greatest: AtomicI64::new(NONE),
            records: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }
    }
}

impl EventTimes {
    /// The greatest time stamp that was given to the sink; `None` before the first.
    pub(in crate::engine) fn greatest(&self) -> Option<i64> {
        Some(self.greatest.load(Ordering::Relaxed)).filter(|stamp| *stamp != NONE)
    }

    /// Records that were given to the sink, those twice that had to be read again.
    pub(in crate::engine) fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Records that were late.
    pub(in crate::engine) fn late(&self) -> u64 {
        self.late.load(Ordering::Relaxed)
    }
}

/// The job's watermark, for those who count what is late.
#[derive(Debug)]
pub(in crate::engine) struct SharedWatermark(AtomicI64);

impl Default for SharedWatermark {
    fn default() -> Self {
        Self(AtomicI64::new(NONE))
    }
}

impl SharedWatermark {
    pub(in crate::engine) fn set(&self, watermark: Option<i64>) {
        self.0.store(watermark.unwrap_or(NONE), Ordering::Relaxed);
    }

    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Finds the time stamps of a batch's records before they are written, and notes them when they are.
pub(in crate::engine) struct EventTime {
    source: TimestampSource,
    job: Arc<SharedWatermark>,
    /// Time stamps of the batch at hand, by the index of the record.
    stamps: Vec<i64>,
}

impl EventTime {
    pub(in crate::engine) fn new(source: TimestampSource, job: Arc<SharedWatermark>) -> Self {
        Self {
            source,
            job,
            stamps: Vec::new(),
        }
    }

    /// Whether finding a time stamp takes the value apart, and so finds what is wrong with a JSON document, too.
    pub(in crate::engine) fn reads_values(&self) -> bool {
        matches!(self.source, TimestampSource::Field(_))
    }

    /// Finds the time stamp of one record.
    ///
    /// # Errors
    /// Why it has none.
    pub(in crate::engine) fn find(
        &mut self,
        index: usize,
        record: &ConsumerRecord<'_>,
    ) -> Result<(), String> {
        let stamp = timestamp_of(&self.source, record)?;
        if self.stamps.len() <= index {
            self.stamps.resize(index + 1, NONE);
        }
        self.stamps[index] = stamp;
        Ok(())
    }

    /// Notes records that the sink has taken. Of these the ones before `first_new` were given to it before, and are not
    /// counted as late a second time.
    pub(in crate::engine) fn note(
        &self,
        times: &EventTimes,
        records: Range<usize>,
        first_new: usize,
    ) {
        let Some(stamps) = self.stamps.get(records.clone()) else {
            return;
        };
        let Some(greatest) = stamps.iter().max() else {
            return;
        };
        let watermark = self.job.get();
        let new = first_new.clamp(records.start, records.end) - records.start;
        let late = stamps[new..]
            .iter()
            .filter(|stamp| **stamp <= watermark)
            .count();
        times.greatest.fetch_max(*greatest, Ordering::Relaxed);
        if late > 0 {
            times.late.fetch_add(late as u64, Ordering::Relaxed);
        }
        times
            .records
            .fetch_add(stamps.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_or_below_the_watermark_is_late_once() {
        let job = Arc::new(SharedWatermark::default());
        let mut event_time = EventTime::new(TimestampSource::Record, Arc::clone(&job));
        let times = EventTimes::default();
        assert_eq!(times.greatest(), None);
        for (index, stamp) in [5, 9, 3, 4].into_iter().enumerate() {
            let record = ConsumerRecord {
                record_offset: 0,
                timestamp_ms: Some(stamp),
                key: None,
                value: None,
            };
            event_time.find(index + 2, &record).unwrap();
        }
        event_time.note(&times, 2..6, 2);
        assert_eq!(
            (times.greatest(), times.records(), times.late()),
            (Some(9), 4, 0)
        );
        job.set(Some(4));
        event_time.note(&times, 2..6, 2);
        assert_eq!((times.records(), times.late()), (8, 2));
        // Read again: only the last one is new.
        event_time.note(&times, 2..6, 5);
        assert_eq!(times.late(), 3);
        event_time.note(&times, 3..3, 3);
        event_time.note(&times, 0..99, 0);
        assert_eq!((times.greatest(), times.records()), (Some(9), 12));
    }
}
