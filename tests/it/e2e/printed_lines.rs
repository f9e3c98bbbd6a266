//! Lines that the server prints are run as they are printed, by a shell, and do what they say.

use std::process::Command;

use serde_json::{Value, json};

use super::{Scene, earliest, with};
use crate::support::{
    Database,
    client::block_on,
    kafka::Kafka,
    server::{Output, TestServer},
    unique,
    wait::{SOON, eventually},
};

/// Runs a line and answers what it printed.
fn shell(line: &str) -> String {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", line])
        .env("no_proxy", "*")
        .output()
        .expect("bash runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{line}\n{out}\n{err}");
    out.into_owned()
}

fn run(line: &Value) -> Value {
    let line = line.as_str().expect("a line");
    let printed = shell(line);
    // The prompt comes on a line of its own.
    assert!(printed.ends_with("}\n"), "{line}: {printed}");
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

fn line_with<'a>(lines: &'a Value, part: &str) -> &'a Value {
    let lines = lines.as_array().expect("lines");
    let found = lines
        .iter()
        .map(|step| &step["curl"])
        .find(|line| line.as_str().is_some_and(|line| line.contains(part)));
    found.unwrap_or_else(|| panic!("no line with {part}: {lines:#?}"))
}

/// A refused start prints each way out as a whole line, with what was asked for; so does the operation that it leaves.
#[test]
fn a_refused_start_prints_its_ways_out() {
    let scene = Scene::new("ways-out", 2);
    scene.produce_all(20);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..20), (1, 0..20)]);
    scene.job.stop();
    scene.produce(0, 60);
    scene.kafka.delete_records(&scene.name, 0, 70);
    let refused = scene.job.refused("/start", &json!({}));
    assert_eq!(refused.code, "start-blocked", "{:#}", refused.body);
    assert_eq!(
        refused.body["operation"]["error"]["next"], refused.body["next"],
        "{:#}",
        refused.body
    );
    // Measured now: the refusal and the sentence do not contradict.
    let view = scene.job.view();
    let summary = view["summary"].as_str().expect("a sentence");
    assert!(summary.contains("; 60 offsets are unread"), "{summary}");
    // A plan that is refused says so first.
    let plan = scene.job.plan().body;
    let told = plan["summary"].as_str().expect("a sentence");
    assert!(told.starts_with("a start is refused: "), "{told}");

    let mark = scene.server.log.mark();
    let started = run(line_with(
        &refused.body["next"],
        r#""on_out_of_range":"earliest""#,
    ));
    assert_eq!(started["status"], "succeeded", "{started:#}");
    let told = started["result"]["summary"].as_str().expect("a sentence");
    assert!(
        told.contains("/0 does not resume: its log begins behind the position"),
        "{told}"
    );
    scene.await_exactly(mark, &[(0, 70..80)]);
}

/// "nothing is unread" of a job that rests is never from before the records that somebody has just written.
#[test]
fn a_job_that_rests_is_measured_before_it_says_what_is_unread() {
    let scene = Scene::new("rests", 1);
    scene.produce(0, 5);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5)]);
    scene.job.stop();
    eventually("it is measured", SOON, || {
        let summary = scene.job.view()["summary"].to_string();
        if summary.contains("nothing is unread") {
            Ok(())
        } else {
            Err(summary)
        }
    });
    scene.produce(0, 7);
    // What was measured a second ago may be used again, and says so from three seconds on.
    eventually(
        "it says what is there",
        std::time::Duration::from_secs(3),
        || {
            let summary = scene.job.view()["summary"].to_string();
            if summary.contains("; 7 offsets are unread\"") {
                Ok(())
            } else {
                Err(summary)
            }
        },
    );
}

