//! Carries out what is asked of one job: starts, stops, checkpoints, and the restart after a crash of the server.
//!
//! What is asked stands in the store; the task reads it there when it is woken, so nothing is lost with a process. A start
//! takes the lease first and decides afterwards (fence, then read, then decide); whatever it waits for outside is waited
//! for without end, and a stop or a shutdown takes precedence at each of these waits.

mod delete;
mod reset;
mod restart;
mod skip;

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    comparison::totals,
    core::{Core, JobEntry},
    error::ServiceError,
    jobs::compare_now,
    monitor::refresh_checkpoint,
    next_steps::RefusedStart,
    operations::already_running,
    sink_progress::{self, make_sink},
    start_plans::{
        Intent, StartQuestion, StartState, gather, plan_stale, start_checkpoint, what_changed,
        what_changed_outside,
    },
    stop_reports::{SinkEnd, claim},
};
pub(crate) use restart::StoredRestart;

use crate::{
    crash_point::CrashPoint,
    engine::{
        JobEnd, JobHandle, JobRun, StopOutcome,
        backoff::pause_after,
        error::{ConsumerError, ErrorClass, JobError, KafkaError, SinkError, StoreError},
        ports::{CheckpointStore, JobLease, KafkaCluster, Sink},
    },
    model::{
        checkpoint::Checkpoint,
        code::Code,
        health::HealthWindow,
        ids::{CheckpointId, InstallId, OperationId},
        job_state::{DesiredState, JobState},
        job_status::{JobFailure, Waiting},
        operation::{Operation, OperationKind, OperationStatus},
        resolver::{BrokerFacts, ResolvedStart, SinkFacts, SinkProgress},
        start::{CheckpointRequest, StartRequest, StopCheckpoint, StopRequest},
        views::{CheckpointReport, Fence, RestartReport, StartReport, StopReport},
    },
    store::{JobRow, OperationOutcome, RunningSpec, StartRecord, StoredPlan},
};

/// How often the store is asked what there is to do even if nobody says that there is something.
const POLL: Duration = Duration::from_secs(10);
/// The first pause after something outside did not answer; doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// The longest pause before an end is written again: somebody waits for it, and a shutdown has little time.
const LAST_SETTLE_PAUSE: Duration = Duration::from_secs(5);
/// How long a stop waits for a sink at least, though its own time be over: for what the sink kept of the last records.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How long the brokers may take to answer one attempt of a start.
const FACTS_DEADLINE: Duration = Duration::from_secs(20);
/// How long a sink may take to be claimed in one attempt.
const CLAIM_DEADLINE: Duration = Duration::from_secs(60);
/// Kept of a shutdown's time for the store, after the last checkpoint.
const SETTLE_RESERVE: Duration = Duration::from_secs(3);

/// The step of a start whose positions are stored: whoever takes it up from there goes on from them and moves nothing twice.
const STORED: &str = "the positions are stored and the job begins";

/// See the module.
pub(crate) struct JobTask {
    core: Arc<Core>,
    job: Arc<JobEntry>,
    lease: Option<JobLease>,
    run: Option<JobHandle>,
    /// The sink of the run.
    sink: Option<Arc<dyn Sink>>,
    /// Whether a run has failed since the last one was stopped: nobody knows what it gave to its sink.
    failed_run: bool,
    /// The checkpoint operation that is being carried out.
    checkpointing: JoinSet<()>,
    /// Follows the run's status for the history.
    following: JoinSet<()>,
    /// Restarts by the server itself, one after the other, until a run has lasted.
    restarts: u32,
    /// When the run began.
    run_since: Instant,
    start_at: Instant,
    /// The stop of the restart that is being carried out, while its start is not done.
    stopped_for: Option<(OperationId, Option<StopReport>)>,
}

/// What there is to do.
enum Work {
    Shutdown,
    Ended(JobEnd),
    Start(Box<Asked>),
    Stop(Box<Operation>, StopRequest),
    Restart(Box<Operation>, Value),
    Skip(Box<Operation>, Value),
    /// The job should run and does not.
    AutoStart,
    /// The job should not run, and its dead owner left it half-way.
    Settle,
    ResetOffsets(Box<Operation>, Value),
    Delete(Box<Operation>, Value),
    /// Somebody else has deleted the job.
    Gone,
}

struct Asked {
    operation: Operation,
    request: StartRequest,
    /// Set for the second half of a restart.
    restarting: Option<restart::Restarting>,
}

/// A sink that this server has claimed for a job, and what both say.
struct Claim {
    row: JobRow,
    install: InstallId,
    sink: Arc<dyn Sink>,
    progress: SinkProgress,
}

/// A run that was stopped.
struct EndedRun {
    report: Option<StopReport>,
    /// What it would have failed with at that moment.
    blocked: Option<JobFailure>,
}

/// Why a step did not succeed.
enum Trouble {
    /// Trying again can help.
    Away { code: Code, detail: String },
    /// It cannot.
    Refused(ServiceError),
    /// Somebody else holds the lease.
    Fenced,
    /// A stop or a shutdown takes precedence.
    Interrupted,
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::Fenced,
            StoreError::Unavailable(_) => Self::Away {
                code: Code::StoreUnreachable,
                detail: error.to_string(),
            },
            StoreError::Refused(_) | StoreError::NoSuchJob => Self::Refused(error.into()),
        }
    }
}

impl From<KafkaError> for Trouble {
    fn from(error: KafkaError) -> Self {
        match error.class {
            ErrorClass::Infrastructure => Self::Away {
                code: error.code,
                detail: error.to_string(),
            },
            ErrorClass::Deterministic => Self::Refused(error.into()),
        }
    }
}

impl From<SinkError> for Trouble {
    fn from(error: SinkError) -> Self {
        match error.class {
            _ if error.code == Code::LeaseLost => Self::Fenced,
            ErrorClass::Infrastructure => Self::Away {
                code: error.code,
                detail: error.to_string(),
            },
            ErrorClass::Deterministic => Self::Refused(error.into()),
        }
    }
}

impl From<ServiceError> for Trouble {
    fn from(error: ServiceError) -> Self {
        if error.code == Code::LeaseLost {
            Self::Fenced
        } else if error.retry_after.is_some() {
            Self::Away {
                code: error.code,
                detail: error.detail,
            }
        } else {
            Self::Refused(error)
        }
    }
}

type Step<T> = Result<T, Trouble>;

impl JobTask {
    pub(crate) fn new(core: Arc<Core>, job: Arc<JobEntry>) -> Self {
        Self {
            core,
            job,
            lease: None,
            run: None,
            sink: None,
            failed_run: false,
            checkpointing: JoinSet::new(),
            following: JoinSet::new(),
            restarts: 0,
            run_since: Instant::now(),
            start_at: Instant::now(),
            stopped_for: None,
        }
    }

