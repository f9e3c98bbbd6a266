//! The store restarts and dies under load.

use reqwest::Method;
use serde_json::json;

use super::{
    Scene, earliest,
    watch::{assert_history_grows, await_newer_checkpoint, while_watched},
    with,
};
use crate::support::{
    Cluster,
    kafka::Kafka,
    producer::Load,
    server::{Output, TestServer},
    wait::{SOON, eventually},
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

    while_watched(&scene, || {
        let mut last = await_newer_checkpoint(&scene, 0);
        // A fast shutdown ends sessions with a word, a crash without one.
        for outage in [
            &[&["restart"][..]][..],
            &[&["kill"], &["up"]],
            &[&["kill"], &["up"]],
        ] {
            for command in outage {
                database.control(command);
            }
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
    assert_history_grows(&scene);
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    assert_eq!(super::decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
}
