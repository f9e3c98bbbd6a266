//! One job and the list of jobs, put together from memory: what was measured last, and how old it is.

use std::{cmp::Reverse, collections::BTreeSet, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use tokio::time::timeout;

use super::{
    Service,
    bounded::bounded_view,
    comparison::{CheckpointSource, Comparison, compare, job_lag, totals},
    core::{Core, JobEntry, JobFacts},
    error::Result,
    monitor::{REUSE, measure},
    next_steps::{Curl, Situation, next, summary},
    operations::{invalid_cursor, page_size},
    queries::{JobFilter, JobMetrics, JobSort, PartitionMetrics, Readiness, ReadinessCheck},
    recreated::Recreated,
    sink_look,
    stages::{bottleneck_view, stages_view},
    startup_mode::mode_effect,
    without_checkpoints,
};
use crate::{
    engine::ports::LeaseHealth,
    model::{
        code::Code,
        commit_mode::{Checkpointing, CommitMode},
        health::Health,
        ids::JobName,
        job::JobSpec,
        job_state::JobState,
        job_status::{JobStatus, LivePartition},
        parked::ParkedPartition,
        resolver::Warning,
        restart::{CrashLoop, RestartStrategy},
        stages::StageTimes,
        topic::TopicPartition,
        views::{
            BottleneckView, BoundedView, CrashLoopView, DivergenceCause, Flag, JobItem, JobLag,
            JobList, JobView, LastCheckpoint, LimitsView, NextStep, OffsetsTotals, Owner,
            PartitionOffsetsView, WatermarkView,
        },
    },
    store::JobRow,
};

/// How long a check of readiness may take.
const READINESS_DEADLINE: Duration = Duration::from_secs(2);

/// How long a caller waits for the measurement of a job that does not run.
const AT_REST: Duration = Duration::from_secs(1);

/// Everything that a view of a job shows, taken at one moment.
pub(crate) struct Standing {
    row: JobRow,
    state: JobState,
    since: DateTime<Utc>,
    health: Health,
    lag: JobLag,
    lag_age_ms: Option<i64>,
    checkpointing: Checkpointing,
    commit_mode: CommitMode,
    commit_mode_because: String,
    last_checkpoint: Option<LastCheckpoint>,
    status: Option<Arc<JobStatus>>,
    waiting: Vec<crate::model::job_status::Waiting>,
    crash_loop: Option<CrashLoopView>,
    pending_fields: Vec<String>,
    parked: Vec<ParkedPartition>,
    warnings: Vec<Warning>,
    pub(crate) summary: String,
    pub(crate) next: Vec<NextStep>,
    totals: OffsetsTotals,
    bounded: Option<BoundedView>,
    bottleneck: Option<BottleneckView>,
    partitions: Vec<PartitionOffsetsView>,
}

/// Compares what is known now. `live` are the positions to use for a run; without, those that were taken with the ends of
/// the logs.
pub(crate) fn compare_now(
    core: &Core,
    job: &JobName,
    facts: &JobFacts,
    live: Option<&std::collections::BTreeMap<TopicPartition, LivePartition>>,
) -> Vec<PartitionOffsetsView> {
    let install = core.known_install().map(|install| install.short());
    let now = core.now();
    let mut partitions = compare(&Comparison {
        job,
        install: install.as_deref(),
        spec: facts.spec(),
        brokers: facts.brokers.recent(now),
        brokers_at: facts.brokers.at,
        group: facts.group.recent(now),
        live,
        checkpoint: facts.newest_checkpoint(),
        // Both are asked only where somebody looks at them.
        sink: None,
        ends: facts.ends(),
        unread: None,
        log_starts: None,
        checkpoint_every: None,
        now,
    });
    facts.mark_parked(&mut partitions);
    partitions
}

/// How many of the checkpoint's positions lie outside their logs.
fn outside_log(partitions: &[PartitionOffsetsView]) -> usize {
    let outside = [Flag::BelowEarliest, Flag::BeyondLatest];
    let is_outside = |partition: &&PartitionOffsetsView| {
        partition.flags.iter().any(|flag| outside.contains(flag))
    };
    partitions.iter().filter(is_outside).count()
}

/// Topics of the run with a partition that is there, though it may be parked.
fn topics_there(status: Option<&JobStatus>) -> BTreeSet<&str> {
    let Some(status) = status else {
        return BTreeSet::new();
    };
    let is_gone = |partition: &TopicPartition| {
        let parked = status.parked.get(partition);
        parked.is_some_and(|parked| parked.code == Code::PartitionGone)
    };
    let there = status
        .partitions
        .keys()
        .filter(|partition| !is_gone(partition));
    there.map(|partition| &*partition.topic).collect()
}

/// Whether a checkpoint counts and not the startup mode. With checkpoints off the next start goes by the mode, though the run may
/// still take some.
fn is_shadowed(row: &JobRow, last: Option<&LastCheckpoint>) -> bool {
    row.startup_mode_shadowed && last.is_some() && !row.spec.checkpointing().is_off()
}

/// Said of a mode in whose place a checkpoint counts, unless another start was asked for ahead.
fn mode_not_used(row: &JobRow, shadowing: Option<&LastCheckpoint>) -> Option<Warning> {
    let last = shadowing.filter(|_| row.pending_start.is_none())?;
    Some(Warning {
        code: Code::StartupModeShadowed,
        summary: format!(
            "the startup mode will not be used: checkpoint {} exists",
            last.id
        ),
    })
}

fn bottleneck_of(core: &Core, row: &JobRow, status: Option<&JobStatus>) -> Option<BottleneckView> {
    let curl = Curl::of(core, &row.name);
    Some(bottleneck_view(&curl, row.running_spec(), status?))
}

impl Standing {
    pub(crate) fn take(core: &Core, job: &JobEntry) -> Self {
        let now = core.now();
        let facts = job.shared();
        let (state, since) = facts.shown_state();
        let status = facts.status();
        let live = status.as_ref().map(|status| live_of(&facts, status));
        let partitions = compare_now(core, &job.name, &facts, live.as_deref());
        let totals = totals(&partitions, status.is_some());
        let totals = without_checkpoints::explain(totals, &partitions, &facts);
        let lag = job_lag(&totals);
        let last_checkpoint = last_checkpoint(&facts, status.as_deref(), now);
        let health = facts.health(now);
        let parked = facts.parked();
        let row = facts.row.clone();
        let pending_fields = match (&facts.run, &row.running) {
            (Some(_), Some(running)) => row.spec.change_from(&running.spec).pending_fields,
            _ => Vec::new(),
        };
        let bounded = bounded_view(
            facts.spec().source.stop_at.as_ref(),
            facts.bounded.as_ref(),
            &partitions,
            status.as_ref().map(|status| &*status.partitions),
            &status
                .iter()
                .flat_map(|status| status.parked.keys().cloned())
                .collect::<Vec<_>>(),
        );
        let shadowed = is_shadowed(&row, last_checkpoint.as_ref());
        let bottleneck = bottleneck_of(core, &row, status.as_deref());
        let recreated = Recreated::among(&partitions, row.spec.source.on_topic_recreated);
        let sink_disagrees = sink_look::disagreement(&job.name, &facts, now);
        let situation = Situation {
            curl: Curl::of(core, &job.name),
            state,
            desired: row.desired_state,
            health: &health,
            failure: row.failure.as_ref(),
            parked: &parked,
            lag: &lag,
            lag_age_ms: facts.brokers.at.map(|at| age_ms(at, now)),
            source: &row.spec.source,
            topics_there: &topics_there(status.as_deref()),
            sink_writes: status.as_ref().is_some_and(|status| status.sink_writes),
            throttled: status.as_ref().is_some_and(|status| status.throttled),
            against_bottleneck: bottleneck.as_ref().map_or(&[], |known| &known.next),
            last_checkpoint: last_checkpoint.as_ref().map(|last| (last.id, last.kind)),
            checkpointing: facts.spec().checkpointing(),
            outside_log: outside_log(&partitions),
            recreated: recreated.as_ref(),
            mode: &row.spec.startup_mode,
            mode_shadowed: shadowed,
            pending_start: row.pending_start.as_ref(),
            refused: facts.refused.as_ref(),
            sink_disagrees: sink_disagrees.as_ref(),
            restart_required: !pending_fields.is_empty(),
            crash_loop: facts.crash_loop(now),
            divergence: worst_divergence(&partitions),
            bounded: bounded.as_ref(),
        };
        let crash_loop = facts
            .crash_loop(now)
            .map(|crash_loop| crash_loop_view(crash_loop, &row.spec.restart));
        let mut warnings = warnings(&facts, status.as_deref(), &partitions, now);
        warnings.extend(sink_disagrees.map(|disagreement| disagreement.warning()));
        let spec = facts.spec();
        let (checkpointing, commit_mode) = (spec.checkpointing(), spec.commit_mode());
        let commit_mode_because = spec.commit_mode_because();
        let shadowing = last_checkpoint.as_ref().filter(|_| shadowed);
        warnings.extend(mode_not_used(&row, shadowing));
        Self {
            summary: summary(&situation),
            next: next(&situation),
            state,
            since,
            lag,
            lag_age_ms: facts.brokers.at.map(|at| age_ms(at, now)),
            checkpointing,
            commit_mode,
            commit_mode_because,
            last_checkpoint,
            status,
            waiting: facts.all_waiting(now),
            crash_loop,
            pending_fields,
            parked,
            warnings,
            health,
            row,
            totals,
            bounded,
            bottleneck,
            partitions,
        }
    }

    fn item(self) -> JobItem {
        JobItem {
            summary: self.summary,
            next: self.next,
            job: self.row.name,
            desired_state: self.row.desired_state,
            state: self.state,
            health: self.health,
            lag: self.lag,
            lag_age_ms: self.lag_age_ms,
            checkpointing: self.checkpointing,
            last_checkpoint: self.last_checkpoint,
            sink: self.row.spec.sink.kind(),
            connection: self.row.spec.source.connection,
            labels: self.row.spec.labels,
        }
    }

    fn view(self, core: &Core) -> JobView {
        let status = self.status.as_deref();
        let row = self.row;
        let owner = match (status, &row.owner) {
            (Some(status), _) => Some(Owner {
                instance: core.settings.instance.clone(),
                epoch: status.epoch,
            }),
            (None, Some(owner)) => Some(Owner {
                instance: owner.instance.clone(),
                epoch: owner.epoch,
            }),
            (None, None) => None,
        };
        let curl = Curl::of(core, &row.name);
        JobView {
            summary: self.summary,
            next: self.next,
            generation: row.generation,
            running_generation: status
                .and(row.running.as_ref())
                .map(|running| running.generation),
            desired_state: row.desired_state,
            state: self.state,
            since: self.since,
            health: self.health,
            lag: self.lag,
            lag_age_ms: self.lag_age_ms,
            startup_mode: mode_effect(&row, self.last_checkpoint.is_some()),
            last_checkpoint: self.last_checkpoint,
            checkpoint_in_progress: status
                .and_then(|status| status.in_progress.as_ref())
                .map(|attempt| attempt.id),
            group_commits: status.map(|status| status.commits.clone()),
            checkpointing: self.checkpointing,
            commit_mode: self.commit_mode,
            commit_mode_because: self.commit_mode_because,
            restart_required: !self.pending_fields.is_empty(),
            pending_fields: self.pending_fields,
            owner,
            waiting: self.waiting,
            crash_loop: self.crash_loop,
            limits: limits_view(&row.spec, status),
            watermark: watermark_view(&row, status, core.now()),
            stages: status.map(|status| stages_view(&status.stages)),
            bottleneck: self.bottleneck,
            records: status.map(|status| status.records),
            bytes: status.map(|status| status.bytes),
            redelivered: status.map(|status| status.redelivered),
            bad_records: status.map(|status| status.bad_records),
            positions_moved: status.map(|status| status.positions_moved),
            discovery: status.map(|status| status.discovery.clone()),
            delivery: row.spec.sink.delivery(),
            warnings: self.warnings,
            commands: curl.commands(),
            bounded: self.bounded,
            pending_start: row.pending_start,
            failure: row.failure,
            parked: self.parked,
            labels: row.spec.labels,
            job: row.name,
        }
    }
}

fn crash_loop_view(crash_loop: &CrashLoop, strategy: &RestartStrategy) -> CrashLoopView {
    CrashLoopView {
        restart: crash_loop.restarts,
        of: match strategy {
            RestartStrategy::FixedDelay { attempts, .. } => Some(*attempts),
            RestartStrategy::None
            | RestartStrategy::FailureRate { .. }
            | RestartStrategy::Exponential { .. } => None,
        },
        strategy: strategy.name(),
        next_attempt_at: crash_loop.next_attempt_at,
        first_cause: crash_loop.first_cause.clone(),
        last_cause: crash_loop.last_cause.clone(),
    }
}

fn limits_view(spec: &JobSpec, status: Option<&JobStatus>) -> LimitsView {
    let limits = status.map_or(spec.limits, |status| status.limits);
    LimitsView {
        records_per_s: limits.records_per_s,
        bytes_per_s: limits.bytes_per_s,
        throttled: status.map(|status| status.throttled),
        throttled_ms: status
            .map(|status| i64::try_from(status.throttled_for.as_millis()).unwrap_or(i64::MAX)),
    }
}

/// Of a job that runs what its run keeps, otherwise what the next one would.
fn watermark_view(
    row: &JobRow,
    status: Option<&JobStatus>,
    now: DateTime<Utc>,
) -> Option<WatermarkView> {
    let spec = status.map_or(&row.spec, |_| row.running_spec());
    let strategy = spec.watermark.as_ref()?.strategy;
    let shown = status.and_then(|status| status.watermark.clone());
    let timestamp = shown.as_ref().and_then(|shown| shown.timestamp);
    Some(WatermarkView {
        strategy,
        timestamp,
        lag_ms: timestamp.map(|timestamp| (now - timestamp).num_milliseconds()),
        idle: shown.as_ref().map(|shown| shown.idle),
        idle_partitions: shown.as_ref().map(|shown| shown.idle_partitions),
        late_records: shown.as_ref().map(|shown| shown.late_records),
        held_by: shown.as_ref().and_then(|shown| shown.held_by.clone()),
        paused_partitions: shown
            .as_ref()
            .map_or_else(Vec::new, |shown| shown.paused_partitions.clone()),
        subtasks: shown.map_or_else(Vec::new, |shown| shown.subtasks),
    })
}

/// The positions that belong to the ends of the logs, or the newest where those are of an older run.
pub(crate) fn live_of(
    facts: &JobFacts,
    status: &JobStatus,
) -> Arc<std::collections::BTreeMap<TopicPartition, LivePartition>> {
    let taken = facts
        .live
        .as_ref()
        .filter(|live| live.epoch == status.epoch);
    let live = taken.map_or(&status.partitions, |live| &live.partitions);
    Arc::clone(live)
}

pub(crate) fn age_ms(at: DateTime<Utc>, now: DateTime<Utc>) -> i64 {
    (now - at).num_milliseconds().max(0)
}

fn last_checkpoint(
    facts: &JobFacts,
    status: Option<&JobStatus>,
    now: DateTime<Utc>,
) -> Option<LastCheckpoint> {
    if let Some(last) = status.and_then(|status| status.last_checkpoint.as_ref()) {
        return Some(LastCheckpoint {
            id: last.id,
            kind: last.kind,
            status: "completed",
            completed_at: last.completed_at,
            confirmed_at: last.confirmed_at,
            age_ms: age_ms(last.confirmed_at, now),
            group_commit: last.group_commit.clone(),
        });
    }
    let CheckpointSource::Known(stored) = facts.newest_checkpoint() else {
        return None;
    };
    Some(LastCheckpoint {
        id: stored.id,
        kind: stored.kind,
        status: "completed",
        completed_at: stored.completed_at,
        confirmed_at: stored.confirmed_at,
        age_ms: age_ms(stored.confirmed_at, now),
        group_commit: stored.group_commit.clone(),
    })
}

/// The cause that most needs somebody to look.
pub(crate) fn worst_divergence(partitions: &[PartitionOffsetsView]) -> Option<DivergenceCause> {
    [
        DivergenceCause::ExternalCommit,
        DivergenceCause::CommitFailed,
    ]
    .into_iter()
    .find(|cause| {
        partitions
            .iter()
            .any(|partition| partition.divergence.cause == *cause)
    })
}

fn warnings(
    facts: &JobFacts,
    status: Option<&JobStatus>,
    partitions: &[PartitionOffsetsView],
    now: DateTime<Utc>,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code: Code, summary: String| warnings.push(Warning { code, summary });
    if let (Some(crash_loop), Some(_)) = (facts.crash_loop(now), status) {
        let (restarts, cause) = (crash_loop.restarts, &crash_loop.first_cause);
        let times = if restarts == 1 {
            "once"
        } else {
            &format!("{restarts} times")
        };
        let summary = format!(
            "it was restarted {times} after a crash; the first was: {}",
            cause.summary
        );
        warn(Code::CrashLoop, summary);
    }
    if let Some(status) = status {
        if status.throttled {
            warn(
                Code::RateLimited,
                format!("it is held to its limits, {}", status.limits),
            );
        }
        if let (true, Some((_, failure))) = (status.consecutive_failures > 0, &status.last_failed) {
            warn(
                Code::CheckpointsFailing,
                format!(
                    "{} checkpoints failed one after the other: {}",
                    status.consecutive_failures, failure.summary
                ),
            );
        }
        if let Some(error) = &status.commits.last_error {
            warn(
                Code::CommitsFailing,
                format!("the last commit to the consumer group failed: {error}"),
            );
        }
    }
    if partitions
        .iter()
        .any(|partition| partition.flags.contains(&Flag::GroupAhead))
    {
        warn(
            Code::GroupAhead,
            "the group's offset is ahead of the checkpoint; a restart goes on from the checkpoint"
                .to_owned(),
        );
    }
    if let Some(members) = facts.members.filter(|members| *members > 0) {
        warn(
            Code::GroupInUse,
            format!(
                "the consumer group {} has {members} live members, none of them this job",
                facts.spec().source.group_id
            ),
        );
    }
    warnings.extend(without_checkpoints::warning(facts.spec()));
    warnings
}

impl Service {
    pub(super) async fn find_jobs(&self, filter: &JobFilter) -> Result<JobList> {
        if self.core.known_install().is_none() {
            // The server just came up: an empty list would be a lie.
            for row in self.core.store.jobs().await? {
                self.core.remember(row);
            }
        }
        let mut items: Vec<(DateTime<Utc>, JobItem)> = self
            .core
            .jobs()
            .iter()
            .filter(|job| name_fits(job, filter))
            .map(|job| {
                let standing = Standing::take(&self.core, job);
                (standing.since, standing.item())
            })
            .filter(|(_, item)| fits(item, filter))
            .collect();
        sort(&mut items, filter.sort);
        let items: Vec<JobItem> = items.into_iter().map(|(_, item)| item).collect();
        let begin = match &filter.after {
            Some(cursor) => after(cursor, filter, &items)?,
            None => 0,
        };
        let (limit, _) = page_size(filter.limit);
        let more = items.len() > begin + limit;
        let items: Vec<JobItem> = items.into_iter().skip(begin).take(limit).collect();
        let next = match items.last() {
            Some(last) if more => Some(cursor(filter, begin + items.len(), &last.job)),
            _ => None,
        };
        Ok(JobList { items, next })
    }

    pub(super) async fn show_job(&self, name: &JobName) -> Result<JobView> {
        let job = self.core.job(name).await?;
        if job.shared().checkpoint.value.is_none() {
            // Not measured yet: a job that was just made, or a server that just came up.
            super::monitor::refresh_checkpoint(&self.core, &job).await;
        }
        self.look_at_rest(&job).await;
        Ok(Standing::take(&self.core, &job).view(&self.core))
    }

    /// Measures a job that does not run: it is measured rarely by itself, and "nothing is unread" must not be old. Brokers
    /// that do not answer are not waited for.
    async fn look_at_rest(&self, job: &JobEntry) {
        let asks = {
            let facts = job.shared();
            facts.run.is_none() && facts.brokers.error.is_none()
        };
        if asks {
            // Late is no fault: the sentence says as of when it is.
            drop(timeout(AT_REST, measure(&self.core, job, REUSE)).await);
        }
    }

    pub(super) async fn check_readiness(&self) -> Readiness {
        let store = timeout(READINESS_DEADLINE, self.core.store.ping()).await;
        let (store_ok, store_detail) = match store {
            Ok(Ok(())) => (true, "PostgreSQL answers".to_owned()),
            Ok(Err(error)) => (false, error.to_string()),
            Err(_elapsed) => (false, "PostgreSQL does not answer in time".to_owned()),
        };
        let migrations = timeout(READINESS_DEADLINE, self.core.store.pending_migrations()).await;
        let (migrated, migrations_detail) = match migrations {
            Ok(Ok(pending)) if pending.is_empty() => (true, "the schema is up to date".to_owned()),
            Ok(Ok(pending)) => (false, format!("not applied: {}", pending.join(", "))),
            Ok(Err(error)) => (false, error.to_string()),
            Err(_elapsed) => (false, "PostgreSQL does not answer in time".to_owned()),
        };
        let lease = self.core.lease_health.borrow().clone();
        let claimed = self.core.incarnation.borrow().is_some() && lease != LeaseHealth::Lost;
        let going_down = self.core.stopping.is_cancelled();
        let check = |name, ok, detail: String| ReadinessCheck { name, ok, detail };
        let checks = vec![
            check("store", store_ok, store_detail),
            check("migrations", migrated, migrations_detail),
            check(
                "instance",
                claimed,
                if claimed {
                    format!("runs as {}", self.core.settings.instance)
                } else {
                    "the instance id is not claimed".to_owned()
                },
            ),
            check(
                "shutdown",
                !going_down,
                if going_down {
                    "going down"
                } else {
                    "not going down"
                }
                .to_owned(),
            ),
        ];
        Readiness {
            ready: checks.iter().all(|check| check.ok),
            checks,
        }
    }

    pub(super) fn collect_metrics(&self) -> Vec<JobMetrics> {
        self.core
            .jobs()
            .iter()
            .map(|job| metrics_of(&self.core, job))
            .collect()
    }
}

fn metrics_of(core: &Core, job: &JobEntry) -> JobMetrics {
    let standing = Standing::take(core, job);
    let (counters, phases) = {
        let facts = job.shared();
        let phases = match facts.newest_checkpoint() {
            CheckpointSource::Known(stored) => Some(stored.phases),
            CheckpointSource::Unknown | CheckpointSource::Absent => None,
        };
        (facts.counters.clone(), phases)
    };
    let status = standing.status.as_deref();
    let newest = status.and_then(|status| status.last_checkpoint.as_ref());
    let partitions = standing
        .partitions
        .into_iter()
        .map(|partition| PartitionMetrics {
            partition: TopicPartition::new(partition.topic, partition.partition),
            earliest: partition.earliest,
            last_stable: partition.last_stable,
            latest: partition.latest,
            position: partition.position,
            checkpointed: partition.checkpointed,
            group_committed: partition.group_committed,
            lag: partition.lag,
            watermark: partition.watermark,
        });
    JobMetrics {
        partitions: partitions.collect(),
        job: job.name.clone(),
        state: standing.state,
        health: standing.health.status,
        health_reasons: standing
            .health
            .reasons
            .iter()
            .map(|reason| reason.code)
            .collect(),
        lag: standing.lag,
        group_behind_checkpoint: standing.totals.group_behind_checkpoint,
        group_ahead_of_checkpoint: standing.totals.group_ahead_of_checkpoint,
        last_checkpoint_at: standing
            .last_checkpoint
            .as_ref()
            .map(|last| seconds(last.completed_at)),
        last_checkpoint_phases: newest.map(|newest| newest.phases).or(phases),
        checkpoints_completed: (!standing.checkpointing.is_off()).then_some(counters.completed),
        checkpoint_failures: counters.failed,
        commits: status.map(|status| status.commits.clone()),
        records: status.map(|status| status.records),
        bytes: status.map(|status| status.bytes),
        discovery: status.map(|status| status.discovery.clone()),
        redelivered: status.map(|status| status.redelivered),
        parked_partitions: status.map(|status| status.parked.len()),
        bad_records: status.map(|status| status.bad_records),
        positions_moved: status.map(|status| status.positions_moved),
        crashes: counters.crashes,
        restarts_in_loop: standing
            .crash_loop
            .map_or(0, |crash_loop| crash_loop.restart),
        limits: status.map(|status| status.limits),
        throttled_for: status.map(|status| status.throttled_for),
        watermark: status.and_then(|status| status.watermark.clone()),
        stages: status.map(|status| StageTimes::sum(&status.stages.totals)),
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds since 1970 stay below 2^53"
)]
fn seconds(at: DateTime<Utc>) -> f64 {
    at.timestamp_millis() as f64 / 1_000.0
}

fn name_fits(job: &JobEntry, filter: &JobFilter) -> bool {
    let wanted = filter.name_contains.as_deref();
    wanted.is_none_or(|part| job.name.as_str().contains(part))
}

fn fits(item: &JobItem, filter: &JobFilter) -> bool {
    let any = |empty: bool, found: bool| empty || found;
    any(
        filter.states.is_empty(),
        filter.states.contains(&item.state),
    ) && any(
        filter.health.is_empty(),
        filter.health.contains(&item.health.status),
    ) && any(
        filter.connections.is_empty(),
        filter.connections.contains(&item.connection),
    ) && filter.labels.iter().all(|(name, values)| {
        item.labels
            .get(name)
            .is_some_and(|value| values.is_empty() || values.contains(value))
    })
}

/// The name breaks ties, so that pages do not overlap.
fn sort(items: &mut [(DateTime<Utc>, JobItem)], by: JobSort) {
    let lag = |lag: Option<i64>| Reverse(lag.unwrap_or(-1));
    match by {
        JobSort::Name => items.sort_by(|(_, a), (_, b)| a.job.cmp(&b.job)),
        JobSort::CheckpointLag => {
            items.sort_by_key(|(_, item)| (lag(item.lag.checkpoint), item.job.clone()));
        }
        JobSort::GroupLag => {
            items.sort_by_key(|(_, item)| (lag(item.lag.group), item.job.clone()));
        }
        JobSort::Age => items.sort_by_key(|(since, item)| (*since, item.job.clone())),
    }
}

/// Binds a cursor to its list: another filter or order has another fingerprint.
fn fingerprint(filter: &JobFilter) -> String {
    let bound = JobFilter {
        after: None,
        limit: 0,
        ..filter.clone()
    };
    super::operations::hash(&format!("{bound:?}"))
}

fn cursor(filter: &JobFilter, index: usize, last: &JobName) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(format!("{}:{index}:{last}", fingerprint(filter)))
}

