//! How a run begins: the lease, the sink's claim, the decision, the stored positions, and only then the consumers.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;
use tokio::{task::JoinSet, time::Instant};

use super::{
    Asked, BEGINS, CLAIM_DEADLINE, Claim, FACTS_DEADLINE, JobTask, STORED, Step, Trouble, failed,
    parked, waiting::within,
};
use crate::{
    crash_point::CrashPoint,
    engine::{
        JobHandle, JobRun,
        backoff::pause_after,
        ports::{CheckpointStore, JobLease, KafkaCluster},
    },
    model::{
        attempt::AttemptKind,
        checkpoint::Checkpoint,
        code::Code,
        health::HealthWindow,
        ids::{CheckpointId, InstallId},
        job::JobSpec,
        job_state::JobState,
        job_status::JobFailure,
        offset::PartitionOffsets,
        operation::Operation,
        resolver::{
            BrokerFacts, Parking, PlannedParking, ResolvedStart, SinkFacts, SinkProgress,
            StartReason,
        },
        restart::CrashLoop,
        start::StartRequest,
        startup_mode::OffsetsByTopic,
        stop_at::BoundedRun,
        topic::TopicPartition,
        views::{RestartReport, StartReport},
    },
    service::{
        core::{Core, JobEntry},
        dead_letters,
        error::ServiceError,
        next_steps::{Curl, RefusedStart, ways_out},
        operations::already_running,
        sink_progress::{self, Former, former_target, make_sink},
        specs::apply_live,
        start_plans::{
            Intent, StartQuestion, StartState, gather, plan_stale, start_checkpoint, what_changed,
            what_changed_outside,
        },
        without_checkpoints,
    },
    store::{JobRow, OperationOutcome, RunningSpec, StartRecord, StoredPlan},
};

/// Where a run begins and ends.
pub(super) struct RunBegin {
    /// The stored `start` checkpoint.
    start: Checkpoint,
    reasons: BTreeMap<TopicPartition, StartReason>,
    parked: BTreeMap<TopicPartition, PlannedParking>,
    ends: Option<PartitionOffsets>,
}

impl JobTask {
    pub(super) async fn start(&mut self, asked: Option<&Asked>) {
        if self.run.is_some() {
            if let Some(asked) = asked {
                self.finish(&asked.operation, &already_running()).await;
            }
            return;
        }
        let before = {
            let mut facts = self.job.shared();
            facts.refused = None;
            Before {
                // What crashed itself goes back to how the job stood before it.
                backs_off: facts.shown_state().0 == JobState::BackingOff
                    && !asked.is_some_and(|asked| self.crashed_before(&asked.operation)),
                failure: facts.row.failure.take(),
            }
        };
        self.show(JobState::Starting);
        let outcome = self.try_start(asked).await;
        self.job.shared().waiting.clear();
        match outcome {
            Ok(report) => {
                self.run_since = Instant::now();
                self.crashed_operation = None;
                if let Some(asked) = asked {
                    let result = match &asked.restarting {
                        None => json!(report),
                        Some(restarting) => json!(RestartReport {
                            stop: restarting.stop.clone(),
                            start: report,
                        }),
                    };
                    let outcome = OperationOutcome::Succeeded {
                        changed: true,
                        step: "the job runs".to_owned(),
                        result,
                    };
                    self.finish(&asked.operation, &outcome).await;
                }
            }
            Err(Trouble::Interrupted) => {}
            Err(Trouble::Fenced) => {
                self.lease = None;
                self.start_later();
            }
            Err(Trouble::Away { detail, .. }) => {
                tracing::warn!(job = %self.job.name, detail, "the start is tried again");
                self.start_later();
            }
            Err(Trouble::Refused(error)) => self.refuse_start(asked, error, before).await,
        }
    }

    pub(super) fn start_later(&mut self) {
        let pause = pause_after(self.restarts);
        self.restarts = self.restarts.saturating_add(1);
        self.start_at = Instant::now() + pause;
    }

