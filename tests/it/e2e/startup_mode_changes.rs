//! Changing the startup mode while a checkpoint exists: never quietly ignored, and honoured exactly once.

use reqwest::Method;
use serde_json::json;

use super::{Scene, earliest};

/// A job with ten records read and a checkpoint, stopped.
fn read_to_the_end(name: &str) -> Scene {
    let scene = Scene::new(name, 1);
    scene.produce(0, 10);
    scene.run(&json!({"mode": "latest"}));
    scene.produce(0, 2);
    scene.await_exactly(0, &[(0, 10..12)]);
    scene.job.stop();
    scene
}

/// The field's most frequent surprise: with state the mode does not count, and nothing says so.
#[test]
fn a_changed_mode_without_an_intent_is_refused_and_changes_nothing() {
    let scene = read_to_the_end("mode-409");
    let path = scene.job.at("/startup-mode");
    let before = scene.job.api.get(&path);
    assert_eq!(
        (&before["effective"], &before["because"]),
        (&json!(false), &json!("checkpoint-exists"))
    );
    let problem = scene
        .job
        .api
        .refused(&Method::PUT, &path, Some(&earliest()));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "startup-mode-shadowed"),
        "{:#}",
        problem.body
    );
    let choices: Vec<&str> = problem.body["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .filter_map(|choice| choice["apply"].as_str())
        .collect();
    assert!(
        choices.contains(&"next-start") && choices.contains(&"if-no-state"),
        "{:#}",
        problem.body
    );
    // And the line that does it at once.
    let lines = problem.body["choices"].to_string();
    assert!(lines.contains("/restart?wait=90s"), "{lines}");
    assert_eq!(scene.job.api.get(&path), before);
    assert_eq!(scene.job.plan().starts(), [(0, 12)].into());
    // The same mode again is no change and no conflict: a re-apply stays quiet.
    let same = scene.job.api.put(&path, &json!({"mode": "latest"}));
    assert_eq!(same["changed"], false, "{same:#}");
}

/// `next-start` is cleared in the transaction that stores the start: a kill right after it must not replay again.
#[test]
fn a_one_shot_start_is_used_exactly_once_even_when_the_server_is_killed_right_after() {
    let mut scene = read_to_the_end("mode-once");
    let path = scene.job.at("/startup-mode");
    let answer = scene
        .job
        .api
        .put(&path, &json!({"mode": "earliest", "apply": "next-start"}));
    assert_eq!(
        (&answer["effective"], &answer["takes_effect"]),
        (&json!(true), &json!("next-start")),
        "{answer:#}"
    );
    let old = answer["will_set_aside_checkpoint"]
        .as_i64()
        .expect("the checkpoint");
    assert_eq!(scene.job.plan().starts(), [(0, 0)].into());

    let mark = scene.server.log.mark();
    let report = scene.job.start(&json!({}));
    assert_eq!(report["basis"], "one-shot", "{report:#}");
    scene.server.kill();
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.await_positions(&[(0, 12)]);
    assert!(scene.job.view()["pending_start"].is_null());
    // The resumed run went on from the start's own checkpoint: that is offset 0 once more, and never behind it later.
    scene.job.checkpoint();
    scene.job.stop();
    let delivered = scene.server.log.since(mark, &scene.name)[&0].len();
    assert!((12..=24).contains(&delivered), "{delivered} records of 12");

    let mark = scene.server.log.mark();
    assert_eq!(scene.job.plan().starts(), [(0, 12)].into());
    scene.job.start(&json!({}));
    scene.produce(0, 1);
    scene.await_exactly(mark, &[(0, 12..13)]);
    let view = scene
        .job
        .api
        .get(&scene.job.at(&format!("/checkpoints/{old}")));
    assert_eq!(view["superseded"], true, "{view:#}");
    scene.job.stop();

    // The way back.
    let back = scene
        .job
        .plan_of(&json!({"from": "checkpoint", "checkpoint": old}));
    assert_eq!(back.starts(), [(0, 12)].into());
}

/// A server that restarts by itself must not use up what an operator asked of his next start.
#[test]
fn a_restart_of_the_server_keeps_a_pending_one_shot_start() {
    let mut scene = Scene::new("mode-pending", 1);
    scene.produce(0, 10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10)]);
    let path = scene.job.at("/startup-mode");
    let answer = scene
        .job
        .api
        .put(&path, &json!({"mode": "earliest", "apply": "next-start"}));
    assert_eq!(answer["job_is_running"], true, "{answer:#}");
    scene.job.checkpoint();
    let mark = scene.server.log.mark();
    scene.server.kill();
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.produce(0, 1);
    scene.await_exactly(mark, &[(0, 10..11)]);
    assert_eq!(scene.job.view()["pending_start"]["from"], "earliest");
    scene.job.stop();
    // Another start than the one that was asked for uses it up, and the plan says so before.
    let plan = scene.job.plan_of(&json!({"from": "latest"}));
    assert!(
        plan.body["warnings"]
            .to_string()
            .contains("the start from earliest that was asked for ahead is used up"),
        "{:#}",
        plan.body
    );
    let mark = scene.server.log.mark();
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 0..11)]);
}

/// `if-no-state` stores the default and says that it does not count.
#[test]
fn a_mode_for_a_job_without_state_is_stored_and_said_not_to_count() {
    let scene = read_to_the_end("mode-stored");
    let path = scene.job.at("/startup-mode");
    let answer = scene
        .job
        .api
        .put(&path, &json!({"mode": "earliest", "apply": "if-no-state"}));
    assert_eq!(
        (&answer["effective"], &answer["because"]),
        (&json!(false), &json!("checkpoint-exists")),
        "{answer:#}"
    );
    let codes = |body: &serde_json::Value| {
        body["warnings"]
            .to_string()
            .contains("startup-mode-shadowed")
    };
    assert!(codes(&answer), "{answer:#}");
    assert!(codes(&scene.job.view()), "{:#}", scene.job.view());
    let plan = scene.job.plan();
    assert_eq!(plan.starts(), [(0, 12)].into());
    assert!(codes(&plan.body), "{:#}", plan.body);
    let mark = scene.server.log.mark();
    scene.job.start(&json!({}));
    scene.produce(0, 1);
    scene.await_exactly(mark, &[(0, 12..13)]);
}