/// A start of a running job by a plan prints a restart that works: a plan that rests on a checkpoint would always be stale.
#[test]
fn a_start_of_a_running_job_prints_a_restart_that_works() {
    let scene = Scene::new("run-already", 1);
    scene.produce(0, 5);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5)]);
    scene.job.stop();
    for (body, mark_at) in [
        (json!({}), None),
        (json!({"from": "shift", "by": -2}), Some(2)),
    ] {
        let plan = scene.job.plan_of(&body).body;
        scene.job.start(&json!({}));
        let mark = scene.server.log.mark();
        let refused = scene.job.refused("/start", &json!({"plan": plan["plan"]}));
        assert_eq!(refused.code, "job-running", "{:#}", refused.body);
        let hint = refused.body["hint"].as_str().expect("a hint");
        let line = &hint[hint.find("curl ").expect("a line")..];
        let restarted = run(&json!(line));
        assert_eq!(restarted["status"], "succeeded", "{hint}: {restarted:#}");
        if let Some(back) = mark_at {
            scene.await_exactly(mark, &[(0, 5 - back..5)]);
        }
        scene.job.stop();
    }
}

/// What the mode was set to for the next start is what GET shows, as the answer of PUT did.
#[test]
fn a_mode_that_was_set_for_the_next_start_is_shown_as_it_was_set() {
    let scene = Scene::new("mode-shown", 1);
    scene.produce(0, 5);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5)]);
    scene.job.checkpoint();
    let path = scene.job.at("/startup-mode");
    let set = scene
        .job
        .api
        .put(&path, &json!({"mode": "latest", "apply": "next-start"}));
    let shown = scene.job.api.get(&path);
    for member in [
        "mode",
        "spec_mode",
        "apply",
        "effective",
        "because",
        "takes_effect",
        "pending_start",
        "will_set_aside_checkpoint",
        "generation",
    ] {
        assert_eq!(set[member], shown[member], "{member}: {set:#} {shown:#}");
    }
    assert_eq!(
        (&shown["mode"], &shown["effective"]),
        (&json!("latest"), &json!(true))
    );
    assert_eq!(shown["spec_mode"]["mode"], "earliest", "{shown:#}");
    // The job reads on while it is counted.
    assert_eq!(
        set["estimated_from"], set["will_set_aside_checkpoint"],
        "{set:#}"
    );
    let plan = scene.job.plan().body;
    let told = plan["summary"].as_str().expect("a sentence");
    assert!(
        told.contains("; counted from checkpoint ") && told.ends_with("the job reads on"),
        "{told}"
    );
    scene.job.stop();
    let plan = scene.job.plan().body;
    assert!(
        !plan["summary"].to_string().contains("counted from"),
        "{plan:#}"
    );
}

/// A patch that names another kind of a member replaces it; nobody has written the defaults of the old kind.
#[test]
fn a_patch_to_another_kind_takes_no_default_of_the_old_one_along() {
    let scene = Scene::new("kinds", 1);
    scene.job.put_spec(&scene.spec(&earliest()));
    let patched =
        |patch: Value| scene.job.api.patch(&scene.job.at("/spec"), &patch)["spec"].clone();
    let spec = patched(json!({"restart": {"strategy": "none"}}));
    assert_eq!(spec["restart"], json!({"strategy": "none"}), "{spec:#}");
    let spec = patched(json!({"restart": {"strategy": "fixed-delay", "attempts": 3}}));
    assert_eq!(spec["restart"]["attempts"], 3, "{spec:#}");
    let spec = patched(json!({"restart": {"attempts": 5}}));
    assert_eq!(spec["restart"]["strategy"], "fixed-delay", "{spec:#}");
    let spec = patched(
        json!({"startup_mode": {"mode": "timestamp", "timestamp": "2026-01-01T00:00:00Z"}}),
    );
    assert_eq!(spec["startup_mode"]["mode"], "timestamp", "{spec:#}");
    let spec = patched(json!({"startup_mode": {"mode": "latest"}}));
    assert_eq!(spec["startup_mode"], json!({"mode": "latest"}), "{spec:#}");
}

