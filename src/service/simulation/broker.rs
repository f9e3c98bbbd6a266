//! A model of the brokers: logs with records, markers and bad records, leaders that go, fronts that are cut off, a group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;

use super::world::{Defect, Peer, ServerId, State, World};
use crate::{
    engine::{
        error::{ConsumerError, ErrorClass, KafkaError},
        ports::{
            Consumer, ConsumerSettings, GroupOffset, KafkaCluster, OffsetCommitter, Polled,
            TopicDescription,
        },
    },
    model::{
        code::Code,
        job::Isolation,
        offset::{Offset, PartitionOffsets},
        record::{BatchRun, ConsumerRecord, RecordBatch, RecordSource},
        resolver::LogBounds,
        topic::{TopicId, TopicPartition},
    },
};

pub(super) const TOPIC: &str = "orders";

/// What lies at an offset of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    Record,
    /// A record that is not what the format says.
    Bad,
    /// A control record or a hole: no consumer sees it.
    Marker,
}

/// One partition. Entries stay when the front is cut off, for whoever judges.
#[derive(Debug, Clone, Default)]
pub(super) struct Log {
    pub(super) entries: Vec<Entry>,
    /// When each was written, in milliseconds of the world's day.
    pub(super) written_at: Vec<i64>,
    /// First offset that can still be read.
    pub(super) start: i64,
    /// What the first offset was before.
    pub(super) starts: Vec<i64>,
    pub(super) has_leader: bool,
}

impl Log {
    pub(super) fn end(&self) -> i64 {
        i64::try_from(self.entries.len()).unwrap()
    }

    pub(super) fn entry(&self, at: i64) -> Option<Entry> {
        self.entries.get(usize::try_from(at).ok()?).copied()
    }

    /// The records that a consumer sees in a range.
    pub(super) fn records(&self, from: i64, to: i64) -> Vec<i64> {
        let seen = (from.max(0)..to)
            .filter(|at| self.entry(*at).is_some_and(|entry| entry != Entry::Marker));
        seen.collect()
    }

    /// Cuts the front off.
    pub(super) fn truncate(&mut self, to: i64) {
        self.starts.push(self.start);
        self.start = to;
    }

    /// Whether it began there at some time.
    pub(super) fn began_at(&self, at: i64) -> bool {
        self.start == at || self.starts.contains(&at)
    }

    fn bounds(&self) -> LogBounds {
        LogBounds {
            earliest: offset(self.start),
            last_stable: offset(self.end()),
            latest: offset(self.end()),
        }
    }
}

/// One topic, which may be gone for a while, or be deleted and created again.
#[derive(Debug, Clone, Default)]
pub(super) struct Broker {
    /// Of the topic as it is. They stay while it is gone, for whoever judges.
    pub(super) logs: BTreeMap<i32, Log>,
    /// Of the topics that had the name before, by the number of their creation.
    past: BTreeMap<(u32, i32), Log>,
    /// How often it was created again.
    pub(super) creation: u32,
    /// Whether the brokers do not know the topic for the moment.
    pub(super) is_gone: bool,
    /// Whether it was gone or created again at some time.
    pub(super) was_unsettled: bool,
    /// The group's offset and note by partition.
    pub(super) group: BTreeMap<i32, (i64, String)>,
    /// Of a thousand commits, how many are lost or lose their answer.
    pub(super) lost_commits: u32,
}

impl Broker {
    /// The log of a partition in one of the topic's creations.
    pub(super) fn log(&self, creation: u32, number: i32) -> Option<&Log> {
        if creation == self.creation {
            self.logs.get(&number)
        } else {
            self.past.get(&(creation, number))
        }
    }

    /// Deletes the topic and creates another of its name.
    pub(super) fn recreate(&mut self, partitions: i32) {
        for (number, log) in std::mem::take(&mut self.logs) {
            self.past.insert((self.creation, number), log);
        }
        self.creation += 1;
        self.was_unsettled = true;
        self.group.clear();
        for number in 0..partitions {
            let log = Log {
                has_leader: true,
                ..Log::default()
            };
            self.logs.insert(number, log);
        }
    }

    /// The partition as the brokers know it now.
    fn known(&self, number: i32) -> Option<&Log> {
        self.logs.get(&number).filter(|_| !self.is_gone)
    }
}

