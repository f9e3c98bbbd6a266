//! Deleting a job.

use serde_json::json;

use super::Scene;
use crate::support::wait::{SOON, eventually};

#[test]
fn a_job_is_deleted_when_it_is_at_rest_and_its_name_is_repeated() {
    let scene = Scene::new("api-delete");
    let client = &scene.client;
    let job = scene.run("api-delete");
    let delete = || client.job("deleteJob", &job);
    client
        .job("deleteJob", "nobody")
        .query("confirm", "nobody")
        .refused("job-not-found");
    for (confirm, code) in [("", "not-confirmed"), ("other", "not-confirmed")] {
        let refused = delete().query("confirm", confirm).refused(code);
        assert_eq!(refused.status, 422);
    }
    delete().refused("not-confirmed");
    delete()
        .query("dry-run", "true")
        .refused("unknown-parameter");
    delete().query("group", "maybe").refused("invalid-request");
    let running = delete().query("confirm", &job).refused("job-running");
    assert_eq!(running.status, 409);
    delete().query("dry_run", "true").refused("job-running");
    scene.stop(&job);

    let plan = delete().query("dry_run", "true").expect(200);
    assert_eq!(plan.body["purged"], false, "{:#}", plan.body);
    assert_eq!(plan.body["group"]["outcome"], "kept");
    assert!(
        plan.body["checkpoints"].as_i64() >= Some(2),
        "{:#}",
        plan.body
    );
    delete()
        .query("dry_run", "true")
        .query("confirm", "other")
        .refused("not-confirmed");
    client.job("getJob", &job).expect(200);
    let has_series = || {
        let text = client.page("/metrics").body;
        text.as_str()
            .expect("text")
            .contains(&format!("job=\"{job}\""))
    };
    assert!(has_series());

    let taken_on = delete()
        .query("confirm", &job)
        .header("handover-reason", "ticket 88")
        .expect(202);
    assert_eq!(taken_on.body["kind"], "delete");
    let id = taken_on.body["id"].as_str().expect("an id").to_owned();
    // The operation outlives the job.
    let done = client
        .call("getOperation", &[("operation", &id)])
        .query("wait", "60s")
        .expect(200);
    assert_eq!(done.body["status"], "succeeded", "{:#}", done.body);
    assert_eq!(done.body["reason"], "ticket 88");
    assert_eq!(done.body["result"]["group"]["outcome"], "kept");

    for gone in [
        "getJob",
        "getSpec",
        "inspectOffsets",
        "listCheckpoints",
        "startJob",
    ] {
        client.job(gone, &job).refused("job-not-found");
    }
    let repeated = delete().query("confirm", &job).refused("job-not-found");
    assert_eq!(repeated.status, 404);
    let listed = client.call("listJobs", &[]).expect(200);
    assert!(!listed.each("job").contains(&json!(job)));
    assert!(!has_series());
}

#[test]
fn a_job_of_the_same_name_is_another_job() {
    let scene = Scene::new("api-again");
    let client = &scene.client;
    let job = scene.run("api-again");
    let checkpoint = || {
        client
            .job("triggerCheckpoint", &job)
            .query("wait", "60s")
            .header("idempotency-key", "again")
            .expect(200)
    };
    let first = checkpoint();
    assert_eq!(checkpoint().header("idempotency-replayed"), "true");
    scene.stop(&job);
    client
        .job("setStartupMode", &job)
        .json(&json!({"mode": "latest", "apply": "next-start"}))
        .expect(200);
    client
        .job("deleteJob", &job)
        .query("confirm", &job)
        .query("wait", "60s")
        .query("purge", "true")
        .expect(200);

    client.job("putSpec", &job).json(&scene.spec()).expect(201);
    let view = client.job("getJob", &job).expect(200);
    assert_eq!(view.body["generation"], 1);
    assert!(view.body["pending_start"].is_null(), "{:#}", view.body);
    assert!(view.body["last_checkpoint"].is_null(), "{:#}", view.body);
    let checkpoints = client.job("listCheckpoints", &job).expect(200);
    assert_eq!(checkpoints.each("id"), Vec::<serde_json::Value>::new());
    let operations = client
        .call("listOperations", &[])
        .query("job", &job)
        .expect(200);
    assert_eq!(operations.each("id"), Vec::<serde_json::Value>::new());
    // It has a task of its own, and begins where its own startup mode says.
    let started = client
        .job("startJob", &job)
        .query("wait", "60s")
        .expect(200);
    assert_eq!(started.body["result"]["to_read"], 30, "{:#}", started.body);
    eventually("it reads", SOON, || {
        let view = client.job("inspectOffsets", &job).query("fresh", "true");
        match view.expect(200).body["totals"]["position_lag"].as_i64() {
            Some(0) => Ok(()),
            lag => Err(format!("{lag:?}")),
        }
    });
    let second = checkpoint();
    assert_eq!(second.header("idempotency-replayed"), "");
    assert_ne!(second.body["id"], first.body["id"]);
    scene.stop(&job);
}
