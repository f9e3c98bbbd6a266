//! Restarts: a stop and a start as one operation, after which the job runs.

use serde_json::{Value, json};

use super::{
    Scene, earliest,
    warehouse::{Lock, Warehouse},
    with,
};
use crate::support::{
    unique,
    wait::{SOON, eventually, now_ms},
};

#[test]
fn a_restart_goes_on_where_it_was_with_the_changes_that_waited_for_it() {
    let scene = Scene::new("restart", 2);
    scene.produce_all(10);
    scene.run(&earliest());
    scene.await_positions(&[(0, 10), (1, 10)]);
    let spec = with(scene.spec(&earliest()), "/parallelism", json!(2));
    scene.job.put_spec(&spec);
    let view = scene.job.view();
    assert_eq!(view["restart_required"], true, "{view:#}");
    let lines = view["next"].to_string();
    assert!(lines.contains("/restart?wait=90s"), "{lines}");

    let done = scene.job.operate("/restart", &json!({}));
    let (stop, start) = (&done["result"]["stop"], &done["result"]["start"]);
    assert_eq!(stop["will_replay"], 0, "{done:#}");
    assert_eq!(start["checkpoint"], stop["checkpoint"]["id"], "{done:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["desired_state"]),
        (&json!("running"), &json!("running"))
    );
    assert_eq!(view["restart_required"], false, "{view:#}");
    scene.produce_all(5);
    scene.await_exactly(0, &[(0, 0..15), (1, 0..15)]);

    // A stopped job is started by it.
    scene.job.stop();
    let done = scene.job.operate("/restart", &json!({}));
    assert!(done["result"]["stop"].is_null(), "{done:#}");
    assert_eq!(scene.job.state(), "running");
    let kinds: Vec<_> = scene.job.api.get("/api/v1/operations")["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|operation| operation["kind"].clone())
        .collect();
    assert_eq!(kinds, ["restart", "stop", "restart", "start"]);
}

#[test]
fn a_restart_moves_positions_as_a_start_does() {
    let scene = Scene::new("restart-from", 2);
    scene.produce_all(6);
    scene.run(&earliest());
    scene.await_positions(&[(0, 6), (1, 6)]);
    let between = chrono::DateTime::from_timestamp_millis(now_ms() + 1).expect("an instant");
    eventually("that instant has passed", SOON, || {
        if now_ms() > between.timestamp_millis() + 1 {
            Ok(())
        } else {
            Err("not yet")
        }
    });
    scene.produce_all(4);
    // Lines too: the sink writes them on a thread of its own, and the mark below is to stand behind them.
    scene.await_exactly(0, &[(0, 0..10), (1, 0..10)]);
    scene.await_positions(&[(0, 10), (1, 10)]);

    let mark = scene.server.log.mark();
    let body = json!({"from": "timestamp", "timestamp": between.to_rfc3339(), "stop": {"checkpoint": "required"}});
    let done = scene.job.operate("/restart", &body);
    assert_eq!(done["result"]["start"]["replayed"], 8, "{done:#}");
    scene.await_exactly(mark, &[(0, 6..10), (1, 6..10)]);
    scene.await_positions(&[(0, 10), (1, 10)]);

    // A start may not do that to a running job, and shows the line that may.
    let refused = scene.job.refused("/start", &json!({"from": "earliest"}));
    assert_eq!(refused.code, "job-running");
    let hint = refused.body["hint"].to_string();
    assert!(hint.contains("/restart?wait=90s"), "{hint}");
    // Nor may it swallow a decision, and a bare one has nothing to do.
    let decided = json!({"on_missing_group_offset": "latest"});
    let refused = scene.job.refused("/start", &decided);
    assert_eq!(refused.code, "job-running");
    let hint = refused.body["hint"].to_string();
    assert!(hint.contains("on_missing_group_offset"), "{hint}");
    assert_eq!(
        scene
            .job
            .operate("/start", &json!({"reason": "to be sure"}))["changed"],
        false
    );

    // A plan that was looked at; one that rests on a checkpoint would not outlive the stop.
    let plan = scene.job.plan_of(&json!({"from": "earliest"}));
    let mark = scene.server.log.mark();
    scene.job.operate("/restart", &json!({"plan": plan.plan}));
    scene.await_exactly(mark, &[(0, 0..10), (1, 0..10)]);
    let plan = scene.job.plan();
    let refused = scene.job.refused("/restart", &json!({"plan": plan.plan}));
    assert_eq!(refused.code, "plan-stale");
    assert_eq!(scene.job.state(), "running");
}

/// What a refused restart must not touch.
fn of_the_run(scene: &Scene) -> Value {
    let view = scene.job.view();
    let attempts = scene.job.api.get(&scene.job.at("/attempts"));
    let attempts = attempts["items"].as_array().map(Vec::len);
    json!([
        view["state"],
        view["desired_state"],
        view["owner"]["epoch"],
        view["running_generation"],
        view["pending_fields"],
        attempts,
    ])
}

/// A restart to a place that there is not leaves the run alone: nothing is stopped, and no change of the spec begins to count.
#[test]
fn a_restart_that_is_refused_leaves_the_run_alone() {
    let scene = Scene::new("restart-refused", 1);
    scene.produce_all(5);
    scene.run(&earliest());
    scene.await_positions(&[(0, 5)]);
    scene
        .job
        .put_spec(&with(scene.spec(&earliest()), "/parallelism", json!(2)));
    let before = of_the_run(&scene);
    assert_eq!(before[4], json!(["parallelism"]), "{before}");
    let nowhere = json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 500}}});
    for (body, code) in [
        (nowhere.clone(), "start-blocked"),
        (json!({"from": "shift", "by": 100}), "start-blocked"),
        // From the start's checkpoint it would be inside the log; from where the run stands it is not.
        (json!({"from": "shift", "by": 4}), "start-blocked"),
        (
            json!({"from": "checkpoint", "checkpoint": 99_999}),
            "checkpoint-not-found",
        ),
    ] {
        let refused = scene.job.refused("/restart", &body);
        assert_eq!(refused.code, code, "{:#}", refused.body);
        let detail = refused.body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains("nothing was stopped"), "{detail}");
        assert_eq!(of_the_run(&scene), before, "{body}");
    }
    scene.produce(0, 2);
    scene.await_exactly(0, &[(0, 0..7)]);

    // A topic that does not exist would stand against every start: nothing is stopped.
    let missing = json!([unique("missing")]);
    scene
        .job
        .put_spec(&with(scene.spec(&earliest()), "/source/topics", missing));
    let refused = scene.job.refused("/restart", &json!({}));
    assert_eq!(refused.code, "start-blocked");
    assert!(
        refused.body.to_string().contains("nothing was stopped"),
        "{:#}",
        refused.body
    );
    scene.produce(0, 1);
    scene.await_exactly(0, &[(0, 0..8)]);
    assert_eq!(scene.job.state(), "running");
    scene.job.put_spec(&scene.spec(&earliest()));

    // One that did not run is left as it was.
    scene.job.stop();
    let refused = scene.job.refused("/restart", &nowhere);
    assert_eq!(refused.code, "start-blocked");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["desired_state"]),
        (&json!("stopped"), &json!("stopped"))
    );
}

