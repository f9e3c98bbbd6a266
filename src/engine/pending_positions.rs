//! Partitions that are to be read and whose position only their log can tell: those without a leader at the start, and those
//! that a discovery has brought.
//!
//! They do not hold back the others. When a leader answers, the position is resolved by the same function as at a start,
//! stored with the next checkpoint, and only then assigned: a crash in between resolves again and loses nothing, because
//! nothing was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{error::KafkaError, parked::Decided, ports::KafkaCluster};
use crate::model::{
    checkpoint::CheckpointPosition,
    ids::CheckpointId,
    job::{JobSpec, NewPartitions},
    offset::Offset,
    resolver::{
        Blocker, BrokerFacts, LogBounds, Parking, PartitionFacts, RestorableState, SinkFacts,
        StartInputs, StartPolicies, StateUse, needed_facts, resolve_positions,
    },
    start::StartFrom,
    topic::TopicPartition,
};

/// Why a partition waits for a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pending {
    /// It had no leader when the job started for the first time.
    SinceStart,
    /// It appeared while the job ran.
    Appeared,
    /// It had a position, which has to be held against the topic and the log as they are now.
    Held(CheckpointPosition),
}

impl Pending {
    /// Whether its position is decided by the startup mode. All others begin anew at the next start if nothing is stored of
    /// them, and to the same result.
    pub(super) fn by_startup_mode(&self, spec: &JobSpec) -> bool {
        match self {
            Self::SinceStart => true,
            Self::Appeared => {
                spec.source.partition_discovery.new_partitions == NewPartitions::StartupMode
            }
            Self::Held(_) => false,
        }
    }
}

/// Where the pending partitions stand.
#[derive(Debug, Default)]
pub(super) struct PendingPositions {
    unresolved: BTreeMap<TopicPartition, Pending>,
    resolved: BTreeMap<TopicPartition, Decided>,
    /// Of the unresolved: those that the look-up under way was asked for. One that has come anew since is asked for again,
    /// because its answer may be of a topic that is not there any more, or by another policy.
    asked: BTreeSet<TopicPartition>,
    /// In which checkpoint a decision was sent to the store last.
    sent: BTreeMap<TopicPartition, CheckpointId>,
}

/// What a look-up brought.
#[derive(Debug, Default)]
pub(super) struct LookedUp {
    /// The positions of partitions whose leaders answered.
    pub found: BTreeMap<TopicPartition, Decided>,
    /// What stands against others, by the policies of the spec.
    pub against: Vec<Blocker>,
    /// Where the logs begin and end by which that was decided.
    pub bounds: BTreeMap<TopicPartition, LogBounds>,
}

