//! Where a start would begin: the facts are gathered, the one resolver decides, and the answer may be kept as a plan.
//!
//! The plan that is shown and the start that is carried out go through the same two functions, [`gather`] and
//! [`StartQuestion::resolve`].

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use tokio::time::timeout;

use super::{
    Service,
    after_stop::AfterStop,
    core::Core,
    dead_letters,
    error::{Result, ServiceError},
    monitor::partitions_of,
    next_steps::{Curl, RefusedStart, choices, with_decision},
    sink_progress::{self, Former, make_sink},
    startup_mode::{mode_effect, refuse_future_start},
    without_checkpoints::{self, Read},
};
use crate::{
    engine::{
        error::KafkaError,
        ports::{KafkaCluster, TopicDescription},
        topics,
    },
    model::{
        checkpoint::{Checkpoint, CheckpointKind, CheckpointPhases, CheckpointStatus},
        code::Code,
        commit_mode::Checkpointing,
        ids::{CheckpointId, JobName, LeaseEpoch},
        job::{JobSpec, NewPartitions, SourceSpec},
        offset::PartitionOffsets,
        resolver::{
            BrokerFacts, EndFacts, EndInputs, Parking, PartitionFacts, PlannedPartition,
            ProgressFacts, ProgressKnown, ReadBefore, ResolvedStart, RestorableState, SinkFacts,
            SinkPosition, StartBasis, StartInputs, StartPolicies, StartReason, StateUse, Warning,
            needed_facts, resolve_ends, resolve_positions, uncounted,
        },
        start::{
            PartitionGonePolicy, PartitionsByTopic, PendingStart, StartFrom, StartRequest,
            StopRequest,
        },
        stop_at::{BoundedRun, StopAt},
        topic::{TopicId, TopicPartition},
        views::{NextStep, StartPlanView},
    },
    store::{JobRow, StoredCheckpoint, StoredPlan},
};

/// How long a plan may be used.
const VALID_FOR: TimeDelta = TimeDelta::minutes(15);
/// How long a caller waits for the brokers' facts.
const FACTS_DEADLINE: Duration = Duration::from_secs(10);

/// What a start is meant to do, after a pending one-shot start was taken into account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) from: StartFrom,
    pub(crate) partitions: Option<PartitionsByTopic>,
    /// The pending start that this start uses up.
    pub(crate) consumes: Option<String>,
    /// From where that one would have begun, if this start says something else.
    pub(crate) overrides: Option<StartFrom>,
}

impl Intent {
    /// What an operator's start means. Its own words count more than a pending start, and use it up all the same: the
    /// latest intent wins.
    pub(crate) fn of_operator(request: &StartRequest, pending: Option<&PendingStart>) -> Self {
        let consumes = pending.map(|pending| pending.id.clone());
        match pending.filter(|_| request.from == StartFrom::Auto) {
            Some(pending) => Self {
                from: pending.from.clone(),
                partitions: pending.partitions.clone(),
                consumes,
                overrides: None,
            },
            None => Self {
                from: request.from.clone(),
                partitions: request.partitions.clone(),
                consumes,
                overrides: pending.map(|pending| pending.from.clone()),
            },
        }
    }

    /// What a start by the server itself means: go on from state, and leave a pending start alone.
    pub(crate) fn automatic() -> Self {
        Self {
            from: StartFrom::Auto,
            partitions: None,
            consumes: None,
            overrides: None,
        }
    }
}

/// The checkpoints a start may rest on.
#[derive(Debug, Clone, Default)]
pub(crate) struct StartState {
    pub(crate) newest: Option<RestorableState>,
    pub(crate) chosen: Option<RestorableState>,
    /// The newest checkpoint of a job that takes none any more, until a start has set it aside.
    pub(crate) left: Option<RestorableState>,
    /// The newest checkpoint that a run without checkpoints has outdated, for a job that takes them again.
    pub(crate) outdated: Option<CheckpointId>,
    /// What is known of what was read without checkpoints.
    pub(crate) read: Option<Read>,
    /// The bounded run that a start may go on with.
    pub(crate) run: Option<BoundedRun>,
    /// What the newest checkpoint's target holds beyond it, where the spec names another one now.
    pub(crate) beyond: Beyond,
}

/// What a job's former target holds beyond the newest checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) enum Beyond {
    /// Nothing, or there is no former target.
    #[default]
    Nothing,
    /// The records of these partitions before these offsets.
    Held(PartitionOffsets),
    /// It did not say.
    Unknown(String),
}

