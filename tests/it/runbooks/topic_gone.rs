//! Of two topics one is deleted, and one is deleted and made again.

use serde_json::{Value, json};

use super::Scene;
use crate::support::wait::SOON;

/// Both topics were read; then one has gone, and the other is another one.
fn gone_and_made_again(spec: impl FnOnce(&Scene, &str) -> Value) -> (Scene, String) {
    let scene = Scene::new("topic-gone", 1);
    let other = format!("{}-eu", scene.name);
    scene.kafka.create_topic(&other, 1);
    scene.produce(0, 20);
    scene.producer.produce(&other, 0, 7);
    scene.put_and_start(&spec(&scene, &other));
    scene.await_exactly(0, &[(0, 0..20)]);
    scene
        .server
        .log
        .await_exactly(0, &other, &[(0, (0..7).collect())].into(), SOON);
    scene.job.checkpoint();
    scene.kafka.delete_topic(&other);
    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 1);
    scene.produce(0, 3);
    scene.await_view("both are parked", |view| {
        let parked = view["parked"].as_array().expect("a list");
        let has = |code: &str| parked.iter().any(|parked| parked["code"] == code);
        has("partition-gone") && has("topic-recreated")
    });
    (scene, other)
}

fn read_as_the_page_says(scene: &Scene, file: &'static str) {
    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.run("Look");
    page.run_one("Act");
    scene.await_exactly(mark, &[(0, 0..3)]);
    // What does not exist is parked still, until somebody has said that it will not come back.
    let view = scene.await_view("one is parked", |view| {
        view["parked"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert_eq!(view["parked"][0]["code"], "partition-gone", "{view:#}");
    page.next_needs("NOT_COMING_BACK", "yes");
    page.run("Act");
    page.run("Verify");
    page.end();
    scene.await_exactly(mark, &[(0, 0..3)]);
    assert_ne!(scene.job.view()["health"]["status"], "blocked");
}

fn spec(scene: &Scene, source: &Value) -> Value {
    let mut spec = scene.spec("earliest");
    for (member, value) in source.as_object().expect("members") {
        spec["source"][member] = value.clone();
    }
    spec["source"]["partition_discovery"] = json!({"interval": "1s"});
    spec
}

/// Topics that are named.
pub(super) fn run(file: &'static str) {
    let (scene, other) =
        gone_and_made_again(|scene, other| spec(scene, &json!({"topics": [scene.name, other]})));
    read_as_the_page_says(&scene, file);
    // It is out of the spec, and its position is kept.
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    assert_eq!(spec["source"]["topics"], json!([scene.name]), "{spec:#}");
    let newest = scene.job.api.get(&scene.job.at("/checkpoints/latest"));
    assert_eq!(
        newest["offsets"][&other]["0"]["next_offset"], 7,
        "{newest:#}"
    );
}

/// Topics of a pattern, which goes on to match the name of what has gone.
#[test]
fn the_same_lines_help_a_job_of_a_pattern() {
    let (scene, other) = gone_and_made_again(|scene, _| {
        let mut spec = spec(
            scene,
            &json!({"topic_pattern": format!("{}.*", scene.name)}),
        );
        spec["source"]
            .as_object_mut()
            .expect("members")
            .remove("topics");
        spec
    });
    read_as_the_page_says(&scene, "topic-gone.md");
    let offsets = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
    assert_eq!(offsets["totals"]["partitions"], 1, "{offsets:#}");
    // A crash or a stop later it is not asked for again, and a new topic of that name is read from its first record.
    scene.job.stop();
    scene.job.start(&json!({}));
    let mark = scene.server.log.mark();
    scene.kafka.create_topic(&other, 1);
    scene.producer.produce(&other, 0, 2);
    scene
        .server
        .log
        .await_exactly(mark, &other, &[(0, (0..2).collect())].into(), SOON);
}

/// Of one of two topics nothing is left; the other was made again with one partition fewer, and is read.
#[test]
fn a_topic_made_again_with_fewer_partitions_stays_in_the_spec() {
    let scene = Scene::new("topic-fewer", 2);
    let other = format!("{}-eu", scene.name);
    scene.kafka.create_topic(&other, 1);
    scene.produce(0, 5);
    scene.produce(1, 5);
    let source = json!({"topics": [scene.name, other], "on_topic_recreated": "earliest"});
    scene.put_and_start(&spec(&scene, &source));
    scene.await_exactly(0, &[(0, 0..5), (1, 0..5)]);
    scene.producer.produce(&other, 0, 7);
    scene
        .server
        .log
        .await_exactly(0, &other, &[(0, (0..7).collect())].into(), SOON);
    scene.job.checkpoint();
    let mark = scene.server.log.mark();
    scene.kafka.delete_topic(&other);
    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 1);
    scene.produce(0, 3);
    scene.await_exactly(mark, &[(0, 0..3)]);
    let view = scene.await_view("what is gone is parked", |view| {
        let parked = view["parked"].as_array().expect("a list");
        parked.len() == 2
            && parked
                .iter()
                .all(|parked| parked["code"] == "partition-gone")
    });
    let next = view["next"].to_string();
    assert!(!next.contains("nothing is left to read"), "{next}");
    let kept = format!(r#"\"topics\":[\"{}\"]"#, scene.name);
    assert!(next.contains(&kept), "{next}");

    let mut page = scene.page("topic-gone.md").with_other_numbers();
    page.say("export NOT_COMING_BACK=yes");
    for section in ["Look", "Act", "Verify"] {
        page.run(section);
    }
    page.end();
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    assert_eq!(spec["source"]["topics"], json!([scene.name]), "{spec:#}");
    scene.produce(0, 2);
    scene.await_exactly(mark, &[(0, 0..5)]);
    let newest = scene.job.api.get(&scene.job.at("/checkpoints/latest"));
    let offsets = &newest["offsets"];
    assert_eq!(offsets[&scene.name]["1"], Value::Null, "dropped");
    assert_eq!(offsets[&other]["0"]["next_offset"], 7, "{newest:#}");
}
