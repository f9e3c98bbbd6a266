//! Deleting a job: checked here, carried out by the job's task, which ends with it.

use serde_json::json;

use super::{
    Service,
    core::{Core, JobEntry},
    error::{Result, ServiceError},
    operations::accepted,
    queries::{Accepted, Caller},
    reset_offsets::refuse_members,
};
use crate::{
    model::{
        code::Code,
        deletion::{DeleteRequest, GroupFate},
        ids::JobName,
        job_state::{DesiredState, JobState},
        operation::OperationKind,
        views::{DeleteReport, DeletedGroup, GroupOutcome},
    },
    store::JobRow,
};

/// What a deletion deletes, in words and numbers.
pub(crate) fn report(
    row: &JobRow,
    request: DeleteRequest,
    checkpoints: i64,
    outcome: GroupOutcome,
) -> DeleteReport {
    let group = &row.spec.source.group_id;
    let its_checkpoints = match (checkpoints, request.purge) {
        (0, _) => "it has no checkpoints".to_owned(),
        (1, true) => "its checkpoint goes with it".to_owned(),
        (1, false) => "its checkpoint is kept for 30 days".to_owned(),
        (_, true) => format!("its {checkpoints} checkpoints go with it"),
        (_, false) => format!("its {checkpoints} checkpoints are kept for 30 days"),
    };
    let group_too = match outcome {
        GroupOutcome::Kept => format!("the consumer group {group} stays"),
        GroupOutcome::Deleted => format!("the consumer group {group} goes with it"),
        GroupOutcome::Absent => format!("there is no consumer group {group}"),
    };
    DeleteReport {
        summary: format!("job {}: {its_checkpoints}; {group_too}", row.name),
        job: row.name.clone(),
        checkpoints,
        purged: request.purge,
        group: DeletedGroup {
            group_id: group.clone(),
            connection: row.spec.source.connection.clone(),
            outcome,
        },
    }
}

/// Refuses to delete a job that runs. One that has failed has no run, and nothing of it is needed any more.
pub(crate) fn refuse_unless_at_rest(job: &JobEntry) -> Result<()> {
    let (state, desired) = {
        let facts = job.shared();
        (facts.shown_state().0, facts.row.desired_state)
    };
    let is = match (state, desired) {
        (JobState::Failed, _) | (JobState::Stopped | JobState::Finished, DesiredState::Stopped) => {
            return Ok(());
        }
        (JobState::Stopped | JobState::Finished, DesiredState::Running) => "about to start",
        (
            state @ (JobState::Starting
            | JobState::Running
            | JobState::Stopping
            | JobState::BackingOff),
            _,
        ) => state.name(),
    };
    Err(ServiceError::new(Code::JobRunning, format!("job {} is {is}", job.name)).job(&job.name))
}

/// Refuses to delete a group that somebody else needs.
pub(crate) async fn refuse_needed_group(core: &Core, row: &JobRow) -> Result<()> {
    let source = &row.spec.source;
    let others = core
        .store
        .other_users_of_group(row.uid, &source.connection, &source.group_id)
        .await?;
    if let Some(other) = others.first() {
        return Err(ServiceError::new(
            Code::GroupInUse,
            format!(
                "job {other} uses the consumer group {}, too",
                source.group_id
            ),
        )
        .job(&row.name)
        .hint("Delete the job without group=delete; the group stays for the other."));
    }
    refuse_members(core, row).await
}

fn refuse_unconfirmed(name: &JobName, confirm: Option<&str>) -> Result<()> {
    let detail = match confirm {
        Some(confirm) if confirm == name.as_str() => return Ok(()),
        Some(confirm) => format!("confirm={confirm} does not name the job {name}"),
        None => format!("job {name} is deleted only with ?confirm={name}"),
    };
    Err(ServiceError::new(Code::NotConfirmed, detail).job(name))
}

impl Service {
    pub(super) async fn ask_delete(
        &self,
        name: &JobName,
        request: DeleteRequest,
        confirm: Option<&str>,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        let job = core.job(name).await?;
        refuse_unconfirmed(name, confirm)?;
        core.refresh(&job).await;
        refuse_unless_at_rest(&job)?;
        let caller = Caller {
            // Repeating it is harmless, and its key would have to go with the job.
            idempotency_key: None,
            ..caller.clone()
        };
        let new = self.new_operation(&job, OperationKind::Delete, json!(request), None, &caller);
        let created = core.store.create_operation(&new, None).await?;
        let accepted = accepted(name, created, Some(OperationKind::Delete))?;
        job.wake.notify_one();
        Ok(accepted)
    }

    /// The dry run: everything that can be checked, and what would go.
    pub(super) async fn plan_delete(
        &self,
        name: &JobName,
        request: DeleteRequest,
        confirm: Option<&str>,
    ) -> Result<DeleteReport> {
        let core = &self.core;
        let job = core.job(name).await?;
        // It deletes nothing, so it needs no confirmation; a wrong one is a fault all the same.
        if confirm.is_some() {
            refuse_unconfirmed(name, confirm)?;
        }
        core.refresh(&job).await;
        refuse_unless_at_rest(&job)?;
        let row = job.row();
        let open = core.store.open_operations(row.uid).await?;
        if let Some((operation, _)) = open.into_iter().next() {
            return Err(ServiceError::new(
                Code::OperationInProgress,
                format!("operation {} of job {name} is under way", operation.id),
            )
            .job(name)
            .operation(operation));
        }
        let outcome = match request.group {
            GroupFate::Keep => GroupOutcome::Kept,
            GroupFate::Delete => {
                refuse_needed_group(core, &row).await?;
                GroupOutcome::Deleted
            }
        };
        let checkpoints = core.store.count_checkpoints(row.uid).await?;
        Ok(report(&row, request, checkpoints, outcome))
    }
}
