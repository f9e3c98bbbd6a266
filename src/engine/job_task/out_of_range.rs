//! A position that its log does not hold any more, while the job runs: never a silent jump.
//!
//! The partition is parked in any case. With `fail` it stays, and the brokers are asked where its log begins and ends, to
//! say what is lost. With `earliest` or `latest` its position is held against the log like that of a partition that was away
//! ([`pending_positions`](crate::engine::pending_positions)): ids before bounds, one resolver, stored first, then read from.
//!
//! The log may be that of another topic of the same name. Numbers do not tell, so only what was found in the position's own
//! topic moves it; another topic is a matter for the look at the topics, which is hurried, and for `on_topic_recreated`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;

use super::{Background, JobTask};
use crate::{
    engine::{
        error::{ConsumerError, KafkaError},
        job_handle::JobRun,
        parked::Decided,
        pending_positions::Pending,
    },
    model::{
        code::Code,
        errors_spec::Block,
        event::EventKind,
        job::PositionPolicy,
        offset::Offset,
        parked::{LostRange, LostSide},
        resolver::{LogBounds, StartReason},
        topic::{TopicId, TopicPartition},
    },
};

/// How often the brokers are asked until they answer.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How often they are asked again while a partition stays parked.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(5);

/// How many positions the start has moved because their logs did not hold them, or because their topics were created again.
pub(super) fn moved_by_the_start(run: &JobRun) -> u64 {
    let moved = run.reasons.iter().filter(|(partition, reason)| {
        let is_moved = matches!(
            reason,
            StartReason::BelowEarliest | StartReason::BeyondLatest | StartReason::TopicRecreated
        );
        is_moved && !run.parked.contains_key(partition)
    });
    moved.count() as u64
}

/// The questions where logs begin and end whose partitions are parked outside them.
#[derive(Default)]
pub(super) struct BoundsAsked {
    /// When the last one was answered.
    asked: Option<Instant>,
    under_way: bool,
}

/// What is said of a position outside its log.
fn outside(partition: &TopicPartition, position: Offset, what_is_lost: &str) -> String {
    let cause = ConsumerError::OutOfRange {
        partition: partition.clone(),
        position,
    };
    format!("{cause}; {what_is_lost}")
}

impl JobTask {
    /// Whether a partition is parked because its log does not hold its position.
    pub(super) fn is_outside(&self, partition: &TopicPartition) -> bool {
        let parked = self.parked.get(partition);
        parked.is_some_and(|parked| parked.code == Code::OffsetOutOfRange)
    }

    /// Judges what stands outside its log anew, by the policy as it is now.
    pub(super) fn judge_outside_anew(&mut self) {
        let outside = self
            .parked
            .keys()
            .filter(|one| self.is_outside(one) && !self.pending.resolved().contains_key(*one));
        let outside: Vec<TopicPartition> = outside.cloned().collect();
        for partition in outside {
            self.pending.forget(&partition);
            self.judge_outside(partition);
        }
    }

    /// What the policy means for a partition that stands outside its log.
    pub(super) fn judge_outside(&mut self, partition: TopicPartition) {
        if self.run.spec.source.on_out_of_range == PositionPolicy::Fail {
            return self.ask_bounds();
        }
        if let Some(position) = self.position_of(&partition) {
            self.pending.add(partition, Pending::Held(position));
            self.look_up_at_once();
        }
    }

    /// A partition that was away and is back may find its position outside its log, and the policy may say that somebody has to
    /// decide: it is parked for that then, and for having been gone no longer.
    pub(super) fn park_what_came_back_outside(&mut self) {
        let outside = self
            .look_ups
            .against
            .iter()
            .filter(|blocker| blocker.code == Code::OffsetOutOfRange)
            .flat_map(|blocker| &blocker.partitions)
            .filter(|partition| {
                let waits = self.pending.unresolved().get(*partition);
                matches!(waits, Some(Pending::Held(_))) && !self.is_outside(partition)
            });
        let outside: Vec<TopicPartition> = outside.cloned().collect();
        for partition in outside {
            self.pending.forget(&partition);
            let position = self.parked.get(&partition).and_then(|parked| parked.offset);
            let Some(position) = position else {
                continue;
            };
            let cause = ConsumerError::OutOfRange {
                partition: partition.clone(),
                position,
            };
            self.park_anew(&partition, Code::OffsetOutOfRange, cause.to_string());
            if self.run.spec.errors.block == Block::Job {
                self.on_blocked(cause.into());
            }
            self.judge_outside(partition);
        }
    }

