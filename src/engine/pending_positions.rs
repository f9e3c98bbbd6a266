//! Partitions that had no leader when the job started and whose position only the log can tell.
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
    job::JobSpec,
    offset::{Offset, PartitionOffsets},
    resolver::{
        BrokerFacts, PartitionFacts, SinkFacts, StartInputs, StartPolicies, needed_facts,
        resolve_positions,
    },
    start::StartFrom,
    topic::TopicPartition,
};

/// Where the pending partitions stand.
#[derive(Debug, Default)]
pub(super) struct PendingPositions {
    unresolved: BTreeSet<TopicPartition>,
    resolved: BTreeMap<TopicPartition, Decided>,
}

impl PendingPositions {
    pub(super) fn new(unresolved: BTreeSet<TopicPartition>) -> Self {
        Self {
            unresolved,
            resolved: BTreeMap::new(),
        }
    }

    /// Partitions that wait for a leader.
    pub(super) fn unresolved(&self) -> &BTreeSet<TopicPartition> {
        &self.unresolved
    }

    /// Partitions that wait for a checkpoint with their position.
    pub(super) fn resolved(&self) -> &BTreeMap<TopicPartition, Decided> {
        &self.resolved
    }

    /// Takes a decision over a partition that is parked; a later one replaces it.
    pub(super) fn decide(&mut self, partition: TopicPartition, decided: Decided) {
        self.resolved.insert(partition, decided);
    }

    /// Takes what a look-up found.
    pub(super) fn found(&mut self, positions: BTreeMap<TopicPartition, Decided>) {
        for (partition, resolved) in positions {
            if self.unresolved.remove(&partition) {
                self.resolved.insert(partition, resolved);
            }
        }
    }

    /// Hands out the partitions whose positions a completed checkpoint holds.
    pub(super) fn stored(&mut self, offsets: &PartitionOffsets) -> Vec<(TopicPartition, Offset)> {
        let stored: Vec<(TopicPartition, Offset)> = self
            .resolved
            .iter()
            .filter(|(partition, resolved)| offsets.get(*partition) == Some(&resolved.offset))
            .map(|(partition, resolved)| (partition.clone(), resolved.offset))
            .collect();
        for (partition, _) in &stored {
            self.resolved.remove(partition);
        }
        stored
    }
}

/// Looks whether the partitions have leaders now, and where they begin.
///
/// # Errors
/// When the cluster does not answer.
pub(super) async fn look_up(
    kafka: Arc<dyn KafkaCluster>,
    spec: JobSpec,
    partitions: BTreeSet<TopicPartition>,
    now_ms: i64,
) -> Result<BTreeMap<TopicPartition, Decided>, KafkaError> {
    let listed: Vec<TopicPartition> = partitions.into_iter().collect();
    // The ends of the logs come before the look-up by time, so that "no such record" means the end as it was before.
    let bounds = kafka.log_bounds(&listed).await?;
    let answered: Vec<TopicPartition> = listed
        .into_iter()
        .filter(|partition| bounds.contains_key(partition))
        .collect();
    if answered.is_empty() {
        return Ok(BTreeMap::new());
    }
    // A position that is decided for the first time does not depend on the sink.
    let (from, sink) = (StartFrom::Auto, SinkFacts::without_progress(String::new()));
    let nothing = BrokerFacts::default();
    let inputs = StartInputs {
        isolation: spec.source.isolation,
        startup_mode: &spec.startup_mode,
        state: None,
        chosen: None,
        sink: &sink,
        from: &from,
        covered: None,
        policies: StartPolicies {
            on_out_of_range: spec.source.on_out_of_range,
            on_missing_group_offset: spec.source.on_missing_group_offset,
            on_topic_recreated: spec.source.on_topic_recreated,
        },
        facts: &nothing,
    };
    let needed = needed_facts(&inputs, now_ms);
    let group = if needed.group_offsets {
        kafka
            .group_offsets(&spec.source.group_id, &answered)
            .await?
    } else {
        BTreeMap::new()
    };
    let mut by_time = PartitionOffsets::new();
    for (timestamp_ms, asked) in needed.instants(&answered) {
        let found = kafka
            .offsets_for_timestamp(&asked, timestamp_ms, spec.source.isolation)
            .await?;
        by_time.extend(found);
    }
    let topics: BTreeSet<String> = answered
        .iter()
        .map(|partition| partition.topic.to_string())
        .collect();
    let described = kafka
        .describe_topics(&topics.into_iter().collect::<Vec<_>>())
        .await?;
    let topic_id = |topic: &str| {
        described
            .iter()
            .find(|known| known.name == topic)
            .and_then(|known| known.id.clone())
    };
    let facts = answered.iter().map(|partition| {
        let facts = PartitionFacts {
            topic_id: topic_id(&partition.topic),
            bounds: bounds.get(partition).copied(),
            group_offset: group.get(partition).map(|group| group.offset),
            at_timestamp: by_time.get(partition).copied(),
        };
        (partition.clone(), facts)
    });
    let facts = BrokerFacts {
        partitions: facts.collect(),
        ..BrokerFacts::default()
    };
    let resolved = resolve_positions(&StartInputs {
        facts: &facts,
        ..inputs
    });
    let found = resolved.partitions.into_iter().filter_map(|planned| {
        let offset = planned.start_at?;
        Some((
            planned.topic_partition(),
            Decided {
                offset,
                topic_id: planned.topic_id,
            },
        ))
    });
    Ok(found.collect())
}
