//! The single owner of a running job: its checkpoints, its commits, its status, its end.
//!
//! Everything that happens to a job arrives here as an event of one loop: a command of a handle, a word of a subtask, the
//! end of a call to the store or to a broker, a timer. Decisions are made by pure parts
//! ([`CheckpointCoordinator`], [`GroupCommits`], [`PendingPositions`]); this file carries them out. Nothing in the loop waits
//! for anything else, so a blocked sink or a store that is away never keeps a stop from being heard.

mod checkpoints;
mod closing;
mod discovery;
mod ending;
mod failing;
mod history;
mod left_out;
mod look_ups;
mod observation;
mod opening;
mod out_of_range;
mod parking;
mod stages;
mod stopping;
mod store_writes;
mod waiters;
mod watermarks;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use self::{
    look_ups::LookUps,
    out_of_range::BoundsAsked,
    stopping::Stopping,
    waiters::{QueuedWaiter, Waiters},
};
use super::{
    checkpoint_coordinator::{CheckpointCoordinator, CoordinatorEvent},
    consumer_thread::{self, Reachability},
    discovery::Discovery,
    error::{JobError, KafkaError, StoreError},
    fetcher::LivePosition,
    group_commits::GroupCommits,
    job_handle::{Command, JobEnd, JobRun},
    parked::SkipWaiter,
    pending_positions::{LookedUp, PendingPositions},
    ports::{LeaseHealth, OffsetCommitter, TopicDescription},
    rate_limit::RateLimit,
    stages::StageLog,
    subtask::{Barrier, Intake, PartitionChange, SubtaskEvent, SubtaskView},
    threads::Threads,
    without_checkpoints::{KeepsNone, timing},
};
use crate::model::{
    checkpoint::{Checkpoint, CheckpointFailure, CheckpointPosition, GroupCommit},
    code::Code,
    commit_mode::CommitMode,
    ids::CheckpointId,
    job::CheckpointSpec,
    job_status::{
        BadRecordCounters, CheckpointSummary, CommitCounters, DiscoveryStatus, JobStatus,
        LivePartition, Waiting,
    },
    offset::{Offset, PartitionOffsets},
    parked::ParkedPartition,
    resolver::{LogBounds, StartReason},
    stages::RunStages,
    subtask::owner,
    topic::{TopicId, TopicPartition},
    views::CheckpointReport,
};

/// How often the status is made anew.
const STATUS_PERIOD: Duration = Duration::from_millis(250);
/// What the job task keeps of a subtask.
struct Subtask {
    barrier: watch::Sender<Option<Barrier>>,
    intake: watch::Sender<Intake>,
    partitions: mpsc::Sender<PartitionChange>,
    view: Arc<SubtaskView>,
    reachability: Reachability,
    thread_ended: oneshot::Receiver<()>,
    /// Partitions that are to be held back; `None` without alignment.
    paused: Option<watch::Sender<Arc<BTreeSet<TopicPartition>>>>,
}

/// What the job task keeps of a partition.
struct Partition {
    subtask: u32,
    position_id: CheckpointId,
    topic_id: Option<TopicId>,
    /// Why it began where it did.
    reason: Option<StartReason>,
    /// Whether the checkpoints have it before it has a position, so that the next start decides that by the startup mode, too.
    by_mode: bool,
    live: Option<Arc<LivePosition>>,
    /// Up to where its log could be read when somebody measured that last.
    seen_end: Option<Offset>,
}

/// A call that was made aside has ended.
enum Background {
    Stored {
        id: CheckpointId,
        outcome: Result<(), StoreError>,
        took: Duration,
    },
    Noted(Result<(), StoreError>),
    Told(Result<(), StoreError>),
    Committed {
        id: CheckpointId,
        outcome: Result<(), KafkaError>,
        took: Duration,
    },
    LookedUp(Result<LookedUp, KafkaError>),
    Discovered(Result<Vec<TopicDescription>, KafkaError>),
    Bounds(Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>),
    ReadableEnds(Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>),
}

