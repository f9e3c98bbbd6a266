//! A server as far as one job is concerned: its sign of life, and the road from the lease to a run.
//!
//! The order of the steps is that of `service/job_task.rs` and `service/lease_keeper.rs`, which talk to PostgreSQL and cannot
//! be moved here: fence, read, decide, store, assign. Everything that decides is theirs: [`Intent`], [`gather`],
//! [`StartQuestion`], [`start_checkpoint`], [`judge`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    broker::{ModelCluster, TOPIC},
    judge::{Licence, OnBad},
    letters::ModelLetters,
    sink::ModelSink,
    store::{Asked, Incarnation, ModelStore, Operation, Row, Settled},
    world::{Defect, ServerId, World, WorldClock},
};
use crate::{
    engine::{
        JobEnd, JobHandle, JobRun,
        backoff::pause_after,
        error::{ConsumerError, ErrorClass, JobError, SinkError, StoreError},
        ports::{DeadLetterTopic, JobLease, KafkaCluster, LeaseHealth, Sink},
    },
    model::{
        checkpoint::{Checkpoint, CheckpointKind, CheckpointPosition},
        code::Code,
        ids::{InstallId, JobName},
        job::{JobSpec, PositionPolicy},
        job_state::{DesiredState, JobState},
        limits::LimitsSpec,
        offset::Offset,
        resolver::{
            Parking, PlannedParking, ProgressFacts, ResolvedStart, SinkFacts, SinkProgress,
            StartReason,
        },
        skip::{SkipVerdict, judge},
        start::{StartRequest, StopCheckpoint},
        stop_at::BoundedRun,
        topic::TopicPartition,
    },
    service::{
        sink_progress,
        skip::position_in,
        start_plans::{Beyond, Intent, StartQuestion, StartState, gather, start_checkpoint},
    },
};

/// How long a server's sign of life counts.
pub(super) const TTL: Duration = Duration::from_secs(6);
/// The pause after a renewal that failed.
const RETRY: Duration = Duration::from_millis(500);
/// The longest pause before an end is written again.
const LAST_SETTLE_PAUSE: Duration = Duration::from_secs(5);
/// What a run may take to end beyond the time of its stop.
const CLOSING: Duration = Duration::from_secs(20);

/// Where a run begins and ends.
struct Begin {
    start: Checkpoint,
    reasons: BTreeMap<TopicPartition, StartReason>,
    parked: BTreeMap<TopicPartition, PlannedParking>,
    bounded: Option<BoundedRun>,
}

/// Why a step did not succeed.
enum Trouble {
    Fenced,
    Interrupted,
    Refused(Vec<Code>),
}

type Step<T> = Result<T, Trouble>;

/// One life of a server.
pub(super) struct Server {
    world: Arc<World>,
    me: Incarnation,
    spec: JobSpec,
    store: Arc<ModelStore>,
    once: bool,
    refuses_letters: bool,
    health: Arc<watch::Sender<LeaseHealth>>,
    /// Until when nobody else can have the job, as far as this server knows.
    lease_until: Arc<watch::Sender<Instant>>,
    stopping: CancellationToken,
    lease: Option<JobLease>,
    run: Option<JobHandle>,
    tasks: JoinSet<()>,
    restarts: u32,
    start_at: Instant,
    began: Instant,
}

