//! Where the time of a running job goes, and what holds it back.
//!
//! A subtask is always at exactly one [`Stage`], so what it spent at each of them adds up to the time that has passed. Beside
//! it runs the thread that fetches: how long that stood with a batch which the subtask did not take is told apart and is no
//! part of the sum.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

/// How much of the past the shares are of.
pub const WINDOW: Duration = Duration::from_secs(60);
/// How long a run is watched before the shares mean anything.
pub const AT_LEAST: Duration = Duration::from_secs(10);
/// A subtask that waits for work at least this share of its time is faster than its topics are written.
const SPARE: f64 = 0.2;
/// The sink takes records without being waited for if this share of the time spent on it, or less, went into giving it
/// records: all the rest went into checkpoints.
const TAKES_READILY: f64 = 0.2;
/// Flushes that take longer than this on average take it for the records and not for themselves: fewer of them would not help.
const LONG_FLUSH: Duration = Duration::from_secs(5);

/// What a subtask spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Waits for records although there are unread ones in the logs.
    FetchWait = 0,
    /// Checks values against the format.
    Decode = 1,
    /// Waits for the sink to take records.
    SinkWrite = 2,
    /// Waits for the sink to make everything durable, at a checkpoint, or with nothing else to do.
    SinkFlush = 3,
    /// Takes no records because the last checkpoint of a stop is under way, or the store does not confirm the lease.
    Checkpoint = 4,
    /// Has records that the limits hold back.
    RateLimit = 5,
    /// Waits for records, and the unread ones are those of partitions that alignment holds back.
    Alignment = 6,
    /// Waits for records, and everything that is known to be in the logs is read.
    Idle = 7,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::FetchWait,
        Self::Decode,
        Self::SinkWrite,
        Self::SinkFlush,
        Self::Checkpoint,
        Self::RateLimit,
        Self::Alignment,
        Self::Idle,
    ];

    /// Its name in views, metrics and series.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FetchWait => "fetch_wait",
            Self::Decode => "decode",
            Self::SinkWrite => "sink_write",
            Self::SinkFlush => "sink_flush",
            Self::Checkpoint => "checkpoint",
            Self::RateLimit => "rate_limit",
            Self::Alignment => "alignment",
            Self::Idle => "idle",
        }
    }
}

/// The name of what is measured beside the stages.
pub const HANDOVER_WAIT: &str = "handover_wait";

/// Time by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    spent: [Duration; Stage::ALL.len()],
    /// How long the fetching thread stood with a batch that the subtask did not take.
    pub handover_wait: Duration,
    /// How often the sink has made everything durable.
    pub flushes: u64,
}

impl StageTimes {
    /// Adds time to a stage.
    pub fn add(&mut self, stage: Stage, time: Duration) {
        self.spent[stage as usize] += time;
    }

    /// What was spent on a stage.
    #[must_use]
    pub const fn of(&self, stage: Stage) -> Duration {
        self.spent[stage as usize]
    }

    /// All of the subtask's time.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.spent.iter().sum()
    }

    /// What came on top of an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut spent = self.spent;
        for (now, before) in spent.iter_mut().zip(earlier.spent) {
            *now = now.saturating_sub(before);
        }
        Self {
            spent,
            handover_wait: self.handover_wait.saturating_sub(earlier.handover_wait),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }

    /// The sum of several.
    #[must_use]
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for one in all {
            for stage in Stage::ALL {
                sum.add(stage, one.of(stage));
            }
            sum.handover_wait += one.handover_wait;
            sum.flushes += one.flushes;
        }
        sum
    }

    /// Whether flushes take long, one that is not over or has not succeeded included.
    fn has_long_flushes(&self) -> bool {
        let flushes = u32::try_from(self.flushes).unwrap_or(u32::MAX).max(1);
        self.of(Stage::SinkFlush) / flushes >= LONG_FLUSH
    }

    /// Each with its name, what is measured beside the stages at the end.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, Duration)> + use<'_> {
        let stages = Stage::ALL.into_iter();
        stages
            .map(|stage| (stage.name(), self.of(stage)))
            .chain([(HANDOVER_WAIT, self.handover_wait)])
    }

    /// The shares of the whole; `None` if no time has passed.
    #[must_use]
    pub fn shares(&self) -> Option<StageShares> {
        let total = self.total().as_secs_f64();
        let share = |time: Duration| (time.as_secs_f64() / total * 1_000.0).round() / 1_000.0;
        (total > 0.0).then(|| StageShares {
            fetch_wait: share(self.of(Stage::FetchWait)),
            decode: share(self.of(Stage::Decode)),
            sink_write: share(self.of(Stage::SinkWrite)),
            sink_flush: share(self.of(Stage::SinkFlush)),
            checkpoint: share(self.of(Stage::Checkpoint)),
            rate_limit: share(self.of(Stage::RateLimit)),
            alignment: share(self.of(Stage::Alignment)),
            idle: share(self.of(Stage::Idle)),
            handover_wait: share(self.handover_wait).min(1.0),
        })
    }
}