/// Where the page after a cursor begins: behind the job that ended the last one, or where it stood if it is gone.
fn after(cursor: &str, filter: &JobFilter, items: &[JobItem]) -> Result<usize> {
    let bytes = BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .map_err(|_| invalid_cursor())?;
    let text = String::from_utf8(bytes).map_err(|_| invalid_cursor())?;
    let mut parts = text.splitn(3, ':');
    let (Some(bound), Some(index), Some(last)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(invalid_cursor());
    };
    let index: usize = index.parse().map_err(|_| invalid_cursor())?;
    if bound != fingerprint(filter) {
        return Err(invalid_cursor());
    }
    let found = items.iter().position(|item| item.job.as_str() == last);
    Ok(found.map_or(index, |found| found + 1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{health::HealthStatus, job_state::DesiredState};

    fn item(name: &str, checkpoint: Option<i64>, team: &str) -> JobItem {
        JobItem {
            summary: String::new(),
            next: Vec::new(),
            job: JobName::new(name).unwrap(),
            desired_state: DesiredState::Running,
            state: JobState::Running,
            health: Health {
                status: HealthStatus::Ok,
                reasons: Vec::new(),
            },
            lag: JobLag {
                checkpoint,
                ..JobLag::default()
            },
            lag_age_ms: None,
            checkpointing: Checkpointing::On,
            last_checkpoint: None,
            sink: "blackhole",
            connection: "main".to_owned(),
            labels: BTreeMap::from([("team".to_owned(), team.to_owned())]),
        }
    }

    #[test]
    fn the_largest_lag_comes_first_and_the_unknown_last() {
        let now = DateTime::UNIX_EPOCH;
        let mut items = vec![
            (now, item("a", None, "x")),
            (now, item("b", Some(3), "x")),
            (now, item("c", Some(70), "x")),
            (now, item("d", Some(3), "x")),
        ];
        sort(&mut items, JobSort::CheckpointLag);
        let names: Vec<&str> = items.iter().map(|(_, item)| item.job.as_str()).collect();
        assert_eq!(names, ["c", "b", "d", "a"]);
    }

    #[test]
    fn values_of_one_filter_mean_or_and_filters_mean_and() {
        let filter = JobFilter {
            states: vec![JobState::Running, JobState::Failed],
            labels: vec![("team".to_owned(), vec!["x".to_owned(), "y".to_owned()])],
            ..JobFilter::default()
        };
        assert!(fits(&item("a", None, "y"), &filter));
        assert!(!fits(&item("a", None, "z"), &filter));
        let other = JobFilter {
            connections: vec!["other".to_owned()],
            ..filter
        };
        assert!(!fits(&item("a", None, "y"), &other));
    }

    #[test]
    fn a_cursor_belongs_to_its_list() {
        let filter = JobFilter::default();
        let items = [
            item("a", None, "x"),
            item("b", None, "x"),
            item("c", None, "x"),
        ];
        let made = cursor(&filter, 2, &items[1].job);
        assert_eq!(after(&made, &filter, &items).ok(), Some(2));
        // The job that ended the page is gone meanwhile.
        assert_eq!(after(&made, &filter, &items[..1]).ok(), Some(2));
        let other = JobFilter {
            sort: JobSort::Age,
            ..JobFilter::default()
        };
        assert_eq!(
            after(&made, &other, &items).unwrap_err().code,
            Code::InvalidCursor
        );
        assert!(after("?", &filter, &items).is_err());
        assert!(after("YWJj", &filter, &items).is_err());
    }
}
