//! What the rest of the program may ask of a running job.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};

use super::{
    consumer_thread::panic_text,
    error::JobError,
    job_task::JobTask,
    parked::SkipOutcome,
    ports::{CheckpointStore, Clock, DeadLetterTopic, JobLease, KafkaCluster, LeaseHealth, Sink},
    threads::Threads,
};
use crate::model::{
    checkpoint::Checkpoint,
    ids::{InstallId, JobName},
    job::{CheckpointSpec, JobSpec, PartitionDiscovery, PositionPolicy},
    job_status::JobStatus,
    limits::LimitsSpec,
    offset::{Offset, PartitionOffsets},
    resolver::{PlannedParking, StartReason},
    start::StopCheckpoint,
    topic::TopicPartition,
    views::CheckpointReport,
};

/// Commands that wait for the job task. It serves them between two events, so the queue is short.
const COMMANDS: usize = 16;

/// Everything a run needs. The `start` checkpoint is stored already: its positions are where the run begins.
pub struct JobRun {
    /// The job's name.
    pub name: JobName,
    /// This installation, for the note in group commits.
    pub install: InstallId,
    /// The spec that runs.
    pub spec: JobSpec,
    /// The right to write.
    pub lease: JobLease,
    /// The stored `start` checkpoint.
    pub start: Checkpoint,
    /// Where a bounded run ends, for every partition of `start`; `None` for a run without an end.
    pub ends: Option<PartitionOffsets>,
    /// Why each of its partitions begins there, or is not read.
    pub reasons: BTreeMap<TopicPartition, StartReason>,
    /// Those that begin parked.
    pub parked: BTreeMap<TopicPartition, PlannedParking>,
    /// The cluster to read.
    pub kafka: Arc<dyn KafkaCluster>,
    /// Where records go; claimed already.
    pub sink: Arc<dyn Sink>,
    /// Where records go that cannot be processed, if the spec has a topic for them.
    pub dead_letters: Option<Arc<dyn DeadLetterTopic>>,
    /// Where checkpoints go.
    pub store: Arc<dyn CheckpointStore>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// How well the lease is known to hold.
    pub lease_health: watch::Receiver<LeaseHealth>,
    /// Until when the lease cannot have been taken, by a clock that cannot be set.
    pub lease_until: watch::Receiver<Instant>,
}

