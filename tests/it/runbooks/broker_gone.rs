//! One of two brokers goes away and comes back.

use std::ops::Range;

use serde_json::json;

use super::Scene;
use crate::support::{
    kafka::PrivateKafka,
    server::{Output, TestServer},
    unique,
};

pub(super) fn run(file: &'static str) {
    let cluster = PrivateKafka::start(2);
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let scene = Scene::with(server, cluster.kafka.clone(), "broker-gone", 4);
    let leaders = cluster.kafka.leaders(&scene.name);
    assert!(leaders.values().any(|leader| *leader == 2), "{leaders:?}");
    let ranges = |of: &dyn Fn(i32) -> Range<i64>| -> Vec<(i32, Range<i64>)> {
        leaders
            .keys()
            .map(|partition| (*partition, of(*partition)))
            .collect()
    };
    for partition in leaders.keys() {
        scene.produce(*partition, 10);
    }
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &ranges(&|_| 0..10));
    let before = scene.job.view();
    // Waits all the time, for something that no broker brings.
    let mut other = scene.spec("earliest");
    other["source"] = json!({"connection": "main", "topic_pattern": "no-such-topic-.*"});
    let waits = scene.server.job(&unique("waits"));
    waits.put_spec(&other);
    waits.start(&json!({}));

    cluster.broker("stop-broker", 2);
    scene.await_view("the job waits", |view| {
        view["health"]["status"] == "waiting"
    });
    // The partitions of the other broker go on.
    for (partition, _) in leaders.iter().filter(|(_, leader)| **leader == 1) {
        scene.produce(*partition, 5);
    }
    let end = |partition: i32| if leaders[&partition] == 1 { 15 } else { 10 };
    scene.await_exactly(0, &ranges(&|partition| 0..end(partition)));
    let mut page = scene.page(file);
    page.run("Look");

    cluster.broker("start-broker", 2);
    for partition in leaders.keys() {
        scene.produce(*partition, 5);
    }
    page.run("Verify");
    page.end();
    assert_eq!(waits.view()["health"]["status"], "waiting");

    // The same run, nothing lost and nothing twice.
    scene.await_exactly(0, &ranges(&|partition| 0..end(partition) + 5));
    assert_eq!(scene.job.view()["owner"], before["owner"]);
}
