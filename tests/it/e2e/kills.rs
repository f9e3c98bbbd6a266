//! `kill -9`, again and again.

mod crash_points;

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{Scene, decided, earliest, with};
use crate::support::{
    producer::Load,
    wait::{SOON, eventually},
};

/// risingwavelabs/risingwave issue 5192 and apache/iggy issue 4199: after a recovery records were missing, because what had
/// been polled counted as done. Ten kills under load: offsets never go back, and every record comes at least once.
#[test]
fn ten_kills_under_load_lose_nothing_and_set_no_offset_back() {
    let mut scene = Scene::new("kills", 3);
    let spec = with(
        scene.spec(&earliest()),
        "/checkpoint/interval",
        json!("200ms"),
    );
    let spec = with(spec, "/parallelism", json!(2));
    scene.job.put_spec(&spec);
    let load = Load::start(&scene.kafka, &scene.name, 3, 600);
    scene.job.start(&json!({}));
    let mut last: (i64, BTreeMap<i32, i64>) = (0, BTreeMap::new());
    let mut group: BTreeMap<i32, i64> = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(7);
    for kill in 0..10 {
        // Somewhere between two checkpoints of this life.
        let after = last.0 + random.i64(1..4);
        last = eventually("checkpoints of this life", Duration::from_secs(60), || {
            let (id, offsets) = scene.checkpointed();
            let offsets = decided(&offsets);
            for (partition, offset) in &last.1 {
                let now = offsets[partition];
                assert!(
                    now >= *offset,
                    "kill {kill}: checkpoint of partition {partition} went from {offset} to {now}"
                );
            }
            assert!(
                id >= last.0,
                "kill {kill}: checkpoint {id} after {}",
                last.0
            );
            if id > after {
                Ok((id, offsets))
            } else {
                Err(format!("{id}, wanted one after {after}"))
            }
        });
        scene.server.kill();
        let found = scene.group_offsets();
        for (partition, offset) in &group {
            assert!(
                found[partition] >= *offset,
                "kill {kill}: group of partition {partition} went from {offset} to {}",
                found[partition]
            );
        }
        group = found;
        scene.server.boot();
        scene.server.await_state(&scene.job, "running");
    }
    let ends = load.end();
    scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    scene.job.stop();
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
    // Only a kill tears a line, and at most one.
    assert!(
        scene.server.log.torn().len() <= 10,
        "{:?}",
        scene.server.log.torn()
    );
}
