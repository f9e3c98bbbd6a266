//! Holds a job to its limits: a bucket of tokens for records and one for bytes, shared by the job's subtasks.
//!
//! A bucket fills as time goes by and holds a second's worth. A subtask that has a batch takes from its front what there are
//! tokens for, and waits while there are too few to be worth a call of the sink; the rest of the batch stays with it. What it
//! took may cost a little more than there was (one large record): the bucket then owes, and the next one waits longer, so over
//! a while the limit holds exactly. Subtasks wait in a queue, so none of them starves.
//!
//! A wait is a future that may be dropped at any time, and nothing was taken then: barriers, stops and cancellation are served
//! in the middle of it.
//!
//! Why not a crate: `governor` decides with a fixed quota for single cells. Here the quota changes while somebody waits, two
//! quotas count at once, and a batch takes what there is instead of all or nothing; what would be left of a crate is the
//! arithmetic below.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::model::{limits::LimitsSpec, record::RecordBatch};

/// How much of the past a bucket holds, in seconds: what a job was kept from for longer is not caught up on.
const BURST_S: f64 = 1.0;
/// How much is worth a call of the sink, in seconds of the limit.
const WORTH_S: f64 = 0.05;

/// Tokens that come at a steady rate.
#[derive(Debug)]
struct Bucket {
    per_s: f64,
    /// What there is; below zero what is owed.
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Begins empty: a start is no reason for a burst.
    fn new(per_s: f64, now: Instant) -> Self {
        Self {
            per_s,
            tokens: 0.0,
            at: now,
        }
    }

    fn most(&self) -> f64 {
        (self.per_s * BURST_S).max(1.0)
    }

    fn fill(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.tokens = elapsed.mul_add(self.per_s, self.tokens).min(self.most());
    }

    /// How long until there are so many, as far as the bucket holds them.
    fn until(&self, tokens: f64) -> Duration {
        let missing = tokens.min(self.most()) - self.tokens;
        // A hair less than nothing is nothing: sums of fractions are not exact.
        if missing < 1e-6 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64(missing / self.per_s)
    }

    /// How many are worth waiting for, if there is work for so many.
    fn worth(&self, work: f64) -> f64 {
        (self.per_s * WORTH_S).max(1.0).min(work)
    }

    fn change(&mut self, per_s: f64, now: Instant) {
        self.fill(now);
        self.per_s = per_s;
        // Debts stay: what was read was read.
        self.tokens = self.tokens.min(self.most());
    }
}

/// The two buckets; pure but for the time that comes in.
#[derive(Debug, Default)]
struct Budget {
    records: Option<Bucket>,
    bytes: Option<Bucket>,
}

#[expect(
    clippy::cast_precision_loss,
    reason = "limits stay far below 2^53, and counts of one batch too"
)]
fn real(number: u64) -> f64 {
    number as f64
}

impl Budget {
    fn change(&mut self, limits: LimitsSpec, now: Instant) {
        let change = |bucket: &mut Option<Bucket>, limit: Option<u64>| match (&mut *bucket, limit) {
            (Some(bucket), Some(limit)) => bucket.change(real(limit), now),
            (_, limit) => *bucket = limit.map(|limit| Bucket::new(real(limit), now)),
        };
        change(&mut self.records, limits.records_per_s);
        change(&mut self.bytes, limits.bytes_per_s);
    }

    /// Takes tokens for the first records of a batch and says how many records those are; at least one. The error is how
    /// long to wait before asking again.
    fn take(&mut self, batch: &RecordBatch, now: Instant) -> Result<usize, Duration> {
        for bucket in [&mut self.records, &mut self.bytes].into_iter().flatten() {
            bucket.fill(now);
        }
        let mut records = batch.len();
        if let Some(bucket) = &self.records {
            let all = real(records as u64);
            let wait = bucket.until(bucket.worth(all));
            if !wait.is_zero() {
                return Err(wait);
            }
            records = whole(bucket.tokens + 1e-6).clamp(1, records.max(1));
        }
        let mut cost = 0;
        if let Some(bucket) = &self.bytes {
            let (fitting, bytes) = prefix(batch, records, bucket.tokens);
            let all = if fitting < batch.len() {
                f64::INFINITY
            } else {
                real(bytes)
            };
            let wait = bucket.until(bucket.worth(all));
            if !wait.is_zero() {
                return Err(wait);
            }
            (records, cost) = (fitting, bytes);
        }
        if let Some(bucket) = &mut self.records {
            bucket.tokens -= real(records as u64);
        }
        if let Some(bucket) = &mut self.bytes {
            bucket.tokens -= real(cost);
        }
        Ok(records)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float becomes the nearest number that the type holds"
)]
fn whole(tokens: f64) -> usize {
    tokens.max(0.0) as usize
}

