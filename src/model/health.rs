//! A verdict over a job that does not depend on the cadence of commits.

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    code::Code,
    job::Isolation,
    job_state::JobState,
    job_status::{JobFailure, Waiting},
    offset::Offset,
    parked::ParkedPartition,
    topic::TopicPartition,
};

/// How a job fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HealthStatus {
    /// It reads as fast as the topics are written, or its bounded run has read everything.
    Ok,
    /// Its lag was larger than what is written in 10 s in every sample of the window, and does not shrink.
    Behind,
    /// A partition has unread records and its position did not move for the whole window.
    Stalled,
    /// A failure needs a decision.
    Blocked,
    /// An open transaction of somebody else holds its readers back.
    Held,
    /// Something outside does not answer, or the pause after a crash is not over; the job goes on by itself.
    Waiting,
    /// Not watched long enough to say.
    Unknown,
    /// It does not run, as asked.
    Stopped,
}

/// The verdict with its evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Health {
    /// The verdict.
    pub status: HealthStatus,
    /// What it rests on, worst first.
    pub reasons: Vec<HealthReason>,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct HealthReason {
    /// What it is.
    pub code: Code,
    /// Where, if it is about partitions.
    pub partitions: Vec<TopicPartition>,
    /// Since when.
    pub since: Option<DateTime<Utc>>,
    /// One sentence.
    pub summary: String,
    /// The page of the code.
    pub problem: String,
}

impl HealthReason {
    /// Evidence about the whole job.
    #[must_use]
    pub fn new(code: Code, since: Option<DateTime<Utc>>, summary: impl Into<String>) -> Self {
        Self {
            code,
            partitions: Vec::new(),
            since,
            summary: summary.into(),
            problem: format!("/problems/{code}"),
        }
    }
}

/// How long a job is watched before a verdict that rests on a trend is given.
pub const WINDOW: TimeDelta = TimeDelta::seconds(60);

/// A lag is allowed to hold what was written in this time: a job that reads along is never at zero for long.
const ALLOWANCE_S: f64 = 10.0;

/// What was seen of a running job at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthSample {
    /// When.
    pub at: DateTime<Utc>,
    /// Each partition.
    pub partitions: BTreeMap<TopicPartition, PartitionSample>,
}

/// What was seen of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionSample {
    /// The live position.
    pub position: Option<Offset>,
    /// Up to where the job can read.
    pub readable_end: Option<Offset>,
    /// The end of the log.
    pub latest: Option<Offset>,
    /// Whether it stands still as it was told to: its event time is too far ahead of the others', or the job's limits hold back
    /// what is read, and it may be another partition's turn.
    pub held_back: bool,
}

impl PartitionSample {
    fn lag(&self) -> Option<i64> {
        let (end, position) = self.readable_end.zip(self.position)?;
        Some(end.distance_from(position).max(0))
    }
}

/// The samples of the last minute, oldest first. Belongs to one run: a new run begins with an empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthWindow {
    samples: VecDeque<HealthSample>,
}