impl StartState {
    /// Reads them from the store.
    pub(crate) async fn read(core: &Core, row: &JobRow, from: &StartFrom) -> Result<Self> {
        let newest = match core.store.latest_checkpoint(row.uid).await? {
            Some(stored) => {
                let newest_output = core.store.newest_output(row.uid).await?;
                Some(RestorableState {
                    newest_output,
                    ..restorable(stored)
                })
            }
            None => None,
        };
        let (newest, left) = match row.spec.checkpointing() {
            Checkpointing::On => (newest, None),
            Checkpointing::Off => (None, newest),
        };
        let outdated = match (&newest, row.spec.checkpointing()) {
            (None, Checkpointing::On) => without_checkpoints::outdated(core, row.uid).await?,
            (Some(_), _) | (None, Checkpointing::Off) => None,
        };
        let read = match (&left, row.spec.checkpointing()) {
            (None, Checkpointing::Off) => without_checkpoints::read_before(core, row).await?,
            (Some(_), _) | (None, Checkpointing::On) => None,
        };
        let run = match &row.spec.source.stop_at {
            Some(_) => core.store.bounded_run(row.uid).await?,
            None => None,
        };
        let StartFrom::Checkpoint { checkpoint } = from else {
            return Ok(Self {
                newest,
                chosen: None,
                left,
                outdated,
                read,
                run,
                beyond: Beyond::Nothing,
            });
        };
        let chosen = match checkpoint {
            Some(id) => {
                let stored = core.store.checkpoint(row.uid, *id).await?;
                let completed =
                    stored.filter(|stored| stored.status == CheckpointStatus::Completed);
                Some(completed.map(restorable).ok_or_else(|| {
                    ServiceError::new(
                        Code::CheckpointNotFound,
                        format!("job {} has no completed checkpoint {id}", row.name),
                    )
                    .job(&row.name)
                })?)
            }
            // Only the group is moved to it: see `refuse_restore`.
            None if left.is_some() => left.clone(),
            None if newest.is_none() => {
                without_checkpoints::refuse_restore(&row.name, &row.spec, from)?;
                return Err(ServiceError::new(
                    Code::CheckpointNotFound,
                    format!("job {} has no completed checkpoint", row.name),
                )
                .job(&row.name));
            }
            None => None,
        };
        Ok(Self {
            newest,
            chosen,
            left,
            outdated,
            read,
            run,
            beyond: Beyond::Nothing,
        })
    }
}

impl StartState {
    /// The newest checkpoint, with what its own target holds beyond it: the owner died between a flush and its checkpoint.
    ///
    /// Those records are written, and are not written to the new target again, as if the last checkpoint had been taken. Where the
    /// new target holds as much itself, from an earlier time or under another name, that is to be decided by the operator.
    pub(crate) fn beside(mut self, former: Option<&Former>, sink: &SinkFacts) -> Self {
        let Some(stored) = self
            .newest
            .as_mut()
            .filter(|stored| sink.is_other_than(Some(stored)))
        else {
            return self;
        };
        let Some(former) = former.filter(|former| former.identity == stored.sink_identity) else {
            return self;
        };
        let progress = match &former.progress {
            Ok(progress) => progress,
            Err(why) => {
                self.beyond = Beyond::Unknown(why.clone());
                return self;
            }
        };
        let of_new = match &sink.progress {
            ProgressFacts::Kept(progress) => Some(progress),
            ProgressFacts::NotKept | ProgressFacts::Unknown(_) | ProgressFacts::Refused { .. } => {
                None
            }
        };
        let mut beyond = PartitionOffsets::new();
        for (partition, position) in &mut stored.positions {
            let (Some(held), Some(checkpointed)) = (progress.get(partition), position.next_offset)
            else {
                continue;
            };
            let of_new = of_new.and_then(|progress| progress.get(partition));
            let is_of_same_run = held.position_id == position.position_id;
            if is_of_same_run
                && held.next_offset > checkpointed
                && of_new.is_none_or(|of_new| of_new.next_offset <= checkpointed)
            {
                position.next_offset = Some(held.next_offset);
                beyond.insert(partition.clone(), held.next_offset);
            }
        }
        if !beyond.is_empty() {
            self.beyond = Beyond::Held(beyond);
        }
        self
    }

    /// Names the former target as the one that decided, and says what becomes of what it holds.
    fn tell_beyond(&self, resolved: &mut ResolvedStart, sink: &SinkFacts) {
        let Some(stored) = self
            .newest
            .as_ref()
            .filter(|_| resolved.basis == StartBasis::Checkpoint)
        else {
            return;
        };
        let (id, then, now) = (stored.id, &stored.sink_identity, &sink.identity);
        let held = match &self.beyond {
            Beyond::Nothing => return,
            Beyond::Unknown(why) => {
                resolved.warnings.push(Warning {
                    code: Code::SinkMayDuplicate,
                    summary: format!(
                        "what {then} holds of the records behind checkpoint {id} is not known ({why}): they are written to {now}, and may stand in both"
                    ),
                });
                return;
            }
            Beyond::Held(held) => held,
        };
        let mut told = 0;
        for planned in &mut resolved.partitions {
            let is_held = held.get(&planned.topic_partition()) == planned.start_at.as_ref();
            if is_held && planned.reason == StartReason::Checkpoint {
                planned.reason = StartReason::SinkProgress;
                told += 1;
            }
        }
        if told == 0 {
            return;
        }
        let why = format!(
            "in {told} of its partitions {then} holds records beyond checkpoint {id}: reading goes on behind them, and they are not written to {now}"
        );
        resolved.summary.push_str(&format!("; {why}"));
        resolved.warnings.push(Warning {
            code: Code::SinkChanged,
            summary: why,
        });
    }

    /// Topics that a pattern selects, that were read, and that do not exist now.
    fn vanished(&self, source: &SourceSpec, described: &[TopicDescription]) -> Vec<String> {
        let known = [&self.newest, &self.chosen].into_iter().flatten();
        let topics: BTreeSet<&str> = known
            .flat_map(|state| state.positions.keys())
            .map(|partition| &*partition.topic)
            .filter(|topic| source.selects(topic))
            .filter(|topic| described.iter().all(|exists| exists.name != **topic))
            .collect();
        topics.into_iter().map(str::to_owned).collect()
    }
}

fn restorable(stored: StoredCheckpoint) -> RestorableState {
    RestorableState {
        id: stored.id,
        positions: stored.positions,
        sink_identity: stored.sink_identity,
        newest_output: None,
    }
}

