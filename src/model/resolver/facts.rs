//! What is known when a start is decided, and what has to be asked for first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Named, StartInputs, without_checkpoints};
use crate::model::{
    checkpoint::CheckpointPosition,
    code::Code,
    errors_spec::Block,
    ids::CheckpointId,
    job::{Isolation, PositionPolicy},
    offset::{Offset, PartitionOffsets},
    parked::ParkedPartition,
    start::{PartitionsByTopic, StartFrom},
    startup_mode::StartupMode,
    topic::{TopicId, TopicPartition},
};

/// The ends of a partition's log as the leader told them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogBounds {
    /// First offset still in the log.
    pub earliest: Offset,
    /// End of what a `read_committed` consumer may see (last stable offset).
    pub last_stable: Offset,
    /// End of the log (high watermark).
    pub latest: Offset,
}

impl LogBounds {
    /// Up to where a job of this isolation can read.
    #[must_use]
    pub fn readable_end(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::ReadCommitted => self.last_stable,
            Isolation::ReadUncommitted => self.latest,
        }
    }
}

/// What the brokers know of one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionFacts {
    /// The topic's id; `None` if the broker has none.
    pub topic_id: Option<TopicId>,
    /// The log's ends; `None` while the partition has no leader.
    pub bounds: Option<LogBounds>,
    /// The group's committed offset.
    pub group_offset: Option<Offset>,
    /// The first offset at or after the instant asked for; `None` if there is none or no instant was asked for.
    pub at_timestamp: Option<Offset>,
}

/// What the brokers know, as far as this start needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BrokerFacts {
    /// Every partition of the topics read.
    pub partitions: BTreeMap<TopicPartition, PartitionFacts>,
    /// Topics of the spec that do not exist.
    pub missing_topics: Vec<String>,
    /// Whether a pattern selects the topics: then none of them has to exist.
    pub by_pattern: bool,
    /// What was asked for the ends of a bounded run; empty where none is to be resolved.
    pub ends: EndFacts,
}

/// The answers that the ends of a bounded run rest on, besides the ends of the logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndFacts {
    /// The group's committed offsets, for `stop_at: group-offsets`.
    pub group: PartitionOffsets,
    /// The first offsets at or after the instant of `stop_at: timestamp`.
    pub at_timestamp: PartitionOffsets,
}

/// A checkpoint as the resolver needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestorableState {
    /// The checkpoint's number.
    pub id: CheckpointId,
    /// Its positions.
    pub positions: BTreeMap<TopicPartition, CheckpointPosition>,
    /// The target that the sink wrote to when it was taken; empty where that was not noted.
    pub sink_identity: String,
    /// The job's newest completed checkpoint before which records had reached the sink, set aside or not; `None` where none
    /// ever did.
    pub newest_output: Option<CheckpointId>,
}

impl RestorableState {
    /// Whether records had reached the sink before a checkpoint that is newer than this one. The sink notes a position before
    /// its first record, so it must have known it then.
    pub(super) fn had_output_since(&self, position_id: CheckpointId) -> bool {
        self.newest_output
            .is_some_and(|newest| newest > position_id)
    }
}

/// How far a sink that keeps its own progress has come in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SinkPosition {
    /// Everything before is in the sink.
    pub next_offset: Offset,
    /// The checkpoint that last decided this partition's position from outside, as the sink knows it.
    pub position_id: CheckpointId,
}

/// What a sink found when it was asked or claimed its target; empty for sinks that keep no progress.
pub type SinkProgress = BTreeMap<TopicPartition, SinkPosition>;

/// What is known of the sink when a start is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkFacts {
    /// Names the target.
    pub identity: String,
    /// How far it has come.
    pub progress: ProgressFacts,
}

/// How far a sink has come, if it says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressFacts {
    /// It keeps no progress: the checkpoint alone counts.
    NotKept,
    /// So far.
    Kept(SinkProgress),
    /// It keeps progress and did not answer: a start waits for it.
    Unknown(String),
    /// It refused, and would refuse a start too.
    Refused {
        /// Why.
        code: Code,
        /// In its own words.
        detail: String,
    },
}

impl SinkFacts {
    /// A sink that keeps no progress.
    #[must_use]
    pub fn without_progress(identity: String) -> Self {
        Self {
            identity,
            progress: ProgressFacts::NotKept,
        }
    }

    /// Whether the checkpoint was taken with another target.
    #[must_use]
    pub fn is_other_than(&self, state: Option<&RestorableState>) -> bool {
        state.is_some_and(|state| {
            !state.sink_identity.is_empty() && state.sink_identity != self.identity
        })
    }

    /// The progress that may be held against the checkpoint's positions; `None` where it is not known, and where the target
    /// is another one: what is found there belongs to another time.
    #[must_use]
    pub fn comparable_with(&self, state: Option<&RestorableState>) -> Option<&SinkProgress> {
        match &self.progress {
            ProgressFacts::Kept(progress) if !self.is_other_than(state) => Some(progress),
            ProgressFacts::Kept(_)
            | ProgressFacts::NotKept
            | ProgressFacts::Unknown(_)
            | ProgressFacts::Refused { .. } => None,
        }
    }
}

