//! Limits of a job, with the time of the wall.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Scene, earliest, with};
use crate::support::wait::{SOON, breathe, eventually};

/// How many records a second are let through in this test.
const RATE: i64 = 300;

fn records(view: &Value) -> i64 {
    view["records"].as_i64().unwrap_or_default()
}

/// Ten seconds at a limit, two subtasks: the rate, the checkpoints and the stop are as said; without the limit it is fast.
#[test]
fn a_limit_holds_while_checkpoints_and_stops_stay_prompt() {
    let scene = Scene::new("limits", 2);
    scene.produce_all(5_000);
    let limited = json!({"records_per_s": RATE, "bytes_per_s": null});
    let spec = with(scene.spec(&earliest()), "/limits", limited.clone());
    scene
        .job
        .put_spec(&with(spec.clone(), "/parallelism", json!(2)));
    scene.job.start(&json!({}));
    eventually("the first records", SOON, || {
        match records(&scene.job.view()) {
            0 => Err("none yet"),
            _ => Ok(()),
        }
    });
    let (begin, from) = (Instant::now(), records(&scene.job.view()));
    for _ in 0..5 {
        breathe(Duration::from_secs(2));
        let asked = Instant::now();
        let report = scene.job.checkpoint();
        assert_eq!(report["status"], "completed", "{report:#}");
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{:?}",
            asked.elapsed()
        );
    }
    let (view, took) = (scene.job.view(), begin.elapsed().as_secs_f64());
    let let_through = records(&view) - from;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let share = let_through as f64 / (took * RATE as f64);
    // The status is a quarter of a second old at most, on both ends, and a piece of a batch may have just gone through.
    assert!(
        (0.92..=1.08).contains(&share),
        "{let_through} in {took} s: {share}"
    );
    assert_eq!(view["limits"]["records_per_s"], RATE, "{view:#}");
    assert!(
        view["limits"]["throttled_ms"].as_i64() > Some(5_000),
        "{view:#}"
    );
    eventually("it says that it is held back", SOON, || {
        let view = scene.job.view();
        let says = view["warnings"]
            .to_string()
            .contains("held to its limits, 300 records/s");
        (says && view["limits"]["throttled"] == true)
            .then_some(())
            .ok_or(view)
    });
    let metrics = scene.job.api.get("/metrics").to_string();
    assert!(
        metrics.contains("handover_limit_records_per_second{"),
        "{metrics}"
    );

    // A stop is prompt, and what it says is what a start goes on from.
    let asked = Instant::now();
    let report = scene.job.stop();
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(report["will_replay"], 0, "{report:#}");

    // Another limit counts at once, without a restart.
    scene.job.start(&json!({}));
    let applied = scene.job.api.patch(
        &scene.job.at("/spec"),
        &json!({"limits": {"records_per_s": null}}),
    );
    assert_eq!(
        (&applied["applies"], &applied["pending_fields"]),
        (&json!("now"), &json!([])),
        "{applied:#}"
    );
    scene.await_positions(&[(0, 5_000), (1, 5_000)]);
    let view = scene.job.view();
    assert_eq!(view["limits"]["records_per_s"], Value::Null, "{view:#}");
    assert_eq!(view["restart_required"], false, "{view:#}");
    scene.await_exactly(0, &[(0, 0..5_000), (1, 0..5_000)]);
}
