//! The whole product, as its users meet it: the binary, a real broker, a real database, the REST API.
//!
//! Each test has a server, a database, a topic, a job and a group of its own. The doc of a test names the public bug report
//! of a neighbouring project that it makes impossible here, where there is one.

mod attempts;
mod bad_record;
mod bounded;
mod broker;
mod changed_topics;
mod dead_letters;
mod discovery;
mod event_time;
mod group;
mod group_reset;
mod kills;
mod landing;
mod latency;
mod librdkafka;
mod limits;
mod many_calls;
mod many_partitions;
mod oldest_unread;
mod outages;
mod parallelism;
mod parked;
mod postgres;
mod printed_lines;
mod quiet_sink;
mod restart;
mod restarts;
mod retention;
mod shutdown;
mod sink_progress;
mod slow_target;
mod stages;
mod startup_mode_changes;
mod startup_modes;
mod stop_start;
mod transactions;
mod two_brokers;
mod ui;
mod warehouse;
mod watch;
mod without_checkpoints;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{
    client::Job,
    kafka::Kafka,
    producer::Producer,
    server::TestServer,
    unique,
    wait::{SOON, eventually},
};

/// A server and a topic that one job reads.
struct Scene {
    server: TestServer,
    kafka: Kafka,
    producer: Producer,
    /// Topic, job and group have the same name.
    name: String,
    partitions: i32,
    job: Job,
}

impl Scene {
    /// On the shared broker.
    fn new(name: &str, partitions: i32) -> Self {
        Self::with(TestServer::start(), Kafka::shared(), name, partitions)
    }

    fn with(server: TestServer, kafka: Kafka, name: &str, partitions: i32) -> Self {
        let name = unique(name);
        kafka.create_topic(&name, partitions);
        let producer = Producer::new(&kafka);
        let job = server.job(&name);
        Self {
            server,
            kafka,
            producer,
            name,
            partitions,
            job,
        }
    }

    /// A spec with the log sink and no periodic checkpoints within the time of a test.
    fn spec(&self, startup_mode: &Value) -> Value {
        spec(&self.name, startup_mode)
    }

    /// Makes the job and starts it; answers the report of the start.
    fn run(&self, startup_mode: &Value) -> Value {
        self.job.put_spec(&self.spec(startup_mode));
        self.job.start(&json!({}))
    }

    fn produce(&self, partition: i32, count: usize) {
        self.producer.produce(&self.name, partition, count);
    }

    /// Produces as many to each partition.
    fn produce_all(&self, count: usize) {
        for partition in 0..self.partitions {
            self.produce(partition, count);
        }
    }

    /// Ends of the logs.
    fn ends(&self) -> BTreeMap<i32, i64> {
        (0..self.partitions)
            .map(|partition| (partition, self.kafka.bounds(&self.name, partition).1))
            .collect()
    }

    fn group_offsets(&self) -> BTreeMap<i32, i64> {
        self.kafka
            .group_offsets(&self.name, &self.name, self.partitions)
    }

    /// Waits until exactly these offsets were delivered since the mark.
    fn await_exactly(&self, mark: usize, wanted: &[(i32, std::ops::Range<i64>)]) {
        let wanted = wanted
            .iter()
            .filter(|(_, range)| !range.is_empty())
            .map(|(partition, range)| (*partition, range.clone().collect()))
            .collect();
        self.server
            .log
            .await_exactly(mark, &self.name, &wanted, SOON);
    }

    /// Waits until the job's live positions are these.
    fn await_positions(&self, wanted: &[(i32, i64)]) {
        let wanted: BTreeMap<i32, Option<i64>> = wanted
            .iter()
            .map(|(partition, offset)| (*partition, Some(*offset)))
            .collect();
        eventually("the live positions", SOON, || {
            let view = self.job.offsets();
            let found = view.map(|row| row.position);
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{found:?}, wanted {wanted:?}"))
            }
        });
    }

    /// The newest completed checkpoint: number and offsets.
    fn checkpointed(&self) -> (i64, BTreeMap<i32, Option<i64>>) {
        self.job
            .latest_checkpoint(&self.name)
            .expect("a completed checkpoint")
    }
}

fn spec(topic: &str, startup_mode: &Value) -> Value {
    json!({
        "source": {"connection": "main", "topics": [topic]},
        "startup_mode": startup_mode,
        "checkpoint": {"interval": "1h"},
        "sink": {"type": "log"},
    })
}

/// A document with one member set.
fn with(mut document: Value, pointer: &str, value: Value) -> Value {
    let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
    let parent = document.pointer_mut(parent).expect("the parent is there");
    parent[member] = value;
    document
}

fn earliest() -> Value {
    json!({"mode": "earliest"})
}

/// The offsets of a checkpoint without those that are still open.
fn decided(offsets: &BTreeMap<i32, Option<i64>>) -> BTreeMap<i32, i64> {
    offsets
        .iter()
        .filter_map(|(partition, offset)| Some((*partition, (*offset)?)))
        .collect()
}

/// Fails if a number below zero or one of librdkafka's logical offsets stands anywhere in an answer.
fn assert_no_logical_offset(value: &Value) {
    match value {
        Value::Number(number) => {
            assert!(
                number.as_i64().is_none_or(|number| number >= 0),
                "{number} in an answer"
            );
        }
        Value::String(text) => {
            let logical = ["End", "Beginning", "Stored", "Invalid"];
            assert!(!logical.contains(&text.as_str()), "{text} in an answer");
        }
        Value::Array(items) => items.iter().for_each(assert_no_logical_offset),
        Value::Object(members) => members.values().for_each(assert_no_logical_offset),
        Value::Null | Value::Bool(_) => {}
    }
}