/// Asks the brokers for everything the decision needs, and for nothing else.
///
/// The order matters. The group's offsets come before the ends of the logs, so that a group that moves on meanwhile is not
/// taken for one beyond the end; the ends come before the look-up by time stamp, so that "no such record" means the end
/// that was read and nothing that is written in between is passed over.
pub(crate) async fn gather(
    cluster: &dyn KafkaCluster,
    question: &StartQuestion<'_>,
    now: DateTime<Utc>,
) -> std::result::Result<BrokerFacts, KafkaError> {
    let source = &question.spec.source;
    let described = topics::describe(cluster, source).await?;
    let mut facts = BrokerFacts::default();
    for topic in &described {
        if topic.partitions.is_none() {
            facts.missing_topics.push(topic.name.clone());
        }
        for (partition, _leader) in partitions_of(topic) {
            let known = PartitionFacts {
                topic_id: topic.id.clone(),
                ..PartitionFacts::default()
            };
            facts.partitions.insert(partition, known);
        }
    }
    facts.by_pattern = source.topic_pattern.is_some();
    if facts.by_pattern {
        facts.missing_topics = question.state.vanished(source, &described);
    }
    let partitions: Vec<TopicPartition> = facts.partitions.keys().cloned().collect();
    if partitions.is_empty() {
        return Ok(facts);
    }
    let nothing = BrokerFacts::default();
    let needed = needed_facts(&question.inputs(&nothing), now.timestamp_millis());
    if needed.group_offsets {
        for (partition, committed) in cluster.group_offsets(&source.group_id, &partitions).await? {
            if let Some(known) = facts.partitions.get_mut(&partition) {
                known.group_offset = Some(committed.offset);
            }
        }
    }
    for (partition, bounds) in cluster.log_bounds(&partitions).await? {
        if let Some(known) = facts.partitions.get_mut(&partition) {
            known.bounds = Some(bounds);
        }
    }
    let led: Vec<TopicPartition> = facts
        .partitions
        .iter()
        .filter(|(_, known)| known.bounds.is_some())
        .map(|(partition, _)| partition.clone())
        .collect();
    for (timestamp_ms, asked) in needed.instants(&led) {
        let found = cluster
            .offsets_for_timestamp(&asked, timestamp_ms, source.isolation)
            .await?;
        for (partition, offset) in found {
            if let Some(known) = facts.partitions.get_mut(&partition) {
                known.at_timestamp = Some(offset);
            }
        }
    }
    facts.ends = gather_ends(cluster, question, &facts).await?;
    Ok(facts)
}

/// Asks for what the ends of a bounded run rest on. After the ends of the logs, for the same reason as above.
async fn gather_ends(
    cluster: &dyn KafkaCluster,
    question: &StartQuestion<'_>,
    facts: &BrokerFacts,
) -> std::result::Result<EndFacts, KafkaError> {
    let source = &question.spec.source;
    let mut found = EndFacts::default();
    let Some(ends) = question.ends() else {
        return Ok(found);
    };
    let nothing = BrokerFacts::default();
    let mut asked = ends.to_look_up(&question.inputs(&nothing), facts);
    match ends.stop_at {
        _ if asked.is_empty() => {}
        StopAt::Latest | StopAt::SpecificOffsets { .. } => {}
        StopAt::GroupOffsets => {
            let committed = cluster.group_offsets(&source.group_id, &asked).await?;
            let offsets = committed.into_iter().map(|(p, group)| (p, group.offset));
            found.group = offsets.collect();
        }
        StopAt::Timestamp { timestamp } => {
            let has_leader = |partition: &TopicPartition| {
                let known = facts.partitions.get(partition);
                known.is_some_and(|known| known.bounds.is_some())
            };
            asked.retain(has_leader);
            found.at_timestamp = cluster
                .offsets_for_timestamp(&asked, timestamp.timestamp_millis(), source.isolation)
                .await?;
        }
    }
    Ok(found)
}

/// What a start asks the resolver, before the brokers have answered.
#[derive(Clone, Copy)]
pub(crate) struct StartQuestion<'a> {
    pub(crate) spec: &'a JobSpec,
    pub(crate) request: &'a StartRequest,
    pub(crate) intent: &'a Intent,
    pub(crate) state: &'a StartState,
    pub(crate) sink: &'a SinkFacts,
    pub(crate) parking: Parking<'a>,
}

impl<'a> StartQuestion<'a> {
    fn inputs(&self, facts: &'a BrokerFacts) -> StartInputs<'a> {
        let (source, request) = (&self.spec.source, self.request);
        StartInputs {
            isolation: source.isolation,
            startup_mode: &self.spec.startup_mode,
            state: self.state.newest.as_ref(),
            state_use: match self.spec.checkpointing() {
                Checkpointing::On => StateUse::Counts,
                Checkpointing::Off => StateUse::Off {
                    left: self.state.left.as_ref(),
                    read: self
                        .state
                        .read
                        .as_ref()
                        .map_or_else(ReadBefore::default, |read| ReadBefore {
                            positions: read.positions.as_ref(),
                            group_tells: read.committed,
                            missing_is_decided: request.on_missing_group_offset.is_some(),
                        }),
                },
            },
            chosen: self.state.chosen.as_ref(),
            sink: self.sink,
            from: &self.intent.from,
            covered: self.intent.partitions.as_ref(),
            policies: StartPolicies {
                on_out_of_range: request.on_out_of_range.unwrap_or(source.on_out_of_range),
                on_missing_group_offset: request
                    .on_missing_group_offset
                    .unwrap_or(source.on_missing_group_offset),
                on_topic_recreated: request
                    .on_topic_recreated
                    .unwrap_or(source.on_topic_recreated),
                forget_gone: request.on_partition_gone == Some(PartitionGonePolicy::Forget),
            },
            parking: self.parking,
            facts,
        }
    }

    /// Where the job ends, if it is bounded.
    fn ends(&self) -> Option<EndInputs<'a>> {
        Some(EndInputs {
            stop_at: self.spec.source.stop_at.as_ref()?,
            run: self.state.run.as_ref(),
        })
    }

