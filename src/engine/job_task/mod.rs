//! The single owner of a running job: its checkpoints, its commits, its status, its end.
//!
//! Everything that happens to a job arrives here as an event of one loop: a command of a handle, a word of a subtask, the
//! end of a call to the store or to a broker, a timer. Decisions are made by pure parts
//! ([`CheckpointCoordinator`], [`GroupCommits`], [`PendingPositions`]); this file carries them out. Nothing in the loop waits
//! for anything else, so a blocked sink or a store that is away never keeps a stop from being heard.

mod checkpoints;
mod discovery;
mod ending;
mod history;
mod left_out;
mod observation;
mod out_of_range;
mod parking;
mod stages;
mod store_writes;
mod watermarks;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    checkpoint_coordinator::{CheckpointCoordinator, CoordinatorEvent},
    consumer_thread::{self, Reachability, Request},
    discovery::Discovery,
    error::{ConsumerError, JobError, KafkaError, StoreError},
    fetcher::{Fetcher, LivePosition},
    group_commits::GroupCommits,
    job_handle::{Command, JobEnd, JobRun, StopOutcome, StopRefused},
    parked::SkipWaiter,
    pending_positions::{LookedUp, PendingPositions},
    ports::{ConsumerSettings, LeaseHealth, OffsetCommitter, TopicDescription},
    rate_limit::RateLimit,
    stages::StageLog,
    subtask::{
        Barrier, Intake, PartitionChange, SubtaskChannels, SubtaskEvent, SubtaskTask, SubtaskView,
    },
    threads::Threads,
    without_checkpoints::{KeepsNone, timing},
};
use crate::model::{
    checkpoint::{
        Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
        FailedCheckpoint, GroupCommit, GroupCommitStatus,
    },
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
    resolver::{Blocker, LogBounds, SinkPosition, StartReason},
    stages::RunStages,
    start::StopCheckpoint,
    subtask::owner,
    topic::{TopicId, TopicPartition},
    views::CheckpointReport,
};

/// How often the status is made anew.
const STATUS_PERIOD: Duration = Duration::from_millis(250);
/// Changes of partitions that appear in a run which wait for a subtask; it takes them between two batches.
const NEW_PARTITIONS: usize = 10_000;
/// How long subtasks may take to end after they were cancelled.
const SUBTASK_CLOSE: Duration = Duration::from_secs(5);
/// How long subtasks may take to end after they were aborted; one that blocks its thread inside the sink never does.
const SUBTASK_ABORT: Duration = Duration::from_secs(1);
/// How long the client of a consumer thread may take to close; librdkafka may wait for a broker that is away.
const CONSUMER_CLOSE: Duration = Duration::from_secs(3);
/// How long the last checkpoint of a run that fails at a record may take, if the spec does not give it less.
const LAST_CHECKPOINT: Duration = Duration::from_secs(30);
/// The share of a stop's time in which a sink that is away is tried again.
const INSIST_SHARE: f64 = 0.9;
/// How long the end of a run waits for calls that were made aside.
const LAST_NOTES: Duration = Duration::from_secs(2);

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

/// A stop under way: an asked one, or that of a run which fails at a record.
struct Stopping {
    /// `Stop`, or `Failure` for a run that fails.
    kind: CheckpointKind,
    required: bool,
    /// Whether it is the end of a bounded run, which nobody has to ask for.
    finishes: bool,
    /// Until when the checkpoint may take.
    deadline: Instant,
    asked_at: DateTime<Utc>,
    /// How long a sink that is away is tried again, so that there is time left to tell what it said.
    insist_until: Instant,
    /// The attempt that is this stop's own. One that an earlier, refused stop left behind does not count: records were
    /// taken after it.
    attempt: Option<CheckpointId>,
    refused: Vec<oneshot::Sender<StopRefused>>,
    /// The last checkpoint once it has completed, while its commit is awaited.
    report: Option<CheckpointReport>,
}

type Waiters = Vec<oneshot::Sender<CheckpointReport>>;

