//! The single owner of a running job: its checkpoints, its commits, its status, its end.
//!
//! Everything that happens to a job arrives here as an event of one loop: a command of a handle, a word of a subtask, the
//! end of a call to the store or to a broker, a timer. Decisions are made by pure parts
//! ([`CheckpointCoordinator`], [`GroupCommits`], [`PendingPositions`]); this file carries them out. Nothing in the loop waits
//! for anything else, so a blocked sink or a store that is away never keeps a stop from being heard.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    checkpoint_coordinator::{CheckpointCoordinator, CoordinatorAction, CoordinatorEvent},
    consumer_thread::{self, Reachability},
    error::{ConsumerError, JobError, KafkaError, StoreError},
    fetcher::{Fetcher, LivePosition},
    group_commits::{self, GroupCommits, PendingCommit},
    job_handle::{Command, JobEnd, JobRun, StopOutcome, StopRefused},
    pending_positions::{self, PendingPositions, Resolved},
    ports::{ConsumerSettings, LeaseHealth, OffsetCommitter},
    subtask::{
        Activity, Barrier, Intake, NewPartition, Prepared, SubtaskChannels, SubtaskEvent,
        SubtaskTask, SubtaskView,
    },
};
use crate::model::{
    checkpoint::{
        Checkpoint, CheckpointFailure, CheckpointKind, CheckpointPhases, CheckpointPosition,
        FailedCheckpoint, GroupCommit, GroupCommitStatus,
    },
    code::Code,
    ids::CheckpointId,
    job::CommitToGroup,
    job_status::{
        AttemptInProgress, CheckpointSummary, CommitCounters, JobStatus, LivePartition, Waiting,
    },
    offset::PartitionOffsets,
    start::StopCheckpoint,
    subtask::owner,
    topic::{TopicId, TopicPartition},
    views::CheckpointReport,
};

/// How often the status is made anew.
const STATUS_PERIOD: Duration = Duration::from_millis(250);
/// How often partitions without a leader are asked for.
const PENDING_PERIOD: Duration = Duration::from_secs(2);
/// How often a cluster that was lost is asked whether it answers again.
const PROBE_PERIOD: Duration = Duration::from_secs(1);
/// How often unchanged positions are confirmed in the store and committed again, because group offsets of a consumer that
/// was assigned expire from the last commit.
const CONFIRM_PERIOD: Duration = Duration::from_secs(30);
/// How often the history is thinned.
const THIN_PERIOD: Duration = Duration::from_secs(60);
/// Longest pause between attempts at the store.
const STORE_PAUSE: Duration = Duration::from_secs(5);
/// How long subtasks may take to end after they were cancelled.
const SUBTASK_CLOSE: Duration = Duration::from_secs(5);
/// How long the client of a consumer thread may take to close; librdkafka may wait for a broker that is away.
const CONSUMER_CLOSE: Duration = Duration::from_secs(3);
/// How long the end of a stop waits for the last commit to the group.
const FINAL_COMMIT: Duration = Duration::from_secs(10);

/// What the job task keeps of a subtask.
struct Subtask {
    barrier: watch::Sender<Option<Barrier>>,
    intake: watch::Sender<Intake>,
    new_partitions: mpsc::Sender<NewPartition>,
    view: Arc<SubtaskView>,
    reachability: Reachability,
    thread_ended: oneshot::Receiver<()>,
}

/// What the job task keeps of a partition.
struct Partition {
    subtask: u32,
    position_id: CheckpointId,
    topic_id: Option<TopicId>,
    live: Option<Arc<LivePosition>>,
}

/// The attempt under way.
struct Attempt {
    id: CheckpointId,
    kind: CheckpointKind,
    started_at: DateTime<Utc>,
    prepared: Vec<Prepared>,
    /// What was sent to the store.
    checkpoint: Option<Checkpoint>,
}

/// A stop under way.
struct Stopping {
    required: bool,
    /// Until when the checkpoint may take.
    deadline: Instant,
    refused: Vec<oneshot::Sender<StopRefused>>,
    /// The last checkpoint once it has completed, while its commit is awaited.
    report: Option<CheckpointReport>,
}

type Waiters = Vec<oneshot::Sender<CheckpointReport>>;

/// A call that was made aside has ended.
enum Background {
    Stored {
        id: CheckpointId,
        outcome: Result<(), StoreError>,
        took: Duration,
    },
    Noted(Result<(), StoreError>),
    Committed {
        id: CheckpointId,
        outcome: Result<(), KafkaError>,
        took: Duration,
    },
    Probed(Result<(), KafkaError>),
    LookedUp(Result<BTreeMap<TopicPartition, Resolved>, KafkaError>),
}

