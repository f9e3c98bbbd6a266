//! What the engine needs from the world: the seams at which it is tested.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use chrono::{DateTime, Utc};

use super::error::{ConsumerError, ErrorClass, KafkaError, SinkError, StoreError};
use crate::model::{
    checkpoint::{Checkpoint, CheckpointPhases, FailedCheckpoint, GroupCommit},
    code::Code,
    event::HistoryEntry,
    field_error::FieldError,
    ids::{CheckpointId, InstallId, JobName, JobUid, LeaseEpoch},
    job::{Isolation, SourceSpec},
    offset::{Offset, PartitionOffsets},
    record::{RecordBatch, RecordHeader},
    resolver::{LogBounds, SinkPosition, SinkProgress},
    sink_spec::SinkSpec,
    topic::{TopicId, TopicPartition},
};

/// The wall clock. Waits use the runtime's timers; this is for time stamps that people read.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> DateTime<Utc>;
}

/// What a consumer client needs to know of its job.
#[derive(Debug, Clone)]
pub struct ConsumerSettings {
    /// The job's name, for client ids and thread names.
    pub job: String,
    /// Which subtask it serves.
    pub subtask: u32,
    /// Group, isolation, tuned properties.
    pub source: SourceSpec,
}

/// What one poll brought.
#[derive(Debug)]
pub enum Polled {
    /// Records, or positions to advance to, or both.
    Batch(RecordBatch),
    /// Nothing within the wait.
    Idle,
    /// Nothing came, and no broker has been connected for some seconds; the client goes on trying by itself. Comes with
    /// each empty poll until a broker is connected again.
    Unreachable(String),
}

/// A consumer client. Lives on one thread and never leaves it.
///
/// Partitions are assigned with absolute offsets and never subscribed: a group's balancing would fight the job's own
/// assignment, and an assigned consumer is not evicted for being slow.
pub trait Consumer: Send {
    /// Adds partitions to the assignment, each at the next record to read.
    ///
    /// # Errors
    /// When the client refuses.
    fn assign(&mut self, partitions: &[(TopicPartition, Offset)]) -> Result<(), ConsumerError>;

    /// Takes partitions out of the assignment and throws away what the client had fetched of them; they can be assigned
    /// again. One that is not assigned is passed over.
    ///
    /// # Errors
    /// When the client refuses.
    fn unassign(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError>;

    /// Waits up to `wait` for one record and takes what is there with it.
    ///
    /// # Errors
    /// Only what the client does not mend by itself. After [`ConsumerError::OutOfRange`] and [`ConsumerError::TopicUnknown`] the other partitions go on; any
    /// other error ends the consumer.
    fn poll(&mut self, wait: Duration) -> Result<Polled, ConsumerError>;

    /// A way to commit over the same client, from another thread.
    fn committer(&self) -> Arc<dyn OffsetCommitter>;

    /// Ends the client. May block until the brokers have answered or a time-out has passed.
    fn close(self: Box<Self>);
}

/// Commits offsets to the consumer group. Blocks; called on a thread that may block.
///
/// Dropping it never blocks the caller, even when it holds the client's last reference.
pub trait OffsetCommitter: Send + Sync {
    /// Commits all offsets in one request, each with `note` as its metadata, and waits up to `deadline` for the answer.
    ///
    /// # Errors
    /// When any partition was refused, or no answer came; nothing is known then of the others.
    fn commit(
        &self,
        offsets: &PartitionOffsets,
        note: &str,
        deadline: Duration,
    ) -> Result<(), KafkaError>;
}

/// One Kafka cluster, by the name it has in the server's file.
#[async_trait]
pub trait KafkaCluster: Send + Sync {
    /// Makes a consumer client. Quick: nothing is asked of a broker.
    ///
    /// # Errors
    /// When the settings are refused.
    fn consumer(&self, settings: &ConsumerSettings) -> Result<Box<dyn Consumer>, KafkaError>;

