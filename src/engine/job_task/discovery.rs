//! Looks at the brokers' metadata while the job runs, and does what that means; see
//! [`discovery`](crate::engine::discovery).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Background, JobTask, Partition};
use crate::{
    engine::{
        checkpoint_coordinator::CoordinatorEvent,
        discovery::{Change, Known},
        error::{ConsumerError, KafkaError},
        job_handle::JobRun,
        pending_positions::Pending,
        ports::TopicDescription,
        topics,
    },
    model::{
        checkpoint::{CheckpointKind, CheckpointPosition},
        code::Code,
        errors_spec::Block,
        event::EventKind,
        job::{PartitionDiscovery, PositionPolicy},
        job_status::{DiscoveryStatus, JobFailure},
        offset::PartitionOffsets,
        parked::ParkedPartition,
        resolver::{SinkPosition, StartReason},
        subtask::owner,
        topic::{TopicId, TopicPartition},
    },
};

/// What is said in a bounded run of a topic that was created again.
const OF_THE_OLD_TOPIC: &str = "; the ends of the bounded run are the old topic's, so the next start decides by on_topic_recreated and gives it an end anew";

/// How long one look may take.
const LOOK: Duration = Duration::from_secs(20);

impl JobTask {
    /// Takes a look when one is due, off this task: brokers that are away may take their time to say so.
    pub(super) fn watch_topics(&mut self) {
        if self.stopping.is_none() && self.discovery.begin(Instant::now()) {
            let (kafka, source) = (Arc::clone(&self.run.kafka), self.run.spec.source.clone());
            self.background.spawn(async move {
                let look = topics::describe(&*kafka, &source);
                let look = KafkaError::unless_answered("look at the topics", LOOK, look);
                Background::Discovered(look.await)
            });
        }
        let failing = self.discovery.problem().map(str::to_owned);
        self.note_waiting(Code::DiscoveryFailing, failing);
        let pattern = self.run.spec.source.topic_pattern.as_ref();
        let is_empty = self
            .discovery
            .topics()
            .map_or(self.partitions.is_empty(), |topics| topics == 0);
        let nothing = pattern.filter(|_| is_empty).map(|pattern| {
            format!("no topic matches {pattern}; the job reads them when they appear")
        });
        self.note_waiting(Code::NoTopics, nothing);
    }

    /// Takes other settings, from now on.
    pub(super) fn set_discovery(&mut self, discovery: PartitionDiscovery) {
        let interval = discovery.interval.0;
        self.run.spec.source.partition_discovery = discovery;
        self.discovery.set_interval(interval, Instant::now());
        self.publish();
    }

    pub(super) fn on_discovered(&mut self, look: Result<Vec<TopicDescription>, KafkaError>) {
        let now = Instant::now();
        let described = match look {
            Ok(described) => described,
            Err(error) => {
                tracing::debug!(%error, "a look at the topics failed");
                return self.discovery.failed(error.to_string(), now);
            }
        };
        self.looked_at = Some(self.run.clock.now());
        let known = self.known_partitions();
        let changes = self.discovery.seen(&known, &described, now);
        if changes.is_empty() || self.stopping.is_some() {
            // What a stop leaves undone, the next start finds.
            return;
        }
        let mut history: BTreeMap<EventKind, Vec<Value>> = BTreeMap::new();
        for (partition, change) in changes {
            // What appears after a bounded run has begun is no part of it.
            if self.run.ends.is_some() && matches!(change, Change::Appeared) {
                continue;
            }
            if let Some((kind, entry)) = self.carry_out_change(partition, change) {
                history.entry(kind).or_default().push(entry);
            }
        }
        for (kind, partitions) in history {
            self.tell(kind, json!({"partitions": partitions}));
        }
        self.look_up_at_once();
        self.publish();
    }

    /// Tells of what the start has parked and nothing had before.
    pub(super) fn tell_parked_at_start(&mut self) {
        let parked = Arc::clone(&self.parked);
        let told_before = |partition: &&TopicPartition| {
            let parking = self.run.parked.get(*partition);
            parking.is_none_or(|parking| parking.again)
        };
        let new: Vec<_> = parked
            .iter()
            .filter(|(partition, _)| !told_before(partition))
            .collect();
        for (partition, parked) in new {
            tracing::error!(kafka.topic = %partition.topic, kafka.partition = partition.partition, code = %parked.code, detail = parked.detail, "the partition is parked; the others run");
            self.tell(EventKind::PartitionParked, json!({"parked": parked}));
        }
    }

