//! The store restarts and dies under load.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use reqwest::Method;
use serde_json::json;

use super::{Scene, earliest, with};
use crate::support::{
    Cluster,
    kafka::Kafka,
    producer::Load,
    server::{Output, TestServer},
    wait::{SOON, breathe, eventually},
};

/// Checkpoints go on after each restart, no offset of checkpoint or group goes back, `uncertain` settles, and a caller
/// meanwhile gets a problem document that says to come again.
#[test]
fn a_database_restarted_and_killed_under_load_costs_no_record_and_no_offset() {
    let database = Cluster::create();
    let kafka = Kafka::shared();
    let server = TestServer::start_with(&kafka, database.url(), Output::Followed);
    let scene = Scene::with(server, kafka, "database-restart", 2);
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("200ms"),
    );
    scene.job.put_spec(&spec);
    let load = Load::start(&scene.kafka, &scene.name, 2, 400);
    scene.job.start(&json!({}));

    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch_offsets(&scene, &done));
        let mut last = await_newer_checkpoint(&scene, 0);
        for _ in 0..3 {
            database.control(&["restart"]);
            last = await_newer_checkpoint(&scene, last + 2);
        }

        database.control(&["kill"]);
        eventually("the API says that the store is away", SOON, || {
            let answer = scene
                .job
                .api
                .try_send(&Method::GET, &scene.job.at("/checkpoints"), None);
            match answer {
                Ok(answer)
                    if answer.status == 503 && answer.body["code"] == "store-unreachable" =>
                {
                    assert_eq!(answer.body["retryable"], true, "{:#}", answer.body);
                    Ok(())
                }
                answer => Err(format!("{answer:?}")),
            }
        });
        let ready = scene
            .job
            .api
            .try_send(&Method::GET, "/readyz", None)
            .expect("an answer");
        assert_eq!(ready.status, 503, "{:#}", ready.body);
        let live = scene
            .job
            .api
            .try_send(&Method::GET, "/livez", None)
            .expect("an answer");
        assert_eq!(live.status, 200, "{:#}", live.body);
        database.control(&["up"]);
        last = await_newer_checkpoint(&scene, last + 2);
        assert!(last > 0);
        done.store(true, Ordering::Relaxed);
        watch.join().expect("no offset went back");
    });

    let ends = load.end();
    scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    eventually("nothing stays uncertain", SOON, || {
        let uncertain = scene.job.checkpoints("?status=uncertain");
        if uncertain.is_empty() {
            Ok(())
        } else {
            Err(format!("{uncertain:#?}"))
        }
    });
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"].is_null()),
        (&json!("running"), &true),
        "{view:#}"
    );
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    assert_eq!(super::decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
}

fn await_newer_checkpoint(scene: &Scene, than: i64) -> i64 {
    eventually(
        "checkpoints go on",
        Duration::from_secs(60),
        || match checkpoint_if_readable(scene) {
            Some((id, _)) if id > than => Ok(id),
            found => Err(format!("{found:?}, wanted one after {than}")),
        },
    )
}

/// The newest checkpoint, or nothing while the store is away.
fn checkpoint_if_readable(scene: &Scene) -> Option<(i64, BTreeMap<i32, Option<i64>>)> {
    let path = scene.job.at("/checkpoints/latest");
    let answer = scene.job.api.try_send(&Method::GET, &path, None).ok()?;
    match answer.status {
        200 => Some(crate::support::client::read_checkpoint(
            &answer.body,
            &scene.name,
        )),
        404 | 503 => None,
        _ => panic!("{}: {:#}", answer.status, answer.body),
    }
}

/// Fails when an offset of the newest checkpoint or of the group is lower than it was.
fn watch_offsets(scene: &Scene, done: &AtomicBool) {
    let mut seen = (0, BTreeMap::new(), BTreeMap::new());
    while !done.load(Ordering::Relaxed) {
        // The group first: it may trail the checkpoint, never lead it.
        let group = scene.group_offsets();
        assert_not_back("group", &seen.2, &group);
        if let Some((id, offsets)) = checkpoint_if_readable(scene) {
            let offsets = super::decided(&offsets);
            assert!(id >= seen.0, "checkpoint {id} after {}", seen.0);
            assert_not_back("checkpoint", &seen.1, &offsets);
            assert_not_back("the group is ahead of the checkpoint", &group, &offsets);
            seen = (id, offsets, group);
        }
        breathe(Duration::from_millis(100));
    }
}

fn assert_not_back(what: &str, before: &BTreeMap<i32, i64>, after: &BTreeMap<i32, i64>) {
    for (partition, offset) in before {
        let now = after.get(partition).copied().unwrap_or_default();
        assert!(
            now >= *offset,
            "{what}: partition {partition} went from {offset} to {now}"
        );
    }
}
