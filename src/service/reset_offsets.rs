//! Moving a job's consumer group: checked and decided here, carried out by the job's task.
//!
//! The job must be stopped, which means more than that nothing of it runs: a stop has awaited the last commit and closed the
//! clients, so nothing of the old run can commit after the group was moved. A job that has failed has no run either, but it
//! is still meant to run and nobody has settled what its run left; its stop does both, so it is asked for first.

use std::{collections::BTreeMap, future::Future, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::{
    Service,
    core::{Core, JobEntry},
    error::{Result, ServiceError},
    monitor::partitions_of,
    operations::accepted,
    queries::{Accepted, Caller},
    start_plans::StartState,
    startup_mode::refuse_future_start,
};
use crate::{
    engine::{error::KafkaError, ports::KafkaCluster, topics},
    model::{
        code::Code,
        group_reset::{
            ResetDecision, ResetFault, ResetInputs, ResetMove, ResetRequest, ResetTo, decide,
        },
        ids::{CheckpointId, InstallId, JobName, OperationId},
        job::SourceSpec,
        job_state::{DesiredState, JobState},
        operation::OperationKind,
        resolver::{BrokerFacts, PartitionFacts, Warning},
        start::StartFrom,
        topic::TopicPartition,
        views::{PartitionRef, ResetPartition, ResetReport},
    },
    store::JobRow,
};

/// How long the brokers may take to say what the decision needs.
const FACTS_DEADLINE: Duration = Duration::from_secs(15);

/// The note beside the offsets of a moved group. By it the offsets view tells a reset from a commit of somebody else.
pub(crate) fn reset_note(install: InstallId, job: &JobName, operation: &OperationId) -> String {
    format!("handover:{}:{job}:{operation}", install.short())
}

/// Where a group goes, and what that rests on.
pub(crate) struct ResetPlan {
    pub(crate) decision: ResetDecision,
    /// The checkpoint whose positions are taken.
    checkpoint: Option<CheckpointId>,
    /// The checkpoint that the job goes on from, which does not move.
    newest: Option<CheckpointId>,
}

impl ResetPlan {
    /// Works it out, all or nothing.
    pub(crate) async fn make(core: &Core, row: &JobRow, request: &ResetRequest) -> Result<Self> {
        Self::work_out(core, row, request)
            .await
            .map_err(|error| error.job(&row.name))
    }

    async fn work_out(core: &Core, row: &JobRow, request: &ResetRequest) -> Result<Self> {
        refuse_future(core, request)?;
        let from = if let ResetTo::Checkpoint { id } = &request.to {
            StartFrom::Checkpoint { checkpoint: *id }
        } else {
            StartFrom::Auto
        };
        let state = StartState::read(core, row, &from).await?;
        let cluster = core.cluster(&row.spec.source.connection)?;
        let facts = ask(core, &*cluster, &row.spec.source, request).await?;
        let checkpoint = (from != StartFrom::Auto)
            .then(|| state.chosen.as_ref().or(state.newest.as_ref()))
            .flatten();
        let inputs = ResetInputs {
            request,
            isolation: row.spec.source.isolation,
            checkpoint,
            facts: &facts,
        };
        let decision = decide(&inputs).map_err(|faults| refused(&faults))?;
        Ok(Self {
            decision,
            checkpoint: checkpoint.map(|checkpoint| checkpoint.id),
            newest: state.newest.map(|newest| newest.id),
        })
    }

    pub(crate) fn report(
        &self,
        row: &JobRow,
        request: &ResetRequest,
        note: Option<String>,
    ) -> ResetReport {
        let group = &row.spec.source.group_id;
        let mut warnings = Vec::new();
        if let Some(newest) = self.newest {
            warnings.push(Warning {
                code: Code::GroupOnlyMoved,
                summary: format!(
                    "the job does not follow: a start goes on from checkpoint {newest}, and its next checkpoint takes the group back with it; start with from=group-offsets to begin where the group stands"
                ),
            });
        }
        ResetReport {
            summary: summary(group, &self.decision),
            job: row.name.clone(),
            group_id: group.clone(),
            mode: request.to.name().to_owned(),
            checkpoint: self.checkpoint,
            partitions: self.decision.moves.iter().map(partition_view).collect(),
            left_out: self.decision.left_out.iter().map(partition_ref).collect(),
            note,
            warnings,
        }
    }
}

fn summary(group: &str, decision: &ResetDecision) -> String {
    let (mut back, mut forward, mut stand) = (0_usize, 0_usize, 0_usize);
    for ResetMove { from, to, .. } in decision.moves.values() {
        match from {
            Some(from) if from == to => stand += 1,
            Some(from) if from > to => back += 1,
            _ => forward += 1,
        }
    }
    let partitions = match decision.moves.len() {
        1 => "1 partition".to_owned(),
        more => format!("{more} partitions"),
    };
    format!("group {group}: {partitions}, {back} back, {forward} forward, {stand} unchanged")
}

fn partition_view((partition, to): (&TopicPartition, &ResetMove)) -> ResetPartition {
    ResetPartition {
        topic: partition.topic.to_string(),
        partition: partition.partition,
        from: to.from,
        to: to.to,
        moved_by: to.from.map(|from| to.to.distance_from(from)),
        clamped: to.asked.is_some(),
        asked: to.asked,
    }
}

fn partition_ref(partition: &TopicPartition) -> PartitionRef {
    PartitionRef {
        topic: partition.topic.to_string(),
        partition: partition.partition,
    }
}

/// Every partition at fault in one answer.
fn refused(faults: &[ResetFault]) -> ServiceError {
    let first = faults.first();
    let code = first.map_or(Code::InvalidRequest, |fault| fault.code);
    let detail = match faults {
        [only] => format!("nothing was moved: {}", only.error.message),
        all => format!(
            "nothing was moved: {} partitions cannot go there, the first is {}",
            all.len(),
            first.map_or("", |fault| fault.error.message.as_str())
        ),
    };
    let error = ServiceError::new(code, detail)
        .errors(faults.iter().map(|fault| fault.error.clone()).collect());
    if faults
        .iter()
        .all(|fault| fault.code == Code::OffsetOutOfRange)
    {
        return error.hint(
            "Choose another position, or send \"clamp\": true to take the nearest end of the log.",
        );
    }
    error
}

fn refuse_future(core: &Core, request: &ResetRequest) -> Result<()> {
    let ResetTo::Timestamp { timestamp } = &request.to else {
        return Ok(());
    };
    let timestamp = *timestamp;
    refuse_future_start(&StartFrom::Timestamp { timestamp }, core.now())
}

/// A group that has live members, with their number.
pub(crate) fn group_in_use(row: &JobRow, members: usize) -> ServiceError {
    ServiceError::new(
        Code::GroupInUse,
        format!(
            "the consumer group {} has {members} live {}, none of them this job",
            row.spec.source.group_id,
            if members == 1 { "member" } else { "members" }
        ),
    )
    .job(&row.name)
}

/// Asks the brokers. The members come first: with some, nothing else matters.
async fn ask(
    core: &Core,
    cluster: &dyn KafkaCluster,
    source: &SourceSpec,
    request: &ResetRequest,
) -> Result<BrokerFacts> {
    let instant = request.to.instant(core.now());
    let asked = facts(cluster, source, instant);
    within(asked).await
}

/// A question before anything is changed.
async fn within<T>(asked: impl Future<Output = std::result::Result<T, KafkaError>>) -> Result<T> {
    let error = match timeout(FACTS_DEADLINE, asked).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => ServiceError::from(error),
        Err(_elapsed) => ServiceError::new(
            Code::KafkaTimeout,
            format!("no answer within {} s", FACTS_DEADLINE.as_secs()),
        ),
    };
    let detail = format!("nothing was changed: {}", error.detail);
    let error = ServiceError { detail, ..error };
    if error.retry_after.is_some() {
        return Err(error.hint("Look at the brokers, then ask again."));
    }
    Err(error)
}

