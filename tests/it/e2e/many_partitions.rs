//! A topic of many partitions.

use serde_json::json;

use super::{Scene, assert_no_logical_offset, earliest};
use crate::support::{producer::Load, wait::SOON};

const PARTITIONS: i32 = 500;

/// vectordotdev/vector issue 17057: a partition "-1" stood among the lags, and collecting them slowed consumption. The lags of
/// 500 partitions, asked for anew each time while records flow, hold up no record and hold nothing internal.
#[test]
fn the_lags_of_many_partitions_hold_up_no_record_and_nothing_internal() {
    let scene = Scene::new("many-partitions", PARTITIONS);
    scene.run(&earliest());
    let load = Load::start(&scene.kafka, &scene.name, PARTITIONS, 2_000);
    let mut seen = scene.server.log.mark();
    for _ in 0..5 {
        let view = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
        assert_no_logical_offset(&view["partitions"]);
        let partitions = view["partitions"].as_array().expect("a list");
        let numbers: Vec<i64> = partitions
            .iter()
            .filter_map(|row| row["partition"].as_i64())
            .collect();
        assert_eq!(numbers, (0..i64::from(PARTITIONS)).collect::<Vec<_>>());
        crate::support::wait::eventually("records go on meanwhile", SOON, || {
            match scene.server.log.mark() {
                now if now > seen + 200 => {
                    seen = now;
                    Ok(())
                }
                now => Err(format!("{seen}, then {now}")),
            }
        });
    }
    let ends = load.end();
    let repeats = scene.server.log.await_complete(0, &scene.name, &ends, SOON);
    assert_eq!(repeats, 0);
    let report = scene.job.checkpoint();
    assert_eq!(report["group_commit"]["status"], "ok", "{report:#}");
    let view = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
    assert_eq!(
        view["totals"]["group_lag"],
        json!(0),
        "{:#}",
        view["totals"]
    );
}