    /// Lets the one resolver decide.
    pub(crate) fn resolve(&self, facts: &'a BrokerFacts) -> ResolvedStart {
        let inputs = self.inputs(facts);
        let mut resolved = resolve_positions(&inputs);
        if let Some(ends) = self.ends() {
            resolve_ends(&mut resolved, &inputs, &ends);
        }
        if let Some(nothing) = self.nothing_to_read(&resolved) {
            resolved.summary = nothing;
        }
        resolved
            .warnings
            .extend(without_checkpoints::warning(self.spec));
        if let Some(newest) = self
            .state
            .outdated
            .filter(|_| resolved.basis == StartBasis::StartupMode)
        {
            let warning = without_checkpoints::outdated_warning(newest, &self.spec.startup_mode);
            resolved.warnings.push(warning);
        }
        if let Some(overridden) = &self.intent.overrides {
            let why = format!(
                "the start from {} that was asked for ahead is used up by this one, without effect",
                overridden.name()
            );
            // The sentence is what a log or a history keeps of a start.
            resolved.summary.push_str(&format!("; {why}"));
            resolved.warnings.push(Warning {
                code: Code::Superseded,
                summary: format!("{why}: what this one says counts, also where it names partitions and the rest go on"),
            });
        }
        self.state.tell_beyond(&mut resolved, self.sink);
        let replayed = resolved.totals.replayed;
        if replayed > 0 && self.spec.sink.doubles_what_is_replayed() {
            resolved.warnings.push(Warning {
                code: Code::SinkMayDuplicate,
                summary: format!(
                    "{replayed} offsets are read again: what the sink holds of them stands there twice, since it appends"
                ),
            });
        }
        resolved.warnings.extend(self.uncounted(&inputs, &resolved));
        resolved
    }

    /// What is said of rows that come twice and are in no number.
    fn uncounted(&self, inputs: &StartInputs<'_>, resolved: &ResolvedStart) -> Option<Warning> {
        let partitions = uncounted(inputs, resolved)?;
        self.spec.sink.doubles_what_is_replayed().then(|| Warning {
            code: Code::SinkMayDuplicate,
            summary: format!(
                "{partitions}: the sink has lost how far it had come, so what it holds from the checkpoint on cannot be counted and is not in replayed: what of it is read again stands there twice, since it appends"
            ),
        })
    }

    /// The sentence of a start that finds nothing to read. What appears later is found by the run, and begins by its rules.
    fn nothing_to_read(&self, resolved: &ResolvedStart) -> Option<String> {
        let source = &self.spec.source;
        let pattern = source.topic_pattern.as_ref()?;
        if resolved.read_partitions().next().is_some() {
            return None;
        }
        let begin = match source.partition_discovery.new_partitions {
            NewPartitions::Earliest => "at their first record".to_owned(),
            NewPartitions::StartupMode => {
                format!("by the startup mode ({})", self.spec.startup_mode.name())
            }
        };
        Some(format!(
            "read nothing yet: no topic matches {pattern} now; the partitions of those that appear begin {begin}"
        ))
    }
}

/// What has changed since a plan was made, in words; nothing means that its numbers still hold.
pub(crate) fn what_changed(
    plan: &StoredPlan,
    generation: i64,
    pending_start: Option<&str>,
    state: Option<&RestorableState>,
    sink: &SinkFacts,
    facts: &BrokerFacts,
) -> Vec<String> {
    let mut changes = what_moved(plan, state, sink);
    changes.extend(what_changed_outside(plan, generation, pending_start, facts));
    changes
}

/// What the job itself has moved since a plan was made: its checkpoints and its progress in the sink.
fn what_moved(plan: &StoredPlan, state: Option<&RestorableState>, sink: &SinkFacts) -> Vec<String> {
    let mut changes = Vec::new();
    let newest = state.map(|state| state.id);
    if plan.state != newest {
        let name = |id: Option<CheckpointId>| {
            id.map_or_else(|| "none".to_owned(), |id| format!("checkpoint {id}"))
        };
        changes.push(format!(
            "the newest checkpoint: {} then, {} now",
            name(plan.state),
            name(newest)
        ));
    }
    if plan.resolved.sink.identity != sink.identity {
        changes.push(format!(
            "the sink's target: {} then, {} now",
            plan.resolved.sink.identity, sink.identity
        ));
    }
    let progress = sink.comparable_with(state);
    for planned in plan.resolved.read_partitions() {
        let partition = planned.topic_partition();
        let sink_now = progress.and_then(|progress| progress.get(&partition));
        if planned.sink.as_ref() != sink_now {
            changes.push(format!(
                "{partition}: the sink stood at {} then, and stands at {} now",
                stand(planned.sink.as_ref()),
                stand(sink_now)
            ));
        }
    }
    changes
}

