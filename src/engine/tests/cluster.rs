//! A cluster that delivers what the test scripts, in the order of the script, to the consumer that has the partition.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::RangeInclusive,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Pulse, partition, store::MemoryStore};
use crate::{
    engine::{
        error::{ConsumerError, ErrorClass, KafkaError},
        ports::{
            Consumer, ConsumerSettings, GroupOffset, KafkaCluster, OffsetCommitter, Polled,
            TopicDescription,
        },
    },
    model::{
        Code, Offset, TopicId, TopicPartition,
        job::Isolation,
        offset::PartitionOffsets,
        record::{BatchRun, ConsumerRecord, RecordBatch, RecordSource},
        resolver::LogBounds,
    },
};

/// What a consumer meets next.
pub(super) enum Scripted {
    /// Records of partitions, each with the position reached behind them.
    Batch(Vec<Part>),
    /// An error that ends the consumer of a partition.
    Error(i32, ConsumerError),
    /// A crash of the thread that has a partition.
    Panic(i32, &'static str),
}

#[derive(Clone)]
pub(super) struct Part {
    pub(super) partition: i32,
    pub(super) records: Vec<(i64, &'static [u8])>,
    pub(super) advance_to: Option<i64>,
}

/// Records of a partition, all with the same value.
pub(super) fn records(partition: i32, offsets: RangeInclusive<i64>) -> Part {
    Part {
        partition,
        records: offsets.map(|offset| (offset, &b"{}"[..])).collect(),
        advance_to: None,
    }
}

impl Scripted {
    fn partition(&self) -> i32 {
        match self {
            Self::Batch(parts) => parts[0].partition,
            Self::Error(partition, _) | Self::Panic(partition, _) => *partition,
        }
    }
}

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commits {
    Confirmed,
    Refused,
    /// Nobody answers, until that changes.
    Unanswered,
}

struct State {
    script: VecDeque<Scripted>,
    assigned: BTreeMap<TopicPartition, (u32, Offset)>,
    given: BTreeMap<TopicPartition, usize>,
    taken: usize,
    bounds: BTreeMap<TopicPartition, LogBounds>,
    /// Id and number of partitions of the one topic, if there is one; otherwise what a question about topics fails with. Until
    /// a test says something, the topic has what the job reads.
    topic: Result<Option<(&'static str, i32)>, Option<KafkaError>>,
    looks: usize,
    /// Questions where logs begin and end.
    bounds_asked: usize,
    commits: Commits,
    committed: Vec<(PartitionOffsets, String)>,
    commits_begun: usize,
    answers: bool,
    closes: bool,
    closed: usize,
}

#[derive(Clone)]
pub(super) struct Cluster {
    state: Arc<Mutex<State>>,
    changed: Arc<Condvar>,
    /// Whether questions where logs begin and end wait for their answer.
    bounds_wait: Arc<watch::Sender<bool>>,
    pulse: Pulse,
    store: Arc<MemoryStore>,
}

impl Cluster {
    pub(super) fn new(pulse: Pulse, store: Arc<MemoryStore>) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                script: VecDeque::new(),
                assigned: BTreeMap::new(),
                given: BTreeMap::new(),
                taken: 0,
                bounds: BTreeMap::new(),
                topic: Err(None),
                looks: 0,
                bounds_asked: 0,
                commits: Commits::Confirmed,
                committed: Vec::new(),
                commits_begun: 0,
                answers: true,
                closes: true,
                closed: 0,
            })),
            changed: Arc::default(),
            bounds_wait: Arc::new(watch::Sender::new(false)),
            pulse,
            store,
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
        self.pulse.beat();
        outcome
    }

    pub(super) fn script(&self, scripted: Scripted) {
        self.change(|state| state.script.push_back(scripted));
    }

    /// One batch with records of one partition.
    pub(super) fn deliver(&self, partition: i32, offsets: RangeInclusive<i64>) {
        self.script(Scripted::Batch(vec![records(partition, offsets)]));
    }

    /// Batches that a consumer has taken.
    pub(super) fn taken(&self) -> usize {
        self.state.lock().unwrap().taken
    }

    /// Which subtask reads a partition, and from where it was assigned.
    pub(super) fn assigned(&self, number: i32) -> Option<(u32, i64)> {
        let state = self.state.lock().unwrap();
        let assigned = state.assigned.get(&partition(number));
        assigned.map(|(subtask, offset)| (*subtask, offset.get()))
    }

    /// From where a partition is read, and how often it was given to a consumer.
    pub(super) fn assigned_since(&self, number: i32) -> Option<(i64, usize)> {
        let state = self.state.lock().unwrap();
        let (_, offset) = state.assigned.get(&partition(number))?;
        let times = state.given.get(&partition(number)).copied();
        Some((offset.get(), times.unwrap_or_default()))
    }

    /// A partition gets a leader.
    pub(super) fn elect(&self, number: i32, earliest: i64, latest: i64) {
        let bounds = LogBounds {
            earliest: super::offset(earliest),
            last_stable: super::offset(latest),
            latest: super::offset(latest),
        };
        self.change(|state| state.bounds.insert(partition(number), bounds));
    }

    /// The topic has this id and as many partitions from now on; `None`: there is no such topic.
    pub(super) fn topic(&self, topic: Option<(&'static str, i32)>) {
        self.change(|state| state.topic = Ok(topic));
    }

    /// Questions about topics fail from now on.
    pub(super) fn topics_fail(&self) {
        self.change(|state| state.topic = Err(Some(away("describe topics"))));
    }

    /// Questions about topics until now.
    pub(super) fn looks(&self) -> usize {
        self.state.lock().unwrap().looks
    }

    /// Questions where logs begin and end, until now.
    pub(super) fn bounds_asked(&self) -> usize {
        self.state.lock().unwrap().bounds_asked
    }

    /// Whether such questions wait for their answer from now on.
    pub(super) fn set_bounds_wait(&self, wait: bool) {
        self.bounds_wait.send_replace(wait);
    }

    pub(super) fn set_commits(&self, commits: Commits) {
        self.change(|state| state.commits = commits);
    }

    pub(super) fn commits_begun(&self) -> usize {
        self.state.lock().unwrap().commits_begun
    }

    /// Offsets that the group was given, by partition number.
    pub(super) fn committed(&self) -> Vec<BTreeMap<i32, i64>> {
        let state = self.state.lock().unwrap();
        let by_number = |offsets: &PartitionOffsets| {
            offsets
                .iter()
                .map(|(partition, offset)| (partition.partition, offset.get()))
                .collect()
        };
        state
            .committed
            .iter()
            .map(|(offsets, _)| by_number(offsets))
            .collect()
    }

    pub(super) fn last_note(&self) -> Option<String> {
        let state = self.state.lock().unwrap();
        state.committed.last().map(|(_, note)| note.clone())
    }

    /// Whether a poll finds a broker connected.
    pub(super) fn set_answers(&self, answers: bool) {
        self.change(|state| state.answers = answers);
    }

    /// Whether a client's close returns.
    pub(super) fn set_closes(&self, closes: bool) {
        self.change(|state| state.closes = closes);
    }

    /// Consumers whose close has returned.
    pub(super) fn closed(&self) -> usize {
        self.state.lock().unwrap().closed
    }

    /// Lets every blocked thread go.
    pub(super) fn release(&self) {
        self.change(|state| {
            state.closes = true;
            if state.commits == Commits::Unanswered {
                state.commits = Commits::Refused;
            }
        });
    }
}