/// Without checkpoints a start would pass over everything unread: the refused restart must not be one.
#[test]
fn a_refused_restart_of_a_job_without_checkpoints_passes_over_nothing() {
    let scene = Scene::new("restart-refused-off", 1);
    let mut spec = scene.spec(&json!({"mode": "latest"}));
    spec["checkpoint"]["interval"] = Value::Null;
    spec["limits"] = json!({"records_per_s": 10});
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.produce(0, 60);
    let before = of_the_run(&scene);
    for body in [
        json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 999}}}),
        json!({"from": "shift", "by": 900_000}),
    ] {
        let refused = scene.job.refused("/restart", &body);
        assert_eq!(refused.code, "start-blocked", "{:#}", refused.body);
        assert_eq!(of_the_run(&scene), before, "{body}");
    }
    scene.job.api.patch(
        &scene.job.at("/spec"),
        &json!({"limits": {"records_per_s": null}}),
    );
    scene.await_exactly(0, &[(0, 0..60)]);
}

/// What changes between the decision and the stop is found out after it: the answer says that the job was stopped, and what
/// becomes of it.
#[test]
fn a_restart_refused_after_its_stop_says_what_became_of_the_job() {
    let warehouse = Warehouse::quiet("restart-late");
    let scene = &warehouse.scene;
    scene.produce_all(10);
    scene.await_positions(&[(0, 10), (1, 10)]);

    // While the stop waits for the table the log loses the place that was asked for.
    let refused_after_stop = |from: i64, gone: i64| {
        let lock = Lock::take(&warehouse, "orders");
        scene.produce_all(5);
        let offsets =
            json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": from, "1": from}}});
        let taken = scene.job.api.post(&scene.job.at("/restart"), &offsets);
        let id = taken["id"].as_str().expect("an operation").to_owned();
        scene.server.await_state(&scene.job, "stopping");
        scene.kafka.delete_records(&scene.name, 0, gone);
        lock.free();
        let done = scene
            .job
            .api
            .get(&format!("/api/v1/operations/{id}?wait=60s"));
        assert_eq!(done["error"]["code"], "start-blocked", "{done:#}");
        done["error"]["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let detail = refused_after_stop(3, 5);
    assert!(
        detail.contains("had been stopped by then: it is started again by itself, from checkpoint"),
        "{detail}"
    );
    scene.server.await_state(&scene.job, "running");
    scene.await_positions(&[(0, 15), (1, 15)]);

    // The spec that counts from then on has no checkpoints, and would begin at the end.
    let mut spec = scene.spec(&json!({"mode": "latest"}));
    spec["checkpoint"]["interval"] = Value::Null;
    scene.job.put_spec(&spec);
    let detail = refused_after_stop(6, 8);
    assert!(
        detail.contains("is not started again by itself"),
        "{detail}"
    );
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["desired_state"]),
        (&json!("failed"), &json!("running")),
        "{view:#}"
    );
    let said = view["failure"]["summary"].as_str().unwrap_or_default();
    assert!(said.contains("startup mode (latest)"), "{said}");
}
