//! Moves a stopped job's consumer group.
//!
//! The lease is taken for it, although nothing runs: no other server can start the job meanwhile. What goes to the broker is
//! one request. From the moment before it is sent the operation is not begun anew by whoever finds it: `shift`, for one,
//! would move the group twice.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::{JobTask, Trouble, failed};
use crate::{
    engine::{
        error::{ErrorClass, KafkaError},
        ports::{JobLease, KafkaCluster},
    },
    model::{
        code::Code,
        event::{EventKind, HistoryEntry},
        field_error::FieldError,
        group_reset::ResetRequest,
        offset::PartitionOffsets,
        operation::{Operation, OperationStatus},
        topic::TopicPartition,
        views::ResetReport,
    },
    service::{
        error::{Result, ServiceError},
        reset_offsets::{ResetPlan, refuse_members, refuse_unless_stopped, reset_note},
    },
    store::OperationOutcome,
};

/// How long the group may take to answer when it is read to learn what became of a request.
const READ_BACK: Duration = Duration::from_secs(10);

/// A group that was moved, or stood there already.
struct Moved {
    report: ResetReport,
    changed: bool,
}

impl JobTask {
    pub(super) async fn reset_offsets(&mut self, operation: &Operation, request: &Value) {
        if self.run.is_some() {
            let running = ServiceError::new(Code::JobRunning, "the job runs").job(&self.job.name);
            return self.finish(operation, &failed("refused", &running)).await;
        }
        let lease = match self.own_to_settle().await {
            Ok(lease) => lease,
            Err(Trouble::Refused(error)) => {
                return self
                    .finish(operation, &failed("the lease is taken", &error))
                    .await;
            }
            Err(_) => return,
        };
        let (outcome, entry) = match self.move_group(&lease, operation, request).await {
            Ok(moved) => {
                let entry = moved.changed.then(|| HistoryEntry {
                    kind: EventKind::GroupMoved,
                    details: json!({"operation": operation.id, "report": moved.report}),
                });
                let outcome = OperationOutcome::Succeeded {
                    changed: moved.changed,
                    step: moved.report.summary.clone(),
                    result: json!(moved.report),
                };
                (outcome, entry)
            }
            Err(error) => (failed("not moved", &error.job(&self.job.name)), None),
        };
        let core = Arc::clone(&self.core);
        let settled = self
            .settle(|| async {
                let entry = entry.as_ref();
                let store = &core.store;
                Ok(store
                    .end_at_rest(&lease, &operation.id, &outcome, entry)
                    .await?)
            })
            .await;
        match settled {
            Ok(()) => {
                self.lease = None;
                self.job.measure_anew();
                self.core.refresh(&self.job).await;
                self.core.announce(&operation.id);
            }
            // Somebody else has the job by now, and finds the operation as it stands.
            Err(Trouble::Fenced) => self.lease = None,
            Err(Trouble::Refused(error)) => {
                self.lease = None;
                self.finish(operation, &failed("the outcome is stored", &error))
                    .await;
            }
            Err(Trouble::Away { .. } | Trouble::Interrupted) => {}
        }
    }

    async fn move_group(
        &self,
        lease: &JobLease,
        operation: &Operation,
        request: &Value,
    ) -> Result<Moved> {
        let core = &self.core;
        if operation.status == OperationStatus::Running {
            return Err(ServiceError::new(
                Code::OwnerLost,
                "the server ended while it moved the group; whether it was moved is not known",
            )
            .hint(format!(
                "Look at the offsets: where the group was moved, group_note ends with {}. Then ask again if it was not.",
                operation.id
            )));
        }
        let request = ResetRequest::read(request)
            .map_err(|faults| ServiceError::faults(faults, Code::InvalidRequest))?;
        core.refresh(&self.job).await;
        refuse_unless_stopped(&self.job)?;
        let row = self.job.row();
        refuse_members(core, &row).await?;
        let plan = ResetPlan::make(core, &row, &request).await?;
        if !plan.decision.changes_anything() {
            let report = plan.report(&row, &request, None);
            return Ok(Moved {
                report,
                changed: false,
            });
        }
        let install = core.install().await?;
        let note = reset_note(install, &row.name, &operation.id);
        core.store
            .point_of_no_return(lease, &operation.id, "the group is being moved")
            .await?;
        let cluster = core.cluster(&row.spec.source.connection)?;
        let group = &row.spec.source.group_id;
        send(&*cluster, group, &plan.decision.offsets(), &note).await?;
        Ok(Moved {
            report: plan.report(&row, &request, Some(note)),
            changed: true,
        })
    }
}

/// Sends the request; where its outcome is not known, the group is asked.
async fn send(
    cluster: &dyn KafkaCluster,
    group: &str,
    offsets: &PartitionOffsets,
    note: &str,
) -> Result<()> {
    let error = match cluster.alter_group_offsets(group, offsets, note).await {
        Ok(refused) if refused.is_empty() => return Ok(()),
        Ok(refused) => return Err(partly_refused(offsets.len(), &refused)),
        Err(error) => error,
    };
    let said_no = error.class == ErrorClass::Deterministic || error.code == Code::GroupInUse;
    if said_no {
        let error = ServiceError::from(error);
        let detail = format!("nothing was moved: {}", error.detail);
        return Err(ServiceError { detail, ..error });
    }
    let partitions: Vec<TopicPartition> = offsets.keys().cloned().collect();
    let found = timeout(READ_BACK, cluster.group_offsets(group, &partitions)).await;
    let Ok(Ok(found)) = found else {
        return Err(unknown(&error, "the group could not be read either"));
    };
    let stands = offsets.iter().all(|(partition, offset)| {
        found
            .get(partition)
            .is_some_and(|found| found.offset == *offset && found.note.as_deref() == Some(note))
    });
    if stands {
        return Ok(());
    }
    let then =
        "the group does not show the move, but a request that is late may still be carried out";
    Err(unknown(&error, then))
}

fn unknown(cause: &KafkaError, then: &str) -> ServiceError {
    ServiceError::new(
        Code::KafkaTimeout,
        format!("it is not known whether the group was moved: {cause}; {then}"),
    )
    .hint("Look at the offsets before asking again.")
}

/// The broker moved some and refused others, although all of them were there a moment ago.
fn partly_refused(all: usize, refused: &BTreeMap<TopicPartition, KafkaError>) -> ServiceError {
    let code = refused
        .values()
        .next()
        .map_or(Code::KafkaError, |error| error.code);
    let faults = refused.iter().map(|(partition, error)| {
        let pointer = format!("/partitions/{}/{}", partition.topic, partition.partition);
        FieldError::new(pointer, error.to_string())
    });
    ServiceError::new(
        code,
        format!(
            "the broker refused {} of {all} partitions and moved the others",
            refused.len()
        ),
    )
    .errors(faults.collect())
    .hint("Look at the offsets: what was moved carries the note of this operation.")
}
