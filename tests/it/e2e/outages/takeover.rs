//! A process that sleeps past its lease, and wakes when another has its job.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::{
    e2e::{
        Scene, decided, earliest,
        watch::{assert_history_grows, await_newer_checkpoint},
        with,
    },
    support::{
        Database,
        client::block_on,
        kafka::Kafka,
        producer::Load,
        server::{Output, TestServer},
        wait::{SOON, eventually},
    },
};

/// A server whose lease is as short as it may be.
fn server(kafka: &Kafka, database: &str) -> TestServer {
    let lease = "[lease]\nttl = \"3s\"";
    TestServer::start_configured(kafka, database, Output::Followed, lease)
}

fn owner(view: &Value) -> (String, i64) {
    let instance = view["owner"]["instance"].as_str().unwrap_or_default();
    let epoch = view["owner"]["epoch"].as_i64().unwrap_or_default();
    (instance.to_owned(), epoch)
}

/// The first server is frozen under load, the second takes its job over under a higher epoch and goes on from the last
/// checkpoint. Woken, the first one may write nothing more, says why, and shows the job as the other's. Then the same the
/// other way round.
#[test]
fn a_server_that_sleeps_past_its_lease_loses_the_job_and_can_write_nothing() {
    let database = block_on(Database::create());
    let kafka = Kafka::shared();
    let scene = Scene::with(
        server(&kafka, &database.url()),
        kafka.clone(),
        "takeover",
        2,
    );
    let spec = scene.spec(&earliest());
    scene
        .job
        .put_spec(&with(spec, "/checkpoint/interval", json!("200ms")));
    let other = server(&kafka, &database.url());
    let job = other.job(&scene.name);
    let load = Load::start(&scene.kafka, &scene.name, 2, 200);
    scene.job.start(&json!({}));
    await_newer_checkpoint(&scene, 3);
    let (first, epoch) = owner(&scene.job.view());

    let servers = [(&scene.server, &scene.job), (&other, &job)];
    let mut before = (first, epoch);
    for (sleeper, waker) in [(0, 1), (1, 0)] {
        let ((asleep, its_view), (awake, view)) = (servers[sleeper], servers[waker]);
        asleep.signal("-STOP");
        let taken = eventually(
            "the other server takes over",
            Duration::from_secs(40),
            || {
                let view = view.view();
                let (instance, epoch) = owner(&view);
                if view["state"] == "running" && instance != before.0 {
                    Ok((instance, epoch))
                } else {
                    Err(format!("{view:#}"))
                }
            },
        );
        assert!(taken.1 > before.1, "epoch {} after {}", taken.1, before.1);
        let (stored, _) = view.latest_checkpoint(&scene.name).expect("a checkpoint");
        eventually("checkpoints of the new owner", SOON, || {
            match view.latest_checkpoint(&scene.name) {
                Some((id, _)) if id > stored => Ok(()),
                found => Err(format!("{found:?}")),
            }
        });
        asleep.signal("-CONT");
        eventually("the sleeper says that it lost the lease", SOON, || {
            let logged = asleep.logged();
            if logged.contains("the lease was lost") {
                Ok(())
            } else {
                Err(logged)
            }
        });
        eventually("the sleeper shows the job as the other's", SOON, || {
            let view = its_view.view();
            if owner(&view) == taken {
                Ok(())
            } else {
                Err(format!("{view:#}"))
            }
        });
        // What it read after it woke went nowhere that counts: everything since is of the new epoch.
        let history = view.checkpoints("?limit=5");
        assert!(
            history
                .iter()
                .all(|view| view["epoch"].as_i64() >= Some(taken.1)
                    || view["id"].as_i64() <= Some(stored)),
            "{history:#?}"
        );
        assert_eq!(owner(&view.view()), taken, "the new owner keeps it");
        assert!(awake.logged().contains("the server is up"));
        before = taken;
    }

    let ends = load.end();
    eventually("every record came out of one of the two", SOON, || {
        let found = [&scene.server, &other].map(|server| server.log.since(0, &scene.name));
        for (partition, end) in &ends {
            let offsets: BTreeSet<i64> = found
                .iter()
                .flat_map(|found| found.get(partition))
                .flatten()
                .copied()
                .collect();
            if let Some(gap) = (0..*end).find(|offset| !offsets.contains(offset)) {
                return Err(format!("{partition}@{gap} of {end} is missing"));
            }
        }
        Ok(())
    });
    scene.job.checkpoint();
    assert_history_grows(&scene);
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
}