/// A run with an end goes on to it when the spec no longer has one, and is shown.
#[test]
fn a_bounded_run_is_shown_until_it_ends() {
    let scene = Scene::new("bounded-shown", 1);
    scene.produce(0, 5);
    let ends = json!({"mode": "specific-offsets", "offsets": {&scene.name: {"0": 12}}});
    scene.job.put_spec(&with(
        scene.spec(&earliest()),
        "/source/stop_at",
        ends.clone(),
    ));
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..5)]);
    let shown = || {
        let view = scene.job.view();
        let run = &view["bounded"];
        if (&run["stop_at"], &run["remaining"], &run["partitions"]) == (&ends, &json!(7), &json!(1))
        {
            return Ok(());
        }
        Err(format!("{view:#}"))
    };
    eventually("the run is shown", SOON, shown);
    let patched = scene.job.api.patch(
        &scene.job.at("/spec"),
        &json!({"source": {"stop_at": null}}),
    );
    assert_eq!(
        patched["pending_fields"],
        json!(["source.stop_at"]),
        "{patched:#}"
    );
    eventually("the run is shown still", SOON, shown);
    // Also after the server has measured and read everything anew.
    scene.job.offsets();
    scene.job.checkpoint();
    scene.job.offsets();
    assert_eq!(shown(), Ok(()));
}

/// The statements of a spec's faults are cut out of the answer by jq, and psql runs them, as docs/sinks/postgres.md says.
#[test]
fn a_table_is_made_by_what_the_answer_says() {
    let target = block_on(Database::create());
    let store = block_on(Database::create());
    let role = unique("sink").replace('-', "_");
    target.run(&format!("CREATE ROLE {role} LOGIN"));
    let (url, owner) = (target.url(), target.url());
    let (_, rest) = url.split_once('@').expect("a user");
    let config = format!(
        "[connections.warehouse]\ntype = \"postgres\"\nurl = \"postgres://{role}@{rest}\"\n"
    );
    // Where the sink keeps its progress is the owner's to make, too.
    target.run(&format!("CREATE SCHEMA handover_sink AUTHORIZATION {role}"));
    let kafka = Kafka::shared();
    let server = TestServer::start_configured(&kafka, &store.url(), Output::Followed, &config);
    let scene = Scene::with(server, kafka, "made-by-hand", 1);
    let sink = json!({
        "type": "postgres", "connection": "warehouse", "table": "public.orders", "mapping": {"mode": "raw"},
    });
    let spec = with(scene.spec(&earliest()), "/sink", sink).to_string();
    let put = format!(
        "curl -sS -X PUT '{}{}?dry_run=true' -H 'Content-Type: application/json' -d '{spec}'",
        scene.server.base,
        scene.job.at("/spec")
    );
    let mend = format!(
        "{put} | jq -r '.errors[]?.statement // empty' | psql -q -v ON_ERROR_STOP=1 '{owner}'"
    );
    // There is no table; then there is one, and nothing may be written to it.
    for _ in 0..2 {
        let faults = shell(&format!("{put} | jq -r '.errors | length'"));
        assert_ne!(faults.trim(), "0", "{}", shell(&put));
        shell(&mend);
    }
    assert_eq!(
        shell(&format!("{put} | jq -c .errors")).trim(),
        "null",
        "{}",
        shell(&put)
    );
    scene
        .job
        .put_spec(&serde_json::from_str(&spec).expect("JSON"));
    scene.job.start(&json!({}));
    scene.produce(0, 3);
    eventually("rows arrive", SOON, || {
        match target.column::<i64>("SELECT count(*) FROM orders")[..] {
            [3] => Ok(()),
            ref other => Err(format!("{other:?}")),
        }
    });
    scene.job.stop();
    drop(scene);
    drop(target);
    store.run(&format!("DROP ROLE {role}"));
}
