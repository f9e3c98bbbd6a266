//! Carries out what is asked of one job: starts, stops, checkpoints, and the restart after a crash of the server.
//!
//! What is asked stands in the store; the task reads it there when it is woken, so nothing is lost with a process. A start
//! takes the lease first and decides afterwards (fence, then read, then decide); whatever it waits for outside is waited
//! for without end, and a stop or a shutdown takes precedence at each of these waits.

mod crashes;
mod delete;
mod ends;
mod live_skip;
mod parked;
mod reset;
mod restart;
mod skip;
mod starts;
mod stops;
mod waiting;

use std::{ops::ControlFlow, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    core::{Core, JobEntry},
    error::ServiceError,
    sink_progress::Former,
    without_checkpoints::refuse_trigger,
};
use crate::{
    engine::{
        JobEnd, JobHandle,
        backoff::pause_after,
        error::StoreError,
        ports::{JobLease, Sink},
    },
    model::{
        attempt::AttemptKind,
        code::Code,
        ids::{InstallId, OperationId},
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        operation::{Operation, OperationKind, OperationStatus},
        resolver::SinkProgress,
        start::{CheckpointRequest, StartRequest, StopCheckpoint, StopRequest},
        views::{CheckpointReport, StopReport},
    },
    store::{JobRow, OperationOutcome},
};

pub(crate) use restart::StoredRestart;
pub(crate) use starts::start_blocked;
use waiting::{Step, Trouble};

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

/// The same step of a job without checkpoints, which stores none.
const BEGINS: &str = "the job begins";

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
    /// Whether a run has begun under the lease: the next one needs a new epoch, so that nothing that this one may have left
    /// behind can write.
    lease_is_used: bool,
    /// Starts by the server itself that came to nothing, one after the other, until a run has lasted.
    restarts: u32,
    /// When the run began.
    run_since: Instant,
    start_at: Instant,
    /// Why the server would begin the next run by itself.
    next_kind: AttemptKind,
    /// How far the run that has ended last had come: records and bytes. Taken when its end is noted.
    ended_run: Option<(u64, u64)>,
    /// The stop of the restart that is being carried out, while its start is not done.
    stopped_for: Option<(OperationId, Option<StopReport>)>,
    /// What is being carried out, in case it crashes.
    at_work: crashes::AtWork,
    /// The operation that crashed last: it is taken up again when the pause is over.
    crashed_operation: Option<OperationId>,
    /// How long the run lasted that has ended since the last crash.
    ran_for: Duration,
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

/// How the task ends.
enum Last {
    ShutDown,
    Forget,
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
    /// The target of the run before, if it was another one.
    former: Option<Former>,
}

/// A run that was stopped.
struct EndedRun {
    report: Option<StopReport>,
    /// What it would have failed with at that moment.
    blocked: Option<JobFailure>,
    /// `Finished` for a bounded run that came to its ends, otherwise `Stopped`.
    state: JobState,
}

impl JobTask {
    pub(crate) fn new(core: Arc<Core>, job: Arc<JobEntry>) -> Self {
        // A server that died while the job backed off is no reason to begin earlier, nor later.
        let backs_off = job.row().backs_off_until().map(|until| {
            let pause = (until - core.now()).to_std().unwrap_or_default();
            Instant::now() + pause
        });
        let next_kind = match backs_off {
            Some(_) => AttemptKind::AfterCrash,
            None => AttemptKind::Recovery,
        };
        Self {
            core,
            job,
            lease: None,
            lease_is_used: false,
            run: None,
            sink: None,
            failed_run: false,
            checkpointing: JoinSet::new(),
            following: JoinSet::new(),
            restarts: 0,
            run_since: Instant::now(),
            start_at: backs_off.unwrap_or_else(Instant::now),
            next_kind,
            ended_run: None,
            stopped_for: None,
            at_work: crashes::AtWork::Looking,
            crashed_operation: None,
            ran_for: Duration::ZERO,
        }
    }

    /// Runs until the server goes down or the job is deleted. What crashes here is a crash of the job, like one of its run.
    pub(crate) async fn run(mut self) {
        loop {
            match AssertUnwindSafe(self.next_step()).catch_unwind().await {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(Last::ShutDown)) => return self.shut_down().await,
                Ok(ControlFlow::Break(Last::Forget)) => return,
                Err(panic) => self.task_crashed(panic).await,
            }
        }
    }

    async fn next_step(&mut self) -> ControlFlow<Last> {
        self.at_work = crashes::AtWork::Looking;
        let work = self.next_work().await;
        self.at_work = crashes::AtWork::on(&work, self.next_kind);
        match work {
            Work::Shutdown => return ControlFlow::Break(Last::ShutDown),
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
                    return ControlFlow::Break(Last::Forget);
                }
            }
            Work::Gone => {
                self.core.forget(&self.job);
                return ControlFlow::Break(Last::Forget);
            }
        }
        ControlFlow::Continue(())
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
        self.show_what_others_do(&row);
        let mut checkpoints = Vec::new();
        let mut work = None;
        for (operation, request) in open {
            if self.waits_after_crash(Some(&operation.id)) {
                continue;
            }
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

    /// Whether another live server holds the job.
    fn is_of_another(&self, row: &JobRow) -> bool {
        row.owner
            .as_ref()
            .is_some_and(|owner| owner.live && owner.instance != self.core.settings.instance)
    }

    /// A job that this server has lost is what its row says: the new owner writes there how it goes on. What this server was
    /// about to do with it counts no longer.
    fn show_what_others_do(&self, row: &JobRow) {
        if self.run.is_some() || self.lease.is_some() {
            return;
        }
        let is_over = matches!(row.state, JobState::Stopped | JobState::Finished);
        let rests = row.state == JobState::Failed
            || (is_over && row.desired_state == DesiredState::Stopped);
        if !rests && !self.is_of_another(row) {
            return;
        }
        let mut facts = self.job.shared();
        if facts.state.is_some_and(|(shown, _)| shown != row.state) {
            facts.state = None;
            facts.waiting.clear();
            facts.refused = None;
        }
    }

    fn look_at_states(&self, row: &JobRow) -> Option<Work> {
        if self.run.is_some() {
            return None;
        }
        let others = self.is_of_another(row);
        match (row.desired_state, row.state) {
            _ if others => None,
            (_, JobState::Failed)
            | (DesiredState::Stopped, JobState::Stopped | JobState::Finished) => None,
            (DesiredState::Running, _) => {
                (Instant::now() >= self.start_at).then_some(Work::AutoStart)
            }
            (
                DesiredState::Stopped,
                JobState::Starting | JobState::Running | JobState::Stopping | JobState::BackingOff,
            ) => (!self.waits_after_crash(None)).then_some(Work::Settle),
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
        let is_allowed = refuse_trigger(&self.job.name, self.job.shared().spec());
        if let Err(error) = is_allowed {
            // It was asked for while the job took checkpoints.
            let outcome = failed("the job takes no checkpoints", &error);
            return self.finish(&operation, &outcome).await;
        }
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

/// Why a checkpoint was not taken: the job was stopped, or it failed.
fn job_ended(job: &JobEntry) -> ServiceError {
    let code = match job.state() {
        JobState::Stopping | JobState::Stopped | JobState::Finished => Code::JobNotRunning,
        JobState::Starting | JobState::Running | JobState::BackingOff | JobState::Failed => {
            Code::JobFailed
        }
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