/// The group's offsets come before the ends of the logs, and those before the look-up by time stamp: a number is never held
/// against an end that is older than itself.
async fn facts(
    cluster: &dyn KafkaCluster,
    source: &SourceSpec,
    instant: Option<i64>,
) -> std::result::Result<BrokerFacts, KafkaError> {
    let mut facts = BrokerFacts::default();
    for topic in topics::describe(cluster, source).await? {
        if topic.partitions.is_none() {
            facts.missing_topics.push(topic.name.clone());
        }
        for (partition, _leader) in partitions_of(&topic) {
            let known = PartitionFacts {
                topic_id: topic.id.clone(),
                ..PartitionFacts::default()
            };
            facts.partitions.insert(partition, known);
        }
    }
    let partitions: Vec<TopicPartition> = facts.partitions.keys().cloned().collect();
    if partitions.is_empty() {
        return Ok(facts);
    }
    let group = cluster.group_offsets(&source.group_id, &partitions).await?;
    let bounds = cluster.log_bounds(&partitions).await?;
    let led: Vec<TopicPartition> = bounds.keys().cloned().collect();
    let found = match instant {
        Some(instant) => {
            let isolation = source.isolation;
            cluster
                .offsets_for_timestamp(&led, instant, isolation)
                .await?
        }
        None => BTreeMap::new(),
    };
    for (partition, known) in &mut facts.partitions {
        known.group_offset = group.get(partition).map(|group| group.offset);
        known.bounds = bounds.get(partition).copied();
        known.at_timestamp = found.get(partition).copied();
    }
    Ok(facts)
}

