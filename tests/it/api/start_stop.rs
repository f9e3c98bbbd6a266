//! Starting, stopping, and the plan of a start.

use serde_json::json;

use super::Scene;

#[test]
fn start_and_stop_are_levels() {
    let scene = Scene::new("api-start");
    let client = &scene.client;
    let job = scene.create("api-start");

    let plan = client.job("getStartPlan", &job).expect(200);
    assert_eq!(plan.body["totals"]["to_read"], 30, "{:#}", plan.body);

    let taken_on = client
        .job("startJob", &job)
        .header("handover-reason", "ticket 88")
        .expect(202);
    let id = taken_on.body["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        taken_on.header("location"),
        format!("/api/v1/operations/{id}")
    );
    assert_eq!(taken_on.body["requested_by"], "local");
    assert_eq!(taken_on.body["reason"], "ticket 88");
    assert_eq!(
        taken_on.body["request_id"],
        taken_on.header("handover-request-id")
    );
    let done = client
        .call("getOperation", &[("operation", &id)])
        .query("wait", "60s")
        .expect(200);
    assert_eq!(done.body["status"], "succeeded", "{:#}", done.body);
    assert_eq!(done.body["changed"], true);

    let again = client
        .job("startJob", &job)
        .header("prefer", "wait=30")
        .expect(200);
    assert_eq!(again.body["changed"], false);
    assert_eq!(again.header("preference-applied"), "wait=30");
    client
        .job("startJob", &job)
        .query("wait", "30s")
        .json(&json!({"from": "earliest"}))
        .refused("job-running");

    let stop = || client.job("stopJob", &job).query("wait", "60s");
    let stopped = stop()
        .json(&json!({"checkpoint": "required", "reason": "in the body"}))
        .header("handover-reason", "in the header")
        .expect(200);
    assert_eq!(stopped.body["changed"], true);
    assert_eq!(stopped.body["reason"], "in the body");
    assert_eq!(
        stopped.body["result"]["will_replay"], 0,
        "{:#}",
        stopped.body
    );
    let again = stop().expect(200);
    assert_eq!(again.body["changed"], false);
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );
}

#[test]
fn a_plan_is_used_as_it_was_or_not_at_all() {
    let scene = Scene::new("api-plan");
    let client = &scene.client;
    let job = scene.run("api-plan");
    scene.stop(&job);
    let dry_run = |body: serde_json::Value| {
        client
            .job("startJob", &job)
            .query("dry_run", "true")
            .json(&body)
    };
    let plan = dry_run(json!({"from": "earliest"})).expect(200);
    let id = plan.body["plan"].as_str().expect("a plan").to_owned();
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );

    // A member that is not sent is not meant: 'dry-run' is refused instead of starting the job.
    client
        .job("startJob", &job)
        .query("dry-run", "true")
        .refused("unknown-parameter");
    client
        .job("startJob", &job)
        .query("dry_run", "yes")
        .refused("invalid-request");
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );

    let started = client
        .job("startJob", &job)
        .query("wait", "60s")
        .json(&json!({"plan": id}))
        .expect(200);
    assert_eq!(
        started.body["result"]["replayed"],
        plan.body["totals"]["replayed"]
    );
    // A running job has nothing to start: what to do next is to stop it.
    let next = dry_run(json!({})).expect(200).body["next"][0]["curl"].clone();
    assert!(
        next.as_str().is_some_and(|curl| curl.contains("/stop?")),
        "{next}"
    );
    scene.stop(&job);
    // The start made a checkpoint, so the plan rests on something that is no longer so.
    let stale = client
        .job("startJob", &job)
        .query("wait", "60s")
        .json(&json!({"plan": id}))
        .refused("plan-stale");
    assert_eq!(stale.status, 409);
    client
        .job("startJob", &job)
        .query("wait", "60s")
        .json(&json!({"plan": "pl_00000000000000000000000000"}))
        .refused("plan-expired");
}

