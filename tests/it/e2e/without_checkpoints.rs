//! Jobs whose checkpoints are off: no state, and a group that hears of what the sink has.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, earliest, with};
use crate::support::{
    client::Problem,
    kafka::Kafka,
    producer::{Load, Producer},
    server::{Output, TestServer},
    wait::{SOON, eventually},
};

/// Begins where the group stands, and at the earliest record where it does not; commits so often.
fn off(scene: &Scene, commit_interval: &str) -> Value {
    let spec = scene.spec(&json!({"mode": "group-offsets"}));
    let spec = with(spec, "/checkpoint/interval", Value::Null);
    let spec = with(spec, "/source/on_missing_group_offset", json!("earliest"));
    with(spec, "/source/commit_interval", json!(commit_interval))
}

fn await_group(scene: &Scene, wanted: &[(i32, i64)]) {
    let wanted: BTreeMap<i32, i64> = wanted.iter().copied().collect();
    eventually("the group follows", SOON, || match scene.group_offsets() {
        found if found == wanted => Ok(()),
        found => Err(format!("{found:?}, wanted {wanted:?}")),
    });
}

/// Stops the job, which need not take a checkpoint.
fn stop(scene: &Scene) -> Value {
    scene.job.stop_with(&json!({}))
}

fn codes(of: &Value) -> Vec<&str> {
    let items = of.as_array().into_iter().flatten();
    items.filter_map(|item| item["code"].as_str()).collect()
}

fn is_refused_for_that(problem: &Problem) {
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "checkpoints-off"),
        "{:#}",
        problem.body
    );
}

/// The series of a job, by the beginning of their names.
fn series(scene: &Scene, beginning: &str) -> usize {
    let page = scene.job.api.get("/metrics");
    let label = format!("job=\"{}\"", scene.name);
    let lines = page.as_str().expect("text").lines();
    lines
        .filter(|line| line.starts_with(beginning) && line.contains(&label))
        .count()
}