/// The id of a creation of the topic.
pub(super) fn topic_id(creation: u32) -> TopicId {
    TopicId(format!("creation-{creation}").into())
}

/// Which creation an id names.
pub(super) fn creation_of(id: &TopicId) -> u32 {
    let number = id.0.rsplit('-').next();
    number.and_then(|number| number.parse().ok()).unwrap()
}

pub(super) fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

pub(super) fn partition(number: i32) -> TopicPartition {
    TopicPartition::new(TOPIC, number)
}

fn away(operation: &str) -> KafkaError {
    KafkaError {
        operation: operation.to_owned(),
        detail: "no broker answers".to_owned(),
        code: Code::KafkaUnreachable,
        class: ErrorClass::Infrastructure,
    }
}

/// The cluster as one server sees it, for runs under one epoch.
pub(super) struct ModelCluster {
    pub(super) world: Arc<World>,
    pub(super) server: ServerId,
    pub(super) epoch: i64,
}

impl ModelCluster {
    async fn ask<T: Send + 'static>(
        &self,
        operation: &str,
        answer: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Result<T, KafkaError> {
        let asked = self.world.call(self.server, Peer::Broker, answer).await;
        asked.ok_or_else(|| away(operation))
    }
}

#[async_trait]
impl KafkaCluster for ModelCluster {
    fn consumer(&self, settings: &ConsumerSettings) -> Result<Box<dyn Consumer>, KafkaError> {
        Ok(Box::new(ModelConsumer {
            world: Arc::clone(&self.world),
            server: self.server,
            epoch: self.epoch,
            subtask: settings.subtask,
            positions: BTreeMap::new(),
            lost: BTreeSet::new(),
            has_parked: false,
        }))
    }

    fn check_properties(
        &self,
        _properties: &BTreeMap<String, String>,
    ) -> Result<(), Vec<(String, String)>> {
        Ok(())
    }

    async fn describe_topics(
        &self,
        _topics: &[String],
    ) -> Result<Vec<TopicDescription>, KafkaError> {
        self.ask("describe", |state| {
            let blind = state.has(Defect::DiscoveryBlind);
            let known = state.store.newest();
            let is_seen = |number: &i32| {
                let known = known.filter(|_| blind);
                known.is_none_or(|known| known.positions.contains_key(&partition(*number)))
            };
            let partitions = state.broker.logs.iter();
            let partitions = partitions.filter(|(number, _)| is_seen(number));
            let partitions = partitions.map(|(number, log)| (*number, log.has_leader.then_some(1)));
            let creation = if state.has(Defect::TopicIdIgnored) {
                0
            } else {
                state.broker.creation
            };
            let exists = !state.broker.is_gone;
            vec![TopicDescription {
                name: TOPIC.to_owned(),
                id: exists.then(|| topic_id(creation)),
                partitions: exists.then(|| partitions.collect()),
                internal: false,
            }]
        })
        .await
    }

    async fn list_topics(&self) -> Result<Vec<String>, KafkaError> {
        self.ask("list topics", |state| {
            let exists = !state.broker.is_gone;
            exists.then(|| TOPIC.to_owned()).into_iter().collect()
        })
        .await
    }

