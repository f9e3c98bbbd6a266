//! What a job's numbers were over the last day, kept in memory.
//!
//! Two rings of a fixed size for each job: an hour at ten seconds and a day at a minute. A slot is the number of steps since
//! 1970, so all jobs have their points at the same times and what was missed (a server that was suspended, a clock that was
//! set forward) is a gap and not a shift. The rings outlive a stop of the job; a restart of the server begins new ones.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};

use super::{
    Service,
    comparison::{job_lag, totals},
    core::{Core, JobEntry},
    error::Result,
    jobs::{compare_now, live_of},
    queries::SeriesQuery,
};
use crate::model::{
    ids::{JobName, LeaseEpoch},
    job_status::JobStatus,
    series::SeriesName,
    stages::StageTimes,
    views::{JobLag, Series, SeriesView},
};

/// Between two points of the last hour.
pub const SERIES_FINE: Duration = Duration::from_secs(10);
/// Between two points of the last day.
pub const SERIES_COARSE: Duration = Duration::from_secs(60);
/// How much is kept in fine steps.
pub const SERIES_RECENT: Duration = Duration::from_secs(3_600);
/// How much is kept at all.
pub const SERIES_WINDOW: Duration = Duration::from_secs(86_400);

const FINE_S: i64 = 10;
const COARSE_S: i64 = 60;
const FINE_SLOTS: usize = 360;
const COARSE_SLOTS: usize = 1_440;
const NUMBERS: usize = SeriesName::ALL.len();

/// The numbers of one step; NaN where they are not known.
type Point = [f32; NUMBERS];
const UNKNOWN: Point = [f32::NAN; NUMBERS];

/// Points of consecutive slots.
#[derive(Debug, Default)]
struct Ring {
    points: VecDeque<Point>,
    /// The slot of the newest one.
    newest: i64,
}

impl Ring {
    fn put(&mut self, slot: i64, point: Point, slots: usize) {
        if self.points.is_empty() {
            self.newest = slot - 1;
        }
        // A clock that was set back adds nothing until it has come to where it was.
        let Ok(steps @ 1..) = usize::try_from(slot - self.newest) else {
            return;
        };
        let missed = (steps - 1).min(slots - 1);
        let surplus = (self.points.len() + missed + 1).saturating_sub(slots);
        // First, so that the ring never grows beyond its size.
        self.points.drain(..surplus.min(self.points.len()));
        self.points.extend(std::iter::repeat_n(UNKNOWN, missed));
        self.points.push_back(point);
        self.newest = slot;
    }

    fn at(&self, slot: i64) -> Point {
        let back = usize::try_from(self.newest - slot).ok();
        let index = back.and_then(|back| self.points.len().checked_sub(back + 1));
        let point = index.and_then(|index| self.points.get(index));
        point.copied().unwrap_or(UNKNOWN)
    }
}

/// The mean of what is known, number by number.
fn mean(points: impl Iterator<Item = Point>) -> Point {
    let mut sums = [(0.0_f64, 0.0_f64); NUMBERS];
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
    fine: Ring,
    coarse: Ring,
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
        if self.coarse.points.is_empty() || minute > self.coarse.newest {
            // It has ended, and has the mean of its slots, the one at its end included.
            let fine = (0..per_minute).map(|back| self.fine.at(minute * per_minute - back));
            self.coarse.put(minute, mean(fine), COARSE_SLOTS);
        }
    }

    /// The points of a window that end at times which are multiples of the step, the last one not later than now.
    fn points(&self, window: Duration, step: Duration, now: DateTime<Utc>) -> Vec<(i64, Point)> {
        let (window, step) = (seconds(window), seconds(step).max(FINE_S));
        let is_recent = window <= seconds(SERIES_RECENT);
        let (ring, base) = if is_recent {
            (&self.fine, FINE_S)
        } else {
            (&self.coarse, COARSE_S)
        };
        let newest = if ring.points.is_empty() {
            now.timestamp().div_euclid(base)
        } else {
            ring.newest
        };
        let in_step = (step / base).max(1);
        let last = newest.div_euclid(in_step);
        let steps = (window / step).max(1);
        let point = |number: i64| {
            let end = number * in_step;
            let slots = (0..in_step).map(|back| ring.at(end - back));
            (end * base, mean(slots))
        };
        (last - steps + 1..=last).map(point).collect()
    }
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
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
    let share = |stage: &str| {
        let stages = stages.as_ref().filter(|stages| !stages.total().is_zero())?;
        let (_, time) = stages.named().find(|(name, _)| *name == stage)?;
        Some(time.as_secs_f64() / stages.total().as_secs_f64())
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
            | SeriesName::Idle
            | SeriesName::HandoverWait => name.stage().and_then(share),
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
    facts.series.add(status.as_deref(), &lag, core.now());
}

impl Service {
    pub(super) async fn show_series(
        &self,
        name: &JobName,
        query: &SeriesQuery,
    ) -> Result<SeriesView> {
        let job = self.core.job(name).await?;
        let facts = job.shared();
        let points = facts
            .series
            .points(query.window, query.step, self.core.now());
        let at = |(seconds, _): &(i64, Point)| {
            DateTime::from_timestamp(*seconds, 0).unwrap_or(DateTime::UNIX_EPOCH)
        };
        let series = query.names.iter().map(|name| {
            let number = |(_, point): &(i64, Point)| {
                let number = point[*name as usize];
                (!number.is_nan()).then_some(number)
            };
            Series {
                name: *name,
                unit: name.unit(),
                points: points.iter().map(number).collect(),
            }
        });
        Ok(SeriesView {
            job: job.name.clone(),
            since: facts.series.since,
            window_ms: query.window.as_millis().try_into().unwrap_or(i64::MAX),
            step_ms: query.step.as_millis().try_into().unwrap_or(i64::MAX),
            at: points.iter().map(at).collect(),
            series: series.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);

    fn second(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(second, 0).unwrap()
    }

    fn lag(position: i64) -> Point {
        let mut point = UNKNOWN;
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