    /// Runs until the server goes down or the job is deleted.
    pub(crate) async fn run(mut self) {
        loop {
            match self.next_work().await {
                Work::Shutdown => return self.shut_down().await,
                Work::Ended(end) => self.run_ended(end).await,
                Work::Start(asked) => self.start(Some(&asked)).await,
                Work::Stop(operation, request) => self.stop(&operation, &request).await,
                Work::Restart(operation, request) => self.restart_job(*operation, &request).await,
                Work::Skip(operation, request) => self.skip(&operation, &request).await,
                Work::AutoStart => self.start(None).await,
                Work::Settle => self.settle_leftovers().await,
                Work::ResetOffsets(operation, request) => {
                    self.reset_offsets(&operation, &request).await;
                }
                Work::Delete(operation, request) => {
                    if self.delete(&operation, &request).await {
                        return;
                    }
                }
                Work::Gone => return self.core.forget(&self.job),
            }
        }
    }

    // What there is to do.

    async fn next_work(&mut self) -> Work {
        loop {
            if self.core.stopping.is_cancelled() {
                return Work::Shutdown;
            }
            if let Some(work) = self.look().await {
                return work;
            }
            let pause = self.pause_until_next_look();
            let run = self.run.clone();
            let ended = async {
                match &run {
                    Some(run) => run.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.core.stopping.cancelled() => return Work::Shutdown,
                end = ended => return Work::Ended(end),
                () = self.job.wake.notified() => {}
                Some(_) = self.checkpointing.join_next() => {}
                () = sleep(pause) => {}
            }
        }
    }

    fn pause_until_next_look(&self) -> Duration {
        let until_start = self.start_at.saturating_duration_since(Instant::now());
        if self.run.is_none() && !until_start.is_zero() {
            until_start.min(POLL)
        } else {
            POLL
        }
    }

    /// The row is read before the operations. A start writes both at once: were they read the other way round, its desired
    /// state could be seen without it, and the job would be started as if by the server itself.
    ///
    /// That a stop was asked for is forgotten first: one that was stored until now is found by this look, and a later one
    /// says so again.
    async fn look(&mut self) -> Option<Work> {
        self.job.stop_asked.send_replace(false);
        let store = &self.core.store;
        let read = async {
            let row = store.job_by_uid(self.job.uid).await?;
            Ok::<_, StoreError>((row, store.open_operations(self.job.uid).await?))
        };
        let (row, open) = match read.await {
            Ok((Some(row), open)) => (row, open),
            Ok((None, _)) => return self.run.is_none().then_some(Work::Gone),
            Err(error) => {
                tracing::debug!(job = %self.job.name, %error, "cannot ask what there is to do");
                return None;
            }
        };
        self.job.shared().learn(row.clone());
        let mut checkpoints = Vec::new();
        let mut work = None;
        for (operation, request) in open {
            match operation.kind {
                OperationKind::Checkpoint => checkpoints.push((operation, request)),
                OperationKind::Stop => {
                    let request = read_request(&request, StopRequest::read);
                    work = Some(Work::Stop(
                        Box::new(operation),
                        request.unwrap_or_else(plain_stop),
                    ));
                }
                // One that was tried already waits out its pause.
                OperationKind::Start | OperationKind::Restart | OperationKind::Skip
                    if work.is_some()
                        || (operation.status == OperationStatus::Running
                            && Instant::now() < self.start_at) => {}
                OperationKind::Restart => {
                    work = Some(Work::Restart(Box::new(operation), request));
                }
                OperationKind::Skip => work = Some(Work::Skip(Box::new(operation), request)),
                OperationKind::Start => {
                    match StartRequest::read(&request) {
                        Ok(request) => {
                            work = Some(Work::Start(Box::new(Asked {
                                operation,
                                request,
                                restarting: None,
                            })));
                        }
                        // Another version wrote it. To start somewhere else instead would be worse than not to start.
                        Err(faults) => {
                            let error = ServiceError::faults(faults, Code::InvalidRequest);
                            let error = error.job(&self.job.name);
                            self.finish(&operation, &failed("the request is read", &error))
                                .await;
                        }
                    }
                }
                OperationKind::ResetOffsets => {
                    work = Some(Work::ResetOffsets(Box::new(operation), request));
                }
                OperationKind::Delete => work = Some(Work::Delete(Box::new(operation), request)),
            }
        }
        self.take_up_checkpoint(checkpoints, work.is_some()).await;
        work.or_else(|| self.look_at_states(&row))
    }

    fn look_at_states(&self, row: &JobRow) -> Option<Work> {
        if self.run.is_some() {
            return None;
        }
        let others = row
            .owner
            .as_ref()
            .is_some_and(|owner| owner.live && owner.instance != self.core.settings.instance);
        match (row.desired_state, row.state) {
            _ if others => None,
            (_, JobState::Failed) | (DesiredState::Stopped, JobState::Stopped) => None,
            (DesiredState::Running, _) => {
                (Instant::now() >= self.start_at).then_some(Work::AutoStart)
            }
            (
                DesiredState::Stopped,
                JobState::Starting | JobState::Running | JobState::Stopping,
            ) => Some(Work::Settle),
        }
    }

    // Checkpoints.

    /// Begins with the oldest checkpoint operation if none is under way; without a run nobody can take them.
    async fn take_up_checkpoint(&mut self, open: Vec<(Operation, Value)>, busy: bool) {
        while self.checkpointing.try_join_next().is_some() {}
        if !self.checkpointing.is_empty() || (busy && self.run.is_none()) {
            return;
        }
        let Some(run) = self.run.clone() else {
            for (operation, _) in open {
                let outcome = failed("the job does not run", &job_ended(&self.job));
                self.finish(&operation, &outcome).await;
            }
            return;
        };
        let Some((operation, request)) = open.into_iter().next() else {
            return;
        };
        let request = read_request(&request, CheckpointRequest::read);
        let wanted = request.and_then(|request| request.timeout);
        let core = Arc::clone(&self.core);
        let job = Arc::clone(&self.job);
        self.checkpointing.spawn(async move {
            note_step(&core, &operation, "the checkpoint is being taken").await;
            let report = run
                .trigger_checkpoint(wanted.map(|timeout| timeout.0))
                .await;
            let outcome = match report {
                Some(report) if report.failure.is_none() => {
                    job.measure_anew();
                    OperationOutcome::Succeeded {
                        changed: true,
                        step: format!("checkpoint {} is stored", report.id),
                        result: json!(report),
                    }
                }
                Some(report) => failed("the checkpoint failed", &checkpoint_error(&job, &report)),
                None => failed("the job ended", &job_ended(&job)),
            };
            finish(&core, &operation, &outcome).await;
            job.wake.notify_one();
        });
    }

    // Starts.

    async fn start(&mut self, asked: Option<&Asked>) {
        if self.run.is_some() {
            if let Some(asked) = asked {
                self.finish(&asked.operation, &already_running()).await;
            }
            return;
        }
        self.show(JobState::Starting);
        let failed_before = {
            let mut facts = self.job.shared();
            facts.refused = None;
            facts.row.failure.take()
        };
        let outcome = self.try_start(asked).await;
        self.job.shared().waiting.clear();
        match outcome {
            Ok(report) => {
                self.run_since = Instant::now();
                if let Some(asked) = asked {
                    let result = match &asked.restarting {
                        None => json!(report),
                        Some(restarting) => json!(RestartReport {
                            stop: restarting.stop.clone(),
                            start: report,
                        }),
                    };
                    let outcome = OperationOutcome::Succeeded {
                        changed: true,
                        step: "the job runs".to_owned(),
                        result,
                    };
                    self.finish(&asked.operation, &outcome).await;
                }
            }
            Err(Trouble::Interrupted) => {}
            Err(Trouble::Fenced) => {
                self.lease = None;
                self.start_later();
            }
            Err(Trouble::Away { detail, .. }) => {
                tracing::warn!(job = %self.job.name, detail, "the start is tried again");
                self.start_later();
            }
            Err(Trouble::Refused(error)) => self.refuse_start(asked, error, failed_before).await,
        }
    }

    fn start_later(&mut self) {
        let pause = pause_after(self.restarts);
        self.restarts = self.restarts.saturating_add(1);
        self.start_at = Instant::now() + pause;
    }

    async fn try_start(&mut self, asked: Option<&Asked>) -> Step<StartReport> {
        // Once the positions are stored the step says so, and stays.
        let operation = asked
            .map(|asked| &asked.operation)
            .filter(|operation| operation.step != STORED);
        let lease = self.own(operation).await?;
        let core = Arc::clone(&self.core);
        self.insist(operation, "the state is noted", || async {
            Ok(core
                .store
                .set_state(&lease, JobState::Starting, None)
                .await?)
        })
        .await?;
        let claim = self.claim_sink(operation, &lease).await?;
        let row = &claim.row;
        let sink = sink_progress::claimed(&*claim.sink, claim.progress.clone());
        let (resolved, intent, cluster) = self.decide(operation, asked, row, &sink).await?;
        if !resolved.blockers.is_empty() {
            return Err(Trouble::Refused(start_blocked(row, &resolved)));
        }
        let checkpoint_id = self.next_checkpoint_id(operation, &claim.progress).await?;
        let checkpoint = start_checkpoint(
            &resolved,
            checkpoint_id,
            lease.epoch,
            claim.sink.identity(),
            core.now(),
        );
        let record = StartRecord {
            generation: row.generation,
            spec: row.spec.clone(),
            consumed_pending: intent.consumes,
            set_aside: resolved.sets_state_aside(),
            operation: operation.map(|operation| (operation.id.clone(), STORED.to_owned())),
        };
        self.insist(operation, "the positions are stored", || async {
            CrashPoint::BeforeStartStored.reached();
            core.store.store_start(&lease, &checkpoint, &record).await?;
            CrashPoint::StartStored.reached();
            Ok(())
        })
        .await?;
        let report = report_of(&resolved, checkpoint.id);
        self.spawn(claim, lease, checkpoint, cluster).await;
        Ok(report)
    }

    /// Reads the job, makes its sink and claims it.
    async fn claim_sink(&self, operation: Option<&Operation>, lease: &JobLease) -> Step<Claim> {
        let core = Arc::clone(&self.core);
        let job = Arc::clone(&self.job);
        let row = self
            .insist(operation, "the job is read", || async {
                let row = core.store.job_by_uid(job.uid).await?;
                row.ok_or_else(|| Trouble::Refused(ServiceError::no_such_job(&job.name)))
            })
            .await?;
        let install = self
            .insist(operation, "the installation is read", || async {
                Ok(core.install().await?)
            })
            .await?;
        let sink = self
            .insist(operation, "the sink is made", || async {
                // Anew each time, like the cluster.
                let ids = (install, row.uid);
                Ok(make_sink(&core, &row.spec.sink, &row.name, ids)?)
            })
            .await?;
        // Before the new one: both may have one claim, and the last counts.
        self.close_former_target(&row, install, lease).await;
        let progress = self
            .insist(operation, "the sink is claimed", || async {
                within(
                    CLAIM_DEADLINE,
                    Code::SinkError,
                    "the sink",
                    sink.recover(lease.epoch),
                )
                .await
            })
            .await?;
        CrashPoint::SinkClaimed.reached();
        Ok(Claim {
            row,
            install,
            sink,
            progress,
        })
    }

    /// Larger than every number that the store or the sink has seen.
    async fn next_checkpoint_id(
        &self,
        operation: Option<&Operation>,
        progress: &SinkProgress,
    ) -> Step<CheckpointId> {
        let core = Arc::clone(&self.core);
        let job = Arc::clone(&self.job);
        self.insist(operation, "the checkpoint gets its number", || async {
            let next = core.store.next_checkpoint_id(job.uid).await?;
            // Failed and forgotten ones included: an id that the target knows must never mean another decision.
            let seen = progress.values().map(|sink| sink.position_id.next()).max();
            Ok(seen.map_or(next, |seen: CheckpointId| seen.max(next)))
        })
        .await
    }

    /// A dead owner may still write to the target that the spec named before. It is kept out there, too, but that target may be
    /// gone for good: one attempt, and the start does not depend on it.
    async fn close_former_target(&self, row: &JobRow, install: InstallId, lease: &JobLease) {
        let Some(running) = &row.running else {
            return;
        };
        if running.spec.sink == row.spec.sink {
            return;
        }
        let ids = (install, row.uid);
        let Ok(former) = make_sink(&self.core, &running.spec.sink, &row.name, ids) else {
            return;
        };
        if former.has_fence() {
            self.claim(&*former, lease, Instant::now()).await;
        }
    }

    /// Takes the lease, or goes on with the one that is held.
    async fn own(&mut self, operation: Option<&Operation>) -> Step<JobLease> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let core = Arc::clone(&self.core);
        let uid = self.job.uid;
        let lease = self
            .insist(operation, "the lease is taken", || async {
                let incarnation = core.incarnation.borrow().clone();
                let Some(incarnation) = incarnation else {
                    return Err(Trouble::Away {
                        code: Code::StoreUnreachable,
                        detail: "the instance is not claimed yet".to_owned(),
                    });
                };
                let lease = core.store.take_lease(uid, &incarnation).await?;
                lease.ok_or_else(|| Trouble::Away {
                    code: Code::LeaseLost,
                    detail: "another live server holds the job".to_owned(),
                })
            })
            .await?;
        CrashPoint::LeaseTaken.reached();
        self.lease = Some(lease);
        Ok(lease)
    }

