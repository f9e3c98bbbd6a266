//! What stands against a start, one entry per code, each with the choices that decide it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{Blocker, PlannedPartition, StartInputs};
use crate::model::{
    code::Code,
    offset::Offset,
    start::{PartitionsByTopic, StartFrom},
    startup_mode::OffsetsByTopic,
    topic::TopicPartition,
};

/// Blockers of one code are one entry with all its partitions.
#[derive(Debug, Default)]
pub(super) struct Blockers(BTreeMap<Code, Blocker>);

impl Blockers {
    /// Adds a partition. Only choices that decide every partition of the entry stay.
    pub(super) fn add(
        &mut self,
        code: Code,
        partition: &TopicPartition,
        summary: &str,
        choices: &[(&str, &str)],
    ) {
        let choices: Vec<Value> = choices
            .iter()
            .map(|(member, value)| json!({ *member: value }))
            .collect();
        let entry = self.entry(code, || choices.clone());
        entry.choices.retain(|choice| choices.contains(choice));
        entry.partitions.push(partition.clone());
        append(&mut entry.summary, summary);
    }

    /// Adds what concerns no single partition.
    pub(super) fn add_general(&mut self, code: Code, summary: &str) {
        append(&mut self.entry(code, Vec::new).summary, summary);
    }

    /// Adds what concerns no single partition, with what a start may carry to decide it.
    pub(super) fn add_decision(&mut self, code: Code, summary: &str, choices: &[(&str, &str)]) {
        let choices = choices
            .iter()
            .map(|(member, value)| json!({ *member: value }));
        append(&mut self.entry(code, || choices.collect()).summary, summary);
    }

    fn entry(&mut self, code: Code, choices: impl FnOnce() -> Vec<Value>) -> &mut Blocker {
        self.0.entry(code).or_insert_with(|| Blocker {
            code,
            partitions: Vec::new(),
            summary: String::new(),
            choices: choices(),
        })
    }

    /// The list, completed by the choices that depend on all of an entry's partitions. A choice is what to merge into the
    /// body of the start; `null` removes a member of it that would contradict.
    pub(super) fn into_list(
        mut self,
        inputs: &StartInputs<'_>,
        planned: &[PlannedPartition],
    ) -> Vec<Blocker> {
        for blocker in self.0.values_mut() {
            let code = blocker.code;
            if code == Code::SinkChanged {
                let elsewhere = inputs.progress_elsewhere();
                let held =
                    |partition: &TopicPartition| Some(elsewhere?.get(partition)?.next_offset);
                let choice = begin_at(inputs, &blocker.partitions, held);
                blocker.choices.extend(choice);
            }
            let choice = if matches!(code, Code::SinkBehindStore | Code::StoreBehindSink) {
                let progress = inputs.progress();
                let held = |partition: &TopicPartition| Some(progress?.get(partition)?.next_offset);
                begin_at(inputs, &blocker.partitions, held)
            } else if matches!(code, Code::ProgressLost | Code::SinkChanged) {
                let stored = |partition: &TopicPartition| {
                    inputs.state?.positions.get(partition)?.next_offset
                };
                begin_at(inputs, &blocker.partitions, stored)
            } else if code == Code::NoLeader {
                without(inputs, &blocker.partitions, planned)
            } else if code == Code::CheckpointNotFound {
                Some(begin_automatically(inputs))
            } else {
                None
            };
            blocker.choices.extend(choice);
        }
        self.0.into_values().collect()
    }
}