/// What a run shows of where its time goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStages {
    /// Each subtask's time since the run began.
    pub totals: Vec<StageTimes>,
    /// Of that, what fell into the last minute.
    pub lately: Vec<StageTimes>,
    /// When that last minute began: a minute ago, or with the run.
    pub since: DateTime<Utc>,
    /// How long it is.
    pub window: Duration,
}

impl RunStages {
    /// Before anything was measured.
    #[must_use]
    pub const fn new(since: DateTime<Utc>) -> Self {
        Self {
            totals: Vec::new(),
            lately: Vec::new(),
            since,
            window: Duration::ZERO,
        }
    }

    /// Whether the run was watched for long enough.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.window >= AT_LEAST
    }
}

/// Shares of the time, between 0 and 1. A subtask is always at one stage: all but `handover_wait` add up to 1, but for
/// rounding to a thousandth.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct StageShares {
    /// Waited for records of the brokers although there were unread ones in the logs (as far as these were known at the last
    /// measurement, a few seconds ago at most).
    pub fetch_wait: f64,
    /// Checked values against the format.
    pub decode: f64,
    /// Waited until the sink took records; with it the opening of its writer, and the answers to dead letters.
    pub sink_write: f64,
    /// Waited until the sink had made everything durable: at checkpoints, and while everything was read and the sink still
    /// wrote, or tried to.
    pub sink_flush: f64,
    /// Took no records because the last checkpoint of a stop was under way, or the store did not confirm the lease.
    pub checkpoint: f64,
    /// Had records that the limits held back.
    pub rate_limit: f64,
    /// Waited for records, and the unread ones were those of partitions that the alignment of watermarks held back.
    pub alignment: f64,
    /// Waited for records, and everything that was known to be in the logs was read.
    pub idle: f64,
    /// Beside the others, and no part of their sum: how long the thread that fetches stood with a batch that the subtask did
    /// not take yet. Near 1, records are there faster than they are processed.
    pub handover_wait: f64,
}

/// What holds a job back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BottleneckKind {
    /// It waits for records of the brokers, which have unread ones.
    Broker,
    /// It checks values.
    Decode,
    /// It waits for the sink to take records, or to get through with those that it has taken.
    Sink,
    /// The sink takes records readily, and the time goes into checkpoints.
    Checkpoint,
    /// Its limits hold it back.
    RateLimit,
    /// The alignment of its watermarks holds partitions back that are ahead of the others.
    Alignment,
    /// Nothing: it waits for records that are not written yet.
    None,
}

/// What holds a job back, and in which subtask that was seen: the one with the least time to spare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    /// What.
    pub kind: BottleneckKind,
    /// Which subtask.
    pub subtask: usize,
    /// Its shares.
    pub shares: StageShares,
}

/// Finds what holds a job back in the times of its subtasks; `None` if no time has passed.
#[must_use]
pub fn bottleneck(subtasks: &[StageTimes]) -> Option<Held> {
    let shares = subtasks.iter().map(StageTimes::shares);
    let shares: Option<Vec<StageShares>> = shares.collect();
    let (subtask, shares) = shares?
        .into_iter()
        .enumerate()
        .min_by(|(_, one), (_, other)| one.idle.total_cmp(&other.idle))?;
    let long_flushes = subtasks
        .get(subtask)
        .is_some_and(StageTimes::has_long_flushes);
    Some(Held {
        kind: kind_of(&shares, long_flushes),
        subtask,
        shares,
    })
}

