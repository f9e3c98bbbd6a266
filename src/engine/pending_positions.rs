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
        Blocker, BrokerFacts, PartitionFacts, RestorableState, SinkFacts, StartInputs,
        StartPolicies, StateUse, needed_facts, resolve_positions,
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
}

impl PendingPositions {
    pub(super) fn new(unresolved: BTreeSet<TopicPartition>) -> Self {
        Self {
            unresolved: unresolved
                .into_iter()
                .map(|partition| (partition, Pending::SinceStart))
                .collect(),
            resolved: BTreeMap::new(),
            sent: BTreeMap::new(),
        }
    }

    /// Takes a decision over a partition that is parked; a later one replaces it.
    pub(super) fn decide(&mut self, partition: TopicPartition, decided: Decided) {
        self.unresolved.remove(&partition);
        self.sent.remove(&partition);
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
            if self.unresolved.contains_key(&partition) {
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
    // The ends of the logs come before the look-up by time, so that "no such record" means the end as it was before.
    let bounds = kafka.log_bounds(&listed).await?;
    let answered: Vec<TopicPartition> = listed
        .into_iter()
        .filter(|partition| bounds.contains_key(partition))
        .collect();
    if answered.is_empty() {
        return Ok(LookedUp::default());
    }
    let (by_mode, by_state): (Vec<TopicPartition>, Vec<TopicPartition>) = answered
        .iter()
        .cloned()
        .partition(|partition| partitions[partition].by_startup_mode(&spec));
    let mut facts = BrokerFacts::default();
    let topics: BTreeSet<String> = answered
        .iter()
        .map(|partition| partition.topic.to_string())
        .collect();
    let described = kafka
        .describe_topics(&topics.into_iter().collect::<Vec<_>>())
        .await?;
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
    let mut looked_up = LookedUp::default();
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
        },
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
