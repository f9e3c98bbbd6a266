//! Stepping over a record that a job failed at: asked for here, carried out by the job's task.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use super::{
    Service,
    core::JobEntry,
    error::{Result, ServiceError},
    operations::accepted,
    queries::{Accepted, Caller},
    sink_progress::{self, make_sink},
    start_plans::{Intent, StartQuestion, StartState, gather},
    without_checkpoints::refuse_skip,
};
use crate::{
    model::{
        code::Code,
        ids::JobName,
        job_state::DesiredState,
        job_status::FailedRecord,
        offset::Offset,
        operation::OperationKind,
        resolver::{Parking, ResolvedStart},
        skip::{SkipRequest, SkipVerdict, judge},
        start::StartRequest,
        views::SkipReport,
    },
    store::{JobRow, OperationOutcome},
};

/// How long a caller waits for what the brokers and the sink know.
const FACTS_DEADLINE: Duration = Duration::from_secs(10);

/// The refusal of a skip, in words.
pub(crate) fn not_blocked_there(job: &JobName, request: &SkipRequest, why: &str) -> ServiceError {
    ServiceError::new(
        Code::NotBlockedThere,
        format!(
            "{}@{} is not skipped: {why}",
            request.topic_partition(),
            request.offset
        ),
    )
    .job(job)
}

/// Where a bare start would begin in the record's partition.
pub(crate) fn position_in(
    resolved: &ResolvedStart,
    request: &SkipRequest,
) -> Result<Option<Offset>> {
    let partition = request.topic_partition();
    resolved
        .partitions
        .iter()
        .find(|planned| planned.exists() && planned.topic_partition() == partition)
        .map(|planned| planned.start_at.or(planned.kept))
        .ok_or_else(|| {
            ServiceError::new(
                Code::UnknownPartition,
                format!("the job does not read {partition}"),
            )
        })
}

/// The report of a skip that moves the partition.
pub(crate) fn skip_report(
    request: &SkipRequest,
    next: Offset,
    desired_state: DesiredState,
    dry_run: bool,
) -> SkipReport {
    let then = match desired_state {
        DesiredState::Running => "the job starts behind it by itself",
        DesiredState::Stopped => "the next start begins behind it",
    };
    let would = if dry_run { "would be" } else { "is" };
    SkipReport {
        summary: format!(
            "{}@{} {would} left out; {then}",
            request.topic_partition(),
            request.offset
        ),
        skipped: request.clone(),
        next_offset: Some(next),
        checkpoint: None,
        record: None,
        desired_state,
        dry_run,
    }
}

/// The report of a skip of a record that the job stands behind already.
pub(crate) fn passed_report(
    request: &SkipRequest,
    stands_at: Option<Offset>,
    desired_state: DesiredState,
    dry_run: bool,
) -> SkipReport {
    SkipReport {
        summary: format!(
            "{} stands behind {} already; nothing was changed",
            request.topic_partition(),
            request.offset
        ),
        next_offset: stands_at,
        ..skip_report(request, request.offset, desired_state, dry_run)
    }
}

/// The records at which a job that does not run may be stepped over.
pub(crate) fn failed_at(row: &JobRow) -> Vec<&FailedRecord> {
    let parked = row
        .parked
        .iter()
        .filter_map(|parked| parked.record.as_ref());
    row.failed_record.iter().chain(parked).collect()
}

/// What a skip of a running job comes to.
pub(crate) enum LiveVerdict {
    /// The partition is parked at the record.
    Parked,
    /// It is behind the record already.
    Passed(SkipReport),
}

/// Looks whether a partition of a running job is parked at a record.
///
/// # Errors
/// When it is not, and not behind it either.
pub(crate) fn judge_live(job: &JobEntry, request: &SkipRequest) -> Result<LiveVerdict> {
    let (run, desired) = {
        let facts = job.shared();
        (facts.run.clone(), facts.row.desired_state)
    };
    let partition = request.topic_partition();
    let status = run.map(|run| run.status());
    let parked = status
        .as_ref()
        .and_then(|status| status.parked.get(&partition));
    if parked.is_some_and(|parked| parked.stands_at_record(request.offset)) {
        return Ok(LiveVerdict::Parked);
    }
    let live = status
        .as_ref()
        .and_then(|status| status.partitions.get(&partition));
    let stands_at = live.and_then(|live| live.position);
    if stands_at.is_some_and(|stands_at| stands_at > request.offset) {
        let report = passed_report(request, stands_at, desired, false);
        return Ok(LiveVerdict::Passed(report));
    }
    let why = match (stands_at, parked) {
        (Some(stands_at), Some(parked)) => {
            format!("{partition} is parked at {stands_at}: {}", parked.detail)
        }
        (Some(stands_at), None) => {
            format!("the job runs, and {partition} stands at {stands_at}")
        }
        (None, _) => format!("the job runs, and {partition} has no position"),
    };
    Err(not_blocked_there(&job.name, request, &why))
}

