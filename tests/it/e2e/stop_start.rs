//! Stopping, starting, restarting the server: nothing twice, nothing missing.

use serde_json::{Value, json};

use super::{Scene, decided, earliest, spec, with};
use crate::support::unique;

/// akka/akka-projection PR 383: a resume read the last processed record again.
#[test]
fn a_start_after_a_stop_reads_exactly_the_new_record() {
    let scene = Scene::new("resume", 1);
    scene.produce(0, 5);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5)]);
    let report = scene.job.stop();
    assert_eq!(report["checkpoint"]["status"], "completed", "{report:#}");
    assert_eq!(report["will_replay"], 0, "{report:#}");
    assert_eq!(scene.job.state(), "stopped");

    let mark = scene.server.log.mark();
    scene.produce(0, 1);
    let plan = scene.job.plan();
    assert_eq!(
        (plan.starts(), plan.reasons()),
        ([(0, 5)].into(), vec!["checkpoint"])
    );
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 5..6)]);
    scene.await_positions(&[(0, 6)]);
    assert_eq!(
        scene.server.log.since(mark, &scene.name),
        [(0, vec![5])].into()
    );
}

/// terascope/teraslice issue 602: a second start made a second consumer, or the job could not be started again.
#[test]
fn two_starts_at_once_make_one_consumer() {
    let scene = Scene::new("twice", 2);
    scene.produce_all(20);
    scene.job.put_spec(&scene.spec(&earliest()));
    let operations: Vec<Value> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    scene.job.api.try_send(
                        &reqwest::Method::POST,
                        &scene.job.at("/start?wait=60s"),
                        Some(&json!({})),
                    )
                })
            })
            .collect();
        starts
            .into_iter()
            .map(|start| start.join().expect("an end").expect("an answer"))
            .map(|answer| {
                // Either the same start, or none was needed; a conflict names the operation that is under way.
                assert!(
                    answer.status == 200
                        || (answer.status == 409 && answer.body["code"] == "operation-in-progress"),
                    "{}: {:#}",
                    answer.status,
                    answer.body
                );
                answer.body
            })
            .collect()
    });
    let changed = operations
        .iter()
        .filter(|operation| operation["changed"] == true)
        .count();
    assert!(changed >= 1, "{operations:#?}");
    scene.await_exactly(0, &[(0, 0..20), (1, 0..20)]);

    let again = scene.job.operate("/start", &json!({}));
    assert_eq!(again["changed"], false, "{again:#}");
    scene.produce_all(5);
    scene.await_exactly(0, &[(0, 0..25), (1, 0..25)]);
    assert_eq!(
        scene.job.checkpoints("?kind=start").len(),
        1,
        "one start, one bootstrap checkpoint"
    );
    let problem = scene.job.refused("/start", &json!({"from": "earliest"}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "job-running"),
        "{:#}",
        problem.body
    );
}

/// terascope/teraslice issue 602 and FLINK-28758: thirty stops with a poll in flight, each clean, each followed by a start.
#[test]
fn thirty_stops_and_starts_lose_and_repeat_nothing() {
    let scene = Scene::new("thirty", 3);
    scene.job.put_spec(&scene.spec(&earliest()));
    for _ in 0..30 {
        scene.produce_all(2);
        scene.job.start(&json!({}));
        let report = scene.job.stop();
        assert_eq!(report["checkpoint"]["status"], "completed", "{report:#}");
        let view = scene.job.view();
        assert_eq!(
            (&view["state"], &view["failure"]),
            (&json!("stopped"), &Value::Null),
            "{view:#}"
        );
        // What the stop answered is what every view says from then on.
        let (last, of_stop) = (&view["last_checkpoint"], &report["checkpoint"]);
        assert_eq!(
            (&last["id"], &last["group_commit"]),
            (&of_stop["id"], &of_stop["group_commit"]),
            "{view:#}"
        );
        assert_eq!(view["warnings"], json!([]), "{view:#}");
    }
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..60), (1, 0..60), (2, 0..60)]);
    let stopped = scene.job.operate("/stop", &json!({}));
    assert_eq!(stopped["changed"], true);
    let again = scene.job.operate("/stop", &json!({}));
    assert_eq!(again["changed"], false, "{again:#}");
}