pub(super) struct JobTask {
    run: JobRun,
    threads: Threads,
    coordinator: CheckpointCoordinator,
    subtasks: Vec<Subtask>,
    limit: Arc<RateLimit>,
    /// Of a job that keeps event time.
    event_time: Option<watermarks::JobEventTime>,
    stage_log: StageLog,
    /// What is shown of it.
    stages: Arc<RunStages>,
    /// The ends of logs that count from the next look at the time on.
    newly_seen_ends: Option<Arc<PartitionOffsets>>,
    cancel: CancellationToken,
    tasks: JoinSet<(u32, Result<(), JobError>)>,
    background: JoinSet<Background>,
    partitions: BTreeMap<TopicPartition, Partition>,
    /// What the checkpoints keep of partitions that the spec does not read.
    kept: BTreeMap<TopicPartition, CheckpointPosition>,
    discovery: Discovery,
    /// When the last look at the topics was answered.
    looked_at: Option<DateTime<Utc>>,
    /// Partitions that appeared in this run.
    discovered: u64,
    /// The topics that took the names of others, by partition, until their own positions are decided.
    replaced: BTreeMap<TopicPartition, TopicId>,
    pending: PendingPositions,
    parked: Arc<BTreeMap<TopicPartition, ParkedPartition>>,
    history: history::History,
    left_out: left_out::LeftOutLog,
    failing: failing::FailingLog,
    bounds: BoundsAsked,
    /// Positions that the log did not hold, or whose topic was created again, and that were moved.
    moved: u64,
    /// Those who asked to leave out a record, until the position behind it is stored.
    skips: Vec<SkipWaiter>,
    committer: Option<Arc<dyn OffsetCommitter>>,
    commits: GroupCommits,
    /// Whether the group refused the last commit, for a reason that does not pass.
    commit_was_refused: bool,
    /// Whether the group is still to hear where the run begins, which nothing else keeps.
    commits_start: bool,
    attempt: Option<checkpoints::Attempt>,
    waiters: Waiters,
    queued_waiters: Vec<QueuedWaiter>,
    awaiting_commit: BTreeMap<CheckpointId, (CheckpointReport, Waiters)>,
    last: CheckpointSummary,
    last_offsets: PartitionOffsets,
    last_failed: Option<(CheckpointId, CheckpointFailure)>,
    consecutive_failures: u32,
    /// Whether an attempt that failed had records before it: the next one covers them.
    output_before: bool,
    confirmed: Instant,
    thinned: Instant,
    look_ups: LookUps,
    store_writes: store_writes::StoreWrites,
    open_notes: usize,
    lease_doubt: Option<String>,
    /// The lease is lost, which a run may hear while it ends for another reason: the history is another owner's then.
    is_fenced: bool,
    waiting: BTreeMap<Code, Waiting>,
    stopping: Option<Stopping>,
    /// The first record that cannot be processed; the run ends with it.
    blocked: Option<JobError>,
    since: DateTime<Utc>,
    status: watch::Sender<Arc<JobStatus>>,
    end: Option<JobEnd>,
}

impl JobTask {
    /// The status before the first event.
    pub(super) fn first_status(run: &JobRun) -> JobStatus {
        let now = run.clock.now();
        let read = run.start.positions.iter();
        let read = read.filter(|(partition, _)| !run.is_detached(partition));
        let partitions = read.map(|(partition, position)| {
            let subtask = owner(&partition.topic, partition.partition, run.spec.parallelism);
            (
                partition.clone(),
                LivePartition {
                    subtask,
                    position: position.next_offset,
                    topic_id: position.topic_id.clone(),
                    stop_offset: run
                        .ends
                        .as_ref()
                        .and_then(|ends| ends.get(partition).copied()),
                    reason: run.reasons.get(partition).copied(),
                    watermark: None,
                },
            )
        });
        JobStatus {
            epoch: run.lease.epoch,
            since: now,
            observed_at: now,
            stopping: false,
            partitions: Arc::new(partitions.collect()),
            records: 0,
            bytes: 0,
            redelivered: 0,
            limits: run.spec.limits,
            throttled: false,
            throttled_for: Duration::ZERO,
            stages: Arc::new(RunStages::new(now)),
            last_checkpoint: (!run.spec.checkpointing().is_off())
                .then(|| start_summary(&run.start)),
            in_progress: None,
            last_failed: None,
            consecutive_failures: 0,
            commits: CommitCounters::default(),
            waiting: Vec::new(),
            discovery: DiscoveryStatus::default(),
            parked: Arc::default(),
            bad_records: BadRecordCounters::default(),
            sink_writes: false,
            positions_moved: 0,
            watermark: watermarks::JobEventTime::of(&run.spec).map(|time| time.shown()),
        }
    }

