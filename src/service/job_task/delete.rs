//! Deletes a job that does not run; its task ends with it.
//!
//! The group comes first, if it is to go: it can be refused, and then nothing was deleted. The sink's progress comes last
//! before the job: a job without it could not be started again. Whoever finds the operation after a crash does all of it
//! again, which changes nothing more.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::{JobTask, Trouble, failed};
use crate::{
    engine::ports::JobLease,
    model::{
        code::Code,
        deletion::{DeleteRequest, GroupFate},
        operation::Operation,
        views::GroupOutcome,
    },
    service::{
        deletions::{refuse_needed_group, refuse_unless_at_rest, report},
        error::{Result, ServiceError},
        sink_progress::make_sink,
    },
    store::{JobRow, OperationOutcome},
};

/// What is known of a deletion before the last step.
struct Prepared {
    outcome: OperationOutcome,
    purge: bool,
}

impl JobTask {
    /// `true`: the job is gone.
    pub(super) async fn delete(&mut self, operation: &Operation, request: &Value) -> bool {
        if self.run.is_some() {
            let running = ServiceError::new(Code::JobRunning, "the job runs").job(&self.job.name);
            self.finish(operation, &failed("refused", &running)).await;
            return false;
        }
        let lease = match self.own_to_settle().await {
            Ok(lease) => lease,
            Err(Trouble::Refused(error)) => {
                self.finish(operation, &failed("the lease is taken", &error))
                    .await;
                return false;
            }
            Err(_) => return false,
        };
        let core = Arc::clone(&self.core);
        let prepared = self.prepare_deletion(&lease, operation, request).await;
        let settled = match &prepared {
            Ok(Prepared { outcome, purge }) => {
                self.settle(|| async {
                    Ok(core
                        .store
                        .delete_job(&lease, &operation.id, outcome, *purge)
                        .await?)
                })
                .await
            }
            Err(error) => {
                let outcome = failed("not deleted", &error.clone().job(&self.job.name));
                self.settle(|| async {
                    Ok(core
                        .store
                        .end_at_rest(&lease, &operation.id, &outcome, None)
                        .await?)
                })
                .await
            }
        };
        match settled {
            Ok(()) => {
                self.lease = None;
                let gone = prepared.is_ok();
                if gone {
                    tracing::info!(job = %self.job.name, uid = %self.job.uid, "the job was deleted");
                    self.core.forget(&self.job);
                } else {
                    self.core.refresh(&self.job).await;
                }
                self.core.announce(&operation.id);
                gone
            }
            Err(Trouble::Fenced) => {
                self.lease = None;
                false
            }
            Err(Trouble::Refused(error)) => {
                self.finish(operation, &failed("the deletion is stored", &error))
                    .await;
                false
            }
            Err(Trouble::Away { .. } | Trouble::Interrupted) => false,
        }
    }

    async fn prepare_deletion(
        &self,
        lease: &JobLease,
        operation: &Operation,
        request: &Value,
    ) -> Result<Prepared> {
        let core = &self.core;
        let request = DeleteRequest::deserialize(request).map_err(|error| {
            ServiceError::new(
                Code::InvalidRequest,
                format!("the stored request cannot be read: {error}"),
            )
        })?;
        core.refresh(&self.job).await;
        refuse_unless_at_rest(&self.job)?;
        let row = self.job.row();
        // Fenced and open: nobody has deleted the job meanwhile, and no later one of its name uses the group.
        core.store
            .point_of_no_return(lease, &operation.id, "the job is being deleted")
            .await?;
        let group = match request.group {
            GroupFate::Keep => GroupOutcome::Kept,
            GroupFate::Delete => self.delete_group(&row).await?,
        };
        if request.purge {
            self.forget_progress(&row).await?;
        }
        let checkpoints = core.store.count_checkpoints(row.uid).await?;
        let report = report(&row, request, checkpoints, group);
        Ok(Prepared {
            outcome: OperationOutcome::Succeeded {
                changed: true,
                step: "deleted".to_owned(),
                result: json!(report),
            },
            purge: request.purge,
        })
    }

    /// Has the target forget how far the job had come. What was written there stays.
    async fn forget_progress(&self, row: &JobRow) -> Result<()> {
        let core = &self.core;
        let owner = (core.install().await?, row.uid);
        let sink = make_sink(core, &row.spec.sink, &row.name, owner)?;
        sink.forget().await.map_err(|error| {
            ServiceError::from(error)
                .hint("The job is still there. Delete it without purge, or ask again.")
        })
    }

    async fn delete_group(&self, row: &JobRow) -> Result<GroupOutcome> {
        refuse_needed_group(&self.core, row).await?;
        let source = &row.spec.source;
        let cluster = self.core.cluster(&source.connection)?;
        let existed = cluster
            .delete_group(&source.group_id)
            .await
            .map_err(|error| {
                ServiceError::from(error)
                    .hint("The job is still there. Delete it without group=delete, or ask again: a group that is gone is none that stands in the way.")
            })?;
        Ok(if existed {
            GroupOutcome::Deleted
        } else {
            GroupOutcome::Absent
        })
    }
}
