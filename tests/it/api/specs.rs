//! The spec: created, replaced, patched, and refused with every fault.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::Scene;
use crate::support::{
    Database,
    client::block_on,
    unique,
    wait::{SOON, eventually},
};

#[test]
fn a_spec_is_created_once_and_replaced_by_generation() {
    let scene = Scene::new("api-spec");
    let client = &scene.client;
    let job = unique("api-spec");
    let spec = scene.spec();

    client.job("getSpec", &job).refused("job-not-found");
    let tried = client
        .job("putSpec", &job)
        .query("dry_run", "true")
        .json(&spec)
        .expect(200);
    assert_eq!(tried.body["dry_run"], true);
    client.job("getSpec", &job).refused("job-not-found");
    client
        .job("putSpec", &job)
        .header("if-match", "*")
        .json(&spec)
        .refused("stale-generation");

    let created = client
        .job("putSpec", &job)
        .header("if-none-match", "*")
        .json(&spec)
        .expect(201);
    assert_eq!(created.header("etag"), "\"1\"");
    assert_eq!(
        created.header("location"),
        format!("/api/v1/jobs/{job}/spec")
    );
    assert_eq!(created.body["spec"]["source"]["group_id"], job);
    client
        .job("putSpec", &job)
        .header("if-none-match", "*")
        .json(&spec)
        .refused("already-exists");

    let again = client.job("putSpec", &job).json(&spec).expect(200);
    assert_eq!(
        (&again.body["changed"], again.header("etag")),
        (&json!(false), "\"1\"")
    );

    let shown = client.job("getSpec", &job).expect(200);
    assert_eq!(shown.header("etag"), "\"1\"");
    client
        .job("getSpec", &job)
        .header("if-none-match", "\"1\"")
        .expect(304);
    // What is shown can be sent.
    let same = client.job("putSpec", &job).json(&shown.body).expect(200);
    assert_eq!(same.body["changed"], false);

    let mut other = spec.clone();
    other["parallelism"] = json!(2);
    client
        .job("putSpec", &job)
        .header("if-match", "\"7\"")
        .json(&other)
        .refused("stale-generation");
    client
        .job("putSpec", &job)
        .header("if-match", "1")
        .json(&other)
        .refused("invalid-request");
    let replaced = client
        .job("putSpec", &job)
        .header("if-match", "\"1\"")
        .json(&other)
        .expect(200);
    assert_eq!(
        (&replaced.body["changed"], replaced.header("etag")),
        (&json!(true), "\"2\"")
    );
}

#[test]
fn a_patch_changes_what_it_names() {
    let scene = Scene::new("api-patch");
    let client = &scene.client;
    let job = scene.create("api-patch");
    let patch = json!({"checkpoint": {"timeout": "180s"}, "labels": {"team": "red"}});
    let patched = client
        .job("patchSpec", &job)
        .raw("application/merge-patch+json", &patch.to_string())
        .expect(200);
    assert_eq!(patched.header("etag"), "\"2\"");
    let spec = client.job("getSpec", &job).expect(200).body;
    assert_eq!(spec["checkpoint"]["timeout"], "3m");
    assert_eq!(spec["checkpoint"]["interval"], "1h");

    // null goes back to the default.
    let reset = json!({"checkpoint": {"timeout": null}});
    client.job("patchSpec", &job).json(&reset).expect(200);
    let spec = client.job("getSpec", &job).expect(200).body;
    assert_eq!(spec["checkpoint"]["timeout"], "1m");

    // The one null that is a value of its own: no checkpoints.
    let off = json!({"checkpoint": {"interval": null}, "source": {"commit_to_group": "off"}});
    client.job("patchSpec", &job).json(&off).expect(200);
    let spec = client.job("getSpec", &job).expect(200).body;
    assert_eq!(spec["checkpoint"]["interval"], json!(null));

    let tried = client
        .job("patchSpec", &job)
        .query("dry_run", "true")
        .json(&json!({"parallelism": 3}))
        .expect(200);
    assert_eq!(tried.body["dry_run"], true);
    assert_eq!(
        client.job("getSpec", &job).expect(200).body["parallelism"],
        1
    );

    client
        .job("patchSpec", &job)
        .json(&json!({"sink": null}))
        .refused("invalid-spec");
    client
        .job("patchSpec", &job)
        .json(&json!({"checkpoint": {"timout": "3s"}}))
        .refused("unknown-member");
    client
        .job("patchSpec", &job)
        .header("if-match", "\"1\"")
        .json(&json!({"parallelism": 3}))
        .refused("stale-generation");
    client
        .job("patchSpec", &job)
        .raw("application/json-patch+json", "[]")
        .refused("unsupported-media-type");
    client
        .job("patchSpec", "nobody")
        .json(&json!({}))
        .refused("job-not-found");
}

