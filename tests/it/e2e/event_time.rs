//! Event time of jobs on a real broker: watermarks, idle partitions, alignment.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    Scene, earliest,
    parked::await_parked,
    stages::{await_bottleneck, share},
    warehouse::{Lock, Warehouse},
    with,
};
use crate::support::wait::{SOON, eventually, now_ms, rfc3339, throughout};

/// The first time stamp of a test. In the past, so that nothing is confused with the clock.
fn base() -> i64 {
    now_ms() / 1_000 * 1_000 - 10 * 86_400_000
}

impl Scene {
    /// One record for each time stamp.
    fn stamp(&self, partition: i32, stamps: impl IntoIterator<Item = i64>) {
        for stamp in stamps {
            self.producer
                .send(&self.name, partition, b"{}", Some(stamp));
        }
        self.producer.flush();
    }

    fn await_watermark(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        eventually(what, SOON, || {
            let view = self.job.view();
            if is(&view["watermark"]) {
                Ok(view["watermark"].clone())
            } else {
                Err(format!("{:#}", view["watermark"]))
            }
        })
    }

    /// What `/offsets` shows of the event time of a partition.
    fn watermark_of(&self, partition: usize) -> Value {
        let view = self.job.api.get(&self.job.at("/offsets"));
        view["partitions"][partition]["watermark"].clone()
    }

    fn metrics_say(&self, lines: &[String]) {
        eventually("the metrics", SOON, || {
            let page = self.job.api.get("/metrics").to_string();
            match lines.iter().find(|line| !page.contains(*line)) {
                None => Ok(()),
                Some(line) => Err(format!("{line} is not in {page}")),
            }
        });
    }
}

fn stands_at(stamp: i64) -> impl Fn(&Value) -> bool {
    let text = rfc3339(stamp);
    move |watermark| {
        let shown = watermark["timestamp"].as_str();
        shown.is_some_and(|shown| same_instant(shown, &text))
    }
}

fn same_instant(one: &str, other: &str) -> bool {
    let read = |text: &str| chrono::DateTime::parse_from_rfc3339(text).unwrap();
    read(one) == read(other)
}

/// FLINK-5479: one quiet partition stopped the watermark for ever, and a naive time-out made busy ones idle while the sink was
/// stuck.
#[test]
fn a_quiet_partition_is_left_out_and_a_stuck_sink_makes_nobody_idle() {
    let warehouse = Warehouse::quiet("event-time-idle");
    let scene = &warehouse.scene;
    scene.job.stop();
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    let watermark =
        json!({"strategy": "bounded-out-of-orderness", "max_delay": "1s", "idle_after": "3s"});
    scene.job.put_spec(&with(spec, "/watermark", watermark));
    let view = scene.job.view();
    assert_eq!(view["watermark"]["timestamp"], Value::Null, "{view:#}");
    assert_eq!(view["watermark"]["idle"], Value::Null, "it does not run");
    scene.job.start(&json!({}));
    let t = base();
    scene.stamp(0, [t, t + 5_000, t + 4_000]);
    let shown = scene.await_watermark("0 has shown records", |shown| {
        shown["held_by"]["partition"] == 1 && scene.watermark_of(0)["timestamp"].is_string()
    });
    assert_eq!(
        shown["timestamp"],
        Value::Null,
        "1 has shown none: {shown:#}"
    );
    let one = json!({"topic": scene.name, "partition": 1});
    assert_eq!(shown["held_by"], one, "{shown:#}");
    scene.await_watermark("1 is idle", stands_at(t + 3_999));
    // Both come. The older one is late, and pulls nothing back.
    scene.stamp(1, [t + 3_999, t + 4_000]);
    let shown = scene.await_watermark("1 is back", |shown| shown["late_records"] == 1);
    assert!(stands_at(t + 3_999)(&shown), "{shown:#}");
    assert_eq!(scene.watermark_of(1)["late_records"], 1);

    // The table is locked, and more comes than fits anywhere before it.
    let lock = Lock::take(&warehouse, "orders");
    scene.stamp(1, [t + 6_000]);
    scene.stamp(0, std::iter::repeat_n(t + 20_000, 20_000));
    scene.await_watermark("both are at work", |shown| shown["idle_partitions"] == 0);
    throughout(Duration::from_secs(6), || {
        let view = scene.job.view();
        assert_eq!(view["watermark"]["idle_partitions"], 0, "{view:#}");
    });
    lock.free();
    scene.await_watermark("1 is idle again, and 0 alone counts", stands_at(t + 18_999));
    scene.await_watermark("all are idle, and it stays", |shown| {
        shown["idle"] == true && stands_at(t + 18_999)(shown)
    });
    scene.job.stop();
    warehouse.assert_one_row_each(&scene.ends());
}