fn kind_of(shares: &StageShares, long_flushes: bool) -> BottleneckKind {
    if shares.idle >= SPARE {
        return BottleneckKind::None;
    }
    let at_checkpoints = shares.sink_flush + shares.checkpoint;
    let on_sink = shares.sink_write + at_checkpoints;
    let of_the_sink = long_flushes && shares.sink_flush >= shares.checkpoint;
    let sink = if !of_the_sink && shares.sink_write <= on_sink * TAKES_READILY {
        BottleneckKind::Checkpoint
    } else {
        BottleneckKind::Sink
    };
    let candidates = [
        (BottleneckKind::Broker, shares.fetch_wait),
        (BottleneckKind::Decode, shares.decode),
        (sink, on_sink),
        (BottleneckKind::RateLimit, shares.rate_limit),
        (BottleneckKind::Alignment, shares.alignment),
    ];
    let most = candidates
        .into_iter()
        .max_by(|(_, one), (_, other)| one.total_cmp(other));
    most.map_or(BottleneckKind::None, |(kind, _)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(parts: &[(Stage, u64)]) -> StageTimes {
        let mut times = StageTimes::default();
        for (stage, seconds) in parts {
            times.add(*stage, Duration::from_secs(*seconds));
        }
        times
    }

    #[test]
    fn what_takes_most_of_the_time_holds_the_job_back() {
        use Stage::{
            Alignment, Checkpoint, Decode, FetchWait, Idle, RateLimit, SinkFlush, SinkWrite,
        };
        let rows = [
            (vec![(FetchWait, 50), (Decode, 10)], BottleneckKind::Broker),
            (vec![(FetchWait, 10), (Decode, 50)], BottleneckKind::Decode),
            (
                vec![(SinkWrite, 40), (SinkFlush, 15), (FetchWait, 5)],
                BottleneckKind::Sink,
            ),
            // Each alone takes less than the wait for the brokers.
            (
                vec![(SinkWrite, 20), (SinkFlush, 15), (FetchWait, 25)],
                BottleneckKind::Sink,
            ),
            (
                vec![(SinkWrite, 1), (SinkFlush, 40), (FetchWait, 19)],
                BottleneckKind::Checkpoint,
            ),
            (
                vec![(Checkpoint, 40), (FetchWait, 20)],
                BottleneckKind::Checkpoint,
            ),
            (
                vec![(RateLimit, 50), (SinkWrite, 10)],
                BottleneckKind::RateLimit,
            ),
            (
                vec![(Alignment, 50), (FetchWait, 10)],
                BottleneckKind::Alignment,
            ),
            (vec![(Idle, 60)], BottleneckKind::None),
            // It does not wait for what is not written as long as it has no time to spare.
            (vec![(Idle, 6), (SinkWrite, 54)], BottleneckKind::Sink),
            (vec![(Idle, 12), (SinkWrite, 48)], BottleneckKind::None),
        ];
        for (parts, kind) in rows {
            let mut times = times(&parts);
            times.flushes = 60;
            let held = bottleneck(&[times]).unwrap();
            assert_eq!(held.kind, kind, "{parts:?}");
        }
        // The same time in one long flush, or in none that succeeds, is not the checkpoints'.
        for flushes in 0..=8 {
            let mut times = times(&[(SinkWrite, 1), (SinkFlush, 40), (FetchWait, 19)]);
            times.flushes = flushes;
            assert_eq!(bottleneck(&[times]).unwrap().kind, BottleneckKind::Sink);
        }
        assert_eq!(bottleneck(&[StageTimes::default()]), None);
        assert_eq!(bottleneck(&[]), None);
    }

    #[test]
    fn the_subtask_with_the_least_time_to_spare_decides() {
        let idle = times(&[(Stage::Idle, 60)]);
        let busy = times(&[(Stage::Decode, 59), (Stage::Idle, 1)]);
        let held = bottleneck(&[idle, busy, idle]).unwrap();
        assert_eq!((held.kind, held.subtask), (BottleneckKind::Decode, 1));
    }

    #[test]
    fn shares_add_up_and_the_hand_over_stands_beside_them() {
        let mut all = times(&[(Stage::Decode, 1), (Stage::SinkWrite, 1), (Stage::Idle, 1)]);
        all.handover_wait = Duration::from_secs(2);
        let shares = all.shares().unwrap();
        assert_eq!((shares.decode, shares.handover_wait), (0.333, 0.667));
        let earlier = times(&[(Stage::Decode, 1)]);
        let later = all.since(&earlier).shares().unwrap();
        assert_eq!((later.decode, later.sink_write), (0.0, 0.5));
        let names: Vec<&str> = all.named().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 9);
        assert_eq!(StageTimes::sum([&all, &earlier]).total().as_secs(), 4);
    }
}