pub(super) struct JobTask {
    run: JobRun,
    coordinator: CheckpointCoordinator,
    subtasks: Vec<Subtask>,
    cancel: CancellationToken,
    tasks: JoinSet<(u32, Result<(), JobError>)>,
    background: JoinSet<Background>,
    partitions: BTreeMap<TopicPartition, Partition>,
    pending: PendingPositions,
    committer: Option<Arc<dyn OffsetCommitter>>,
    commits: GroupCommits,
    attempt: Option<Attempt>,
    waiters: Waiters,
    queued_waiters: Waiters,
    awaiting_commit: BTreeMap<CheckpointId, (CheckpointReport, Waiters)>,
    last: CheckpointSummary,
    last_offsets: PartitionOffsets,
    last_failed: Option<(CheckpointId, CheckpointFailure)>,
    consecutive_failures: u32,
    /// Whether an attempt that failed had records before it: the next one covers them.
    output_before: bool,
    confirmed: Instant,
    thinned: Instant,
    probed: Instant,
    probing: bool,
    looked_up: Instant,
    looking_up: bool,
    store_problem: Arc<Mutex<Option<String>>>,
    lease_doubt: Option<String>,
    waiting: BTreeMap<Code, Waiting>,
    stopping: Option<Stopping>,
    since: DateTime<Utc>,
    status: watch::Sender<Arc<JobStatus>>,
    end: Option<JobEnd>,
}