/// Refuses what needs a stopped job.
pub(crate) fn refuse_unless_stopped(job: &JobEntry) -> Result<()> {
    let (state, desired) = {
        let facts = job.shared();
        (facts.shown_state().0, facts.row.desired_state)
    };
    let error = match (state, desired) {
        (JobState::Stopped | JobState::Finished, DesiredState::Stopped) => return Ok(()),
        (JobState::Failed, _) => ServiceError::new(
            Code::JobNotStopped,
            format!("job {} has failed and was not stopped since", job.name),
        ),
        (JobState::Stopped | JobState::Finished, DesiredState::Running) => ServiceError::new(
            Code::JobRunning,
            format!("job {} is about to start", job.name),
        ),
        (
            state @ (JobState::Starting
            | JobState::Running
            | JobState::Stopping
            | JobState::BackingOff),
            _,
        ) => ServiceError::new(
            Code::JobRunning,
            format!("job {} is {}", job.name, state.name()),
        ),
    };
    Err(error.job(&job.name))
}

impl Service {
    pub(super) async fn ask_reset(
        &self,
        name: &JobName,
        request: &ResetRequest,
        caller: &Caller,
    ) -> Result<Accepted> {
        let core = &self.core;
        core.refuse_when_stopping()?;
        refuse_future(core, request).map_err(|error| error.job(name))?;
        let job = core.job(name).await?;
        let new = self.new_operation(
            &job,
            OperationKind::ResetOffsets,
            json!(request),
            request.reason.as_ref(),
            caller,
        );
        // The same request again is answered as the first time, also when the job runs by now.
        if let Some(known) = core.store.operation_made_before(&new).await? {
            return accepted(name, known, None);
        }
        core.refresh(&job).await;
        refuse_unless_stopped(&job)?;
        let created = core.store.create_operation(&new, None).await?;
        let accepted = accepted(name, created, None)?;
        job.wake.notify_one();
        Ok(accepted)
    }

    /// The dry run: everything that can be checked, and where the group would go.
    pub(super) async fn plan_reset(
        &self,
        name: &JobName,
        request: &ResetRequest,
    ) -> Result<ResetReport> {
        let core = &self.core;
        let job = core.job(name).await?;
        core.refresh(&job).await;
        refuse_unless_stopped(&job)?;
        let row = job.row();
        refuse_members(core, &row).await?;
        let plan = ResetPlan::make(core, &row, request).await?;
        Ok(plan.report(&row, request, None))
    }
}

/// Refuses to touch a group that has live members.
pub(crate) async fn refuse_members(core: &Core, row: &JobRow) -> Result<()> {
    let source = &row.spec.source;
    let cluster = core
        .cluster(&source.connection)
        .map_err(|error| error.job(&row.name))?;
    let asked = async {
        // Any broker answers this. Only where one does is a coordinator asked: a question to one that is away can cost the
        // client, which then finds no broker any more.
        topics::describe(&*cluster, source).await?;
        cluster.group_members(&source.group_id).await
    };
    let members = within(asked).await.map_err(|error| error.job(&row.name))?;
    if members > 0 {
        return Err(group_in_use(row, members));
    }
    Ok(())
}