    /// Works out where every partition begins, or takes the numbers of the plan that was looked at. Answers the cluster that was
    /// asked too: the run reads from no other. Without a request it is what the server itself would do.
    async fn decide(
        &self,
        operation: Option<&Operation>,
        asked: Option<&Asked>,
        row: &JobRow,
        sink: &SinkFacts,
    ) -> Step<(ResolvedStart, Intent, Arc<dyn KafkaCluster>)> {
        let done_before = asked.is_some_and(|asked| asked.operation.step == STORED);
        let core = &self.core;
        let plan = match asked {
            Some(asked) if !done_before => self.plan_of(asked).await?,
            Some(_) | None => None,
        };
        let plain = StartRequest::auto();
        let of_plan = plan.as_ref().map(|plan| plan.request.clone());
        let request = match (asked, &of_plan) {
            (Some(_), Some(request)) => request,
            (Some(asked), None) => &asked.request,
            (None, _) => &plain,
        };
        let mut intent = match asked {
            Some(_) => Intent::of_operator(request, row.pending_start.as_ref()),
            None => Intent::automatic(),
        };
        if done_before {
            // The server died after it had stored the positions: go on from them, and do not move anything twice.
            intent = Intent {
                consumes: None,
                ..Intent::automatic()
            };
        }
        let state = self
            .insist(operation, "the checkpoints are read", || async {
                Ok(StartState::read(core, row, &intent.from).await?)
            })
            .await?;
        let question = StartQuestion {
            spec: &row.spec,
            request,
            intent: &intent,
            state: &state,
            sink,
        };
        let (facts, cluster) = self.facts(operation, &question).await?;
        let Some(plan) = plan else {
            let resolved = question.resolve(&facts);
            return Ok((resolved, intent, cluster));
        };
        let pending = row
            .pending_start
            .as_ref()
            .map(|pending| pending.id.as_str());
        // A restart takes a checkpoint of its own before; what it asks for does not rest on it.
        let is_restart = asked.is_some_and(|asked| asked.restarting.is_some());
        let newest = state.newest.as_ref();
        let changes = if is_restart {
            what_changed_outside(&plan, row.generation, pending, &facts)
        } else {
            what_changed(&plan, row.generation, pending, newest, sink, &facts)
        };
        if changes.is_empty() {
            return Ok((plan.resolved, intent, cluster));
        }
        Err(Trouble::Refused(plan_stale(&row.name, &changes)))
    }

