//! Automatic restarts: a real panic in the engine, again and again, and what the job shows of it.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::{Scene, earliest, warehouse::Warehouse, with};
use crate::support::wait::{SOON, eventually, now_ms};

impl Scene {
    /// A job whose sink's records make its subtasks panic so many times: after the sink has a batch, before the job knows.
    pub(super) fn that_panics(name: &str, times: u32, restart: &Value) -> Self {
        let mut scene = Self::new(name, 1);
        scene.server.kill();
        scene
            .server
            .boot_to_panic(&format!("batch-written:{times}"));
        scene
            .job
            .put_spec(&with(scene.spec(&earliest()), "/restart", restart.clone()));
        scene.produce(0, 10);
        scene
    }

    fn attempts(&self) -> Vec<Value> {
        let page = self.job.api.get(&self.job.at("/attempts"));
        page["items"].as_array().expect("a list").clone()
    }
}

pub(super) fn fixed_delay(attempts: u32, delay: &str) -> Value {
    json!({"strategy": "fixed-delay", "attempts": attempts, "delay": delay})
}

fn outcomes(attempts: &[Value]) -> Vec<(String, String)> {
    let word = |value: &Value| value.as_str().unwrap_or("runs").to_owned();
    attempts
        .iter()
        .map(|attempt| (word(&attempt["kind"]), word(&attempt["outcome"])))
        .collect()
}

fn as_words(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(kind, outcome)| ((*kind).to_owned(), (*outcome).to_owned()))
        .collect()
}