    /// Asks where the logs begin and end that do not hold their partition's position, to name what is lost, and again now and
    /// then: retention goes on while somebody makes up their mind.
    pub(super) fn ask_bounds(&mut self) {
        let waiting = self.parked.keys().filter(|one| self.waits_outside(one));
        let outside: Vec<TopicPartition> = waiting.cloned().collect();
        if outside.is_empty() && !self.bounds.under_way {
            self.bounds.asked = None;
            return;
        }
        let is_unnamed = |partition: &TopicPartition| self.parked[partition].lost.is_none();
        let pause = match outside.iter().any(is_unnamed) {
            true => ASK_EVERY,
            false => ASK_AGAIN_EVERY,
        };
        let asked = self.bounds.asked;
        if self.bounds.under_way || asked.is_some_and(|asked| asked.elapsed() < pause) {
            return;
        }
        self.bounds.under_way = true;
        let kafka = Arc::clone(&self.run.kafka);
        self.background
            .spawn(async move { Background::Bounds(kafka.log_bounds(&outside).await) });
    }

    /// Whether a partition stays outside its log until somebody decides.
    fn waits_outside(&self, partition: &TopicPartition) -> bool {
        self.is_outside(partition) && !self.pending.holds(partition)
    }

    pub(super) fn on_bounds(
        &mut self,
        outcome: Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>,
    ) {
        self.bounds.under_way = false;
        self.bounds.asked = Some(Instant::now());
        match outcome {
            Ok(bounds) => {
                for (partition, bounds) in bounds {
                    self.name_the_lost(&partition, &bounds);
                }
            }
            Err(error) => tracing::debug!(%error, "the bounds of logs could not be asked for"),
        }
        self.publish();
    }

    /// Says what is lost; somebody has to decide.
    fn name_the_lost(&mut self, partition: &TopicPartition, bounds: &LogBounds) {
        if !self.waits_outside(partition) {
            // What it is parked for has changed while the brokers were asked.
            return;
        }
        let position = self.parked.get(partition).and_then(|parked| parked.offset);
        let lost = position.and_then(|at| self.lost_of(partition, at, bounds));
        let parked = Arc::make_mut(&mut self.parked).get_mut(partition);
        let (Some(at), Some(parked)) = (position, parked) else {
            return;
        };
        if let Some(known) = parked.lost {
            // Only what retention removes is followed: of a log that was cut, what is written anew brings nothing back.
            let newly = lost.filter(|lost| lost.side == LostSide::BelowEarliest && *lost != known);
            if let Some(lost) = newly {
                parked.lost = Some(lost);
                parked.detail = outside(partition, at, &lost.to_string());
            }
            return;
        }
        // One that the log holds again is not read again by itself: what stands there now may be something else.
        let lost = lost.unwrap_or(LostRange {
            side: LostSide::BeyondLatest,
            from: at,
            to: at,
            offsets: 0,
        });
        parked.lost = Some(lost);
        let words = if lost.offsets > 0 {
            lost.to_string()
        } else {
            format!(
                "the log reaches from {} to {} now",
                bounds.earliest, bounds.latest
            )
        };
        parked.detail = outside(partition, at, &words);
        let parked = parked.clone();
        tracing::error!(kafka.topic = %partition.topic, kafka.partition = partition.partition, detail = parked.detail, "the partition stays parked");
        self.tell(EventKind::PartitionParked, json!({"parked": parked}));
    }