    pub(super) async fn try_start(&mut self, asked: Option<&Asked>) -> Step<StartReport> {
        // Once the positions are stored the step says so, and stays.
        let operation = asked
            .map(|asked| &asked.operation)
            .filter(|operation| operation.step != STORED);
        let lease = self.own(operation).await?;
        let core = Arc::clone(&self.core);
        self.insist(operation, "the state is noted", || async {
            Ok(core
                .store
                .set_state(&lease, JobState::Starting, None)
                .await?)
        })
        .await?;
        let claim = self.claim_sink(operation, &lease).await?;
        let row = &claim.row;
        let sink = sink_progress::claimed(&*claim.sink, claim.progress.clone());
        let (mut resolved, intent, cluster) = self.decide(operation, asked, &claim, &sink).await?;
        if asked.is_some() {
            let letters = dead_letters::look(&core, &row.spec).await;
            resolved.blockers.extend(letters.blocker());
        }
        if !resolved.blockers.is_empty() {
            let request = asked.map_or_else(StartRequest::auto, |asked| asked.request.clone());
            let as_restart = asked.is_some_and(|asked| asked.restarting.is_some());
            let refused = start_blocked(&core, row, &resolved, &request, as_restart);
            return Err(Trouble::Refused(refused));
        }
        let checkpoint_id = self.next_checkpoint_id(operation, &claim.progress).await?;
        let checkpoint = start_checkpoint(
            &resolved,
            checkpoint_id,
            lease.epoch,
            claim.sink.identity(),
            core.now(),
        );
        let kind = kind_of(asked, self.next_kind);
        // An operator who starts a job has seen what it crashed of, unless it crashed of this start.
        let is_seen = asked.is_some_and(|asked| !self.crashed_before(&asked.operation));
        let crash_loop = row
            .crash_loop
            .clone()
            .filter(|_| !is_seen)
            .map(|crash_loop| CrashLoop {
                next_attempt_at: None,
                ..crash_loop
            });
        let without_checkpoints = without_checkpoints::begins(&row.spec, &resolved);
        // What is kept nowhere cannot be gone on from: whoever takes the operation up decides again.
        let step = match without_checkpoints {
            None => STORED,
            Some(_) => BEGINS,
        };
        let record = StartRecord {
            generation: row.generation,
            spec: row.spec.clone(),
            kind,
            crash_loop: crash_loop.clone(),
            consumed_pending: intent.consumes,
            set_aside: resolved.sets_state_aside(),
            bounded: resolved.bounded_run(checkpoint.id, core.now()),
            moved: moved_positions(&resolved),
            forgotten: resolved.forgotten.clone(),
            operation: operation.map(|operation| (operation.id.clone(), step.to_owned())),
            without_checkpoints,
        };
        self.insist(operation, "the positions are stored", || async {
            CrashPoint::BeforeStartStored.reached();
            core.store.store_start(&lease, &checkpoint, &record).await?;
            CrashPoint::StartStored.reached();
            Ok(())
        })
        .await?;
        for moved in &record.moved {
            tracing::warn!(job = %self.job.name, %moved, "the start moved a position");
        }
        self.job.shared().row.crash_loop = crash_loop;
        let report = report_of(&resolved, &checkpoint, &row.spec);
        let reasons = resolved.partitions.iter();
        let reasons = reasons.map(|planned| (planned.topic_partition(), planned.reason));
        let begin = RunBegin {
            start: checkpoint,
            reasons: reasons.collect(),
            parked: resolved.parked(),
            ends: record.bounded.as_ref().map(BoundedRun::stop_offsets),
        };
        self.job.shared().bounded = record.bounded;
        self.spawn(claim, lease, begin, cluster).await;
        Ok(report)
    }