#[test]
fn every_fault_of_a_spec_is_named_at_once() {
    let scene = Scene::new("api-faults");
    let client = &scene.client;
    let job = unique("api-faults");
    let faulty = json!({
        "source": {"connection": "main", "topics": [], "isolaton": "x", "properties": {"plugin.library.paths": "x"}},
        "parallelism": 0,
        "sink": {"type": "void"},
        "owner": "me",
    });
    let refused = client
        .job("putSpec", &job)
        .json(&faulty)
        .refused("invalid-spec");
    for pointer in [
        "/source/topics",
        "/source/isolaton",
        "/parallelism",
        "/startup_mode",
        "/sink/type",
        "/owner",
    ] {
        assert!(
            refused.pointers().contains(pointer),
            "{pointer}: {:#}",
            refused.body
        );
    }

    let with = |pointer: &str, value: serde_json::Value| {
        let mut spec = scene.spec();
        let (parent, member) = pointer.rsplit_once('/').expect("a pointer");
        spec.pointer_mut(parent).expect("a parent")[member] = value;
        client.job("putSpec", &job).json(&spec)
    };
    let misspelt = with("/parallelismm", json!(2)).refused("unknown-member");
    assert!(
        misspelt.body["errors"][0]["message"]
            .to_string()
            .contains("'parallelism'")
    );
    for member in ["/owner", "/epoch", "/generation", "/role"] {
        with(member, json!(1)).refused("unknown-member");
    }
    with("/source/connection", json!("elsewhere")).refused("invalid-spec");
    for property in [
        "plugin.library.paths",
        "bootstrap.servers",
        "Security.Protocol",
    ] {
        with("/source/properties", json!({property: "x"})).refused("invalid-spec");
    }
    let local = json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00"});
    with("/startup_mode", local).refused("timestamp-without-offset");

    client
        .job("putSpec", "Not-A-Name")
        .json(&scene.spec())
        .refused("invalid-spec");
    client.job("putSpec", &job).refused("invalid-json");
    client
        .job("putSpec", &job)
        .raw("application/json", "{\"source\": {},\n\"source\": {}}")
        .refused("invalid-json");
    client
        .job("putSpec", &job)
        .raw("text/plain", "{}")
        .refused("unsupported-media-type");
    client.job("getSpec", &job).refused("job-not-found");
}

#[test]
fn a_group_belongs_to_one_job() {
    let scene = Scene::new("api-group");
    let client = &scene.client;
    let first = scene.create("api-group");
    let mut spec = scene.spec();
    spec["source"]["group_id"] = json!(first);
    let second = unique("api-group");
    client
        .job("putSpec", &second)
        .json(&spec)
        .refused("group-id-taken");
    // Sharing is a matter of both.
    spec["source"]["allow_shared_group"] = json!(true);
    client
        .job("putSpec", &second)
        .json(&spec)
        .refused("group-id-taken");
    client.job("putSpec", &first).json(&spec).expect(200);
    client.job("putSpec", &second).json(&spec).expect(201);
}

