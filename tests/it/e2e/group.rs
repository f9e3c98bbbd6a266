//! Commits to the consumer group: after each checkpoint, the same number, and seen by an independent consumer.

use std::time::Duration;

use serde_json::json;

use super::{Scene, decided, earliest};
use crate::support::wait::{SOON, eventually};

/// Positions that have not moved are committed again each 30 s; the rest is for a machine under load.
const RECOMMITTED: Duration = Duration::from_secs(60);

fn commits(scene: &Scene, member: &str) -> u64 {
    let view = scene.job.view();
    view["group_commits"][member]
        .as_u64()
        .unwrap_or_else(|| panic!("{view:#}"))
}

/// fede1024/rust-rdkafka issue 856 and vectordotdev/vector issue 865: the answer to an asynchronous commit never came, and a
/// design with one commit in flight stopped committing. apache/beam issue 30539: an upgrade unhooked commits quietly.
#[test]
fn the_group_follows_each_of_twenty_checkpoints() {
    let scene = Scene::new("twenty", 2);
    scene.run(&earliest());
    let mut end = 0;
    for round in 0..20 {
        // Bursts and pauses.
        let burst = [1, 40, 3, 200, 1][round % 5];
        scene.produce_all(burst);
        end += i64::try_from(burst).expect("a small number");
        scene.await_positions(&[(0, end), (1, end)]);
        let report = scene.job.checkpoint();
        assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
        assert_eq!(
            scene.group_offsets(),
            [(0, end), (1, end)].into(),
            "round {round}"
        );
        let view = scene.job.offsets();
        for row in &view.partitions {
            assert_eq!(
                (row.checkpointed, row.group_committed),
                (Some(end), Some(end)),
                "{row:?}"
            );
            assert_eq!(row.divergence.cause, "none", "{row:?}");
            assert_eq!(
                row.divergence.group_checkpoint,
                report["id"].as_i64(),
                "{row:?}"
            );
        }
    }
    assert_eq!(
        (commits(&scene, "succeeded"), commits(&scene, "failed")),
        (20, 0)
    );
    assert_eq!(scene.job.view()["commit_mode"], "ON_CHECKPOINTS");
}

/// akka/alpakka-kafka issue 53: "last" was compared with "next", which made extra commits. Here each manual checkpoint
/// commits once, also without traffic, so that offsets of an idle topic do not expire.
#[test]
fn checkpoints_without_traffic_change_no_offset() {
    let scene = Scene::new("idle", 2);
    scene.produce(0, 4);
    scene.run(&earliest());
    scene.await_positions(&[(0, 4), (1, 0)]);
    scene.job.checkpoint();
    let (first, offsets) = scene.checkpointed();
    let (group, committed) = (scene.group_offsets(), commits(&scene, "succeeded"));
    assert_eq!(group, [(0, 4), (1, 0)].into());
    for _ in 0..5 {
        let report = scene.job.checkpoint();
        assert_eq!(
            (&report["status"], &report["group_commit"]["status"]),
            (&json!("completed"), &json!("ok")),
            "{report:#}"
        );
        assert_eq!(scene.checkpointed().1, offsets);
        assert_eq!(scene.group_offsets(), group);
    }
    assert!(scene.checkpointed().0 >= first);
    assert_eq!(commits(&scene, "succeeded"), committed + 5);
}

/// FLINK-20114: a checkpoint right after the start committed offsets that were not known yet, and a group without an offset
/// crashed.
#[test]
fn a_checkpoint_right_after_the_start_of_a_new_group_commits_what_it_holds() {
    let scene = Scene::new("at-once", 3);
    scene.produce(0, 10_000);
    scene.run(&earliest());
    let report = scene.job.checkpoint();
    assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
    let (id, offsets) = scene.checkpointed();
    assert_eq!(Some(id), report["id"].as_i64());
    assert_eq!(decided(&offsets), scene.group_offsets());
    assert_eq!(offsets.len(), 3);
    assert_eq!(commits(&scene, "failed"), 0);
    scene.await_exactly(0, &[(0, 0..10_000)]);
}