/// Somebody who asked for a checkpoint that has not begun.
struct QueuedWaiter {
    reply: oneshot::Sender<CheckpointReport>,
    /// Until when it must have begun; a stop's own time bounds those that wait for its checkpoint.
    deadline: Instant,
    asked_at: DateTime<Utc>,
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
    /// When it was asked last where the logs of partitions begin and end that are parked outside.
    bounds_asked: Option<Instant>,
    asking_bounds: bool,
    /// Positions that the log did not hold and that were moved.
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
    looked_up: Instant,
    looking_up: bool,
    /// Whether a partition waits for its first look-up.
    look_up_now: bool,
    /// Partitions that the last look-up had no answer for.
    leaderless: Vec<TopicPartition>,
    /// What stood against positions in the last look-up.
    against: Vec<Blocker>,
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
            look_up_now: false,
            leaderless: Vec::new(),
            against: Vec::new(),
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
            bounds_asked: None,
            asking_bounds: false,
            moved: 0,
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
            looked_up: now,
            looking_up: false,
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

    fn open_subtasks(&mut self, events: &mpsc::Sender<SubtaskEvent>) -> Result<(), JobError> {
        (0..self.run.spec.parallelism).try_for_each(|subtask| self.open_subtask(subtask, events))
    }

    /// Registers the partitions that a subtask begins with; answers what its consumer reads, and the positions its sink hears.
    fn beginnings(
        &self,
        subtask: u32,
        fetcher: &mut Fetcher,
    ) -> (Vec<Request>, Vec<(TopicPartition, SinkPosition)>) {
        let mut assignments = Vec::new();
        let mut begin = Vec::new();
        let of_subtask = self.partitions.iter();
        for (partition, state) in of_subtask.filter(|(_, state)| state.subtask == subtask) {
            let Some(live) = &state.live else { continue };
            let Some(position) = live.get() else { continue };
            if self.parked.contains_key(partition) {
                continue;
            }
            let assignment = (partition.clone(), position);
            fetcher.register(&assignment, state.position_id, 0, Arc::clone(live));
            assignments.push(Request::Read(assignment));
            let for_sink = SinkPosition {
                next_offset: position,
                position_id: state.position_id,
            };
            begin.push((partition.clone(), for_sink));
        }
        begin.extend(self.positions_for_the_sink(subtask));
        (assignments, begin)
    }

    fn open_subtask(
        &mut self,
        subtask: u32,
        events: &mpsc::Sender<SubtaskEvent>,
    ) -> Result<(), JobError> {
        let settings = ConsumerSettings {
            job: self.run.name.to_string(),
            subtask,
            source: self.run.spec.source.clone(),
        };
        let consumer = self
            .run
            .kafka
            .consumer(&settings)
            .map_err(ConsumerError::Kafka)?;
        if self.committer.is_none() {
            self.committer = Some(consumer.committer());
        }
        let (producer, batches) = handover_slot::channel();
        let view = Arc::new(SubtaskView::default());
        let mut fetcher = Fetcher::new(self.run.spec.source.format, Arc::clone(&view.counters));
        if let Some(ends) = &self.run.ends {
            fetcher.end_at(ends.clone());
        }
        let (pausing, paused) = self.pausing();
        if let Some(event_time) = &self.event_time {
            fetcher.keep_event_time(event_time.for_subtask());
        }
        let (assignments, begin) = self.beginnings(subtask, &mut fetcher);
        let asked = assignments.len() as u64;
        batches.assign(assignments);
        let reachability = Reachability::default();
        let thread_name = format!("consumer-{}-{subtask}", self.run.name);
        let thread_ended = consumer_thread::spawn(
            self.threads,
            &thread_name,
            consumer,
            producer,
            reachability.clone(),
            Arc::clone(&view.blocked),
        )
        .map_err(|error| JobError::Panicked {
            part: thread_name,
            detail: error.to_string(),
        })?;
        let (barrier, barrier_receiver) = watch::channel(None);
        let (intake, intake_receiver) = watch::channel(Intake::Open);
        // There is room for every partition to come, to be parked and to come again, and for those that appear.
        let of_subtask = self
            .partitions
            .values()
            .filter(|state| state.subtask == subtask);
        let (partitions, partition_receiver) =
            mpsc::channel(2 * of_subtask.count() + NEW_PARTITIONS);
        let task = SubtaskTask {
            subtask,
            batches,
            asked,
            fetcher,
            sink: Arc::clone(&self.run.sink),
            begin,
            channels: SubtaskChannels {
                barrier: barrier_receiver,
                intake: intake_receiver,
                partitions: partition_receiver,
                events: events.clone(),
                cancel: self.cancel.clone(),
            },
            view: Arc::clone(&view),
            limit: Arc::clone(&self.limit),
            held: None,
            has_output: false,
            pausing,
            clock: Arc::clone(&self.run.clock),
            job: self.run.name.clone(),
            bad_records: self.bad_records(),
        };
        self.tasks
            .spawn(tracing::Instrument::in_current_span(async move {
                let outcome = AssertUnwindSafe(task.run()).catch_unwind().await;
                let outcome = outcome.unwrap_or_else(|panic| {
                    Err(JobError::Panicked {
                        part: format!("subtask {subtask}"),
                        detail: consumer_thread::panic_text(panic.as_ref()),
                    })
                });
                (subtask, outcome)
            }));
        self.subtasks.push(Subtask {
            barrier,
            intake,
            partitions,
            view,
            reachability,
            thread_ended,
            paused,
        });
        Ok(())
    }

