//! Restarts: asked for here, carried out by the job's task.

use serde_json::json;

use super::{
    Service,
    core::JobEntry,
    error::{Result, ServiceError},
    job_task::{StoredRestart, start_blocked},
    operations::accepted,
    queries::{Accepted, Caller},
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
        start::{RestartRequest, StartRequest},
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
        if let Some(plan) = &start.plan {
            let plan = self.usable_plan(name, plan).await?;
            if job.shared().run.is_some() {
                refuse_plan_of_checkpoint(name, &plan)?;
            }
        }
        if job.shared().run.is_some() {
            self.refuse_missing_topics(name, start).await?;
        }
        let mut new = self.new_operation(
            &job,
            OperationKind::Restart,
            json!(request),
            start.reason.as_ref(),
            caller,
        );
        let desired_before = job.shared().row.desired_state;
        new.request = json!(StoredRestart::new(request, desired_before));
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

    /// A topic or a partition that does not exist stands against the start whatever the stop brings about, also against the one
    /// that the server would try by itself then: said before anything is stopped. Brokers or a sink that do not answer are no
    /// reason to refuse.
    async fn refuse_missing_topics(&self, name: &JobName, start: &StartRequest) -> Result<()> {
        let Ok(mut decision) = self.decide(name, start).await else {
            return Ok(());
        };
        let blockers = &mut decision.resolved.blockers;
        blockers
            .retain(|blocker| matches!(blocker.code, Code::UnknownTopic | Code::UnknownPartition));
        if blockers.is_empty() {
            return Ok(());
        }
        let mut refused = start_blocked(&self.core, &decision.row, &decision.resolved, start, true);
        refused.detail.push_str("; nothing was stopped");
        Err(refused)
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
    Err(ServiceError::new(
        Code::PlanStale,
        format!(
            "plan {} rests on a checkpoint, and stopping takes another one; nothing was stopped",
            plan.id
        ),
    )
    .job(job)
    .hint("Restart without a plan, or stop first and start by a plan that is made then."))
}
