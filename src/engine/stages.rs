//! Measures where a subtask's time goes.
//!
//! A subtask notes when it goes from one activity to the next, a few times a batch and never for a record. The job task reads
//! that four times a second and tells two kinds of waiting apart: a wait for records that are in the log is the brokers',
//! and a wait for records that nobody has written yet is nobody's. What is in a log is known from whoever measured its end
//! last. A record below such an end was there all the time since then, so a position below an end that was known at the
//! reading before proves that there was something to read in between; a job that has read all that was known is never blamed
//! on the brokers.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

use super::subtask::Activity;
use crate::model::stages::{RunStages, Stage, StageTimes, WINDOW};

/// Between two readings that are kept, of which the window begins with one.
const KEEP_EVERY: Duration = Duration::from_secs(2);

/// What a subtask has spent on each activity. Written by the subtask, read by the job task.
#[derive(Debug)]
pub(super) struct ActivityClock(Mutex<Spent>);

#[derive(Debug)]
struct Spent {
    now: Activity,
    since: Instant,
    times: [Duration; Activity::COUNT],
    flushes: u64,
}

impl Default for ActivityClock {
    fn default() -> Self {
        Self(Mutex::new(Spent {
            now: Activity::Idle,
            since: Instant::now(),
            times: [Duration::ZERO; Activity::COUNT],
            flushes: 0,
        }))
    }
}

impl ActivityClock {
    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the subtask does something else.
    pub(super) fn enter(&self, activity: Activity) {
        let mut spent = self.spent();
        if spent.now == activity {
            return;
        }
        let now = Instant::now();
        let passed = now.saturating_duration_since(spent.since);
        let before = spent.now as usize;
        spent.times[before] += passed;
        spent.since = now;
        spent.now = activity;
    }

    pub(super) fn now(&self) -> Activity {
        self.spent().now
    }

    /// The sink has made everything durable.
    pub(super) fn flushed(&self) {
        self.spent().flushes += 1;
    }

    /// What was spent on each activity until now, the one under way included, and how often the sink has made everything
    /// durable.
    fn read(&self, now: Instant) -> ([Duration; Activity::COUNT], u64) {
        let spent = self.spent();
        let mut times = spent.times;
        times[spent.now as usize] += now.saturating_duration_since(spent.since);
        (times, spent.flushes)
    }
}

/// How long something was waited for, all together.
#[derive(Debug, Default)]
pub(super) struct Stopwatch(Mutex<(Duration, Option<Instant>)>);

impl Stopwatch {
    fn state(&self) -> MutexGuard<'_, (Duration, Option<Instant>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what may have to wait.
    pub(super) fn while_waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.state().1 = Some(Instant::now());
        let outcome = wait();
        let mut state = self.state();
        if let Some(since) = state.1.take() {
            state.0 += since.elapsed();
        }
        outcome
    }

    fn read(&self, now: Instant) -> Duration {
        let (total, since) = *self.state();
        total + since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// What there was to read all the time since the reading before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unread {
    /// Nothing that anybody knows of.
    Nothing,
    /// Records of partitions that are held back until the others have come as far.
    HeldBack,
    /// Records.
    Records,
}

/// One reading of a subtask.
pub(super) struct Reading {
    activities: [Duration; Activity::COUNT],
    flushes: u64,
    handover_wait: Duration,
    unread: Unread,
    is_flushing: bool,
}

impl Reading {
    pub(super) fn take(
        clock: &ActivityClock,
        blocked: &Stopwatch,
        unread: Unread,
        is_flushing: bool,
        now: Instant,
    ) -> Self {
        let (activities, flushes) = clock.read(now);
        Self {
            activities,
            flushes,
            handover_wait: blocked.read(now),
            unread,
            is_flushing,
        }
    }
}

/// What the job task keeps of the times of its subtasks.
pub(super) struct StageLog {
    /// Each subtask's activities at the last reading, and its stages until then.
    subtasks: Vec<([Duration; Activity::COUNT], StageTimes)>,
    /// Readings of the last minute, oldest first, and the one before that begins it.
    kept: VecDeque<(Instant, Vec<StageTimes>)>,
}

impl StageLog {
    pub(super) fn new(subtasks: usize, now: Instant) -> Self {
        let none = vec![StageTimes::default(); subtasks];
        Self {
            subtasks: vec![([Duration::ZERO; Activity::COUNT], StageTimes::default()); subtasks],
            kept: VecDeque::from([(now, none)]),
        }
    }

    /// Adds a reading of every subtask.
    pub(super) fn add(&mut self, readings: &[Reading], now: Instant) {
        for ((before, stages), reading) in self.subtasks.iter_mut().zip(readings) {
            for activity in Activity::ALL {
                let at = activity as usize;
                let passed = reading.activities[at].saturating_sub(before[at]);
                stages.add(stage_of(activity, reading), passed);
            }
            stages.handover_wait = reading.handover_wait;
            stages.flushes = reading.flushes;
            *before = reading.activities;
        }
        let newest = self.kept.back().map(|(at, _)| *at);
        if newest.is_none_or(|newest| now.saturating_duration_since(newest) >= KEEP_EVERY) {
            self.kept.push_back((now, self.totals()));
        }
        let is_enough = |(at, _): &(Instant, _)| now.saturating_duration_since(*at) >= WINDOW;
        while self.kept.get(1).is_some_and(is_enough) {
            self.kept.pop_front();
        }
    }

