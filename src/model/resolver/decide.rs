//! The decision for one partition: what is wanted, held against what the log has.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ForgottenPosition, Named, PartitionFacts, PlannedParking, PlannedPartition, ProgressFacts,
    RestorableState, SinkPosition, StartInputs, StartReason,
    blockers::Blockers,
    movement::Movement,
    place::{Placed, Wanted},
    without_checkpoints,
};
use crate::model::{
    checkpoint::CheckpointPosition,
    code::Code,
    ids::CheckpointId,
    job::PositionPolicy,
    offset::Offset,
    parked::LostRange,
    start::StartFrom,
    startup_mode::{OffsetsByTopic, StartupMode},
    topic::{TopicId, TopicPartition},
};

/// What a caller may say of a recreated topic.
const ON_TOPIC_RECREATED: [(&str, &str); 2] = [
    ("on_topic_recreated", "earliest"),
    ("on_topic_recreated", "latest"),
];

/// A start being decided, with what has come up on the way.
pub(super) struct Resolution<'a> {
    pub(super) inputs: &'a StartInputs<'a>,
    named: Named<'a>,
    /// The topics that are read, with their ids as the brokers tell them.
    topics: BTreeMap<&'a str, Option<&'a TopicId>>,
    mode_decided_without_state: bool,
    pub(super) blockers: Blockers,
    pub(super) leaderless: Vec<TopicPartition>,
    pub(super) gone: Vec<TopicPartition>,
    pub(super) absent: Vec<TopicPartition>,
    pub(super) forgotten: Vec<TopicPartition>,
    /// What stays parked, and where.
    pub(super) parked: BTreeMap<TopicPartition, (Stands, PlannedParking)>,
}

/// Where a partition stands that is not read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stands {
    pub(super) offset: Offset,
    pub(super) position_id: Option<CheckpointId>,
}

/// Whether there is a partition to decide about.
enum Presence<'a> {
    /// There is. Without facts a broker that knows it may be away: its position is kept.
    Read(Option<&'a PartitionFacts>),
    /// The spec does not read its topic.
    NotSubscribed,
    /// Its topic was deleted. It may come back.
    Absent,
    /// Its topic was created again with fewer partitions.
    Gone,
}

impl<'a> Resolution<'a> {
    pub(super) fn new(inputs: &'a StartInputs<'a>) -> Self {
        let mut topics: BTreeMap<&str, Option<&TopicId>> = BTreeMap::new();
        for (partition, facts) in &inputs.facts.partitions {
            let id = topics.entry(&*partition.topic).or_default();
            *id = id.or(facts.topic_id.as_ref());
        }
        let named = inputs.named();
        let mut blockers = Blockers::default();
        if matches!(named, Named::Missing) {
            blockers.add_general(Code::CheckpointNotFound, &missing_checkpoint(inputs));
        }
        if let ProgressFacts::Refused { code, detail } = &inputs.sink.progress {
            blockers.add_general(*code, &format!("the sink: {detail}"));
        }
        Self {
            inputs,
            named,
            topics,
            mode_decided_without_state: false,
            blockers,
            leaderless: Vec::new(),
            gone: Vec::new(),
            absent: Vec::new(),
            forgotten: Vec::new(),
            parked: BTreeMap::new(),
        }
    }

    /// The brokers' partitions, and those of the checkpoints that the brokers do not report.
    pub(super) fn partitions_to_decide(&self) -> BTreeSet<TopicPartition> {
        let named = match self.named {
            Named::Found(named) => Some(named),
            Named::Missing | Named::Nothing => None,
        };
        let stored = [named, self.inputs.state].into_iter().flatten();
        self.inputs
            .facts
            .partitions
            .keys()
            .chain(stored.flat_map(|state| state.positions.keys()))
            .cloned()
            .collect()
    }