    async fn plan_of(&self, asked: &Asked) -> Step<Option<StoredPlan>> {
        let Some(id) = &asked.request.plan else {
            return Ok(None);
        };
        let core = &self.core;
        let plan = self
            .insist(Some(&asked.operation), "the plan is read", || async {
                Ok(core.store.plan(id).await?)
            })
            .await?;
        match plan.filter(|plan| plan.job == self.job.uid) {
            Some(plan) => Ok(Some(plan)),
            None => Err(Trouble::Refused(ServiceError::new(
                Code::PlanExpired,
                format!("plan {id} is no longer kept"),
            ))),
        }
    }

    async fn facts(
        &self,
        operation: Option<&Operation>,
        question: &StartQuestion<'_>,
    ) -> Step<(BrokerFacts, Arc<dyn KafkaCluster>)> {
        let now = self.core.now();
        self.insist(operation, "the brokers are asked", || async {
            // Anew each time: a connection that is mended in the server's file helps the start that waits for it.
            let cluster = self.core.cluster(&question.spec.source.connection)?;
            let asked = gather(&*cluster, question, now);
            let facts = tokio::select! {
                facts = within(FACTS_DEADLINE, Code::KafkaTimeout, "Kafka", asked) => facts,
                () = self.interrupted() => Err(Trouble::Interrupted),
            };
            Ok((facts?, cluster))
        })
        .await
    }

    async fn spawn(
        &mut self,
        claim: Claim,
        lease: JobLease,
        start: Checkpoint,
        cluster: Arc<dyn KafkaCluster>,
    ) {
        let Claim {
            row, install, sink, ..
        } = claim;
        let core = &self.core;
        let run = JobHandle::spawn(JobRun {
            name: row.name.clone(),
            install,
            spec: row.spec.clone(),
            lease,
            start,
            kafka: cluster,
            sink: Arc::clone(&sink),
            store: Arc::new(core.store.clone()) as Arc<dyn CheckpointStore>,
            clock: Arc::clone(&core.clock),
            lease_health: core.lease_health.subscribe(),
        });
        self.following = JoinSet::new();
        self.following
            .spawn(follow(Arc::clone(core), Arc::clone(&self.job), run.clone()));
        {
            let mut facts = self.job.shared();
            facts.run = Some(run.clone());
            facts.window = HealthWindow::default();
            facts.outdated_at = Some(Instant::now());
            facts.row.running = Some(RunningSpec {
                generation: row.generation,
                spec: row.spec.clone(),
            });
        }
        self.run = Some(run);
        self.sink = Some(sink);
        self.failed_run = false;
        self.show(JobState::Running);
        self.core.refresh(&self.job).await;
        self.job.measure_soon.notify_one();
        // The spec may have changed while the start was under way.
        let declared = self.job.row().spec;
        if let Some(run) = &self.run {
            if declared.checkpoint != row.spec.checkpoint {
                run.set_checkpointing(declared.checkpoint).await;
            }
            let discovery = declared.source.partition_discovery;
            if discovery != row.spec.source.partition_discovery {
                run.set_discovery(discovery).await;
            }
        }
    }

    /// A start that cannot succeed: an operator's is refused and leaves the job as it was, one of the server fails the job.
    async fn refuse_start(
        &mut self,
        asked: Option<&Asked>,
        error: ServiceError,
        failed_before: Option<JobFailure>,
    ) {
        tracing::warn!(job = %self.job.name, %error, "the start is refused");
        if !error.blockers.is_empty() {
            let request = asked.map_or_else(StartRequest::auto, |asked| asked.request.clone());
            self.job.shared().refused = Some(RefusedStart {
                request,
                blockers: error.blockers.clone(),
            });
        }
        let Some(asked) = asked else {
            let failure = failure_of(&error, self.core.now());
            return self.fail(failure).await;
        };
        let outcome = failed("refused", &error.job(&self.job.name));
        let operation = &asked.operation;
        let Some(lease) = self.lease else {
            return self.finish(operation, &outcome).await;
        };
        let core = Arc::clone(&self.core);
        let settled = self
            .settle(|| async {
                let ended = Some((&operation.id, &outcome));
                let store = &core.store;
                match &failed_before {
                    None => {
                        store
                            .refuse_start(&lease, ended, asked.desired_if_refused())
                            .await?;
                    }
                    // It needs a decision as before, and it should run as before.
                    Some(failure) => {
                        let state = JobState::Failed;
                        store
                            .settle_stopped(&lease, ended, state, Some(failure), true)
                            .await?;
                    }
                }
                Ok(())
            })
            .await;
        if settled.is_err() {
            return;
        }
        self.lease = None;
        match &failed_before {
            None => {
                let desired = asked.desired_if_refused();
                self.show_row(JobState::Stopped, Some(desired), None);
            }
            Some(failure) => self.show_row(JobState::Failed, None, Some(failure)),
        }
        self.core.announce(&operation.id);
        self.core.refresh(&self.job).await;
    }