/// The group can be moved by anybody. That is seen in the next answer, called what it is, and followed by nobody.
#[test]
fn a_commit_by_somebody_else_is_shown_at_once() {
    let scene = Scene::new("external", 2);
    scene.produce_all(10);
    scene.run(&earliest());
    scene.await_positions(&[(0, 10), (1, 10)]);
    scene.job.checkpoint();
    scene
        .kafka
        .commit_as_another(&scene.name, &scene.name, &[(0, 3)]);

    let view = scene.job.offsets();
    let row = view.row(0);
    assert_eq!(
        (row.group_committed, row.checkpointed),
        (Some(3), Some(10)),
        "{row:?}"
    );
    assert_eq!(
        (
            row.divergence.cause.as_str(),
            row.divergence.group_behind_checkpoint
        ),
        ("external-commit", Some(7)),
        "{row:?}"
    );
    assert_eq!(row.lag.group, Some(7), "{row:?}");
    assert_eq!(row.divergence.group_checkpoint, None, "{row:?}");
    assert_eq!(view.row(1).divergence.cause, "none");
    let ours = view.row(1).divergence.group_note.clone().expect("our note");
    assert!(
        ours.starts_with("handover:") && ours.contains(&scene.name),
        "{ours}"
    );

    // Our next commit covers it, and the job read nothing twice.
    scene.produce(0, 1);
    scene.await_positions(&[(0, 11), (1, 10)]);
    scene.job.checkpoint();
    assert_eq!(scene.group_offsets(), [(0, 11), (1, 10)].into());
    scene.await_exactly(0, &[(0, 0..11), (1, 0..10)]);

    // Ahead of the checkpoint: flagged, and not followed by a start either.
    scene.job.stop();
    scene.produce(0, 5);
    scene
        .kafka
        .commit_as_another(&scene.name, &scene.name, &[(0, 16)]);
    let view = scene.job.offsets();
    assert_eq!(view.row(0).divergence.cause, "external-commit");
    assert_eq!(view.row(0).flags, ["group-ahead"]);
    assert_eq!(view.row(0).divergence.group_behind_checkpoint, Some(-5));
    assert_eq!(scene.job.plan().starts(), [(0, 11), (1, 10)].into());
}

/// apache/spark PR 17462 (SPARK-20050): a graceful stop dropped the last commit.
#[test]
fn the_group_offset_equals_the_checkpoint_after_a_stop() {
    let scene = Scene::new("stop-commit", 2);
    scene.run(&earliest());
    for _ in 0..5 {
        scene.produce_all(100);
        let report = scene.job.stop();
        let commit = &report["checkpoint"]["group_commit"];
        assert_eq!(commit["status"], "ok", "{report:#}");
        // At once, without waiting: the stop has awaited it.
        assert_eq!(scene.group_offsets(), decided(&scene.checkpointed().1));
        let view = scene.job.offsets();
        assert_eq!(
            view.totals["group_behind_checkpoint"], 0,
            "{:#}",
            view.totals
        );
        assert_eq!(
            view.sources["live"]["status"], "absent",
            "{:#}",
            view.sources
        );
        scene.job.start(&json!({}));
    }
    scene.await_exactly(0, &[(0, 0..500), (1, 0..500)]);
    // The view of a stopped job moves when producers write.
    scene.job.stop();
    scene.produce(1, 9);
    eventually("the lag of a stopped job", SOON, || {
        let view = scene.job.offsets();
        let lag = (
            view.row(1).lag.checkpoint,
            view.row(1).lag.group,
            view.row(1).lag.position,
        );
        if lag == (Some(9), Some(9), None) {
            Ok(())
        } else {
            Err(format!("{lag:?}"))
        }
    });
}

/// The job says when it does not commit, and does not.
#[test]
fn a_job_that_does_not_commit_says_so() {
    let scene = Scene::new("commit-off", 1);
    scene.produce(0, 3);
    let spec = super::with(
        scene.spec(&earliest()),
        "/source/commit_to_group",
        json!("off"),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 3)]);
    let report = scene.job.checkpoint();
    assert_eq!(report["group_commit"]["status"], "off", "{report:#}");
    assert_eq!(scene.group_offsets(), [].into());
    assert_eq!(scene.job.view()["commit_mode"], "DISABLED");
    assert_eq!(scene.job.offsets().row(0).divergence.cause, "commit-off");
}

/// Parsely/pykafka issue 504: the offsets of a group expired on topics at rest, because an assigned consumer's offsets are
/// kept only from its last commit on. Here they are committed again although nothing has moved.
#[test]
fn the_offsets_of_a_job_at_rest_are_committed_again() {
    let scene = Scene::new("at-rest", 1);
    scene.produce(0, 5);
    let mut spec = scene.spec(&earliest());
    spec["checkpoint"]["interval"] = json!("1s");
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    let committed = || {
        eventually("the group follows", RECOMMITTED, || {
            let found = scene.group_offsets();
            if found == [(0, 5)].into() {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        });
    };
    committed();
    let (checkpoint, _) = scene.checkpointed();
    scene.kafka.delete_group(&scene.name);
    committed();
    assert_eq!(
        scene.checkpointed().0,
        checkpoint,
        "nothing moved, so no row was written"
    );
}
