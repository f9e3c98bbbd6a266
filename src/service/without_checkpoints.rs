//! What a job without checkpoints cannot do, and what is said of it instead.

use super::{
    core::{Core, JobFacts},
    error::{Result, ServiceError},
};
use crate::{
    model::{
        checkpoint::{CheckpointStatus, GroupCommit, GroupCommitStatus},
        code::Code,
        commit_mode::{Checkpointing, CommitMode},
        ids::{CheckpointId, JobName, JobUid, LeaseEpoch},
        job::JobSpec,
        job_status::JobStatus,
        offset::{Offset, PartitionOffsets},
        resolver::{ResolvedStart, Warning},
        skip::SkipRequest,
        start::{StartFrom, StopCheckpoint},
        startup_mode::{OffsetsByTopic, StartupMode},
        views::{CheckpointReport, OffsetsTotals, PartitionOffsetsView},
    },
    store::{CheckpointFilter, JobRow},
};

/// The reason in the place of a number that only a checkpoint has.
pub(crate) const BECAUSE: &str = "checkpoints-off";

fn refuse(job: &JobName, what: &str) -> ServiceError {
    ServiceError::new(
        Code::CheckpointsOff,
        format!("job {job} takes no checkpoints (checkpoint.interval: null): {what}"),
    )
    .job(job)
}

/// Refuses a beginning that only a checkpoint could give.
pub(crate) fn refuse_restore(job: &JobName, spec: &JobSpec, from: &StartFrom) -> Result<()> {
    if spec.checkpointing().is_off() && matches!(from, StartFrom::Checkpoint { .. }) {
        let error = refuse(job, "there is none that a start could go on from");
        return Err(error.hint(
            "Choose another from. Positions that an older checkpoint holds can be given with from=specific-offsets, or to the group with reset-offsets.",
        ));
    }
    Ok(())
}

/// Refuses a checkpoint that somebody asks for.
pub(crate) fn refuse_trigger(job: &JobName, spec: &JobSpec) -> Result<()> {
    if spec.checkpointing().is_off() {
        return Err(refuse(job, "none can be triggered"));
    }
    Ok(())
}

/// Refuses a stop that is to take place only with a checkpoint.
pub(crate) fn refuse_required(
    job: &JobName,
    spec: &JobSpec,
    checkpoint: StopCheckpoint,
) -> Result<()> {
    if spec.checkpointing().is_off() && checkpoint == StopCheckpoint::Required {
        let error = refuse(job, "a stop cannot require one");
        return Err(error.hint(
            "Stop it with checkpoint best-effort: the sink gets everything durable, and with commit_to_group periodic the group is told.",
        ));
    }
    Ok(())
}

/// Refuses to leave out a record for a job that does not run: nothing would keep the position behind it.
pub(crate) fn refuse_skip(job: &JobName, spec: &JobSpec, request: &SkipRequest) -> Result<()> {
    if !spec.checkpointing().is_off() {
        return Ok(());
    }
    let mut offsets = OffsetsByTopic::default();
    if let Some(behind) = Offset::after(request.offset.get()) {
        let of_topic = offsets.0.entry(request.topic.clone()).or_default();
        of_topic.insert(request.partition, behind);
    }
    let body = serde_json::json!({
        "from": "specific-offsets", "offsets": offsets,
        "partitions": {request.topic.clone(): [request.partition]},
    });
    let error = refuse(
        job,
        "nothing would keep the position behind the record while the job does not run",
    );
    Err(error.hint(format!(
        "Start it behind the record, once: POST /api/v1/jobs/{job}/start with {body}. While it runs, with errors.block partition, the record is stepped over like any other."
    )))
}

/// What a start, or a spec, has to say of it.
pub(crate) fn warning(spec: &JobSpec) -> Option<Warning> {
    Some(Warning {
        code: Code::CheckpointsOff,
        summary: format!("checkpoints are off: {}", spec.each_start_means()?),
    })
}

/// What a spec changes that turns checkpoints off or on. Only a run without checkpoints outdates those there are: `newest` is
/// the newest that still counts, and `ran_without` says whether the last run took none.
pub(crate) fn change_warning(
    before: Option<&JobSpec>,
    spec: &JobSpec,
    newest: Option<CheckpointId>,
    ran_without: bool,
) -> Option<Warning> {
    let now = spec.checkpointing();
    let then = before.map_or(now, JobSpec::checkpointing);
    match (then, now) {
        (_, Checkpointing::Off) => {
            let mut said = warning(spec)?;
            if let Some(newest) = newest {
                said.summary.push_str(&format!(
                    "; the next start sets checkpoint {newest} aside, and keeps it: GET start-plan shows what that reads again or passes over"
                ));
            }
            Some(said)
        }
        (Checkpointing::Off, Checkpointing::On) if newest.is_some() || !ran_without => None,
        (Checkpointing::Off, Checkpointing::On) => Some(Warning {
            code: Code::StateNotUsed,
            summary: format!(
                "the next start takes checkpoints again and begins by the startup mode ({}): one of the time before they were off does not count unless it is named (from=checkpoint)",
                spec.startup_mode.name()
            ),
        }),
        (Checkpointing::On, Checkpointing::On) => None,
    }
}

