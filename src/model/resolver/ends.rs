//! Where the partitions of a bounded job end.
//!
//! Comes after the positions, because an end may rest on one. The rule, per partition:
//! 1. a run that was begun with the same wish (`stop_at`) goes on with the ends it has, however far the logs have grown;
//! 2. a partition that this start positions from outside (`from` other than `auto`, where it covers it) begins a new run and
//!    gets its end anew, and so does one whose topic was created again;
//! 3. a partition that appeared after the run had begun is no part of it: it ends where it begins, and the next run reads it;
//! 4. otherwise the wish is resolved now.
//!
//! Like a beginning an end is a number or stands against the start: a wish that is resolved later would end elsewhere.

use std::collections::BTreeMap;

use super::{
    BrokerFacts, PlanTotals, PlannedPartition, PlannedRun, ResolvedStart, StartInputs, StopReason,
    Warning,
    blockers::{self, Blockers},
    words,
};
use crate::model::{
    code::Code,
    ids::CheckpointId,
    job::Isolation,
    offset::Offset,
    start::StartFrom,
    stop_at::{BoundedRun, RunEnd, StopAt},
    topic::{TopicId, TopicPartition},
};

/// What the ends depend on, besides what the beginnings do.
#[derive(Debug, Clone, Copy)]
pub struct EndInputs<'a> {
    /// The wish of the spec.
    pub stop_at: &'a StopAt,
    /// The run that is stored.
    pub run: Option<&'a BoundedRun>,
}

impl<'a> EndInputs<'a> {
    /// The run that this start may go on with. Without a checkpoint there is nothing that could go on.
    fn run(&self, inputs: &StartInputs<'_>) -> Option<&'a BoundedRun> {
        self.run
            .filter(|run| run.stop_at == *self.stop_at && inputs.state.is_some())
    }

    /// Whether this start itself says where the partition begins: that begins a new run for it.
    fn begins_anew(inputs: &StartInputs<'_>, partition: &TopicPartition) -> bool {
        *inputs.from != StartFrom::Auto && inputs.covers(partition)
    }

    /// The end that a partition keeps.
    fn kept(
        &self,
        inputs: &StartInputs<'_>,
        partition: &TopicPartition,
        topic_id: Option<&TopicId>,
    ) -> Option<&'a RunEnd> {
        if Self::begins_anew(inputs, partition) {
            return None;
        }
        let end = self.run(inputs)?.ends.get(partition)?;
        (!TopicId::differ(end.topic_id.as_ref(), topic_id)).then_some(end)
    }

    /// The partitions whose wish has to be looked up: none for a run that goes on, so that a group coordinator that is away
    /// does not hold it up.
    pub fn to_look_up(&self, inputs: &StartInputs<'_>, facts: &BrokerFacts) -> Vec<TopicPartition> {
        facts
            .partitions
            .iter()
            .filter(|(partition, facts)| {
                self.kept(inputs, partition, facts.topic_id.as_ref())
                    .is_none()
            })
            .map(|(partition, _)| partition.clone())
            .collect()
    }
}

/// Adds to a decision where its partitions end. See the module.
pub fn resolve_ends(resolved: &mut ResolvedStart, inputs: &StartInputs<'_>, ends: &EndInputs<'_>) {
    let mut resolution = Resolution {
        inputs,
        ends,
        blockers: Blockers::default(),
        keeps_any: false,
        left_out: Vec::new(),
        recreated: Vec::new(),
        beyond: Vec::new(),
    };
    for planned in &mut resolved.partitions {
        if planned.exists() {
            resolution.decide(planned);
        }
    }
    resolution.check_names(&resolved.partitions);
    resolution.finish(resolved);
}

struct Resolution<'a> {
    inputs: &'a StartInputs<'a>,
    ends: &'a EndInputs<'a>,
    blockers: Blockers,
    keeps_any: bool,
    /// Appeared after the run had begun.
    left_out: Vec<TopicPartition>,
    /// Their topics were created again: the ends of the run mean nothing in them.
    recreated: Vec<TopicPartition>,
    /// Their logs do not reach their ends yet.
    beyond: Vec<TopicPartition>,
}