    /// Opens a topic for dead letters. Quick: nothing is asked of a broker.
    ///
    /// # Errors
    /// When the settings are refused, or this cluster is only read.
    fn dead_letters(&self, topic: &str) -> Result<Arc<dyn DeadLetterTopic>, KafkaError> {
        Err(KafkaError {
            operation: format!("open {topic} for dead letters"),
            detail: "this cluster is only read".to_owned(),
            code: Code::KafkaError,
            class: ErrorClass::Deterministic,
        })
    }

    /// Checks the properties a job tunes against the allow-list and its bounds.
    ///
    /// # Errors
    /// Property and what is wrong with it, for every faulty one.
    fn check_properties(
        &self,
        properties: &BTreeMap<String, String>,
    ) -> Result<(), Vec<(String, String)>>;

    /// Asks for partitions, leaders and ids of topics.
    ///
    /// # Errors
    /// When the cluster does not answer. A topic that does not exist is part of the answer.
    async fn describe_topics(&self, topics: &[String])
    -> Result<Vec<TopicDescription>, KafkaError>;

    /// Asks for the names of all topics that the connection may see.
    ///
    /// # Errors
    /// When the cluster does not answer.
    async fn list_topics(&self) -> Result<Vec<String>, KafkaError>;

    /// Asks for the ends of logs. A partition that did not answer (no leader) is missing in the answer.
    ///
    /// # Errors
    /// When the cluster does not answer.
    async fn log_bounds(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>;

    /// Asks for the first offset at or after an instant. A partition without such a record is missing in the answer.
    ///
    /// # Errors
    /// When the cluster does not answer, or a partition with a leader did not.
    async fn offsets_for_timestamp(
        &self,
        partitions: &[TopicPartition],
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> Result<PartitionOffsets, KafkaError>;

    /// Asks for a group's committed offsets. A partition without one is missing in the answer.
    ///
    /// # Errors
    /// When the coordinator does not answer.
    async fn group_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, GroupOffset>, KafkaError>;

    /// Asks how many live members a group has.
    ///
    /// # Errors
    /// When the coordinator does not answer.
    async fn group_members(&self, group: &str) -> Result<usize, KafkaError>;

    /// Moves a group that has no live members: every offset in one request, each with `note` as its metadata. Answers the
    /// partitions that the broker refused, each with its reason; all others were moved.
    ///
    /// # Errors
    /// When nothing was moved, or, with `kafka-timeout` or `kafka-unreachable`, when it is not known.
    async fn alter_group_offsets(
        &self,
        group: &str,
        offsets: &PartitionOffsets,
        note: &str,
    ) -> Result<BTreeMap<TopicPartition, KafkaError>, KafkaError>;

    /// Deletes a group that has no live members, with its offsets. `false`: there is no such group.
    ///
    /// # Errors
    /// `group-in-use` while it has members; when the coordinator does not answer.
    async fn delete_group(&self, group: &str) -> Result<bool, KafkaError>;
}

/// A record that a job cannot process, for a topic of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The record's key.
    pub key: Option<Vec<u8>>,
    /// The record's value.
    pub value: Option<Vec<u8>>,
    /// The record's headers, and behind them those that say why.
    pub headers: Vec<RecordHeader>,
}

/// Where dead letters go.
#[async_trait]
pub trait DeadLetterTopic: Send + Sync {
    /// The topic's name.
    fn name(&self) -> &str;

    /// Writes letters, and answers for each one once all in-sync replicas have it, or it failed. A letter whose answer was
    /// lost may stand there all the same.
    async fn deliver(&self, letters: &[DeadLetter]) -> Vec<Result<(), KafkaError>>;
}

/// A topic as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its name.
    pub name: String,
    /// Its id (KIP-516); `None` if the broker has none.
    pub id: Option<TopicId>,
    /// Its partitions and their leaders; `None` if the topic does not exist.
    pub partitions: Option<BTreeMap<i32, Option<i32>>>,
    /// Whether it is one of Kafka's own, by the broker's word.
    pub internal: bool,
}

/// A group's offset and the note beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOffset {
    /// Next record to read.
    pub offset: Offset,
    /// The metadata, with bytes that are no UTF-8 replaced.
    pub note: Option<String>,
}