/// Whether the last run took no checkpoints.
pub(crate) async fn ran_without(core: &Core, job: JobUid) -> Result<bool> {
    let last = core.store.attempts(job, 1, None).await?.pop();
    Ok(last.is_some_and(|last| last.without_checkpoints.is_some()))
}

/// The newest checkpoint of an earlier time, if the last run took none: checkpoints that are turned on again do not go on
/// from it.
pub(crate) async fn outdated(core: &Core, job: JobUid) -> Result<Option<CheckpointId>> {
    if !ran_without(core, job).await? {
        return Ok(None);
    }
    let newest = CheckpointFilter {
        statuses: vec![CheckpointStatus::Completed],
        limit: 1,
        ..CheckpointFilter::default()
    };
    let newest = core.store.checkpoints(job, &newest).await?.pop();
    Ok(newest.map(|newest| newest.id))
}

/// How far a job without checkpoints has read, as far as anybody knows.
#[derive(Debug, Clone)]
pub(crate) struct Read {
    /// Where its run stands or stood; `None` if another server had it last.
    pub(crate) positions: Option<PartitionOffsets>,
    /// Whether its last run committed to the group.
    pub(crate) committed: bool,
}

/// What this server knows of where a run without checkpoints came to.
#[derive(Debug, Clone)]
pub(crate) struct LastRun {
    /// The lease that it had: another owner may have read on since.
    epoch: LeaseEpoch,
    positions: PartitionOffsets,
}

impl LastRun {
    /// Takes it from a run, with what an earlier one has said of partitions that this one does not read.
    pub(crate) fn of(status: &JobStatus, earlier: Option<Self>) -> Self {
        let mut positions = earlier.map(|run| run.positions).unwrap_or_default();
        let reached = status.partitions.iter();
        positions.extend(
            reached.filter_map(|(partition, live)| Some((partition.clone(), live.position?))),
        );
        Self {
            epoch: status.epoch,
            positions,
        }
    }
}

impl LastRun {
    /// Where the run stood when it ended.
    pub(crate) fn stood(&self) -> &PartitionOffsets {
        &self.positions
    }
}

/// How far a job has read whose last run took no checkpoints; `None` if it took some, or if there was none.
pub(crate) async fn read_before(core: &Core, row: &JobRow) -> Result<Option<Read>> {
    let last = core.store.attempts(row.uid, 1, None).await?.pop();
    let Some(last) = last.filter(|last| last.without_checkpoints.is_some()) else {
        return Ok(None);
    };
    let known = {
        let job = core.job(&row.name).await?;
        let facts = job.shared();
        let ended = facts.last_run.clone();
        match &facts.run {
            Some(run) if facts.spec().checkpointing().is_off() => {
                Some(LastRun::of(&run.status(), ended))
            }
            Some(_) | None => ended,
        }
    };
    let positions = known
        .filter(|run| run.epoch == last.epoch && !run.positions.is_empty())
        .map(|run| run.positions);
    let ran = row
        .running
        .as_ref()
        .map_or(&row.spec, |running| &running.spec);
    Ok(Some(Read {
        positions,
        committed: ran.commit_mode() == CommitMode::KafkaPeriodic,
    }))
}

/// What a start says of it.
pub(crate) fn outdated_warning(newest: CheckpointId, mode: &StartupMode) -> Warning {
    Warning {
        code: Code::StateNotUsed,
        summary: format!(
            "checkpoint {newest} is from the time before checkpoints were off, and what was read since is not known: it is set aside, and the startup mode ({}) decides; from=checkpoint with its number is the way back",
            mode.name()
        ),
    }
}

/// Where a run begins that keeps it nowhere, for its attempt and the history.
pub(crate) fn begins(spec: &JobSpec, resolved: &ResolvedStart) -> Option<String> {
    let means = spec.each_start_means()?;
    Some(format!("{}; {means}", resolved.summary))
}

/// Why there is no checkpoint to measure from.
pub(crate) fn no_checkpoint_because(facts: &JobFacts) -> Option<&'static str> {
    if facts.spec().checkpointing().is_off() {
        return Some(BECAUSE);
    }
    let is_known = facts.checkpoint.value.as_ref();
    is_known
        .is_some_and(Option::is_none)
        .then_some("no-checkpoint")
}

/// Says in the sums why there is no lag of a checkpoint. Without one, and without a run, the group is what is measured from.
pub(crate) fn explain(
    mut totals: OffsetsTotals,
    partitions: &[PartitionOffsetsView],
    facts: &JobFacts,
) -> OffsetsTotals {
    totals.checkpoint_because = no_checkpoint_because(facts);
    if totals.checkpoint_because == Some(BECAUSE) && facts.run.is_none() {
        let unknown = partitions
            .iter()
            .filter(|partition| partition.lag.group.is_none());
        totals.unknown_partitions = unknown.count();
    }
    totals
}