    /// Runs the job to its end.
    pub(super) async fn run(
        run: JobRun,
        threads: Threads,
        mut commands: mpsc::Receiver<Command>,
        status: watch::Sender<Arc<JobStatus>>,
    ) -> JobEnd {
        let (events_sender, mut events) = mpsc::channel(64);
        let run = JobRun {
            store: KeepsNone::unless_kept(&run.spec, Arc::clone(&run.store)),
            ..run
        };
        let mut job = Self::new(run, threads, status);
        job.tell_parked_at_start();
        if let Err(error) = job.open_subtasks(&events_sender) {
            job.end = Some(JobEnd::Failed(error));
        }
        let mut lease_health = job.run.lease_health.clone();
        // What was said before the run began counts too.
        lease_health.mark_changed();
        let mut tick = tokio::time::interval(STATUS_PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while job.end.is_none() {
            let deadline = job.next_deadline();
            tokio::select! {
                biased;
                changed = lease_health.changed() => job.on_lease(changed.ok().map(|()| lease_health.borrow_and_update().clone())),
                command = commands.recv() => job.on_command(command),
                Some(ended) = job.tasks.join_next() => job.on_subtask_end(ended),
                Some(event) = events.recv() => job.on_subtask_event(event),
                Some(done) = job.background.join_next() => job.on_background(done),
                () = tokio::time::sleep_until(deadline) => job.on_deadline(),
                _ = tick.tick() => job.on_tick(),
                () = watermarks::JobEventTime::look_due(job.event_time.as_ref()) => job.look_at_event_time(),
            }
        }
        job.close().await
    }

    fn new(run: JobRun, threads: Threads, status: watch::Sender<Arc<JobStatus>>) -> Self {
        let now = Instant::now();
        let subtasks = run.spec.parallelism;
        let mut coordinator =
            CheckpointCoordinator::new(timing(&run.spec), subtasks, run.start.id.next(), now);
        let commits_start = run.spec.commit_mode() == CommitMode::KafkaPeriodic;
        if commits_start {
            coordinator.hurry(now);
        }
        let (kept, read): (BTreeMap<_, _>, BTreeMap<_, _>) = run
            .start
            .positions
            .clone()
            .into_iter()
            .partition(|(partition, _)| run.is_detached(partition));
        let partitions = read.into_iter().map(|(partition, position)| {
            let state = Partition {
                subtask: owner(&partition.topic, partition.partition, subtasks),
                position_id: position.position_id,
                topic_id: position.topic_id,
                reason: run.reasons.get(&partition).copied(),
                by_mode: true,
                live: position.next_offset.map(LivePosition::at),
                seen_end: None,
            };
            (partition, state)
        });
        let partitions: BTreeMap<TopicPartition, Partition> = partitions.collect();
        let unresolved = partitions.iter().filter(|(_, state)| state.live.is_none());
        let mut last_offsets = run.start.offsets();
        last_offsets.retain(|partition, _| partitions.contains_key(partition));
        Self {
            kept,
            discovery: Discovery::new(run.spec.source.partition_discovery.interval.0, now),
            looked_at: None,
            discovered: 0,
            replaced: discovery::replaced_at_start(&run),
            coordinator,
            subtasks: Vec::new(),
            limit: Arc::new(RateLimit::new(run.spec.limits)),
            event_time: watermarks::JobEventTime::of(&run.spec),
            stage_log: StageLog::new(subtasks as usize, now),
            stages: Arc::new(RunStages::new(run.clock.now())),
            newly_seen_ends: None,
            cancel: CancellationToken::new(),
            tasks: JoinSet::new(),
            background: JoinSet::new(),
            pending: PendingPositions::new(
                unresolved.map(|(partition, _)| partition.clone()).collect(),
            ),
            parked: Arc::new(discovery::parked_at_start(&run)),
            history: history::History::default(),
            left_out: left_out::LeftOutLog::default(),
            failing: failing::FailingLog::default(),
            bounds: BoundsAsked::default(),
            moved: out_of_range::moved_by_the_start(&run),
            skips: Vec::new(),
            partitions,
            committer: None,
            commits: GroupCommits::default(),
            commit_was_refused: false,
            commits_start,
            attempt: None,
            waiters: Vec::new(),
            queued_waiters: Vec::new(),
            awaiting_commit: BTreeMap::new(),
            last: start_summary(&run.start),
            last_offsets,
            last_failed: None,
            consecutive_failures: 0,
            output_before: false,
            confirmed: now,
            thinned: now,
            look_ups: LookUps::since(now),
            store_writes: store_writes::StoreWrites::default(),
            open_notes: 0,
            lease_doubt: None,
            is_fenced: false,
            waiting: BTreeMap::new(),
            stopping: None,
            blocked: None,
            since: run.clock.now(),
            status,
            end: None,
            threads,
            run,
        }
    }

    fn fail(&mut self, error: JobError) {
        self.is_fenced |= matches!(error, JobError::Fenced);
        // The first cause is the one to tell; what follows from it would hide it.
        if self.end.is_some() {
            return;
        }
        let cause = match self.blocked.take() {
            // Whoever lost the lease may not say anything of the job; the new owner comes to the record too.
            Some(_) | None if matches!(error, JobError::Fenced) => error,
            Some(first) => {
                tracing::warn!(error = %error, "happened while the run was ending");
                first
            }
            None => error,
        };
        tracing::error!(error = %cause, "the job gave up");
        self.end = Some(JobEnd::Failed(cause));
    }

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3_600);
        let stop = self.stopping.as_ref().map(|stopping| stopping.deadline);
        // While a stop is under way, its time is theirs.
        let waiters = self
            .queued_waiters
            .iter()
            .map(|waiter| waiter.deadline)
            .min()
            .filter(|_| stop.is_none());
        [self.coordinator.deadline(), stop, waiters]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(far)
    }

    fn on_command(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Checkpoint { timeout, reply }) => self.on_trigger(timeout, reply),
            Some(Command::Stop {
                checkpoint,
                timeout,
                refused,
            }) => self.on_stop(checkpoint, timeout, refused),
            Some(Command::SetDiscovery(discovery)) => self.set_discovery(discovery),
            Some(Command::LookAtTopics) => self.discovery.hurry(Instant::now()),
            Some(Command::SetCheckpointing(spec)) => self.set_checkpointing(spec),
            Some(Command::Skip {
                partition,
                at,
                reply,
            }) => self.on_skip(partition, at, reply),
            Some(Command::SetLimits(limits)) => {
                self.run.spec.limits = limits;
                self.limit.change(limits);
                self.publish();
            }
            Some(Command::SetPolicies {
                on_out_of_range,
                on_topic_recreated,
            }) => self.set_policies(on_out_of_range, on_topic_recreated),
            Some(Command::LogEnds(ends)) => self.newly_seen_ends = Some(ends),
            Some(Command::LoseLease) => self.fail(JobError::Fenced),
            // Nobody can ask for anything any more.
            None => self.stopped(None),
        }
    }

    fn set_checkpointing(&mut self, mut spec: CheckpointSpec) {
        let running = &mut self.run.spec.checkpoint;
        if spec.checkpointing() != running.checkpointing() {
            // Whether there are checkpoints at all is decided by a start.
            spec.interval = running.interval;
        }
        *running = spec;
        self.coordinator.set_timing(timing(&self.run.spec));
    }

    fn on_lease(&mut self, health: Option<LeaseHealth>) {
        match health {
            Some(LeaseHealth::Held) => self.lease_doubt = None,
            Some(LeaseHealth::Doubtful(detail)) => self.lease_doubt = Some(detail),
            Some(LeaseHealth::Lost) => self.fail(JobError::Fenced),
            // The server that renews the lease is going down without a stop.
            None => self.stopped(None),
        }
        self.apply_intake();
        self.publish();
    }

    fn apply_intake(&self) {
        let frozen = self.stopping.is_some() || self.lease_doubt.is_some();
        let intake = if frozen { Intake::Frozen } else { Intake::Open };
        for subtask in &self.subtasks {
            subtask
                .intake
                .send_if_modified(|now| std::mem::replace(now, intake) != intake);
        }
    }

    fn on_subtask_end(&mut self, ended: Result<(u32, Result<(), JobError>), JoinError>) {
        let error = match ended {
            Ok((_, Err(error))) => error,
            Ok((subtask, Ok(()))) => JobError::Panicked {
                part: format!("consumer thread of subtask {subtask}"),
                detail: "it ended without a reason".to_owned(),
            },
            Err(error) => {
                let detail = match error.try_into_panic() {
                    Ok(panic) => consumer_thread::panic_text(panic.as_ref()),
                    Err(error) => error.to_string(),
                };
                JobError::Panicked {
                    part: "subtask".to_owned(),
                    detail,
                }
            }
        };
        self.fail(error);
    }

    fn on_subtask_event(&mut self, event: SubtaskEvent) {
        match event {
            SubtaskEvent::Prepared(prepared) => {
                let (id, subtask) = (prepared.id, prepared.subtask);
                match self.attempt.as_mut().filter(|attempt| attempt.id == id) {
                    Some(attempt) => attempt.prepared.push(prepared),
                    // Late: the next attempt covers it, and says that there was output.
                    None => self.output_before |= prepared.has_output,
                }
                self.coordinate(CoordinatorEvent::Prepared { id, subtask });
            }
            SubtaskEvent::PrepareFailed {
                id,
                subtask,
                detail,
            } => {
                // What comes of it says the checkpoint, once.
                tracing::debug!(checkpoint.id = %id, subtask, detail, "the sink could not make its records durable");
                self.coordinate(CoordinatorEvent::PrepareFailed {
                    id,
                    subtask,
                    detail,
                });
            }
            SubtaskEvent::Parked {
                partition,
                at,
                cause,
            } => self.on_parked(&partition, at, cause),
            SubtaskEvent::LeftOut(records) => self.left_out.add(records),
        }
    }

    fn on_background(&mut self, done: Result<Background, JoinError>) {
        match done {
            Ok(Background::Stored { id, outcome, took }) => self.on_stored(id, outcome, took),
            Ok(Background::Noted(outcome)) => self.on_noted(outcome),
            Ok(Background::Told(outcome)) => self.on_told(outcome),
            Ok(Background::Committed { id, outcome, took }) => {
                self.on_committed(id, &outcome, took);
            }
            Ok(Background::LookedUp(outcome)) => self.on_looked_up(outcome),
            Ok(Background::Bounds(outcome)) => self.on_bounds(outcome),
            Ok(Background::ReadableEnds(outcome)) => self.on_readable_ends(outcome),
            Ok(Background::Discovered(look)) => self.on_discovered(look),
            Err(error) => self.fail(JobError::Panicked {
                part: "job task".to_owned(),
                detail: error.to_string(),
            }),
        }
    }

    fn on_deadline(&mut self) {
        self.coordinate(CoordinatorEvent::Tick);
        let now = Instant::now();
        if self
            .stopping
            .as_ref()
            .is_some_and(|stopping| now >= stopping.deadline)
        {
            self.stop_ran_out();
        }
        self.answer_late_waiters(now);
    }
}

fn start_summary(start: &Checkpoint) -> CheckpointSummary {
    CheckpointSummary {
        id: start.id,
        kind: start.kind,
        completed_at: start.completed_at,
        confirmed_at: start.completed_at,
        group_commit: GroupCommit::OFF,
        phases: start.phases,
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