#[test]
fn a_job_can_be_started_by_the_call_that_creates_it() {
    let scene = Scene::new("api-on-create");
    let client = &scene.client;
    let job = unique("api-on-create");
    let put = || {
        client
            .job("putSpec", &job)
            .query("start", "on-create")
            .json(&scene.spec())
    };
    let created = put().expect(201);
    let id = created.body["operation"]["id"]
        .as_str()
        .expect("an operation");
    assert_eq!(
        created.header("location"),
        format!("/api/v1/operations/{id}")
    );
    let done = client
        .call("getOperation", &[("operation", id)])
        .query("wait", "60s")
        .expect(200);
    assert_eq!(done.body["status"], "succeeded", "{:#}", done.body);
    scene.stop(&job);
    // A job that somebody stopped is not started by a machine that applies its spec again.
    let again = put().expect(200);
    assert!(again.body["operation"].is_null());
    assert_eq!(
        client.job("getJob", &job).expect(200).body["state"],
        "stopped"
    );
}

#[test]
fn a_sink_is_held_against_its_target() {
    let scene = Scene::new("api-sink");
    let client = &scene.client;
    let job = unique("api-sink");
    let target = block_on(Database::create());
    let mut spec = scene.spec();
    spec["sink"] = json!({
        "type": "postgres", "connection": "warehouse", "table": "public.orders", "mapping": {"mode": "raw"}
    });
    let put = |spec: &serde_json::Value, dry_run: &str| {
        client
            .job("putSpec", &job)
            .query("dry_run", dry_run)
            .json(spec)
    };

    let refused = put(&spec, "false").refused("invalid-spec");
    assert_eq!(refused.pointers(), ["/sink/connection"].into());

    // `gone` is known and does not answer: the spec may be right all the same.
    let config = format!(
        "{}\n[connections.warehouse]\ntype = \"postgres\"\nurl = \"{}\"\n[connections.gone]\ntype = \"postgres\"\nurl = \"postgres://u@127.0.0.1:1/x\"\n",
        scene.server.config(),
        target.url()
    );
    scene.server.write_config(&config);
    scene.server.hang_up();
    let mut elsewhere = spec.clone();
    elsewhere["sink"]["connection"] = json!("gone");
    for (dry_run, status) in [("true", 200), ("false", 201)] {
        eventually("the connection is known", SOON, || {
            let answer = put(&elsewhere, dry_run).send();
            if answer.status != status {
                return Err(answer.body.to_string());
            }
            let warning = &answer.body["warnings"][0];
            assert_eq!(warning["code"], "sink-unreachable", "{warning}");
            Ok(())
        });
    }

    // With the faults of everything else, before anything is stored.
    let mut faulty = spec.clone();
    faulty["parallelism"] = json!(0);
    let refused = put(&faulty, "true").refused("invalid-spec");
    assert_eq!(refused.pointers(), ["/parallelism", "/sink/table"].into());
    let refused = put(&spec, "false").refused("invalid-spec");
    let fault = &refused.body["errors"][0];
    let statement = fault["statement"].as_str().expect("a statement");
    let message = fault["message"].as_str().expect("text");
    assert!(!message.contains(statement), "{message}");
    block_on(async {
        let mut owner = PgConnection::connect(&target.url())
            .await
            .expect("a connection");
        let made = owner.execute(AssertSqlSafe(statement.to_owned())).await;
        made.expect("a table");
        owner.close().await.expect("an end");
    });
    let stored = put(&spec, "false").expect(200);
    assert_eq!(stored.body["warnings"], json!([]), "{:#}", stored.body);

    let patch = json!({"sink": {"mapping": {"columns": {"extra": "@offset"}}}});
    let refused = client
        .job("patchSpec", &job)
        .json(&patch)
        .refused("invalid-spec");
    assert_eq!(refused.pointers(), ["/sink/mapping/columns/extra"].into());
}