/// The last commit of a stop, as the run tells it under the name of a checkpoint.
pub(crate) fn last_commit(report: &CheckpointReport) -> GroupCommit {
    match &report.failure {
        Some(failure) => GroupCommit {
            status: GroupCommitStatus::Failed,
            error: Some(format!("nothing was sent: {}", failure.summary)),
        },
        None => report.group_commit.clone(),
    }
}

/// What a stop leaves to be read again: nothing where the next start begins at what was just committed.
pub(crate) fn will_replay(spec: &JobSpec, commit: Option<&GroupCommit>) -> Option<i64> {
    let is_told = commit.is_some_and(|commit| commit.status == GroupCommitStatus::Ok);
    let begins_there = spec.startup_mode == StartupMode::GroupOffsets
        && spec.commit_mode() == CommitMode::KafkaPeriodic;
    (is_told && begins_there).then_some(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job() -> JobName {
        JobName::new("orders").unwrap()
    }

    fn spec(interval: &Value, mode: &str) -> JobSpec {
        let document = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": mode},
            "checkpoint": {"interval": interval},
            "sink": {"type": "blackhole"},
        });
        JobSpec::read(&job(), &document).unwrap()
    }

    #[test]
    fn what_needs_a_checkpoint_is_refused_with_a_way_out() {
        let (on, off) = (spec(&json!("10s"), "latest"), spec(&json!(null), "latest"));
        let restore = StartFrom::Checkpoint { checkpoint: None };
        let skip =
            SkipRequest::read(&json!({"topic": "orders", "partition": 3, "offset": 8})).unwrap();
        let refusals = [
            refuse_restore(&job(), &off, &restore),
            refuse_trigger(&job(), &off),
            refuse_required(&job(), &off, StopCheckpoint::Required),
            refuse_skip(&job(), &off, &skip),
        ];
        for refusal in refusals {
            let problem = refusal.unwrap_err();
            assert_eq!(problem.code, Code::CheckpointsOff);
            assert!(
                problem.detail.contains("checkpoint.interval: null"),
                "{}",
                problem.detail
            );
        }
        let hint = refuse_skip(&job(), &off, &skip).unwrap_err().to_problem();
        assert!(
            json!(hint).to_string().contains(r#"\"3\":9"#),
            "{}",
            json!(hint)
        );
        assert!(refuse_restore(&job(), &off, &StartFrom::Latest).is_ok());
        assert!(refuse_required(&job(), &off, StopCheckpoint::BestEffort).is_ok());
        assert!(refuse_restore(&job(), &on, &restore).is_ok());
        assert!(refuse_trigger(&job(), &on).is_ok());
        assert!(refuse_required(&job(), &on, StopCheckpoint::Required).is_ok());
        assert!(refuse_skip(&job(), &on, &skip).is_ok());
    }

    #[test]
    fn a_change_says_what_becomes_of_the_checkpoints() {
        let (on, off) = (spec(&json!("10s"), "latest"), spec(&json!(null), "latest"));
        let newest = Some(CheckpointId(41));
        let said = change_warning(Some(&on), &off, newest, false).unwrap();
        assert_eq!(said.code, Code::CheckpointsOff);
        assert!(
            said.summary.contains("sets checkpoint 41 aside"),
            "{}",
            said.summary
        );
        assert!(change_warning(None, &off, None, false).is_some());
        let back = change_warning(Some(&off), &on, None, true).unwrap();
        assert_eq!(back.code, Code::StateNotUsed);
        assert!(
            back.summary.contains("startup mode (latest)"),
            "{}",
            back.summary
        );
        // Off and on again with no start between: the checkpoint counts as if nothing had been.
        assert_eq!(change_warning(Some(&off), &on, newest, false), None);
        assert_eq!(change_warning(Some(&off), &on, None, false), None);
        assert_eq!(change_warning(Some(&on), &on, newest, false), None);
        assert_eq!(change_warning(None, &on, None, false), None);
    }

    #[test]
    fn a_stop_promises_nothing_that_the_group_was_not_told() {
        let group = spec(&json!(null), "group-offsets");
        let commit = |status| GroupCommit {
            status,
            error: None,
        };
        let rows = [
            (&group, Some(commit(GroupCommitStatus::Ok)), Some(0)),
            (&group, Some(commit(GroupCommitStatus::Failed)), None),
            (&group, Some(commit(GroupCommitStatus::Off)), None),
            (&group, None, None),
            (
                &spec(&json!(null), "earliest"),
                Some(commit(GroupCommitStatus::Ok)),
                None,
            ),
        ];
        for (spec, commit, replayed) in rows {
            assert_eq!(will_replay(spec, commit.as_ref()), replayed, "{commit:?}");
        }
    }
}
