//! Limits of a job, with the time of the wall.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Scene, earliest, spec, with};
use crate::support::{
    client::Job,
    unique,
    wait::{SOON, breathe, eventually},
};

/// How many records a second are let through in this test.
const RATE: i64 = 300;
/// And how many bytes of another job, and how many a record of it has.
const BYTES: i64 = 300_000;
const LARGE: usize = 1_000;
/// Checkpoints, one every two seconds.
const ROUNDS: usize = 5;

/// How much of what a limit lets through a job has taken.
struct Flow<'a> {
    job: &'a Job,
    /// What is counted.
    member: &'a str,
    begin: Instant,
    from: i64,
}

fn count(job: &Job, member: &str) -> i64 {
    job.view()[member].as_i64().unwrap_or_default()
}

impl<'a> Flow<'a> {
    /// From a moment on at which it flows.
    fn of(job: &'a Job, member: &'a str) -> Self {
        eventually("the first records", SOON, || match count(job, member) {
            0 => Err("none yet"),
            _ => Ok(()),
        });
        Self {
            job,
            member,
            begin: Instant::now(),
            from: count(job, member),
        }
    }

    fn assert_held(&self, rate: i64) {
        let (now, took) = (
            count(self.job, self.member),
            self.begin.elapsed().as_secs_f64(),
        );
        let let_through = now - self.from;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let share = let_through as f64 / (took * rate as f64);
        println!("{let_through} {} in {took} s: {share}", self.member);
        // The status is a quarter of a second old at most, on both ends, and a piece of a batch may have just gone through.
        assert!(
            (0.95..=1.05).contains(&share),
            "{let_through} {} in {took} s: {share}",
            self.member
        );
    }
}

/// Ten seconds at a limit of records and at one of bytes, two subtasks each: the rate, the checkpoints and the stop are as said;
/// without the limit it is fast.
#[test]
fn a_limit_holds_while_checkpoints_and_stops_stay_prompt() {
    let scene = Scene::new("limits", 2);
    scene.produce_all(5_000);
    let limited = json!({"records_per_s": RATE, "bytes_per_s": null});
    let by_records = with(scene.spec(&earliest()), "/limits", limited);
    scene
        .job
        .put_spec(&with(by_records, "/parallelism", json!(2)));
    let large = unique("limits-bytes");
    scene.kafka.create_topic(&large, 2);
    for partition in (0..2).cycle().take(5_000) {
        scene.producer.send(&large, partition, &[b'x'; LARGE], None);
    }
    scene.producer.flush();
    let by_bytes = scene.server.job(&large);
    let limited = json!({"records_per_s": null, "bytes_per_s": BYTES});
    let spec = with(spec(&large, &earliest()), "/limits", limited);
    by_bytes.put_spec(&with(spec, "/parallelism", json!(2)));
    scene.job.start(&json!({}));
    by_bytes.start(&json!({}));
    let flows = (
        Flow::of(&scene.job, "records"),
        Flow::of(&by_bytes, "bytes"),
    );
    for _ in 0..ROUNDS {
        breathe(Duration::from_secs(2));
        for job in [&scene.job, &by_bytes] {
            let asked = Instant::now();
            let report = job.checkpoint();
            assert_eq!(report["status"], "completed", "{report:#}");
            assert!(
                asked.elapsed() < Duration::from_secs(2),
                "{:?}",
                asked.elapsed()
            );
        }
    }
    flows.0.assert_held(RATE);
    flows.1.assert_held(BYTES);
    let view = by_bytes.view();
    assert_eq!(view["limits"]["bytes_per_s"], BYTES, "{view:#}");
    eventually("it says that it is held back", SOON, || {
        let view = by_bytes.view();
        let says = view["warnings"].to_string().contains("held to its limits");
        (says && view["limits"]["throttled"] == true)
            .then_some(())
            .ok_or(view)
    });
    by_bytes.stop();
    let view = scene.job.view();
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