    /// Reads the job, makes its sink and claims it.
    pub(super) async fn claim_sink(
        &self,
        operation: Option<&Operation>,
        lease: &JobLease,
    ) -> Step<Claim> {
        let core = Arc::clone(&self.core);
        let job = Arc::clone(&self.job);
        let row = self
            .insist(operation, "the job is read", || async {
                let row = core.store.job_by_uid(job.uid).await?;
                row.ok_or_else(|| Trouble::Refused(ServiceError::no_such_job(&job.name)))
            })
            .await?;
        let install = self
            .insist(operation, "the installation is read", || async {
                Ok(core.install().await?)
            })
            .await?;
        let sink = self
            .insist(operation, "the sink is made", || async {
                // Anew each time, like the cluster.
                let ids = (install, row.uid);
                Ok(make_sink(&core, &row.spec.sink, &row.name, ids)?)
            })
            .await?;
        // Before the new one: both may have one claim, and the last counts.
        let former = self.close_former_target(&row, install, lease).await;
        let progress = self
            .insist(operation, "the sink is claimed", || async {
                within(
                    CLAIM_DEADLINE,
                    Code::SinkError,
                    "the sink",
                    sink.recover(lease.epoch),
                )
                .await
            })
            .await?;
        CrashPoint::SinkClaimed.reached();
        Ok(Claim {
            row,
            install,
            sink,
            progress,
            former,
        })
    }

    /// Larger than every number that the store or the sink has seen.
    pub(super) async fn next_checkpoint_id(
        &self,
        operation: Option<&Operation>,
        progress: &SinkProgress,
    ) -> Step<CheckpointId> {
        let core = Arc::clone(&self.core);
        let job = Arc::clone(&self.job);
        self.insist(operation, "the checkpoint gets its number", || async {
            let next = core.store.next_checkpoint_id(job.uid).await?;
            // Failed and forgotten ones included: an id that the target knows must never mean another decision.
            let seen = progress.values().map(|sink| sink.position_id.next()).max();
            Ok(seen.map_or(next, |seen: CheckpointId| seen.max(next)))
        })
        .await
    }

    /// A dead owner may still write to the target that the spec named before. It is kept out there, too, and says what it
    /// holds; but that target may be gone for good: one attempt, and the start does not depend on it.
    pub(super) async fn close_former_target(
        &self,
        row: &JobRow,
        install: InstallId,
        lease: &JobLease,
    ) -> Option<Former> {
        let former = former_target(&self.core, &self.job, row, install)?;
        let end = self.claim(&*former, lease, Instant::now()).await;
        Some(Former {
            identity: former.identity(),
            progress: end.into_progress(),
        })
    }

    /// Takes the lease, or goes on with the one that is held.
    pub(super) async fn own(&mut self, operation: Option<&Operation>) -> Step<JobLease> {
        if let Some(lease) = self.lease.filter(|_| !self.lease_is_used) {
            return Ok(lease);
        }
        let core = Arc::clone(&self.core);
        let uid = self.job.uid;
        let lease = self
            .insist(operation, "the lease is taken", || async {
                let incarnation = core.incarnation.borrow().clone();
                let Some(incarnation) = incarnation else {
                    return Err(Trouble::Away {
                        code: Code::StoreUnreachable,
                        detail: "the instance is not claimed yet".to_owned(),
                    });
                };
                let lease = core.store.take_lease(uid, &incarnation).await?;
                lease.ok_or_else(|| match operation {
                    // Of its own accord this server wants it only while nobody else has it: it looks again.
                    None => Trouble::Fenced,
                    Some(_) => Trouble::Away {
                        code: Code::LeaseLost,
                        detail: "another live server holds the job".to_owned(),
                    },
                })
            })
            .await?;
        // Kept before anything else: a crash is stored under the newest epoch, and the former one is fenced off by it.
        self.lease = Some(lease);
        self.lease_is_used = false;
        CrashPoint::LeaseTaken.reached();
        Ok(lease)
    }

