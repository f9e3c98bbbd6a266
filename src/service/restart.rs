//! Restarts: asked for here, carried out by the job's task.

use serde_json::json;

use super::{
    Service,
    core::{Core, JobEntry},
    dead_letters,
    error::{Result, ServiceError},
    job_task::{StoredRestart, start_blocked},
    operations::accepted,
    queries::{Accepted, Caller},
    start_plans::{decide, plan_stale, what_changed_outside},
    startup_mode::refuse_future_start,
    without_checkpoints::{refuse_required, refuse_restore},
};
use crate::{
    model::{
        code::Code,
        ids::{JobName, OperationId},
        job_state::DesiredState,
        operation::OperationKind,
        resolver::StartBasis,
        start::{RestartRequest, StartRequest, StopRequest},
    },
    store::{CreateOperation, StoredPlan},
};

impl Service {
    pub(super) async fn ask_restart(
        &self,
        name: &JobName,
        request: &RestartRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        let start = &request.start;
        refuse_future_start(&start.from, core.now()).map_err(|error| error.job(name))?;
        let job = core.job(name).await?;
        core.refresh(&job).await;
        refuse_restore(name, &job.row().spec, &start.from)?;
        refuse_required(name, job.shared().spec(), request.stop.checkpoint)?;
        let plan = match &start.plan {
            Some(plan) => Some(self.usable_plan(name, plan).await?),
            None => None,
        };
        let mut new = self.new_operation(
            &job,
            OperationKind::Restart,
            json!(request),
            start.reason.as_ref(),
            caller,
        );
        let desired_before = job.shared().row.desired_state;
        new.request = json!(StoredRestart::new(request, desired_before));
        // What was taken on before is answered as it was: it moved what it would be decided against now.
        let is_new = core.store.operation_made_before(&new).await?.is_none();
        if is_new && job.shared().run.is_some() {
            let asked = (start, &request.stop);
            refuse_before_stop(core, name, asked, plan.as_ref()).await?;
        }
        let created = core
            .store
            .create_operation(&new, Some(DesiredState::Running))
            .await?;
        let same = match &created {
            CreateOperation::Busy(other) => {
                self.asks_for_the_same(&job, &other.id, request).await?
            }
            CreateOperation::Created(_)
            | CreateOperation::Replayed(_)
            | CreateOperation::KeyReused
            | CreateOperation::Joined(_) => false,
        };
        let accepted = accepted(name, created, same.then_some(OperationKind::Restart))?;
        if !accepted.operation.status.is_final() {
            job.shared().row.desired_state = DesiredState::Running;
            job.wake.notify_one();
        }
        Ok(accepted)
    }

    /// Whether an open operation is a restart to the same place: then it does for both.
    async fn asks_for_the_same(
        &self,
        job: &JobEntry,
        id: &OperationId,
        request: &RestartRequest,
    ) -> Result<bool> {
        let open = self.core.store.open_operations(job.uid).await?;
        let other = open.into_iter().find(|(operation, _)| operation.id == *id);
        Ok(other.is_some_and(|(operation, stored)| {
            operation.kind == OperationKind::Restart
                && serde_json::from_value::<StoredRestart>(stored)
                    .is_ok_and(|stored| stored.is_same(request))
        }))
    }
}

/// Decides the start against where the run stands, as its stop would leave it, and refuses what the stop would not change.
///
/// Brokers, a store or a sink that do not answer are no reason to refuse: the start waits for them. Its own decision counts
/// in any case: what changes between the two is found out there.
pub(super) async fn refuse_before_stop(
    core: &Core,
    name: &JobName,
    (start, stop): (&StartRequest, &StopRequest),
    plan: Option<&StoredPlan>,
) -> Result<()> {
    if let Some(plan) = plan {
        refuse_plan_of_checkpoint(name, plan)?;
    }
    let meant = plan.map_or(start, |plan| &plan.request);
    let decided = decide(core, name, meant, Some(stop)).await;
    let mut decision = match decided {
        Ok(decision) => decision,
        Err(error) if error.code == Code::CheckpointNotFound => {
            return Err(nothing_was_stopped(error));
        }
        Err(error) => {
            tracing::debug!(job = %name, %error, "a restart cannot be decided before its stop");
            return Ok(());
        }
    };
    if let Some(plan) = plan {
        let row = &decision.row;
        let pending = row.pending_start.as_ref();
        let pending = pending.map(|pending| pending.id.as_str());
        let changes = what_changed_outside(plan, row.generation, pending, &decision.facts);
        if !changes.is_empty() {
            return Err(nothing_was_stopped(plan_stale(name, &changes)));
        }
        decision.resolved.blockers.clear();
    }
    let letters = dead_letters::look(core, &decision.row.spec).await;
    decision.resolved.blockers.extend(letters.blocker());
    if decision.resolved.blockers.is_empty() {
        return Ok(());
    }
    let row = &decision.row;
    let refused = start_blocked(core, row, &decision.resolved, start, true);
    Err(nothing_was_stopped(refused))
}

/// Whether a plan says itself where every partition begins; the stop's own checkpoint makes any other one stale.
pub(super) fn outlives_a_stop(plan: &StoredPlan) -> bool {
    plan.resolved.basis == StartBasis::OneShot
        && plan.request.partitions.is_none()
        && plan.pending_start.is_none()
}

/// The stop's own checkpoint would make such a plan stale: said before anything is stopped.
fn refuse_plan_of_checkpoint(job: &JobName, plan: &StoredPlan) -> Result<()> {
    if outlives_a_stop(plan) {
        return Ok(());
    }
    let error = ServiceError::new(
        Code::PlanStale,
        format!(
            "plan {} rests on a checkpoint, and stopping takes another one",
            plan.id
        ),
    )
    .job(job)
    .hint("Restart without a plan, or stop first and start by a plan that is made then.");
    Err(nothing_was_stopped(error))
}

/// A restart that is refused before its stop leaves the run alone, and says so.
fn nothing_was_stopped(mut error: ServiceError) -> ServiceError {
    error
        .detail
        .push_str("; nothing was stopped, and the job runs on");
    error
}
