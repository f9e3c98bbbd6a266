//! Steps over one record for an operator.
//!
//! The same road as a start: the lease first, then the sink is claimed, then it is worked out where a bare start would
//! begin. Only if that is the record in question, and the job is known to have failed at it, a checkpoint says otherwise for
//! this one partition. It is stored together with the end of the operation, so repeating all of it after a crash is right.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{JobTask, Step, Trouble, failed, note_step, read_request, start_blocked};
use crate::{
    engine::{
        ports::{ConsumerSettings, KafkaCluster},
        read_records,
    },
    model::{
        checkpoint::{Checkpoint, CheckpointKind, CheckpointPosition},
        code::Code,
        job_state::JobState,
        operation::Operation,
        skip::{SkipRequest, SkipVerdict, judge},
        start::StartRequest,
        views::{SkipReport, SkippedRecord},
    },
    service::{
        error::ServiceError,
        monitor::refresh_checkpoint,
        sink_progress,
        skip::{failed_at, not_blocked_there, passed_report, position_in, skip_report},
        start_plans::start_checkpoint,
        without_checkpoints::refuse_skip,
    },
    store::{JobRow, OperationOutcome},
};

/// How long the record may take to be read. It is left out whether or not it can be.
const READ: Duration = Duration::from_secs(10);

/// How a skip ends, and what it leaves if it changes anything.
type Ended = (OperationOutcome, Option<(Checkpoint, SkipReport)>);

impl JobTask {
    pub(super) async fn skip(&mut self, operation: &Operation, request: &Value) {
        let Some(request) = read_request(request, SkipRequest::read) else {
            let error = ServiceError::new(Code::InvalidRequest, "the stored request is not known");
            return self
                .finish(operation, &failed("the request is read", &error))
                .await;
        };
        if let Some(run) = self.run.clone() {
            return self.skip_live(operation, &request, run).await;
        }
        let ended = match self.work_out_skip(operation, &request).await {
            Err(Trouble::Refused(error)) => {
                Ok((failed("refused", &error.job(&self.job.name)), None))
            }
            other => other,
        };
        self.job.shared().waiting.clear();
        match ended {
            Ok((outcome, skip)) => self.end_skip(operation, &outcome, skip.as_ref()).await,
            // A stop called it off, or the server goes down and the next one takes it up.
            Err(Trouble::Interrupted) => {}
            Err(Trouble::Fenced) => {
                self.lease = None;
                self.start_later();
            }
            Err(Trouble::Away { detail, .. }) => {
                tracing::warn!(job = %self.job.name, detail, "the skip is tried again");
                self.start_later();
            }
            Err(Trouble::Refused(_)) => {}
        }
    }

    async fn end_skip(
        &mut self,
        operation: &Operation,
        outcome: &OperationOutcome,
        skip: Option<&(Checkpoint, SkipReport)>,
    ) {
        let Some(lease) = self.lease else {
            return self.finish(operation, outcome).await;
        };
        let core = Arc::clone(&self.core);
        let ended = self
            .settle(|| async {
                let skip = skip.map(|(checkpoint, report)| (checkpoint, report));
                let store = &core.store;
                Ok(store.end_skip(&lease, &operation.id, outcome, skip).await?)
            })
            .await;
        match ended {
            Ok(()) => {}
            Err(Trouble::Fenced) => {
                self.lease = None;
                return self.start_later();
            }
            Err(Trouble::Refused(error)) => {
                let outcome = failed("the outcome is stored", &error);
                return self.finish(operation, &outcome).await;
            }
            Err(Trouble::Away { .. } | Trouble::Interrupted) => return,
        }
        self.lease = None;
        self.restarts = 0;
        if skip.is_some() {
            // Whoever sees the state sees what belongs to it.
            refresh_checkpoint(&self.core, &self.job).await;
            self.show_row(JobState::Stopped, None, None);
        }
        self.core.refresh(&self.job).await;
        refresh_checkpoint(&self.core, &self.job).await;
        self.job.measure_anew();
        self.core.announce(&operation.id);
    }

    async fn work_out_skip(&mut self, operation: &Operation, request: &SkipRequest) -> Step<Ended> {
        let lease = self.own(Some(operation)).await?;
        let claim = self.claim_sink(Some(operation), &lease).await?;
        refuse_skip(&claim.row.name, &claim.row.spec, request).map_err(Trouble::Refused)?;
        let sink = sink_progress::claimed(&*claim.sink, claim.progress.clone());
        let (resolved, _, cluster) = self.decide(Some(operation), None, &claim, &sink).await?;
        if !resolved.blockers.is_empty() {
            let request = StartRequest::auto();
            let refused = start_blocked(&self.core, &claim.row, &resolved, &request, false);
            return Err(Trouble::Refused(refused));
        }
        let stands_at = position_in(&resolved, request).map_err(Trouble::Refused)?;
        let desired = claim.row.desired_state;
        let next = match judge(request, stands_at, &failed_at(&claim.row)) {
            SkipVerdict::Skip(next) => next,
            SkipVerdict::Passed => {
                let report = passed_report(request, stands_at, desired, false);
                return Ok((unchanged(&report), None));
            }
            SkipVerdict::NotThere(why) => {
                let error = not_blocked_there(&claim.row.name, request, &why);
                return Err(Trouble::Refused(error));
            }
        };
        note_step(&self.core, operation, "the record is read").await;
        let record = self.record_of(&claim.row, cluster, request).await;
        let id = self
            .next_checkpoint_id(Some(operation), &claim.progress)
            .await?;
        let identity = claim.sink.identity();
        let now = self.core.now();
        let mut checkpoint = start_checkpoint(&resolved, id, lease.epoch, identity, now);
        checkpoint.kind = CheckpointKind::Skip;
        let moved = |position: &mut CheckpointPosition| {
            position.next_offset = Some(next);
            position.position_id = id;
        };
        let partition = request.topic_partition();
        checkpoint.positions.entry(partition).and_modify(moved);
        let report = SkipReport {
            checkpoint: Some(id),
            record,
            ..skip_report(request, next, desired, false)
        };
        let outcome = OperationOutcome::Succeeded {
            changed: true,
            step: format!("checkpoint {id} is stored"),
            result: json!(report),
        };
        Ok((outcome, Some((checkpoint, report))))
    }

    /// What is kept of the record. One that cannot be read is left out all the same.
    pub(super) async fn record_of(
        &self,
        row: &JobRow,
        cluster: Arc<dyn KafkaCluster>,
        request: &SkipRequest,
    ) -> Option<SkippedRecord> {
        let settings = ConsumerSettings {
            job: row.name.to_string(),
            subtask: 0,
            source: row.spec.source.clone(),
        };
        let partition = request.topic_partition();
        let record = match read_records(cluster, settings, partition, request.offset, 1, READ).await
        {
            Ok(records) => records
                .into_iter()
                .find(|record| record.record_offset == request.offset.get())?,
            Err(error) => {
                tracing::warn!(job = %row.name, %error, "the record that is left out cannot be read");
                return None;
            }
        };
        let value_bytes = record.value.as_ref().map(Vec::len);
        let value_sha256 = match record.value {
            Some(value) => self.core.store.sha256(value).await.ok(),
            None => None,
        };
        Some(SkippedRecord {
            timestamp_ms: record.timestamp_ms,
            key_bytes: record.key.as_ref().map(Vec::len),
            value_bytes,
            value_sha256,
        })
    }
}

pub(super) fn unchanged(report: &SkipReport) -> OperationOutcome {
    OperationOutcome::Succeeded {
        changed: false,
        step: "the job stands behind it already".to_owned(),
        result: json!(report),
    }
}