/// The report of a skip of a running job.
pub(crate) fn live_skip_report(
    job: &JobEntry,
    request: &SkipRequest,
    next: Offset,
    dry_run: bool,
) -> SkipReport {
    let would = if dry_run { "would be" } else { "is" };
    let desired = job.shared().row.desired_state;
    SkipReport {
        summary: format!(
            "{}@{} {would} left out; the partition goes on behind it",
            request.topic_partition(),
            request.offset
        ),
        ..skip_report(request, next, desired, dry_run)
    }
}

impl Service {
    pub(super) async fn ask_skip(
        &self,
        name: &JobName,
        request: &SkipRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        let job = core.job(name).await?;
        let new = self.new_operation(
            &job,
            OperationKind::Skip,
            json!(request),
            request.reason.as_ref(),
            caller,
        );
        if job.shared().run.is_some()
            && let LiveVerdict::Passed(report) = judge_live(&job, request)?
        {
            let outcome = OperationOutcome::Succeeded {
                changed: false,
                step: "the job stands behind it already".to_owned(),
                result: json!(report),
            };
            let created = core.store.insert_finished_operation(&new, &outcome).await?;
            return accepted(name, created, None);
        }
        if job.shared().run.is_none() {
            refuse_skip(name, &job.row().spec, request)?;
        }
        let created = core.store.create_operation(&new, None).await?;
        let accepted = accepted(name, created, None)?;
        job.wake.notify_one();
        Ok(accepted)
    }

    /// The dry run: everything that is checked, without claiming anything.
    pub(super) async fn plan_skip(
        &self,
        name: &JobName,
        request: &SkipRequest,
    ) -> Result<SkipReport> {
        let core = &self.core;
        let job = core.job(name).await?;
        core.refresh(&job).await;
        if job.shared().run.is_some() {
            let report = match judge_live(&job, request)? {
                LiveVerdict::Passed(report) => report,
                LiveVerdict::Parked => {
                    let next = Offset::after(request.offset.get()).unwrap_or(request.offset);
                    live_skip_report(&job, request, next, true)
                }
            };
            return Ok(SkipReport {
                dry_run: true,
                ..report
            });
        }
        let row = job.row();
        refuse_skip(name, &row.spec, request)?;
        let intent = Intent::automatic();
        let state = StartState::read(core, &row, &intent.from).await?;
        let cluster = core.cluster(&row.spec.source.connection)?;
        let ids = (core.install().await?, row.uid);
        let sink = make_sink(core, &row.spec.sink, name, ids)?;
        let resolved = timeout(FACTS_DEADLINE, async {
            let progress = sink_progress::facts(sink.identity(), sink_progress::ask(&*sink).await);
            let plain = StartRequest::auto();
            let question = StartQuestion {
                spec: &row.spec,
                request: &plain,
                intent: &intent,
                state: &state,
                sink: &progress,
                // What stands against other partitions is no matter of this one.
                parking: Parking::of(row.spec.errors.block, &row.parked, true),
            };
            let facts = gather(&*cluster, &question, core.now()).await?;
            Ok::<_, ServiceError>(question.resolve(&facts))
        });
        let resolved = resolved.await.map_err(|_elapsed| {
            ServiceError::new(
                Code::KafkaTimeout,
                format!(
                    "Kafka and the sink did not say where {name} stands within {} s",
                    FACTS_DEADLINE.as_secs()
                ),
            )
        });
        let resolved = resolved
            .and_then(|resolved| resolved)
            .map_err(|error| error.job(name))?;
        if !resolved.blockers.is_empty() {
            let request = StartRequest::auto();
            return Err(super::job_task::start_blocked(
                core, &row, &resolved, &request, false,
            ));
        }
        let stands_at = position_in(&resolved, request).map_err(|error| error.job(name))?;
        match judge(request, stands_at, &failed_at(&row)) {
            SkipVerdict::Skip(next) => Ok(skip_report(request, next, row.desired_state, true)),
            SkipVerdict::Passed => {
                let desired = row.desired_state;
                Ok(passed_report(request, stands_at, desired, true))
            }
            SkipVerdict::NotThere(why) => Err(not_blocked_there(name, request, &why)),
        }
    }
}