    /// Works out where every partition begins, or takes the numbers of the plan that was looked at. Answers the cluster that was
    /// asked too: the run reads from no other. Without a request it is what the server itself would do.
    pub(super) async fn decide(
        &self,
        operation: Option<&Operation>,
        asked: Option<&Asked>,
        claim: &Claim,
        sink: &SinkFacts,
    ) -> Step<(ResolvedStart, Intent, Arc<dyn KafkaCluster>)> {
        let row = &claim.row;
        let done_before = asked.is_some_and(|asked| asked.operation.step == STORED);
        let core = &self.core;
        let plan = match asked {
            Some(asked) if !done_before => self.plan_of(asked).await?,
            Some(_) | None => None,
        };
        let plain = StartRequest::auto();
        let of_plan = plan.as_ref().map(|plan| plan.request.clone());
        let request = match (asked, &of_plan) {
            (Some(_), Some(request)) => request,
            (Some(asked), None) => &asked.request,
            (None, _) => &plain,
        };
        let mut intent = match asked {
            Some(_) => Intent::of_operator(request, row.pending_start.as_ref()),
            None => Intent::automatic(),
        };
        if done_before {
            // The server died after it had stored the positions: go on from them, and do not move anything twice.
            intent = Intent {
                consumes: None,
                ..Intent::automatic()
            };
        }
        without_checkpoints::refuse_restore(&row.name, &row.spec, &intent.from)
            .map_err(Trouble::Refused)?;
        let state = self
            .insist(operation, "the checkpoints are read", || async {
                Ok(StartState::read(core, row, &intent.from).await?)
            })
            .await?
            .beside(claim.former.as_ref(), sink);
        let question = StartQuestion {
            spec: &row.spec,
            request,
            intent: &intent,
            state: &state,
            sink,
            parking: Parking::of(
                row.spec.errors.block,
                &row.parked,
                asked.is_none() || done_before,
            ),
        };
        let (facts, cluster) = self.facts(operation, &question).await?;
        let Some(plan) = plan else {
            let resolved = question.resolve(&facts);
            self.is_still_ours(operation, &resolved).await?;
            return Ok((resolved, intent, cluster));
        };
        let pending = row
            .pending_start
            .as_ref()
            .map(|pending| pending.id.as_str());
        // A restart takes a checkpoint of its own before; what it asks for does not rest on it.
        let is_restart = asked.is_some_and(|asked| asked.restarting.is_some());
        let newest = state.newest.as_ref();
        let changes = if is_restart {
            what_changed_outside(&plan, row.generation, pending, &facts)
        } else {
            what_changed(&plan, row.generation, pending, newest, sink, &facts)
        };
        if changes.is_empty() {
            return Ok((plan.resolved, intent, cluster));
        }
        Err(Trouble::Refused(plan_stale(&row.name, &changes)))
    }

    /// What stands against a start was read at several moments. If another owner came in between, it compares what does not
    /// belong together, and is not to be told.
    async fn is_still_ours(
        &self,
        operation: Option<&Operation>,
        resolved: &ResolvedStart,
    ) -> Step<()> {
        let Some(lease) = self.lease.filter(|_| !resolved.blockers.is_empty()) else {
            return Ok(());
        };
        let store = &self.core.store;
        self.insist(operation, "the lease is looked at", || async {
            Ok(store.holds(&lease).await?)
        })
        .await
    }

    pub(super) async fn plan_of(&self, asked: &Asked) -> Step<Option<StoredPlan>> {
        let Some(id) = &asked.request.plan else {
            return Ok(None);
        };
        let core = &self.core;
        let plan = self
            .insist(Some(&asked.operation), "the plan is read", || async {
                Ok(core.store.plan(id).await?)
            })
            .await?;
        match plan.filter(|plan| plan.job == self.job.uid) {
            Some(plan) => Ok(Some(plan)),
            None => Err(Trouble::Refused(ServiceError::new(
                Code::PlanExpired,
                format!("plan {id} is no longer kept"),
            ))),
        }
    }