    fn totals(&self) -> Vec<StageTimes> {
        self.subtasks.iter().map(|(_, stages)| *stages).collect()
    }

    /// What there is to show.
    pub(super) fn report(&self, now: Instant, wall: DateTime<Utc>) -> RunStages {
        let totals = self.totals();
        let Some((begin, before)) = self.kept.front() else {
            return RunStages::new(wall);
        };
        let window = now.saturating_duration_since(*begin);
        let lately = totals.iter().zip(before);
        RunStages {
            lately: lately.map(|(now, before)| now.since(before)).collect(),
            totals,
            since: wall - TimeDelta::from_std(window).unwrap_or_default(),
            window,
        }
    }
}

/// Where the time of an activity is counted.
fn stage_of(activity: Activity, reading: &Reading) -> Stage {
    match activity {
        Activity::Idle => match reading.unread {
            // All is read, and not all of it written.
            Unread::Nothing if reading.is_flushing => Stage::SinkFlush,
            Unread::Nothing => Stage::Idle,
            Unread::HeldBack => Stage::Alignment,
            Unread::Records => Stage::FetchWait,
        },
        Activity::Decode => Stage::Decode,
        Activity::SinkWrite | Activity::SinkOpen | Activity::DeadLetters => Stage::SinkWrite,
        Activity::SinkFlush => Stage::SinkFlush,
        Activity::Frozen => Stage::Checkpoint,
        Activity::RateLimit => Stage::RateLimit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn pass(seconds: u32) {
        tokio::time::advance(seconds * SECOND).await;
    }

    fn read(log: &mut StageLog, clock: &ActivityClock, unread: Unread) {
        let now = Instant::now();
        let blocked = Stopwatch::default();
        log.add(&[Reading::take(clock, &blocked, unread, false, now)], now);
    }

    #[tokio::test(start_paused = true)]
    async fn every_moment_belongs_to_one_stage_also_the_one_under_way() {
        let clock = ActivityClock::default();
        let mut log = StageLog::new(1, Instant::now());
        pass(1).await;
        clock.enter(Activity::Decode);
        pass(2).await;
        clock.enter(Activity::SinkWrite);
        pass(3).await;
        read(&mut log, &clock, Unread::Nothing);
        clock.enter(Activity::SinkWrite);
        pass(4).await;
        clock.enter(Activity::Idle);
        pass(5).await;
        read(&mut log, &clock, Unread::Records);
        pass(6).await;
        read(&mut log, &clock, Unread::Nothing);
        pass(8).await;
        read(&mut log, &clock, Unread::HeldBack);
        let report = log.report(Instant::now(), DateTime::UNIX_EPOCH);
        let times = report.totals[0];
        let seconds = Stage::ALL.map(|stage| times.of(stage).as_secs());
        // Fetch wait, decode, sink write, sink flush, checkpoint, rate limit, alignment, idle.
        assert_eq!(seconds, [5, 2, 7, 0, 0, 0, 8, 1 + 6]);
        assert_eq!(times.total(), 29 * SECOND);
        assert_eq!((report.window, report.lately[0]), (29 * SECOND, times));
    }

    #[tokio::test(start_paused = true)]
    async fn time_without_anything_to_read_is_the_sinks_as_long_as_it_writes() {
        let clock = ActivityClock::default();
        let mut log = StageLog::new(1, Instant::now());
        let blocked = Stopwatch::default();
        for (unread, is_flushing) in [
            (Unread::Nothing, true),
            (Unread::Records, true),
            (Unread::Nothing, false),
        ] {
            pass(10).await;
            clock.flushed();
            let now = Instant::now();
            log.add(
                &[Reading::take(&clock, &blocked, unread, is_flushing, now)],
                now,
            );
        }
        let times = log.report(Instant::now(), DateTime::UNIX_EPOCH).totals[0];
        for stage in [Stage::SinkFlush, Stage::FetchWait, Stage::Idle] {
            assert_eq!(times.of(stage), 10 * SECOND, "{stage:?}");
        }
        assert_eq!(times.flushes, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_older_than_a_minute_counts_no_more() {
        let clock = ActivityClock::default();
        let mut log = StageLog::new(1, Instant::now());
        clock.enter(Activity::SinkFlush);
        for second in 0..200 {
            if second == 100 {
                clock.enter(Activity::Frozen);
            }
            pass(1).await;
            read(&mut log, &clock, Unread::Nothing);
        }
        let report = log.report(Instant::now(), DateTime::UNIX_EPOCH);
        assert_eq!(report.window, 60 * SECOND);
        assert_eq!(report.lately[0].of(Stage::SinkFlush), Duration::ZERO);
        assert_eq!(report.lately[0].of(Stage::Checkpoint), 60 * SECOND);
        assert_eq!(report.totals[0].of(Stage::SinkFlush), 100 * SECOND);
        assert!(log.kept.len() <= 32, "{}", log.kept.len());
    }

    #[test]
    fn a_wait_that_is_not_over_is_counted() {
        let watch = Stopwatch::default();
        let during = watch.while_waiting(|| watch.read(Instant::now() + 3 * SECOND));
        assert!(during >= 2 * SECOND, "{during:?}");
        assert!(watch.read(Instant::now() + 3 * SECOND) < SECOND);
    }
}
