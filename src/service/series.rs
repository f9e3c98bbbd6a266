//! What a job's numbers were over the last day, kept in memory.
//!
//! Two rings of a fixed size for each job: an hour at ten seconds and a day at a minute. A slot is the number of steps since
//! 1970, so all jobs have their points at the same times and what was missed (a server that was suspended, a clock that was
//! set forward) is a gap and not a shift. The rings outlive a stop of the job; a restart of the server begins new ones. Beside
//! them each partition has a small one with its lags.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};

use super::{
    Service,
    comparison::{job_lag, totals},
    core::{Core, JobEntry, JobFacts},
    error::{Result, ServiceError},
    jobs::{compare_now, live_of},
    queries::SeriesQuery,
};
use crate::model::{
    code::Code,
    ids::{JobName, LeaseEpoch},
    job_status::JobStatus,
    series::SeriesName,
    stages::StageTimes,
    topic::TopicPartition,
    views::{JobLag, PartitionOffsetsView, Series, SeriesView},
};

/// Between two points of the last hour.
pub const SERIES_FINE: Duration = Duration::from_secs(10);
/// Between two points of the last day.
pub const SERIES_COARSE: Duration = Duration::from_secs(60);
/// How much is kept in fine steps.
pub const SERIES_RECENT: Duration = Duration::from_secs(3_600);
/// How much is kept at all.
pub const SERIES_WINDOW: Duration = Duration::from_secs(86_400);

/// How much is kept of a partition, in fine steps.
pub const SERIES_OF_PARTITION: Duration = Duration::from_secs(900);

const FINE_S: i64 = seconds(SERIES_FINE);
const COARSE_S: i64 = seconds(SERIES_COARSE);
const FINE_SLOTS: usize = slots(SERIES_RECENT, SERIES_FINE);
const COARSE_SLOTS: usize = slots(SERIES_WINDOW, SERIES_COARSE);
const PARTITION_SLOTS: usize = slots(SERIES_OF_PARTITION, SERIES_FINE);
/// Partitions of a job that have series: the others have none.
const MOST_PARTITIONS: usize = 1_000;
/// So many steps a clock may be set back, and the points wait until it has come to where it was.
const WAITS_FOR: i64 = 3;
const NUMBERS: usize = SeriesName::ALL.len();
const OF_PARTITION: usize = SeriesName::OF_PARTITION.len();

const fn seconds(span: Duration) -> i64 {
    span.as_secs().cast_signed()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a small number, worked out by the compiler"
)]
const fn slots(kept: Duration, step: Duration) -> usize {
    (kept.as_secs() / step.as_secs()) as usize
}

/// The numbers of one step; NaN where they are not known.
type Point<const N: usize = NUMBERS> = [f32; N];

/// Points of consecutive slots.
#[derive(Debug)]
struct Ring<const N: usize> {
    points: VecDeque<Point<N>>,
    /// The slot of the newest one.
    newest: i64,
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Self {
            points: VecDeque::new(),
            newest: 0,
        }
    }
}

impl<const N: usize> Ring<N> {
    const UNKNOWN: Point<N> = [f32::NAN; N];

    /// Whether a point of this slot is new.
    fn wants(&self, slot: i64) -> bool {
        self.points.is_empty() || slot > self.newest || self.was_ahead(slot)
    }

    /// Whether the clock was far ahead when the newest point came, and is not any more.
    fn was_ahead(&self, slot: i64) -> bool {
        slot < self.newest - WAITS_FOR
    }

    fn put(&mut self, slot: i64, point: Point<N>, slots: usize) {
        if self.was_ahead(slot) {
            // Else there would be nothing new until it has come there again. What is older is gone: it was pushed out.
            self.points.clear();
        }
        if self.points.is_empty() {
            self.newest = slot - 1;
        }
        // A clock that was set back a little adds nothing until it has come to where it was.
        let Ok(steps @ 1..) = usize::try_from(slot - self.newest) else {
            return;
        };
        let missed = (steps - 1).min(slots - 1);
        let surplus = (self.points.len() + missed + 1).saturating_sub(slots);
        // First, so that the ring never grows beyond its size.
        self.points.drain(..surplus.min(self.points.len()));
        let gap = std::iter::repeat_n(Self::UNKNOWN, missed);
        self.points.extend(gap);
        self.points.push_back(point);
        self.newest = slot;
    }