    // Ends.

    async fn run_ended(&mut self, end: JobEnd) {
        self.failed_run = true;
        self.forget_run();
        refresh_checkpoint(&self.core, &self.job).await;
        if self.run_since.elapsed() >= LAST_PAUSE {
            self.restarts = 0;
        }
        let error = match end {
            JobEnd::Failed(error) => error,
            JobEnd::Stopped(_) => {
                tracing::error!(job = %self.job.name, "the run ended without being asked to; it is started again");
                return self.start_later();
            }
        };
        match error {
            JobError::Fenced => {
                tracing::warn!(job = %self.job.name, "the lease was lost; it is taken again if nobody else holds it");
                self.lease = None;
                self.show(JobState::Starting);
                self.start_later();
            }
            JobError::Consumer(ConsumerError::Kafka(ref cause))
                if cause.class == ErrorClass::Infrastructure =>
            {
                self.wait_for(cause.code, &error.to_string());
                self.restart().await;
            }
            JobError::Sink(ref cause) if cause.class == ErrorClass::Infrastructure => {
                self.wait_for(Code::SinkError, &error.to_string());
                self.restart().await;
            }
            JobError::Decode { .. }
            | JobError::Consumer(_)
            | JobError::Sink(_)
            | JobError::Store(_)
            | JobError::Panicked { .. } => {
                let failure = error.failure(self.core.now());
                self.fail(failure).await;
            }
        }
    }

    /// Begins again from the newest checkpoint, under a new epoch, after something outside was away.
    async fn restart(&mut self) {
        self.show(JobState::Starting);
        if let Some(lease) = self.lease {
            let released = self.settle_as(&lease, JobState::Stopped, None, true).await;
            if released.is_ok() {
                self.lease = None;
            }
        }
        self.start_later();
    }

    /// Ends a run in the store: its state and the released lease in one transaction. A job that should run as before keeps
    /// its desired state.
    async fn settle_as(
        &self,
        lease: &JobLease,
        state: JobState,
        failure: Option<&JobFailure>,
        keep_desired: bool,
    ) -> Step<()> {
        let store = &self.core.store;
        self.settle(|| async {
            store
                .settle_stopped(lease, None, state, failure, keep_desired)
                .await?;
            Ok(())
        })
        .await
    }

    async fn fail(&mut self, failure: JobFailure) {
        tracing::error!(job = %self.job.name, code = %failure.code, summary = failure.summary, "the job failed");
        self.show_row(JobState::Failed, None, Some(&failure));
        let Some(lease) = self.lease else {
            return;
        };
        let settled = self
            .settle_as(&lease, JobState::Failed, Some(&failure), true)
            .await;
        if settled.is_ok() {
            self.lease = None;
            self.core.refresh(&self.job).await;
        }
    }

    fn forget_run(&mut self) {
        self.run = None;
        self.sink = None;
        self.following.abort_all();
        let mut facts = self.job.shared();
        facts.run = None;
        facts.window.clear();
        facts.gone = None;
        facts.row.running = None;
        drop(facts);
        self.job.measure_anew();
    }

    // Stops.

    async fn stop(&mut self, operation: &Operation, request: &StopRequest) {
        let before = self.job.state();
        let until = Instant::now() + request.timeout.0;
        let mut report = None;
        let mut blocked = None;
        if let Some(run) = self.run.clone() {
            let Some(ended) = self.end_run(run, operation, request, until).await else {
                return;
            };
            report = ended.report;
            blocked = ended.blocked;
        }
        let report = match report {
            Some(report) => report,
            None => match self.report_without_run(operation, before, until).await {
                Some(report) => report,
                None => return,
            },
        };
        note_step(&self.core, operation, "the lease is released").await;
        self.failed_run = false;
        self.settle_stop(operation, &report, blocked.as_ref()).await;
    }

    /// Stops the run for an operation. `None`: it goes on or has failed, and the operation has ended with that.
    async fn end_run(
        &mut self,
        run: JobHandle,
        operation: &Operation,
        request: &StopRequest,
        until: Instant,
    ) -> Option<EndedRun> {
        let mut ended = EndedRun {
            report: None,
            blocked: None,
        };
        self.show(JobState::Stopping);
        note_step(&self.core, operation, "the last checkpoint is being taken").await;
        if let Some(lease) = self.lease {
            // For whoever reads the store; the stop itself does not depend on it.
            let noted = self.core.store.set_state(&lease, JobState::Stopping, None);
            drop(timeout(FIRST_PAUSE, noted).await);
        }
        match run.stop(request.checkpoint, request.timeout.0).await {
            Err(refused) => {
                self.go_on(operation, &refused.checkpoint).await;
                return None;
            }
            Ok(JobEnd::Stopped(outcome)) => {
                ended.report = Some(self.stop_report(&run, &outcome, until).await);
                let now = self.core.now();
                ended.blocked = outcome.blocked.as_ref().map(|error| error.failure(now));
            }
            Ok(JobEnd::Failed(error)) => {
                self.failed_run = true;
                if matches!(error, JobError::Fenced) {
                    self.lease = None;
                }
                if request.checkpoint == StopCheckpoint::Required
                    && !matches!(error, JobError::Fenced)
                {
                    self.forget_run();
                    let failure = error.failure(self.core.now());
                    let refused = ServiceError::new(
                        Code::JobFailed,
                        format!(
                            "the job failed while it was being stopped: {}",
                            failure.summary
                        ),
                    )
                    .job(&self.job.name);
                    self.fail(failure).await;
                    self.finish(operation, &failed("the job failed", &refused))
                        .await;
                    return None;
                }
                tracing::warn!(job = %self.job.name, %error, "the run failed while it was being stopped");
                ended.blocked = Some(error.failure(self.core.now()));
            }
        }
        self.forget_run();
        // Whoever waits for the stop sees its last checkpoint in every view.
        refresh_checkpoint(&self.core, &self.job).await;
        Some(ended)
    }

