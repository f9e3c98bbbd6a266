//! What a subtask notes of the time stamps that it gives to its sink: a few numbers per partition and batch.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use tokio::sync::{Notify, watch};

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

/// What the job task tells the subtasks of the job's event time, and how they wake it.
#[derive(Debug)]
pub(in crate::engine) struct SharedWatermark {
    /// For those who count what is late.
    watermark: AtomicI64,
    /// The greatest time stamp that alignment allows.
    allowed: AtomicI64,
    /// Whether alignment wants to hear of first records.
    aligns: bool,
    /// A partition is ahead of what is allowed, or has shown its first record: a look is due at once.
    due: Notify,
    /// How many looks there were.
    looks: watch::Sender<u64>,
}

impl SharedWatermark {
    pub(in crate::engine) fn new(aligns: bool) -> Self {
        Self {
            watermark: AtomicI64::new(NONE),
            allowed: AtomicI64::new(i64::MAX),
            aligns,
            due: Notify::new(),
            looks: watch::Sender::new(0),
        }
    }

    /// Tells the watermark, and the greatest time stamp that alignment allows. Who is too far ahead was told before.
    pub(in crate::engine) fn set(&self, watermark: Option<i64>, allowed: Option<i64>) {
        self.watermark
            .store(watermark.unwrap_or(NONE), Ordering::Relaxed);
        self.allowed
            .store(allowed.unwrap_or(i64::MAX), Ordering::Relaxed);
        self.looks.send_modify(|looks| *looks += 1);
    }

    fn get(&self) -> i64 {
        self.watermark.load(Ordering::Relaxed)
    }

    /// A partition went from one greatest time stamp to another. Answers whether it is further ahead than was allowed at the
    /// last look.
    fn moved(&self, before: i64, now: i64) -> bool {
        let is_ahead = now > self.allowed.load(Ordering::Relaxed);
        if self.aligns && (is_ahead || before == NONE) {
            self.due.notify_one();
        }
        is_ahead
    }

    /// Waits until a look is due before its time. May be dropped and called again.
    pub(in crate::engine) async fn due(&self) {
        self.due.notified().await;
    }
}

/// Finds the time stamps of a batch's records before they are written, and notes them when they are.
pub(in crate::engine) struct EventTime {
    source: TimestampSource,
    job: Arc<SharedWatermark>,
    /// Time stamps of the batch at hand, by the index of the record.
    stamps: Vec<i64>,
    /// Looks at the event time of the job.
    looks: watch::Receiver<u64>,
    /// How many there were when a partition went further ahead than was allowed.
    ahead_at: Option<u64>,
}

impl EventTime {
    pub(in crate::engine) fn new(source: TimestampSource, job: Arc<SharedWatermark>) -> Self {
        let looks = job.looks.subscribe();
        Self {
            source,
            job,
            stamps: Vec::new(),
            looks,
            ahead_at: None,
        }
    }

    /// Whether finding a time stamp takes the value apart, and so finds what is wrong with a JSON document, too.
    pub(in crate::engine) fn reads_values(&self) -> bool {
        matches!(self.source, TimestampSource::Field(_))
    }

    /// Waits for the next look if a partition is further ahead than was allowed at the last one: nothing more is to be taken
    /// before it is known whether it is held back. May be dropped and called again.
    pub(in crate::engine) async fn looked_at(&mut self) {
        let Some(ahead_at) = self.ahead_at else {
            return;
        };
        // An error: the job task is gone, and ends this subtask.
        let _looked = self.looks.wait_for(|looks| *looks > ahead_at).await;
        self.ahead_at = None;
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
        &mut self,
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
        let before = times.greatest.fetch_max(*greatest, Ordering::Relaxed);
        if self.job.moved(before, *greatest) {
            self.ahead_at = Some(*self.looks.borrow());
        }
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
        let job = Arc::new(SharedWatermark::new(false));
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
        job.set(Some(4), None);
        event_time.note(&times, 2..6, 2);
        assert_eq!((times.records(), times.late()), (8, 2));
        // Read again: only the last one is new.
        event_time.note(&times, 2..6, 5);
        assert_eq!(times.late(), 3);
        event_time.note(&times, 3..3, 3);
        event_time.note(&times, 0..99, 0);
        assert_eq!((times.greatest(), times.records()), (Some(9), 12));
    }

    /// A permit is there at once when it is due, and no other is left behind.
    #[tokio::test]
    async fn who_is_ahead_or_new_makes_a_look_due_and_nobody_else() {
        let is_due = |job: &SharedWatermark| {
            let due = job.due();
            tokio::pin!(due);
            futures_util::FutureExt::now_or_never(due).is_some()
        };
        let job = SharedWatermark::new(true);
        job.set(None, Some(10));
        assert!(!is_due(&job));
        for (before, now, wanted) in [
            (NONE, 3, true),
            (3, 10, false),
            (10, 11, true),
            (11, 4, false),
        ] {
            job.moved(before, now);
            assert_eq!(
                (is_due(&job), is_due(&job)),
                (wanted, false),
                "{before} to {now}"
            );
        }
        let off = SharedWatermark::new(false);
        off.moved(NONE, i64::MAX);
        assert!(!is_due(&off));
    }
}