    fn at(&self, slot: i64) -> Point<N> {
        let back = usize::try_from(self.newest - slot).ok();
        let index = back.and_then(|back| self.points.len().checked_sub(back + 1));
        let point = index.and_then(|index| self.points.get(index));
        point.copied().unwrap_or(Self::UNKNOWN)
    }

    /// The points of a window that end at times which are multiples of the step, the last one not later than the newest, or
    /// than now if there is none. A slot is as long as `base` says.
    fn window(
        &self,
        base: i64,
        window: Duration,
        step: Duration,
        now: DateTime<Utc>,
    ) -> Vec<(i64, Point<N>)> {
        let (window, step) = (seconds(window), seconds(step).max(base));
        let newest = if self.points.is_empty() {
            now.timestamp().div_euclid(base)
        } else {
            self.newest
        };
        let in_step = step / base;
        let last = newest.div_euclid(in_step);
        let steps = (window / step).max(1);
        let point = |number: i64| {
            let end = number * in_step;
            let slots = (0..in_step).map(|back| self.at(end - back));
            (end * base, mean(slots))
        };
        (last - steps + 1..=last).map(point).collect()
    }
}

/// The mean of what is known, number by number.
fn mean<const N: usize>(points: impl Iterator<Item = Point<N>>) -> Point<N> {
    let mut sums = [(0.0_f64, 0.0_f64); N];
    for point in points {
        for ((sum, known), number) in sums.iter_mut().zip(point) {
            if !number.is_nan() {
                *sum += f64::from(number);
                *known += 1.0;
            }
        }
    }
    // Nothing divided by nothing is not known.
    sums.map(|(sum, known)| single(sum / known))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a float becomes the nearest one that is half as long"
)]
fn single(number: f64) -> f32 {
    number as f32
}

/// What a run had counted when it was looked at.
#[derive(Debug, Clone)]
struct Counted {
    run: (LeaseEpoch, DateTime<Utc>),
    at: DateTime<Utc>,
    records: u64,
    bytes: u64,
    stages: StageTimes,
    watermark: Option<DateTime<Utc>>,
}

impl Counted {
    fn of(status: &JobStatus) -> Self {
        Self {
            run: (status.epoch, status.since),
            at: status.observed_at,
            records: status.records,
            bytes: status.bytes,
            stages: StageTimes::sum(&status.stages.totals),
            watermark: status.watermark.as_ref().and_then(|now| now.timestamp),
        }
    }
}

/// The series of one job.
#[derive(Debug, Default)]
pub(crate) struct SeriesLog {
    fine: Ring<NUMBERS>,
    coarse: Ring<NUMBERS>,
    partitions: BTreeMap<TopicPartition, Ring<OF_PARTITION>>,
    counted: Option<Counted>,
    since: Option<DateTime<Utc>>,
}

impl SeriesLog {
    fn add(&mut self, status: Option<&JobStatus>, lag: &JobLag, now: DateTime<Utc>) {
        let counted = status.map(Counted::of);
        let before = std::mem::replace(&mut self.counted, counted);
        let point = point(before.as_ref(), self.counted.as_ref(), lag);
        self.since.get_or_insert(now);
        self.keep(now.timestamp().div_euclid(FINE_S), point);
    }

    fn keep(&mut self, slot: i64, point: Point) {
        let per_minute = COARSE_S / FINE_S;
        self.fine.put(slot, point, FINE_SLOTS);
        let minute = slot.div_euclid(per_minute);
        if self.coarse.wants(minute) {
            // It has ended, and has the mean of its slots, the one at its end included.
            let fine = (0..per_minute).map(|back| self.fine.at(minute * per_minute - back));
            self.coarse.put(minute, mean(fine), COARSE_SLOTS);
        }
    }

