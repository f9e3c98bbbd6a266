//! How old what is unread is, by the records' own time stamps.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Scene, earliest};
use crate::support::{
    client::Offsets,
    kafka::PrivateKafka,
    producer::Transaction,
    server::{Output, TestServer},
    unique,
    wait::{SOON, eventually, now_ms},
};

const HOUR: i64 = 3_600_000;

/// A lag in records says nothing about time, and a lag in time that is reckoned from rates is a guess. Here it is the time
/// stamp of the first unread record that the job can see, behind an aborted transaction too; 0 once all is in a checkpoint;
/// and a frozen broker makes it neither wrong nor slow.
#[test]
fn the_age_of_the_oldest_unread_record_is_its_own() {
    let cluster = PrivateKafka::start(1);
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let scene = Scene::with(server, cluster.kafka.clone(), "oldest", 3);
    let written = now_ms();
    // 0: two old records, then new ones. 1: an aborted transaction before an old record. 2: empty.
    scene
        .producer
        .produce_at(&scene.name, 0, written - 5 * HOUR);
    scene
        .producer
        .produce_at(&scene.name, 0, written - 4 * HOUR);
    scene.produce(0, 3);
    let aborted = Transaction::begin(&scene.kafka, &unique("oldest"));
    aborted.produce(&scene.name, 1, 4);
    aborted.abort();
    scene
        .producer
        .produce_at(&scene.name, 1, written - 2 * HOUR);
    // The start stores where it begins; the next checkpoint is far away.
    scene.run(&earliest());
    scene.await_positions(&[(0, 5), (1, 6), (2, 0)]);

    let view = await_ages(&scene, |ages| ages[&0].is_some() && ages[&1].is_some());
    let looked = now_ms();
    let is_age_of = |age: Option<i64>, hours: i64| {
        let age = age.unwrap_or_else(|| panic!("an age: {view:?}"));
        // The clocks of test and server are one.
        assert!(age >= hours * HOUR, "{age}: {view:?}");
        assert!(age <= looked - written + hours * HOUR, "{age}: {view:?}");
    };
    is_age_of(view.row(0).oldest_unread_age_ms, 5);
    is_age_of(view.row(1).oldest_unread_age_ms, 2);
    assert_eq!(view.row(2).oldest_unread_age_ms, Some(0), "{view:?}");
    is_age_of(view.totals["oldest_unread_age_ms"].as_i64(), 5);
    assert_eq!(
        view.map(|row| row.retention.offsets_left),
        [(0, Some(0)), (1, Some(0)), (2, Some(0))].into()
    );

    cluster.broker("pause-broker", 1);
    let asked = Instant::now();
    let frozen = scene.job.offsets();
    let took = asked.elapsed();
    cluster.broker("resume-broker", 1);
    assert_eq!(frozen.sources["brokers"]["status"], "timeout", "{frozen:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    // The position stands, so what was read is still true; that nothing is unread is not known any more.
    for partition in [0, 1] {
        let (then, now) = (view.row(partition), frozen.row(partition));
        assert!(
            now.oldest_unread_age_ms > then.oldest_unread_age_ms,
            "{frozen:?}"
        );
    }
    assert_eq!(frozen.row(2).oldest_unread_age_ms, None, "{frozen:?}");
    assert_eq!(frozen.row(0).retention.offsets_left, None, "{frozen:?}");

    scene.job.checkpoint();
    let view = await_ages(&scene, |ages| ages.values().all(Option::is_some));
    assert_eq!(
        view.map(|row| row.oldest_unread_age_ms),
        [(0, Some(0)), (1, Some(0)), (2, Some(0))].into()
    );
    assert_eq!(view.totals["oldest_unread_age_ms"], json!(0), "{view:?}");
    assert_eq!(
        view.map(|row| row.retention.offsets_left),
        [(0, Some(5)), (1, Some(6)), (2, Some(0))].into()
    );
}

fn await_ages(scene: &Scene, enough: impl Fn(&BTreeMap<i32, Option<i64>>) -> bool) -> Offsets {
    // A read that takes more than three seconds is given up, and the next one comes half a minute later.
    let within = Duration::from_secs(30) + SOON;
    eventually("the ages", within, || {
        let view = scene.job.offsets();
        if enough(&view.map(|row| row.oldest_unread_age_ms)) {
            Ok(view)
        } else {
            Err(format!("{view:?}"))
        }
    })
}