    pub(super) fn decide(&mut self, partition: &TopicPartition) -> PlannedPartition {
        let no_facts = PartitionFacts::default();
        let facts = match self.presence(partition) {
            Presence::Read(facts) => facts.unwrap_or(&no_facts),
            Presence::NotSubscribed => {
                return self.kept(partition, StartReason::Detached);
            }
            Presence::Absent | Presence::Gone if self.inputs.policies.forget_gone => {
                if self.has_position(partition) {
                    self.forgotten.push(partition.clone());
                }
                let dropped = Placed::new(None, StartReason::PartitionGone);
                return self.planned(partition, &no_facts, dropped);
            }
            Presence::Absent => {
                if self.has_position(partition) {
                    self.absent.push(partition.clone());
                }
                return self.kept(partition, StartReason::PartitionGone);
            }
            Presence::Gone => {
                if self.has_position(partition) {
                    self.gone.push(partition.clone());
                }
                return self.kept(partition, StartReason::PartitionGone);
            }
        };
        let wanted = self.wanted(partition, facts);
        let placed = match facts.bounds {
            Some(bounds) => self.place(partition, wanted, bounds),
            None => {
                self.leaderless.push(partition.clone());
                self.place_without_leader(partition, wanted)
            }
        };
        self.planned(partition, facts, placed)
    }

    /// The positions that are dropped.
    pub(super) fn dropped_positions(&self) -> Vec<ForgottenPosition> {
        let dropped = self.forgotten.iter().map(|partition| ForgottenPosition {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            next_offset: self.known(partition).and_then(|known| known.next_offset),
        });
        dropped.collect()
    }

    /// Whether positions were to be dropped, and there are none to drop.
    pub(super) fn forgets_nothing(&self) -> bool {
        self.inputs.policies.forget_gone && self.forgotten.is_empty()
    }