/// The first records of a batch that cost no more than there is, at least one and at most `most`, and their bytes.
fn prefix(batch: &RecordBatch, most: usize, tokens: f64) -> (usize, u64) {
    let (mut records, mut bytes) = (0, 0);
    for run in batch.runs() {
        for index in run.records.clone() {
            let next = batch.payload_bytes(index..index + 1);
            let fits = records == 0 || real(bytes + next) <= tokens;
            if records == most || !fits {
                return (records, bytes);
            }
            records += 1;
            bytes += next;
        }
    }
    (records, bytes)
}

/// The limits of a job, shared by its subtasks. They may change at any time.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    budget: Mutex<Budget>,
    limited: AtomicBool,
    /// Whoever holds it waits for tokens; the others wait for it, first come first served.
    turn: tokio::sync::Mutex<()>,
    changed: Notify,
    waited_us: AtomicU64,
}

impl RateLimit {
    pub(super) fn new(limits: LimitsSpec) -> Self {
        let limit = Self::default();
        limit.change(limits);
        limit
    }

    /// From now on other limits hold, also for those who wait.
    pub(super) fn change(&self, limits: LimitsSpec) {
        self.budget().change(limits, Instant::now());
        self.limited.store(limits.is_limited(), Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Whether there is any limit; costs nothing to ask.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Acquire)
    }

    /// How long subtasks have waited for tokens, all together.
    pub(super) fn waited(&self) -> Duration {
        Duration::from_micros(self.waited_us.load(Ordering::Relaxed))
    }

    /// Waits until something of a batch may go, and says how many of its records. Dropped before its end it has taken
    /// nothing.
    pub(super) async fn take(&self, batch: &RecordBatch) -> usize {
        let _waits = Waits {
            limit: self,
            since: Instant::now(),
        };
        let _turn = self.turn.lock().await;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look: a change in between must not be missed.
            changed.as_mut().enable();
            let now = Instant::now();
            let wait = match self.budget().take(batch, now) {
                Ok(records) => return records,
                Err(wait) => wait,
            };
            tokio::select! {
                () = sleep_until(now + wait) => {}
                () = changed => {}
            }
        }
    }

    fn budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the time until it is dropped.