fn aligned(idle_after: &str) -> Value {
    json!({"strategy": "monotonous", "idle_after": idle_after, "alignment": {"max_drift": "10s"}})
}

/// FLINK-32496, FLINK-31632, FLINK-25982: alignment and idleness together once stopped a job for ever. FLINK-40475: a watermark
/// stood still when an idle input came back. And confluentinc/librdkafka 2190: where a partition goes on is exact.
#[test]
fn partitions_are_held_together_over_two_subtasks_and_flow_again_after_a_silence() {
    let scene = Scene::new("event-time-aligned", 2);
    let spec = with(scene.spec(&earliest()), "/watermark", aligned("5s"));
    let applied = scene
        .job
        .put_spec(&with(spec.clone(), "/parallelism", json!(2)));
    assert_eq!(applied["spec"]["watermark"]["timestamp"], "record");
    let t = base();
    scene.stamp(1, [t]);
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 0), (1, 1)]);
    scene.stamp(0, (0..500).map(|n| t + n));
    scene.stamp(0, [t + 100_000]);
    let zero = json!([{"topic": scene.name, "partition": 0}]);
    let shown = scene.await_watermark("0 is held back", |shown| shown["paused_partitions"] == zero);
    assert!(stands_at(t - 1)(&shown), "{shown:#}");
    assert_eq!(shown["held_by"]["partition"], 1, "{shown:#}");
    assert_eq!(
        shown["subtasks"].as_array().map(Vec::len),
        Some(2),
        "{shown:#}"
    );
    assert_eq!(scene.watermark_of(0)["paused"], true);
    // What comes now waits at the broker as long as 1 moves, but for what is on its way until the client has heard of it.
    scene.stamp(0, std::iter::repeat_n(t + 101_000, 20_000));
    let begun = Instant::now();
    let mut sent = 1;
    while begun.elapsed() < Duration::from_secs(8) {
        scene.stamp(1, [t + sent]);
        sent += 1;
        scene.await_watermark("1 moves", stands_at(t + sent - 2));
    }
    let read = scene.job.view()["records"].as_i64().unwrap() - sent;
    assert!((501..=3_501).contains(&read), "{read} were read of it");
    assert_eq!(
        scene.watermark_of(0)["idle"],
        false,
        "it is not idle for that"
    );
    scene.metrics_say(&[
        format!(
            "handover_watermark_paused_partitions{{job=\\\"{}\\\"}} 1",
            scene.name
        ),
        format!(
            "handover_watermark_timestamp_seconds{{job=\\\"{}\\\"}} ",
            scene.name
        ),
        format!(
            "handover_late_records_total{{job=\\\"{}\\\"}} 0",
            scene.name
        ),
    ]);
    // It has caught up, but for less than half of what is allowed.
    scene.stamp(1, [t + 99_000]);
    scene.await_watermark("0 goes on", |shown| shown["paused_partitions"] == json!([]));
    scene.await_positions(&[(0, 20_501), (1, sent + 1)]);

    // A silence. Nothing is held back for ever by who is idle, and it flows again.
    scene.await_watermark("all are idle", |shown| {
        shown["idle"] == true && shown["idle_partitions"] == 2
    });
    scene.stamp(0, [t + 500_000]);
    scene.await_positions(&[(0, 20_502), (1, sent + 1)]);
    scene.await_watermark("it follows the one that is left", stands_at(t + 499_999));
    scene.stamp(1, [t + 490_000]);
    let shown = scene.await_watermark("1 is back", |shown| shown["late_records"] == 1);
    assert!(stands_at(t + 499_999)(&shown), "{shown:#}");
    scene.stamp(1, [t + 600_000]);
    scene.await_watermark("it waits for 0", |shown| {
        shown["held_by"]["partition"] == 0 && stands_at(t + 499_999)(shown)
    });
    scene.stamp(0, [t + 700_000]);
    scene.await_watermark("the least of both counts again", stands_at(t + 599_999));
    scene.await_exactly(0, &[(0, 0..20_503), (1, 0..sent + 3)]);
    let view = scene.job.view();
    assert_eq!(view["redelivered"], 0, "{view:#}");

    // Nothing of it is kept over a restart, and other settings count from then on.
    let other = json!({"watermark": {"alignment": null, "idle_after": "1m"}});
    let applied = scene.job.api.patch(&scene.job.at("/spec"), &other);
    assert_eq!(
        (&applied["applies"], &applied["pending_fields"]),
        (&json!("next-start"), &json!(["watermark"])),
        "{applied:#}"
    );
    scene.job.operate("/restart", &json!({}));
    let view = scene.job.view();
    assert_eq!(view["restart_required"], false, "{view:#}");
    assert_eq!(view["watermark"]["timestamp"], Value::Null, "{view:#}");
    let none = scene
        .job
        .api
        .patch(&scene.job.at("/spec"), &json!({"watermark": null}));
    assert_eq!(none["spec"].get("watermark"), None, "{none:#}");
    scene.job.operate("/restart", &json!({}));
    assert_eq!(scene.job.view().get("watermark"), None);
    let page = scene.job.api.get("/metrics").to_string();
    let series = format!(
        "handover_watermark_timestamp_seconds{{job=\\\"{}\\\"",
        scene.name
    );
    assert!(!page.contains(&series), "{page}");
}