    fn presence(&self, partition: &TopicPartition) -> Presence<'a> {
        if let Some(facts) = self.inputs.facts.partitions.get(partition) {
            return Presence::Read(Some(facts));
        }
        let missing = &self.inputs.facts.missing_topics;
        if missing.iter().any(|topic| **topic == *partition.topic) {
            return Presence::Absent;
        }
        let Some(now) = self.topics.get(&*partition.topic) else {
            return Presence::NotSubscribed;
        };
        let stored = self.held(partition).and_then(|held| held.topic_id.as_ref());
        match (stored, now) {
            (Some(stored), Some(now)) if stored != *now => Presence::Gone,
            _ => Presence::Read(None),
        }
    }

    fn has_position(&self, partition: &TopicPartition) -> bool {
        self.known(partition)
            .is_some_and(|known| known.next_offset.is_some())
    }

    /// Whether this start itself sets the partition's position.
    pub(super) fn moved_once(&self, partition: &TopicPartition) -> bool {
        self.inputs.is_one_shot() && self.inputs.covers(partition)
    }

    /// The checkpoint that counts for a partition.
    fn state_for(&self, partition: &TopicPartition) -> Option<&'a RestorableState> {
        if let Named::Found(named) = self.named
            && self.inputs.covers(partition)
        {
            return Some(named);
        }
        self.inputs.state
    }

    /// Whether the checkpoint that counts for a partition knows it.
    pub(super) fn is_held(&self, partition: &TopicPartition) -> bool {
        self.state_for(partition)
            .is_some_and(|state| state.positions.contains_key(partition))
    }

    /// What is stored of a partition, in the checkpoint that counts for it or else in the newest.
    fn held(&self, partition: &TopicPartition) -> Option<&'a CheckpointPosition> {
        [self.state_for(partition), self.inputs.state]
            .into_iter()
            .flatten()
            .find_map(|state| state.positions.get(partition))
    }

    /// What is stored of a partition that is not read: it has not moved since, so the newest checkpoint knows best.
    fn known(&self, partition: &TopicPartition) -> Option<&'a CheckpointPosition> {
        let newest = self.inputs.state?.positions.get(partition);
        newest.or_else(|| self.held(partition))
    }

    /// A partition that this start does not read: its position, and the decision behind it, stay as they are.
    fn kept(&self, partition: &TopicPartition, reason: StartReason) -> PlannedPartition {
        let dropped = Placed::new(None, reason);
        let planned = self.planned(partition, &PartitionFacts::default(), dropped);
        let Some(known) = self.known(partition) else {
            return planned;
        };
        // The sink does not give back what it has taken beyond the checkpoint.
        let stands = |stored| self.reached(partition, stored, known.position_id);
        PlannedPartition {
            kept: known.next_offset.map(stands),
            position_id: known.next_offset.map(|_| known.position_id),
            topic_id: known.topic_id.clone(),
            ..planned
        }
    }

    /// Whether the operator chose another checkpoint than the newest for this partition. Then that choice decides, like a
    /// one-shot start does, and a sink's progress does not speak against it.
    fn restored_on_purpose(&self, partition: &TopicPartition) -> bool {
        let newest = self.inputs.state.map(|state| state.id);
        matches!(self.named, Named::Found(named) if Some(named.id) != newest)
            && self.inputs.covers(partition)
    }

    fn wanted(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        if !self.inputs.covers(partition) {
            return self.by_state(partition, facts);
        }
        match self.inputs.from {
            StartFrom::Auto => self.by_state(partition, facts),
            StartFrom::Checkpoint { .. } if matches!(self.named, Named::Missing) => {
                Wanted::Blocked(StartReason::Checkpoint)
            }
            StartFrom::Checkpoint { .. } => self.by_state(partition, facts),
            StartFrom::Earliest => Wanted::Earliest(StartReason::StartupEarliest),
            StartFrom::Latest => Wanted::Latest(StartReason::StartupLatest),
            StartFrom::Timestamp { .. } | StartFrom::Ago { .. } => by_timestamp(facts),
            StartFrom::SpecificOffsets { offsets } => self.by_map(offsets, partition, facts),
            StartFrom::GroupOffsets => {
                self.by_group(partition, facts, StartReason::StartupGroupOffset)
            }
            StartFrom::Shift { by } => self.shifted(partition, facts, *by),
        }
    }

    fn by_state(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        let state = self.state_for(partition);
        let held = state.and_then(|state| state.positions.get(partition));
        if let Some(held) = held
            && let Some(offset) = held.next_offset
        {
            return self.by_position(partition, facts, held, offset);
        }
        let restored = self.restored_on_purpose(partition);
        if !restored && let Some(sink) = self.progress_unknown_to_store(partition, state) {
            return self.store_behind_sink(partition, sink);
        }
        if state.is_none() {
            self.mode_decided_without_state = true;
            return self.by_startup_mode(partition, facts);
        }
        if held.is_none() {
            return Wanted::Earliest(StartReason::NewSinceCheckpoint);
        }
        let got_a_position_later = self
            .inputs
            .state
            .and_then(|newest| newest.positions.get(partition))
            .is_some_and(|newest| newest.next_offset.is_some());
        if restored && got_a_position_later {
            // It was read since the chosen checkpoint, from a beginning that is not known any more. The startup mode looked
            // at now might lie behind that, so this is the same as a partition that appeared after the checkpoint.
            return Wanted::Earliest(StartReason::NewSinceCheckpoint);
        }
        // Had no leader since the first start: its position was never decided.
        self.by_startup_mode(partition, facts)
    }

    fn by_position(
        &mut self,
        partition: &TopicPartition,
        facts: &PartitionFacts,
        held: &CheckpointPosition,
        offset: Offset,
    ) -> Wanted {
        if is_of_another_topic(held, facts) {
            let why = format!(
                "{partition}: the topic was deleted and created again; offset {offset} belonged to the old one"
            );
            let policy = self.inputs.policies.on_topic_recreated;
            if policy == PositionPolicy::Fail
                && let Some(again) = self.may_park(partition)
            {
                let position = Stands {
                    offset: self.reached(partition, offset, held.position_id),
                    position_id: Some(held.position_id),
                };
                let parking = PlannedParking {
                    code: Code::TopicRecreated,
                    detail: why,
                    lost: None,
                    replaced_by: facts.topic_id.clone(),
                    again,
                };
                self.parked.insert(partition.clone(), (position, parking));
                return Wanted::Blocked(StartReason::TopicRecreated);
            }
            return self.by_policy(
                partition,
                policy,
                StartReason::TopicRecreated,
                Code::TopicRecreated,
                &why,
                // Its end is not known without a leader, so `latest` would not decide it.
                facts
                    .bounds
                    .map_or(&ON_TOPIC_RECREATED[..1], |_| &ON_TOPIC_RECREATED),
            );
        }
        if self.restored_on_purpose(partition) {
            return Wanted::at(offset, StartReason::Checkpoint);
        }
        self.with_sink_progress(partition, offset, held.position_id)
    }

    /// Whether this partition may stay parked while the others begin, and whether it was parked before. What this start itself
    /// says of its position is a matter of this start.
    pub(super) fn may_park(&self, partition: &TopicPartition) -> Option<bool> {
        if self.moved_once(partition) || self.restored_on_purpose(partition) {
            return None;
        }
        self.inputs.parking.allows(partition)
    }

    /// Where a partition stands: the sink may be further than the checkpoint.
    fn reached(
        &self,
        partition: &TopicPartition,
        stored: Offset,
        position_id: CheckpointId,
    ) -> Offset {
        let sink = self.inputs.progress().and_then(|all| all.get(partition));
        let sink = sink.filter(|sink| sink.position_id == position_id);
        sink.map_or(stored, |sink| sink.next_offset.max(stored))
    }

    /// Progress of a sink in a partition for which the checkpoint has no position. A position is stored before the first
    /// fetch, so a sink that knows a newer decision than the store proves that the store was restored; an older one is
    /// left over from a time when the partition was read, and does not count.
    fn progress_unknown_to_store(
        &self,
        partition: &TopicPartition,
        state: Option<&RestorableState>,
    ) -> Option<SinkPosition> {
        let sink = self.inputs.progress()?.get(partition)?;
        let is_newer = match state {
            None => true,
            Some(state) => match state.positions.get(partition) {
                Some(waiting) => sink.position_id >= waiting.position_id,
                None => sink.position_id > state.id,
            },
        };
        is_newer.then_some(*sink)
    }

    /// The position ids tell whether sink and store speak of the same run of positions.
    fn with_sink_progress(
        &mut self,
        partition: &TopicPartition,
        stored: Offset,
        position_id: CheckpointId,
    ) -> Wanted {
        // Under another target every position is decided anew: what lies there under an older id never counts again.
        let is_same_target = !self.inputs.sink.is_other_than(self.inputs.state);
        let from = |offset: Offset, reason| Wanted::At {
            number: offset.get(),
            reason,
            position_id: is_same_target.then_some(position_id),
        };
        let by_store = from(stored, StartReason::Checkpoint);
        let elsewhere = self.inputs.progress_elsewhere();
        if let Some(held) = elsewhere.and_then(|progress| progress.get(partition))
            && held.next_offset > stored
        {
            return self.written_before(partition, stored, held.next_offset);
        }
        let Some(progress) = self.inputs.progress() else {
            return by_store;
        };
        let Some(sink) = progress.get(partition) else {
            let state = self.inputs.state;
            if state.is_some_and(|state| state.had_output_since(position_id)) {
                return self.progress_lost(partition, stored);
            }
            // Nothing was written since the position was decided: the sink need not have heard of it yet.
            return by_store;
        };
        if sink.position_id < position_id {
            // The operator moved the position and the sink has not heard of it yet: the claim rewrites the sink's row.
            return by_store;
        }
        if sink.position_id > position_id {
            return self.store_behind_sink(partition, *sink);
        }
        if sink.next_offset < stored {
            let held = sink.next_offset;
            let why = format!(
                "{partition}: the sink holds the records before {held}, the checkpoint says {stored}"
            );
            self.blockers
                .add(Code::SinkBehindStore, partition, &why, &[]);
            return Wanted::Blocked(StartReason::SinkProgress);
        }
        if sink.next_offset == stored {
            return by_store;
        }
        from(sink.next_offset, StartReason::SinkProgress)
    }

    /// The target was written to before, by this job, further than the checkpoint says: under another name of the connection,
    /// or before the job went elsewhere for a while. From the checkpoint those records would be there twice.
    fn written_before(
        &mut self,
        partition: &TopicPartition,
        stored: Offset,
        held: Offset,
    ) -> Wanted {
        let why = format!(
            "{partition}: this target holds the records of this job before {held} already, and the checkpoint, taken with another target, says {stored}"
        );
        self.blockers.add(Code::SinkChanged, partition, &why, &[]);
        Wanted::Blocked(StartReason::SinkProgress)
    }

    fn progress_lost(&mut self, partition: &TopicPartition, stored: Offset) -> Wanted {
        let why = format!(
            "{partition}: the sink does not know how far it has come, though it was written to: from {stored}, where the checkpoint stands, what was written after the checkpoint is written again"
        );
        self.blockers.add(Code::ProgressLost, partition, &why, &[]);
        Wanted::Blocked(StartReason::SinkProgress)
    }

    fn store_behind_sink(&mut self, partition: &TopicPartition, sink: SinkPosition) -> Wanted {
        let why = format!(
            "{partition}: the sink stands at {} and knows checkpoint {}, which the store does not: the store was restored",
            sink.next_offset, sink.position_id
        );
        self.blockers
            .add(Code::StoreBehindSink, partition, &why, &[]);
        Wanted::Blocked(StartReason::SinkProgress)
    }

    fn by_startup_mode(&mut self, partition: &TopicPartition, facts: &PartitionFacts) -> Wanted {
        match self.inputs.startup_mode {
            StartupMode::Earliest => Wanted::Earliest(StartReason::StartupEarliest),
            StartupMode::Latest => Wanted::Latest(StartReason::StartupLatest),
            StartupMode::Timestamp { .. } => by_timestamp(facts),
            StartupMode::GroupOffsets => {
                self.by_group(partition, facts, StartReason::StartupGroupOffset)
            }
            StartupMode::SpecificOffsets { offsets } => self.by_map(offsets, partition, facts),
        }
    }

    fn by_map(
        &mut self,
        map: &OffsetsByTopic,
        partition: &TopicPartition,
        facts: &PartitionFacts,
    ) -> Wanted {
        match map.get(partition) {
            Some(offset) => Wanted::at(offset, StartReason::StartupSpecificOffset),
            None => self.by_group(partition, facts, StartReason::SpecificMissingUsedGroup),
        }
    }

    fn by_group(
        &mut self,
        partition: &TopicPartition,
        facts: &PartitionFacts,
        reason: StartReason,
    ) -> Wanted {
        match facts.group_offset {
            Some(offset) => Wanted::at(offset, reason),
            None if without_checkpoints::begins_as_new(self.inputs, partition, facts) => {
                Wanted::Earliest(StartReason::NewSinceCheckpoint)
            }
            None => self.by_policy(
                partition,
                self.inputs.policies.on_missing_group_offset,
                StartReason::GroupMissingUsedPolicy,
                Code::GroupMissing,
                &format!("{partition}: the group has no committed offset"),
                &[
                    ("on_missing_group_offset", "earliest"),
                    ("on_missing_group_offset", "latest"),
                ],
            ),
        }
    }

    /// Moves the position that `auto` would take, before it is held against the log.
    fn shifted(&mut self, partition: &TopicPartition, facts: &PartitionFacts, by: i64) -> Wanted {
        let base = self.by_state(partition, facts);
        let number = match base {
            Wanted::At { number, .. } => Some(number),
            Wanted::Earliest(_) => facts.bounds.map(|bounds| bounds.earliest.get()),
            Wanted::Latest(_) => facts.bounds.map(|bounds| self.end_of(bounds).get()),
            Wanted::Blocked(_) => None,
        };
        number.map_or(base, |number| Wanted::At {
            number: number.saturating_add(by),
            reason: StartReason::Shift,
            position_id: None,
        })
    }

    pub(super) fn by_policy(
        &mut self,
        partition: &TopicPartition,
        policy: PositionPolicy,
        reason: StartReason,
        code: Code,
        summary: &str,
        choices: &[(&str, &str)],
    ) -> Wanted {
        match policy {
            PositionPolicy::Earliest => Wanted::Earliest(reason),
            PositionPolicy::Latest => Wanted::Latest(reason),
            PositionPolicy::Fail => {
                self.blockers.add(code, partition, summary, choices);
                Wanted::Blocked(reason)
            }
        }
    }

    fn planned(
        &self,
        partition: &TopicPartition,
        facts: &PartitionFacts,
        placed: Placed,
    ) -> PlannedPartition {
        let held = self.held(partition);
        let bounds = facts.bounds;
        let end = bounds.map(|bounds| bounds.readable_end(self.inputs.isolation));
        let mut planned = PlannedPartition {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            start_at: placed.start_at,
            reason: placed.reason,
            earliest: bounds.map(|bounds| bounds.earliest),
            readable_end: end,
            to_read: placed
                .start_at
                .zip(end)
                .map(|(start, end)| end.distance_from(start).max(0)),
            replayed: 0,
            skipped: 0,
            lost: 0,
            outside: placed
                .asked
                .and_then(|asked| LostRange::between(Offset::new(asked.max(0))?, &bounds?)),
            topic_id: facts
                .topic_id
                .clone()
                .or_else(|| held.and_then(|held| held.topic_id.clone())),
            sink: self
                .inputs
                .progress()
                .and_then(|all| all.get(partition).copied()),
            kept: None,
            parked: None,
            position_id: placed.position_id,
            stop_at: None,
            stop_reason: None,
        };
        if let Some((stands, parking)) = self.parked.get(partition) {
            planned.kept = Some(stands.offset);
            planned.position_id = stands.position_id;
            // Of the topic that the position belongs to, so that the next start can still compare.
            planned.topic_id = held
                .and_then(|held| held.topic_id.clone())
                .or(planned.topic_id);
            planned.parked = Some(parking.clone());
        }
        if planned.is_read() {
            let movement = self.movement(partition, facts, placed);
            planned.replayed = movement.replayed;
            planned.skipped = movement.skipped;
            planned.lost = movement.lost;
        }
        planned
    }

    fn movement(
        &self,
        partition: &TopicPartition,
        facts: &PartitionFacts,
        placed: Placed,
    ) -> Movement {
        match (self.read_up_to(partition, facts), placed.asked) {
            (Some(read), _) => Movement::between(read, placed.start_at, facts.bounds),
            (None, Some(asked)) => Movement::of_first_read(asked, placed.start_at, facts.bounds),
            (None, None) => Movement::default(),
        }
    }

    /// Up to where a partition was read by the newest checkpoint, or by the sink where that knows better. What lies in a target
    /// that is new to the checkpoint says nothing of what was read, but what is in there is not unread, and stands there twice
    /// if it is read again.
    ///
    /// Under a checkpoint that does not hold it, or holds it of a deleted topic, all of the log is unread. `None` where
    /// nothing was ever promised: without a checkpoint, or while it waits for its first position.
    fn read_up_to(&self, partition: &TopicPartition, facts: &PartitionFacts) -> Option<Offset> {
        let left = self.inputs.state_use.left();
        let Some(state) = self.inputs.state.or(left) else {
            return without_checkpoints::read_up_to(self.inputs, partition, facts);
        };
        let nothing = facts.bounds.map(|bounds| bounds.earliest);
        let Some(held) = state.positions.get(partition) else {
            return nothing;
        };
        let stored = held.next_offset?;
        if is_of_another_topic(held, facts) {
            return nothing;
        }
        let elsewhere = self.inputs.progress_elsewhere();
        if let Some(sink) = elsewhere.and_then(|all| all.get(partition)) {
            return Some(sink.next_offset.max(stored));
        }
        match self.inputs.progress().and_then(|all| all.get(partition)) {
            Some(sink) if sink.position_id >= held.position_id => Some(sink.next_offset),
            _ => Some(stored),
        }
    }

    /// A partition that somebody named and that does not exist is a mistake, not a wish to ignore.
    pub(super) fn check_names(&mut self, planned: &[PlannedPartition]) {
        let mut named: BTreeSet<TopicPartition> = BTreeSet::new();
        if let StartFrom::SpecificOffsets { offsets } = self.inputs.from {
            named.extend(offsets.by_partition().into_keys());
        }
        if self.mode_decided_without_state
            && let StartupMode::SpecificOffsets { offsets } = self.inputs.startup_mode
        {
            named.extend(offsets.by_partition().into_keys());
        }
        if let Some(covered) = self.inputs.covered {
            named.extend(covered.partitions());
        }
        let read: BTreeSet<TopicPartition> = planned
            .iter()
            .filter(|planned| planned.exists())
            .map(PlannedPartition::topic_partition)
            .collect();
        for unknown in named.difference(&read) {
            let why = format!("{unknown} does not exist or is not read by this job");
            self.blockers
                .add(Code::UnknownPartition, unknown, &why, &[]);
        }
        let was_read = |topic: &String| {
            let mut known = self.absent.iter();
            known.any(|partition| *partition.topic == **topic)
        };
        // One that was read may come back, like one that is deleted while the job runs. One that never was is a mistake.
        let missing = self.inputs.facts.missing_topics.iter();
        let named = !self.inputs.facts.by_pattern;
        for topic in missing.filter(|topic| named && !was_read(topic)) {
            let why = format!("topic {topic} does not exist");
            self.blockers.add_general(Code::UnknownTopic, &why);
        }
    }
}

fn by_timestamp(facts: &PartitionFacts) -> Wanted {
    match facts.at_timestamp {
        Some(offset) => Wanted::at(offset, StartReason::StartupTimestamp),
        None => Wanted::Latest(StartReason::TimestampPastEnd),
    }
}

/// Whether a position was taken in another incarnation of the topic. Ids that are not known prove nothing.
pub(super) fn is_of_another_topic(held: &CheckpointPosition, facts: &PartitionFacts) -> bool {
    TopicId::differ(held.topic_id.as_ref(), facts.topic_id.as_ref())
}

fn missing_checkpoint(inputs: &StartInputs<'_>) -> String {
    if let StartFrom::Checkpoint {
        checkpoint: Some(id),
    } = inputs.from
    {
        return format!("there is no completed checkpoint {id}");
    }
    "there is no completed checkpoint".to_owned()
}
