//! A job with one reader and a sink that takes nothing for a while.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Scene, page::Page};
use crate::support::{
    kafka::Kafka,
    server::{Output, TestServer},
    unique,
    wait::{SOON, eventually},
};

const PARTITIONS: i32 = 4;
/// More than the sink's lines and its pipe hold.
const EACH: i64 = 8_000;

pub(super) fn run(file: &'static str) {
    let kafka = Kafka::shared();
    let server = TestServer::start_on(&kafka, Output::Unread);
    let mut scene = Scene::with(server, kafka, "fell-behind", PARTITIONS);
    for partition in 0..PARTITIONS {
        scene.produce(partition, EACH.try_into().expect("a number of records"));
    }
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_view("every partition lags", |view| {
        view["records"].as_i64() > Some(0) && view["lag"]["position"].as_i64() > Some(0)
    });
    let mut page = scene.page(file);
    page.run("Look");

    scene.server.follow_output();
    page.run("Act");
    page.run("Verify");
    let ends = (0..PARTITIONS).map(|partition| (partition, EACH)).collect();
    let again = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    assert_eq!(again, 0, "the restart repeats nothing");
    // Which one reads which depends on the topic's name.
    let subtasks: BTreeSet<u32> = scene
        .job
        .offsets()
        .map(|row| row.subtask)
        .into_values()
        .collect();
    assert_eq!(subtasks, [0, 1, 2, 3].into());

    page.run("Go back");
    page.end();
    assert_eq!(scene.job.view()["running_generation"], 3);
    scene.job.stop();
    is_not_for_a_job_that_its_limits_hold(&scene, file);
}

/// Pasted as a whole the page changes nothing where more readers would not help.
fn is_not_for_a_job_that_its_limits_hold(scene: &Scene, file: &'static str) {
    let name = unique("limited");
    let job = scene.server.job(&name);
    let mut spec = scene.spec("earliest");
    spec["sink"] = json!({"type": "blackhole"});
    spec["limits"] = json!({"records_per_s": 1});
    job.put_spec(&spec);
    job.start(&json!({}));
    eventually("it is held back", SOON, || match job.view() {
        view if view["limits"]["throttled"] == true => Ok(()),
        view => Err(format!("{view:#}")),
    });
    let page = Page::open(file, &scene.server.base, &name);
    let mut page = page.with_other_numbers();
    page.run("Look");
    page.next_stops("MORE");
    page.next_stops("MORE");
    let view = job.view();
    assert_eq!(
        (&view["generation"], &view["state"]),
        (&json!(1), &json!("running")),
        "{view:#}"
    );
}