    /// Adds a point to each partition's series. A partition that is not there any more is forgotten with its last point.
    fn add_partitions(&mut self, partitions: &[PartitionOffsetsView], now: DateTime<Utc>) {
        let slot = now.timestamp().div_euclid(FINE_S);
        for view in partitions {
            let partition = TopicPartition::new(view.topic.as_str(), view.partition);
            let is_kept = self.partitions.contains_key(&partition);
            if is_kept || self.partitions.len() < MOST_PARTITIONS {
                let ring = self.partitions.entry(partition).or_default();
                ring.put(slot, point_of_partition(view, now), PARTITION_SLOTS);
            }
        }
        self.partitions.retain(|_, ring| {
            let passed = usize::try_from(slot - ring.newest).unwrap_or(0);
            passed < PARTITION_SLOTS
        });
    }

    fn points(&self, window: Duration, step: Duration, now: DateTime<Utc>) -> Vec<(i64, Point)> {
        if window <= SERIES_RECENT {
            self.fine.window(FINE_S, window, step, now)
        } else {
            self.coarse.window(COARSE_S, window, step, now)
        }
    }

    /// The same of a partition; `None` if nothing was kept of it.
    fn points_of(
        &self,
        partition: &TopicPartition,
        window: Duration,
        step: Duration,
        now: DateTime<Utc>,
    ) -> Option<Vec<(i64, Point<OF_PARTITION>)>> {
        let ring = self.partitions.get(partition)?;
        Some(ring.window(FINE_S, window, step, now))
    }
}

/// What is known of a partition now, in the order of [`SeriesName::OF_PARTITION`].
fn point_of_partition(view: &PartitionOffsetsView, now: DateTime<Utc>) -> Point<OF_PARTITION> {
    let offsets = |lag: Option<i64>| lag.map(|lag| real(lag.unsigned_abs()));
    let watermark = view.watermark.as_ref().and_then(|now| now.timestamp);
    SeriesName::OF_PARTITION.map(|name| {
        let number = match name {
            SeriesName::PositionLag => offsets(view.lag.position),
            SeriesName::CheckpointLag => offsets(view.lag.checkpoint),
            SeriesName::GroupLag => offsets(view.lag.group),
            SeriesName::WatermarkLag => watermark.map(|at| (now - at).as_seconds_f64()),
            SeriesName::RecordsPerS
            | SeriesName::BytesPerS
            | SeriesName::FetchWait
            | SeriesName::Decode
            | SeriesName::SinkWrite
            | SeriesName::SinkFlush
            | SeriesName::Checkpoint
            | SeriesName::RateLimit
            | SeriesName::Alignment
            | SeriesName::Idle
            | SeriesName::HandoverWait => None,
        };
        number.map_or(f32::NAN, single)
    })
}

/// Seconds that event time is behind the clock.
fn behind(counted: &Counted) -> Option<f64> {
    let watermark = counted.watermark?;
    Some((counted.at - watermark).as_seconds_f64())
}

fn point(before: Option<&Counted>, now: Option<&Counted>, lag: &JobLag) -> Point {
    // What two runs have counted is not to be subtracted.
    let counted = before
        .zip(now)
        .filter(|(before, now)| before.run == now.run);
    let passed = counted.and_then(|(before, now)| (now.at - before.at).to_std().ok());
    let passed = passed.filter(|passed| !passed.is_zero());
    let rate = |of: fn(&Counted) -> u64| {
        let (before, now) = counted?;
        let more = real(of(now).saturating_sub(of(before)));
        Some(more / passed?.as_secs_f64())
    };
    let stages = counted.map(|(before, now)| now.stages.since(&before.stages));
    let share = |of: &dyn Fn(&StageTimes) -> Duration| {
        let stages = stages.as_ref().filter(|stages| !stages.total().is_zero())?;
        Some(of(stages).as_secs_f64() / stages.total().as_secs_f64())
    };
    // A sum without some of its partitions is smaller than it should be, and would look like progress.
    let sum = |lag_of: Option<i64>| {
        lag_of
            .filter(|_| lag.unknown_partitions == 0)
            .map(|lag| real(lag.unsigned_abs()))
    };
    SeriesName::ALL.map(|name| {
        let number = match name {
            SeriesName::RecordsPerS => rate(|counted| counted.records),
            SeriesName::BytesPerS => rate(|counted| counted.bytes),
            SeriesName::PositionLag => sum(lag.position),
            SeriesName::CheckpointLag => sum(lag.checkpoint),
            SeriesName::GroupLag => sum(lag.group),
            SeriesName::WatermarkLag => now.and_then(behind),
            SeriesName::FetchWait
            | SeriesName::Decode
            | SeriesName::SinkWrite
            | SeriesName::SinkFlush
            | SeriesName::Checkpoint
            | SeriesName::RateLimit
            | SeriesName::Alignment
            | SeriesName::Idle => name
                .stage()
                .and_then(|stage| share(&|stages| stages.of(stage))),
            SeriesName::HandoverWait => share(&|stages| stages.handover_wait),
        };
        number.map_or(f32::NAN, single)
    })
}

