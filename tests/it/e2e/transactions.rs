//! Transactional topics: markers are no records, and an open transaction is nobody's lag.

use std::time::Duration;

use serde_json::json;

use super::{Scene, earliest, with};
use crate::support::{
    client::Lag,
    producer::Transaction,
    unique,
    wait::{SOON, eventually},
};

/// confluentinc/librdkafka issues 2539 and 3917, FLINK-33484, spring-projects/spring-kafka issue 1587: the offset stood in
/// front of the marker that ends a transaction, so the lag of a wholly read topic stayed 1. Both isolation levels, an
/// aborted transaction at the end, an idle and an empty partition.
#[test]
fn every_lag_of_a_wholly_read_transactional_topic_is_zero() {
    let scene = Scene::new("markers", 4);
    let transaction = |partition: i32, count: usize| {
        let transaction = Transaction::begin(&scene.kafka, &unique("markers"));
        transaction.produce(&scene.name, partition, count);
        transaction
    };
    // 0: ends with a commit. 1: ends with an abort. 2: plain and idle. 3: empty.
    transaction(0, 10).commit();
    transaction(1, 4).commit();
    transaction(1, 6).abort();
    scene.produce(2, 3);

    for (isolation, delivered) in [
        ("read_committed", [(0, 0..10), (1, 0..4), (2, 0..3)]),
        ("read_uncommitted", [(0, 0..10), (1, 0..11), (2, 0..3)]),
    ] {
        let name = unique(&isolation.replace('_', "-"));
        let job = scene.server.job(&name);
        let spec = with(
            scene.spec(&earliest()),
            "/source/isolation",
            json!(isolation),
        );
        job.put_spec(&with(spec, "/parallelism", json!(2)));
        job.start(&json!({}));
        eventually("positions pass the markers", SOON, || {
            let view = job.offsets();
            let wanted = [(0, Some(11)), (1, Some(12)), (2, Some(3)), (3, Some(0))].into();
            let found = view.map(|row| row.position);
            if found == wanted {
                Ok(())
            } else {
                Err(format!("{isolation}: {found:?}"))
            }
        });
        job.checkpoint();
        let view = job.offsets();
        for row in &view.partitions {
            assert_eq!(row.lag, Lag::ZERO, "{isolation}: {row:?}");
            assert_eq!(row.checkpointed, row.latest, "{isolation}: {row:?}");
            assert_eq!(row.group_committed, row.latest, "{isolation}: {row:?}");
            assert_eq!(row.flags, Vec::<String>::new(), "{isolation}: {row:?}");
        }
        for total in [
            "position_lag",
            "checkpoint_lag",
            "group_lag",
            "group_behind_checkpoint",
            "unknown_partitions",
        ] {
            assert_eq!(view.totals[total], 0, "{isolation}: {:#}", view.totals);
        }
        let group = scene.kafka.group_offsets(&name, &scene.name, 4);
        assert_eq!(
            group,
            [(0, 11), (1, 12), (2, 3), (3, 0)].into(),
            "{isolation}"
        );
        // What came are the records alone: offset 4 of partition 1 is the marker of its first transaction.
        let mut found = scene.server.log.of_job(&name).since(0, &scene.name);
        let mut wanted: std::collections::BTreeMap<i32, Vec<i64>> = delivered
            .iter()
            .map(|(partition, range)| (*partition, range.clone().collect()))
            .collect();
        wanted.entry(1).or_default().retain(|offset| *offset != 4);
        found
            .values_mut()
            .for_each(|offsets| offsets.sort_unstable());
        assert_eq!(found, wanted, "{isolation}");
        job.stop();
    }
}

/// softwaremill/klag-exporter issue 104: the lag of a `read_committed` job was measured to the high watermark, though only
/// the stable offset can be read. An open transaction of somebody else is shown as what it is.
#[test]
fn an_open_transaction_of_another_producer_is_no_lag_and_is_named() {
    let scene = Scene::new("held", 2);
    scene.produce_all(5);
    let open = Transaction::begin(&scene.kafka, &unique("held"));
    open.produce(&scene.name, 0, 100);
    scene.produce(0, 7);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..5), (1, 0..5)]);
    scene.await_positions(&[(0, 5), (1, 5)]);
    scene.job.checkpoint();

    let view = scene.job.offsets();
    let row = view.row(0);
    assert_eq!(
        (row.last_stable, row.readable_end, row.latest),
        (Some(5), Some(5), Some(112)),
        "{row:?}"
    );
    assert_eq!(
        (&row.lag, row.checkpointed),
        (&Lag::ZERO, Some(5)),
        "{row:?}"
    );
    assert_eq!(row.flags, ["held-by-transaction"], "{row:?}");
    assert_eq!(view.row(1).flags, Vec::<String>::new());
    eventually("health says held", Duration::from_secs(90), || {
        let view = scene.job.view();
        let health = &view["health"];
        let held =
            health["status"] == "held" && health["reasons"][0]["code"] == "held-by-transaction";
        if held {
            Ok(())
        } else {
            Err(format!("{health:#}"))
        }
    });

    open.commit();
    scene.await_exactly(0, &[(0, 0..112), (1, 0..5)]);
    scene.await_positions(&[(0, 113), (1, 5)]);
    eventually("health no longer says held", SOON, || {
        let view = scene.job.view();
        if view["health"]["status"] == "held" {
            Err(format!("{:#}", view["health"]))
        } else {
            Ok(())
        }
    });
}