/// What has changed besides the job's own positions. A restart moves those itself, and what it may ask for does not rest on
/// them.
pub(crate) fn what_changed_outside(
    plan: &StoredPlan,
    generation: i64,
    pending_start: Option<&str>,
    facts: &BrokerFacts,
) -> Vec<String> {
    let mut changes = Vec::new();
    if plan.generation != generation {
        changes.push(format!(
            "the spec: generation {} then, {generation} now",
            plan.generation
        ));
    }
    if plan.pending_start.as_deref() != pending_start {
        changes.push("the start that was asked for ahead of time".to_owned());
    }
    let planned: BTreeMap<TopicPartition, &PlannedPartition> = plan
        .resolved
        .partitions
        .iter()
        .filter(|planned| planned.exists())
        .map(|planned| (planned.topic_partition(), planned))
        .collect();
    let then: BTreeSet<&TopicPartition> = planned.keys().collect();
    let now: BTreeSet<&TopicPartition> = facts.partitions.keys().collect();
    for partition in now.difference(&then) {
        changes.push(format!("{partition} is new"));
    }
    for partition in then.difference(&now) {
        // One that the brokers did not report then may be unreported now: that is no change.
        if planned[*partition].earliest.is_some() {
            changes.push(format!("{partition} is gone"));
        }
    }
    for (partition, planned) in planned {
        let Some(facts) = facts.partitions.get(&partition) else {
            continue;
        };
        let parking = planned.parked.as_ref();
        let replaced_by = parking.and_then(|parking| parking.replaced_by.as_ref());
        let then = replaced_by.or(planned.topic_id.as_ref());
        if TopicId::differ(then, facts.topic_id.as_ref()) {
            changes.push(format!("{partition}: the topic was created again"));
        } else if let (Some(start), Some(bounds)) = (planned.start_at, facts.bounds)
            && !(bounds.earliest..=bounds.latest).contains(&start)
        {
            changes.push(format!(
                "{partition}: {start} lies outside the log now ({} to {})",
                bounds.earliest, bounds.latest
            ));
        }
    }
    changes
}

fn stand(position: Option<&SinkPosition>) -> String {
    position.map_or_else(
        || "nothing".to_owned(),
        |position| {
            format!(
                "{} (decided by checkpoint {})",
                position.next_offset, position.position_id
            )
        },
    )
}

/// The error of a plan that no longer holds.
pub(crate) fn plan_stale(job: &JobName, changes: &[String]) -> ServiceError {
    ServiceError::new(
        Code::PlanStale,
        format!("changed since the plan was made: {}", changes.join("; ")),
    )
    .job(job)
}

/// The `start` checkpoint: the positions as they are stored before the first fetch.
pub(crate) fn start_checkpoint(
    resolved: &ResolvedStart,
    id: CheckpointId,
    epoch: LeaseEpoch,
    sink_identity: String,
    now: DateTime<Utc>,
) -> Checkpoint {
    Checkpoint {
        id,
        kind: CheckpointKind::Start,
        epoch,
        started_at: now,
        completed_at: now,
        phases: CheckpointPhases::default(),
        has_output: false,
        sink_identity,
        positions: resolved.positions(id),
    }
}

/// A decision, and what it was made from.
pub(crate) struct Decision {
    pub(crate) row: JobRow,
    pub(crate) state: StartState,
    pub(crate) resolved: ResolvedStart,
    /// What the brokers said.
    pub(crate) facts: BrokerFacts,
    /// Live members of the consumer group, if the broker said.
    pub(crate) group_members: Option<usize>,
}

impl Service {
    pub(super) async fn show_start_plan(
        &self,
        name: &JobName,
        request: &StartRequest,
    ) -> Result<StartPlanView> {
        let core = &self.core;
        refuse_future_start(&request.from, core.now())?;
        if let Some(id) = &request.plan {
            let plan = self.usable_plan(name, id).await?;
            return self.show_kept_plan(name, plan).await;
        }
        let decision = self.decide(name, request).await?;
        let Decision {
            row,
            state,
            mut resolved,
            ..
        } = decision;
        let letters = dead_letters::look(core, &row.spec).await;
        resolved.blockers.extend(letters.blocker());
        if let Some(members) = decision.group_members.filter(|members| *members > 0) {
            resolved.warnings.push(Warning {
                code: Code::GroupInUse,
                summary: format!(
                    "the consumer group {} has {members} live members, none of them this job: they move its offsets too",
                    row.spec.source.group_id
                ),
            });
        }
        if row.startup_mode_shadowed && resolved.basis == StartBasis::Checkpoint {
            resolved.warnings.push(Warning {
                code: Code::StartupModeShadowed,
                summary: format!(
                    "the startup mode ({}) was changed and is not used; set it with apply=next-start to make it count",
                    row.spec.startup_mode.name()
                ),
            });
        }
        let plan = StoredPlan {
            id: core.new_plan_id(),
            job: row.uid,
            generation: row.generation,
            state: state.newest.as_ref().map(|state| state.id),
            pending_start: row.pending_start.as_ref().map(|pending| pending.id.clone()),
            request: request.clone(),
            resolved,
            valid_until: core.now() + VALID_FOR,
        };
        // What the sink has not said cannot be promised, and a job without state keeps nothing.
        let can_be_promised = plan.resolved.blockers.is_empty()
            && !row.spec.checkpointing().is_off()
            && plan.resolved.sink.progress != ProgressKnown::Unknown;
        let kept = can_be_promised && self.keep_plan(&plan).await;
        Ok(self.plan_view(&row, state.newest.is_some(), plan, kept))
    }