fn every_view_says_so(scene: &Scene) {
    let view = scene.job.view();
    assert_eq!(view["checkpointing"], "off", "{view:#}");
    assert_eq!(view["commit_mode"], "KAFKA_PERIODIC", "{view:#}");
    let why = view["commit_mode_because"].as_str().expect("a sentence");
    assert!(why.contains("every 200ms"), "{why}");
    let summary = view["summary"].as_str().expect("a sentence");
    assert!(
        summary.starts_with("running without checkpoints"),
        "{summary}"
    );
    assert_eq!(
        (&view["last_checkpoint"], &view["lag"]["checkpoint"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(view["lag"]["checkpoint_because"], "checkpoints-off");
    assert_eq!(codes(&view["warnings"]), ["checkpoints-off"], "{view:#}");
    assert_eq!(view["startup_mode"]["effective"], true);

    let offsets = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
    let source = &offsets["sources"]["checkpoint"];
    assert_eq!(
        source,
        &json!({"status": "absent", "because": "checkpoints-off"})
    );
    assert_eq!(offsets["totals"]["checkpoint_because"], "checkpoints-off");
    let row = &offsets["partitions"][0];
    for member in ["checkpointed", "position_id"] {
        assert_eq!(row[member], Value::Null, "{row:#}");
    }
    assert_eq!(row["lag"]["position"], 0, "{row:#}");
    let note = row["divergence"]["group_note"].as_str().expect("a note");
    assert!(note.ends_with(":periodic"), "{note}");

    let list = scene.job.api.get(&scene.job.at("/checkpoints"));
    assert_eq!(list["items"], json!([]));
    assert!(
        list["off"]
            .as_str()
            .is_some_and(|off| off.contains("group-offsets")),
        "{list:#}"
    );
    let latest = scene.job.at("/checkpoints/latest");
    let problem = scene.job.api.refused(&Method::GET, &latest, None);
    assert_eq!(problem.code, "checkpoint-not-found");

    for name in ["handover_last_checkpoint", "handover_checkpoint"] {
        assert_eq!(series(scene, name), 0, "{name}");
    }
    assert_eq!(series(scene, "handover_last_commit_timestamp_seconds"), 1);
    let rows: Vec<i64> = scene
        .server
        .database()
        .column("SELECT count(*) FROM checkpoints");
    assert_eq!(rows, [0]);

    let attempts = scene.job.api.get(&scene.job.at("/attempts"));
    let newest = &attempts["items"][0];
    assert_eq!(newest["checkpoint"], Value::Null, "{newest:#}");
    let said = newest["without_checkpoints"].as_str().expect("a sentence");
    assert!(said.contains("startup mode (group-offsets)"), "{said}");
}

#[test]
fn the_group_follows_and_a_killed_server_goes_on_from_it() {
    let mut scene = Scene::new("off-periodic", 1);
    scene.produce(0, 20);
    let applied = scene.job.put_spec(&off(&scene, "200ms"));
    assert_eq!(
        codes(&applied["warnings"]),
        ["checkpoints-off"],
        "{applied:#}"
    );
    assert_eq!(applied["spec"]["source"]["commit_to_group"], "periodic");
    let plan = scene.job.plan();
    assert_eq!(
        (plan.plan, plan.basis.as_str()),
        (None, "startup-mode"),
        "the plan is shown, not kept"
    );
    assert_eq!(codes(&plan.body["warnings"]), ["checkpoints-off"]);

    let report = scene.job.start(&json!({}));
    assert_eq!(report["bootstrap_checkpoint"], Value::Null, "{report:#}");
    assert_eq!(
        report["positions"],
        json!({&scene.name: {"0": 0}}),
        "{report:#}"
    );
    scene.await_exactly(0, &[(0, 0..20)]);
    await_group(&scene, &[(0, 20)]);
    every_view_says_so(&scene);

    is_refused_for_that(&scene.job.refused("/checkpoints", &json!({})));
    is_refused_for_that(
        &scene
            .job
            .refused("/stop", &json!({"checkpoint": "required"})),
    );
    let restart = json!({"from": "checkpoint"});
    is_refused_for_that(&scene.job.refused("/restart", &restart));

    let mark = scene.server.log.mark();
    scene.server.kill();
    scene.produce(0, 10);
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.await_exactly(mark, &[(0, 20..30)]);
    let attempts = scene.job.api.get(&scene.job.at("/attempts"));
    let newest = &attempts["items"][0];
    assert_eq!(newest["kind"], "recovery", "{newest:#}");
    assert_eq!(attempts["items"][1]["outcome"], "owner-lost");

    let report = stop(&scene);
    assert_eq!(report["checkpoint"], Value::Null, "{report:#}");
    assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
    assert_eq!(
        (&report["will_replay"], &report["resume_from"]),
        (
            &json!(0),
            &json!("startup mode group-offsets (checkpoints are off)")
        )
    );
    await_group(&scene, &[(0, 30)]);
    let view = scene.job.view();
    let summary = view["summary"].as_str().expect("a sentence");
    assert!(
        summary
            .contains("checkpoints are off, so a start begins by its startup mode (group-offsets)"),
        "{summary}"
    );
    is_refused_for_that(&scene.job.refused("/start", &json!({"from": "checkpoint"})));
}

/// What came after the mark lies at or above what was committed then.
fn begins_at_or_above(scene: &Scene, mark: usize, committed: &BTreeMap<i32, i64>) {
    for (partition, offsets) in scene.server.log.since(mark, &scene.name) {
        let least = committed.get(&partition).copied().unwrap_or_default();
        let first = offsets.iter().min().copied();
        assert!(
            first >= Some(least),
            "partition {partition} was committed at {least}, and read from {first:?}"
        );
    }
}

/// Three kills under load: every record comes, and what comes again lies at or above what was committed before the kill.
#[test]
fn kills_under_load_lose_nothing() {
    let mut scene = Scene::new("off-kills", 2);
    scene.job.put_spec(&off(&scene, "100ms"));
    let load = Load::start(&scene.kafka, &scene.name, 2, 400);
    scene.job.start(&json!({}));
    let mut group = BTreeMap::new();
    let (mut mark, mut uncommitted) = (0, 0);
    for kill in 0..3 {
        let before: i64 = group.values().sum();
        eventually("the group moves", SOON, || match scene.group_offsets() {
            found if found.values().sum::<i64>() > before + 50 => Ok(()),
            found => Err(format!("{found:?}")),
        });
        scene.server.kill();
        begins_at_or_above(&scene, mark, &group);
        mark = scene.server.log.mark();
        let delivered = scene.server.log.since(0, &scene.name);
        let found = scene.group_offsets();
        for (partition, offsets) in &delivered {
            let end = offsets.iter().max().map_or(0, |last| last + 1);
            uncommitted += end - found.get(partition).copied().unwrap_or_default();
        }
        for (partition, committed) in &found {
            let seen = delivered.get(partition).into_iter().flatten().max();
            // Never beyond what the sink has: the line of each record below it is there.
            assert!(
                seen.is_some_and(|seen| seen + 1 >= *committed),
                "kill {kill}: partition {partition} committed at {committed}, delivered up to {seen:?}"
            );
        }
        group = found;
        scene.server.boot();
        scene.server.await_state(&scene.job, "running");
    }
    let ends = load.end();
    let repeats = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    begins_at_or_above(&scene, mark, &group);
    // A kill repeats what came after the last commit before it, and nothing else.
    assert!(
        i64::try_from(repeats).unwrap() <= uncommitted,
        "{repeats} came again, {uncommitted} were not committed"
    );
    stop(&scene);
    assert_eq!(scene.group_offsets(), ends);
}

#[test]
fn nothing_is_committed_that_a_blocked_sink_does_not_have() {
    let server = TestServer::start_on(&Kafka::shared(), Output::Unread);
    let mut scene = Scene::with(server, Kafka::shared(), "off-blocked", 1);
    let spec = with(off(&scene, "100ms"), "/checkpoint/timeout", json!("500ms"));
    scene.job.put_spec(&spec);
    scene.produce(0, 20_000);
    scene.job.start(&json!({}));
    eventually("commits that are given up", SOON, || {
        let commits = &scene.job.view()["group_commits"];
        if commits["failed"].as_u64() >= Some(3) {
            Ok(())
        } else {
            Err(format!("{commits:#}"))
        }
    });
    let view = scene.job.view();
    let said = view["group_commits"]["last_error"].as_str().expect("why");
    assert!(said.contains("nothing was sent"), "{said}");
    assert!(
        codes(&view["warnings"]).contains(&"commits-failing"),
        "{view:#}"
    );
    let held = scene.group_offsets();
    let position = scene.job.offsets().row(0).position;
    assert!(
        held.get(&0).copied() < position,
        "{held:?} and {position:?}"
    );
    // Its output is read again, and shows what it had: at least everything below the group's offset.
    scene.server.follow_output();
    scene.await_exactly(0, &[(0, 0..20_000)]);
    await_group(&scene, &[(0, 20_000)]);
}

#[test]
fn with_commits_off_the_group_is_left_alone_and_each_start_reads_everything() {
    let scene = Scene::new("off-disabled", 1);
    scene.produce(0, 5);
    let spec = with(scene.spec(&earliest()), "/checkpoint/interval", Value::Null);
    scene
        .job
        .put_spec(&with(spec, "/source/commit_to_group", json!("off")));
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..5)]);
    let view = scene.job.view();
    assert_eq!(view["commit_mode"], "DISABLED", "{view:#}");
    let report = stop(&scene);
    assert_eq!(report["group_commit"]["status"], "off", "{report:#}");
    assert_eq!(report["will_replay"], Value::Null, "{report:#}");
    let mark = scene.server.log.mark();
    let plan = scene.job.plan();
    let said = plan.body["warnings"][0]["summary"]
        .as_str()
        .expect("a sentence");
    assert!(
        said.contains("everything that the logs hold is read again"),
        "{said}"
    );
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 0..5)]);
    assert_eq!(scene.group_offsets(), [].into());
}