impl Cluster {
    /// Topics with the partitions that the newest checkpoint has, and without ids.
    fn as_the_job_knows_them(&self, topics: &[String]) -> Vec<TopicDescription> {
        let known = self.store.newest();
        let partitions = known.positions.keys();
        let partitions: BTreeMap<i32, Option<i32>> =
            partitions.map(|one| (one.partition, Some(1))).collect();
        let described = |name: &String| TopicDescription {
            name: name.clone(),
            id: None,
            partitions: Some(partitions.clone()),
            internal: false,
        };
        topics.iter().map(described).collect()
    }
}

fn away(operation: &str) -> KafkaError {
    KafkaError {
        operation: operation.to_owned(),
        detail: "no broker answers".to_owned(),
        code: Code::KafkaUnreachable,
        class: ErrorClass::Infrastructure,
    }
}

struct Records(Vec<(i64, &'static [u8])>);

impl RecordSource for Records {
    fn record(&self, index: usize) -> ConsumerRecord<'_> {
        let (record_offset, value) = self.0[index];
        ConsumerRecord {
            record_offset,
            timestamp_ms: None,
            key: None,
            value: Some(value),
        }
    }
}

fn batch(parts: Vec<Part>) -> RecordBatch {
    let (mut runs, mut records) = (Vec::new(), Vec::new());
    for part in parts {
        let start = records.len();
        records.extend(part.records);
        runs.push(BatchRun {
            partition: Arc::new(partition(part.partition)),
            records: start..records.len(),
            advance_to: part.advance_to.map(super::offset),
        });
    }
    RecordBatch::new(runs, Box::new(Records(records)))
}

struct ScriptedConsumer {
    subtask: u32,
    cluster: Cluster,
}

impl ScriptedConsumer {
    fn next(&self, state: &mut State) -> Option<Scripted> {
        let mine = state.script.iter().position(|scripted| {
            let of = state.assigned.get(&partition(scripted.partition()));
            of.is_some_and(|(subtask, _)| *subtask == self.subtask)
        })?;
        let next = state.script.remove(mine)?;
        state.taken += usize::from(matches!(next, Scripted::Batch(_)));
        Some(next)
    }
}

impl Consumer for ScriptedConsumer {
    fn assign(&mut self, partitions: &[(TopicPartition, Offset)]) -> Result<(), ConsumerError> {
        for (partition, offset) in partitions {
            // The position is stored before the first fetch; what the sink has beyond it need not be read again.
            let stored = self.cluster.store.newest().offsets();
            let is_kept = self.cluster.store.knows_the_job();
            if is_kept && stored.get(partition).is_none_or(|stored| stored > offset) {
                let stored = stored.get(partition);
                let what = format!("{partition} assigned at {offset}, stored is {stored:?}");
                self.cluster.pulse.violation(what);
            }
        }
        self.cluster.change(|state| {
            for (partition, offset) in partitions {
                let place = (self.subtask, *offset);
                *state.given.entry(partition.clone()).or_default() += 1;
                if state.assigned.insert(partition.clone(), place).is_some() {
                    let what = format!("{partition} assigned twice");
                    self.cluster.pulse.violation(what);
                }
            }
        });
        Ok(())
    }

    fn unassign(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        self.cluster.change(|state| {
            for partition in partitions {
                state.assigned.remove(partition);
            }
        });
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> Result<Polled, ConsumerError> {
        let deadline = Instant::now() + wait;
        let mut state = self.cluster.state.lock().unwrap();
        let next = loop {
            if let Some(next) = self.next(&mut state) {
                break next;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && state.answers {
                return Ok(Polled::Idle);
            }
            if left.is_zero() {
                return Ok(Polled::Unreachable("no broker is connected".to_owned()));
            }
            state = self.cluster.changed.wait_timeout(state, left).unwrap().0;
        };
        drop(state);
        self.cluster.pulse.beat();
        match next {
            Scripted::Batch(parts) => Ok(Polled::Batch(batch(parts))),
            Scripted::Error(_, error) => Err(error),
            Scripted::Panic(_, words) => panic!("{words}"),
        }
    }

    fn committer(&self) -> Arc<dyn OffsetCommitter> {
        Arc::new(ScriptedCommitter(self.cluster.clone()))
    }

    fn close(self: Box<Self>) {
        let state = self.cluster.state.lock().unwrap();
        let waits = self
            .cluster
            .changed
            .wait_while(state, |state| !state.closes);
        drop(waits.unwrap());
        self.cluster.change(|state| state.closed += 1);
    }
}

struct ScriptedCommitter(Cluster);

impl OffsetCommitter for ScriptedCommitter {
    fn commit(
        &self,
        offsets: &PartitionOffsets,
        note: &str,
        deadline: Duration,
    ) -> Result<(), KafkaError> {
        // I3: the group is never ahead of the newest completed checkpoint.
        let stored = self.0.store.newest().offsets();
        for (partition, offset) in offsets {
            let is_kept = self.0.store.knows_the_job();
            if is_kept && stored.get(partition).is_none_or(|stored| offset > stored) {
                let what = format!("{partition} committed at {offset}, not completed");
                self.0.pulse.violation(what);
            }
        }
        self.0.change(|state| state.commits_begun += 1);
        let state = self.0.state.lock().unwrap();
        let waits = self.0.changed.wait_timeout_while(state, deadline, |state| {
            state.commits == Commits::Unanswered
        });
        let mut state = waits.unwrap().0;
        let outcome = match state.commits {
            Commits::Confirmed => {
                state.committed.push((offsets.clone(), note.to_owned()));
                Ok(())
            }
            Commits::Refused | Commits::Unanswered => Err(away("commit")),
        };
        drop(state);
        self.0.pulse.beat();
        outcome
    }
}

#[async_trait]
impl KafkaCluster for Cluster {
    fn consumer(&self, settings: &ConsumerSettings) -> Result<Box<dyn Consumer>, KafkaError> {
        Ok(Box::new(ScriptedConsumer {
            subtask: settings.subtask,
            cluster: self.clone(),
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
        topics: &[String],
    ) -> Result<Vec<TopicDescription>, KafkaError> {
        let topic = self.change(|state| {
            state.looks += 1;
            state.topic.clone()
        });
        let topic = match topic {
            Ok(topic) => topic,
            Err(Some(error)) => return Err(error),
            Err(None) => return Ok(self.as_the_job_knows_them(topics)),
        };
        let described = topics.iter().map(|name| TopicDescription {
            name: name.clone(),
            id: topic.map(|(id, _)| TopicId(id.into())),
            partitions: topic.map(|(_, count)| (0..count).map(|one| (one, Some(1))).collect()),
            internal: false,
        });
        Ok(described.collect())
    }

    async fn list_topics(&self) -> Result<Vec<String>, KafkaError> {
        let topic = self.change(|state| state.topic.clone());
        let topic = topic.map_err(|error| error.unwrap_or_else(|| away("list topics")))?;
        Ok(topic.map(|_| "orders".to_owned()).into_iter().collect())
    }

    async fn log_bounds(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, KafkaError> {
        self.change(|state| state.bounds_asked += 1);
        let mut waits = self.bounds_wait.subscribe();
        // The sender is as old as the cluster.
        let _answers = waits.wait_for(|waits| !waits).await;
        let state = self.state.lock().unwrap();
        let known = partitions
            .iter()
            .filter_map(|partition| Some((partition.clone(), *state.bounds.get(partition)?)));
        Ok(known.collect())
    }

    async fn offsets_for_timestamp(
        &self,
        _partitions: &[TopicPartition],
        _timestamp_ms: i64,
        _isolation: Isolation,
    ) -> Result<PartitionOffsets, KafkaError> {
        Ok(PartitionOffsets::new())
    }

    async fn group_offsets(
        &self,
        _group: &str,
        _partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, GroupOffset>, KafkaError> {
        Ok(BTreeMap::new())
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
