//! How long until the beginning of a log reaches a job's position, at the speeds that were seen.
//!
//! The beginning of a log stands still and then jumps: brokers delete whole segments, every few minutes at most. What was
//! deleted from one look to the next says nothing about its speed; what was deleted from one jump to a later one does. So
//! the jumps are kept, and their distance in offsets and in time is the speed. Where that is not enough for a number, there
//! is none: an estimate that is wrong by a factor is worse than the offsets, which are always there.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::core::JobFacts;
use crate::model::{
    checkpoint::CheckpointPosition,
    ids::CheckpointId,
    offset::Offset,
    topic::{TopicId, TopicPartition},
};

/// Jumps that an estimate needs: two distances, so that one can be held against the other.
const ENOUGH_JUMPS: usize = 3;
/// Jumps that are kept; what lies further back tells of another time.
const MOST_JUMPS: usize = 16;
/// No estimate reaches further ahead than so many times what was watched.
const HORIZON: u32 = 24;
/// The log's beginning comes nearer by at least this part of its own speed, or the two are taken to move alike.
const LEAST_PART: f64 = 0.1;
/// A job's position moves by checkpoints; its speed is not told from fewer than so many of their intervals.
const LEAST_CHECKPOINTS: u32 = 2;

/// What was seen of the beginnings of the logs that a job reads.
#[derive(Debug, Default)]
pub(crate) struct LogStarts {
    /// When the newest answer was asked for that was looked at.
    looked_at: Option<Instant>,
    partitions: BTreeMap<TopicPartition, Watch>,
}

/// One partition, for as long as log and position are what they were at the first look.
#[derive(Debug)]
struct Watch {
    topic_id: Option<TopicId>,
    position_id: CheckpointId,
    newest: Look,
    /// The looks that found the log's beginning further on than the one before, oldest first.
    jumps: VecDeque<Look>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    earliest: Offset,
    checkpointed: Offset,
}

impl JobFacts {
    /// Looks at what the brokers and the store said last, unless that was looked at already or one of them is silent.
    pub(crate) fn note_log_starts(&mut self) {
        let (Some(at), Some(brokers), Some(Some(checkpoint))) = (
            self.attempted_at,
            self.brokers.current(),
            self.checkpoint.current(),
        ) else {
            return;
        };
        if self.log_starts.looked_at.is_some_and(|last| at <= last) {
            return;
        }
        self.log_starts.looked_at = Some(at);
        let partitions = &mut self.log_starts.partitions;
        partitions.retain(|partition, _| checkpoint.positions.contains_key(partition));
        for (partition, stored) in &checkpoint.positions {
            let Some(broker) = brokers.get(partition) else {
                continue;
            };
            let topic_id = &broker.topic_id;
            if let (Some(bounds), Some(checkpointed)) = (broker.bounds, stored.next_offset) {
                let look = Look {
                    at,
                    earliest: bounds.earliest,
                    checkpointed,
                };
                note(partitions, partition, (topic_id, stored), look);
            }
        }
    }
}

fn note(
    partitions: &mut BTreeMap<TopicPartition, Watch>,
    partition: &TopicPartition,
    (topic_id, stored): (&Option<TopicId>, &CheckpointPosition),
    look: Look,
) {
    let known = partitions.get_mut(partition).filter(|watch| {
        watch.topic_id == *topic_id
            && watch.position_id == stored.position_id
            && watch.newest.earliest <= look.earliest
    });
    match known {
        Some(watch) => watch.add(look),
        None => {
            let watch = Watch {
                topic_id: topic_id.clone(),
                position_id: stored.position_id,
                newest: look,
                jumps: VecDeque::new(),
            };
            partitions.insert(partition.clone(), watch);
        }
    }
}

impl LogStarts {
    /// Milliseconds until the log's beginning reaches the checkpointed position, as of the newest look. `checkpoint_every`
    /// is the interval of the job's checkpoints while it runs, `None` while it does not: then its position stands.
    pub(crate) fn estimate(
        &self,
        partition: &TopicPartition,
        checkpoint_every: Option<Duration>,
    ) -> Option<i64> {
        let left = self
            .partitions
            .get(partition)?
            .time_left(checkpoint_every)?;
        i64::try_from(left.as_millis()).ok()
    }
}

impl Watch {
    fn add(&mut self, look: Look) {
        if look.earliest > self.newest.earliest {
            self.jumps.push_back(look);
            if self.jumps.len() > MOST_JUMPS {
                self.jumps.pop_front();
            }
        }
        self.newest = look;
    }