    async fn log_bounds(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, KafkaError> {
        let asked = partitions.to_vec();
        self.ask("list offsets", move |state| {
            let at_end = state.has(Defect::NewPartitionAtEnd);
            let known = state.store.newest().filter(|_| at_end);
            let led = asked.into_iter().filter_map(|partition| {
                let log = state.broker.known(partition.partition)?;
                let mut bounds = log.bounds();
                if known.is_some_and(|known| !known.positions.contains_key(&partition)) {
                    bounds.earliest = bounds.latest;
                }
                log.has_leader.then_some((partition, bounds))
            });
            led.collect()
        })
        .await
    }

    async fn offsets_for_timestamp(
        &self,
        partitions: &[TopicPartition],
        timestamp_ms: i64,
        _isolation: Isolation,
    ) -> Result<PartitionOffsets, KafkaError> {
        let asked = partitions.to_vec();
        let found = self
            .ask("look up a time", move |state| {
                let mut found = PartitionOffsets::new();
                for partition in asked {
                    let log = state.broker.known(partition.partition)?;
                    if !log.has_leader {
                        return None;
                    }
                    let first = (log.start..log.end())
                        .find(|at| log.written_at[usize::try_from(*at).unwrap()] >= timestamp_ms);
                    if let Some(first) = first {
                        found.insert(partition, offset(first));
                    }
                }
                Some(found)
            })
            .await?;
        found.ok_or_else(|| away("look up a time"))
    }

    async fn group_offsets(
        &self,
        _group: &str,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, GroupOffset>, KafkaError> {
        let asked = partitions.to_vec();
        self.ask("fetch the group's offsets", move |state| {
            let known = asked.into_iter().filter_map(|partition| {
                let (next, note) = state.broker.group.get(&partition.partition)?;
                let known = GroupOffset {
                    offset: offset(*next),
                    note: Some(note.clone()),
                };
                Some((partition, known))
            });
            known.collect()
        })
        .await
    }

    async fn group_members(&self, _group: &str) -> Result<usize, KafkaError> {
        Ok(0)
    }

    async fn alter_group_offsets(
        &self,
        _group: &str,
        _offsets: &PartitionOffsets,
        _note: &str,
    ) -> Result<BTreeMap<TopicPartition, KafkaError>, KafkaError> {
        Err(away("no run of a job moves its group"))
    }

    async fn delete_group(&self, _group: &str) -> Result<bool, KafkaError> {
        Err(away("no run of a job deletes its group"))
    }
}

struct ModelConsumer {
    world: Arc<World>,
    server: ServerId,
    epoch: i64,
    subtask: u32,
    /// Where each partition stands, and in which creation of the topic. (It fetches by the topic's id, KIP-516.)
    positions: BTreeMap<i32, (i64, u32)>,
    /// Partitions whose position the log does not hold, or that are not there: that is told once.
    lost: BTreeSet<i32>,
    /// Whether partitions were taken from it.
    has_parked: bool,
}

/// The values of a batch, each with its time; each record has the offset as its key, so that the sink can tell what it was given.
struct Values(Vec<(i64, Entry, i64)>);

impl RecordSource for Values {
    fn record(&self, index: usize) -> ConsumerRecord<'_> {
        let (record_offset, entry, at) = self.0[index];
        let value: &[u8] = if entry == Entry::Bad { b"bad" } else { b"1" };
        ConsumerRecord {
            record_offset,
            timestamp_ms: Some(at),
            key: None,
            value: Some(value),
        }
    }
}

impl ModelConsumer {
    /// Takes up to some records of a partition; the log's end may be told.
    fn take(
        state: &mut State,
        number: i32,
        position: &mut i64,
        most: usize,
        values: &mut Vec<(i64, Entry, i64)>,
    ) -> Option<BatchRun> {
        let ahead = if state.has(Defect::TimeAhead) {
            3_600_000
        } else {
            0
        };
        let log = state.broker.logs.get(&number)?;
        let (from, end) = (*position, log.end());
        let mut run = values.len()..values.len();
        while *position < end && run.len() < most {
            let entry = log.entry(*position)?;
            if entry != Entry::Marker {
                let written_at = log.written_at[usize::try_from(*position).unwrap()];
                values.push((*position, entry, written_at + ahead));
                run.end += 1;
            }
            *position += 1;
        }
        // What lies behind the last record is passed with it, or told later.
        let ended = *position == end;
        let told = ended && *position > from && state.happens(700);
        if ended && !told && !run.is_empty() {
            *position = values[run.end - 1].0 + 1;
        } else if ended && !told {
            *position = from;
        }
        if state.has(Defect::LostRecord) && run.len() > 1 && state.happens(20) {
            run.start += 1;
        }
        if run.is_empty() && !told {
            return None;
        }
        let too_far = i64::from(state.has(Defect::PlusOneTwice));
        Some(BatchRun {
            partition: Arc::new(partition(number)),
            records: run,
            advance_to: told.then(|| offset(*position + too_far)),
        })
    }
}

impl Consumer for ModelConsumer {
    fn assign(&mut self, partitions: &[(TopicPartition, Offset)]) -> Result<(), ConsumerError> {
        let mut state = self.world.state();
        for (partition, next) in partitions {
            state.trace.note(format_args!(
                "server {} e{} subtask {} reads {partition} from {next}",
                self.server, self.epoch, self.subtask
            ));
            let number = partition.partition;
            let creation = state.judge_assignment(self.epoch, number, next.get());
            self.positions.insert(number, (next.get(), creation));
            self.lost.remove(&partition.partition);
        }
        Ok(())
    }