    /// Parts what a look-up found: positions that count, and those outside whose topic is another one by now. The latter
    /// wait for the look at the topics, which tells of it. In a bounded run no position counts in another topic.
    pub(super) fn in_their_topics(
        &mut self,
        found: BTreeMap<TopicPartition, Decided>,
    ) -> (BTreeMap<TopicPartition, Decided>, BTreeSet<TopicPartition>) {
        let is_elsewhere = |partition: &TopicPartition, decided: &Decided| {
            let state = self.partitions.get(partition);
            let then = state.and_then(|state| state.topic_id.as_ref());
            (self.is_outside(partition) || self.run.ends.is_some())
                && TopicId::differ(then, decided.topic_id.as_ref())
        };
        let (elsewhere, found): (BTreeMap<_, _>, BTreeMap<_, _>) = found
            .into_iter()
            .partition(|(partition, decided)| is_elsewhere(partition, decided));
        if !elsewhere.is_empty() {
            self.discovery.hurry(Instant::now());
        }
        (found, elsewhere.into_keys().collect())
    }

    /// What a log has lost of a position: in a bounded run up to its end, because what lies behind that is no part of it.
    fn lost_of(
        &self,
        partition: &TopicPartition,
        at: Offset,
        bounds: &LogBounds,
    ) -> Option<LostRange> {
        let lost = LostRange::between(at, bounds)?;
        let ends = self.run.ends.as_ref();
        Some(match ends.and_then(|ends| ends.get(partition)) {
            Some(end) => lost.up_to(*end),
            None => lost,
        })
    }

    /// Notes what is lost of decided positions that their logs did not hold, and tells of the moves, also of those into topics
    /// that were created again. One that its log holds again goes on there, and nothing is decided.
    pub(super) fn note_moves(
        &mut self,
        found: &[TopicPartition],
        bounds: &BTreeMap<TopicPartition, LogBounds>,
    ) {
        for partition in found {
            let position = self.position_of(partition);
            let at = position.and_then(|position| position.next_offset);
            let (Some(at), Some(bounds), Some(decided)) = (
                at,
                bounds.get(partition),
                self.pending.resolved().get(partition),
            ) else {
                continue;
            };
            let to = decided.offset;
            if decided.reason == Some(StartReason::TopicRecreated) {
                let policy = self.run.spec.source.on_topic_recreated;
                // Of the new topic nothing was read.
                let skipped = to.distance_from(bounds.earliest).max(0);
                self.tell_move(partition, (at, to), policy, None, skipped);
            } else if self.is_outside(partition) {
                let lost = self.lost_of(partition, at, bounds);
                if let Some(parked) = Arc::make_mut(&mut self.parked).get_mut(partition) {
                    parked.lost = lost;
                }
                if lost.is_some() {
                    let policy = self.run.spec.source.on_out_of_range;
                    let skipped = to.distance_from(at.max(bounds.earliest)).max(0);
                    self.tell_move(partition, (at, to), policy, lost, skipped);
                }
            }
        }
    }

    /// Tells that a position is moved as the spec says, with what is gone and what is passed over, and counts it.
    fn tell_move(
        &mut self,
        partition: &TopicPartition,
        (from, to): (Offset, Offset),
        policy: PositionPolicy,
        lost: Option<LostRange>,
        skipped: i64,
    ) {
        let reason = match lost {
            None => StartReason::TopicRecreated,
            Some(lost) => match lost.side {
                LostSide::BelowEarliest => StartReason::BelowEarliest,
                LostSide::BeyondLatest => StartReason::BeyondLatest,
            },
        };
        let why = lost.map_or_else(
            || "the topic was created again".to_owned(),
            |lost| format!("the log does not hold the position; {lost}"),
        );
        tracing::warn!(kafka.topic = %partition.topic, kafka.partition = partition.partition, from = from.get(), to = to.get(), skipped, why, "the position is moved as the spec says");
        let details = json!({
            "topic": partition.topic, "partition": partition.partition, "from": from, "to": to,
            "reason": reason, "policy": policy, "lost": lost, "skipped": skipped,
        });
        self.tell(EventKind::PositionMoved, details);
        self.moved += 1;
    }

    /// Whether one of these decisions moves a position that its log did not hold.
    pub(super) fn moves_a_position(&self, decided: &BTreeSet<TopicPartition>) -> bool {
        decided.iter().any(|partition| {
            let parked = self.parked.get(partition);
            self.is_outside(partition) && parked.is_some_and(|parked| parked.lost.is_some())
        })
    }
}
