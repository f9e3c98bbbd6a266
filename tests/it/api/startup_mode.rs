//! The startup mode, and the intent that must be stated once there is a checkpoint.

use serde_json::json;

use super::Scene;

#[test]
fn a_changed_mode_is_never_silently_ignored() {
    let scene = Scene::new("api-mode");
    let client = &scene.client;
    let job = scene.create("api-mode");
    let shown = client.job("getStartupMode", &job).expect(200);
    assert_eq!(shown.body["mode"], "earliest");
    assert_eq!(shown.body["effective"], true);
    assert_eq!(shown.header("etag"), "\"1\"");

    // Without state there is nothing to misunderstand.
    let latest = json!({"mode": "latest"});
    let set = client.job("setStartupMode", &job).json(&latest).expect(200);
    assert_eq!(
        (&set.body["changed"], &set.body["effective"]),
        (&json!(true), &json!(true))
    );
    client
        .job("startJob", &job)
        .query("wait", "60s")
        .expect(200);
    scene.stop(&job);

    let shadowed = client.job("getStartupMode", &job).expect(200);
    assert_eq!(shadowed.body["effective"], false);
    assert_eq!(shadowed.body["because"], "checkpoint-exists");
    // The same mode again is no change: a machine that applies it again stays quiet.
    let same = client.job("setStartupMode", &job).json(&latest).expect(200);
    assert_eq!(same.body["changed"], false);

    let refused = client
        .job("setStartupMode", &job)
        .json(&json!({"mode": "earliest"}))
        .refused("startup-mode-shadowed");
    let choices: Vec<_> = refused.body["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|choice| choice["apply"].clone())
        .collect();
    assert!(choices.contains(&json!("next-start")), "{choices:?}");
    assert!(choices.contains(&json!("if-no-state")), "{choices:?}");

    let next = json!({"mode": "earliest", "apply": "next-start"});
    let tried = client
        .job("setStartupMode", &job)
        .query("dry_run", "true")
        .json(&next)
        .expect(200);
    assert_eq!(tried.body["dry_run"], true);
    let unchanged = client.job("getStartupMode", &job).expect(200);
    assert!(unchanged.body["pending_start"].is_null());

    let set = client.job("setStartupMode", &job).json(&next).expect(200);
    assert_eq!(set.body["effective"], true);
    assert_eq!(set.body["takes_effect"], "next-start");
    let plan = client.job("getStartPlan", &job).expect(200);
    assert_eq!(
        plan.body["totals"]["replayed"], 30,
        "{:#}",
        plan.body["totals"]
    );

    // Called off: only the one that is meant, once, and then the checkpoint counts again.
    let pending = &set.body["pending_start"];
    let call_off = |id: &str| {
        let call = client.job("cancelNextStart", &job).query("id", id);
        call.expect(200).body
    };
    let another = call_off("another");
    assert_eq!(
        (&another["changed"], &another["pending_start"]),
        (&json!(false), pending)
    );
    let cancelled = call_off(pending["id"].as_str().expect("an id"));
    assert_eq!(
        (&cancelled["changed"], &cancelled["discarded"]),
        (&json!(true), pending)
    );
    assert_eq!(cancelled["because"], "checkpoint-exists", "{cancelled:#}");
    assert!(cancelled["pending_start"].is_null(), "{cancelled:#}");
    let again = client.job("cancelNextStart", &job).expect(200).body;
    assert_eq!(
        (&again["changed"], &again["discarded"]),
        (&json!(false), &json!(null))
    );
    let plan = client.job("getStartPlan", &job).expect(200);
    assert_eq!(plan.body["totals"]["replayed"], 0, "{:#}", plan.body);
}

#[test]
fn a_mode_that_cannot_be_read_is_refused() {
    let scene = Scene::new("api-mode-faults");
    let client = &scene.client;
    let job = scene.create("api-mode-faults");
    let set = |body: serde_json::Value| client.job("setStartupMode", &job).json(&body);
    set(json!({"mode": "oldest"})).refused("invalid-spec");
    set(json!({"mode": "latest", "aply": "next-start"})).refused("unknown-member");
    set(json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00"}))
        .refused("timestamp-without-offset");
    set(json!({"mode": "timestamp", "timestamp": "2126-11-28T02:00:00Z"}))
        .refused("timestamp-in-future");
    client
        .job("setStartupMode", &job)
        .header("if-match", "\"9\"")
        .json(&json!({"mode": "latest"}))
        .refused("stale-generation");
    client
        .job("setStartupMode", "nobody")
        .json(&json!({"mode": "latest"}))
        .refused("job-not-found");
    assert_eq!(
        client.job("getStartupMode", &job).expect(200).body["mode"],
        "earliest"
    );
}
