//! Reads a topic from its beginning to its end with nothing but the batch call: the ceiling that the engine is held against
//! (`scripts/bench`). Prints `records seconds`.
//!
//! usage: `bare_loop BOOTSTRAP TOPIC PARTITIONS`

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring program"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::config::ClientConfig;
use rdkafka_ext::{AssignedOffset, BatchConsumer, Run};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().unwrap();
    let (bootstrap, topic, partitions) =
        (argument(), argument(), argument().parse::<i32>().unwrap());
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "bare-loop")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("fetch.queue.backoff.ms", "1");
    let consumer = BatchConsumer::create(&config, Arc::new(|_| {})).unwrap();
    let began = Instant::now();
    let offsets: Vec<_> = (0..partitions)
        .map(|partition| AssignedOffset {
            topic: &topic,
            partition,
            next_offset: 0,
        })
        .collect();
    consumer.assign(&offsets).unwrap();
    let (mut records, mut ended, mut last) = (0, 0, 0);
    while ended < partitions {
        let batch = consumer.consume_batch(1_000, Duration::from_millis(100));
        for run in batch.runs() {
            match run {
                Run::Records(run) => {
                    for record in run.records() {
                        last = record.offset();
                        records += 1;
                    }
                }
                Run::EndOfPartition { .. } => ended += 1,
                Run::Error(_) => {}
            }
        }
    }
    std::hint::black_box(last);
    println!("{records} {:.3}", began.elapsed().as_secs_f64());
}