impl HealthWindow {
    /// Adds a sample and forgets those that the window no longer needs: one that is as old as the window is kept, because
    /// it proves that the window is full.
    pub fn add(&mut self, sample: HealthSample) {
        let begin = sample.at - WINDOW;
        self.samples.push_back(sample);
        while self.samples.get(1).is_some_and(|next| next.at <= begin) {
            self.samples.pop_front();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    fn is_full(&self) -> bool {
        match (self.samples.front(), self.samples.back()) {
            (Some(first), Some(last)) => last.at - first.at >= WINDOW,
            _ => false,
        }
    }

    /// What all samples say of one partition, or `None` if one of them does not know it.
    fn each<T>(
        &self,
        partition: &TopicPartition,
        mut read: impl FnMut(&PartitionSample) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.samples
            .iter()
            .map(|sample| sample.partitions.get(partition).and_then(&mut read))
            .collect()
    }
}

/// Everything the verdict rests on.
#[derive(Debug, Clone, Copy)]
pub struct HealthInputs<'a> {
    /// What the job does.
    pub state: JobState,
    /// What it waits for.
    pub waiting: &'a [Waiting],
    /// Why it gave up.
    pub failure: Option<&'a JobFailure>,
    /// What its run does not read.
    pub parked: &'a [ParkedPartition],
    /// Which records it sees.
    pub isolation: Isolation,
    /// What was seen lately.
    pub window: &'a HealthWindow,
}

/// Finds the evidence for one verdict; none means that it does not hold.
type Rule = fn(&HealthInputs<'_>) -> Vec<HealthReason>;

/// Gives the verdict: the first that holds of `waiting`, `blocked`, `held`, `stalled`, `behind`, `unknown`, `ok`.
///
/// No rule looks at commits, so a quiet topic is `ok` however long nothing is committed, and a window that is not full is
/// never called `ok` unless there is nothing left to read.
#[must_use]
pub fn verdict(inputs: &HealthInputs<'_>) -> Health {
    if inputs.state == JobState::Stopped {
        return Health {
            status: HealthStatus::Stopped,
            reasons: Vec::new(),
        };
    }
    if inputs.state == JobState::Finished {
        return Health {
            status: HealthStatus::Ok,
            reasons: Vec::new(),
        };
    }
    let rules: [(HealthStatus, Rule); 6] = [
        (HealthStatus::Waiting, waiting_reasons),
        (HealthStatus::Blocked, failure_reasons),
        (HealthStatus::Blocked, parked_reasons),
        (HealthStatus::Held, held_reasons),
        (HealthStatus::Stalled, stalled_reasons),
        (HealthStatus::Behind, behind_reasons),
    ];
    for (status, rule) in rules {
        let reasons = rule(inputs);
        if !reasons.is_empty() {
            return Health { status, reasons };
        }
    }
    let known = inputs.window.is_full() || nothing_is_unread(inputs.window);
    Health {
        status: if known {
            HealthStatus::Ok
        } else {
            HealthStatus::Unknown
        },
        reasons: Vec::new(),
    }
}

/// That new partitions cannot be looked for comes last: where the brokers do not answer, that is the reason for it, too.
fn waiting_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    let mut reasons: Vec<HealthReason> = inputs
        .waiting
        .iter()
        .map(|waiting| {
            HealthReason::new(waiting.code, Some(waiting.since), waiting.detail.as_str())
        })
        .chain(leaderless_reason(inputs.window, inputs.parked))
        .collect();
    reasons.sort_by_key(|reason| reason.code == Code::DiscoveryFailing);
    reasons
}

/// Partitions that are read and whose log nobody answered for just now. (Those that were never read are among what the run
/// itself waits for.)
/// One that is parked is not waited for: what was seen of it before it was parked says nothing any more.
fn leaderless_reason(window: &HealthWindow, parked: &[ParkedPartition]) -> Option<HealthReason> {
    let newest = window.samples.back()?;
    let leaderless =
        |sample: &PartitionSample| sample.position.is_some() && sample.latest.is_none();
    let partitions: Vec<TopicPartition> = newest
        .partitions
        .iter()
        .filter(|(_, sample)| leaderless(sample))
        .filter(|(partition, _)| {
            let mut parked = parked.iter();
            !parked.any(|parked| parked.topic_partition() == **partition)
        })
        .map(|(partition, _)| partition.clone())
        .collect();
    if partitions.is_empty() {
        return None;
    }
    let summary = format!(
        "{}: no leader answers; the other partitions go on, and these follow by themselves",
        name_some(&partitions)
    );
    let mut reason = HealthReason::new(Code::NoLeader, Some(newest.at), summary);
    reason.partitions = partitions;
    Some(reason)
}

fn failure_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    if inputs.state != JobState::Failed {
        return Vec::new();
    }
    let Some(failure) = inputs.failure else {
        return vec![HealthReason::new(Code::JobFailed, None, "the job failed")];
    };
    let mut reason = HealthReason::new(
        failure.code,
        Some(failure.first_seen),
        failure.summary.as_str(),
    );
    reason.partitions = failure
        .record
        .iter()
        .map(|record| TopicPartition::new(record.topic.as_str(), record.partition))
        .collect();
    vec![reason]
}

/// One reason for each code, with its partitions; the longest parked first.
fn parked_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    let mut by_code: BTreeMap<Code, Vec<&ParkedPartition>> = BTreeMap::new();
    for parked in inputs.parked {
        by_code.entry(parked.code).or_default().push(parked);
    }
    let mut reasons: Vec<HealthReason> = by_code
        .into_iter()
        .filter_map(|(code, parked)| {
            let first = parked.iter().min_by_key(|parked| parked.since)?;
            let place = first.offset.map_or_else(
                || first.topic_partition().to_string(),
                |offset| format!("{} at offset {offset}", first.topic_partition()),
            );
            let summary = match parked.len() {
                1 => format!("{place} is parked: {}", first.detail),
                _ => {
                    let others: Vec<TopicPartition> = parked
                        .iter()
                        .map(|parked| parked.topic_partition())
                        .filter(|other| *other != first.topic_partition())
                        .collect();
                    let others = name_some(&others);
                    format!("{place} and {others} are parked: {}", first.detail)
                }
            };
            let mut reason = HealthReason::new(code, Some(first.since), summary);
            reason.partitions = parked
                .iter()
                .map(|parked| parked.topic_partition())
                .collect();
            Some(reason)
        })
        .collect();
    reasons.sort_by_key(|reason| reason.since);
    reasons
}