#[test]
fn a_job_that_crashes_is_started_again_and_keeps_what_it_first_crashed_of() {
    let scene = Scene::that_panics("crashes", 3, &fixed_delay(5, "20ms"));
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"]),
        (&json!("running"), &Value::Null)
    );
    let crash_loop = &view["crash_loop"];
    assert_eq!(
        (&crash_loop["restart"], &crash_loop["of"]),
        (&json!(3), &json!(5)),
        "{view:#}"
    );
    assert_eq!(crash_loop["first_cause"]["code"], "panicked", "{view:#}");
    let words = "subtask 0 crashed: HANDOVER_PANIC_AT names batch-written";
    assert_eq!(crash_loop["first_cause"]["summary"], words);
    assert_eq!(crash_loop["next_attempt_at"], Value::Null);
    assert!(
        view["warnings"].to_string().contains("crash-loop"),
        "{view:#}"
    );

    let attempts = scene.attempts();
    let again = ("after-crash", "crashed");
    assert_eq!(
        outcomes(&attempts),
        as_words(&[("after-crash", "runs"), again, again, ("start", "crashed")])
    );
    let first = &attempts[3];
    assert_eq!(
        (&first["first_of_loop"], &first["attempt"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(first["cause"]["summary"], words, "{first:#}");
    assert_eq!(attempts[0]["records"], 10, "{attempts:#?}");
    let epochs: Vec<i64> = attempts
        .iter()
        .filter_map(|one| one["epoch"].as_i64())
        .collect();
    assert!(
        epochs.is_sorted_by(|newer, older| newer > older),
        "{epochs:?}"
    );
    // The sink is at-least-once: what it had before each crash came again, and nothing is missing.
    scene
        .server
        .log
        .await_complete(0, &scene.name, &[(0, 10)].into(), SOON);
    // The three starts of the server stand at the same position: one row for all of them.
    let starts = scene.job.checkpoints("?kind=start");
    assert_eq!(starts.len(), 2, "{starts:#?}");

    // Whoever stops and starts it has seen it.
    scene.job.stop();
    scene.job.start(&json!({}));
    assert_eq!(scene.job.view()["crash_loop"], Value::Null);
    assert_eq!(
        outcomes(&scene.attempts()[..2]),
        as_words(&[("start", "runs"), ("after-crash", "stopped")])
    );
}

#[test]
fn a_job_that_crashes_too_often_fails_with_its_first_cause() {
    let scene = Scene::that_panics("gives-up", 2, &fixed_delay(1, "1ms"));
    scene.job.start(&json!({}));
    scene.server.await_state(&scene.job, "failed");
    let view = scene.job.view();
    assert_eq!(view["failure"]["code"], "panicked");
    let summary = view["failure"]["summary"].to_string();
    assert!(summary.contains("; it was restarted once"), "{summary}");
    let crash_loop = &view["crash_loop"];
    assert_eq!(crash_loop["restart"], 1, "{view:#}");
    assert_ne!(
        crash_loop["first_cause"]["first_seen"], crash_loop["last_cause"]["first_seen"],
        "{view:#}"
    );
    // Everything that was to panic has: an operator's start is the way out.
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
    assert_eq!(scene.job.view()["crash_loop"], Value::Null);
}

/// The pause of a job is an hour: only what is asked for ends it.
#[test]
fn a_job_that_backs_off_says_when_and_why_and_obeys_at_once() {
    let scene = Scene::that_panics("backs-off", 3, &fixed_delay(9, "1h"));
    scene.job.start(&json!({}));
    scene.server.await_state(&scene.job, "backing-off");
    let view = scene.job.view();
    let next: DateTime<Utc> = view["crash_loop"]["next_attempt_at"]
        .as_str()
        .and_then(|at| at.parse().ok())
        .unwrap_or_else(|| panic!("no instant: {view:#}"));
    let left = TimeDelta::milliseconds(next.timestamp_millis() - now_ms());
    assert!(
        left > TimeDelta::minutes(55) && left <= TimeDelta::hours(1),
        "{left}"
    );
    let summary = view["summary"].as_str().expect("a summary");
    assert!(
        summary.starts_with("backing off: restart 1 begins at ")
            && summary.contains("after a crash: subtask 0 crashed"),
        "{summary}"
    );
    assert_eq!(view["health"]["status"], "waiting", "{view:#}");
    assert!(
        view["owner"]["epoch"].is_i64(),
        "the lease is kept: {view:#}"
    );
    let refused = scene.job.refused("/checkpoints", &json!({}));
    assert_eq!(refused.code, "job-not-running");

    // A start that there is no way to do leaves it backing off.
    let nowhere = json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 500}}});
    let refused = scene.job.refused("/start", &nowhere);
    assert_eq!(refused.code, "start-blocked");
    let again = scene.job.view();
    assert_eq!(again["state"], "backing-off", "{again:#}");
    assert_eq!(again["crash_loop"], view["crash_loop"]);

    // A stop is carried out at once.
    let begin = Instant::now();
    let report = scene.job.stop();
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(report["will_replay"], Value::Null, "{report:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["crash_loop"]),
        (&json!("stopped"), &Value::Null)
    );

    // A start means now. The second crash begins a loop of its own; the third comes at once by a start in the middle of it.
    scene.job.start(&json!({}));
    scene.server.await_state(&scene.job, "backing-off");
    scene.job.operate("/start", &json!({}));
    eventually("the third crash", SOON, || {
        let attempts = scene.attempts();
        match outcomes(&attempts).as_slice() {
            [(kind, outcome), _, _] if kind == "start" && outcome == "crashed" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    scene.server.await_state(&scene.job, "backing-off");
    assert_eq!(scene.job.view()["crash_loop"]["restart"], 1);
    // The strategy counts from the next crash on, and a restart is a start.
    scene.job.operate("/restart", &json!({}));
    scene.await_positions(&[(0, 10)]);
}

/// What an operator asked for ahead of time is for an operator's start.
#[test]
fn an_automatic_restart_keeps_a_start_that_was_asked_for_ahead() {
    let scene = Scene::that_panics("crash-pending", 1, &fixed_delay(3, "1ms"));
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
    scene.job.checkpoint();
    let ahead = json!({"mode": "earliest", "apply": "next-start"});
    scene.job.api.put(&scene.job.at("/startup-mode"), &ahead);
    // The panics of this process are used up: a new one has its own.
    let mut scene = scene;
    scene.server.kill();
    scene.server.boot_to_panic("batch-written:1");
    scene.server.await_state(&scene.job, "running");
    let mark = scene.server.log.mark();
    scene.produce(0, 3);
    scene.await_positions(&[(0, 13)]);
    let kinds = outcomes(&scene.attempts()[..3]);
    assert_eq!(
        kinds,
        as_words(&[
            ("after-crash", "runs"),
            ("recovery", "crashed"),
            ("after-crash", "owner-lost")
        ])
    );
    let view = scene.job.view();
    assert_eq!(view["pending_start"]["from"], "earliest", "{view:#}");
    let first = scene.server.log.first_since(mark, &scene.name);
    assert_eq!(first[&0], 10, "the checkpoint's position, not the earliest");
}

#[test]
fn a_strategy_of_none_fails_at_the_first_crash_and_changes_while_the_job_runs() {
    let scene = Scene::that_panics("crash-none", 1, &fixed_delay(3, "1ms"));
    let spec = scene.spec(&json!({"mode": "latest"}));
    scene
        .job
        .put_spec(&with(spec.clone(), "/restart", fixed_delay(3, "1ms")));
    scene.job.start(&json!({}));
    // There is nothing to read yet: the strategy is changed under the run.
    let none = json!({"strategy": "none"});
    let applied = scene.job.put_spec(&with(spec, "/restart", none));
    assert_eq!(
        (&applied["applies"], &applied["pending_fields"]),
        (&json!("now"), &json!([])),
        "{applied:#}"
    );
    scene.produce(0, 1);
    scene.server.await_state(&scene.job, "failed");
    let summary = scene.job.view()["failure"]["summary"].to_string();
    assert!(
        summary.contains("the restart strategy is none"),
        "{summary}"
    );
}

/// A writer that has crashed is no target that is away: nothing would ever come back.
#[test]
fn a_crash_in_the_sink_follows_the_restart_strategy_and_doubles_nothing() {
    let mut warehouse = Warehouse::start("sink-crash");
    warehouse.scene.server.kill();
    warehouse.scene.server.boot_to_panic("sink-committed:1");
    let scene = &warehouse.scene;
    scene.produce_all(20);
    eventually("the rows", SOON, || match warehouse.rows() {
        40 => Ok(()),
        rows => Err(format!("{rows}")),
    });
    // The rows are there before the crash is noticed.
    let crashed = eventually("the crash", SOON, || {
        let attempts = scene.attempts();
        let mut crashed = attempts.iter().filter(|one| one["outcome"] == "crashed");
        crashed
            .next()
            .cloned()
            .ok_or_else(|| format!("{attempts:#?}"))
    });
    assert_eq!(crashed["cause"]["code"], "panicked", "{crashed:#}");
    scene.await_positions(&[(0, 20), (1, 20)]);
    scene.produce_all(5);
    eventually("what is written after it", SOON, || {
        match warehouse.rows() {
            50 => Ok(()),
            rows => Err(format!("{rows}")),
        }
    });
    let different: Vec<i64> = warehouse
        .target
        .column("SELECT count(DISTINCT (part, pos)) FROM orders");
    assert_eq!(different, [50]);
}

/// The bug is in the job's own task, while an operator's start is worked out: counted, shown, and the start goes where it was
/// asked to go.
#[test]
fn a_start_that_crashes_is_tried_again_where_it_was_asked_to_go() {
    let mut scene = Scene::new("start-crash", 1);
    scene.produce(0, 10);
    scene.server.kill();
    scene.server.boot_to_panic("before-start-stored:4");
    let spec = scene.spec(&earliest());
    scene
        .job
        .put_spec(&with(spec, "/restart", fixed_delay(2, "100ms")));
    let asked = json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 4}}});
    // Two pauses, then the job fails, and the caller hears it.
    let refused = scene.job.refused("/start", &asked);
    let words = "the start crashed: HANDOVER_PANIC_AT names before-start-stored";
    assert_eq!(refused.code, "job-failed");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"]["code"]),
        (&json!("failed"), &json!("panicked")),
        "{view:#}"
    );
    let summary = view["failure"]["summary"].as_str().unwrap_or_default();
    assert!(
        summary.starts_with(words) && summary.contains("restarted 2 times"),
        "{summary}"
    );
    assert_eq!(view["crash_loop"]["first_cause"]["summary"], words);
    let attempts = scene.attempts();
    let crashed = ("start", "crashed");
    assert_eq!(outcomes(&attempts), as_words(&[crashed, crashed, crashed]));
    assert_eq!(
        (&attempts[2]["cause"]["summary"], &attempts[2]["checkpoint"]),
        (&json!(words), &Value::Null)
    );
    assert_eq!(attempts[2]["first_of_loop"], true);

    // One crash is left: the operation stays open over its pause, and begins where it says.
    scene.job.operate("/start", &asked);
    scene.await_positions(&[(0, 10)]);
    assert_eq!(
        outcomes(&scene.attempts()[..2]),
        as_words(&[("start", "runs"), ("start", "crashed")])
    );
    let first = scene.server.log.first_since(0, &scene.name);
    assert_eq!(first[&0], 4, "where the operator said");
    assert_eq!(scene.job.view()["crash_loop"]["restart"], 1);
}

