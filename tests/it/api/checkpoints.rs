//! Checkpoints: triggered, repeated, listed.

use serde_json::json;

use super::Scene;

#[test]
fn a_checkpoint_is_taken_once_per_key() {
    let scene = Scene::new("api-checkpoint");
    let client = &scene.client;
    let job = scene.create("api-checkpoint");
    let trigger = || client.job("triggerCheckpoint", &job).query("wait", "60s");
    trigger().refused("job-not-running");
    client
        .job("startJob", &job)
        .query("wait", "60s")
        .expect(200);

    let first = trigger().header("idempotency-key", "inc4711-1").expect(200);
    assert_eq!(
        first.body["result"]["status"], "completed",
        "{:#}",
        first.body
    );
    assert_eq!(first.header("idempotency-replayed"), "");
    let replayed = trigger().header("idempotency-key", "inc4711-1").expect(200);
    assert_eq!(replayed.body["id"], first.body["id"]);
    assert_eq!(replayed.header("idempotency-replayed"), "true");
    trigger()
        .header("idempotency-key", "inc4711-1")
        .json(&json!({"timeout": "7s"}))
        .refused("idempotency-key-reused");
    for key in ["two words", "ключ"] {
        trigger()
            .header("idempotency-key", key)
            .refused("invalid-request");
    }
    let other = trigger().header("idempotency-key", "inc4711-2").expect(200);
    assert_ne!(other.body["id"], first.body["id"]);
    trigger()
        .json(&json!({"timout": "7s"}))
        .refused("unknown-member");
    client
        .job("triggerCheckpoint", "nobody")
        .refused("job-not-found");
}

#[test]
fn checkpoints_are_listed_and_shown() {
    let scene = Scene::new("api-history");
    let client = &scene.client;
    let job = scene.run("api-history");
    client
        .job("triggerCheckpoint", &job)
        .query("wait", "60s")
        .expect(200);
    scene.stop(&job);

    let list = || client.job("listCheckpoints", &job);
    let all = list().expect(200);
    assert_eq!(
        all.each("kind"),
        ["stop", "manual", "start"],
        "{:#}",
        all.body
    );
    assert!(all.body["items"][0].get("offsets").is_none());
    assert_eq!(
        list()
            .query("kind", "manual,start")
            .expect(200)
            .each("kind")
            .len(),
        2
    );
    assert_eq!(
        list()
            .query("status", "failed")
            .expect(200)
            .each("kind")
            .len(),
        0
    );
    list()
        .query("status", "complete")
        .refused("invalid-request");
    let page = list()
        .query("limit", "2")
        .query("offsets", "true")
        .expect(200);
    assert_eq!(
        page.body["items"][0]["offsets"][&scene.topic]["0"]["next_offset"],
        10
    );
    let rest = list()
        .query("limit", "2")
        .query("after", page.body["next"].as_str().expect("a cursor"))
        .expect(200);
    assert_eq!(rest.each("kind"), ["start"]);
    list().query("after", "x").refused("invalid-cursor");

    let show = |checkpoint: &str| {
        client.call(
            "getCheckpoint",
            &[("job", &job), ("checkpoint", checkpoint)],
        )
    };
    let latest = show("latest").expect(200);
    assert_eq!(latest.body["kind"], "stop");
    let id = latest.body["id"].to_string();
    assert_eq!(show(&id).expect(200).body, latest.body);
    for missing in ["999999", "0", "-1", "newest", "99999999999999999999"] {
        show(missing).refused("checkpoint-not-found");
    }
    client
        .job("listCheckpoints", "nobody")
        .refused("job-not-found");
    client
        .call("getCheckpoint", &[("job", "Nobody"), ("checkpoint", "1")])
        .refused("job-not-found");
}