/// What rests on checkpoints is refused with them off, all faults at once.
#[test]
fn an_exactly_once_sink_is_refused() {
    let scene = Scene::new("off-refused", 1);
    let spec = with(
        off(&scene, "1s"),
        "/sink",
        json!({
            "type": "postgres", "connection": "nowhere", "table": "public.orders",
            "mapping": {"mode": "raw", "columns": {"value": "@value"}},
        }),
    );
    let path = scene.job.at("/spec");
    let problem = scene.job.api.refused(&Method::PUT, &path, Some(&spec));
    let faults = problem.body["errors"].as_array().expect("faults");
    let fault = faults
        .iter()
        .find(|fault| fault["pointer"] == "/checkpoint/interval");
    let message = fault.and_then(|fault| fault["message"].as_str());
    assert!(
        message.is_some_and(|message| message.contains("exactly-once")),
        "{:#}",
        problem.body
    );
}

/// Off, and on again: the checkpoints are kept, are told of, and nothing goes on from one that is outdated. Nothing is passed
/// over unasked, and nothing comes twice where the group leads.
#[test]
fn checkpoints_off_and_on_again_jump_nowhere() {
    let scene = Scene::new("off-and-on", 1);
    scene.produce(0, 10);
    scene.run(&json!({"mode": "earliest"}));
    scene.await_exactly(0, &[(0, 0..10)]);
    stop(&scene);
    let (last, _) = scene.checkpointed();

    // Off and on again with no start between: what was stored counts, and nothing else is said.
    let path = scene.job.at("/spec");
    for (interval, said) in [(Value::Null, "checkpoints-off"), (json!("1h"), "")] {
        let switch = json!({
            "checkpoint": {"interval": interval},
            "source": {"commit_to_group": null, "commit_interval": null},
        });
        let applied = scene.job.api.patch(&path, &switch);
        let codes = codes(&applied["warnings"]);
        assert_eq!(codes.join(" "), said, "{applied:#}");
    }
    assert_eq!(scene.job.plan().basis, "checkpoint");

    // Off, with a mode that would pass over what is written meanwhile.
    scene.produce(0, 5);
    let turn_off = json!({
        "checkpoint": {"interval": null}, "startup_mode": {"mode": "latest"},
        "source": {"commit_to_group": "periodic", "commit_interval": "200ms"},
    });
    let applied = scene.job.api.patch(&path, &turn_off);
    assert_eq!(applied["spec"]["checkpoint"]["interval"], Value::Null);
    let said = applied["warnings"].to_string();
    assert!(said.contains(&format!("checkpoint {last} aside")), "{said}");
    let refused = scene.job.refused("/start", &json!({}));
    assert_eq!(refused.code, "start-blocked", "{:#}", refused.body);
    let blocker = &refused.body["blockers"][0];
    assert_eq!(blocker["code"], "state-not-used");
    assert!(
        blocker["summary"]
            .as_str()
            .is_some_and(|why| why.contains("5 unread offsets")),
        "{blocker:#}"
    );
    // Where the checkpoint stands, once.
    let mark = scene.server.log.mark();
    scene.job.start(&blocker["choices"][0]);
    scene.await_exactly(mark, &[(0, 10..15)]);
    await_group(&scene, &[(0, 15)]);
    stop(&scene);
    let kept = scene.job.checkpoints("");
    assert!(
        !kept.is_empty() && kept.iter().all(|one| one["superseded"] == true),
        "{kept:#?}"
    );

    // On again: by the startup mode, and the plan says why.
    scene.produce(0, 5);
    let turn_on = json!({
        "checkpoint": {"interval": "1h"}, "startup_mode": {"mode": "group-offsets"},
        "source": {"commit_to_group": "on-checkpoint", "commit_interval": null},
    });
    let applied = scene.job.api.patch(&path, &turn_on);
    assert!(
        codes(&applied["warnings"]).contains(&"state-not-used"),
        "{applied:#}"
    );
    let plan = scene.job.plan();
    assert_eq!(
        (plan.basis.as_str(), plan.starts()),
        ("startup-mode", [(0, 15)].into())
    );
    let said = plan.body["warnings"].to_string();
    assert!(
        said.contains(&format!("checkpoint {last} is from the time before")),
        "{said}"
    );
    let back = scene
        .job
        .plan_of(&json!({"from": "checkpoint", "checkpoint": last}));
    assert_eq!(back.starts(), [(0, 10)].into(), "the way back");
    let mark = scene.server.log.mark();
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 15..20)]);
    let report = stop(&scene);
    assert!(
        report["checkpoint"]["id"].as_i64() > Some(last),
        "{report:#}"
    );

    // Off once more: the group stands where the checkpoint does, so nothing stands against it.
    let turn_off = json!({
        "checkpoint": {"interval": null},
        "source": {"commit_to_group": "periodic", "commit_interval": "200ms"},
    });
    scene.job.api.patch(&path, &turn_off);
    scene.produce(0, 1);
    let mark = scene.server.log.mark();
    let report = scene.job.start(&json!({}));
    assert_eq!(
        (&report["replayed"], &report["skipped"]),
        (&json!(0), &json!(0)),
        "{report:#}"
    );
    scene.await_exactly(mark, &[(0, 20..21)]);
}

