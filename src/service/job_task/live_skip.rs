//! Steps over the record at which a partition of a running job is parked.
//!
//! The run itself does it: only it knows where the partition stands, and it stores the position behind the record as a
//! checkpoint before the partition goes on there. Repeating it after a crash finds the partition parked, or behind.

use serde_json::json;

use super::{JobTask, failed, note_step, skip::unchanged, waiting::Trouble};
use crate::{
    engine::{JobHandle, SkipOutcome, ports::JobLease},
    model::{
        operation::Operation,
        skip::SkipRequest,
        views::{SkipReport, SkippedRecord},
    },
    service::skip::{LiveVerdict, judge_live, live_skip_report, not_blocked_there},
    store::OperationOutcome,
};

impl JobTask {
    pub(super) async fn skip_live(
        &mut self,
        operation: &Operation,
        request: &SkipRequest,
        run: JobHandle,
    ) {
        let record = match judge_live(&self.job, request) {
            Ok(LiveVerdict::Passed(report)) => {
                return self.finish(operation, &unchanged(&report)).await;
            }
            Ok(LiveVerdict::Parked) => self.read_what_is_left_out(operation, request).await,
            Err(error) => return self.finish(operation, &failed("refused", &error)).await,
        };
        note_step(
            &self.core,
            operation,
            "the position behind the record is being stored",
        )
        .await;
        let outcome = tokio::select! {
            outcome = run.skip(request.topic_partition(), request.offset) => outcome,
            // A stop stores the position with its own checkpoint, and the operation is taken up again then.
            () = self.interrupted() => return,
        };
        match outcome {
            Some(SkipOutcome::Skipped {
                checkpoint,
                next_offset,
            }) => {
                let report = SkipReport {
                    checkpoint,
                    record,
                    ..live_skip_report(&self.job, request, next_offset, false)
                };
                self.end_live_skip(operation, &report).await;
            }
            Some(SkipOutcome::NotParkedThere) => {
                let outcome = match judge_live(&self.job, request) {
                    Ok(LiveVerdict::Passed(report)) => unchanged(&report),
                    Ok(LiveVerdict::Parked) => failed(
                        "refused",
                        &not_blocked_there(&self.job.name, request, "it was decided meanwhile"),
                    ),
                    Err(error) => failed("refused", &error),
                };
                self.finish(operation, &outcome).await;
            }
            // The run has ended; what it stored tells.
            None => self.start_later(),
        }
    }

    async fn read_what_is_left_out(
        &self,
        operation: &Operation,
        request: &SkipRequest,
    ) -> Option<SkippedRecord> {
        note_step(&self.core, operation, "the record is read").await;
        let row = self.job.row();
        let cluster = self.core.cluster(&row.spec.source.connection).ok()?;
        self.record_of(&row, cluster, request).await
    }

    async fn end_live_skip(&mut self, operation: &Operation, report: &SkipReport) {
        let outcome = OperationOutcome::Succeeded {
            changed: true,
            step: "the partition goes on behind the record".to_owned(),
            result: json!(report),
        };
        let Some(lease) = self.lease else {
            return self.finish(operation, &outcome).await;
        };
        let store = &self.core.store;
        let lease: &JobLease = &lease;
        let ended = self
            .settle(|| async {
                store
                    .end_live_skip(lease, &operation.id, &outcome, report)
                    .await?;
                Ok(())
            })
            .await;
        match ended {
            Ok(()) => self.core.announce(&operation.id),
            Err(Trouble::Refused(error)) => {
                self.finish(operation, &failed("the outcome is stored", &error))
                    .await;
            }
            // Another server takes it up, and finds the partition behind the record.
            Err(Trouble::Fenced | Trouble::Away { .. } | Trouble::Interrupted) => {}
        }
        self.job.measure_anew();
    }
}