impl JobRun {
    /// Whether the start checkpoint only keeps a partition that the spec does not read.
    pub(super) fn is_detached(&self, partition: &TopicPartition) -> bool {
        self.reasons.get(partition) == Some(&StartReason::Detached)
    }
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum JobEnd {
    /// As asked.
    Stopped(Box<StopOutcome>),
    /// A bounded run has read everything up to its ends: a completed checkpoint says so, and the group was told.
    Finished(Box<StopOutcome>),
    /// It gave up.
    Failed(JobError),
}

/// What a stop left behind.
#[derive(Debug, Clone)]
pub struct StopOutcome {
    /// The last checkpoint, if one was wanted.
    pub checkpoint: Option<CheckpointReport>,
    /// Offsets given to the sink after the newest completed checkpoint: they will be read again. `None` when that is not
    /// known: a write to the sink was cut off, or the store has not said whether it keeps the last checkpoint.
    pub will_replay: Option<i64>,
    /// Threads that had not ended within their deadline: of consumers, and of a commit to the group that nobody answered.
    pub leaked_threads: usize,
    /// What the run would have failed with, had it not been stopped at that moment: a record that cannot be processed.
    pub blocked: Option<JobError>,
}

/// Why a required stop did not take place.
#[derive(Debug, Clone)]
pub struct StopRefused {
    /// The checkpoint that failed; `uncertain` when it was sent to the store and may still complete.
    pub checkpoint: CheckpointReport,
}

/// What a handle asks of the job task.
pub(super) enum Command {
    Checkpoint {
        timeout: Option<Duration>,
        reply: oneshot::Sender<CheckpointReport>,
    },
    Stop {
        checkpoint: StopCheckpoint,
        timeout: Duration,
        refused: oneshot::Sender<StopRefused>,
    },
    SetCheckpointing(CheckpointSpec),
    SetDiscovery(PartitionDiscovery),
    LookAtTopics,
    Skip {
        partition: TopicPartition,
        at: Offset,
        reply: oneshot::Sender<SkipOutcome>,
    },
    SetLimits(LimitsSpec),
    SetPolicies {
        on_out_of_range: PositionPolicy,
        on_topic_recreated: PositionPolicy,
    },
    LogEnds(Arc<PartitionOffsets>),
    LoseLease,
}

/// A running job. Cheap to clone; the job ends when it is stopped, when it fails, or when the last handle is gone.
#[derive(Clone)]
pub struct JobHandle {
    commands: mpsc::Sender<Command>,
    status: watch::Receiver<Arc<JobStatus>>,
    end: watch::Receiver<Option<JobEnd>>,
}

impl JobHandle {
    /// Starts the run.
    #[must_use]
    pub fn spawn(run: JobRun) -> Self {
        let (handle, task) = Self::of(run, Threads::Own);
        #[expect(
            clippy::disallowed_methods,
            reason = "whoever holds the handle awaits the end of this task through it"
        )]
        drop(tokio::spawn(task));
        handle
    }

    /// A run without threads of its own, for a simulation: the future is the run, and dropping it is its death.
    #[cfg(test)]
    pub(crate) fn in_tasks(run: JobRun) -> (Self, impl Future<Output = ()> + Send + use<>) {
        Self::of(run, Threads::Tasks)
    }

    fn of(run: JobRun, threads: Threads) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (commands, command_receiver) = mpsc::channel(COMMANDS);
        let (status_sender, status) = watch::channel(Arc::new(JobTask::first_status(&run)));
        let (end_sender, end) = watch::channel(None);
        let span = tracing::info_span!("job", job.name = %run.name, job.epoch = %run.lease.epoch);
        let task = async move {
            let job = JobTask::run(run, threads, command_receiver, status_sender);
            let job = AssertUnwindSafe(job);
            let end = job.catch_unwind().await.unwrap_or_else(|panic| {
                JobEnd::Failed(JobError::Panicked {
                    part: "job task".to_owned(),
                    detail: panic_text(panic.as_ref()),
                })
            });
            // Nobody listens any more when the last handle is gone.
            let _unheard = end_sender.send(Some(end));
        };
        let handle = Self {
            commands,
            status,
            end,
        };
        (handle, tracing::Instrument::instrument(task, span))
    }

    /// The newest status, without waiting.
    #[must_use]
    pub fn status(&self) -> Arc<JobStatus> {
        Arc::clone(&self.status.borrow())
    }

    /// A receiver that sees each new status.
    #[must_use]
    pub fn watch_status(&self) -> watch::Receiver<Arc<JobStatus>> {
        self.status.clone()
    }

    /// Takes a manual checkpoint and waits for its end and for the outcome of its commit to the group (bounded).
    ///
    /// One that was asked for while another attempt is under way begins after it; further callers share the one that
    /// waits. `None` if the job ended meanwhile.
    pub async fn trigger_checkpoint(&self, timeout: Option<Duration>) -> Option<CheckpointReport> {
        let (reply, report) = oneshot::channel();
        self.commands
            .send(Command::Checkpoint { timeout, reply })
            .await
            .ok()?;
        report.await.ok()
    }

    /// Stops the job. Returns when the run has ended and nothing of it can write any more.
    ///
    /// # Errors
    /// With [`StopCheckpoint::Required`], when the checkpoint failed: the job goes on.
    pub async fn stop(
        &self,
        checkpoint: StopCheckpoint,
        timeout: Duration,
    ) -> Result<JobEnd, StopRefused> {
        let (refused, refusal) = oneshot::channel();
        let command = Command::Stop {
            checkpoint,
            timeout,
            refused,
        };
        // A job that has ended takes no command, and needs none. It gives the command back, and with it the end on which
        // the refusal is awaited: it must not be kept.
        drop(self.commands.send(command).await);
        match refusal.await {
            Ok(refused) => Err(refused),
            Err(_) => Ok(self.ended().await),
        }
    }

    /// Waits for the end of the run.
    pub async fn ended(&self) -> JobEnd {
        let mut end = self.end.clone();
        let ended = end
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|end| end.clone());
        ended.unwrap_or_else(|| {
            JobEnd::Failed(JobError::Panicked {
                part: "job task".to_owned(),
                detail: "it vanished".to_owned(),
            })
        })
    }

    /// Leaves out the record at which a partition is parked, and only that: the position behind it is stored with a
    /// checkpoint, and the partition goes on there. Whoever waits no longer loses only the answer.
    ///
    /// `None` if the job ended meanwhile; whether the position is stored is then not known.
    pub async fn skip(&self, partition: TopicPartition, at: Offset) -> Option<SkipOutcome> {
        let (reply, outcome) = oneshot::channel();
        let command = Command::Skip {
            partition,
            at,
            reply,
        };
        self.commands.send(command).await.ok()?;
        outcome.await.ok()
    }

    /// Changes when checkpoints are taken, from now on.
    pub async fn set_checkpointing(&self, spec: CheckpointSpec) {
        // A job that has ended takes no command, and needs none.
        let _ended_already = self.commands.send(Command::SetCheckpointing(spec)).await;
    }

    /// Has the run look at its topics soon, whatever the interval: somebody saw that one of them is not what it was.
    pub fn look_at_topics(&self) {
        // A run that is too busy to listen looks by itself.
        let _unheard = self.commands.try_send(Command::LookAtTopics);
    }

    /// Tells the run up to where the logs could be read a moment ago: what lies below is unread until it is read.
    pub fn saw_log_ends(&self, ends: PartitionOffsets) {
        // A run that is too busy to listen hears of the next ones.
        let _unheard = self.commands.try_send(Command::LogEnds(Arc::new(ends)));
    }

    /// Changes how new partitions are looked for, from now on.
    pub async fn set_discovery(&self, discovery: PartitionDiscovery) {
        // A job that has ended takes no command, and needs none.
        let _ended_already = self.commands.send(Command::SetDiscovery(discovery)).await;
    }

    /// Changes how fast the job may go, from now on, also for what is being held back.
    pub async fn set_limits(&self, limits: LimitsSpec) {
        // A job that has ended takes no command, and needs none.
        let _ended_already = self.commands.send(Command::SetLimits(limits)).await;
    }

    /// Says that another owner has the job: the run ends and writes nothing more.
    pub async fn lose_lease(&self) {
        // A job that has ended takes no command, and needs none.
        let _ended_already = self.commands.send(Command::LoseLease).await;
    }

    /// Changes what becomes of a position outside its log and of a topic that was created again, from now on, also for the
    /// partitions that are parked because of that.
    pub async fn set_policies(
        &self,
        on_out_of_range: PositionPolicy,
        on_topic_recreated: PositionPolicy,
    ) {
        let command = Command::SetPolicies {
            on_out_of_range,
            on_topic_recreated,
        };
        // A job that has ended takes no command, and needs none.
        let _ended_already = self.commands.send(command).await;
    }
}