    fn unassign(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        for partition in partitions {
            self.world.state().trace.note(format_args!(
                "server {} e{} leaves {partition}",
                self.server, self.epoch
            ));
            self.has_parked = true;
            self.world
                .state()
                .judge_leave(self.epoch, partition.partition);
            self.positions.remove(&partition.partition);
        }
        Ok(())
    }

    fn poll(&mut self, _wait: Duration) -> Result<Polled, ConsumerError> {
        let mut guard = self.world.state();
        let state = &mut *guard;
        let is_away = state.network.down.contains(&Peer::Broker)
            || state.network.cut.contains(&(self.server, Peer::Broker));
        if is_away {
            let told = state.happens(500);
            return Ok(if told {
                Polled::Unreachable("no broker is connected".to_owned())
            } else {
                Polled::Idle
            });
        }
        let mut values = Vec::new();
        let mut runs = Vec::new();
        let first = state.chance.usize(0..self.positions.len().max(1));
        let order: Vec<i32> = self.positions.keys().copied().collect();
        let order = order.iter().cycle().skip(first).take(order.len());
        if self.has_parked && state.has(Defect::ParkedHoldsAll) {
            return Ok(Polled::Idle);
        }
        for number in order {
            let (position, creation) = self.positions.get_mut(number).unwrap();
            if self.lost.contains(number) || state.happens(200) {
                continue;
            }
            let by_id = *creation == state.broker.creation || state.has(Defect::TopicIdIgnored);
            let Some(log) = state.broker.known(*number).filter(|_| by_id) else {
                if runs.is_empty() && state.happens(300) {
                    self.lost.insert(*number);
                    return Err(ConsumerError::TopicUnknown {
                        partition: partition(*number),
                    });
                }
                continue;
            };
            let (start, end) = (log.start, log.end());
            if !log.has_leader {
                continue;
            }
            if *position < start || *position > end {
                if !runs.is_empty() {
                    continue;
                }
                self.lost.insert(*number);
                return Err(ConsumerError::OutOfRange {
                    partition: partition(*number),
                    position: offset(*position),
                });
            }
            // A client goes back a little after a reconnect, within a batch or between two.
            for again in [state.happens(20), state.happens(20)] {
                if again {
                    let back = state.chance.i64(1..6);
                    *position = (*position - back).max(start);
                }
                let most = state.chance.usize(1..8);
                runs.extend(Self::take(state, *number, position, most, &mut values));
            }
        }
        if runs.is_empty() {
            return Ok(Polled::Idle);
        }
        Ok(Polled::Batch(RecordBatch::new(
            runs,
            Box::new(Values(values)),
        )))
    }

    fn committer(&self) -> Arc<dyn OffsetCommitter> {
        Arc::new(ModelCommitter {
            world: Arc::clone(&self.world),
            server: self.server,
            epoch: self.epoch,
        })
    }

    fn close(self: Box<Self>) {}
}

struct ModelCommitter {
    world: Arc<World>,
    server: ServerId,
    epoch: i64,
}

impl OffsetCommitter for ModelCommitter {
    /// At once: the time that it takes passes around it.
    fn commit(
        &self,
        offsets: &PartitionOffsets,
        note: &str,
        _deadline: Duration,
    ) -> Result<(), KafkaError> {
        let mut guard = self.world.state();
        let state = &mut *guard;
        let is_away = state.network.down.contains(&Peer::Broker)
            || state.network.cut.contains(&(self.server, Peer::Broker));
        let lost_commits = state.broker.lost_commits;
        if is_away || state.happens(lost_commits) {
            return Err(away("commit"));
        }
        state.trace.note(format_args!(
            "server {} e{} commits {note} {}",
            self.server,
            self.epoch,
            shown(offsets)
        ));
        state.judge_commit(self.epoch, offsets, note);
        for (partition, next) in offsets {
            let committed = (next.get(), note.to_owned());
            state.broker.group.insert(partition.partition, committed);
        }
        if state.happens(lost_commits) {
            return Err(away("commit, unanswered"));
        }
        Ok(())
    }
}

/// Positions in a line of the trace.
pub(super) fn shown(offsets: &PartitionOffsets) -> String {
    let parts: Vec<String> = offsets
        .iter()
        .map(|(partition, next)| format!("{}:{next}", partition.partition))
        .collect();
    parts.join(" ")
}