    fn time_left(&self, checkpoint_every: Option<Duration>) -> Option<Duration> {
        let left = self.newest.checkpointed.distance_from(self.newest.earliest);
        if left < 0 {
            return Some(Duration::ZERO);
        }
        let (first, last) = (self.jumps.front()?, self.jumps.back()?);
        if self.jumps.len() < ENOUGH_JUMPS || self.stands_still() {
            return None;
        }
        let speed = per_second(
            last.earliest.distance_from(first.earliest),
            last.at - first.at,
        );
        let own = match checkpoint_every {
            Some(every) => self.own_speed(every)?,
            None => 0.0,
        };
        let nearer = speed - own;
        if nearer < speed * LEAST_PART {
            return None;
        }
        let left = Duration::try_from_secs_f64(as_f64(left) / nearer).ok()?;
        let watched = self.newest.at - first.at;
        Some(left).filter(|left| *left <= watched * HORIZON)
    }

    /// Whether the last jump lies back further than twice the longest pause before it.
    fn stands_still(&self) -> bool {
        let looks = self.jumps.iter();
        let pauses = looks
            .clone()
            .skip(1)
            .zip(looks)
            .map(|(next, look)| next.at - look.at);
        let (Some(longest), Some(last)) = (pauses.max(), self.jumps.back()) else {
            return true;
        };
        self.newest.at - last.at > longest * 2
    }

    /// Offsets a second by which the checkpointed position goes on: over everything that was watched or over its later half,
    /// whichever is less, so that a job that has become slow is not taken for a fast one. `None` where too few checkpoints
    /// can have been taken meanwhile.
    fn own_speed(&self, checkpoint_every: Duration) -> Option<f64> {
        let first = self.jumps.front()?;
        let middle = self.jumps.get(self.jumps.len() / 2)?;
        if self.newest.at - middle.at < checkpoint_every * LEAST_CHECKPOINTS {
            return None;
        }
        let since = |look: &Look| {
            let moved = self.newest.checkpointed.distance_from(look.checkpointed);
            per_second(moved, self.newest.at - look.at)
        };
        Some(since(first).min(since(middle)).max(0.0))
    }
}