/// One partition waits for another: that is what the job's time goes into; and it stops within the batches that are on their way
/// when it comes too far, however fast it is read.
#[test]
fn who_waits_for_another_partition_is_said_and_is_ahead_by_little_more_than_is_allowed() {
    const DRIFT: i64 = 10_000;
    const ROUND: i64 = 40_000;
    const END: i64 = 6 * ROUND;
    /// The batch with which it is too far ahead, those in the slot, in the thread's hand and in its client's, and one to spare.
    const ON_THEIR_WAY: i64 = 5_000;
    let scene = Scene::new("event-time-ahead", 2);
    let spec = with(scene.spec(&earliest()), "/watermark", aligned("1h"));
    let spec = with(spec, "/sink", json!({"type": "blackhole"}));
    scene.job.put_spec(&spec);
    let t = base();
    // One record for each millisecond, so that an offset is a time. What comes once it is held back is read from the broker as
    // fast as can be, each time that it is let go.
    scene.stamp(1, [t]);
    scene.stamp(0, (0..2 * DRIFT).map(|n| t + n));
    scene.job.start(&json!({}));
    let zero = json!([{"topic": scene.name, "partition": 0}]);
    scene.await_watermark("0 is held back", |shown| shown["paused_partitions"] == zero);
    scene.stamp(0, (2 * DRIFT..END).map(|n| t + n));
    for at in [ROUND, 2 * ROUND, 3 * ROUND, 4 * ROUND] {
        scene.stamp(1, [t + at]);
        scene.await_watermark("1 moves", stands_at(t + at - 1));
        let (mut last, mut looks) = (None, 0);
        let position = eventually("0 stands", SOON, || {
            let position = scene.job.offsets().row(0).position;
            looks = if position == last { looks + 1 } else { 0 };
            last = position;
            let is_held = scene.job.view()["watermark"]["paused_partitions"] == zero;
            match position {
                Some(position) if is_held && position >= at + DRIFT && looks > 8 => Ok(position),
                other => Err(format!("{other:?}, held back: {is_held}")),
            }
        });
        let ahead = position - at - DRIFT;
        assert!(ahead <= ON_THEIR_WAY, "{ahead} records at {at}");
    }
    let view = await_bottleneck(&scene.job, "alignment");
    assert!(share(&view, "alignment") > 0.5, "{view:#}");
    let settings = json!(["/watermark/alignment/max_drift", "/watermark/idle_after"]);
    assert_eq!(view["bottleneck"]["settings"], settings, "{view:#}");
    scene.stamp(1, [t + END]);
    scene.await_positions(&[(0, END), (1, 6)]);
    assert_eq!(scene.job.view()["redelivered"], 0);
}