/// The policies in force for this start: the spec's, or the caller's overrides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartPolicies {
    /// For positions outside the log.
    pub on_out_of_range: PositionPolicy,
    /// For a group without an offset.
    pub on_missing_group_offset: PositionPolicy,
    /// For a topic with another id than the checkpoint's.
    pub on_topic_recreated: PositionPolicy,
    /// Whether the positions of partitions that do not exist any more are dropped.
    pub forget_gone: bool,
}

/// Which partitions a start may leave parked, where a policy of `fail` would otherwise stand against all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parking<'a> {
    /// The ones that were parked before.
    pub before: &'a [ParkedPartition],
    /// Whether others may be parked, too: when nobody is there to be asked.
    pub others: bool,
}

impl<'a> Parking<'a> {
    /// What a spec allows. A start by the server itself has nobody to ask, so what is new is parked as it would be in a run;
    /// an operator is asked about what is new, and knows of what was parked before.
    #[must_use]
    pub fn of(block: Block, before: &'a [ParkedPartition], is_automatic: bool) -> Self {
        match block {
            Block::Job => Self::default(),
            Block::Partition => Self {
                before,
                others: is_automatic,
            },
        }
    }

    /// Whether a partition was parked before; `None` if it must not be parked.
    pub(super) fn allows(&self, partition: &TopicPartition) -> Option<bool> {
        let mut before = self.before.iter();
        let again = before.any(|parked| parked.topic_partition() == *partition);
        (again || self.others).then_some(again)
    }
}

/// What a start has to ask the group and the log for, besides the ends of the logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeededFacts<'a> {
    /// The group's committed offsets.
    pub group_offsets: bool,
    /// The instant of `from`, for the partitions it covers.
    by_intent: Option<i64>,
    /// The instant of the startup mode, for the other ones.
    by_mode: Option<i64>,
    covered: Option<&'a PartitionsByTopic>,
}

impl NeededFacts<'_> {
    /// The instants to look up, in milliseconds since 1970, each with its partitions; empty if none is needed.
    ///
    /// There may be two: `from` names one for the partitions it covers, the startup mode another for the rest.
    pub fn instants<'p>(
        &self,
        partitions: impl IntoIterator<Item = &'p TopicPartition>,
    ) -> BTreeMap<i64, Vec<TopicPartition>> {
        let mut instants: BTreeMap<i64, Vec<TopicPartition>> = BTreeMap::new();
        for partition in partitions {
            if let Some(instant) = self.instant_for(partition) {
                instants.entry(instant).or_default().push(partition.clone());
            }
        }
        instants
    }

    fn instant_for(&self, partition: &TopicPartition) -> Option<i64> {
        let is_covered = self
            .covered
            .is_none_or(|covered| covered.contains(partition));
        self.by_intent.filter(|_| is_covered).or(self.by_mode)
    }
}

/// Says which facts a start needs, so that none is asked for in vain: a group coordinator that is away must not hold up a
/// start that resumes from a checkpoint. `now_ms` is the wall clock, for `ago`.
#[must_use]
pub fn needed_facts<'a>(inputs: &StartInputs<'a>, now_ms: i64) -> NeededFacts<'a> {
    let by_intent = if let StartFrom::Timestamp { timestamp } = inputs.from {
        Some(timestamp.timestamp_millis())
    } else if let StartFrom::Ago { duration } = inputs.from {
        Some(now_ms.saturating_sub(duration.as_millis()).max(0))
    } else {
        None
    };
    let intent_needs_group = matches!(
        inputs.from,
        StartFrom::GroupOffsets | StartFrom::SpecificOffsets { .. }
    );
    let (mode_needs_group, by_mode) = match inputs.startup_mode {
        StartupMode::Timestamp { timestamp } => (false, Some(timestamp.timestamp_millis())),
        StartupMode::GroupOffsets | StartupMode::SpecificOffsets { .. } => (true, None),
        StartupMode::Earliest | StartupMode::Latest => (false, None),
    };
    let mode_counts = startup_mode_may_count(inputs);
    NeededFacts {
        group_offsets: intent_needs_group
            || (mode_counts && mode_needs_group)
            || without_checkpoints::needs_group(inputs),
        by_intent,
        by_mode: by_mode.filter(|_| mode_counts),
        covered: inputs.covered,
    }
}

/// Whether any partition may fall to the startup mode: without a checkpoint, or with one in which a partition still waits
/// for its first position. Which partitions there are is not known yet, so this errs on the side of asking.
fn startup_mode_may_count(inputs: &StartInputs<'_>) -> bool {
    let moves_by_itself = inputs.is_one_shot() && !matches!(inputs.from, StartFrom::Shift { .. });
    if moves_by_itself && inputs.covered.is_none() {
        return false;
    }
    let Some(state) = inputs.state else {
        return true;
    };
    let named = match inputs.named() {
        Named::Found(named) => Some(named),
        Named::Missing | Named::Nothing => None,
    };
    [Some(state), named]
        .into_iter()
        .flatten()
        .flat_map(|known| known.positions.values())
        .any(|position| position.next_offset.is_none())
}