/// The partitions of the newest sample for which a rule holds, as one reason.
fn reason_over(
    window: &HealthWindow,
    code: Code,
    holds: impl Fn(&TopicPartition) -> bool,
    summary: impl Fn(&str) -> String,
) -> Vec<HealthReason> {
    let (Some(first), Some(last)) = (window.samples.front(), window.samples.back()) else {
        return Vec::new();
    };
    if !window.is_full() {
        return Vec::new();
    }
    let partitions: Vec<TopicPartition> = last
        .partitions
        .keys()
        .filter(|partition| holds(partition))
        .cloned()
        .collect();
    if partitions.is_empty() {
        return Vec::new();
    }
    let mut reason = HealthReason::new(code, Some(first.at), summary(&name_some(&partitions)));
    reason.partitions = partitions;
    vec![reason]
}

/// The names of a few partitions and how many more there are.
fn name_some(partitions: &[TopicPartition]) -> String {
    const ENOUGH: usize = 5;
    let mut text: Vec<String> = partitions
        .iter()
        .take(ENOUGH)
        .map(ToString::to_string)
        .collect();
    if partitions.len() > ENOUGH {
        text.push(format!("{} more", partitions.len() - ENOUGH));
    }
    text.join(", ")
}

/// The job has read all it may, and the last stable offset has not moved for the whole window although the log goes on.
fn held_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    if inputs.isolation != Isolation::ReadCommitted {
        return Vec::new();
    }
    let window = inputs.window;
    let held = |partition: &TopicPartition| {
        let ends = window.each(partition, |sample| {
            let end = sample.readable_end?;
            (sample.position? == end && sample.latest? > end).then_some(end)
        });
        ends.is_some_and(|ends| ends.windows(2).all(|pair| pair[0] == pair[1]))
    };
    reason_over(window, Code::HeldByTransaction, held, |names| {
        format!(
            "{names}: everything readable is read, and an open transaction has held the rest back for a minute"
        )
    })
}

/// There were unread records in every sample and the position never moved.
fn stalled_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    let window = inputs.window;
    let stalled = |partition: &TopicPartition| {
        let positions = window.each(partition, |sample| {
            (sample.lag()? > 0 && !sample.held_back).then_some(sample.position?)
        });
        positions.is_some_and(|positions| positions.windows(2).all(|pair| pair[0] == pair[1]))
    };
    reason_over(window, Code::Stalled, stalled, |names| {
        format!("{names}: unread records, and the position has not moved for a minute")
    })
}

/// The whole lag was above the allowance in every sample and did not shrink from the first half of the window to the second.
fn behind_reasons(inputs: &HealthInputs<'_>) -> Vec<HealthReason> {
    let window = inputs.window;
    let (Some(first), Some(last)) = (window.samples.front(), window.samples.back()) else {
        return Vec::new();
    };
    let seconds = as_f64((last.at - first.at).num_milliseconds()) / 1_000.0;
    if !window.is_full() || seconds <= 0.0 {
        return Vec::new();
    }
    let partitions: Vec<&TopicPartition> = last
        .partitions
        .keys()
        .filter(|partition| window.each(partition, PartitionSample::lag).is_some())
        .collect();
    let total = |sample: &HealthSample| -> i64 {
        let lags = partitions
            .iter()
            .filter_map(|partition| sample.partitions.get(*partition)?.lag());
        lags.sum()
    };
    let written: i64 = partitions
        .iter()
        .filter_map(|partition| moved(first, last, partition, |sample| sample.readable_end))
        .sum();
    let read: i64 = partitions
        .iter()
        .filter_map(|partition| moved(first, last, partition, |sample| sample.position))
        .sum();
    let allowance = as_f64(written) / seconds * ALLOWANCE_S;
    let lags: Vec<i64> = window.samples.iter().map(total).collect();
    let (early, late) = lags.split_at(lags.len() / 2);
    let shrinks = mean(late) < mean(early);
    if shrinks || lags.iter().any(|lag| as_f64(*lag) <= allowance) {
        return Vec::new();
    }
    let grows = |partition: &TopicPartition| {
        let lag = |sample: &HealthSample| sample.partitions.get(partition)?.lag();
        lag(last)
            .zip(lag(first))
            .is_some_and(|(now, then)| now > 0 && now >= then)
    };
    let growing: Vec<TopicPartition> = partitions
        .iter()
        .filter(|partition| grows(partition))
        .map(|partition| (*partition).clone())
        .collect();
    let mut reason = HealthReason::new(
        Code::LagGrowing,
        Some(first.at),
        format!(
            "{} offsets unread and not fewer: {:.0} a second are written, {:.0} a second are read",
            total(last),
            as_f64(written) / seconds,
            as_f64(read) / seconds
        ),
    );
    reason.partitions = growing;
    vec![reason]
}