    fn known_partitions(&self) -> BTreeMap<TopicPartition, Known> {
        let mut known: BTreeMap<TopicPartition, Known> = BTreeMap::new();
        for (partition, state) in &self.partitions {
            let parked = self.parked.get(partition);
            let is_gone = parked.is_some_and(|parked| parked.code == Code::PartitionGone);
            let entry = Known {
                topic_id: state.topic_id.clone(),
                // One that is on its way back is there.
                gone: is_gone && !self.pending.holds(partition),
                replaced_by: self.replaced.get(partition).cloned(),
            };
            known.insert(partition.clone(), entry);
        }
        let waiting = self.pending.unresolved().keys().chain(self.kept.keys());
        for partition in waiting {
            known.entry(partition.clone()).or_insert(Known {
                topic_id: None,
                gone: false,
                replaced_by: None,
            });
        }
        known
    }

    /// Does what a change means; answers what the history says of it. (Decided positions are told with their checkpoint.)
    fn carry_out_change(
        &mut self,
        partition: TopicPartition,
        change: Change,
    ) -> Option<(EventKind, Value)> {
        let entry = json!({"topic": partition.topic, "partition": partition.partition});
        match change {
            Change::Appeared => {
                self.appeared(partition);
                None
            }
            Change::Vanished if self.kept.contains_key(&partition) => None,
            Change::Vanished => {
                self.pending.forget(&partition);
                let summary = format!("{partition} does not exist on the brokers any more");
                self.park_anew(&partition, Code::PartitionGone, summary);
                Some((EventKind::PartitionGone, entry))
            }
            Change::Returned => {
                let position = self.position_of(&partition)?;
                tracing::info!(kafka.topic = %partition.topic, kafka.partition = partition.partition, "the partition is there again");
                self.pending.add(partition, Pending::Held(position));
                Some((EventKind::PartitionReturned, entry))
            }
            Change::Recreated { now, exists } => {
                let then = self.partitions.get(&partition)?.topic_id.clone();
                self.recreated(partition, now.clone(), exists);
                let ids = json!({"topic_id": then, "new_topic_id": now});
                let (Value::Object(mut entry), Value::Object(ids)) = (entry, ids) else {
                    return None;
                };
                entry.extend(ids);
                Some((EventKind::TopicRecreated, Value::Object(entry)))
            }
        }
    }

    fn appeared(&mut self, partition: TopicPartition) {
        tracing::info!(kafka.topic = %partition.topic, kafka.partition = partition.partition, "a partition appeared");
        self.discovered += 1;
        if Pending::Appeared.by_startup_mode(&self.run.spec) {
            self.add_partition(&partition, true);
        }
        self.pending.add(partition, Pending::Appeared);
    }

    fn recreated(&mut self, partition: TopicPartition, now: TopicId, exists: bool) {
        let Some(position) = self.position_of(&partition) else {
            // It waits for its first position, which is decided in the topic as it is.
            return;
        };
        let Some(then) = position.topic_id.clone() else {
            return;
        };
        self.pending.forget(&partition);
        if !exists {
            let summary = format!(
                "{partition}: the topic was created again without this partition (id {then} then, {now} now)"
            );
            return self.park_anew(&partition, Code::PartitionGone, summary);
        }
        let cause = ConsumerError::TopicRecreated {
            partition: partition.clone(),
            then,
            now: now.clone(),
        };
        let mut why = cause.to_string();
        if self.run.ends.is_some() {
            why.push_str(OF_THE_OLD_TOPIC);
        }
        self.park_anew(&partition, Code::TopicRecreated, why);
        self.replaced.insert(partition.clone(), now);
        if self.moves_into_new_topics() {
            return self.pending.add(partition, Pending::Held(position));
        }
        if self.run.spec.errors.block == Block::Job {
            self.on_blocked(cause.into());
        }
    }

    /// Whether positions are moved into topics that were created again. Never in a bounded run: its ends are numbers of the
    /// old topic, and a new one would be cut there, or waited for. The next start decides, beginnings and ends together.
    pub(super) fn moves_into_new_topics(&self) -> bool {
        self.run.ends.is_none() && self.run.spec.source.on_topic_recreated != PositionPolicy::Fail
    }

    /// Parks a partition, or shows one that is parked for another reason under this one, which comes first.
    pub(super) fn park_anew(&mut self, partition: &TopicPartition, code: Code, summary: String) {
        let failure = JobFailure {
            code,
            summary,
            record: None,
            phase: None,
            first_seen: self.run.clock.now(),
        };
        if self.partitions.contains_key(partition) && !self.parked.contains_key(partition) {
            return self.park(partition, failure);
        }
        if let Some(parked) = Arc::make_mut(&mut self.parked).get_mut(partition) {
            *parked = ParkedPartition::at(partition, parked.offset, failure);
        }
    }

