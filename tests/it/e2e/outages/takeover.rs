//! A process that sleeps past its lease, and wakes when another has its job.

use std::time::Duration;

use serde_json::Value;

use crate::{
    e2e::{
        decided,
        warehouse::Warehouse,
        watch::{assert_history_grows, await_newer_checkpoint, while_group_is_watched},
    },
    support::{
        producer::Load,
        wait::{SOON, eventually},
    },
};

/// A process that is frozen in the middle of a COPY keeps its claim in the target until the statement's time is over: a
/// minute. The other one asks for the claim in vain meanwhile, and its last pause may be half a minute.
const TAKEN_OVER: Duration = Duration::from_secs(120);

fn owner(view: &Value) -> (String, i64) {
    let instance = view["owner"]["instance"].as_str().unwrap_or_default();
    let epoch = view["owner"]["epoch"].as_i64().unwrap_or_default();
    (instance.to_owned(), epoch)
}

/// The first server is frozen under load, the second takes its job over under a higher epoch and goes on from where the
/// target is. Woken, the first one may write nothing more, neither to the store nor to the target, says why, and shows the
/// job as the other's. Then the same the other way round. Every record is one row, and the group's offsets never go back
/// (vectordotdev/vector issue 9587: they did with several instances).
#[test]
fn a_server_that_sleeps_past_its_lease_loses_the_job_and_can_write_nothing() {
    // As short as it may be.
    let warehouse = Warehouse::configured("takeover", "[lease]\nttl = \"3s\"");
    let other = warehouse.second_server();
    let scene = &warehouse.scene;
    let job = other.job(&scene.name);
    let load = Load::start(&scene.kafka, &scene.name, 2, 200);
    await_newer_checkpoint(scene, 3);
    let (first, epoch) = owner(&scene.job.view());

    let servers = [(&scene.server, &scene.job), (&other, &job)];
    let mut before = (first, epoch);
    while_group_is_watched(scene, || {
        for (sleeper, waker) in [(0, 1), (1, 0)] {
            let ((asleep, its_view), (_, view)) = (servers[sleeper], servers[waker]);
            asleep.signal("-STOP");
            let taken = eventually("the other server takes over", TAKEN_OVER, || {
                let view = view.view();
                let (instance, epoch) = owner(&view);
                if view["state"] == "running" && instance != before.0 {
                    Ok((instance, epoch))
                } else {
                    Err(format!("{view:#}"))
                }
            });
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
                if owner(&view) == taken && view["state"] == "running" {
                    Ok(())
                } else {
                    Err(format!("{view:#}"))
                }
            });
            // Not as one that it is about to start itself: the stop that calls that off would stop the other's.
            let offers = its_view.view()["next"].to_string();
            assert!(!offers.contains("call the start off"), "{offers}");
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
            before = taken;
        }
    });

    let ends = load.end();
    scene.job.checkpoint();
    eventually("everything is checkpointed", SOON, || {
        match scene.checkpointed() {
            (_, offsets) if decided(&offsets) == ends => Ok(()),
            found => Err(format!("{found:?}, wanted {ends:?}")),
        }
    });
    warehouse.assert_one_row_each(&ends);
    assert_history_grows(scene);
    assert_eq!(scene.group_offsets(), ends);
}
