//! Restarts: a stop and a start as one operation, after which the job runs.

use serde_json::json;

use super::{Scene, earliest, with};
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

/// A restart to a place that there is not must not leave the job down.
#[test]
fn a_restart_that_is_refused_ends_with_the_job_running_where_it_was() {
    let scene = Scene::new("restart-refused", 1);
    scene.produce_all(5);
    scene.run(&earliest());
    scene.await_positions(&[(0, 5)]);
    let nowhere = json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 500}}});
    let refused = scene.job.refused("/restart", &nowhere);
    assert_eq!(refused.code, "start-blocked");
    assert_eq!(refused.body["operation"]["kind"], "restart");
    scene.server.await_state(&scene.job, "running");
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