/// The right to write as a job's owner; carried by every protected write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLease {
    /// The job.
    pub job: JobUid,
    /// The lease's number: a write under an older one is refused.
    pub epoch: LeaseEpoch,
}

/// How well the right to write is known to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseHealth {
    /// Renewed lately.
    Held,
    /// Not renewed for two thirds of its time to live: stop giving records to the sink, keep everything else.
    Doubtful(String),
    /// Another owner has it.
    Lost,
}

/// Keeps checkpoints. Every call is fenced by the lease and can be repeated after an unknown outcome.
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Stores a completed checkpoint. Repeating it for one that is stored already succeeds.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn complete(&self, lease: &JobLease, checkpoint: &Checkpoint) -> Result<(), StoreError>;

    /// Writes nothing: says whether the lease holds, before something is done outside in its name.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn hold(&self, lease: &JobLease) -> Result<(), StoreError>;

    /// Keeps a failed attempt in the history.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn record_failure(
        &self,
        lease: &JobLease,
        attempt: &FailedCheckpoint,
    ) -> Result<(), StoreError>;

    /// Notes that the newest checkpoint's positions still hold.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn confirm(
        &self,
        lease: &JobLease,
        id: CheckpointId,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError>;

    /// Notes, after completion, what the phases took and what became of the commit to the group.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn record_outcome(
        &self,
        lease: &JobLease,
        id: CheckpointId,
        phases: &CheckpointPhases,
        group_commit: &GroupCommit,
    ) -> Result<(), StoreError>;

    /// Adds entries to the job's history, in this order: all of them or none. Repeated after an unknown outcome they may
    /// stand there twice.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn note_events(
        &self,
        lease: &JobLease,
        entries: &[HistoryEntry],
    ) -> Result<(), StoreError>;

    /// Deletes what the thinning retention no longer keeps.
    ///
    /// # Errors
    /// See [`StoreError`].
    async fn thin(&self, lease: &JobLease) -> Result<(), StoreError>;
}

/// Whose sink it is. Progress that a sink keeps belongs to the job's uid, not to its name: a job that is deleted and created
/// again, or another installation on the same target, inherits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkOwner {
    /// The installation.
    pub install: InstallId,
    /// The job.
    pub job: JobUid,
}

/// Makes the sinks that specs describe.
#[async_trait]
pub trait SinkFactory: Send + Sync {
    /// The sink of a job. Quick: nothing is asked of a target.
    ///
    /// # Errors
    /// What the spec names and the server's file does not have, with pointers of the spec.
    fn sink(
        &self,
        spec: &SinkSpec,
        job: &JobName,
        owner: SinkOwner,
    ) -> Result<Arc<dyn Sink>, Vec<FieldError>>;

    /// Looks at the target: answers what stands against the spec there, each with its pointer in the spec and the remedy
    /// (the statement that makes the table, the grant that is missing).
    ///
    /// # Errors
    /// See [`SinkError`], when the target does not answer.
    async fn check(&self, spec: &SinkSpec) -> Result<Vec<FieldError>, SinkError>;
}

/// Where a job's records go, at the granularity of the job.
///
/// The contract has the steps of Flink's two-phase sinks under our names: `recover` is `recoverAndCommit`/`recoverAndAbort`,
/// [`SinkWriter::write`] is `invoke`, `prepare` is `preCommit`, `commit` and `abort` are themselves, and `beginTransaction`
/// is left to the writer's first `write`.
#[async_trait]
pub trait Sink: Send + Sync {
    /// How far the target has come, without claiming it: for plans. Empty for a sink that keeps no progress.
    ///
    /// # Errors
    /// See [`SinkError`].
    async fn progress(&self) -> Result<SinkProgress, SinkError>;