    async fn keep_plan(&self, plan: &StoredPlan) -> bool {
        match self.core.store.save_plan(plan).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the plan cannot be kept; it is shown without an id");
                false
            }
        }
    }

    async fn show_kept_plan(&self, name: &JobName, plan: StoredPlan) -> Result<StartPlanView> {
        let row = self.core.job(name).await?.row();
        Ok(self.plan_view(&row, plan.state.is_some(), plan, true))
    }

    fn plan_view(
        &self,
        row: &JobRow,
        has_state: bool,
        plan: StoredPlan,
        kept: bool,
    ) -> StartPlanView {
        let curl = Curl::of(&self.core, &row.name);
        let next = if row.running.is_some() {
            vec![NextStep {
                why: match row.spec.checkpointing() {
                    Checkpointing::On => {
                        "stop the job first; its last checkpoint makes another plan"
                    }
                    Checkpointing::Off => "stop the job first; until then it reads on",
                }
                .to_owned(),
                curl: curl.stop(),
            }]
        } else if plan.resolved.blockers.is_empty() {
            let body = if kept {
                json!({"plan": plan.id})
            } else {
                with_decision(&plan.request, &json!({}))
            };
            let body = body
                .as_object()
                .is_some_and(|members| !members.is_empty())
                .then_some(body);
            vec![NextStep {
                why: if kept {
                    "start with exactly these numbers"
                } else if plan.resolved.sink.progress == ProgressKnown::Unknown {
                    "start; it waits until the sink answers and decides then"
                } else {
                    "start"
                }
                .to_owned(),
                curl: curl.start(body.as_ref()),
            }]
        } else {
            // The plan is what they would be sent to look at.
            let refused = RefusedStart {
                request: plan.request.clone(),
                blockers: plan.resolved.blockers.clone(),
            };
            choices(curl, &refused).split_off(1)
        };
        // A stop takes another checkpoint, and what is passed over or read again is counted from that one.
        let since = match plan.state.filter(|_| row.running.is_some()) {
            Some(id) => format!("; counted from checkpoint {id}, and the job reads on"),
            None => String::new(),
        };
        StartPlanView {
            job: row.name.clone(),
            generation: plan.generation,
            plan: kept.then_some(plan.id),
            valid_until: kept.then_some(plan.valid_until),
            startup_mode: mode_effect(row, has_state),
            next,
            catch_up_ms: row.spec.limits.time_for(plan.resolved.totals.to_read),
            resolved: ResolvedStart {
                summary: plan.resolved.told() + &since,
                ..plan.resolved
            },
        }
    }

    /// A plan of this job that may still be used.
    pub(super) async fn usable_plan(
        &self,
        job: &JobName,
        id: &crate::model::ids::PlanId,
    ) -> Result<StoredPlan> {
        let uid = self.core.job(job).await?.uid;
        let plan = self.core.store.plan(id).await?;
        plan.filter(|plan| plan.job == uid && plan.valid_until >= self.core.now())
            .ok_or_else(|| {
                ServiceError::new(
                    Code::PlanExpired,
                    format!("job {job} has no plan {id} that may still be used"),
                )
                .job(job)
            })
    }

    /// Works out what a start would do now, without claiming anything.
    pub(super) async fn decide(&self, name: &JobName, request: &StartRequest) -> Result<Decision> {
        decide(&self.core, name, request, None).await
    }
}

/// Works out what a start would do, now or as of a stop that comes before it, without claiming anything.
pub(super) async fn decide(
    core: &Core,
    name: &JobName,
    request: &StartRequest,
    stop: Option<&StopRequest>,
) -> Result<Decision> {
    let job = core.job(name).await?;
    core.refresh(&job).await;
    let row = job.row();
    let intent = Intent::of_operator(request, row.pending_start.as_ref());
    without_checkpoints::refuse_restore(name, &row.spec, &intent.from)?;
    let state = StartState::read(core, &row, &intent.from).await?;
    let cluster = core.cluster(&row.spec.source.connection)?;
    // The sink after the checkpoint: were it the other way round, a running job would seem to be ahead of its sink.
    let mut sink = sink_of(core, &row).await?;
    let after = stop.and_then(|stop| AfterStop::of(&job.shared(), stop));
    let former = sink_progress::ask_former(core, &job, &row).await;
    let mut state = state.beside(former.as_ref(), &sink);
    if let Some(after) = &after {
        sink = after.sink(sink, &state);
        state = after.state(state);
    }
    let question = StartQuestion {
        spec: &row.spec,
        request,
        intent: &intent,
        state: &state,
        sink: &sink,
        parking: Parking::of(row.spec.errors.block, &row.parked, false),
    };
    let asked = async {
        let facts = gather(&*cluster, &question, core.now());
        let members = cluster.group_members(&row.spec.source.group_id);
        tokio::join!(facts, members)
    };
    let (facts, members) = timeout(FACTS_DEADLINE, asked).await.map_err(|_elapsed| {
        ServiceError::new(
            Code::KafkaTimeout,
            format!(
                "Kafka did not say where {name} stands within {} s",
                FACTS_DEADLINE.as_secs()
            ),
        )
        .job(name)
    })?;
    let mut facts = facts.map_err(|error| ServiceError::from(error).job(name))?;
    if let Some(after) = &after {
        after.group(&mut facts);
    }
    let resolved = question.resolve(&facts);
    Ok(Decision {
        row,
        state,
        resolved,
        facts,
        group_members: members.ok(),
    })
}