fn moved(
    first: &HealthSample,
    last: &HealthSample,
    partition: &TopicPartition,
    read: impl Fn(&PartitionSample) -> Option<Offset>,
) -> Option<i64> {
    let then = read(first.partitions.get(partition)?)?;
    let now = read(last.partitions.get(partition)?)?;
    Some(now.distance_from(then))
}

fn mean(values: &[i64]) -> f64 {
    let count = i64::try_from(values.len()).unwrap_or(i64::MAX).max(1);
    as_f64(values.iter().sum()) / as_f64(count)
}

/// Offsets and milliseconds stay far below 2^53, where a float carries them exactly.
#[expect(
    clippy::cast_precision_loss,
    reason = "rates for people; the numbers stay below 2^53"
)]
fn as_f64(number: i64) -> f64 {
    number as f64
}

fn nothing_is_unread(window: &HealthWindow) -> bool {
    window.samples.back().is_some_and(|sample| {
        !sample.partitions.is_empty()
            && sample
                .partitions
                .values()
                .all(|partition| partition.lag() == Some(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::job_status::FailedRecord;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    /// One sample each 5 s; the closure gives position, readable end and log end of partition 0 at sample `n`.
    fn window(samples: i64, partition: impl Fn(i64) -> (i64, i64, i64)) -> HealthWindow {
        let mut window = HealthWindow::default();
        for n in 0..samples {
            let (position, end, latest) = partition(n);
            let sample = PartitionSample {
                position: Offset::new(position),
                readable_end: Offset::new(end),
                latest: Offset::new(latest),
                held_back: false,
            };
            window.add(HealthSample {
                at: at(n * 5),
                partitions: BTreeMap::from([(TopicPartition::new("orders", 0), sample)]),
            });
        }
        window
    }

    fn running(window: &HealthWindow) -> HealthInputs<'_> {
        HealthInputs {
            state: JobState::Running,
            waiting: &[],
            failure: None,
            parked: &[],
            isolation: Isolation::ReadCommitted,
            window,
        }
    }

    #[test]
    fn verdicts_over_a_minute() {
        use HealthStatus as H;
        let table: Vec<(&str, HealthWindow, HealthStatus)> = vec![
            ("no sample", HealthWindow::default(), H::Unknown),
            ("young, nothing unread", window(1, |_| (7, 7, 7)), H::Ok),
            (
                "young, something unread",
                window(12, |n| (n, 9 + n, 9 + n)),
                H::Unknown,
            ),
            ("no leader", window(1, |_| (7, -1, -1)), H::Waiting),
            ("quiet topic", window(13, |_| (7, 7, 7)), H::Ok),
            ("empty topic", window(13, |_| (0, 0, 0)), H::Ok),
            (
                "reads along, a little behind",
                window(20, |n| (n * 1_000, n * 1_000 + 90, n * 1_000 + 90)),
                H::Ok,
            ),
            (
                "reads along within the allowance",
                window(20, |n| (n * 1_000, n * 1_000 + 1_999, n * 1_000 + 1_999)),
                H::Ok,
            ),
            (
                "steady, but far behind",
                window(20, |n| (n * 1_000, n * 1_000 + 9_000, n * 1_000 + 9_000)),
                H::Behind,
            ),
            (
                "falls behind",
                window(20, |n| (n * 500, n * 1_000 + 9_000, n * 1_000 + 9_000)),
                H::Behind,
            ),
            (
                "catches up",
                window(20, |n| (n * 2_000, n * 1_000 + 90_000, n * 1_000 + 90_000)),
                H::Ok,
            ),
            (
                "does not move",
                window(13, |n| (7, 10 + n, 10 + n)),
                H::Stalled,
            ),
            (
                "does not move, nothing new",
                window(13, |_| (7, 10, 10)),
                H::Stalled,
            ),
            (
                "does not move, not long enough",
                window(12, |_| (7, 10, 10)),
                H::Unknown,
            ),
            (
                "moved once",
                window(13, |n| (7 + i64::from(n > 11), 1_000, 1_000)),
                H::Ok,
            ),
            ("held", window(13, |n| (7, 7, 10 + n)), H::Held),
            (
                "held, not long enough",
                window(12, |n| (7, 7, 10 + n)),
                H::Ok,
            ),
            (
                "busy transactions",
                window(13, |n| (7 + n, 7 + n, 10 + n)),
                H::Ok,
            ),
        ];
        for (name, window, expected) in table {
            let health = verdict(&running(&window));
            assert_eq!(health.status, expected, "{name}: {health:?}");
            let names_partitions = health
                .reasons
                .iter()
                .all(|reason| !reason.partitions.is_empty());
            assert!(names_partitions, "{name}");
        }
    }

    #[test]
    fn a_parked_partition_waits_for_no_leader() {
        let window = window(1, |_| (7, -1, -1));
        let mut inputs = running(&window);
        assert_eq!(verdict(&inputs).status, HealthStatus::Waiting);
        let failure = |code| JobFailure {
            code,
            summary: "orders/0 does not exist".to_owned(),
            record: None,
            phase: None,
            first_seen: at(0),
        };
        let partition = TopicPartition::new("orders", 0);
        let gone = failure(Code::PartitionGone);
        let parked = [ParkedPartition::at(&partition, Offset::new(7), gone)];
        inputs.parked = &parked;
        let health = verdict(&inputs);
        assert_eq!(health.status, HealthStatus::Blocked);
        assert_eq!(health.reasons[0].code, Code::PartitionGone);
    }

    #[test]
    fn an_uncommitted_reader_is_not_held() {
        let window = window(13, |_| (10, 10, 10));
        let mut inputs = running(&window);
        inputs.isolation = Isolation::ReadUncommitted;
        assert_eq!(verdict(&inputs).status, HealthStatus::Ok);
    }

    #[test]
    fn waiting_comes_first_and_a_failure_names_its_record() {
        let stalled = window(13, |_| (7, 10, 10));
        let waits = [Waiting {
            code: Code::KafkaUnreachable,
            since: at(0),
            detail: "all brokers are down".to_owned(),
        }];
        let mut inputs = running(&stalled);
        inputs.waiting = &waits;
        let health = verdict(&inputs);
        assert_eq!(health.status, HealthStatus::Waiting);
        assert_eq!(health.reasons[0].problem, "/problems/kafka-unreachable");

        // Where nobody answers, it is no news that new partitions cannot be looked for.
        let waits = [Code::DiscoveryFailing, Code::KafkaTimeout].map(|code| Waiting {
            code,
            since: at(0),
            detail: "no answer".to_owned(),
        });
        inputs.waiting = &waits;
        let codes: Vec<Code> = verdict(&inputs)
            .reasons
            .iter()
            .map(|reason| reason.code)
            .collect();
        assert_eq!(codes, [Code::KafkaTimeout, Code::DiscoveryFailing]);

        let failure = JobFailure {
            code: Code::BlockedOnRecord,
            summary: "no JSON".to_owned(),
            record: Some(FailedRecord {
                topic: "orders".to_owned(),
                partition: 3,
                offset: 90_412,
                timestamp: None,
                key_bytes: None,
                value_bytes: Some(3),
            }),
            phase: None,
            first_seen: at(0),
        };
        let mut inputs = running(&stalled);
        inputs.state = JobState::Failed;
        inputs.failure = Some(&failure);
        let health = verdict(&inputs);
        assert_eq!(health.status, HealthStatus::Blocked);
        assert_eq!(
            health.reasons[0].partitions,
            [TopicPartition::new("orders", 3)]
        );

        inputs.state = JobState::Finished;
        assert_eq!(
            verdict(&inputs).status,
            HealthStatus::Ok,
            "everything is read, whatever was seen before"
        );
        inputs.state = JobState::Stopped;
        assert_eq!(verdict(&inputs).status, HealthStatus::Stopped);
    }

    #[test]
    fn one_silent_partition_among_busy_ones_is_seen() {
        let mut window = HealthWindow::default();
        for n in 0..14 {
            let sample = |position: i64, end: i64| PartitionSample {
                position: Offset::new(position),
                readable_end: Offset::new(end),
                latest: Offset::new(end),
                held_back: false,
            };
            window.add(HealthSample {
                at: at(n * 5),
                partitions: BTreeMap::from([
                    (TopicPartition::new("orders", 0), sample(n, n)),
                    (TopicPartition::new("orders", 1), sample(4, 5)),
                ]),
            });
        }
        let health = verdict(&running(&window));
        assert_eq!(health.status, HealthStatus::Stalled);
        assert_eq!(
            health.reasons[0].partitions,
            [TopicPartition::new("orders", 1)]
        );
    }
}