/// The switch needs a start: a run goes on as it began, and says what waits for the next one.
#[test]
fn a_run_keeps_to_what_it_began_with() {
    let scene = Scene::new("off-pending", 1);
    scene.produce(0, 3);
    scene.run(&earliest());
    scene.await_positions(&[(0, 3)]);
    let turn_off = json!({"checkpoint": {"interval": null}, "source": {"commit_to_group": "off"}});
    let applied = scene.job.api.patch(&scene.job.at("/spec"), &turn_off);
    let pending = json!(["source.commit_to_group", "checkpoint.interval"]);
    assert_eq!(applied["pending_fields"], pending, "{applied:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["checkpointing"], &view["commit_mode"]),
        (&json!("on"), &json!("ON_CHECKPOINTS"))
    );
    assert_eq!(scene.job.checkpoint()["status"], "completed");
}

/// What a start passes over is counted from where the run stood, and again from the group after the server was killed.
#[test]
fn a_start_at_the_end_says_what_it_passes_over() {
    let mut scene = Scene::new("off-latest", 1);
    let spec = with(
        off(&scene, "100ms"),
        "/startup_mode",
        json!({"mode": "latest"}),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.produce(0, 5);
    scene.await_exactly(0, &[(0, 0..5)]);
    await_group(&scene, &[(0, 5)]);
    stop(&scene);
    scene.produce(0, 7);
    let plan = scene.job.plan();
    assert_eq!(plan.body["totals"]["skipped"], 7, "{:#}", plan.body);
    scene.server.kill();
    scene.server.boot();
    let report = scene.job.start(&json!({}));
    assert_eq!(report["skipped"], 7, "{report:#}");
}

/// With commits off and no offset of the group the policy decides at each start, which says so and counts.
#[test]
fn a_missing_group_offset_says_what_it_passes_over() {
    let scene = Scene::new("off-missing", 1);
    let spec = with(
        scene.spec(&json!({"mode": "group-offsets"})),
        "/checkpoint/interval",
        Value::Null,
    );
    let spec = with(spec, "/source/on_missing_group_offset", json!("latest"));
    let applied = scene
        .job
        .put_spec(&with(spec, "/source/commit_to_group", json!("off")));
    let said = applied["warnings"].to_string();
    assert!(said.contains("on_missing_group_offset: latest"), "{said}");
    scene.job.start(&json!({}));
    scene.produce(0, 5);
    scene.await_exactly(0, &[(0, 0..5)]);
    stop(&scene);
    scene.produce(0, 7);
    let report = scene.job.start(&json!({}));
    assert_eq!(report["skipped"], 7, "{report:#}");
}

/// A partition that appears while the server is away is read from its first record, whatever is said of a missing offset.
#[test]
fn a_partition_that_appears_meanwhile_is_read_whole() {
    let mut scene = Scene::new("off-appears", 1);
    let spec = with(
        off(&scene, "100ms"),
        "/source/on_missing_group_offset",
        json!("latest"),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.produce(0, 5);
    scene.await_exactly(0, &[(0, 0..5)]);
    await_group(&scene, &[(0, 5)]);
    scene.server.kill();
    scene.kafka.add_partitions(&scene.name, 2);
    Producer::new(&scene.kafka).produce(&scene.name, 1, 7);
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.await_exactly(0, &[(0, 0..5), (1, 0..7)]);
}

/// Turned off while it runs, the mode counts at the next start, and nothing says otherwise.
#[test]
fn a_mode_that_counts_is_not_called_shadowed() {
    let scene = Scene::new("off-mode", 1);
    scene.run(&earliest());
    let turn_off = json!({
        "checkpoint": {"interval": null}, "startup_mode": {"mode": "latest"}, "source": {"commit_to_group": "off"},
    });
    scene.job.api.patch(&scene.job.at("/spec"), &turn_off);
    let view = scene.job.view();
    assert!(
        !codes(&view["warnings"]).contains(&"startup-mode-shadowed"),
        "{view:#}"
    );
    assert!(!view["next"].to_string().contains("next-start"), "{view:#}");
}