impl JobTask {
    /// The status before the first event.
    pub(super) fn first_status(run: &JobRun) -> JobStatus {
        let now = run.clock.now();
        let partitions = run.start.positions.iter().map(|(partition, position)| {
            let subtask = owner(&partition.topic, partition.partition, run.spec.parallelism);
            (
                partition.clone(),
                LivePartition {
                    subtask,
                    position: position.next_offset,
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
            last_checkpoint: Some(start_summary(&run.start)),
            in_progress: None,
            last_failed: None,
            consecutive_failures: 0,
            commits: CommitCounters::default(),
            waiting: Vec::new(),
        }
    }

    /// Runs the job to its end.
    pub(super) async fn run(
        run: JobRun,
        mut commands: mpsc::Receiver<Command>,
        status: watch::Sender<Arc<JobStatus>>,
    ) -> JobEnd {
        let (events_sender, mut events) = mpsc::channel(64);
        let mut job = Self::new(run, status);
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

    fn new(run: JobRun, status: watch::Sender<Arc<JobStatus>>) -> Self {
        let now = Instant::now();
        let subtasks = run.spec.parallelism;
        let coordinator = CheckpointCoordinator::new(
            run.spec.checkpoint.clone(),
            subtasks,
            run.start.id.next(),
            now,
        );
        let partitions = run.start.positions.iter().map(|(partition, position)| {
            let state = Partition {
                subtask: owner(&partition.topic, partition.partition, subtasks),
                position_id: position.position_id,
                topic_id: position.topic_id.clone(),
                live: position.next_offset.map(LivePosition::at),
            };
            (partition.clone(), state)
        });
        let partitions: BTreeMap<TopicPartition, Partition> = partitions.collect();
        let unresolved = partitions.iter().filter(|(_, state)| state.live.is_none());
        Self {
            coordinator,
            subtasks: Vec::new(),
            cancel: CancellationToken::new(),
            tasks: JoinSet::new(),
            background: JoinSet::new(),
            pending: PendingPositions::new(
                unresolved.map(|(partition, _)| partition.clone()).collect(),
            ),
            partitions,
            committer: None,
            commits: GroupCommits::default(),
            attempt: None,
            waiters: Vec::new(),
            queued_waiters: Vec::new(),
            awaiting_commit: BTreeMap::new(),
            last: start_summary(&run.start),
            last_offsets: run.start.offsets(),
            last_failed: None,
            consecutive_failures: 0,
            output_before: false,
            confirmed: now,
            thinned: now,
            probed: now,
            probing: false,
            looked_up: now,
            looking_up: false,
            store_problem: Arc::default(),
            lease_doubt: None,
            waiting: BTreeMap::new(),
            stopping: None,
            since: run.clock.now(),
            status,
            end: None,
            run,
        }
    }

    // --- opening and closing -----------------------------------------------------------------------------------------

    fn open_subtasks(&mut self, events: &mpsc::Sender<SubtaskEvent>) -> Result<(), JobError> {
        (0..self.run.spec.parallelism).try_for_each(|subtask| self.open_subtask(subtask, events))
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
        let mut assignments = Vec::new();
        for (partition, state) in self
            .partitions
            .iter()
            .filter(|(_, state)| state.subtask == subtask)
        {
            let Some(live) = &state.live else { continue };
            let Some(position) = live.get() else { continue };
            fetcher.register(&(partition.clone(), position), Arc::clone(live));
            assignments.push((partition.clone(), position));
        }
        batches.assign(assignments);
        let reachability = Reachability::default();
        let thread_name = format!("consumer-{}-{subtask}", self.run.name);
        let thread_ended =
            consumer_thread::spawn(&thread_name, consumer, producer, reachability.clone())
                .map_err(|error| JobError::Panicked {
                    part: thread_name,
                    detail: error.to_string(),
                })?;
        let (barrier, barrier_receiver) = watch::channel(None);
        let (intake, intake_receiver) = watch::channel(Intake::Open);
        let (new_partitions, new_partition_receiver) = mpsc::channel(64);
        let task = SubtaskTask {
            subtask,
            batches,
            fetcher,
            sink: Arc::clone(&self.run.sink),
            channels: SubtaskChannels {
                barrier: barrier_receiver,
                intake: intake_receiver,
                new_partitions: new_partition_receiver,
                events: events.clone(),
                cancel: self.cancel.clone(),
            },
            view: Arc::clone(&view),
            has_output: false,
        };
        self.tasks
            .spawn(tracing::Instrument::in_current_span(async move {
                (subtask, task.run().await)
            }));
        self.subtasks.push(Subtask {
            barrier,
            intake,
            new_partitions,
            view,
            reachability,
            thread_ended,
        });
        Ok(())
    }

    /// Ends everything that runs and says how it went. Bounded: what does not end in time is left behind and counted.
    async fn close(mut self) -> JobEnd {
        self.cancel.cancel();
        let _some_were_stuck = tokio::time::timeout(SUBTASK_CLOSE, async {
            while self.tasks.join_next().await.is_some() {}
        })
        .await;
        // A task that is stuck in its sink is ended here; its end of the hand-over closes with it.
        self.tasks.shutdown().await;
        let mut leaked_threads = 0;
        let deadline = Instant::now() + CONSUMER_CLOSE;
        for subtask in self.subtasks.drain(..) {
            let closed = tokio::time::timeout_at(deadline, subtask.thread_ended).await;
            leaked_threads += usize::from(closed.is_err());
        }
        if leaked_threads > 0 {
            tracing::warn!(
                leaked_threads,
                "consumer clients did not close in time; they are left to end by themselves"
            );
        }
        match self.end.take() {
            Some(JobEnd::Stopped(outcome)) => JobEnd::Stopped(StopOutcome {
                will_replay: self.unsaved_offsets(),
                leaked_threads,
                ..outcome
            }),
            Some(failed @ JobEnd::Failed(_)) => failed,
            None => JobEnd::Failed(JobError::Panicked {
                part: "job task".to_owned(),
                detail: "it ended without a reason".to_owned(),
            }),
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
        // The first cause is the one to tell; what follows from it would hide it.
        if self.end.is_none() {
            tracing::error!(error = %error, "the job gave up");
            self.end = Some(JobEnd::Failed(error));
        }
    }

    // --- events ------------------------------------------------------------------------------------------------------

    fn next_deadline(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3_600);
        let stop = self.stopping.as_ref().map(|stopping| stopping.deadline);
        [self.coordinator.deadline(), stop]
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
            Some(Command::SetCheckpointing(spec)) => {
                self.run.spec.checkpoint = spec.clone();
                self.coordinator.set_spec(spec, Instant::now());
            }
            // Nobody can ask for anything any more.
            None => self.stopped(None),
        }
    }

    fn on_trigger(&mut self, timeout: Option<Duration>, reply: oneshot::Sender<CheckpointReport>) {
        self.queued_waiters.push(reply);
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
            return self.stopped(None);
        }
        let deadline = Instant::now() + timeout;
        if let Some(stopping) = &mut self.stopping {
            stopping.refused.push(refused);
            stopping.required &= checkpoint == StopCheckpoint::Required;
            stopping.deadline = stopping.deadline.min(deadline);
            return;
        }
        let required = checkpoint == StopCheckpoint::Required;
        self.stopping = Some(Stopping {
            required,
            deadline,
            refused: vec![refused],
            report: None,
        });
        self.coordinator.set_periodic(false);
        self.apply_intake();
        self.coordinate(CoordinatorEvent::Trigger {
            kind: CheckpointKind::Stop,
            timeout: Some(timeout),
        });
        self.publish();
    }

    fn stopped(&mut self, checkpoint: Option<CheckpointReport>) {
        if self.end.is_none() {
            self.end = Some(JobEnd::Stopped(StopOutcome {
                checkpoint,
                will_replay: 0,
                leaked_threads: 0,
            }));
        }
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
                if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.id == id) {
                    attempt.prepared.push(prepared);
                }
                self.coordinate(CoordinatorEvent::Prepared { id, subtask });
            }
            SubtaskEvent::PrepareFailed {
                id,
                subtask,
                detail,
            } => {
                tracing::warn!(checkpoint.id = %id, subtask, detail, "the sink could not make its records durable");
                self.coordinate(CoordinatorEvent::PrepareFailed { id, detail });
            }
        }
    }

    fn on_background(&mut self, done: Result<Background, JoinError>) {
        match done {
            Ok(Background::Stored { id, outcome, took }) => self.on_stored(id, outcome, took),
            Ok(Background::Noted(outcome)) => self.on_noted(outcome),
            Ok(Background::Committed { id, outcome, took }) => {
                self.on_committed(id, &outcome, took)
            }
            Ok(Background::Probed(outcome)) => self.on_probed(&outcome),
            Ok(Background::LookedUp(outcome)) => self.on_looked_up(outcome),
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
    }

    /// The time of a stop is over before its checkpoint has ended.
    fn stop_ran_out(&mut self) {
        let Some(stopping) = &self.stopping else {
            return;
        };
        if let Some(report) = stopping.report.clone() {
            // The checkpoint is stored; only its commit to the group is open.
            return self.stopped(Some(report));
        }
        let phase = if self
            .attempt
            .as_ref()
            .is_some_and(|attempt| attempt.checkpoint.is_some())
        {
            "store"
        } else {
            "barrier"
        };
        let failure = CheckpointFailure {
            code: Code::CheckpointTimeout.to_string(),
            phase: phase.to_owned(),
            summary: "the last checkpoint did not complete within the stop's timeout".to_owned(),
            slowest: Vec::new(),
        };
        let id = self
            .attempt
            .as_ref()
            .map_or_else(|| self.coordinator.next_id(), |attempt| attempt.id);
        self.stop_failed(failed_report(id, CheckpointPhases::default(), failure));
    }

    fn stop_failed(&mut self, report: CheckpointReport) {
        let Some(stopping) = self.stopping.take() else {
            return;
        };
        if !stopping.required {
            return self.stopped(Some(report));
        }
        for refused in stopping.refused {
            // A caller that went away loses only the answer.
            let _unheard = refused.send(StopRefused {
                checkpoint: report.clone(),
            });
        }
        self.coordinator.set_periodic(true);
        self.coordinator.withdraw(CheckpointKind::Stop);
        self.apply_intake();
        self.publish();
    }

    fn on_tick(&mut self) {
        self.watch_kafka();
        self.watch_pending();
        let sink_problem = self
            .subtasks
            .iter()
            .find_map(|subtask| subtask.view.sink_problem());
        self.note_waiting(Code::SinkError, sink_problem);
        let store_problem = self
            .store_problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        self.note_waiting(
            Code::StoreUnreachable,
            self.lease_doubt.clone().or(store_problem),
        );
        if self.thinned.elapsed() >= THIN_PERIOD {
            self.thinned = Instant::now();
            let (store, lease) = (Arc::clone(&self.run.store), self.run.lease);
            self.background
                .spawn(async move { Background::Noted(store.thin(&lease).await) });
        }
        self.publish();
    }

    fn watch_kafka(&mut self) {
        let problem = self
            .subtasks
            .iter()
            .find_map(|subtask| subtask.reachability.problem());
        if problem.is_some() && !self.probing && self.probed.elapsed() >= PROBE_PERIOD {
            self.probing = true;
            let kafka = Arc::clone(&self.run.kafka);
            self.background
                .spawn(async move { Background::Probed(kafka.check().await) });
        }
        self.note_waiting(Code::KafkaUnreachable, problem);
    }

    fn on_probed(&mut self, outcome: &Result<(), KafkaError>) {
        self.probing = false;
        self.probed = Instant::now();
        for subtask in &self.subtasks {
            match outcome {
                Ok(()) => subtask.reachability.regained(),
                Err(error) => subtask.reachability.lost(error.to_string()),
            }
        }
        self.on_tick();
    }

    fn watch_pending(&mut self) {
        let unresolved = self.pending.unresolved();
        let names: Vec<String> = unresolved.iter().map(ToString::to_string).collect();
        let waits =
            (!names.is_empty()).then(|| format!("no leader answers for {}", names.join(", ")));
        if waits.is_some() && !self.looking_up && self.looked_up.elapsed() >= PENDING_PERIOD {
            self.looking_up = true;
            let (kafka, spec, unresolved) = (
                Arc::clone(&self.run.kafka),
                self.run.spec.clone(),
                unresolved.clone(),
            );
            let now_ms = self.run.clock.now().timestamp_millis();
            self.background.spawn(async move {
                Background::LookedUp(
                    pending_positions::look_up(kafka, spec, unresolved, now_ms).await,
                )
            });
        }
        self.note_waiting(Code::NoLeader, waits);
    }

    fn on_looked_up(&mut self, outcome: Result<BTreeMap<TopicPartition, Resolved>, KafkaError>) {
        self.looking_up = false;
        self.looked_up = Instant::now();
        match outcome {
            Ok(found) => {
                self.pending.found(found);
                // The position is stored before the first fetch.
                if !self.pending.resolved().is_empty() && self.stopping.is_none() {
                    let event = CoordinatorEvent::Trigger {
                        kind: CheckpointKind::Periodic,
                        timeout: None,
                    };
                    self.coordinate(event);
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, "partitions without a leader could not be looked up")
            }
        }
    }

    /// Notes or clears something that the job waits for; the first moment of it is kept.
    fn note_waiting(&mut self, code: Code, detail: Option<String>) {
        let Some(detail) = detail else {
            if self.waiting.remove(&code).is_some() {
                tracing::info!(code = %code, "goes on");
            }
            return;
        };
        let now = self.run.clock.now();
        let entry = self.waiting.entry(code).or_insert_with(|| {
            tracing::warn!(code = %code, detail, "waits");
            Waiting {
                code,
                since: now,
                detail: String::new(),
            }
        });
        entry.detail = detail;
    }

    // --- checkpoints -------------------------------------------------------------------------------------------------

    fn coordinate(&mut self, event: CoordinatorEvent) {
        let actions = self.coordinator.on(event, Instant::now());
        self.carry_out(actions);
    }

    fn carry_out(&mut self, actions: Vec<CoordinatorAction>) {
        for action in actions {
            match action {
                CoordinatorAction::Due => self.on_due(),
                CoordinatorAction::SendBarrier { id, kind } => self.send_barrier(id, kind),
                CoordinatorAction::Store { id } => self.store(id),
                CoordinatorAction::Complete { id } => self.completed(id),
                CoordinatorAction::Fail { id, failure } => self.failed(id, failure),
            }
        }
    }

    /// A periodic checkpoint is due. Positions that have not moved write no row: the newest checkpoint says the same.
    fn on_due(&mut self) {
        let now = Instant::now();
        if !self.pending.resolved().is_empty() || self.live_offsets() != self.last_offsets {
            let actions = self.coordinator.begin_due(now);
            return self.carry_out(actions);
        }
        self.coordinator.skipped(now);
        let commit_is_open = self.commits.counters.last_error.is_some();
        if self.confirmed.elapsed() < CONFIRM_PERIOD && !commit_is_open {
            return;
        }
        self.confirmed = now;
        self.last.confirmed_at = self.run.clock.now();
        let (store, lease, id, at) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.last.id,
            self.last.confirmed_at,
        );
        self.background
            .spawn(async move { Background::Noted(store.confirm(&lease, id, at).await) });
        if !self.commits.is_busy() {
            self.offer_commit(id, self.last_offsets.clone());
        }
    }

    fn live_offsets(&self) -> PartitionOffsets {
        let live = self.partitions.iter().filter_map(|(partition, state)| {
            Some((partition.clone(), state.live.as_ref()?.get()?))
        });
        live.collect()
    }

    fn send_barrier(&mut self, id: CheckpointId, kind: CheckpointKind) {
        self.waiters.append(&mut self.queued_waiters);
        self.attempt = Some(Attempt {
            id,
            kind,
            started_at: self.run.clock.now(),
            prepared: Vec::new(),
            checkpoint: None,
        });
        let barrier = Barrier {
            id,
            sent_at: Instant::now(),
        };
        for subtask in &self.subtasks {
            subtask.barrier.send_replace(Some(barrier));
        }
    }

    fn store(&mut self, id: CheckpointId) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.id == id) else {
            return;
        };
        let mut positions: BTreeMap<TopicPartition, CheckpointPosition> = BTreeMap::new();
        for (partition, state) in &mut self.partitions {
            let snapshot = attempt
                .prepared
                .iter()
                .find_map(|prepared| prepared.positions.get(partition));
            let resolved = self.pending.resolved().get(partition);
            if let (None, Some(resolved)) = (snapshot, resolved) {
                // This checkpoint is the one that decides the position.
                state.position_id = id;
                state.topic_id.clone_from(&resolved.topic_id);
            }
            let next_offset = snapshot
                .copied()
                .or_else(|| resolved.map(|resolved| resolved.offset));
            let (position_id, topic_id) = (state.position_id, state.topic_id.clone());
            positions.insert(
                partition.clone(),
                CheckpointPosition {
                    next_offset,
                    position_id,
                    topic_id,
                },
            );
        }
        let slowest =
            |of: fn(&Prepared) -> Duration| attempt.prepared.iter().map(of).max().map(millis);
        let checkpoint = Checkpoint {
            id,
            kind: attempt.kind,
            epoch: self.run.lease.epoch,
            started_at: attempt.started_at,
            completed_at: self.run.clock.now(),
            phases: CheckpointPhases {
                barrier_ms: slowest(|prepared| prepared.barrier),
                sink_flush_ms: slowest(|prepared| prepared.flush),
                ..CheckpointPhases::default()
            },
            has_output: self.output_before
                || attempt.prepared.iter().any(|prepared| prepared.has_output),
            sink_identity: self.run.sink.identity(),
            positions,
        };
        attempt.checkpoint = Some(checkpoint.clone());
        let (store, lease, problem) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            Arc::clone(&self.store_problem),
        );
        let began = Instant::now();
        self.background.spawn(async move {
            let outcome = until_known(&problem, || store.complete(&lease, &checkpoint)).await;
            Background::Stored {
                id,
                outcome,
                took: began.elapsed(),
            }
        });
    }

    fn on_stored(&mut self, id: CheckpointId, outcome: Result<(), StoreError>, took: Duration) {
        match outcome {
            Ok(()) => {
                if let Some(checkpoint) = self
                    .attempt
                    .as_mut()
                    .and_then(|attempt| attempt.checkpoint.as_mut())
                {
                    checkpoint.phases.store_ms = Some(millis(took));
                }
                self.coordinate(CoordinatorEvent::Stored { id });
            }
            Err(error) => self.fail(store_failure(error)),
        }
    }

    fn completed(&mut self, id: CheckpointId) {
        let attempt = self.attempt.take().filter(|attempt| attempt.id == id);
        let Some(checkpoint) = attempt.and_then(|attempt| attempt.checkpoint) else {
            return;
        };
        self.consecutive_failures = 0;
        self.output_before = false;
        self.confirmed = Instant::now();
        self.last_offsets = checkpoint.offsets();
        let commits = self.commits_to_group();
        let group_commit = if commits {
            GroupCommit::PENDING
        } else {
            GroupCommit::OFF
        };
        self.last = CheckpointSummary {
            id,
            kind: checkpoint.kind,
            completed_at: checkpoint.completed_at,
            confirmed_at: checkpoint.completed_at,
            group_commit: group_commit.clone(),
            phases: checkpoint.phases,
        };
        for (partition, offset) in self.pending.stored(&self.last_offsets) {
            self.assign(partition, offset);
        }
        let report = CheckpointReport {
            id,
            status: "completed".to_owned(),
            completed_at: Some(checkpoint.completed_at),
            group_commit,
            phases: checkpoint.phases,
            failure: None,
        };
        let waiters = std::mem::take(&mut self.waiters);
        if let Some(stopping) = self
            .stopping
            .as_mut()
            .filter(|_| checkpoint.kind == CheckpointKind::Stop)
        {
            stopping.report = Some(report.clone());
            stopping.deadline = stopping.deadline.max(Instant::now() + FINAL_COMMIT);
        }
        self.awaiting_commit.insert(id, (report, waiters));
        if commits {
            self.offer_commit(id, self.last_offsets.clone());
        } else {
            self.commit_is_settled(id, &GroupCommit::OFF, None);
        }
        self.publish();
    }

    fn assign(&mut self, partition: TopicPartition, offset: crate::model::Offset) {
        let Some(state) = self.partitions.get_mut(&partition) else {
            return;
        };
        let live = LivePosition::at(offset);
        state.live = Some(Arc::clone(&live));
        let Some(subtask) = self.subtasks.get(state.subtask as usize) else {
            return;
        };
        tracing::info!(kafka.topic = %partition.topic, kafka.partition = partition.partition, kafka.offset = offset.get(), "a leader answers: the partition begins");
        if subtask
            .new_partitions
            .try_send(NewPartition {
                assignment: (partition, offset),
                live,
            })
            .is_err()
        {
            // 64 partitions wait already, or the subtask is ending: it must not be forgotten, so the job begins again.
            self.fail(JobError::Panicked {
                part: "subtask".to_owned(),
                detail: "it does not take new partitions".to_owned(),
            });
        }
    }

    fn failed(&mut self, id: CheckpointId, mut failure: CheckpointFailure) {
        let Some(attempt) = self.attempt.take().filter(|attempt| attempt.id == id) else {
            return;
        };
        self.name_the_slow_part(&mut failure);
        tracing::warn!(checkpoint.id = %id, code = failure.code, phase = failure.phase, failure.summary, "a checkpoint failed");
        self.consecutive_failures += 1;
        self.output_before |= attempt.prepared.iter().any(|prepared| prepared.has_output);
        self.last_failed = Some((id, failure.clone()));
        let slowest =
            |of: fn(&Prepared) -> Duration| attempt.prepared.iter().map(of).max().map(millis);
        let phases = CheckpointPhases {
            barrier_ms: slowest(|prepared| prepared.barrier),
            sink_flush_ms: slowest(|prepared| prepared.flush),
            ..CheckpointPhases::default()
        };
        let report = failed_report(id, phases, failure.clone());
        for waiter in std::mem::take(&mut self.waiters) {
            // A caller that went away loses only the answer.
            let _unheard = waiter.send(report.clone());
        }
        let failed = FailedCheckpoint {
            id,
            kind: attempt.kind,
            epoch: self.run.lease.epoch,
            started_at: attempt.started_at,
            failed_at: self.run.clock.now(),
            phases,
            failure,
        };
        let (store, lease, problem) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            Arc::clone(&self.store_problem),
        );
        self.background.spawn(async move {
            Background::Noted(until_known(&problem, || store.record_failure(&lease, &failed)).await)
        });
        if attempt.kind == CheckpointKind::Stop {
            self.stop_failed(report);
        }
        self.publish();
    }

    fn name_the_slow_part(&self, failure: &mut CheckpointFailure) {
        let mut worst = None;
        for slow in &mut failure.slowest {
            let Some(subtask) = self.subtasks.get(slow.subtask as usize) else {
                continue;
            };
            let activity = subtask.view.activity();
            slow.at = activity.name().to_owned();
            worst = worst.max(Some(activity as u8));
        }
        if worst == Some(Activity::SinkFlush as u8) {
            failure.phase = "sink_flush".to_owned();
        }
        if worst >= Some(Activity::SinkWrite as u8) {
            failure
                .summary
                .push_str("; the sink had not taken the records");
        }
    }

    fn on_noted(&mut self, outcome: Result<(), StoreError>) {
        match outcome {
            Ok(()) => {}
            // History and housekeeping: the next one is as good.
            Err(StoreError::Unavailable(detail)) => {
                tracing::debug!(detail, "the store does not answer")
            }
            Err(error) => self.fail(store_failure(error)),
        }
    }

    // --- commits to the group ----------------------------------------------------------------------------------------

    fn commits_to_group(&self) -> bool {
        self.run.spec.source.commit_to_group == CommitToGroup::OnCheckpoint
    }

    fn offer_commit(&mut self, id: CheckpointId, offsets: PartitionOffsets) {
        if !self.commits_to_group() {
            return;
        }
        let offered = self.commits.offer(PendingCommit { id, offsets });
        if let Some(displaced) = offered.displaced {
            let outcome = GroupCommit {
                status: GroupCommitStatus::Displaced,
                error: None,
            };
            self.commit_is_settled(displaced, &outcome, None);
        }
        if let Some(commit) = offered.send {
            self.send_commit(commit);
        }
    }

    fn send_commit(&mut self, commit: PendingCommit) {
        let Some(committer) = self.committer.clone() else {
            return;
        };
        let note = group_commits::note(self.run.install, &self.run.name, commit.id);
        self.background.spawn_blocking(move || {
            let began = Instant::now();
            let outcome = group_commits::send(&committer, &commit, &note);
            Background::Committed {
                id: commit.id,
                outcome,
                took: began.elapsed(),
            }
        });
    }

    fn on_committed(&mut self, id: CheckpointId, outcome: &Result<(), KafkaError>, took: Duration) {
        if let Err(error) = outcome {
            tracing::warn!(checkpoint.id = %id, error = %error, "the commit to the group failed; the checkpoint stands");
        }
        let (group_commit, next) = self.commits.ended(id, outcome, self.run.clock.now());
        self.commit_is_settled(id, &group_commit, Some(took));
        if let Some(commit) = next {
            self.send_commit(commit);
        }
        self.publish();
    }

    /// Notes what became of a checkpoint's commit and answers those who waited for it.
    fn commit_is_settled(
        &mut self,
        id: CheckpointId,
        group_commit: &GroupCommit,
        took: Option<Duration>,
    ) {
        if self.last.id == id {
            self.last.group_commit = group_commit.clone();
            self.last.phases.group_commit_ms = took.map(millis);
        }
        let Some((mut report, waiters)) = self.awaiting_commit.remove(&id) else {
            return;
        };
        report.group_commit = group_commit.clone();
        report.phases.group_commit_ms = took.map(millis);
        for waiter in waiters {
            // A caller that went away loses only the answer.
            let _unheard = waiter.send(report.clone());
        }
        let (store, lease, problem) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            Arc::clone(&self.store_problem),
        );
        let (phases, group_commit) = (report.phases, group_commit.clone());
        self.background.spawn(async move {
            let note = || store.record_outcome(&lease, id, &phases, &group_commit);
            Background::Noted(until_known(&problem, note).await)
        });
        let is_last_of_stop = self
            .stopping
            .as_ref()
            .and_then(|stopping| stopping.report.as_ref())
            .is_some_and(|last| last.id == id);
        if is_last_of_stop {
            self.stopped(Some(report));
        }
    }

    // --- status ------------------------------------------------------------------------------------------------------

    fn publish(&self) {
        let partitions = self.partitions.iter().map(|(partition, state)| {
            let position = state.live.as_ref().and_then(|live| live.get());
            (
                partition.clone(),
                LivePartition {
                    subtask: state.subtask,
                    position,
                },
            )
        });
        let sum = |of: fn(&super::fetcher::Counters) -> &std::sync::atomic::AtomicU64| {
            self.subtasks
                .iter()
                .map(|subtask| of(&subtask.view.counters).load(Ordering::Relaxed))
                .sum()
        };
        let uncertain = self
            .store_problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        let status = JobStatus {
            epoch: self.run.lease.epoch,
            since: self.since,
            observed_at: self.run.clock.now(),
            stopping: self.stopping.is_some(),
            partitions: Arc::new(partitions.collect()),
            records: sum(|counters| &counters.records),
            bytes: sum(|counters| &counters.bytes),
            redelivered: sum(|counters| &counters.redelivered),
            last_checkpoint: Some(self.last.clone()),
            in_progress: self.attempt.as_ref().map(|attempt| AttemptInProgress {
                id: attempt.id,
                kind: attempt.kind,
                started_at: attempt.started_at,
                uncertain: attempt.checkpoint.is_some() && uncertain,
            }),
            last_failed: self.last_failed.clone(),
            consecutive_failures: self.consecutive_failures,
            commits: self.commits.counters.clone(),
            waiting: self.waiting.values().cloned().collect(),
        };
        self.status.send_replace(Arc::new(status));
    }
}

/// Repeats a protected write until the store has said yes or no. Every one of them may be repeated after an unknown outcome.
async fn until_known<F, Fut>(
    problem: &Mutex<Option<String>>,
    mut write: F,
) -> Result<(), StoreError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), StoreError>>,
{
    let mut backoff = Backoff::up_to(STORE_PAUSE);
    let note =
        |detail: Option<String>| *problem.lock().unwrap_or_else(PoisonError::into_inner) = detail;
    loop {
        match write().await {
            Err(StoreError::Unavailable(detail)) => {
                note(Some(detail));
                backoff.wait().await;
            }
            known => {
                note(None);
                return known;
            }
        }
    }
}

fn store_failure(error: StoreError) -> JobError {
    match error {
        StoreError::Fenced => JobError::Fenced,
        StoreError::Unavailable(detail) | StoreError::Refused(detail) => JobError::Store(detail),
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
