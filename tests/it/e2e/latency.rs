//! Brokers that are far away.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fault_proxy::{Direction, Proxy};
use serde_json::json;

use super::{
    Scene, assert_no_logical_offset, earliest, librdkafka::explicit_starts_are_exact, with,
};
use crate::support::{
    client::{Offsets, block_on},
    kafka::PrivateKafka,
    producer::{Load, Producer},
    server::{Output, TestServer},
    wait::{SOON, breathe, eventually},
};

const AWAY: Duration = Duration::from_millis(200);
const PARTITIONS: i32 = 500;
/// How long a broker may take to make them all on a busy machine; seconds on an idle one.
const MADE: Duration = Duration::from_secs(120);
/// Those that are written to.
const BUSY: i32 = 4;

/// confluentinc/librdkafka issue 2256: a sought position was replaced by the reset policy's, because answers came in another
/// order than on a fast network; vectordotdev/vector issue 17057: collecting the lags of many partitions slowed consumption.
/// Through 200 ms of latency the lags of 500 partitions, asked for each second while records flow, come in time and are the
/// brokers' own numbers once nothing moves, and the first record of every explicit start is exact.
#[test]
fn a_slow_network_changes_no_position_and_no_number() {
    let (cluster, proxy) = PrivateKafka::start_behind_proxy();
    let server = TestServer::start_on(&cluster.kafka, Output::Followed);
    let scene = Scene::with(server, cluster.kafka.clone(), "far-away", PARTITIONS);
    scene.run(&earliest());
    // A new topic's partitions are led one after the other.
    eventually("all partitions have begun", MADE, || {
        let view = look(&scene);
        let begun = view.map(|row| row.position.and(row.checkpointed));
        if begun.len() == 500 && begun.values().all(Option::is_some) {
            Ok(())
        } else {
            Err(format!("{begun:?}"))
        }
    });

    proxy.set_latency(Direction::ToServer, AWAY);
    let load = Load::start(&scene.kafka, &scene.name, BUSY, 500);
    let mut seen = scene.server.log.mark();
    for _ in 0..3 {
        let asked = Instant::now();
        let view = look(&scene);
        assert_eq!(
            view.sources["brokers"]["status"], "ok",
            "{:#}",
            view.sources
        );
        assert_eq!(view.sources["group"]["status"], "ok", "{:#}", view.sources);
        assert_eq!(view.partitions.len(), 500, "{view:?}");
        for row in &view.partitions {
            // A position that was taken after the end would be beyond it.
            assert!(
                row.position.is_some() && row.position <= row.readable_end,
                "{row:?}"
            );
            assert!(row.flags.is_empty(), "{row:?}");
        }
        eventually("records go on meanwhile", SOON, || {
            match scene.server.log.mark() {
                now if now > seen + 50 => {
                    seen = now;
                    Ok(())
                }
                now => Err(format!("{seen}, then {now}")),
            }
        });
        breathe(Duration::from_secs(1).saturating_sub(asked.elapsed()));
    }
    let ends = load.end();
    let repeats = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    assert_eq!(repeats, 0);
    let report = scene.job.checkpoint();
    assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
    let view = look(&scene);
    let truth: BTreeMap<i32, Option<i64>> = (0..PARTITIONS)
        .map(|partition| (partition, Some(ends.get(&partition).copied().unwrap_or(0))))
        .collect();
    for numbers in [
        view.map(|row| row.latest),
        view.map(|row| row.readable_end),
        view.map(|row| row.position),
        view.map(|row| row.checkpointed),
        view.map(|row| row.group_committed),
    ] {
        assert_eq!(numbers, truth);
    }

    let scene = Scene::with(scene.server, cluster.kafka.clone(), "far-starts", 4);
    explicit_starts_are_exact(&scene, 10);

    proxy.set_latency(Direction::ToServer, Duration::ZERO);
    let scene = Scene::with(scene.server, cluster.kafka.clone(), "away", 1);
    what_appears_is_found_after_an_outage(&scene, &proxy);
}

/// Looks at the topics fail for as long as the brokers are away: the job says so, goes on, and finds what came meanwhile.
fn what_appears_is_found_after_an_outage(scene: &Scene, proxy: &Proxy) {
    let spec = with(
        scene.spec(&json!({"mode": "latest"})),
        "/source/partition_discovery",
        json!({"interval": "1s"}),
    );
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 0)]);
    let since = scene.job.view()["since"].clone();
    block_on(proxy.refuse());
    block_on(proxy.cut());
    let view = eventually("it says so", SOON, || {
        let view = scene.job.view();
        match view["health"].to_string().contains("discovery-failing") {
            true => Ok(view),
            false => Err(format!("{view:#}")),
        }
    });
    assert_eq!(
        (&view["state"], &view["health"]["status"]),
        (&json!("running"), &json!("waiting")),
        "{view:#}"
    );
    block_on(proxy.accept());
    scene.kafka.add_partitions(&scene.name, 2);
    Producer::new(&scene.kafka).produce(&scene.name, 1, 3);
    let all = [(0, 0), (1, 3)];
    scene.await_positions(&all);
    eventually("nothing is said any more", SOON, || {
        let view = scene.job.view();
        match view["health"].to_string().contains("discovery-failing") {
            true => Err(format!("{view:#}")),
            false => Ok(()),
        }
    });
    assert_eq!(scene.job.view()["since"], since, "the same run");
}

fn look(scene: &Scene) -> Offsets {
    let view = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
    assert_no_logical_offset(&view["partitions"]);
    serde_json::from_value(view).expect("offsets")
}