    /// Where a partition stands. A batch of it may still be under way: the checkpoint that decides has the last word.
    pub(super) fn position_of(&self, partition: &TopicPartition) -> Option<CheckpointPosition> {
        let state = self.partitions.get(partition)?;
        let next_offset = state.live.as_ref().and_then(|live| live.get())?;
        Some(CheckpointPosition {
            next_offset: Some(next_offset),
            position_id: state.position_id,
            topic_id: state.topic_id.clone(),
        })
    }

    /// Takes a partition into the run; it has no position yet.
    fn add_partition(&mut self, partition: &TopicPartition, by_mode: bool) {
        if self.partitions.contains_key(partition) {
            return;
        }
        let parallelism = self.run.spec.parallelism;
        let state = Partition {
            subtask: owner(&partition.topic, partition.partition, parallelism),
            // Until it has a position of its own.
            position_id: self.last.id,
            topic_id: None,
            live: None,
            seen_end: None,
            reason: None,
            by_mode,
        };
        self.partitions.insert(partition.clone(), state);
    }

    /// Positions were found: they are stored before the first fetch.
    pub(super) fn take_positions(&mut self, found: Vec<TopicPartition>) {
        let only_moves = !found.is_empty() && found.iter().all(|one| self.is_outside(one));
        for partition in found {
            self.add_partition(&partition, false);
        }
        if self.pending.resolved().is_empty() || self.stopping.is_some() {
            return;
        }
        // One that only moves positions is called by that.
        let kind = if only_moves {
            CheckpointKind::Periodic
        } else {
            CheckpointKind::Discovery
        };
        self.coordinate(CoordinatorEvent::Trigger {
            kind,
            timeout: None,
        });
    }

    /// Leaves out what the group must not hear: positions of a topic that does not exist, or of one whose name another has
    /// taken.
    pub(super) fn committable(&self, mut offsets: PartitionOffsets) -> PartitionOffsets {
        offsets.retain(|partition, _| {
            let parked = self.parked.get(partition).map(|parked| parked.code);
            !matches!(parked, Some(Code::PartitionGone | Code::TopicRecreated))
                && self.partitions.contains_key(partition)
        });
        offsets
    }

    /// Positions of partitions that are not read from the start on. The sink hears of them all the same: it tells progress that
    /// was lost from progress that never was by what it has heard.
    pub(super) fn positions_for_the_sink(
        &self,
        subtask: u32,
    ) -> Vec<(TopicPartition, SinkPosition)> {
        let parallelism = self.run.spec.parallelism;
        let gone = self.parked.keys().filter_map(|partition| {
            let position = self.position_of(partition)?;
            Some((partition, position))
        });
        let kept = self.kept.iter();
        let all = kept.map(|(partition, position)| (partition, position.clone()));
        all.chain(gone)
            .filter(|(partition, _)| {
                owner(&partition.topic, partition.partition, parallelism) == subtask
            })
            .filter_map(|(partition, position)| {
                let position = SinkPosition {
                    next_offset: position.next_offset?,
                    position_id: position.position_id,
                };
                Some((partition.clone(), position))
            })
            .collect()
    }

    /// What the run shows of its looks.
    pub(super) fn discovery_status(&self) -> DiscoveryStatus {
        let (failures, last_error) = self.discovery.failing();
        DiscoveryStatus {
            looked_at: self.looked_at,
            topics: self.discovery.topics(),
            discovered: self.discovered,
            failures,
            last_error: last_error.map(str::to_owned),
        }
    }
}

/// Partitions that the start has found missing, and those that it leaves parked.
pub(super) fn parked_at_start(run: &JobRun) -> BTreeMap<TopicPartition, ParkedPartition> {
    let since = run.clock.now();
    let parked = run
        .start
        .positions
        .iter()
        .filter_map(|(partition, position)| {
            let is_gone = run.reasons.get(partition) == Some(&StartReason::PartitionGone);
            let (code, summary, lost) = match run.parked.get(partition) {
                Some(parking) => (parking.code, parking.detail.clone(), parking.lost),
                None if is_gone => {
                    let summary = format!("{partition} does not exist on the brokers");
                    (Code::PartitionGone, summary, None)
                }
                None => return None,
            };
            let failure = JobFailure {
                code,
                summary,
                record: None,
                phase: None,
                first_seen: since,
            };
            let parked = ParkedPartition {
                lost,
                ..ParkedPartition::at(partition, position.next_offset, failure)
            };
            Some((partition.clone(), parked))
        });
    parked.collect()
}

/// The topics that have taken the names of others, by partition.
pub(super) fn replaced_at_start(run: &JobRun) -> BTreeMap<TopicPartition, TopicId> {
    let replaced = run.parked.iter().filter_map(|(partition, parking)| {
        let by = parking.replaced_by.clone()?;
        Some((partition.clone(), by))
    });
    replaced.collect()
}