    pub(super) async fn facts(
        &self,
        operation: Option<&Operation>,
        question: &StartQuestion<'_>,
    ) -> Step<(BrokerFacts, Arc<dyn KafkaCluster>)> {
        let now = self.core.now();
        self.insist(operation, "the brokers are asked", || async {
            // Anew each time: a connection that is mended in the server's file helps the start that waits for it.
            let cluster = self.core.cluster(&question.spec.source.connection)?;
            let asked = gather(&*cluster, question, now);
            let facts = tokio::select! {
                facts = within(FACTS_DEADLINE, Code::KafkaTimeout, "Kafka", asked) => facts,
                () = self.interrupted() => Err(Trouble::Interrupted),
            };
            Ok((facts?, cluster))
        })
        .await
    }

    pub(super) async fn spawn(
        &mut self,
        claim: Claim,
        lease: JobLease,
        begin: RunBegin,
        cluster: Arc<dyn KafkaCluster>,
    ) {
        let Claim {
            row, install, sink, ..
        } = claim;
        let core = &self.core;
        let dead_letters = core.dead_letters(&row.spec).unwrap_or_else(|error| {
            // The start was checked: the server's file has changed since.
            tracing::warn!(job = %self.job.name, %error, "no dead letters can be written; a bad record parks its partition");
            None
        });
        let run = JobHandle::spawn(JobRun {
            name: row.name.clone(),
            install,
            spec: row.spec.clone(),
            lease,
            start: begin.start,
            reasons: begin.reasons,
            parked: begin.parked,
            ends: begin.ends,
            kafka: cluster,
            sink: Arc::clone(&sink),
            dead_letters,
            store: Arc::new(core.store.clone()) as Arc<dyn CheckpointStore>,
            clock: Arc::clone(&core.clock),
            lease_health: core.lease_health.subscribe(),
            lease_until: core.lease_until.subscribe(),
        });
        self.following = JoinSet::new();
        self.following
            .spawn(follow(Arc::clone(core), Arc::clone(&self.job), run.clone()));
        {
            let mut facts = self.job.shared();
            facts.run = Some(run.clone());
            facts.wrote_to = Some(row.spec.sink.clone());
            facts.window = HealthWindow::default();
            facts.outdated_at = Some(Instant::now());
            facts.row.running = Some(RunningSpec {
                generation: row.generation,
                spec: row.spec.clone(),
            });
        }
        self.run = Some(run);
        self.sink = Some(sink);
        self.failed_run = false;
        self.lease_is_used = true;
        self.next_kind = AttemptKind::Recovery;
        self.show(JobState::Running);
        self.core.refresh(&self.job).await;
        self.job.measure_soon.notify_one();
        // The spec may have changed while the start was under way.
        let declared = self.job.row().spec;
        if let Some(run) = &self.run
            && live(&declared) != live(&row.spec)
        {
            apply_live(run, &declared).await;
        }
    }