    /// Ends everything that runs and says how it went. Bounded: what does not end in time is left behind and counted.
    async fn close(mut self) -> JobEnd {
        if self.is_fenced {
            self.background.abort_all();
        }
        self.cancel.cancel();
        // The committer shares the first consumer's client, which cannot close while it is held.
        self.committer = None;
        let all_ended = tokio::time::timeout(SUBTASK_CLOSE, async {
            while self.tasks.join_next().await.is_some() {}
        });
        let some_were_stuck = all_ended.await.is_err();
        if some_were_stuck {
            // A task that is stuck in its sink is ended here; its end of the hand-over closes with it.
            let _still_stuck = tokio::time::timeout(SUBTASK_ABORT, self.tasks.shutdown()).await;
        }
        let cut_off = some_were_stuck
            || self
                .subtasks
                .iter()
                .any(|subtask| subtask.view.was_cut_off());
        self.publish();
        let mut leaked_threads = 0;
        let deadline = Instant::now() + CONSUMER_CLOSE;
        for subtask in self.subtasks.drain(..) {
            let closed = tokio::time::timeout_at(deadline, subtask.thread_ended).await;
            leaked_threads += usize::from(closed.is_err());
        }
        self.tell_left_out_rest();
        self.settle_calls().await;
        self.log_untold();
        self.note_open_commit().await;
        leaked_threads += usize::from(self.commits.in_flight().is_some());
        if leaked_threads > 0 {
            tracing::warn!(
                leaked_threads,
                "consumer clients or a commit did not end in time; they are left to end by themselves"
            );
        }
        for (report, waiters) in std::mem::take(&mut self.awaiting_commit).into_values() {
            let report = self.as_it_ended(report);
            for waiter in waiters {
                // A caller that went away loses only the answer.
                let _unheard = waiter.send(report.clone());
            }
        }
        let store_has_not_said = self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.checkpoint.is_some());
        let is_known = !cut_off && !store_has_not_said;
        let end = self.end.take();
        let mut whole = |outcome: Box<StopOutcome>| {
            Box::new(StopOutcome {
                checkpoint: outcome.checkpoint.map(|report| self.as_it_ended(report)),
                will_replay: is_known.then(|| self.unsaved_offsets()),
                leaked_threads,
                blocked: self.blocked.take(),
            })
        };
        match end {
            Some(JobEnd::Stopped(outcome)) => JobEnd::Stopped(whole(outcome)),
            Some(JobEnd::Finished(outcome)) => JobEnd::Finished(whole(outcome)),
            Some(failed @ JobEnd::Failed(_)) => failed,
            None => JobEnd::Failed(JobError::Panicked {
                part: "job task".to_owned(),
                detail: "it ended without a reason".to_owned(),
            }),
        }
    }

    /// Waits a moment for calls that were made aside: what they bring still counts, and the lease is still ours.
    async fn settle_calls(&mut self) {
        let deadline = Instant::now() + LAST_NOTES;
        while let Ok(Some(done)) =
            tokio::time::timeout_at(deadline, self.background.join_next()).await
        {
            match done {
                Ok(
                    Background::LookedUp(_)
                    | Background::Bounds(_)
                    | Background::ReadableEnds(_)
                    | Background::Discovered(_),
                )
                | Err(_) => {}
                Ok(
                    Background::Stored { .. }
                    | Background::Noted(_)
                    | Background::Told(_)
                    | Background::Committed { .. },
                ) => self.on_background(done),
            }
        }
    }

    /// A stop's report with what became known after it was made.
    fn as_it_ended(&self, report: CheckpointReport) -> CheckpointReport {
        if self.last.id != report.id {
            return report;
        }
        let group_commit = match self.last.group_commit.status {
            GroupCommitStatus::Pending => self.commit_without_answer(),
            GroupCommitStatus::Ok
            | GroupCommitStatus::Failed
            | GroupCommitStatus::Displaced
            | GroupCommitStatus::Off => self.last.group_commit.clone(),
        };
        CheckpointReport {
            id: report.id,
            status: "completed".to_owned(),
            completed_at: Some(self.last.completed_at),
            group_commit,
            phases: self.last.phases,
            failure: None,
        }
    }

    /// What the end of the run makes of the newest checkpoint's commit if it is still open.
    fn commit_without_answer(&self) -> GroupCommit {
        let error = if self.commits.in_flight() == Some(self.last.id) {
            "no answer came before the job ended; it may still take effect"
        } else {
            "the job ended before it was sent"
        };
        GroupCommit {
            status: GroupCommitStatus::Failed,
            error: Some(error.to_owned()),
        }
    }

    /// The history must not show a commit as under way for ever.
    async fn note_open_commit(&self) {
        if self.last.group_commit.status != GroupCommitStatus::Pending || self.is_fenced {
            return;
        }
        let (id, phases, outcome) = (
            self.last.id,
            &self.last.phases,
            self.commit_without_answer(),
        );
        let noted = self
            .run
            .store
            .record_outcome(&self.run.lease, id, phases, &outcome);
        if let Ok(Err(error)) = tokio::time::timeout(LAST_NOTES, noted).await {
            tracing::debug!(%error, "the open commit could not be noted");
        }
    }

    /// Offsets given to the sink after the newest completed checkpoint.
    fn unsaved_offsets(&self) -> i64 {
        let positions = self.partitions.iter().filter_map(|(partition, state)| {
            let live = state.live.as_ref()?.get()?;
            let saved = self.last_offsets.get(partition)?;
            Some(live.distance_from(*saved).max(0))
        });
        positions.sum()
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

    /// A record cannot be processed: the run ends, with everything before the record in a last checkpoint.
    fn on_blocked(&mut self, error: JobError) {
        if self.blocked.is_some() {
            // Another partition came to a record of its own. Its position is covered, and the next start comes to it.
            return;
        }
        let before_it = if self.run.spec.checkpointing().is_off() {
            "what lies before it goes to the sink"
        } else {
            "a last checkpoint is taken before it"
        };
        tracing::error!(error = %error, "a record cannot be processed; {before_it}");
        self.blocked = Some(error);
        if self.stopping.is_none() {
            self.fail_after_checkpoint();
        }
    }

    fn fail_after_checkpoint(&mut self) {
        let timeout = self.run.spec.checkpoint.timeout.0.min(LAST_CHECKPOINT);
        self.begin_last_checkpoint(CheckpointKind::Failure, false, timeout, Vec::new());
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

    fn on_trigger(&mut self, timeout: Option<Duration>, reply: oneshot::Sender<CheckpointReport>) {
        if let Some(stopping) = &self.stopping {
            // No record is taken any more: the stop's checkpoint covers everything that this one would.
            let last = stopping
                .attempt
                .and_then(|id| self.awaiting_commit.get_mut(&id));
            match last {
                Some((_, waiters)) => waiters.push(reply),
                None if stopping.attempt.is_some() => self.waiters.push(reply),
                None => self.queue_waiter(timeout, reply),
            }
            return;
        }
        self.queue_waiter(timeout, reply);
        self.trigger_manual(timeout);
    }

    fn queue_waiter(
        &mut self,
        timeout: Option<Duration>,
        reply: oneshot::Sender<CheckpointReport>,
    ) {
        let timeout = timeout.unwrap_or(self.run.spec.checkpoint.timeout.0);
        self.queued_waiters.push(QueuedWaiter {
            reply,
            deadline: Instant::now() + timeout,
            asked_at: self.run.clock.now(),
        });
    }

    /// Answers those whose checkpoint has not begun in their time, because the attempt before it waits for the store.
    fn answer_late_waiters(&mut self, now: Instant) {
        if self.stopping.is_some() {
            return;
        }
        let all = std::mem::take(&mut self.queued_waiters);
        let (late, waiting): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|waiter| waiter.deadline <= now);
        self.queued_waiters = waiting;
        let Some(asked_at) = late.iter().map(|waiter| waiter.asked_at).min() else {
            return;
        };
        if self.queued_waiters.is_empty() {
            self.coordinator.withdraw(CheckpointKind::Manual);
        }
        let report = self.never_began(CheckpointKind::Manual, asked_at, "its timeout");
        for waiter in late {
            // A caller that went away loses only the answer.
            let _unheard = waiter.reply.send(report.clone());
        }
        self.publish();
    }

    /// Notes a checkpoint that was asked for and could not begin, because another attempt was under way.
    fn never_began(
        &mut self,
        kind: CheckpointKind,
        asked_at: DateTime<Utc>,
        limit: &str,
    ) -> CheckpointReport {
        let in_the_way = self.attempt.as_ref().map_or_else(String::new, |attempt| {
            format!(": checkpoint {} was still under way", attempt.id)
        });
        let mut failure = CheckpointFailure {
            code: Code::CheckpointTimeout.to_string(),
            phase: "barrier".to_owned(),
            summary: format!("the checkpoint could not begin within {limit}{in_the_way}"),
            slowest: self.coordinator.missing(Instant::now()),
        };
        self.name_the_slow_part(&mut failure);
        let id = self.coordinator.spend_id();
        self.last_failed = Some((id, failure.clone()));
        self.note_failure(FailedCheckpoint {
            id,
            kind,
            epoch: self.run.lease.epoch,
            started_at: asked_at,
            failed_at: self.run.clock.now(),
            phases: CheckpointPhases::default(),
            failure: failure.clone(),
        });
        failed_report(id, CheckpointPhases::default(), failure)
    }

    fn trigger_manual(&mut self, timeout: Option<Duration>) {
        let event = CoordinatorEvent::Trigger {
            kind: CheckpointKind::Manual,
            timeout,
        };
        self.coordinate(event);
    }

    fn on_stop(
        &mut self,
        checkpoint: StopCheckpoint,
        timeout: Duration,
        refused: oneshot::Sender<StopRefused>,
    ) {
        if checkpoint == StopCheckpoint::None {
            let last = self
                .stopping
                .as_ref()
                .and_then(|stopping| stopping.report.clone());
            if let Some(stopping) = &mut self.stopping {
                // Somebody asks now.
                stopping.finishes = false;
            }
            return self.stopped(last);
        }
        let deadline = Instant::now() + timeout;
        if let Some(stopping) = &mut self.stopping {
            stopping.refused.push(refused);
            stopping.required &= checkpoint == StopCheckpoint::Required;
            stopping.deadline = stopping.deadline.min(deadline);
            return;
        }
        let required = checkpoint == StopCheckpoint::Required;
        self.begin_last_checkpoint(CheckpointKind::Stop, required, timeout, vec![refused]);
    }

    fn begin_last_checkpoint(
        &mut self,
        kind: CheckpointKind,
        required: bool,
        timeout: Duration,
        refused: Vec<oneshot::Sender<StopRefused>>,
    ) {
        let now = Instant::now();
        self.stopping = Some(Stopping {
            kind,
            required,
            finishes: false,
            deadline: now + timeout,
            asked_at: self.run.clock.now(),
            insist_until: now + timeout.mul_f64(INSIST_SHARE),
            attempt: None,
            refused,
            report: None,
        });
        self.coordinator.set_periodic(false);
        self.apply_intake();
        self.coordinate(CoordinatorEvent::Trigger {
            kind,
            timeout: Some(timeout),
        });
        self.publish();
    }

    fn stopped(&mut self, checkpoint: Option<CheckpointReport>) {
        if self.end.is_some() {
            return;
        }
        if checkpoint.is_some() && self.reads_on() {
            return;
        }
        let fails = self
            .stopping
            .as_ref()
            .is_some_and(|stopping| stopping.kind == CheckpointKind::Failure);
        if fails && let Some(cause) = self.blocked.take() {
            return self.fail(cause);
        }
        let outcome = Box::new(StopOutcome {
            checkpoint,
            will_replay: None,
            leaked_threads: 0,
            blocked: None,
        });
        self.end = Some(if self.is_finished() {
            JobEnd::Finished(outcome)
        } else {
            JobEnd::Stopped(outcome)
        });
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

    /// The time of a stop is over before its checkpoint has ended.
    fn stop_ran_out(&mut self) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        if let Some(report) = stopping.report.clone() {
            // The checkpoint is stored; only its commit to the group is open.
            if self.waits_for_last_commit(&report) {
                return;
            }
            return self.stopped(Some(report));
        }
        let (own, asked_at, kind) = (stopping.attempt, stopping.asked_at, stopping.kind);
        let under_way = self.attempt.as_ref().map(|attempt| attempt.id);
        if let Some(id) = own.filter(|own| under_way == Some(*own)) {
            let actions = self.coordinator.give_up(id, Instant::now());
            if actions.is_empty() {
                let now = Instant::now();
                let attempt = self.attempt.as_ref();
                let phases = attempt.map(|attempt| attempt.phases_until(now));
                return self.stop_failed(uncertain_report(id, phases.unwrap_or_default()));
            }
            return self.carry_out(actions);
        }
        self.coordinator.withdraw(kind);
        let report = self.never_began(kind, asked_at, "the time of the stop");
        self.stop_failed(report);
    }

    fn stop_failed(&mut self, report: CheckpointReport) {
        let Some(stopping) = self.stopping.take_if(|stopping| stopping.required) else {
            return self.stopped(Some(report));
        };
        for refused in stopping.refused {
            // A caller that went away loses only the answer.
            let _unheard = refused.send(StopRefused {
                checkpoint: report.clone(),
            });
        }
        if self.blocked.is_some() {
            // It cannot go on: the record that came up meanwhile ends it.
            return self.fail_after_checkpoint();
        }
        self.coordinator.set_periodic(true);
        self.apply_intake();
        if !self.queued_waiters.is_empty() {
            // They waited for the stop's checkpoint.
            self.trigger_manual(None);
        }
        self.publish();
    }
}

fn failed_report(
    id: CheckpointId,
    phases: CheckpointPhases,
    failure: CheckpointFailure,
) -> CheckpointReport {
    CheckpointReport {
        id,
        status: "failed".to_owned(),
        completed_at: None,
        group_commit: GroupCommit::OFF,
        phases,
        failure: Some(failure),
    }
}

/// A checkpoint that was sent to the store, which has not said whether it keeps it: every subtask has answered, and the
/// store is what is slow.
fn uncertain_report(id: CheckpointId, phases: CheckpointPhases) -> CheckpointReport {
    let failure = CheckpointFailure {
        code: Code::CheckpointTimeout.to_string(),
        phase: "store".to_owned(),
        summary: "the store has not said whether it keeps the checkpoint".to_owned(),
        slowest: Vec::new(),
    };
    CheckpointReport {
        status: "uncertain".to_owned(),
        ..failed_report(id, phases, failure)
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