#[expect(
    clippy::cast_precision_loss,
    reason = "six digits are kept of it in the end"
)]
fn real(number: u64) -> f64 {
    number as f64
}

/// Adds a point to the series of every job each ten seconds, until the server goes down.
pub(crate) async fn keep_series(core: Arc<Core>) {
    loop {
        let past = core.now().timestamp_millis().rem_euclid(FINE_S * 1_000);
        let pause = Duration::from_millis((FINE_S * 1_000 - past).unsigned_abs());
        tokio::select! {
            () = core.stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        for job in core.jobs() {
            add_point(&core, &job);
            // Jobs with many partitions take their time to compare.
            tokio::task::yield_now().await;
        }
    }
}

fn add_point(core: &Core, job: &JobEntry) {
    let mut facts = job.shared();
    let status = facts.status();
    let live = status.as_ref().map(|status| live_of(&facts, status));
    let partitions = compare_now(core, &job.name, &facts, live.as_deref());
    let lag = job_lag(&totals(&partitions, status.is_some()));
    let now = core.now();
    facts.series.add(status.as_deref(), &lag, now);
    facts.series.add_partitions(&partitions, now);
}

impl Service {
    pub(super) async fn show_series(
        &self,
        name: &JobName,
        query: &SeriesQuery,
    ) -> Result<SeriesView> {
        let job = self.core.job(name).await?;
        let facts = job.shared();
        let now = self.core.now();
        let (window, step) = (query.window, query.step);
        let (at, series) = match &query.partition {
            None => {
                let points = facts.series.points(window, step, now);
                shown(&query.names, &SeriesName::ALL, &points)
            }
            Some(partition) => {
                let points = facts.series.points_of(partition, window, step, now);
                let points = match points {
                    Some(points) => points,
                    None => {
                        self.core.must_read(&job.name, &facts, partition)?;
                        Ring::default().window(FINE_S, window, step, now)
                    }
                };
                shown(&query.names, &SeriesName::OF_PARTITION, &points)
            }
        };
        Ok(SeriesView {
            job: job.name.clone(),
            partition: query.partition.clone(),
            since: facts.series.since,
            window_ms: window.as_millis().try_into().unwrap_or(i64::MAX),
            step_ms: step.as_millis().try_into().unwrap_or(i64::MAX),
            at,
            series,
        })
    }
}

impl Core {
    /// Refuses a partition that the job is known not to read.
    fn must_read(&self, job: &JobName, facts: &JobFacts, partition: &TopicPartition) -> Result<()> {
        let refused = |code: Code, detail: String| Err(ServiceError::new(code, detail).job(job));
        let topic = &partition.topic;
        if !facts.spec().source.selects(topic) {
            let detail = format!("job {job} does not read topic {topic}");
            return refused(Code::UnknownTopic, detail);
        }
        let known = facts.brokers.recent(self.now());
        if known.is_some_and(|known| !known.contains_key(partition)) {
            let detail = format!("the job does not read {partition}");
            return refused(Code::UnknownPartition, detail);
        }
        Ok(())
    }
}

/// Points as they are shown, those of each name apart.
fn shown<const N: usize>(
    names: &[SeriesName],
    kept: &[SeriesName; N],
    points: &[(i64, Point<N>)],
) -> (Vec<DateTime<Utc>>, Vec<Series>) {
    let at = |(seconds, _): &(i64, Point<N>)| {
        DateTime::from_timestamp(*seconds, 0).unwrap_or(DateTime::UNIX_EPOCH)
    };
    let series = names.iter().filter_map(|name| {
        let place = kept.iter().position(|kept| kept == name)?;
        let number = |(_, point): &(i64, Point<N>)| Some(point[place]).filter(|it| !it.is_nan());
        Some(Series {
            name: *name,
            unit: name.unit(),
            points: points.iter().map(number).collect(),
        })
    });
    (points.iter().map(at).collect(), series.collect())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::model::views::{Divergence, DivergenceCause, PartitionLag, Retention};

    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);

    fn second(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn lag(position: i64) -> Point {
        let mut point = Ring::UNKNOWN;
        point[SeriesName::PositionLag as usize] = single(real(position.unsigned_abs()));
        point
    }

    fn of(points: &[(i64, Point)]) -> Vec<Option<f32>> {
        let number = |(_, point): &(i64, Point)| {
            let number = point[SeriesName::PositionLag as usize];
            (!number.is_nan()).then_some(number)
        };
        points.iter().map(number).collect()
    }

    #[test]
    fn what_was_missed_is_a_gap_and_a_clock_that_is_set_back_adds_nothing() {
        let mut log = SeriesLog::default();
        for slot in [100, 101, 104, 103, 104] {
            log.keep(slot, lag(slot));
        }
        let points = log.points(
            50 * Duration::from_secs(1),
            Duration::from_secs(10),
            second(0),
        );
        let times: Vec<i64> = points.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [1_000, 1_010, 1_020, 1_030, 1_040]);
        assert_eq!(
            of(&points),
            [Some(100.0), Some(101.0), None, None, Some(104.0)]
        );
        // A step that is longer has the mean of what is known; it begins at a multiple of itself.
        let points = log.points(
            60 * Duration::from_secs(1),
            Duration::from_secs(20),
            second(0),
        );
        assert_eq!(points[2].0, 1_040);
        assert_eq!(of(&points), [Some(100.0), Some(101.0), Some(104.0)]);
    }

    #[test]
    fn a_clock_that_was_far_ahead_for_a_moment_does_not_silence_it() {
        let mut log = SeriesLog::default();
        let a_day = 8_640;
        for slot in [600, 601, 602 + a_day, 603, 604] {
            log.keep(slot, lag(slot));
        }
        let step = Duration::from_secs(10);
        let points = log.points(2 * step, step, second(0));
        assert_eq!(points[1].0, 6_040);
        assert_eq!(of(&points), [Some(603.0), Some(604.0)]);
        for slot in 605..625 {
            log.keep(slot, lag(slot));
        }
        let minute = Duration::from_secs(60);
        let day = log.points(61 * minute, minute, second(0));
        assert_eq!(day[60].0, 6_240);
        // Slots 619 to 624.
        assert_eq!(of(&day)[60], Some(621.5));
    }

    #[test]
    fn a_partition_has_its_lags_for_a_quarter_of_an_hour_and_there_are_only_so_many() {
        let view = |number: i32, lag: Option<i64>| PartitionOffsetsView {
            lag: PartitionLag {
                position: lag,
                ..PartitionLag::default()
            },
            ..unknown_partition(number)
        };
        let one = TopicPartition::new("orders", 1);
        let mut log = SeriesLog::default();
        log.add_partitions(&[view(0, Some(5)), view(1, Some(7))], second(1_000));
        log.add_partitions(&[view(0, Some(6)), view(1, None)], second(1_010));
        let step = Duration::from_secs(10);
        let points = log.points_of(&one, 3 * step, step, second(0)).unwrap();
        let numbers: Vec<Option<f32>> = shown(
            &[SeriesName::PositionLag],
            &SeriesName::OF_PARTITION,
            &points,
        )
        .1
        .remove(0)
        .points;
        assert_eq!(numbers, [None, Some(7.0), None]);
        // It is gone, and forgotten a quarter of an hour later.
        log.add_partitions(&[view(0, Some(6))], second(1_900));
        assert!(log.partitions.contains_key(&one));
        log.add_partitions(&[view(0, Some(6))], second(1_910));
        assert!(!log.partitions.contains_key(&one));
        let many: Vec<_> = (0..2_000).map(|number| view(number, Some(1))).collect();
        log.add_partitions(&many, second(1_920));
        assert_eq!(log.partitions.len(), MOST_PARTITIONS);
    }

    pub(crate) fn unknown_partition(number: i32) -> PartitionOffsetsView {
        PartitionOffsetsView {
            topic: "orders".to_owned(),
            partition: number,
            leader: None,
            subtask: 0,
            earliest: None,
            last_stable: None,
            latest: None,
            readable_end: None,
            stop_offset: None,
            position: None,
            start_reason: None,
            checkpointed: None,
            position_id: None,
            group_committed: None,
            sink_committed: None,
            lag: PartitionLag::default(),
            divergence: Divergence {
                group_behind_checkpoint: None,
                cause: DivergenceCause::None,
                group_note: None,
                group_checkpoint: None,
            },
            sink_ahead_of_checkpoint: None,
            oldest_unread_age_ms: None,
            retention: Retention::default(),
            watermark: None,
            parked: None,
            flags: Vec::new(),
        }
    }

    #[test]
    fn an_hour_and_a_day_are_kept_and_no_more() {
        let mut log = SeriesLog::default();
        for slot in 0..20_000 {
            log.keep(slot, lag(slot));
        }
        assert_eq!(log.fine.points.len(), FINE_SLOTS);
        assert_eq!(log.coarse.points.len(), COARSE_SLOTS);
        let hour = log.points(HOUR, Duration::from_secs(10), second(0));
        assert_eq!((hour.len(), hour[359].0), (360, 199_990));
        assert!(of(&hour).iter().all(Option::is_some));
        let day = log.points(DAY, Duration::from_secs(600), second(0));
        assert_eq!(day.len(), 144);
        assert_eq!(day[143].0 % 600, 0);
        assert!(of(&day).iter().all(Option::is_some));
        // Of a minute the mean: slots 6 m - 5 to 6 m.
        let minutes = log.points(2 * HOUR, Duration::from_secs(60), second(0));
        let (at, point) = minutes[119];
        assert_eq!(
            point[SeriesName::PositionLag as usize],
            single(real(at.unsigned_abs()) / 10.0 - 2.5)
        );
        // A pause of a year does not cost a year of memory.
        log.keep(4_000_000, lag(1));
        assert_eq!(log.fine.points.len(), FINE_SLOTS);
    }

    #[test]
    fn before_the_first_point_nothing_is_known() {
        let points = SeriesLog::default().points(HOUR, Duration::from_secs(600), second(7_777));
        assert_eq!(points.len(), 6);
        assert!(of(&points).iter().all(Option::is_none));
    }

    #[test]
    fn runs_are_not_subtracted_from_each_other_and_sums_are_whole_or_unknown() {
        let counted = |epoch: i64, at: i64, records: u64| Counted {
            run: (LeaseEpoch(epoch), second(0)),
            at: second(at),
            records,
            bytes: 0,
            stages: StageTimes::default(),
            watermark: (at == 5).then(|| second(2)),
        };
        let known = JobLag {
            position: None,
            checkpoint: Some(7),
            group: Some(9),
            checkpoint_because: None,
            unknown_partitions: 0,
        };
        let rate = |before: &Counted, now: &Counted| {
            point(Some(before), Some(now), &known)[SeriesName::RecordsPerS as usize]
        };
        assert_eq!(rate(&counted(1, 0, 100), &counted(1, 10, 300)), 20.0);
        assert!(rate(&counted(1, 0, 100), &counted(2, 10, 300)).is_nan());
        assert!(rate(&counted(1, 5, 100), &counted(1, 5, 300)).is_nan());
        let behind =
            |now: &Counted| point(None, Some(now), &known)[SeriesName::WatermarkLag as usize];
        assert_eq!(behind(&counted(1, 5, 100)), 3.0);
        assert!(behind(&counted(1, 6, 100)).is_nan());
        let stopped = point(Some(&counted(1, 0, 5)), None, &known);
        let of = |name: SeriesName| stopped[name as usize];
        assert!(of(SeriesName::RecordsPerS).is_nan() && of(SeriesName::Idle).is_nan());
        assert!(of(SeriesName::PositionLag).is_nan());
        assert_eq!(of(SeriesName::CheckpointLag), 7.0);
        let partial = JobLag {
            unknown_partitions: 1,
            ..known
        };
        assert!(point(None, None, &partial)[SeriesName::GroupLag as usize].is_nan());
    }
}