    /// A start that cannot succeed: an operator's is refused and leaves the job as it was, one of the server fails the job.
    async fn refuse_start(
        &mut self,
        asked: Option<&Asked>,
        mut error: ServiceError,
        mut before: Before,
    ) {
        tracing::warn!(job = %self.job.name, %error, "the start is refused");
        // It has measured, and what it said is not to be contradicted by an older look.
        self.job.measure_anew();
        if !error.blockers.is_empty() {
            let request = asked.map_or_else(StartRequest::auto, |asked| asked.request.clone());
            self.job.shared().refused = Some(RefusedStart {
                request,
                blockers: error.blockers.to_vec(),
            });
        }
        let Some(asked) = asked else {
            // Another server has finished the run after this one had read that the job should run.
            if has_finished(&error) {
                return self.run_finished().await;
            }
            let failure = failure_of(&error, self.core.now());
            return self.fail(failure).await;
        };
        if before.failure.is_none() && !before.backs_off {
            match self.after_refused_restart(asked, &mut error).await {
                Ok(failure) => before.failure = failure,
                // The operation is open still: whoever takes it up decides again.
                Err(_) => return self.start_later(),
            }
        }
        let outcome = failed("refused", &error.job(&self.job.name));
        let operation = &asked.operation;
        let Some(lease) = self.lease else {
            return self.finish(operation, &outcome).await;
        };
        if before.backs_off {
            return self.back_off_again(operation, &outcome, &lease).await;
        }
        let core = Arc::clone(&self.core);
        let settled = self
            .settle(|| async {
                let ended = Some((&operation.id, &outcome));
                let store = &core.store;
                let rests = match &before.failure {
                    None => {
                        store
                            .refuse_start(&lease, ended, asked.desired_if_refused())
                            .await?
                    }
                    // It needs a decision as before, and it should run as before.
                    Some(failure) => {
                        let state = JobState::Failed;
                        store
                            .settle_stopped(&lease, ended, state, Some(failure), true)
                            .await?
                    }
                };
                Ok(rests)
            })
            .await;
        let Ok(rests) = settled else {
            return;
        };
        self.lease = None;
        match &before.failure {
            None => self.show_row(rests, Some(asked.desired_if_refused()), None),
            Some(failure) => self.show_row(rests, None, Some(failure)),
        }
        self.core.announce(&operation.id);
        self.core.refresh(&self.job).await;
    }

    /// A refused start leaves a job that backs off as it was: it begins by itself when its pause is over.
    async fn back_off_again(
        &mut self,
        operation: &Operation,
        outcome: &OperationOutcome,
        lease: &JobLease,
    ) {
        let store = &self.core.store;
        let settled = self
            .settle(|| async {
                let state = JobState::BackingOff;
                Ok(store.set_state(lease, state, None).await?)
            })
            .await;
        if matches!(settled, Err(Trouble::Fenced)) {
            self.lease = None;
        }
        self.next_kind = AttemptKind::AfterCrash;
        self.show_row(JobState::BackingOff, None, None);
        self.finish(operation, outcome).await;
    }
}

/// What of a spec counts while the job runs.
fn live(spec: &JobSpec) -> impl PartialEq + use<'_> {
    let source = &spec.source;
    (
        (&spec.checkpoint, &spec.limits, &source.partition_discovery),
        (source.on_out_of_range, source.on_topic_recreated),
    )
}

/// Why a run begins; `by_itself` is what it is when nobody asked.
pub(super) fn kind_of(asked: Option<&Asked>, by_itself: AttemptKind) -> AttemptKind {
    match asked {
        None => by_itself,
        Some(asked) if asked.restarting.is_some() => AttemptKind::Restart,
        Some(_) => AttemptKind::Start,
    }
}

/// How the job stood before a start.
struct Before {
    failure: Option<JobFailure>,
    backs_off: bool,
}

/// The refusal of a start, with what was asked for again and each decision, as whole lines. A restart that was refused is
/// repeated as a restart: the job may be running.
pub(crate) fn start_blocked(
    core: &Core,
    row: &JobRow,
    resolved: &ResolvedStart,
    request: &StartRequest,
    as_restart: bool,
) -> ServiceError {
    let curl = Curl::of(core, &row.name);
    let refused = RefusedStart {
        request: request.clone(),
        blockers: resolved.blockers.clone(),
    };
    let next = ways_out(&refused, |body| {
        if as_restart {
            curl.restart(Some(body))
        } else {
            curl.start(Some(body))
        }
    });
    let summaries: Vec<&str> = resolved
        .blockers
        .iter()
        .map(|blocker| blocker.summary.as_str())
        .collect();
    let choices = resolved
        .blockers
        .iter()
        .flat_map(|blocker| blocker.choices.iter().cloned())
        .collect();
    // A blocker without choices is not decided by a start but mended elsewhere.
    let to_mend = resolved
        .blockers
        .iter()
        .find(|blocker| blocker.choices.is_empty());
    let hint = to_mend.map_or(Code::StartBlocked, |blocker| blocker.code);
    ServiceError::new(Code::StartBlocked, summaries.join("; "))
        .job(&row.name)
        .hint(hint.remedy())
        .blockers(resolved.blockers.clone())
        .choices(choices)
        .next(next)
}