impl PendingPositions {
    pub(super) fn new(unresolved: BTreeSet<TopicPartition>) -> Self {
        Self {
            unresolved: unresolved
                .into_iter()
                .map(|partition| (partition, Pending::SinceStart))
                .collect(),
            resolved: BTreeMap::new(),
            asked: BTreeSet::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Hands out what a look-up is to answer. There is one at a time.
    pub(super) fn ask(&mut self) -> BTreeMap<TopicPartition, Pending> {
        self.asked = self.unresolved.keys().cloned().collect();
        self.unresolved.clone()
    }

    /// Takes a decision over a partition that is parked; a later one replaces it.
    pub(super) fn decide(&mut self, partition: TopicPartition, decided: Decided) {
        self.forget(&partition);
        self.resolved.insert(partition, decided);
    }

    /// Has a position looked up.
    pub(super) fn add(&mut self, partition: TopicPartition, why: Pending) {
        self.forget(&partition);
        self.unresolved.insert(partition, why);
    }

    /// Partitions that wait for a leader.
    pub(super) fn unresolved(&self) -> &BTreeMap<TopicPartition, Pending> {
        &self.unresolved
    }

    /// Partitions that wait for a checkpoint with their position.
    pub(super) fn resolved(&self) -> &BTreeMap<TopicPartition, Decided> {
        &self.resolved
    }

    /// Whether a partition is on its way.
    pub(super) fn holds(&self, partition: &TopicPartition) -> bool {
        self.unresolved.contains_key(partition) || self.resolved.contains_key(partition)
    }

    /// Gives a partition up.
    pub(super) fn forget(&mut self, partition: &TopicPartition) {
        self.unresolved.remove(partition);
        self.asked.remove(partition);
        self.resolved.remove(partition);
        self.sent.remove(partition);
    }

    /// Takes what a look-up found; answers what of it was waited for.
    pub(super) fn found(
        &mut self,
        positions: BTreeMap<TopicPartition, Decided>,
    ) -> Vec<TopicPartition> {
        let mut taken = Vec::new();
        for (partition, decided) in positions {
            if self.asked.contains(&partition) {
                taken.push(partition.clone());
                self.decide(partition, decided);
            }
        }
        taken
    }

    /// Notes that a checkpoint that is on its way to the store holds a decision, at this offset.
    pub(super) fn send(&mut self, partition: &TopicPartition, offset: Offset, id: CheckpointId) {
        if let Some(decided) = self.resolved.get_mut(partition) {
            decided.offset = offset;
            self.sent.insert(partition.clone(), id);
        }
    }

    /// Hands out the partitions whose decisions a completed checkpoint holds.
    pub(super) fn stored(&mut self, id: CheckpointId) -> Vec<(TopicPartition, Offset)> {
        let (sent, later) = std::mem::take(&mut self.sent)
            .into_iter()
            .partition(|(_, sent)| *sent == id);
        self.sent = later;
        let stored: BTreeMap<TopicPartition, CheckpointId> = sent;
        stored
            .into_keys()
            .filter_map(|partition| {
                let decided = self.resolved.remove(&partition)?;
                Some((partition, decided.offset))
            })
            .collect()
    }
}

/// Looks whether the partitions have leaders now, and where they begin.
///
/// # Errors
/// When the cluster does not answer.
pub(super) async fn look_up(
    kafka: Arc<dyn KafkaCluster>,
    spec: JobSpec,
    partitions: BTreeMap<TopicPartition, Pending>,
    now_ms: i64,
) -> Result<LookedUp, KafkaError> {
    let listed: Vec<TopicPartition> = partitions.keys().cloned().collect();
    // The ids come before the ends of the logs: of a topic that is created again in between, the position has the id of the
    // old one then, and the next look sees that it is another. The other way round the ends of the old one would count in
    // the new one. The ends come before the look-up by time, so that "no such record" means the end as it was before.
    let topics: BTreeSet<String> = listed
        .iter()
        .map(|partition| partition.topic.to_string())
        .collect();
    let described = kafka
        .describe_topics(&topics.into_iter().collect::<Vec<_>>())
        .await?;
    let bounds = kafka.log_bounds(&listed).await?;
    let existed = |partition: &TopicPartition| {
        let topic = described
            .iter()
            .find(|topic| *topic.name == *partition.topic);
        topic.is_some_and(|topic| topic.partitions.is_some())
    };
    let answered: Vec<TopicPartition> = listed
        .into_iter()
        .filter(|partition| bounds.contains_key(partition) && existed(partition))
        .collect();
    if answered.is_empty() {
        return Ok(LookedUp::default());
    }
    let (by_mode, by_state): (Vec<TopicPartition>, Vec<TopicPartition>) = answered
        .iter()
        .cloned()
        .partition(|partition| partitions[partition].by_startup_mode(&spec));
    let mut facts = BrokerFacts::default();
    for partition in &answered {
        let topic = described
            .iter()
            .find(|topic| *topic.name == *partition.topic);
        let known = PartitionFacts {
            topic_id: topic.and_then(|topic| topic.id.clone()),
            bounds: bounds.get(partition).copied(),
            ..PartitionFacts::default()
        };
        facts.partitions.insert(partition.clone(), known);
    }
    ask_for_the_mode(&*kafka, &spec, &by_mode, &mut facts, now_ms).await?;
    let held = partitions.iter().filter_map(|(partition, why)| match why {
        Pending::Held(position) => Some((partition.clone(), position.clone())),
        Pending::SinceStart | Pending::Appeared => None,
    });
    // What the job has: the partitions that appeared are not in it, so they are new since this checkpoint.
    let state = RestorableState {
        id: CheckpointId(0),
        positions: held
            .filter(|(partition, _)| by_state.contains(partition))
            .collect(),
        sink_identity: String::new(),
        newest_output: None,
    };
    let mut looked_up = LookedUp {
        bounds,
        ..LookedUp::default()
    };
    for (group, state) in [(by_mode, None), (by_state, Some(&state))] {
        if group.is_empty() {
            continue;
        }
        let of_group = BrokerFacts {
            partitions: facts
                .partitions
                .iter()
                .filter(|(partition, _)| group.contains(partition))
                .map(|(partition, known)| (partition.clone(), known.clone()))
                .collect(),
            ..BrokerFacts::default()
        };
        decide(&spec, state, &of_group, &mut looked_up);
    }
    Ok(looked_up)
}

/// What only the startup mode needs.
async fn ask_for_the_mode(
    kafka: &dyn KafkaCluster,
    spec: &JobSpec,
    partitions: &[TopicPartition],
    facts: &mut BrokerFacts,
    now_ms: i64,
) -> Result<(), KafkaError> {
    if partitions.is_empty() {
        return Ok(());
    }
    let (from, sink) = (StartFrom::Auto, no_sink());
    let nothing = BrokerFacts::default();
    let inputs = inputs(spec, &from, &sink, None, &nothing);
    let needed = needed_facts(&inputs, now_ms);
    if needed.group_offsets {
        let group = kafka
            .group_offsets(&spec.source.group_id, partitions)
            .await?;
        for (partition, committed) in group {
            if let Some(known) = facts.partitions.get_mut(&partition) {
                known.group_offset = Some(committed.offset);
            }
        }
    }
    for (timestamp_ms, asked) in needed.instants(partitions) {
        let found = kafka
            .offsets_for_timestamp(&asked, timestamp_ms, spec.source.isolation)
            .await?;
        for (partition, offset) in found {
            if let Some(known) = facts.partitions.get_mut(&partition) {
                known.at_timestamp = Some(offset);
            }
        }
    }
    Ok(())
}

/// A position that is decided for the first time does not depend on the sink, and one that is held against its log stands
/// where the run stood, which is where the sink stands.
fn no_sink() -> SinkFacts {
    SinkFacts::without_progress(String::new())
}

fn inputs<'a>(
    spec: &'a JobSpec,
    from: &'a StartFrom,
    sink: &'a SinkFacts,
    state: Option<&'a RestorableState>,
    facts: &'a BrokerFacts,
) -> StartInputs<'a> {
    StartInputs {
        isolation: spec.source.isolation,
        startup_mode: &spec.startup_mode,
        state,
        // What the run has counts, whether or not it is kept anywhere.
        state_use: StateUse::Counts,
        chosen: None,
        sink,
        from,
        covered: None,
        policies: StartPolicies {
            on_out_of_range: spec.source.on_out_of_range,
            on_missing_group_offset: spec.source.on_missing_group_offset,
            on_topic_recreated: spec.source.on_topic_recreated,
            // Only a start is asked that.
            forget_gone: false,
        },
        // What stands against it leaves it parked as it is.
        parking: Parking::default(),
        facts,
    }
}