/// The bug is met right behind the lease, when the former start's epoch counts no more: the last crash that the strategy bears
/// is stored like the others, and the job does not start by itself.
#[test]
fn a_start_that_crashes_behind_the_lease_fails_for_good() {
    let mut scene = Scene::new("lease-crash", 1);
    scene.produce(0, 10);
    scene.server.kill();
    scene.server.boot_to_panic("lease-taken:2");
    let spec = scene.spec(&earliest());
    scene
        .job
        .put_spec(&with(spec, "/restart", fixed_delay(1, "100ms")));
    let refused = scene.job.refused("/start", &json!({}));
    assert_eq!(refused.code, "job-failed");
    let crashed = ("start", "crashed");
    assert_eq!(
        outcomes(&scene.attempts()),
        as_words(&[crashed, crashed]),
        "both are listed"
    );
    let events = scene.job.api.get(&scene.job.at("/events"));
    let kinds = events["items"].as_array().expect("a list").iter();
    let failed = kinds.filter(|event| event["kind"] == "job-failed").count();
    assert_eq!(failed, 1, "{events:#}");

    // What the store has says the same to another process, and nothing is read until somebody starts the job.
    scene.server.kill();
    scene.server.boot();
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"]["code"]),
        (&json!("failed"), &json!("panicked")),
        "{view:#}"
    );
    assert_eq!(scene.attempts().len(), 2);
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
}