/// FLINK-39728: a partition that has ended while it is to be held back is no fault, and the run comes to its end.
#[test]
fn partitions_of_a_bounded_run_end_while_others_are_held_back() {
    let scene = Scene::new("event-time-bounded", 4);
    let t = base();
    // Each one is further ahead than is allowed, and has enough for many batches.
    for partition in 0..4_i32 {
        let begin = t + i64::from(partition) * 1_000_000;
        scene.stamp(partition, (0..3_000).map(|n| begin + n));
    }
    let spec = with(
        with(scene.spec(&earliest()), "/watermark", aligned("1m")),
        "/source/stop_at",
        json!({"mode": "latest"}),
    );
    scene.job.put_spec(&with(spec, "/parallelism", json!(2)));
    scene.job.start(&json!({}));
    // Idleness has no part in it: it would take a minute.
    let begun = Instant::now();
    scene.server.await_state(&scene.job, "finished");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
    let all = (0..4).map(|partition| (partition, 0..3_000));
    scene.await_exactly(0, &all.collect::<Vec<_>>());
}

#[test]
fn time_stamps_in_a_field_and_records_without_one() {
    let scene = Scene::new("event-time-field", 1);
    let watermark = json!({"strategy": "monotonous", "timestamp": "$.meta.at"});
    let spec = with(scene.spec(&earliest()), "/watermark", watermark);
    let refused = scene
        .job
        .api
        .refused(&Method::PUT, &scene.job.at("/spec"), Some(&spec));
    assert_eq!(refused.code, "invalid-spec", "{:#}", refused.body);
    let fault = &refused.body["errors"][0];
    assert_eq!(fault["pointer"], "/watermark/timestamp", "{fault:#}");
    assert!(
        fault.to_string().contains("source.format json"),
        "{fault:#}"
    );
    let spec = with(spec, "/source/format", json!("json"));
    scene.job.put_spec(&spec);
    let t = base();
    let send = |value: String, stamp: i64| {
        scene
            .producer
            .send(&scene.name, 0, value.as_bytes(), Some(stamp));
        scene.producer.flush();
    };
    // The record's own time stamp has no part in it.
    send(format!(r#"{{"meta": {{"at": {t}}}}}"#), t + 900_000);
    send(
        format!(r#"{{"meta": {{"at": "{}"}}}}"#, rfc3339(t + 5_000)),
        t,
    );
    send(r#"{"meta": {"at": -5}}"#.to_owned(), t);
    send(format!(r#"{{"meta": {{"at": {}}}}}"#, t + 7_000), t);
    scene.job.start(&json!({}));
    scene.await_watermark("it follows the field", stands_at(t + 4_999));
    let view = await_parked(&scene, 1);
    let parked = &view["parked"][0];
    assert_eq!(
        (&parked["offset"], &parked["phase"]),
        (&json!(2), &json!("decode")),
        "{view:#}"
    );
    assert!(
        parked["detail"].to_string().contains("lies before 1970"),
        "{view:#}"
    );
    scene.job.stop();

    // By policy it is left out.
    scene.job.put_spec(&with(
        spec,
        "/errors",
        json!({"on_bad_record": {"policy": "skip"}}),
    ));
    scene.job.start(&json!({}));
    scene.await_watermark("it goes on behind it", stands_at(t + 6_999));
    let view = scene.job.view();
    assert_eq!(view["bad_records"]["skipped"], 1, "{view:#}");
    let delivered = scene.server.log.since(0, &scene.name);
    assert_eq!(delivered, BTreeMap::from([(0, vec![0, 1, 3])]));
}