/// Positions that a start moves by policy, or takes from the former target, as the history tells them: nobody may have looked
/// at the plan.
fn moved_positions(resolved: &ResolvedStart) -> Vec<serde_json::Value> {
    let moved = resolved.partitions.iter().filter(|planned| {
        let by_policy = matches!(
            planned.reason,
            StartReason::BelowEarliest | StartReason::BeyondLatest | StartReason::TopicRecreated
        );
        // Of the target itself it would be of the same run of positions.
        let by_former =
            planned.reason == StartReason::SinkProgress && planned.position_id.is_none();
        (by_policy || by_former) && planned.is_read()
    });
    moved
        .map(|planned| {
            json!({
                "topic": planned.topic, "partition": planned.partition, "to": planned.start_at, "reason": planned.reason,
                "outside": planned.outside, "lost_offsets": planned.lost, "skipped": planned.skipped, "replayed": planned.replayed,
            })
        })
        .collect()
}

/// Whether nothing stands against a start but that there is nothing left to do.
fn has_finished(error: &ServiceError) -> bool {
    let mut codes = error.blockers.iter().map(|blocker| blocker.code);
    !error.blockers.is_empty() && codes.all(|code| code == Code::RunFinished)
}

/// What keeps the server from starting a job by itself is a failure that needs a decision.
pub(super) fn failure_of(error: &ServiceError, at: chrono::DateTime<chrono::Utc>) -> JobFailure {
    let code = error
        .blockers
        .first()
        .map_or(error.code, |blocker| blocker.code);
    JobFailure {
        code,
        summary: error.detail.clone(),
        record: None,
        phase: Some("start".to_owned()),
        first_seen: at,
    }
}

fn report_of(resolved: &ResolvedStart, start: &Checkpoint, spec: &JobSpec) -> StartReport {
    let is_off = spec.checkpointing().is_off();
    StartReport {
        basis: resolved.basis,
        checkpoint: resolved.checkpoint,
        bootstrap_checkpoint: (!is_off).then_some(start.id),
        partitions: resolved.positions(start.id).len(),
        positions: is_off.then(|| by_topic(start.offsets())),
        summary: match without_checkpoints::begins(spec, resolved) {
            Some(begins) => begins,
            None => resolved.summary.clone(),
        },
        totals: resolved.totals,
        warnings: resolved.warnings.clone(),
    }
}

pub(super) fn by_topic(offsets: PartitionOffsets) -> OffsetsByTopic {
    let mut topics = OffsetsByTopic::default();
    for (partition, offset) in offsets {
        let of_topic = topics.0.entry(partition.topic.to_string()).or_default();
        of_topic.insert(partition.partition, offset);
    }
    topics
}

/// Follows a run: counts its checkpoints and keeps what it has parked.
async fn follow(core: Arc<Core>, job: Arc<JobEntry>, run: JobHandle) {
    let mut statuses = run.watch_status();
    let mut completed: Option<CheckpointId> = None;
    let mut seen_failure: Option<CheckpointId> = None;
    while statuses.changed().await.is_ok() {
        let status = Arc::clone(&statuses.borrow_and_update());
        let newest = status.last_checkpoint.as_ref().map(|last| last.id);
        if newest > completed {
            completed = newest;
            job.shared().counters.completed += 1;
        }
        parked::follow(&core, &job, &status).await;
        let Some((id, failure)) = &status.last_failed else {
            continue;
        };
        if seen_failure == Some(*id) {
            continue;
        }
        seen_failure = Some(*id);
        *job.shared()
            .counters
            .failed
            .entry(failure.code.clone())
            .or_default() += 1;
    }
}
