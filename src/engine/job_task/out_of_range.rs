//! A position that its log does not hold any more, while the job runs: never a silent jump.
//!
//! The partition is parked in any case, and the brokers are asked where its log begins and ends. With `fail` it stays, and
//! says what is lost. With `earliest` or `latest` the new position is decided like any other: stored first, then read from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use tokio::time::Instant;

use super::{Background, JobTask};
use crate::{
    engine::{error::KafkaError, parked::Decided},
    model::{
        code::Code,
        event::EventKind,
        job::PositionPolicy,
        offset::Offset,
        parked::{LostRange, LostSide},
        resolver::{LogBounds, StartReason},
        topic::TopicPartition,
    },
};

/// How often the brokers are asked until they answer.
const ASK_EVERY: Duration = Duration::from_secs(2);

impl JobTask {
    /// Asks where the logs begin and end that do not hold their partition's position.
    pub(super) fn ask_bounds(&mut self) {
        let early = self
            .bounds_asked
            .is_some_and(|asked| asked.elapsed() < ASK_EVERY);
        if self.asking_bounds || early {
            return;
        }
        let outside: Vec<TopicPartition> = self
            .parked
            .iter()
            .filter(|(partition, parked)| {
                parked.code == Code::OffsetOutOfRange
                    && parked.lost.is_none()
                    && !self.pending.resolved().contains_key(*partition)
            })
            .map(|(partition, _)| partition.clone())
            .collect();
        if outside.is_empty() {
            self.bounds_asked = None;
            return;
        }
        self.asking_bounds = true;
        let kafka = Arc::clone(&self.run.kafka);
        self.background
            .spawn(async move { Background::Bounds(kafka.log_bounds(&outside).await) });
    }

    pub(super) fn on_bounds(
        &mut self,
        outcome: Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>,
    ) {
        self.asking_bounds = false;
        self.bounds_asked = Some(Instant::now());
        match outcome {
            Ok(bounds) => {
                for (partition, bounds) in bounds {
                    self.judge_outside(partition, &bounds);
                }
            }
            Err(error) => tracing::debug!(%error, "the bounds of logs could not be asked for"),
        }
        self.publish();
    }

    fn judge_outside(&mut self, partition: TopicPartition, bounds: &LogBounds) {
        let Some(at) = self.parked.get(&partition).and_then(|parked| parked.offset) else {
            return;
        };
        let lost = LostRange::between(at, bounds);
        let policy = self.run.spec.source.on_out_of_range;
        let to = match (policy, lost) {
            (PositionPolicy::Fail, _) => return self.stays_outside(&partition, lost, bounds),
            // The log holds it again: the brokers had not agreed on their leader yet.
            (_, None) => at,
            (PositionPolicy::Earliest, Some(_)) => bounds.earliest,
            (PositionPolicy::Latest, Some(_)) => {
                bounds.readable_end(self.run.spec.source.isolation)
            }
        };
        if let Some(parked) = Arc::make_mut(&mut self.parked).get_mut(&partition) {
            parked.lost = lost;
        }
        self.move_position(partition, at, to, lost);
    }

    /// Says what is lost; somebody has to decide.
    fn stays_outside(
        &mut self,
        partition: &TopicPartition,
        lost: Option<LostRange>,
        bounds: &LogBounds,
    ) {
        let Some(parked) = Arc::make_mut(&mut self.parked).get_mut(partition) else {
            return;
        };
        // One that the log holds again is not read again by itself: what stands there now may be something else.
        let lost = lost.or_else(|| {
            parked.offset.map(|at| LostRange {
                side: LostSide::BeyondLatest,
                from: at,
                to: at,
                offsets: 0,
            })
        });
        parked.lost = lost;
        let words = match lost.filter(|lost| lost.offsets > 0) {
            Some(lost) => lost.to_string(),
            None => format!(
                "the log reaches from {} to {} now",
                bounds.earliest, bounds.latest
            ),
        };
        parked.detail = format!("{}; {words}", parked.detail);
        let parked = parked.clone();
        tracing::error!(kafka.topic = %partition.topic, kafka.partition = partition.partition, detail = parked.detail, "the partition stays parked");
        self.tell(EventKind::PartitionParked, json!({"parked": parked}));
    }

    /// `lost` is nothing if the log holds the position again: then nothing is decided, and the partition goes on there.
    fn move_position(
        &mut self,
        partition: TopicPartition,
        from: Offset,
        to: Offset,
        lost: Option<LostRange>,
    ) {
        let Some(state) = self.partitions.get(&partition) else {
            return;
        };
        let decided = Decided {
            offset: to,
            topic_id: state.topic_id.clone(),
            reason: lost.map(|lost| match lost.side {
                LostSide::BelowEarliest => StartReason::BelowEarliest,
                LostSide::BeyondLatest => StartReason::BeyondLatest,
            }),
            position_id: lost.is_none().then_some(state.position_id),
        };
        if let Some(lost) = lost {
            tracing::warn!(kafka.topic = %partition.topic, kafka.partition = partition.partition, from = from.get(), to = to.get(), %lost, "the log does not hold the position; it is moved as the spec says");
            let details = json!({
                "topic": partition.topic, "partition": partition.partition, "from": from, "to": to,
                "policy": self.run.spec.source.on_out_of_range, "lost": lost,
            });
            self.tell(EventKind::PositionMoved, details);
            self.moved += 1;
        }
        self.decide(partition, decided);
    }

    /// Whether one of these decisions moves a position that its log did not hold.
    pub(super) fn moves_a_position(&self, decided: &BTreeSet<TopicPartition>) -> bool {
        decided.iter().any(|partition| {
            let parked = self.parked.get(partition);
            parked.is_some_and(|parked| {
                parked.code == Code::OffsetOutOfRange && parked.lost.is_some()
            })
        })
    }
}