impl Server {
    pub(super) fn new(
        world: &Arc<World>,
        me: Incarnation,
        spec: JobSpec,
        (once, refuses_letters): (bool, bool),
        stopping: CancellationToken,
        began: Instant,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            me,
            spec,
            store: Arc::new(ModelStore {
                world: Arc::clone(world),
                server: me.server,
            }),
            once,
            refuses_letters,
            health: Arc::new(watch::Sender::new(LeaseHealth::Held)),
            lease_until: Arc::new(watch::Sender::new(began)),
            stopping,
            lease: None,
            run: None,
            tasks: JoinSet::new(),
            restarts: 0,
            start_at: Instant::now(),
            began,
        }
    }

    fn server(&self) -> ServerId {
        self.me.server
    }

    /// From the claim of its name to its end as asked.
    pub(super) async fn live(mut self) {
        let me = self.me;
        let asked_at = loop {
            let asked_at = Instant::now();
            let claim = self.store.ask(move |state| {
                state.store.claim_instance(me, TTL);
                Ok(())
            });
            if claim.await.is_ok() {
                break asked_at;
            }
            if self.stopping.is_cancelled() {
                return;
            }
            sleep(RETRY).await;
        };
        let keeper = keep_lease(
            Arc::clone(&self.store),
            me,
            asked_at,
            (Arc::clone(&self.health), Arc::clone(&self.lease_until)),
            self.stopping.clone(),
        );
        self.lease_until.send_replace(asked_at + TTL);
        self.tasks.spawn(keeper);
        self.work().await;
        let released = self.store.ask(move |state| {
            state.store.release_instance(me);
            Ok(())
        });
        drop(released.await);
    }

    async fn work(&mut self) {
        loop {
            if self.stopping.is_cancelled() {
                return self.shut_down().await;
            }
            self.look().await;
            let pause = {
                let mut state = self.world.state();
                Duration::from_millis(state.chance.u64(50..1_000))
            };
            let run = self.run.clone();
            let ended = async {
                match &run {
                    Some(run) => run.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => {}
                end = ended => self.run_ended(end).await,
                () = sleep(pause) => self.trigger_now_and_then(),
            }
        }
    }

    /// Somebody asks for a checkpoint and does not wait for it.
    fn trigger_now_and_then(&mut self) {
        let Some(run) = self.run.clone() else {
            return;
        };
        if self.world.state().happens(15) {
            self.tasks.spawn(async move {
                drop(run.trigger_checkpoint(None).await);
            });
        }
    }

    async fn look(&mut self) {
        let me = self.me;
        let read = self.store.ask(move |state| Ok(state.store.row(me)));
        let Ok(row) = read.await else {
            return;
        };
        if row.owned_by_other && self.run.is_none() {
            return;
        }
        self.show_parked();
        let may_start = Instant::now() >= self.start_at;
        match row.operation.clone() {
            Some(operation) => match &operation.asked {
                Asked::Stop(how, time) => self.stop(&operation, *how, *time, &row).await,
                Asked::Start(_) if self.run.is_some() => self.finish(&operation).await,
                Asked::Start(request) if may_start => {
                    self.start(&row, Some((&operation, request))).await;
                }
                Asked::Skip(request) if self.run.is_some() => {
                    if let Some(run) = self.run.clone() {
                        let at = request.topic_partition();
                        let skipped = run.skip(at, request.offset);
                        drop(timeout(Duration::from_secs(10), skipped).await);
                    }
                    self.finish(&operation).await;
                }
                Asked::Skip(_) if may_start => self.skip(&row, &operation).await,
                Asked::Start(_) | Asked::Skip(_) => {}
            },
            None if self.run.is_some() => {}
            None => match (row.desired, row.state) {
                (_, JobState::Failed)
                | (DesiredState::Stopped, JobState::Stopped | JobState::Finished) => {}
                (DesiredState::Running, _) if may_start => self.start(&row, None).await,
                (DesiredState::Running, _) => {}
                (DesiredState::Stopped, _) => self.settle_leftovers(&row).await,
            },
        }
    }

    fn show_parked(&self) {
        let parked = match &self.run {
            Some(run) => {
                let status = run.status();
                self.world.state().judge_watermarks(&status);
                let parked = status.parked.iter().map(|(at, parked)| {
                    let stands = parked.offset.map(Offset::get);
                    (at.partition, (parked.code, stands))
                });
                parked.collect()
            }
            None => BTreeMap::new(),
        };
        self.world.state().judge.parked = parked;
    }

    // Starts.

    async fn start(&mut self, row: &Row, asked: Option<(&Operation, &StartRequest)>) {
        match self.try_start(row, asked).await {
            Ok(()) => {
                if let Some((operation, _)) = asked {
                    self.finish(operation).await;
                }
            }
            Err(Trouble::Interrupted) => {}
            Err(Trouble::Fenced) => {
                self.lease = None;
                self.start_later();
            }
            Err(Trouble::Refused(codes)) => {
                self.world
                    .state()
                    .trace
                    .note(format_args!("the start is refused: {codes:?}"));
                let mut settled = Settled {
                    state: JobState::Failed,
                    failure: Some((codes[0], None)),
                    operation: asked.map(|(operation, _)| operation.id),
                    desired: None,
                };
                let was_finished = row.state == JobState::Finished && asked.is_some();
                if was_finished || codes.contains(&Code::RunFinished) {
                    // A start that is refused leaves the job as it was.
                    settled.state = JobState::Finished;
                    settled.failure = None;
                    settled.desired = Some(DesiredState::Stopped);
                }
                self.settle(settled).await;
            }
        }
    }

    fn start_later(&mut self) {
        self.start_at = Instant::now() + pause_after(self.restarts);
        self.restarts += 1;
    }

    async fn try_start(
        &mut self,
        row: &Row,
        asked: Option<(&Operation, &StartRequest)>,
    ) -> Step<()> {
        let lease = self.own().await?;
        let (sink, progress) = self.claim_sink(lease).await?;
        let done_before = asked.is_some_and(|(operation, _)| operation.stored);
        let plain = StartRequest::auto();
        let request = asked.map_or(&plain, |(_, request)| request);
        let intent = if asked.is_some() && !done_before {
            Intent::of_operator(request, row.pending_start.as_ref())
        } else {
            let by_server = self.world.state().has(Defect::OneShotUsedByServer);
            if by_server {
                Intent::of_operator(&plain, row.pending_start.as_ref())
            } else {
                Intent::automatic()
            }
        };
        let cluster = self.cluster(lease);
        let resolved = self
            .decide(
                &cluster,
                &*sink,
                &progress,
                (request, asked.is_none() || done_before),
                &intent,
            )
            .await?;
        if !resolved.blockers.is_empty() {
            return Err(self.blocked(lease, &resolved, asked.is_some()));
        }
        let checkpoint = self
            .checkpoint_of(lease, &resolved, &progress, &*sink)
            .await?;
        let mut licence = Licence::default();
        for planned in &resolved.partitions {
            let stored = planned.start_at.or(planned.kept).map(Offset::get);
            licence
                .planned
                .insert(planned.partition, (stored, planned.reason));
        }
        if asked.is_some() && !done_before && intent.from.name() != "auto" {
            let covered = intent.partitions.as_ref();
            let moves = resolved.partitions.iter().filter(|planned| {
                covered.is_none_or(|covered| covered.contains(&planned.topic_partition()))
            });
            licence.moves = moves
                .map(|planned| planned.partition)
                .collect::<BTreeSet<_>>();
        }
        let key = (lease.epoch.0, checkpoint.id);
        self.world.state().judge.licences.insert(key, licence);
        let (consumes, sets_aside) = (intent.consumes.clone(), resolved.sets_state_aside());
        let operation = asked.map(|(operation, _)| operation.id);
        let now = crate::engine::ports::Clock::now(&WorldClock(self.began));
        let bounded = resolved.bounded_run(checkpoint.id, now);
        let (stored, run) = (checkpoint.clone(), bounded.clone());
        self.insist_on(&lease, move |state, epoch| {
            let consumes = consumes.as_deref();
            state.store_start(epoch, &stored, consumes, sets_aside, operation, run.clone())
        })
        .await?;
        let reasons = resolved.partitions.iter();
        let reasons = reasons.map(|planned| (planned.topic_partition(), planned.reason));
        let begin = Begin {
            start: checkpoint,
            reasons: reasons.collect(),
            parked: resolved.parked(),
            bounded,
        };
        self.spawn(lease, begin, sink, cluster);
        Ok(())
    }

    fn cluster(&self, lease: JobLease) -> Arc<dyn KafkaCluster> {
        Arc::new(ModelCluster {
            world: Arc::clone(&self.world),
            server: self.server(),
            epoch: lease.epoch.0,
        })
    }

    async fn own(&mut self) -> Step<JobLease> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let me = self.me;
        let mut attempts = 0;
        loop {
            let taken = self
                .store
                .ask(move |state| state.store.take_lease(me))
                .await;
            match taken {
                Ok(Some(lease)) => {
                    let (server, epoch) = (self.server(), lease.epoch);
                    self.world
                        .state()
                        .trace
                        .note(format_args!("server {server} has the lease e{epoch}"));
                    self.lease = Some(lease);
                    return Ok(lease);
                }
                Err(StoreError::Fenced) => return Err(Trouble::Fenced),
                Ok(None) | Err(_) => self.pause(&mut attempts).await?,
            }
        }
    }

    async fn claim_sink(&self, lease: JobLease) -> Step<(Arc<dyn Sink>, SinkProgress)> {
        let sink = Arc::new(ModelSink::new(&self.world, self.server(), self.once));
        let mut attempts = 0;
        loop {
            match sink.recover(lease.epoch).await {
                Ok(progress) => return Ok((sink, progress)),
                Err(SinkError {
                    code: Code::LeaseLost,
                    ..
                }) => return Err(Trouble::Fenced),
                Err(_) => self.pause(&mut attempts).await?,
            }
        }
    }

    async fn decide(
        &self,
        cluster: &Arc<dyn KafkaCluster>,
        sink: &dyn Sink,
        progress: &SinkProgress,
        (request, nobody_asks): (&StartRequest, bool),
        intent: &Intent,
    ) -> Step<ResolvedStart> {
        let mut facts_of_sink = sink_progress::claimed(sink, progress.clone());
        if self.world.state().has(Defect::SinkProgressIgnored) {
            facts_of_sink = SinkFacts {
                progress: ProgressFacts::NotKept,
                ..facts_of_sink
            };
        }
        let mut attempts = 0;
        let state = loop {
            let is_bounded = self.spec.source.stop_at.is_some();
            let read = self.store.ask(move |state| {
                let anew = state.has(Defect::EndsDecidedAnew);
                let run = state.store.bounded.clone();
                let run = run.filter(|_| is_bounded && !anew);
                Ok((state.store.restorable(), run))
            });
            match read.await {
                Ok((newest, run)) => {
                    break StartState {
                        newest,
                        chosen: None,
                        // The simulated job takes checkpoints.
                        left: None,
                        outdated: None,
                        read: None,
                        run,
                        // Nor does its spec ever name another target.
                        beyond: Beyond::Nothing,
                    };
                }
                Err(_) => self.pause(&mut attempts).await?,
            }
        };
        let question = StartQuestion {
            spec: &self.spec,
            request,
            intent,
            state: &state,
            sink: &facts_of_sink,
            parking: Parking::of(self.spec.errors.block, &[], nobody_asks),
        };
        let clock = WorldClock(self.began);
        let mut attempts = 0;
        loop {
            let now = crate::engine::ports::Clock::now(&clock);
            match gather(&**cluster, &question, now).await {
                Ok(facts) => return Ok(question.resolve(&facts)),
                Err(_) => self.pause(&mut attempts).await?,
            }
        }
    }

    /// Nobody tampers with anything here, so few things may ever stand against a start. One that lost its lease meanwhile
    /// compares what it read at different times; the refusal cannot be stored.
    fn blocked(&self, lease: JobLease, resolved: &ResolvedStart, by_operator: bool) -> Trouble {
        let codes: Vec<Code> = resolved
            .blockers
            .iter()
            .map(|blocker| blocker.code)
            .collect();
        let unsettled = self.world.state().broker.was_unsettled;
        let is_bounded = self.spec.source.stop_at.is_some();
        let may_be = |code: &Code| {
            let of_topic = [
                Code::TopicRecreated,
                Code::UnknownTopic,
                Code::UnknownPartition,
            ];
            *code == Code::OffsetOutOfRange
                || (by_operator && matches!(code, Code::NoLeader | Code::GroupMissing))
                || (unsettled && of_topic.contains(code))
                // One that another server has finished while this one made up its mind, too.
                || (is_bounded && matches!(code, Code::StopOffsetUnknown | Code::RunFinished))
        };
        let is_owner = self.world.state().store.epoch == lease.epoch.0;
        if is_owner && !codes.iter().all(may_be) {
            self.world.state().violation(format_args!(
                "plan: a start is blocked though nobody tampered: {:?}",
                resolved.blockers
            ));
        }
        Trouble::Refused(codes)
    }

    async fn checkpoint_of(
        &self,
        lease: JobLease,
        resolved: &ResolvedStart,
        progress: &SinkProgress,
        sink: &dyn Sink,
    ) -> Step<Checkpoint> {
        let mut attempts = 0;
        let next = loop {
            match self.store.ask(|state| Ok(state.store.next_id())).await {
                Ok(next) => break next,
                Err(_) => self.pause(&mut attempts).await?,
            }
        };
        let seen = progress.values().map(|sink| sink.position_id.next()).max();
        let id = seen.map_or(next, |seen| seen.max(next));
        let now = crate::engine::ports::Clock::now(&WorldClock(self.began));
        Ok(start_checkpoint(
            resolved,
            id,
            lease.epoch,
            sink.identity(),
            now,
        ))
    }

    fn spawn(
        &mut self,
        lease: JobLease,
        begin: Begin,
        sink: Arc<dyn Sink>,
        kafka: Arc<dyn KafkaCluster>,
    ) {
        let mut spec = self.spec.clone();
        let ends = begin.bounded.as_ref().map(BoundedRun::stop_offsets);
        let (on_bad, ends) = {
            let state = self.world.state();
            if state.has(Defect::LimitIgnored) {
                spec.limits = LimitsSpec::default();
            }
            if state.has(Defect::MovesUnasked) {
                spec.source.on_out_of_range = PositionPolicy::Earliest;
            }
            let too_far = i64::from(state.has(Defect::ReadsBeyondEnd));
            let ends = ends.map(|ends| {
                let further = ends.into_iter().map(|(at, end)| {
                    let end = super::broker::offset(end.get() + too_far);
                    (at, end)
                });
                further.collect()
            });
            (state.judge.on_bad, ends)
        };
        let letters = ModelLetters {
            world: Arc::clone(&self.world),
            server: self.server(),
            refuses: self.refuses_letters,
        };
        let letters: Arc<dyn DeadLetterTopic> = Arc::new(letters);
        let (handle, run) = JobHandle::in_tasks(JobRun {
            name: JobName::new("orders").unwrap(),
            install: InstallId(uuid::Uuid::nil()),
            spec,
            lease,
            start: begin.start,
            reasons: begin.reasons,
            parked: begin.parked,
            ends,
            kafka,
            sink,
            dead_letters: (on_bad == OnBad::Letter).then_some(letters),
            store: Arc::clone(&self.store) as _,
            clock: Arc::new(WorldClock(self.began)),
            lease_health: self.health.subscribe(),
            lease_until: self.lease_until.subscribe(),
        });
        self.tasks.spawn(run);
        self.run = Some(handle);
        self.restarts = 0;
    }

    // Skips.

    async fn skip(&mut self, row: &Row, operation: &Operation) {
        let Asked::Skip(request) = &operation.asked else {
            return;
        };
        let ended = async {
            let lease = self.own().await?;
            let (sink, progress) = self.claim_sink(lease).await?;
            let cluster = self.cluster(lease);
            let (plain, intent) = (StartRequest::auto(), Intent::automatic());
            let resolved = self
                .decide(&cluster, &*sink, &progress, (&plain, true), &intent)
                .await?;
            let stands_at = position_in(&resolved, request).unwrap_or(None);
            let verdict = judge(
                request,
                stands_at,
                &row.failed_record.iter().collect::<Vec<_>>(),
            );
            let checkpoint = match verdict {
                SkipVerdict::Skip(next) if resolved.blockers.is_empty() => {
                    let mut checkpoint = self
                        .checkpoint_of(lease, &resolved, &progress, &*sink)
                        .await?;
                    checkpoint.kind = CheckpointKind::Skip;
                    let id = checkpoint.id;
                    let two = self.world.state().has(Defect::SkipsTwo);
                    let next = if two {
                        super::broker::offset(next.get() + 1)
                    } else {
                        next
                    };
                    let moved = |position: &mut CheckpointPosition| {
                        position.next_offset = Some(next);
                        position.position_id = id;
                    };
                    let at = request.topic_partition();
                    checkpoint.positions.entry(at).and_modify(moved);
                    Some(checkpoint)
                }
                SkipVerdict::Skip(_) | SkipVerdict::Passed | SkipVerdict::NotThere(_) => None,
            };
            let id = operation.id;
            let stored = self.insist_on(&lease, move |state, epoch| {
                state.end_skip(epoch, id, checkpoint.as_ref())
            });
            stored.await
        };
        match ended.await {
            Ok(()) => self.lease = None,
            Err(Trouble::Fenced) => {
                self.lease = None;
                self.start_later();
            }
            Err(Trouble::Interrupted | Trouble::Refused(_)) => {}
        }
    }

    // Ends.

    async fn run_ended(&mut self, end: JobEnd) {
        self.run = None;
        let error = match end {
            JobEnd::Failed(error) => error,
            JobEnd::Finished(_) if self.spec.source.stop_at.is_some() => {
                return self.settle(finished(None)).await;
            }
            JobEnd::Stopped(_) | JobEnd::Finished(_) => {
                self.world
                    .state()
                    .violation(format_args!("I9: a run ended without being asked to"));
                return self.start_later();
            }
        };
        self.note_failure(&error);
        if self.world.state().has(Defect::NoRestart) {
            self.start_at = Instant::now() + Duration::from_secs(1_000_000);
            return;
        }
        match &error {
            JobError::Fenced => {
                self.lease = None;
                self.start_later();
            }
            JobError::Consumer(ConsumerError::Kafka(cause))
                if cause.class == ErrorClass::Infrastructure =>
            {
                self.restart().await;
            }
            JobError::Sink(cause) if cause.class == ErrorClass::Infrastructure => {
                self.restart().await;
            }
            JobError::Decode { .. }
            | JobError::DeadLetter { .. }
            | JobError::Consumer(_)
            | JobError::Sink(_)
            | JobError::Store(_)
            | JobError::Panicked { .. } => {
                let settled = self.failed(&error);
                self.settle(settled).await;
            }
        }
    }

    fn failed(&self, error: &JobError) -> Settled {
        let now = crate::engine::ports::Clock::now(&WorldClock(self.began));
        let failure = error.failure(now);
        Settled {
            state: JobState::Failed,
            failure: Some((failure.code, failure.record)),
            operation: None,
            desired: None,
        }
    }

    /// A run may end for few reasons here.
    fn note_failure(&self, error: &JobError) {
        let mut state = self.world.state();
        state
            .trace
            .note(format_args!("server {} run ended: {error}", self.me.server));
        let is_known = match error {
            JobError::Fenced
            | JobError::Decode { .. }
            | JobError::Consumer(ConsumerError::OutOfRange { .. }) => true,
            JobError::DeadLetter { .. } => self.refuses_letters,
            JobError::Consumer(ConsumerError::TopicRecreated { .. }) => state.broker.was_unsettled,
            JobError::Consumer(ConsumerError::Kafka(_) | ConsumerError::TopicUnknown { .. })
            | JobError::Sink(_)
            | JobError::Store(_)
            | JobError::Panicked { .. } => false,
        };
        if !is_known {
            state.violation(format_args!("I8: a run ended with: {error}"));
        }
    }

    async fn restart(&mut self) {
        let settled = Settled {
            state: JobState::Stopped,
            failure: None,
            operation: None,
            desired: None,
        };
        self.settle(settled).await;
        self.start_later();
    }

    // Stops.

    async fn stop(
        &mut self,
        operation: &Operation,
        how: StopCheckpoint,
        time: Duration,
        row: &Row,
    ) {
        let mut settled = Settled {
            state: JobState::Stopped,
            failure: None,
            operation: Some(operation.id),
            desired: Some(DesiredState::Stopped),
        };
        if let Some(run) = self.run.clone() {
            let asked_at = Instant::now();
            let ended = run.stop(how, time).await;
            let took = asked_at.elapsed();
            if took > time + CLOSING {
                self.world
                    .state()
                    .violation(format_args!("I7: a stop of {time:?} took {took:?}"));
            }
            match ended {
                Err(refused) => {
                    self.world.state().trace.note(format_args!(
                        "the stop is refused: {}",
                        refused.checkpoint.status
                    ));
                    let id = operation.id;
                    let gone_on = self.store.ask(move |state| {
                        state.store.desired = DesiredState::Running;
                        state.store.finish(id);
                        Ok(())
                    });
                    drop(gone_on.await);
                    return;
                }
                Ok(JobEnd::Stopped(outcome)) => self.judge_stop(&run, &outcome),
                Ok(JobEnd::Finished(outcome)) => {
                    self.judge_stop(&run, &outcome);
                    settled = finished(Some(operation.id));
                }
                Ok(JobEnd::Failed(error)) => {
                    self.note_failure(&error);
                    if matches!(error, JobError::Fenced) {
                        self.lease = None;
                    } else if how == StopCheckpoint::Required {
                        self.run = None;
                        let settled = Settled {
                            operation: Some(operation.id),
                            ..self.failed(&error)
                        };
                        return self.settle(settled).await;
                    }
                }
            }
            self.run = None;
        } else if row.is_running {
            let Ok(lease) = self.own().await else {
                return;
            };
            // A dead owner is kept out of the sink, as far as the time allows.
            drop(timeout(time, self.claim_sink(lease)).await);
        } else if row.state == JobState::Finished {
            // There is nothing to stop.
            settled.state = row.state;
        }
        self.settle(settled).await;
    }

    /// A stop says what is left to be read again.
    fn judge_stop(&self, run: &JobHandle, outcome: &crate::engine::StopOutcome) {
        let mut state = self.world.state();
        state.trace.note(format_args!(
            "stopped: {:?} replay {:?}",
            outcome
                .checkpoint
                .as_ref()
                .map(|last| (last.id, last.status.clone())),
            outcome.will_replay
        ));
        if outcome.leaked_threads > 0 {
            // A commit that nobody answered in time.
            state.trace.note(format_args!("a commit is left to itself"));
        }
        let Some(last) = &outcome.checkpoint else {
            return;
        };
        let stored = state.store.completed.get(&last.id).cloned();
        let completed = last.status == "completed";
        if completed != last.failure.is_none() {
            state.violation(format_args!("I7: a stop reports {last:?}"));
        }
        if completed && stored.is_none() {
            state.violation(format_args!(
                "I7: a stop reports checkpoint {}, which is not stored",
                last.id
            ));
        }
        if let (true, Some(stored)) = (completed, stored) {
            let live: i64 = run
                .status()
                .partitions
                .iter()
                .filter_map(|(at, live)| {
                    let saved = stored.positions.get(at)?.next_offset?;
                    Some(live.position?.distance_from(saved))
                })
                .sum();
            if outcome.will_replay.is_some_and(|said| said != live) || live != 0 {
                state.violation(format_args!(
                    "I7: a stop with checkpoint {} says {:?} will be read again, it is {live}",
                    last.id, outcome.will_replay
                ));
            }
        }
    }

    async fn settle_leftovers(&mut self, row: &Row) {
        let Ok(lease) = self.own().await else {
            return;
        };
        if row.is_running {
            drop(timeout(Duration::from_secs(60), self.claim_sink(lease)).await);
        }
        let settled = Settled {
            state: JobState::Stopped,
            failure: None,
            operation: None,
            desired: Some(DesiredState::Stopped),
        };
        self.settle(settled).await;
    }

    async fn shut_down(&mut self) {
        let mut settled = Settled {
            state: JobState::Stopped,
            failure: None,
            operation: None,
            desired: None,
        };
        if let Some(run) = self.run.take() {
            let stop = run.stop(StopCheckpoint::BestEffort, Duration::from_secs(10));
            match timeout(Duration::from_secs(40), stop).await {
                Ok(Ok(JobEnd::Stopped(outcome))) => self.judge_stop(&run, &outcome),
                Ok(Ok(JobEnd::Finished(outcome))) => {
                    self.judge_stop(&run, &outcome);
                    settled = finished(None);
                }
                Ok(Ok(JobEnd::Failed(error))) => self.note_failure(&error),
                Ok(Err(_)) => {}
                Err(_elapsed) => self
                    .world
                    .state()
                    .violation(format_args!("I7: a shutdown's stop did not return")),
            }
        }
        let Some(lease) = self.lease else {
            return;
        };
        if settled.state == JobState::Stopped
            && self.world.state().store.state == JobState::Finished
        {
            return;
        }
        let settle = self
            .store
            .write(&lease, move |state, epoch| state.settle(epoch, &settled));
        drop(settle.await);
    }

    /// Writes the end of a run until it is stored; without a lease one is taken for it.
    async fn settle(&mut self, settled: Settled) {
        let mut attempts = 0;
        loop {
            if self.stopping.is_cancelled() {
                return;
            }
            let lease = match self.lease {
                Some(lease) => lease,
                None if settled.desired.is_none() => return,
                None => match self.own().await {
                    Ok(lease) => lease,
                    Err(_) => return,
                },
            };
            let asked = settled.clone();
            let stored = self
                .store
                .write(&lease, move |state, epoch| state.settle(epoch, &asked));
            match stored.await {
                Ok(()) => {
                    self.lease = None;
                    return;
                }
                Err(StoreError::Fenced) => self.lease = None,
                Err(_) => {
                    sleep(pause_after(attempts).min(LAST_SETTLE_PAUSE)).await;
                    attempts += 1;
                }
            }
        }
    }

    async fn finish(&self, operation: &Operation) {
        let id = operation.id;
        for attempts in 0.. {
            let finished = self.store.ask(move |state| {
                state.store.finish(id);
                Ok(())
            });
            if finished.await.is_ok() || self.stopping.is_cancelled() {
                return;
            }
            sleep(pause_after(attempts).min(LAST_SETTLE_PAUSE)).await;
        }
    }

    // Waiting.

    async fn insist_on(
        &self,
        lease: &JobLease,
        write: impl FnOnce(&mut super::world::State, i64) -> Result<(), StoreError>
        + Clone
        + Send
        + 'static,
    ) -> Step<()> {
        let mut attempts = 0;
        loop {
            match self.store.write(lease, write.clone()).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Fenced) => return Err(Trouble::Fenced),
                Err(StoreError::Unavailable(_)) => self.pause(&mut attempts).await?,
                Err(error) => {
                    self.world
                        .state()
                        .violation(format_args!("the store refuses: {error}"));
                    return Err(Trouble::Fenced);
                }
            }
        }
    }

    /// The pause before the next attempt, unless a stop or a shutdown takes precedence.
    async fn pause(&self, attempts: &mut u32) -> Step<()> {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => return Err(Trouble::Interrupted),
            () = sleep(pause_after(*attempts)) => {}
        }
        *attempts += 1;
        let is_called_off = {
            let state = self.world.state();
            let open = state.store.operation.as_ref();
            open.is_some_and(|open| matches!(open.asked, Asked::Stop(..)))
        };
        if is_called_off && self.run.is_none() {
            return Err(Trouble::Interrupted);
        }
        Ok(())
    }
}