struct Waits<'a> {
    limit: &'a RateLimit,
    since: Instant,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let waited = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.limit.waited_us.fetch_add(waited, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::model::{
        record::{BatchRun, ConsumerRecord, RecordSource},
        topic::TopicPartition,
    };

    /// Records with values of these lengths.
    struct Lengths(Vec<usize>, Vec<u8>);

    impl RecordSource for Lengths {
        fn record(&self, index: usize) -> ConsumerRecord<'_> {
            ConsumerRecord {
                record_offset: i64::try_from(index).unwrap(),
                timestamp_ms: None,
                key: None,
                value: Some(&self.1[..self.0[index]]),
            }
        }
    }

    fn batch(lengths: Vec<usize>) -> RecordBatch {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let run = BatchRun {
            partition: Arc::new(TopicPartition::new("orders", 0)),
            records: 0..lengths.len(),
            advance_to: None,
        };
        RecordBatch::new(vec![run], Box::new(Lengths(lengths, vec![0; longest])))
    }

    fn limits(records_per_s: Option<u64>, bytes_per_s: Option<u64>) -> LimitsSpec {
        LimitsSpec {
            records_per_s,
            bytes_per_s,
        }
    }

    /// What comes through in a time, from batches that never end: records and bytes.
    async fn drain(limit: &RateLimit, lengths: &[usize], time: Duration) -> (usize, usize) {
        let until = Instant::now() + time;
        let (mut records, mut bytes) = (0, 0);
        let mut left = batch(lengths.to_vec());
        let mut at = 0;
        while let Ok(taken) = tokio::time::timeout_at(until, limit.take(&left)).await {
            records += taken;
            bytes += lengths[at..at + taken].iter().sum::<usize>();
            at += taken;
            let rest = left.keep_first(taken);
            if rest.is_empty() {
                (left, at) = (batch(lengths.to_vec()), 0);
            } else {
                left.set_runs(rest);
            }
        }
        (records, bytes)
    }

    fn is_close(number: usize, expected: usize) -> bool {
        number.abs_diff(expected) * 100 <= expected
    }

    #[tokio::test(start_paused = true)]
    async fn over_a_minute_the_limits_hold_within_a_hundredth() {
        let minute = Duration::from_secs(60);
        for rate in [7, 100, 1_000, 25_000] {
            let limit = RateLimit::new(limits(Some(rate), None));
            let (records, _) = drain(&limit, &[10; 1_000], minute).await;
            let expected = usize::try_from(rate).unwrap() * 60;
            // Less than a hundredth is one record at seven a second.
            assert!(
                is_close(records, expected) || records.abs_diff(expected) <= 1,
                "{rate}: {records}"
            );
        }
        // Records of a few bytes, with some that are larger than what the bucket holds.
        let mut lengths = vec![100; 1_000];
        lengths[10] = 90_000;
        lengths[500] = 30_000;
        let limit = RateLimit::new(limits(None, Some(20_000)));
        let (_, bytes) = drain(&limit, &lengths, minute).await;
        assert!(bytes.abs_diff(1_200_000) <= 90_000, "{bytes}");
        // The smaller one counts.
        let limit = RateLimit::new(limits(Some(1_000), Some(10_000)));
        let (records, bytes) = drain(&limit, &[100; 1_000], minute).await;
        assert!(
            is_close(records, 6_000) && is_close(bytes, 600_000),
            "{records}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn subtasks_share_a_limit_and_none_starves() {
        let limit = RateLimit::new(limits(Some(1_000), None));
        let minute = Duration::from_secs(60);
        let lengths = [10; 1_000];
        let ((one, _), (two, _), (three, _)) = tokio::join!(
            drain(&limit, &lengths, minute),
            drain(&limit, &lengths, minute),
            drain(&limit, &lengths, minute),
        );
        assert!(is_close(one + two + three, 60_000), "{one} {two} {three}");
        assert!(one.min(two).min(three) > 15_000, "{one} {two} {three}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_missed_for_longer_than_a_second_is_not_caught_up_on() {
        let limit = RateLimit::new(limits(Some(100), None));
        tokio::time::sleep(Duration::from_secs(30)).await;
        let (records, _) = drain(&limit, &[1; 1_000], Duration::from_secs(10)).await;
        assert!((1_000..=1_101).contains(&records), "{records}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_limit_counts_at_once_for_whoever_waits() {
        let limit = Arc::new(RateLimit::new(limits(Some(1), None)));
        let begin = Instant::now();
        let left = batch(vec![1; 1_000]);
        let change = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            limit.change(LimitsSpec::default());
        };
        let (taken, ()) = tokio::join!(limit.take(&left), change);
        assert_eq!(taken, 1_000);
        assert_eq!(begin.elapsed(), Duration::from_millis(100));
        assert_eq!(limit.waited(), Duration::from_millis(100));
        assert!(!limit.is_limited());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_called_off_has_taken_nothing() {
        let limit = RateLimit::new(limits(Some(10), None));
        let left = batch(vec![1; 1_000]);
        for _ in 0..9 {
            let called_off = tokio::time::timeout(Duration::from_millis(10), limit.take(&left));
            assert!(called_off.await.is_err());
        }
        let (records, _) = drain(&limit, &[1; 1_000], Duration::from_millis(9_915)).await;
        assert_eq!(records, 100, "all of the ten seconds count");
    }

    proptest! {
        /// Whatever the batches are: never more goes through than the rate times the time, a burst and one record.
        #[test]
        fn a_budget_never_gives_more_than_it_has(
            records_per_s in prop::option::of(1_u64..2_000),
            bytes_per_s in prop::option::of(1_u64..200_000),
            rounds in prop::collection::vec((0_u64..2_000, prop::collection::vec(0_usize..5_000, 1..50)), 1..60),
        ) {
            let mut now = Instant::now();
            let begin = now;
            let mut budget = Budget::default();
            budget.change(limits(records_per_s, bytes_per_s), now);
            let (mut records, mut bytes) = (0, 0);
            for (pause, lengths) in rounds {
                now += Duration::from_millis(pause);
                if let Ok(taken) = budget.take(&batch(lengths.clone()), now) {
                    prop_assert!((1..=lengths.len()).contains(&taken));
                    records += taken;
                    bytes += lengths[..taken].iter().sum::<usize>();
                }
                let time = (now - begin).as_secs_f64();
                if let Some(rate) = records_per_s {
                    prop_assert!(real(records as u64) <= real(rate).mul_add(time, real(rate).max(1.0)) + 1.0);
                }
                if let Some(rate) = bytes_per_s {
                    prop_assert!(real(bytes as u64) <= real(rate).mul_add(time, real(rate).max(1.0)) + 5_000.0);
                }
            }
        }
    }
}