fn per_second(offsets: i64, time: Duration) -> f64 {
    as_f64(offsets) / time.as_secs_f64()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "distances of offsets stay far below 2^53"
)]
fn as_f64(offsets: i64) -> f64 {
    offsets as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn watch(looks: impl IntoIterator<Item = (u64, i64, i64)>) -> BTreeMap<TopicPartition, Watch> {
        let begin = Instant::now();
        let mut partitions = BTreeMap::new();
        for (second, earliest, checkpointed) in looks {
            let look = Look {
                at: begin + Duration::from_secs(second),
                earliest: offset(earliest),
                checkpointed: offset(checkpointed),
            };
            note(
                &mut partitions,
                &partition(),
                (&topic("a"), &decided(1)),
                look,
            );
        }
        partitions
    }

    fn partition() -> TopicPartition {
        TopicPartition::new("orders", 0)
    }

    fn topic(id: &str) -> Option<TopicId> {
        Some(TopicId(id.into()))
    }

    fn decided(by: i64) -> CheckpointPosition {
        CheckpointPosition {
            next_offset: None,
            position_id: CheckpointId(by),
            topic_id: topic("a"),
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn an_estimate_rests_on_what_was_seen_or_is_none() {
        let stands = None;
        let every = |seconds| Some(Duration::from_secs(seconds));
        // What is looked at, how often the job takes checkpoints, and the seconds that are left.
        type Case = (
            &'static str,
            Vec<(u64, i64, i64)>,
            Option<Duration>,
            Option<i64>,
        );
        let minutes = |looks: &[(u64, i64, i64)]| {
            looks
                .iter()
                .map(|(minute, earliest, at)| (minute * 60, *earliest, *at))
                .collect()
        };
        let cases: Vec<Case> = vec![
            ("nothing was looked at", vec![], stands, None),
            (
                "the log's beginning stands",
                (0..99).map(|m| (m * 60, 7, 1_000)).collect(),
                stands,
                None,
            ),
            (
                "one jump",
                minutes(&[(0, 0, 9_000), (5, 300, 9_000)]),
                stands,
                None,
            ),
            (
                "two jumps",
                minutes(&[(0, 0, 9_000), (5, 300, 9_000), (10, 600, 9_000)]),
                stands,
                None,
            ),
            // 600 in 10 minutes is one a second. The first jump began before anybody looked and counts as an instant only.
            (
                "three jumps",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_500),
                    (15, 900, 1_500),
                ]),
                stands,
                Some(600),
            ),
            (
                "looks between two jumps change nothing but the distance",
                (0..=17)
                    .map(|m| (m * 60, (i64::try_from(m).unwrap() / 5) * 300, 1_500))
                    .collect(),
                stands,
                Some(600),
            ),
            (
                "the beginning has arrived",
                minutes(&[(0, 0, 900), (5, 300, 900), (10, 600, 900), (15, 900, 900)]),
                stands,
                Some(0),
            ),
            ("it has passed", minutes(&[(0, 300, 200)]), stands, Some(0)),
            (
                "no jump for more than twice the longest pause",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_500),
                    (15, 900, 1_500),
                    (26, 900, 1_500),
                ]),
                stands,
                None,
            ),
            (
                "further than the horizon",
                minutes(&[
                    (0, 0, 99_999),
                    (5, 300, 99_999),
                    (10, 600, 99_999),
                    (15, 900, 99_999),
                ]),
                stands,
                None,
            ),
            (
                "what lies long back is forgotten",
                (0..40)
                    .map(|m| {
                        (
                            m * 60,
                            if m < 20 {
                                i64::try_from(m).unwrap()
                            } else {
                                20 + 600 * i64::try_from(m - 20).unwrap()
                            },
                            20 + 600 * 20,
                        )
                    })
                    .collect(),
                stands,
                Some(60),
            ),
            // The job goes on, half as fast.
            (
                "a job that runs wins time",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_650),
                    (15, 900, 1_800),
                ]),
                every(60),
                Some(1_800),
            ),
            (
                "a job that stands has no speed of its own any more",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_650),
                    (15, 900, 1_800),
                ]),
                stands,
                Some(900),
            ),
            (
                "one that has stopped reading wins none",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_800),
                    (15, 900, 1_800),
                ]),
                every(60),
                Some(900),
            ),
            (
                "as fast as the log",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_800),
                    (15, 900, 2_100),
                ]),
                every(60),
                None,
            ),
            (
                "nearly as fast as the log",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_790),
                    (15, 900, 2_080),
                ]),
                every(60),
                None,
            ),
            (
                "faster than the log",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 2_500),
                    (15, 900, 3_500),
                ]),
                every(60),
                None,
            ),
            (
                "too few checkpoints to tell the job's speed",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_650),
                    (15, 900, 1_800),
                ]),
                every(200),
                None,
            ),
            (
                "a log that begins earlier than before is another one",
                minutes(&[
                    (0, 0, 1_500),
                    (5, 300, 1_500),
                    (10, 600, 1_500),
                    (12, 0, 1_500),
                    (15, 900, 1_500),
                ]),
                stands,
                None,
            ),
        ];
        for (name, looks, checkpoint_every, seconds) in cases {
            let starts = LogStarts {
                looked_at: None,
                partitions: watch(looks),
            };
            let estimate = starts.estimate(&partition(), checkpoint_every);
            assert_eq!(estimate, seconds.map(|seconds| seconds * 1_000), "{name}");
        }
    }

    #[test]
    fn another_log_or_another_decision_about_the_position_is_watched_anew() {
        let looks = || [(0, 0, 1_500), (300, 300, 1_500), (600, 600, 1_500)];
        let later = |looks: &BTreeMap<TopicPartition, Watch>| Look {
            at: looks[&partition()].newest.at + Duration::from_secs(300),
            earliest: offset(900),
            checkpointed: offset(1_500),
        };
        for (topic_id, position_id, is_known) in [("a", 1, true), ("b", 1, false), ("a", 2, false)]
        {
            let mut partitions = watch(looks());
            let look = later(&partitions);
            note(
                &mut partitions,
                &partition(),
                (&topic(topic_id), &decided(position_id)),
                look,
            );
            let left = partitions[&partition()].time_left(None);
            assert_eq!(left.is_some(), is_known, "{topic_id} {position_id}");
        }
    }

    #[test]
    fn so_many_jumps_are_kept_and_no_more() {
        let partitions =
            watch((0..100).map(|second| (second, i64::try_from(second).unwrap(), 500)));
        assert_eq!(partitions[&partition()].jumps.len(), MOST_JUMPS);
    }
}