/// As `lease_keeper::renew`.
async fn keep_lease(
    store: Arc<ModelStore>,
    me: Incarnation,
    claimed_at: Instant,
    (health, until): (Arc<watch::Sender<LeaseHealth>>, Arc<watch::Sender<Instant>>),
    stopping: CancellationToken,
) {
    let publish = |now: LeaseHealth| {
        health.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    };
    let mut renewed_at = claimed_at;
    let mut next = claimed_at + TTL / 3;
    loop {
        sleep_until(next).await;
        let sent_at = Instant::now();
        let doubtful_at = renewed_at + TTL * 2 / 3;
        let give_up_at = if doubtful_at > sent_at {
            doubtful_at.min(sent_at + TTL / 3)
        } else {
            sent_at + TTL / 3
        };
        let renewal = store.ask(move |state| Ok(state.store.renew(me, TTL)));
        match timeout_at(give_up_at, renewal).await {
            Ok(Ok(true)) => {
                renewed_at = sent_at;
                next = sent_at + TTL / 3;
                until.send_replace(sent_at + TTL);
                publish(LeaseHealth::Held);
                continue;
            }
            // Another life has the name: the server ends.
            Ok(Ok(false) | Err(StoreError::Fenced)) => {
                publish(LeaseHealth::Lost);
                return stopping.cancel();
            }
            Ok(Err(_)) | Err(_) => {}
        }
        if Instant::now() >= doubtful_at {
            publish(LeaseHealth::Doubtful("no renewal".to_owned()));
        }
        next = (Instant::now() + RETRY)
            .min(sent_at + TTL / 3)
            .max(Instant::now());
    }
}