impl Resolution<'_> {
    fn decide(&mut self, planned: &mut PlannedPartition) {
        let partition = planned.topic_partition();
        let Some((stop_at, reason)) = self.end_of(&partition, planned) else {
            return;
        };
        planned.stop_at = Some(stop_at);
        planned.stop_reason = Some(reason);
        planned.to_read = planned
            .start_at
            .map(|start| stop_at.distance_from(start).max(0));
        // What lies behind the end is no part of the run, whether or not it is gone.
        if let Some(earliest) = planned.earliest.filter(|_| planned.lost > 0) {
            let beyond = earliest.distance_from(stop_at).max(0);
            planned.lost = (planned.lost - beyond).max(0);
        }
        let is_read_up = planned.start_at.is_some_and(|start| start >= stop_at);
        if !is_read_up && planned.readable_end.is_some_and(|end| end < stop_at) {
            self.beyond.push(partition);
        }
    }

    fn end_of(
        &mut self,
        partition: &TopicPartition,
        planned: &PlannedPartition,
    ) -> Option<(Offset, StopReason)> {
        let topic_id = planned.topic_id.as_ref();
        if let Some(kept) = self.ends.kept(self.inputs, partition, topic_id) {
            self.keeps_any = true;
            return Some((kept.stop_offset, StopReason::RunGoesOn));
        }
        if self.has_an_end_elsewhere(partition) {
            self.recreated.push(partition.clone());
        }
        if self.is_no_part_of_the_run(partition) {
            let begin = planned.start_at.or(planned.kept);
            if begin.is_some() {
                self.left_out.push(partition.clone());
            }
            return self.known(
                partition,
                begin,
                StopReason::NotPartOfTheRun,
                "it appeared after the bounded run had begun, and where it begins is not known yet",
            );
        }
        match self.ends.stop_at {
            StopAt::Latest => self.readable_end(partition, planned, StopReason::StopLatest),
            StopAt::Timestamp { .. } => self.by_timestamp(partition, planned),
            StopAt::SpecificOffsets { offsets } => self.known(
                partition,
                offsets.get(partition),
                StopReason::StopSpecificOffset,
                "stop_at gives no offset for it, and its end must not be guessed",
            ),
            StopAt::GroupOffsets => self.known(
                partition,
                self.inputs.facts.ends.group.get(partition).copied(),
                StopReason::StopGroupOffset,
                "the group has no committed offset to stop at",
            ),
        }
    }

    /// Whether the run that goes on has an end of the partition that is not kept: its topic was created again.
    fn has_an_end_elsewhere(&self, partition: &TopicPartition) -> bool {
        let run = self.ends.run(self.inputs);
        !EndInputs::begins_anew(self.inputs, partition)
            && run.is_some_and(|run| run.ends.contains_key(partition))
    }

    fn is_no_part_of_the_run(&self, partition: &TopicPartition) -> bool {
        let Some(run) = self.ends.run(self.inputs) else {
            return false;
        };
        !EndInputs::begins_anew(self.inputs, partition) && !run.ends.contains_key(partition)
    }

    fn by_timestamp(
        &mut self,
        partition: &TopicPartition,
        planned: &PlannedPartition,
    ) -> Option<(Offset, StopReason)> {
        let found = self.inputs.facts.ends.at_timestamp.get(partition).copied();
        // What was written after the ends were asked for does not count: until then there was no record of that age.
        let found = found.filter(|found| planned.readable_end.is_none_or(|end| *found <= end));
        match found {
            Some(offset) => Some((offset, StopReason::StopTimestamp)),
            None => self.readable_end(partition, planned, StopReason::StopTimestampPastEnd),
        }
    }

    fn readable_end(
        &mut self,
        partition: &TopicPartition,
        planned: &PlannedPartition,
        reason: StopReason,
    ) -> Option<(Offset, StopReason)> {
        let end = planned.readable_end.max(planned.earliest);
        if end.is_none() {
            let why = format!(
                "{partition}: without a leader it is not known where it ends, and a bounded run begins with all its ends"
            );
            self.blockers
                .add(Code::StopOffsetUnknown, partition, &why, &[]);
        }
        Some((end?, reason))
    }

    fn known(
        &mut self,
        partition: &TopicPartition,
        offset: Option<Offset>,
        reason: StopReason,
        otherwise: &str,
    ) -> Option<(Offset, StopReason)> {
        if offset.is_none() {
            let why = format!("{partition}: {otherwise}");
            self.blockers
                .add(Code::StopOffsetUnknown, partition, &why, &[]);
        }
        Some((offset?, reason))
    }

    /// A partition that somebody named and that does not exist is a mistake, not a wish to ignore.
    fn check_names(&mut self, planned: &[PlannedPartition]) {
        let StopAt::SpecificOffsets { offsets } = self.ends.stop_at else {
            return;
        };
        if self.keeps_any {
            return;
        }
        for named in offsets.by_partition().keys() {
            let is_read = |planned: &&PlannedPartition| {
                planned.exists() && planned.topic_partition() == *named
            };
            if !planned.iter().any(|planned| is_read(&planned)) {
                let why =
                    format!("{named}, named by stop_at, does not exist or is not read by this job");
                self.blockers.add(Code::UnknownPartition, named, &why, &[]);
            }
        }
    }

    fn finish(mut self, resolved: &mut ResolvedStart) {
        let ended = |planned: &&PlannedPartition| planned.stop_at.is_some();
        let all = resolved.partitions.iter();
        let partitions = all.filter(ended).count();
        let at_their_end = resolved
            .read_partitions()
            .filter(|planned| planned.stop_at.is_some() && planned.start_at >= planned.stop_at)
            .count();
        let goes_on = self
            .ends
            .run(self.inputs)
            .filter(|_| self.keeps_any || !self.left_out.is_empty());
        let lost = words::counted(resolved.totals.lost, "lost");
        resolved.totals = PlanTotals::of(&resolved.partitions);
        // The sentence knew nothing of ends.
        let of_the_run = words::counted(resolved.totals.lost, "lost");
        if lost != of_the_run {
            resolved.summary = resolved.summary.replacen(&lost, &of_the_run, 1);
        }
        if let Some(run) = goes_on
            && run.finished_at.is_some()
            && at_their_end == partitions
        {
            let why = format!(
                "the bounded run that checkpoint {} began has ended: every partition is read up to its stop offset",
                run.begun_by
            );
            // Both say where to begin, and so begin a new run.
            let choices = [("from", "checkpoint"), ("from", "earliest")];
            self.blockers
                .add_decision(Code::RunFinished, &why, &choices);
        }
        resolved.bounded = Some(PlannedRun {
            stop_at: self.ends.stop_at.clone(),
            goes_on_from: goes_on.map(|run| run.begun_by),
            begun_at: goes_on.map(|run| run.begun_at),
            partitions,
            at_their_end,
        });
        let to_read = resolved.totals.to_read;
        let name = self.ends.stop_at.name();
        resolved.summary.push_str(&match goes_on {
            Some(run) => format!(
                "; the bounded run of checkpoint {} goes on to the ends it has: {to_read} offsets to read",
                run.begun_by
            ),
            None => format!("; a bounded run begins and ends by stop_at ({name}): {to_read} offsets to read"),
        });
        if goes_on.is_some() && !self.recreated.is_empty() {
            resolved.summary.push_str(&format!(
                "; {} gets an end anew by stop_at ({name}), because the topic was created again",
                blockers::list(&self.recreated)
            ));
        }
        resolved.warnings.extend(self.warnings());
        let blockers = self.blockers.into_list(self.inputs, &resolved.partitions);
        blockers::merge(&mut resolved.blockers, blockers);
    }

    fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if !self.left_out.is_empty() {
            let names = blockers::list(&self.left_out);
            warnings.push(Warning {
                code: Code::NotPartOfTheRun,
                summary: format!(
                    "{names} appeared after the bounded run had begun and is left for the next one"
                ),
            });
        }
        if !self.beyond.is_empty() {
            let names = blockers::list(&self.beyond);
            let held = match self.inputs.isolation {
                Isolation::ReadCommitted => ", or a transaction is open before it",
                Isolation::ReadUncommitted => "",
            };
            warnings.push(Warning {
                code: Code::WaitsForStopOffset,
                summary: format!(
                    "{names}: the log does not reach the stop offset yet{held}; the run waits there"
                ),
            });
        }
        warnings
    }
}

impl ResolvedStart {
    /// The bounded run as it is stored with the start's checkpoint; `None` for a job that is not bounded.
    #[must_use]
    pub fn bounded_run(
        &self,
        start: CheckpointId,
        now: chrono::DateTime<chrono::Utc>,
    ) -> Option<BoundedRun> {
        let planned = self.bounded.as_ref()?;
        let ends: BTreeMap<TopicPartition, RunEnd> = self
            .partitions
            .iter()
            .filter(|planned| planned.exists())
            .filter_map(|planned| {
                let end = RunEnd {
                    stop_offset: planned.stop_at?,
                    topic_id: planned.topic_id.clone(),
                };
                Some((planned.topic_partition(), end))
            })
            .collect();
        Some(BoundedRun {
            stop_at: planned.stop_at.clone(),
            begun_by: planned.goes_on_from.unwrap_or(start),
            begun_at: planned.begun_at.unwrap_or(now),
            finished_at: None,
            ends,
        })
    }
}