    /// Ends a job whose run is over: the store's row, the lease and the operation in one transaction.
    async fn settle_stop(
        &mut self,
        operation: &Operation,
        report: &StopReport,
        blocked: Option<&JobFailure>,
    ) {
        let outcome = OperationOutcome::Succeeded {
            changed: true,
            step: "released".to_owned(),
            result: json!(report),
        };
        loop {
            let lease = match self.own_to_settle().await {
                Ok(lease) => lease,
                Err(Trouble::Refused(error)) => {
                    return self
                        .finish(operation, &failed("the lease is taken", &error))
                        .await;
                }
                Err(_) => return,
            };
            let core = Arc::clone(&self.core);
            let settled = self
                .settle(|| async {
                    let ended = Some((&operation.id, &outcome));
                    let state = JobState::Stopped;
                    CrashPoint::BeforeStopSettled.reached();
                    core.store
                        .settle_stopped(&lease, ended, state, blocked, false)
                        .await?;
                    CrashPoint::StopSettled.reached();
                    Ok(())
                })
                .await;
            match settled {
                Ok(()) => {
                    self.lease = None;
                    self.show_row(JobState::Stopped, Some(DesiredState::Stopped), None);
                    self.core.refresh(&self.job).await;
                    self.core.announce(&operation.id);
                    self.job.measure_soon.notify_one();
                    return;
                }
                Err(Trouble::Fenced) => self.lease = None,
                Err(Trouble::Refused(error)) => {
                    return self
                        .finish(operation, &failed("the stop is stored", &error))
                        .await;
                }
                Err(Trouble::Away { .. } | Trouble::Interrupted) => return,
            }
        }
    }

    /// A required stop whose checkpoint failed: the job goes on.
    async fn go_on(&mut self, operation: &Operation, checkpoint: &CheckpointReport) {
        self.show(JobState::Running);
        if let Some(lease) = self.lease
            && let Err(error) = self
                .core
                .store
                .set_state(&lease, JobState::Running, None)
                .await
        {
            tracing::debug!(job = %self.job.name, %error, "the state cannot be noted");
        }
        self.job.shared().row.desired_state = DesiredState::Running;
        let error = checkpoint_error(&self.job, checkpoint).hint(
            "The job goes on. Stop it with checkpoint best-effort or none to stop it in any case.",
        );
        self.finish(operation, &failed("the job goes on", &error))
            .await;
    }

    /// The lease that settles the end of a run: held, or taken again from a dead owner.
    async fn own_to_settle(&mut self) -> Step<JobLease> {
        if let Some(lease) = self.lease {
            return Ok(lease);
        }
        let core = Arc::clone(&self.core);
        let uid = self.job.uid;
        let lease = self
            .settle(|| async {
                let incarnation = core.incarnation.borrow().clone();
                let Some(incarnation) = incarnation else {
                    return Err(Trouble::Interrupted);
                };
                let lease = core.store.take_lease(uid, &incarnation).await?;
                lease.ok_or_else(|| Trouble::Away {
                    code: Code::LeaseLost,
                    detail: "another live server holds the job".to_owned(),
                })
            })
            .await?;
        self.lease = Some(lease);
        Ok(lease)
    }

    async fn stop_report(
        &self,
        run: &JobHandle,
        outcome: &StopOutcome,
        until: Instant,
    ) -> StopReport {
        let completed = outcome
            .checkpoint
            .as_ref()
            .filter(|report| report.failure.is_none());
        let end = match (&self.sink, self.lease) {
            (Some(sink), _) if !sink.has_fence() => SinkEnd::quiet(Fence::None),
            // Without a checkpoint that covers everything only the sink knows what it kept. Its claim waits for a write that
            // was cut off half-way.
            (Some(sink), Some(lease)) if completed.is_none() => {
                self.claim(&**sink, &lease, until).await
            }
            (Some(_) | None, _) => SinkEnd::quiet(Fence::Closed),
        };
        // Whoever waits for the stop sees its last checkpoint in every view.
        refresh_checkpoint(&self.core, &self.job).await;
        let status = run.status();
        let facts = self.job.shared();
        let view = compare_now(&self.core, &self.job.name, &facts, Some(&status.partitions));
        let mode = facts.row.spec.startup_mode.name();
        let stored = facts.checkpoint.value.as_ref().and_then(Option::as_ref);
        let nothing = BTreeMap::new();
        // The store may be away: then the run's own words count.
        let newest = completed
            .map(|report| report.id)
            .or_else(|| status.last_checkpoint.as_ref().map(|last| last.id));
        let newest = newest.map(|id| match stored.filter(|stored| stored.id == id) {
            Some(stored) => (id, &stored.positions),
            None => (id, &nothing),
        });
        StopReport {
            checkpoint: outcome.checkpoint.clone(),
            position_lag: totals(&view, true).position_lag,
            will_replay: end.will_replay(outcome.will_replay),
            resume_from: end.resume_from(newest, mode),
            fence: end.fence,
            warnings: end.warnings(),
        }
    }

    /// The report of a stop that found no run: it died with its server, it never began, or it had failed. `None` when the
    /// stop is left to the next server.
    async fn report_without_run(
        &mut self,
        operation: &Operation,
        before: JobState,
        until: Instant,
    ) -> Option<StopReport> {
        let row = self.job.row();
        let end = if row.running.is_some() && !self.failed_run {
            let lease = match self.own_to_settle().await {
                Ok(lease) => lease,
                Err(Trouble::Refused(error)) => {
                    let outcome = failed("the lease is taken", &error);
                    self.finish(operation, &outcome).await;
                    return None;
                }
                Err(_) => return None,
            };
            note_step(&self.core, operation, "the sink is claimed").await;
            self.claim_of_dead_owner(&row, &lease, until).await
        } else {
            SinkEnd::of_closed(&self.core, &row).await
        };
        if self.core.stopping.is_cancelled() {
            return None;
        }
        let newest = self.core.store.latest_checkpoint(self.job.uid).await;
        let newest = newest.ok().flatten();
        let newest = newest.as_ref().map(|newest| (newest.id, &newest.positions));
        // A start that never came to consume gave nothing to its sink; of a run that died or failed nobody knows.
        let never_began = before != JobState::Failed && row.running.is_none() && !self.failed_run;
        Some(StopReport {
            checkpoint: None,
            position_lag: None,
            will_replay: end.will_replay(never_began.then_some(0)),
            resume_from: end.resume_from(newest, row.spec.startup_mode.name()),
            fence: end.fence,
            warnings: end.warnings(),
        })
    }

    /// Keeps a dead owner away from the target that it wrote to, which need not be the one that the spec names now.
    async fn claim_of_dead_owner(&self, row: &JobRow, lease: &JobLease, until: Instant) -> SinkEnd {
        let spec = row
            .running
            .as_ref()
            .map_or(&row.spec, |running| &running.spec);
        let sink = match self.core.install().await {
            Ok(install) => make_sink(&self.core, &spec.sink, &row.name, (install, row.uid)),
            Err(error) => Err(error),
        };
        match sink {
            Ok(sink) if sink.has_fence() => self.claim(&*sink, lease, until).await,
            Ok(_) => SinkEnd::quiet(Fence::None),
            Err(error) => SinkEnd::unknown(error.detail),
        }
    }

