//! What the decision says of a job without checkpoints.
//!
//! Such a job has no state, so rule 4 decides, always. The one thing to be careful about is the first start after checkpoints
//! were turned off: the newest one is set aside by it. It is kept, it is named, and it still says what was read: where the
//! startup mode would pass over records behind it, the start needs an explicit `from`. (Checkpoints that are turned on again
//! begin without state: what was set aside is never gone on from silently.)
//!
//! Later starts rest on nothing that was kept. What they pass over and read again is counted all the same, from where the last
//! run stood as far as this server or the group can tell.

use serde_json::{Map, Value, json};

use super::{
    Blocker, PartitionFacts, PlannedPartition, RestorableState, StartInputs, StartReason, Warning,
    blockers::list,
};
use crate::model::{
    code::Code,
    offset::{Offset, PartitionOffsets},
    startup_mode::OffsetsByTopic,
    topic::TopicPartition,
};

/// Most positions of the checkpoint that a choice holds; a start from more is written by the caller.
const POSITIONS_IN_A_CHOICE: usize = 200;

/// Whether the job takes checkpoints, and what it leaves behind if it does not any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateUse<'a> {
    /// It does: the newest checkpoint counts.
    Counts,
    /// It does not: there is no state, and the newest checkpoint of an earlier time, if there is one, is set aside.
    Off {
        /// That checkpoint.
        left: Option<&'a RestorableState>,
        /// What is known of what was read since.
        read: ReadBefore<'a>,
    },
}

/// What is known of what a job without checkpoints has read. It decides nothing but where a new partition begins; by it is
/// counted what a start passes over and reads again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadBefore<'a> {
    /// Where its run stands or stood, as the server knows that has it or had it last.
    pub positions: Option<&'a PartitionOffsets>,
    /// Whether its last run committed to the group, so that the group's offsets tell it where the positions do not.
    pub group_tells: bool,
    /// Whether the caller himself says what becomes of partitions without an offset of the group.
    pub missing_is_decided: bool,
}

/// Up to where a partition was read by a run without checkpoints; `None` where that is not known.
pub(super) fn read_up_to(
    inputs: &StartInputs<'_>,
    partition: &TopicPartition,
    facts: &PartitionFacts,
) -> Option<Offset> {
    let before = inputs.state_use.read_before()?;
    let position = before.positions.and_then(|all| all.get(partition).copied());
    let committed = facts.group_offset.filter(|_| before.group_tells);
    position.or(committed).or_else(|| {
        facts
            .bounds
            .map(|bounds| bounds.earliest)
            .filter(|_| is_new(inputs, partition, facts))
    })
}

/// Whether the group has to be asked how far the last run came, because nobody else knows.
pub(super) fn needs_group(inputs: &StartInputs<'_>) -> bool {
    let before = inputs.state_use.read_before();
    before.is_some_and(|before| before.group_tells && before.positions.is_none())
}

/// Whether a partition has appeared after the last run: the run knew others of its topic, and not this one. Records may have
/// been written before it was noticed, so it begins at its first one, as under a checkpoint that lacks it.
pub(super) fn is_new(
    inputs: &StartInputs<'_>,
    partition: &TopicPartition,
    facts: &PartitionFacts,
) -> bool {
    let Some(before) = inputs.state_use.read_before() else {
        return false;
    };
    let was_read = |other: &TopicPartition| {
        let has_position = before.positions.is_some_and(|all| all.contains_key(other));
        let of_group = inputs.facts.partitions.get(other);
        let has_offset = of_group.is_some_and(|facts| facts.group_offset.is_some());
        has_position || (before.group_tells && has_offset)
    };
    let mut others = inputs.facts.partitions.keys();
    facts.group_offset.is_none()
        && !was_read(partition)
        && others.any(|other| other.topic == partition.topic && was_read(other))
}

/// Whether a new partition begins at its first record although the group has no offset of it.
pub(super) fn begins_as_new(
    inputs: &StartInputs<'_>,
    partition: &TopicPartition,
    facts: &PartitionFacts,
) -> bool {
    let is_decided = inputs
        .state_use
        .read_before()
        .is_none_or(|before| before.missing_is_decided);
    let is_named = inputs.is_one_shot() && inputs.covers(partition);
    !is_decided && !is_named && is_new(inputs, partition, facts)
}