/// A bounded run has come to its ends.
fn finished(operation: Option<u64>) -> Settled {
    Settled {
        state: JobState::Finished,
        failure: None,
        operation,
        desired: Some(DesiredState::Stopped),
    }
}

/// What a scenario says of its job.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) parallelism: u32,
    pub(super) mode: serde_json::Value,
    pub(super) interval_ms: u64,
    pub(super) block: &'static str,
    pub(super) on_bad: OnBad,
    pub(super) by_pattern: bool,
    pub(super) look_every_s: u64,
    pub(super) on_out_of_range: &'static str,
    pub(super) on_recreated: &'static str,
    pub(super) stop_at: Option<serde_json::Value>,
    pub(super) records_per_s: Option<u64>,
    pub(super) watermark: serde_json::Value,
}

/// The document of the job.
pub(super) fn spec(wish: &Wish) -> JobSpec {
    let on_bad = match wish.on_bad {
        OnBad::Stop => serde_json::json!({"policy": "stop"}),
        OnBad::Skip => serde_json::json!({"policy": "skip"}),
        OnBad::Letter => {
            serde_json::json!({"policy": "dead-letter", "connection": "main", "topic": "letters"})
        }
    };
    let mut document = serde_json::json!({
        "source": {"connection": "main", "format": "json", "on_missing_group_offset": "earliest",
                   "partition_discovery": {"interval": format!("{}s", wish.look_every_s)},
                   "on_out_of_range": wish.on_out_of_range, "on_topic_recreated": wish.on_recreated,
                   "stop_at": wish.stop_at},
        "startup_mode": wish.mode,
        "errors": {"block": wish.block, "on_bad_record": on_bad},
        "limits": {"records_per_s": wish.records_per_s},
        "watermark": wish.watermark,
        "sink": {"type": "blackhole"},
    });
    let source = &mut document["source"];
    if wish.by_pattern {
        source["topic_pattern"] = serde_json::json!("ord.*");
    } else {
        source["topics"] = serde_json::json!([TOPIC]);
    }
    let name = JobName::new("orders").unwrap();
    let mut spec = JobSpec::read(&name, &document).unwrap();
    spec.parallelism = wish.parallelism;
    let interval = Duration::from_millis(wish.interval_ms);
    spec.checkpoint.interval = Some(crate::model::HumanDuration(interval));
    spec.checkpoint.timeout = crate::model::HumanDuration(Duration::from_secs(8));
    spec
}