/// The bug is met while a stop is settled, after the run has ended.
#[test]
fn a_stop_that_crashes_backs_off_and_is_carried_to_its_end() {
    let scene = Scene::new("stop-crash", 1);
    let mut scene = scene;
    scene.server.kill();
    scene.server.boot_to_panic("before-stop-settled:2");
    let spec = scene.spec(&earliest());
    scene
        .job
        .put_spec(&with(spec, "/restart", fixed_delay(9, "1500ms")));
    scene.produce(0, 10);
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 10)]);
    let path = scene.job.at("/stop");
    let operation = scene.job.api.post(&path, &json!({}));
    scene.server.await_state(&scene.job, "backing-off");
    let summary = scene.job.view()["summary"].to_string();
    assert!(
        summary.contains("the stop crashed: HANDOVER_PANIC_AT names before-stop-settled"),
        "{summary}"
    );
    let id = operation["id"].as_str().expect("an id");
    let ended = scene
        .job
        .api
        .get(&format!("/api/v1/operations/{id}?wait=30s"));
    assert_eq!(ended["status"], "succeeded", "{ended:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["crash_loop"]),
        (&json!("stopped"), &Value::Null)
    );
    let attempts = scene.attempts();
    assert_eq!(outcomes(&attempts), as_words(&[("start", "crashed")]));
    let cause = attempts[0]["cause"]["summary"].to_string();
    assert!(cause.contains("the stop crashed"), "{cause}");
    // Its last checkpoint was stored before: nothing is read twice.
    let mark = scene.server.log.mark();
    scene.job.start(&json!({}));
    scene.produce(0, 1);
    scene.await_positions(&[(0, 11)]);
    assert_eq!(scene.server.log.first_since(mark, &scene.name)[&0], 10);
}
