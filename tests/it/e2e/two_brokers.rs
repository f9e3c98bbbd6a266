//! Some partitions have no leader: the others run.

use serde_json::json;

use super::{earliest, spec};
use crate::support::{
    client::Job,
    kafka::PrivateKafka,
    producer::Producer,
    server::{Output, TestServer},
    unique,
    wait::{SOON, eventually},
};

const PARTITIONS: i32 = 4;

/// FLINK-34995: one partition without a leader held up the whole start. FLINK-6006 and FLINK-7195: partitions that were
/// not reported during a restore lost their state for ever.
#[test]
fn partitions_without_a_leader_wait_and_keep_their_state_while_the_others_run() {
    let cluster = PrivateKafka::start(2);
    let kafka = &cluster.kafka;
    let server = TestServer::start_on(kafka, Output::Followed);
    let (restored, fresh) = (unique("restored"), unique("fresh"));
    for topic in [&restored, &fresh] {
        kafka.create_topic(topic, PARTITIONS);
    }
    let producer = Producer::new(kafka);
    let on_broker = |topic: &str, broker: i32| -> Vec<i32> {
        let leaders = kafka.leaders(topic);
        let found: Vec<i32> = leaders
            .iter()
            .filter(|(_, leader)| **leader == broker)
            .map(|(partition, _)| *partition)
            .collect();
        assert!(
            !found.is_empty(),
            "broker {broker} leads nothing of {topic}: {leaders:?}"
        );
        found
    };
    let (live, dead) = (on_broker(&restored, 1), on_broker(&restored, 2));
    let (fresh_live, fresh_dead) = (on_broker(&fresh, 1), on_broker(&fresh, 2));
    let produce = |topic: &str, partitions: &[i32], count: usize| {
        for partition in partitions {
            producer.produce(topic, *partition, count);
        }
    };

    // One job has state of all partitions, the other one never ran.
    produce(&restored, &live, 10);
    produce(&restored, &dead, 10);
    produce(&fresh, &fresh_live, 10);
    produce(&fresh, &fresh_dead, 10);
    let old = server.job(&restored);
    old.put_spec(&spec(&restored, &earliest()));
    old.start(&json!({}));
    let all: Vec<i32> = (0..PARTITIONS).collect();
    let ranges = |partitions: &[i32], range: std::ops::Range<i64>| {
        partitions
            .iter()
            .map(|partition| (*partition, range.clone().collect::<Vec<i64>>()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    server
        .log
        .await_exactly(0, &restored, &ranges(&all, 0..10), SOON);
    old.stop();

    cluster.broker("stop-broker", 2);
    let mark = server.log.mark();
    produce(&restored, &live, 5);
    let new = server.job(&fresh);
    new.put_spec(&spec(&fresh, &earliest()));
    old.start(&json!({}));
    new.start(&json!({}));
    server
        .log
        .await_exactly(mark, &restored, &ranges(&live, 10..15), SOON);
    server
        .log
        .await_exactly(mark, &fresh, &ranges(&fresh_live, 0..10), SOON);

    assert_flagged(&old, &dead);
    assert_flagged(&new, &fresh_dead);
    // A checkpoint in this window keeps what it does not read.
    old.checkpoint();
    let (_, offsets) = old.latest_checkpoint(&restored).expect("a checkpoint");
    for partition in &all {
        let wanted = if dead.contains(partition) { 10 } else { 15 };
        assert_eq!(offsets.get(partition), Some(&Some(wanted)), "{offsets:?}");
    }

    cluster.broker("start-broker", 2);
    produce(&restored, &dead, 5);
    let mut wanted = ranges(&live, 10..15);
    wanted.extend(ranges(&dead, 10..15));
    server
        .log
        .await_exactly(mark, &restored, &wanted, std::time::Duration::from_secs(60));
    server.log.await_exactly(
        mark,
        &fresh,
        &ranges(&all, 0..10),
        std::time::Duration::from_secs(60),
    );
    for job in [&old, &new] {
        eventually("no flag is left", SOON, || {
            let view = job.offsets();
            let flagged = view
                .partitions
                .iter()
                .any(|row| row.flags.iter().any(|flag| flag == "no-leader"));
            let waiting = job.view()["health"]["status"] == "waiting";
            if flagged || waiting {
                Err(format!("{view:?} {:#}", job.view()))
            } else {
                Ok(())
            }
        });
    }
}

fn assert_flagged(job: &Job, dead: &[i32]) {
    eventually("partitions without a leader are named", SOON, || {
        let view = job.offsets();
        let flagged: Vec<i32> = view
            .partitions
            .iter()
            .filter(|row| row.flags.iter().any(|flag| flag == "no-leader"))
            .map(|row| row.partition)
            .collect();
        let job = job.view();
        let reasons = job["health"]["reasons"].to_string();
        let says = job["health"]["status"] == "waiting" && reasons.contains("no-leader");
        assert_eq!(job["state"], "running", "{job:#}");
        if flagged == dead && says {
            Ok(())
        } else {
            Err(format!("{flagged:?} of {dead:?}: {job:#}"))
        }
    });
}