/// A restart of the server is no restart of the job's reading: what should run runs on, what was stopped stays stopped.
#[test]
fn a_restart_of_the_server_resumes_what_should_run() {
    let mut scene = Scene::new("server-restart", 2);
    let other = unique("server-stopped");
    scene.kafka.create_topic(&other, 1);
    let stopped = scene.server.job(&other);
    stopped.put_spec(&spec(&other, &earliest()));
    stopped.start(&json!({}));
    stopped.stop();
    scene.produce_all(10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10), (1, 0..10)]);

    let (status, _) = scene.server.terminate();
    assert!(status.success(), "{status}");
    scene.produce_all(5);
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.await_exactly(0, &[(0, 0..15), (1, 0..15)]);
    assert_eq!(stopped.state(), "stopped");

    // The last checkpoint of an orderly end covered everything; a kill repeats at most what came since.
    scene.job.checkpoint();
    let (before, offsets) = scene.checkpointed();
    scene.server.kill();
    scene.produce_all(5);
    scene.server.boot();
    scene.await_exactly(0, &[(0, 0..20), (1, 0..20)]);
    let (after, _) = scene.checkpointed();
    assert!(after > before, "checkpoint ids grow: {before}, {after}");
    assert_eq!(decided(&offsets), [(0, 15), (1, 15)].into());
}

/// Numbers of checkpoints and leases grow over every kind of end.
#[test]
fn epochs_and_checkpoint_numbers_only_grow() {
    let mut scene = Scene::new("epochs", 1);
    scene.produce(0, 1);
    scene.run(&earliest());
    let owner = |scene: &Scene| {
        scene.job.view()["owner"]["epoch"]
            .as_i64()
            .expect("an epoch")
    };
    let mut epoch = owner(&scene);
    let mut id = scene.checkpointed().0;
    for round in 0..3 {
        if round % 2 == 0 {
            scene.server.kill();
            scene.server.boot();
            scene.server.await_state(&scene.job, "running");
        } else {
            scene.job.stop();
            scene.job.start(&json!({}));
        }
        let now = (owner(&scene), scene.checkpointed().0);
        assert!(
            now.0 > epoch && now.1 > id,
            "({epoch}, {id}) became {now:?}"
        );
        (epoch, id) = now;
    }
}

/// Flink's retention on cancel: a stop leaves nothing to resume from, and the answer says so. What still needs a checkpoint has
/// it: a restart, and a server that comes back.
#[test]
fn a_stop_deletes_checkpoints_where_the_spec_says_so_and_a_restart_does_not() {
    let mut scene = Scene::new("on-cancel", 1);
    scene.produce(0, 5);
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/on_cancel",
        json!("delete"),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..5)]);
    scene.job.operate("/restart", &json!({}));
    scene.server.terminate();
    scene.server.boot();
    scene.server.await_state(&scene.job, "running");
    scene.produce(0, 1);
    scene.await_exactly(0, &[(0, 0..6)]);

    let report = scene.job.stop();
    assert_eq!(report["checkpoint"]["status"], "completed", "{report:#}");
    assert_eq!(report["resume_from"], "startup mode earliest", "{report:#}");
    assert_eq!(report["will_replay"], Value::Null, "{report:#}");
    let newest = scene.job.view()["last_checkpoint"].clone();
    assert_eq!(newest, Value::Null);
    let plan = scene.job.plan();
    assert_eq!(
        (plan.basis.as_str(), plan.starts()),
        ("startup-mode", [(0, 0)].into())
    );
    let mark = scene.server.log.mark();
    scene.job.start(&json!({}));
    scene.await_exactly(mark, &[(0, 0..6)]);
}
