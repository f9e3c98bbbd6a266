//! What the broker says of the job's consumer group.

use std::time::Duration;

use oracle::run::{Event, GroupSample};
use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer},
};

use super::clock::Clock;
use crate::support::kafka::Kafka;

const ANSWER: Duration = Duration::from_secs(5);

/// Asks for one group's offsets, without being a member.
pub(crate) struct GroupReader {
    consumer: BaseConsumer,
    wanted: TopicPartitionList,
    clock: Clock,
}

impl GroupReader {
    pub(crate) fn new(
        kafka: &Kafka,
        group: &str,
        topic: &str,
        partitions: i32,
        clock: Clock,
    ) -> Self {
        let mut wanted = TopicPartitionList::new();
        for partition in 0..partitions {
            wanted.add_partition(topic, partition);
        }
        let consumer = kafka
            .config()
            .set("group.id", group)
            .create()
            .expect("a consumer");
        Self {
            consumer,
            wanted,
            clock,
        }
    }

    /// `None` when the broker is away.
    pub(crate) fn look(&mut self) -> Option<Event> {
        let began = self.clock.now();
        let found = self
            .consumer
            .committed_offsets(self.wanted.clone(), ANSWER)
            .ok()?;
        let offsets = found.elements();
        let offsets = offsets.iter().filter_map(|element| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            _ => None,
        });
        Some(Event::Group(GroupSample {
            began,
            at: self.clock.now(),
            offsets: offsets.collect(),
        }))
    }
}