impl<'a> StateUse<'a> {
    /// The checkpoint that is left behind.
    #[must_use]
    pub fn left(&self) -> Option<&'a RestorableState> {
        match self {
            Self::Counts => None,
            Self::Off { left, .. } => *left,
        }
    }

    /// What is known of what was read, where no checkpoint says it.
    pub(super) fn read_before(&self) -> Option<&ReadBefore<'a>> {
        match self {
            Self::Off { left: None, read } => Some(read),
            Self::Counts | Self::Off { .. } => None,
        }
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self, Self::Off { .. })
    }
}

/// Stands against a bare start that would pass over what the checkpoint left behind has not read.
pub(super) fn blocker(inputs: &StartInputs<'_>, planned: &[PlannedPartition]) -> Option<Blocker> {
    let left = inputs.state_use.left()?;
    let is_asked_for = |planned: &PlannedPartition| {
        inputs.is_one_shot() && inputs.covers(&planned.topic_partition())
    };
    // What the startup mode will say of a partition without a leader is not known; that something is unread there may be.
    let may_pass_over = |planned: &PlannedPartition| {
        let stored = left.positions.get(&planned.topic_partition());
        let was_read = stored.is_some_and(|stored| stored.next_offset.is_some());
        planned.reason == StartReason::NoLeader && planned.start_at.is_none() && was_read
    };
    let passed: Vec<&PlannedPartition> = planned
        .iter()
        .filter(|planned| planned.skipped > 0 || may_pass_over(planned))
        .filter(|planned| !is_asked_for(planned))
        .collect();
    if passed.is_empty() {
        return None;
    }
    let offsets: i64 = passed.iter().map(|planned| planned.skipped).sum();
    let partitions: Vec<TopicPartition> = passed
        .iter()
        .map(|planned| planned.topic_partition())
        .collect();
    let mode = inputs.startup_mode.name();
    let how_many = if offsets > 0 {
        format!("would pass over {offsets} unread offsets behind it")
    } else {
        "may pass over what is unread behind it".to_owned()
    };
    let summary = format!(
        "checkpoints are off, so checkpoint {} does not count any more, and the startup mode ({mode}) {how_many} in {}",
        left.id,
        list(&partitions)
    );
    let mut choices = Vec::new();
    // One that names partitions cannot be written together with another beginning for the rest.
    if !inputs.is_one_shot() {
        choices.extend(go_on_once(left, planned));
        choices.push(by_mode(inputs));
    }
    Some(Blocker {
        code: Code::StateNotUsed,
        partitions,
        summary,
        choices,
    })
}

/// Begins, this once, where the checkpoint stands.
fn go_on_once(left: &RestorableState, planned: &[PlannedPartition]) -> Option<Value> {
    let read = planned.iter().filter(|planned| planned.is_read());
    let mut offsets = OffsetsByTopic::default();
    for planned in read {
        let stored = left.positions.get(&planned.topic_partition());
        let at = stored
            .and_then(|stored| stored.next_offset)
            .or(planned.start_at)?;
        let of_topic = offsets.0.entry(planned.topic.clone()).or_default();
        of_topic.insert(planned.partition, at);
    }
    let positions: usize = offsets
        .0
        .values()
        .map(std::collections::BTreeMap::len)
        .sum();
    (1..=POSITIONS_IN_A_CHOICE)
        .contains(&positions)
        .then(|| json!({"from": "specific-offsets", "offsets": offsets}))
}

/// Says in so many words what the startup mode says.
fn by_mode(inputs: &StartInputs<'_>) -> Value {
    let mut choice = Map::new();
    if let Value::Object(mode) = json!(inputs.startup_mode) {
        for (name, value) in mode {
            let name = if name == "mode" {
                "from".to_owned()
            } else {
                name
            };
            choice.insert(name, value);
        }
    }
    Value::Object(choice)
}

/// What to know of the checkpoint that is set aside.
pub(super) fn set_aside(left: &RestorableState) -> Warning {
    Warning {
        code: Code::StateNotUsed,
        summary: format!(
            "checkpoint {} is set aside, since checkpoints are off; it is kept, and once they are on again a start with from=checkpoint and its number is the way back",
            left.id
        ),
    }
}
