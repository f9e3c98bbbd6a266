//! Retention removes what a job had not read.

use serde_json::json;

use super::Scene;
use crate::support::{
    kafka::Kafka,
    server::{Output, TestServer},
};

/// Of a job that was stopped.
pub(super) fn run(file: &'static str) {
    let scene = Scene::new("out-of-range", 2);
    scene.produce(0, 20);
    scene.produce(1, 20);
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &[(0, 0..20), (1, 0..20)]);
    scene.job.stop();
    scene.produce(0, 100);
    scene.produce(1, 10);
    scene.kafka.delete_records(&scene.name, 0, 70);
    // Who looks before the start is told.
    scene.job.offsets();
    scene.await_view("it is told ahead", |view| {
        let summary = view["summary"].as_str().unwrap_or_default();
        summary.ends_with("; the position of 1 partition is outside its log")
    });
    let refused = scene.job.refused("/start", &json!({}));
    assert_eq!(refused.code, "start-blocked", "{:#}", refused.body);

    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    page.end();

    // Exactly what was left, from exactly where the plan said; the other partition from its checkpoint.
    scene.await_exactly(mark, &[(0, 70..120), (1, 20..30)]);
    let landed = scene.job.checkpoints("?kind=start&offsets=true");
    assert_eq!(
        landed[0]["offsets"][&scene.name]["0"]["next_offset"], 70,
        "{landed:#?}"
    );
    assert_eq!(scene.checkpointed(), [(0, Some(120)), (1, Some(30))].into());
}

/// Of a job that runs, and is overtaken.
#[test]
fn the_same_lines_help_a_job_that_is_overtaken_in_its_run() {
    /// More than sink, engine and client hold together with the tuning below.
    const RECORDS: i64 = 12_000;
    const LEFT: i64 = 50;
    let kafka = Kafka::shared();
    let server = TestServer::start_on(&kafka, Output::Unread);
    let mut scene = Scene::with(server, kafka, "overtaken", 1);
    for _ in 0..RECORDS {
        scene.producer.send(&scene.name, 0, &[b'x'; 2048], None);
    }
    scene.producer.flush();
    let mut spec = scene.spec("earliest");
    spec["source"]["properties"] = json!({
        "queued.max.messages.kbytes": "1024",
        "fetch.max.bytes": "1048576",
        "max.partition.fetch.bytes": "65536",
    });
    scene.put_and_start(&spec);
    scene.await_view("it reads", |view| view["records"].as_i64() > Some(0));
    scene.kafka.delete_records(&scene.name, 0, RECORDS - LEFT);
    scene.server.follow_output();
    let view = scene.await_view("the partition is parked", |view| {
        view["parked"][0]["lost"]["offsets"].as_i64() > Some(0)
    });
    assert_eq!(view["parked"][0]["code"], "offset-out-of-range", "{view:#}");

    let mark = scene.server.log.mark();
    let mut page = scene.page("out-of-range.md").with_other_numbers();
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    page.end();
    scene.await_exactly(mark, &[(0, RECORDS - LEFT..RECORDS)]);
    assert_eq!(scene.checkpointed(), [(0, Some(RECORDS))].into());
}