/// Begins the blocked partitions where `position` says (where the sink stands, or where the checkpoint does), as a decision
/// from outside, and leaves the others to their checkpoint.
///
/// None where it would replace an intent that cannot be written together with it.
fn begin_at(
    inputs: &StartInputs<'_>,
    blocked: &[TopicPartition],
    position: impl Fn(&TopicPartition) -> Option<Offset>,
) -> Option<Value> {
    let (mut offsets, mut partitions) = match (inputs.from, inputs.covered) {
        (StartFrom::Auto, _) | (StartFrom::Checkpoint { .. }, None) => {
            (OffsetsByTopic::default(), PartitionsByTopic::default())
        }
        (StartFrom::SpecificOffsets { offsets }, Some(covered)) => {
            (offsets.clone(), covered.clone())
        }
        _ => return None,
    };
    for partition in blocked {
        let topic = partition.topic.to_string();
        let by_number = offsets.0.entry(topic.clone()).or_default();
        by_number.insert(partition.partition, position(partition)?);
        let numbers = partitions.0.entry(topic).or_default();
        numbers.insert(partition.partition);
    }
    let mut choice = Map::new();
    choice.insert("from".to_owned(), json!("specific-offsets"));
    choice.insert("offsets".to_owned(), json!(offsets));
    choice.insert("partitions".to_owned(), json!(partitions));
    remove_checkpoint(inputs, &mut choice);
    Some(Value::Object(choice))
}

/// Narrows a one-shot start to the partitions that it can decide now.
fn without(
    inputs: &StartInputs<'_>,
    blocked: &[TopicPartition],
    planned: &[PlannedPartition],
) -> Option<Value> {
    let blocked: BTreeSet<&TopicPartition> = blocked.iter().collect();
    let mut covered = inputs.covered.cloned().unwrap_or_default();
    if inputs.covered.is_none() {
        let read = planned.iter().filter(|planned| planned.is_read());
        let mut names: Vec<TopicPartition> = read.map(PlannedPartition::topic_partition).collect();
        if let StartFrom::SpecificOffsets { offsets } = inputs.from {
            names.extend(offsets.by_partition().into_keys());
        }
        for name in names {
            let numbers = covered.0.entry(name.topic.to_string()).or_default();
            numbers.insert(name.partition);
        }
    }
    for (topic, numbers) in &mut covered.0 {
        numbers.retain(|number| !blocked.contains(&TopicPartition::new(topic.as_str(), *number)));
    }
    covered.0.retain(|_, numbers| !numbers.is_empty());
    (!covered.0.is_empty()).then(|| json!({ "partitions": covered }))
}

fn begin_automatically(inputs: &StartInputs<'_>) -> Value {
    let mut choice = Map::new();
    choice.insert("from".to_owned(), json!("auto"));
    remove_checkpoint(inputs, &mut choice);
    if inputs.covered.is_some() {
        choice.insert("partitions".to_owned(), Value::Null);
    }
    Value::Object(choice)
}

fn remove_checkpoint(inputs: &StartInputs<'_>, choice: &mut Map<String, Value>) {
    if matches!(
        inputs.from,
        StartFrom::Checkpoint {
            checkpoint: Some(_)
        }
    ) {
        choice.insert("checkpoint".to_owned(), Value::Null);
    }
}

/// Names partitions in a sentence: the first few, then how many more.
pub(super) fn list(partitions: &[TopicPartition]) -> String {
    const ENOUGH: usize = 10;
    let shown: Vec<String> = partitions
        .iter()
        .take(ENOUGH)
        .map(ToString::to_string)
        .collect();
    let mut text = shown.join(", ");
    if partitions.len() > ENOUGH {
        text.push_str(&format!(" and {} more", partitions.len() - ENOUGH));
    }
    text
}

/// Puts what is to say of several partitions in one sentence that stays readable.
pub(super) fn sentence(parts: &[String]) -> String {
    let mut text = String::new();
    for part in parts {
        append(&mut text, part);
    }
    text
}

/// Adds blockers to a list that has one entry per code.
pub(super) fn merge(list: &mut Vec<Blocker>, more: Vec<Blocker>) {
    for blocker in more {
        match list.iter_mut().find(|known| known.code == blocker.code) {
            Some(known) => {
                append(&mut known.summary, &blocker.summary);
                known.partitions.extend(blocker.partitions);
            }
            None => list.push(blocker),
        }
    }
}

/// Keeps a summary of many partitions readable: the first few, then a mark that there are more.
fn append(summary: &mut String, part: &str) {
    const ENOUGH: usize = 400;
    if summary.is_empty() {
        summary.push_str(part);
    } else if summary.len() < ENOUGH {
        summary.push_str("; ");
        summary.push_str(part);
    } else if !summary.ends_with("and more") {
        summary.push_str("; and more");
    }
}