    async fn claim(&self, sink: &dyn Sink, lease: &JobLease, until: Instant) -> SinkEnd {
        let left = until.saturating_duration_since(Instant::now());
        let claimed = tokio::select! {
            claimed = claim(sink, lease.epoch, left.max(LAST_WORD)) => SinkEnd::of_claim(claimed),
            () = self.core.stopping.cancelled() => SinkEnd::unknown("the server goes down".to_owned()),
        };
        if claimed.fence == Fence::Open {
            tracing::warn!(job = %self.job.name, "the sink is not claimed yet; the next start does it");
        }
        claimed
    }

    /// Ends what a dead owner left half-way, for a job that should not run.
    async fn settle_leftovers(&mut self) {
        if self.own_to_settle().await.is_err() {
            return;
        }
        let Some(lease) = self.lease else {
            return;
        };
        let row = self.job.row();
        if row.running.is_some() {
            let until = Instant::now() + CLAIM_DEADLINE;
            self.claim_of_dead_owner(&row, &lease, until).await;
        }
        if self.core.stopping.is_cancelled() {
            return;
        }
        let settled = self.settle_as(&lease, JobState::Stopped, None, false).await;
        self.lease = None;
        if settled.is_ok() {
            self.show_row(JobState::Stopped, Some(DesiredState::Stopped), None);
            self.core.refresh(&self.job).await;
        }
    }

    /// The server goes down: a last checkpoint, and the job starts again when a server comes up.
    async fn shut_down(mut self) {
        if let Some(run) = self.run.take() {
            let left = self.core.shutdown_time_left();
            let patience = left.saturating_sub(SETTLE_RESERVE).max(FIRST_PAUSE);
            self.show(JobState::Stopping);
            let stop = run.stop(StopCheckpoint::BestEffort, patience);
            // The stop keeps to its time; the outer limit is for a part that hangs.
            match timeout(left, stop).await {
                Ok(Ok(JobEnd::Failed(error))) => {
                    tracing::warn!(job = %self.job.name, %error, "the run failed while the server went down");
                }
                Ok(Ok(JobEnd::Stopped(_)) | Err(_)) => {}
                Err(_elapsed) => {
                    tracing::warn!(job = %self.job.name, "the run did not end in time");
                }
            }
            self.forget_run();
        }
        let Some(lease) = self.lease else {
            return;
        };
        let settled = self.settle_as(&lease, JobState::Stopped, None, true).await;
        if settled.is_err() {
            tracing::warn!(job = %self.job.name, "the lease is left to run out");
        }
    }

    // Waiting.

    /// Repeats a step of a start until it succeeds, cannot succeed, or something takes precedence.
    async fn insist<T, F, Fut>(
        &self,
        operation: Option<&Operation>,
        what: &str,
        mut attempt: F,
    ) -> Step<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Step<T>>,
    {
        if let Some(operation) = operation {
            note_step(&self.core, operation, what).await;
        }
        for attempts in 0.. {
            if self.core.stopping.is_cancelled() || *self.job.stop_asked.borrow() {
                return Err(Trouble::Interrupted);
            }
            let trouble = match attempt().await {
                Ok(value) => {
                    if attempts > 0 {
                        self.job.shared().waiting.clear();
                    }
                    return Ok(value);
                }
                Err(Trouble::Away { code, detail }) => (code, detail),
                Err(trouble) => return Err(trouble),
            };
            self.wait_for(trouble.0, &trouble.1);
            if let Some(operation) = operation {
                let step = format!("{what}; waiting: {}", trouble.1);
                note_step(&self.core, operation, &step).await;
            }
            tokio::select! {
                () = sleep(pause_after(attempts)) => {}
                () = self.interrupted() => return Err(Trouble::Interrupted),
            }
            if self.is_called_off().await {
                return Err(Trouble::Interrupted);
            }
        }
        Err(Trouble::Interrupted)
    }

    /// Repeats the last write of a run until it is stored. Only the end of a shutdown's time ends that.
    async fn settle<T, F, Fut>(&self, mut attempt: F) -> Step<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Step<T>>,
    {
        for attempts in 0.. {
            let (code, detail) = match attempt().await {
                Err(Trouble::Away { code, detail }) => (code, detail),
                other => {
                    if attempts > 0 {
                        self.job.shared().waiting.clear();
                    }
                    return other;
                }
            };
            self.wait_for(code, &detail);
            let pause = pause_after(attempts).min(LAST_SETTLE_PAUSE);
            if self.core.stopping.is_cancelled() && self.core.shutdown_time_left() <= pause {
                return Err(Trouble::Interrupted);
            }
            tokio::select! {
                () = sleep(pause) => {}
                // One more attempt at once, with what is left of the time.
                () = self.core.stopping.cancelled(), if !self.core.stopping.is_cancelled() => {}
            }
        }
        Err(Trouble::Interrupted)
    }

    async fn interrupted(&self) {
        let mut stop_asked = self.job.stop_asked.subscribe();
        tokio::select! {
            () = self.core.stopping.cancelled() => {}
            asked = stop_asked.wait_for(|asked| *asked) => drop(asked),
        }
    }

    /// Whether a stop stands in the store, in case nobody told.
    async fn is_called_off(&self) -> bool {
        let open = self.core.store.open_operations(self.job.uid).await;
        open.is_ok_and(|open| {
            open.iter()
                .any(|(operation, _)| operation.kind == OperationKind::Stop)
        })
    }

    fn wait_for(&self, code: Code, detail: &str) {
        let mut facts = self.job.shared();
        let since = facts
            .waiting
            .iter()
            .find(|waiting| waiting.code == code)
            .map_or_else(|| self.core.now(), |waiting| waiting.since);
        facts.waiting = vec![Waiting {
            code,
            since,
            detail: detail.to_owned(),
        }];
    }

    // What is shown.

    fn show(&self, state: JobState) {
        let mut facts = self.job.shared();
        if facts.shown_state().0 != state || facts.state.is_none() {
            facts.state = Some((state, self.core.now()));
        }
    }

    fn show_row(
        &self,
        state: JobState,
        desired: Option<DesiredState>,
        failure: Option<&JobFailure>,
    ) {
        self.show(state);
        let mut facts = self.job.shared();
        facts.row.state = state;
        facts.row.failure = failure.cloned();
        if let Some(desired) = desired {
            facts.row.desired_state = desired;
        }
    }

    async fn finish(&self, operation: &Operation, outcome: &OperationOutcome) {
        finish(&self.core, operation, outcome).await;
    }
}