    /// Claims the target for an epoch, settles what a dead owner left, and says how far the target has come. From then on
    /// nothing that an older epoch sends is kept, if the sink has a [fence](Self::has_fence).
    ///
    /// # Errors
    /// See [`SinkError`]; `lease-lost` when a newer epoch has claimed it.
    async fn recover(&self, epoch: LeaseEpoch) -> Result<SinkProgress, SinkError>;

    /// Opens the writer of a subtask, under the epoch of the last `recover`.
    ///
    /// # Errors
    /// See [`SinkError`].
    async fn writer(&self, subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError>;

    /// Deletes what the target knows of the job's progress (not what was written), when a job is purged.
    ///
    /// # Errors
    /// See [`SinkError`].
    async fn forget(&self) -> Result<(), SinkError>;

    /// Names the target; another name means that progress kept there is not comparable.
    fn identity(&self) -> String;

    /// Whether the target refuses writes of an owner that lost its lease. The fence is made of the progress that the target
    /// keeps: without a fence [`progress`](Self::progress) is always empty and says nothing.
    fn has_fence(&self) -> bool;
}

/// A sink as one subtask writes to it.
#[async_trait]
pub trait SinkWriter: Send {
    /// Hears where partitions of this subtask begin and which checkpoint decided that: all of them before the first batch,
    /// and each one that is given a position later before its first record. A sink that keeps progress notes it there,
    /// over whatever an older decision left.
    ///
    /// # Errors
    /// See [`SinkError`]; after an infrastructure error the same partitions are given again.
    async fn assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError>;

    /// Takes a batch. When it answers, the batch's memory may be reused; it need not be durable before `prepare`.
    ///
    /// # Errors
    /// See [`SinkError`]; after an infrastructure error nothing of the batch was taken, and it is given again. After an error
    /// that names a record (of this batch or of an earlier one) the writer is not used any more: the job opens another one,
    /// reads its partitions again from where the sink's [progress](Sink::progress) stands, or from the last `prepare` where a
    /// sink keeps none, and does not come to that record a second time. Other lasting errors end the run.
    async fn write(&mut self, batch: &RecordBatch) -> Result<(), SinkError>;

    /// Waits, while nothing is given to the sink, until its trouble is another than `known`, the words under which it is shown
    /// (`None`: it works): `Ok` when it works again, an infrastructure error when it does not, and a deterministic one as soon
    /// as there is one, known or not. Dropped and called again at any time. A sink that does everything in its calls has
    /// nothing to tell between them.
    ///
    /// # Errors
    /// What the next call would say. See [`SinkError`].
    async fn troubled(&mut self, known: Option<&str>) -> Result<(), SinkError> {
        let _nothing_to_tell = known;
        std::future::pending().await
    }

    /// Whether the writer works at what it has taken and has not made durable yet, as it is at any later moment: time in which
    /// nothing else is to do is the sink's then. Never, for a sink that does everything in its calls.
    fn flushing(&self) -> Arc<AtomicBool> {
        Arc::default()
    }

    /// Makes everything written so far durable, before the checkpoint that covers it completes. `positions` are those of
    /// this subtask's partitions in the checkpoint: some may have moved without records (past transaction markers).
    ///
    /// # Errors
    /// See [`SinkError`]; after an infrastructure error it can be tried again.
    async fn prepare(
        &mut self,
        checkpoint: CheckpointId,
        positions: &PartitionOffsets,
    ) -> Result<(), SinkError>;

    /// Gives up what was written since the last `prepare`, when the job ends without a checkpoint.
    async fn abort(&mut self);

    /// Ends the writer after the last `prepare` or `abort`.
    async fn close(&mut self);
}