/// Lets the one resolver decide.
fn decide(
    spec: &JobSpec,
    state: Option<&RestorableState>,
    facts: &BrokerFacts,
    looked_up: &mut LookedUp,
) {
    let (from, sink) = (StartFrom::Auto, no_sink());
    let resolved = resolve_positions(&inputs(spec, &from, &sink, state, facts));
    for planned in resolved.partitions {
        let Some(offset) = planned.start_at else {
            continue;
        };
        let partition = planned.topic_partition();
        let found = Decided {
            offset,
            topic_id: planned.topic_id,
            reason: Some(planned.reason),
            position_id: planned.position_id,
        };
        looked_up.found.insert(partition, found);
    }
    // A partition that a specific-offsets mode names and that is not among these is no mistake here.
    looked_up
        .against
        .extend(resolved.blockers.into_iter().filter(|blocker| {
            blocker
                .partitions
                .iter()
                .any(|partition| facts.partitions.contains_key(partition))
        }));
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// What may happen to a partition.
    #[derive(Debug, Clone)]
    enum Step {
        Add,
        /// A look-up begins.
        Ask,
        Found(i64),
        Decide(i64),
        /// A checkpoint begins and takes all decisions along; some have moved to another offset by then.
        Checkpoint,
        /// The oldest checkpoint on its way ends in the store, or does not.
        Stored(bool),
        Forget,
    }

    fn steps() -> impl Strategy<Value = Vec<(i32, Step)>> {
        let step = prop_oneof![
            2 => Just(Step::Add),
            3 => Just(Step::Ask),
            3 => (0..100_i64).prop_map(Step::Found),
            2 => (0..100_i64).prop_map(Step::Decide),
            4 => Just(Step::Checkpoint),
            4 => any::<bool>().prop_map(Step::Stored),
            1 => Just(Step::Forget),
        ];
        vec((0..4_i32, step), 1..60)
    }

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new("orders", number)
    }

    fn decided(offset: i64) -> Decided {
        Decided {
            offset: Offset::new(offset).unwrap(),
            topic_id: None,
            reason: None,
            position_id: None,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Under any order of events: a partition waits in one place at most; a look-up answers only what it was asked for
        /// and what has not come anew since; a partition is handed out only with the checkpoint that
        /// holds its newest decision, at the offset that this checkpoint has, and once; and none is lost.
        #[test]
        fn a_partition_is_handed_out_once_with_the_checkpoint_that_holds_its_decision(since_start in 0..4_i32, steps in steps()) {
            let mut pending = PendingPositions::new((0..since_start).map(partition).collect());
            let mut waiting: BTreeSet<i32> = (0..since_start).collect();
            let mut asked: BTreeSet<i32> = BTreeSet::new();
            let mut decisions: BTreeMap<i32, i64> = BTreeMap::new();
            // What each checkpoint on its way holds that no later decision has replaced.
            let mut on_their_way: Vec<(CheckpointId, BTreeMap<i32, i64>)> = Vec::new();
            let mut last = CheckpointId(1);
            let withdraw = |on_their_way: &mut Vec<(CheckpointId, BTreeMap<i32, i64>)>, number: i32| {
                for (_, held) in on_their_way {
                    held.remove(&number);
                }
            };
            for (number, step) in steps {
                let at = partition(number);
                match step {
                    Step::Add => {
                        pending.add(at, Pending::Appeared);
                        waiting.insert(number);
                        asked.remove(&number);
                        decisions.remove(&number);
                        withdraw(&mut on_their_way, number);
                    }
                    Step::Ask => {
                        let handed: BTreeSet<i32> = pending.ask().into_keys().map(|at| at.partition).collect();
                        prop_assert_eq!(&handed, &waiting);
                        asked = handed;
                    }
                    Step::Found(offset) => {
                        let taken = pending.found(BTreeMap::from([(at.clone(), decided(offset))]));
                        prop_assert_eq!(taken, asked.contains(&number).then_some(at).into_iter().collect::<Vec<_>>());
                        if asked.remove(&number) {
                            waiting.remove(&number);
                            decisions.insert(number, offset);
                        }
                    }
                    Step::Decide(offset) => {
                        pending.decide(at, decided(offset));
                        waiting.remove(&number);
                        asked.remove(&number);
                        decisions.insert(number, offset);
                        withdraw(&mut on_their_way, number);
                    }
                    Step::Checkpoint => {
                        last = last.next();
                        let resolved: Vec<(TopicPartition, Offset)> =
                            pending.resolved().iter().map(|(at, decided)| (at.clone(), decided.offset)).collect();
                        let mut held = BTreeMap::new();
                        for (at, offset) in resolved {
                            pending.send(&at, offset, last);
                            withdraw(&mut on_their_way, at.partition);
                            held.insert(at.partition, offset.get());
                        }
                        prop_assert_eq!(&held, &decisions);
                        on_their_way.push((last, held));
                    }
                    Step::Stored(_) if on_their_way.is_empty() => {}
                    Step::Stored(is_stored) => {
                        let (id, held) = on_their_way.remove(0);
                        if is_stored {
                            let handed: BTreeMap<i32, i64> =
                                pending.stored(id).into_iter().map(|(at, offset)| (at.partition, offset.get())).collect();
                            prop_assert_eq!(&handed, &held);
                            // A repetition hands out nothing.
                            prop_assert_eq!(pending.stored(id), vec![]);
                            decisions.retain(|number, _| !handed.contains_key(number));
                        }
                    }
                    Step::Forget => {
                        pending.forget(&at);
                        waiting.remove(&number);
                        asked.remove(&number);
                        decisions.remove(&number);
                        withdraw(&mut on_their_way, number);
                    }
                }
                let unresolved: BTreeSet<i32> = pending.unresolved().keys().map(|at| at.partition).collect();
                let resolved: BTreeMap<i32, i64> =
                    pending.resolved().iter().map(|(at, decided)| (at.partition, decided.offset.get())).collect();
                prop_assert_eq!(&unresolved, &waiting);
                prop_assert_eq!(&resolved, &decisions);
                prop_assert!(unresolved.iter().all(|number| !resolved.contains_key(number)));
                for number in 0..4 {
                    let holds = waiting.contains(&number) || decisions.contains_key(&number);
                    prop_assert_eq!(pending.holds(&partition(number)), holds);
                }
            }
            // A checkpoint that is stored in the end takes along everything that is decided.
            let resolved: Vec<(TopicPartition, Offset)> =
                pending.resolved().iter().map(|(at, decided)| (at.clone(), decided.offset)).collect();
            for (at, offset) in &resolved {
                pending.send(at, *offset, last.next());
            }
            prop_assert_eq!(pending.stored(last.next()), resolved);
        }
    }
}