/// What is known of a job's sink, without claiming it.
async fn sink_of(core: &Core, row: &JobRow) -> Result<SinkFacts> {
    let ids = (core.install().await?, row.uid);
    let sink = make_sink(core, &row.spec.sink, &row.name, ids)?;
    Ok(sink_progress::facts(
        sink.identity(),
        sink_progress::ask(&*sink).await,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        checkpoint::CheckpointPosition,
        ids::{JobUid, PlanId},
        offset::Offset,
        resolver::{LogBounds, PlanTotals, PlannedSink},
        topic::TopicId,
    };

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn facts(partitions: &[(i32, i64, i64, &str)]) -> BrokerFacts {
        let partitions = partitions.iter().map(|(number, earliest, latest, id)| {
            let facts = PartitionFacts {
                topic_id: Some(TopicId((*id).into())),
                bounds: Some(LogBounds {
                    earliest: offset(*earliest),
                    last_stable: offset(*latest),
                    latest: offset(*latest),
                }),
                ..PartitionFacts::default()
            };
            (TopicPartition::new("orders", *number), facts)
        });
        BrokerFacts {
            by_pattern: false,
            partitions: partitions.collect(),
            missing_topics: Vec::new(),
            ends: EndFacts::default(),
        }
    }

    fn sink_at(next_offset: i64, position_id: i64) -> SinkPosition {
        SinkPosition {
            next_offset: offset(next_offset),
            position_id: CheckpointId(position_id),
        }
    }

    fn sink(progress: &[(i32, SinkPosition)]) -> SinkFacts {
        let progress = progress
            .iter()
            .map(|(number, position)| (TopicPartition::new("orders", *number), *position));
        SinkFacts {
            identity: "orders-db".to_owned(),
            progress: ProgressFacts::Kept(progress.collect()),
        }
    }

    fn state(id: i64) -> RestorableState {
        RestorableState {
            id: CheckpointId(id),
            positions: BTreeMap::new(),
            sink_identity: "orders-db".to_owned(),
            newest_output: None,
        }
    }

    fn plan() -> StoredPlan {
        let planned = |topic: &str, number, start_at: Option<i64>, reason| PlannedPartition {
            topic: topic.to_owned(),
            partition: number,
            start_at: start_at.and_then(Offset::new),
            reason,
            earliest: (number < 2).then_some(Offset::ZERO),
            readable_end: None,
            to_read: None,
            replayed: 0,
            skipped: 0,
            lost: 0,
            outside: None,
            topic_id: Some(TopicId("a".into())),
            sink: (number == 0).then(|| sink_at(50, 3)),
            kept: None,
            parked: None,
            position_id: (number == 0).then_some(CheckpointId(3)),
            stop_at: None,
            stop_reason: None,
        };
        StoredPlan {
            id: PlanId::from_text("pl_x"),
            job: JobUid(uuid::Uuid::nil()),
            generation: 7,
            state: Some(CheckpointId(9)),
            pending_start: None,
            request: StartRequest::auto(),
            resolved: ResolvedStart {
                basis: StartBasis::Checkpoint,
                checkpoint: Some(CheckpointId(9)),
                set_aside: None,
                summary: String::new(),
                partitions: vec![
                    planned("gone", 0, None, StartReason::Detached),
                    planned("orders", 0, Some(50), StartReason::Checkpoint),
                    planned("orders", 1, Some(0), StartReason::NewSinceCheckpoint),
                    // Had no leader when the plan was made.
                    planned("orders", 2, None, StartReason::NoLeader),
                ],
                totals: PlanTotals::default(),
                sink: PlannedSink {
                    identity: "orders-db".to_owned(),
                    progress: ProgressKnown::Known,
                },
                bounded: None,
                forgotten: Vec::new(),
                blockers: Vec::new(),
                warnings: Vec::new(),
            },
            valid_until: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_plan_holds_until_something_it_rests_on_changes() {
        let same = facts(&[(0, 0, 60, "a"), (1, 0, 5, "a")]);
        let (nine, ten) = (state(9), state(10));
        let nine = Some(&nine);
        let held = sink(&[(0, sink_at(50, 3))]);
        let plan = plan();
        assert_eq!(
            what_changed(&plan, 7, None, nine, &held, &same),
            Vec::<String>::new()
        );
        for (now, part) in [
            (
                sink(&[(0, sink_at(51, 3))]),
                "orders/0: the sink stood at 50 (decided by checkpoint 3) then, and stands at 51 (decided by checkpoint 3) now",
            ),
            (
                sink(&[(0, sink_at(50, 4))]),
                "stands at 50 (decided by checkpoint 4)",
            ),
            (sink(&[]), "stands at nothing now"),
            (
                sink(&[(0, sink_at(50, 3)), (1, sink_at(0, 9))]),
                "orders/1: the sink stood at nothing",
            ),
        ] {
            let changes = what_changed(&plan, 7, None, nine, &now, &same);
            assert!(
                matches!(changes.as_slice(), [only] if only.contains(part)),
                "{part}: {changes:?}"
            );
        }
        let elsewhere = SinkFacts {
            identity: "other-db".to_owned(),
            ..held.clone()
        };
        let changes = what_changed(&plan, 7, None, nine, &elsewhere, &same);
        assert_eq!(
            changes[0],
            "the sink's target: orders-db then, other-db now"
        );
        let led = facts(&[(0, 0, 60, "a"), (1, 0, 5, "a"), (2, 0, 9, "a")]);
        assert_eq!(
            what_changed(&plan, 7, None, nine, &held, &led),
            Vec::<String>::new(),
            "a leader came back"
        );
        let cases = [
            (8, None, nine, same.clone(), "generation 7 then, 8 now"),
            (
                7,
                None,
                Some(&ten),
                same.clone(),
                "checkpoint 9 then, checkpoint 10 now",
            ),
            (7, None, None, same.clone(), "none now"),
            (7, Some("p"), nine, same, "ahead of time"),
            (
                7,
                None,
                nine,
                facts(&[(0, 0, 60, "a"), (1, 0, 5, "a"), (3, 0, 0, "a")]),
                "orders/3 is new",
            ),
            (7, None, nine, facts(&[(0, 0, 60, "a")]), "orders/1 is gone"),
            (
                7,
                None,
                nine,
                facts(&[(0, 51, 60, "a"), (1, 0, 5, "a")]),
                "orders/0: 50 lies outside the log now (51 to 60)",
            ),
            (
                7,
                None,
                nine,
                facts(&[(0, 0, 49, "a"), (1, 0, 5, "a")]),
                "outside the log",
            ),
            (
                7,
                None,
                nine,
                facts(&[(0, 0, 60, "b"), (1, 0, 5, "a")]),
                "created again",
            ),
        ];
        for (generation, pending, state, facts, part) in cases {
            let changes = what_changed(&plan, generation, pending, state, &held, &facts);
            assert!(
                matches!(changes.as_slice(), [only] if only.contains(part)),
                "{part}: {changes:?}"
            );
        }
    }

    #[test]
    fn what_the_former_target_holds_beyond_the_checkpoint_is_not_written_to_the_new_one() {
        let begin = |former: std::result::Result<i64, &str>, id, of_new: Option<i64>| {
            let progress = former.map_err(str::to_owned);
            let former = Former {
                identity: "orders-db".to_owned(),
                progress: progress
                    .map(|next| [(TopicPartition::new("orders", 0), sink_at(next, id))].into()),
            };
            let position = CheckpointPosition {
                next_offset: Some(offset(50)),
                position_id: CheckpointId(3),
                topic_id: None,
            };
            let mut newest = state(9);
            newest.positions = [(TopicPartition::new("orders", 0), position)].into();
            let state = StartState {
                newest: Some(newest),
                ..StartState::default()
            };
            let of_new = of_new.map(|next| (0, sink_at(next, 2)));
            let new = SinkFacts {
                identity: "other-db".to_owned(),
                ..sink(of_new.as_slice())
            };
            let state = state.beside(Some(&former), &new);
            let document = json!({
                "source": {"connection": "main", "topics": ["orders"]}, "startup_mode": {"mode": "earliest"},
                "sink": {"type": "blackhole"},
            });
            let job = JobName::new("orders").unwrap();
            let spec = JobSpec::read(&job, &document).unwrap();
            let (request, intent) = (StartRequest::auto(), Intent::automatic());
            let question = StartQuestion {
                spec: &spec,
                request: &request,
                intent: &intent,
                state: &state,
                sink: &new,
                parking: Parking::default(),
            };
            question.resolve(&facts(&[(0, 0, 90, "a")]))
        };
        let resolved = begin(Ok(70), 3, None);
        let planned = &resolved.partitions[0];
        assert_eq!(
            (planned.start_at, planned.reason, planned.position_id),
            (Some(offset(70)), StartReason::SinkProgress, None)
        );
        assert_eq!((planned.skipped, planned.replayed), (0, 0));
        assert!(
            resolved
                .summary
                .contains("orders-db holds records beyond checkpoint 9"),
            "{}",
            resolved.summary
        );
        // Of another run of positions, or not further.
        for (former, id, of_new) in [(70, 2, None), (50, 3, None)] {
            let resolved = begin(Ok(former), id, of_new);
            assert_eq!(resolved.partitions[0].start_at, Some(offset(50)));
        }
        let resolved = begin(Ok(70), 3, Some(70));
        assert_eq!(
            resolved.blockers[0].code,
            Code::SinkChanged,
            "the operator decides"
        );
        let resolved = begin(Err("no answer"), 3, None);
        let codes: Vec<Code> = resolved
            .warnings
            .iter()
            .map(|warning| warning.code)
            .collect();
        assert!(codes.contains(&Code::SinkMayDuplicate), "{codes:?}");
    }

    #[test]
    fn the_start_checkpoint_holds_what_is_read_and_who_decided_it() {
        let checkpoint = start_checkpoint(
            &plan().resolved,
            CheckpointId(10),
            LeaseEpoch(4),
            "blackhole".to_owned(),
            DateTime::UNIX_EPOCH,
        );
        let positions: Vec<(String, Option<Offset>, i64)> = checkpoint
            .positions
            .iter()
            .map(|(p, position)| (p.to_string(), position.next_offset, position.position_id.0))
            .collect();
        assert_eq!(
            positions,
            [
                ("orders/0".to_owned(), Offset::new(50), 3),
                ("orders/1".to_owned(), Offset::new(0), 10),
                ("orders/2".to_owned(), None, 10)
            ]
        );
    }

    #[test]
    fn an_operators_words_count_more_than_a_pending_start_and_use_it_up() {
        let pending = PendingStart {
            id: "p1".to_owned(),
            from: StartFrom::Latest,
            partitions: None,
            requested_by: "x".to_owned(),
            at: DateTime::UNIX_EPOCH,
        };
        let bare = Intent::of_operator(&StartRequest::auto(), Some(&pending));
        assert_eq!(
            (bare.from, bare.consumes.as_deref()),
            (StartFrom::Latest, Some("p1"))
        );
        let request = StartRequest::read(&json!({"from": "earliest"})).unwrap();
        let named = Intent::of_operator(&request, Some(&pending));
        assert_eq!(
            (&named.from, named.consumes.as_deref()),
            (&StartFrom::Earliest, Some("p1"))
        );
        assert_eq!(
            (bare.overrides, named.overrides),
            (None, Some(StartFrom::Latest))
        );
        assert_eq!(Intent::automatic().consumes, None);
    }
}