#[test]
fn what_a_caller_cannot_mean_is_refused() {
    let scene = Scene::new("api-refused");
    let client = &scene.client;
    let job = scene.create("api-refused");
    for wait in ["0s", "30", "121s", "for ever"] {
        client
            .job("startJob", &job)
            .query("wait", wait)
            .refused("invalid-wait");
    }
    client
        .job("startJob", &job)
        .json(&json!({"form": "earliest"}))
        .refused("unknown-member");
    client
        .job("startJob", &job)
        .json(&json!({"from": "timestamp", "timestamp": "2026-11-28T02:00:00"}))
        .refused("timestamp-without-offset");
    client
        .job("startJob", &job)
        .json(&json!({"from": "shift"}))
        .refused("invalid-request");
    client
        .job("stopJob", &job)
        .json(&json!({"checkpoint": "maybe"}))
        .refused("invalid-request");
    client
        .job("startJob", &job)
        .raw("application/x-www-form-urlencoded", "{}")
        .refused("unsupported-media-type");
    client
        .job("startJob", &job)
        .header("origin", "https://evil.example")
        .refused("origin-not-allowed");
    client
        .job("startJob", &job)
        .header("host", "evil.example")
        .refused("host-not-allowed");
    client.job("startJob", "nobody").refused("job-not-found");
    client.job("stopJob", "nobody").refused("job-not-found");
    client
        .job("getStartPlan", "nobody")
        .refused("job-not-found");
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );
    assert!(
        client
            .call("listOperations", &[])
            .expect(200)
            .each("id")
            .is_empty()
    );
}

#[test]
fn a_start_without_a_safe_position_says_what_there_is_to_choose() {
    let scene = Scene::new("api-blocked");
    let client = &scene.client;
    let job = scene.run("api-blocked");
    scene.stop(&job);
    // Back before the records that retention then takes away.
    client
        .job("setStartupMode", &job)
        .json(&json!({"mode": "specific-offsets", "offsets": {&scene.topic: {"0": 2, "1": 10, "2": 10}}, "apply": "next-start"}))
        .expect(200);
    scene.kafka.delete_records(&scene.topic, 0, 5);
    let blocked = client
        .job("startJob", &job)
        .query("wait", "60s")
        .refused("start-blocked");
    assert_eq!(blocked.status, 409);
    assert_eq!(blocked.body["operation"]["status"], "failed");
    let blockers = blocked.body["blockers"].as_array().expect("blockers");
    assert_eq!(blockers.len(), 1, "{:#}", blocked.body);
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );
    let started = client
        .job("startJob", &job)
        .query("wait", "60s")
        .json(&json!({"on_out_of_range": "earliest"}))
        .expect(200);
    assert_eq!(started.body["status"], "succeeded");
}

#[test]
fn a_restart_is_one_operation_that_a_second_one_joins() {
    let scene = Scene::new("api-restart");
    let client = &scene.client;
    let job = scene.run("api-restart");
    let body = json!({"from": "earliest", "stop": {"checkpoint": "required"}});
    let plan = client
        .job("restartJob", &job)
        .query("dry_run", "true")
        .json(&body)
        .expect(200);
    assert_eq!(plan.body["basis"], "one-shot", "{:#}", plan.body);
    let taken_on = client.job("restartJob", &job).json(&body).expect(202);
    assert_eq!(taken_on.body["kind"], "restart");
    let done = client
        .call(
            "getOperation",
            &[("operation", taken_on.body["id"].as_str().expect("an id"))],
        )
        .query("wait", "60s")
        .expect(200);
    assert_eq!(done.body["status"], "succeeded", "{:#}", done.body);
    assert_eq!(done.body["result"]["start"]["basis"], "one-shot");
    client
        .job("restartJob", &job)
        .json(&json!({"stop": {"timeout": "1h"}}))
        .refused("invalid-request");
    client
        .job("restartJob", &job)
        .json(&json!({"timeout": "1m"}))
        .refused("unknown-member");
    client.job("restartJob", "nobody").refused("job-not-found");
}

#[test]
fn only_a_record_that_a_job_failed_at_can_be_skipped() {
    let scene = Scene::new("api-skip");
    let client = &scene.client;
    let job = scene.create("api-skip");
    let record = json!({"topic": &scene.topic, "partition": 0, "offset": 0});
    for dry_run in ["true", "false"] {
        client
            .job("skipRecord", &job)
            .query("wait", "60s")
            .query("dry_run", dry_run)
            .json(&record)
            .refused("not-blocked-there");
    }
    client
        .job("skipRecord", &job)
        .query("wait", "60s")
        .json(&json!({"topic": "elsewhere", "partition": 0, "offset": 0}))
        .refused("unknown-partition");
    client
        .job("skipRecord", &job)
        .json(&json!({"topic": &scene.topic}))
        .refused("invalid-request");
    client
        .job("skipRecord", "nobody")
        .json(&record)
        .refused("job-not-found");
    let view = client.job("getJob", &job).expect(200);
    assert_eq!(view.body["state"], "stopped");
}