/// Follows a run: notes failed checkpoints in the history and counts.
async fn follow(core: Arc<Core>, job: Arc<JobEntry>, run: JobHandle) {
    let mut statuses = run.watch_status();
    let mut completed: Option<CheckpointId> = None;
    let mut seen_failure: Option<CheckpointId> = None;
    while statuses.changed().await.is_ok() {
        let status = Arc::clone(&statuses.borrow_and_update());
        let newest = status.last_checkpoint.as_ref().map(|last| last.id);
        if newest > completed {
            completed = newest;
            job.shared().counters.completed += 1;
        }
        let Some((id, failure)) = &status.last_failed else {
            continue;
        };
        if seen_failure == Some(*id) {
            continue;
        }
        seen_failure = Some(*id);
        *job.shared()
            .counters
            .failed
            .entry(failure.code.clone())
            .or_default() += 1;
        let details = json!({"checkpoint": id, "failure": failure});
        let noted = core
            .store
            .add_event(Some(job.uid), "checkpoint-failed", "handover", &details);
        if let Err(error) = noted.await {
            tracing::debug!(job = %job.name, %error, "the history misses a failed checkpoint");
        }
    }
}

/// Notes how an operation ended, and repeats it while the store is away.
async fn finish(core: &Core, operation: &Operation, outcome: &OperationOutcome) {
    for attempts in 0.. {
        match core.store.finish_operation(&operation.id, outcome).await {
            Ok(()) => break,
            Err(StoreError::Unavailable(_)) => {}
            Err(error) => {
                tracing::error!(operation = %operation.id, %error, "the end of an operation cannot be stored");
                break;
            }
        }
        let pause = pause_after(attempts).min(LAST_SETTLE_PAUSE);
        if core.stopping.is_cancelled() && core.shutdown_time_left() <= pause {
            tracing::warn!(operation = %operation.id, "the next server carries the operation to its end");
            return;
        }
        sleep(pause).await;
    }
    core.announce(&operation.id);
}

/// Notes a step; an operation is carried out whether or not its step can be noted.
async fn note_step(core: &Core, operation: &Operation, step: &str) {
    if let Err(error) = core.store.operation_step(&operation.id, step).await {
        tracing::debug!(operation = %operation.id, %error, "the step cannot be noted");
    }
}

/// Limits an attempt; too late counts as away.
async fn within<T, E: Into<Trouble>>(
    limit: Duration,
    code: Code,
    who: &str,
    attempt: impl Future<Output = Result<T, E>>,
) -> Step<T> {
    match timeout(limit, attempt).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_elapsed) => Err(Trouble::Away {
            code,
            detail: format!("{who} did not answer within {} s", limit.as_secs()),
        }),
    }
}

/// Why a checkpoint was not taken: the job was stopped, or it failed.
fn job_ended(job: &JobEntry) -> ServiceError {
    let code = match job.state() {
        JobState::Stopping | JobState::Stopped => Code::JobNotRunning,
        JobState::Starting | JobState::Running | JobState::Failed => Code::JobFailed,
    };
    let name = &job.name;
    ServiceError::new(
        code,
        format!("job {name} ended before the checkpoint was taken"),
    )
    .job(name)
}

fn failed(step: &str, error: &ServiceError) -> OperationOutcome {
    OperationOutcome::Failed {
        step: step.to_owned(),
        error: error.to_problem(),
    }
}

fn checkpoint_error(job: &JobEntry, report: &CheckpointReport) -> ServiceError {
    let (code, detail) = match &report.failure {
        Some(failure) if failure.code == Code::CheckpointTimeout.as_str() => {
            (Code::CheckpointTimeout, failure.summary.clone())
        }
        Some(failure) => (Code::CheckpointFailed, failure.summary.clone()),
        None => (Code::CheckpointFailed, "the checkpoint failed".to_owned()),
    };
    ServiceError::new(code, format!("checkpoint {}: {detail}", report.id)).job(&job.name)
}

pub(crate) fn start_blocked(row: &JobRow, resolved: &ResolvedStart) -> ServiceError {
    let summaries: Vec<&str> = resolved
        .blockers
        .iter()
        .map(|blocker| blocker.summary.as_str())
        .collect();
    let choices = resolved
        .blockers
        .iter()
        .flat_map(|blocker| blocker.choices.iter().cloned())
        .collect();
    // A blocker without choices is not decided by a start but mended elsewhere.
    let to_mend = resolved
        .blockers
        .iter()
        .find(|blocker| blocker.choices.is_empty());
    let hint = to_mend.map_or(Code::StartBlocked, |blocker| blocker.code);
    ServiceError::new(Code::StartBlocked, summaries.join("; "))
        .job(&row.name)
        .hint(hint.remedy())
        .blockers(resolved.blockers.clone())
        .choices(choices)
}

/// What keeps the server from starting a job by itself is a failure that needs a decision.
fn failure_of(error: &ServiceError, at: chrono::DateTime<chrono::Utc>) -> JobFailure {
    let code = error
        .blockers
        .first()
        .map_or(error.code, |blocker| blocker.code);
    JobFailure {
        code,
        summary: error.detail.clone(),
        record: None,
        phase: Some("start".to_owned()),
        first_seen: at,
    }
}

fn report_of(resolved: &ResolvedStart, checkpoint: CheckpointId) -> StartReport {
    StartReport {
        basis: resolved.basis,
        checkpoint: resolved.checkpoint,
        bootstrap_checkpoint: Some(checkpoint),
        partitions: resolved.partitions.len(),
        summary: resolved.summary.clone(),
        totals: resolved.totals,
    }
}

fn read_request<T, E>(request: &Value, read: impl Fn(&Value) -> Result<T, E>) -> Option<T> {
    read(request).ok()
}

/// A stop whose body cannot be read any more (another version wrote it) still stops.
fn plain_stop() -> StopRequest {
    StopRequest {
        checkpoint: StopCheckpoint::BestEffort,
        timeout: crate::model::HumanDuration::from_secs(30),
        reason: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_away_is_waited_for_and_what_is_refused_is_not() {
        let away = StoreError::Unavailable("gone".to_owned());
        assert!(matches!(
            Trouble::from(away),
            Trouble::Away {
                code: Code::StoreUnreachable,
                ..
            }
        ));
        assert!(matches!(Trouble::from(StoreError::Fenced), Trouble::Fenced));
        let refused = ServiceError::new(Code::CheckpointNotFound, "none");
        assert!(matches!(Trouble::from(refused), Trouble::Refused(_)));
        let away = ServiceError::from(StoreError::Unavailable("gone".to_owned()));
        assert!(matches!(Trouble::from(away), Trouble::Away { .. }));
    }

    #[test]
    fn a_stored_request_is_read_as_it_was_sent() {
        let request = plain_stop();
        let stored = json!(request);
        assert_eq!(StopRequest::read(&stored), Ok(request));
    }
}
