//! An orderly end of the server.

use std::time::Duration;

use serde_json::json;

use super::{Scene, decided, earliest, with};
use crate::support::{
    producer::Load,
    wait::{SOON, eventually},
};

/// vectordotdev/vector issue 14761: what was acknowledged during the shutdown was not kept, so a restart repeated it.
#[test]
fn a_shutdown_under_load_takes_a_last_checkpoint_and_repeats_nothing() {
    let mut scene = Scene::new("shutdown", 2);
    scene
        .job
        .put_spec(&with(scene.spec(&earliest()), "/parallelism", json!(2)));
    // A backlog that is not read in 100 ms, and more coming.
    scene.produce_all(10_000);
    let load = Load::start(&scene.kafka, &scene.name, 2, 400);
    scene.job.start(&json!({}));
    eventually("the first records", SOON, || {
        match scene.server.log.mark() {
            0 => Err("none"),
            _ => Ok(()),
        }
    });
    let (status, took) = scene.server.terminate();
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(20), "{took:?}");

    let delivered = scene.server.log.since(0, &scene.name);
    let group = scene.group_offsets();
    scene.server.boot();
    let kinds: Vec<_> = scene
        .job
        .checkpoints("?kind=stop")
        .into_iter()
        .map(|view| view["status"].clone())
        .collect();
    assert_eq!(kinds, ["completed"], "one last checkpoint");
    let stop = &scene.job.checkpoints("?kind=stop&offsets=true")[0];
    let stopped_at = decided(&crate::support::client::read_checkpoint(stop, &scene.name).1);
    for (partition, offsets) in &delivered {
        assert_eq!(
            stopped_at[partition],
            i64::try_from(offsets.len()).expect("a small number"),
            "the checkpoint holds what was delivered"
        );
    }
    assert_eq!(group, stopped_at, "and so does the group");

    let attempts = scene.job.api.get(&scene.job.at("/attempts"));
    let of_shutdown = attempts["items"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|attempt| attempt["attempt"] == 1)
        .expect("the run that was shut down");
    assert_eq!(of_shutdown["outcome"], "server-stopped");
    let written: usize = delivered.values().map(Vec::len).sum();
    assert_eq!(of_shutdown["records"], written, "{of_shutdown:#}");

    scene.server.await_state(&scene.job, "running");
    let mut ends = load.end();
    for end in ends.values_mut() {
        *end += 10_000;
    }
    let repeats = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    assert_eq!(repeats, 0);
    assert_eq!(scene.server.log.torn(), Vec::<String>::new());
}
