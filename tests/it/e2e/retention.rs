//! How soon unread records are deleted.

use serde_json::json;

use super::{Scene, earliest};
use crate::support::{client::Offsets, wait::now_ms};

/// The log's beginning jumps where the test deletes records, and so often that its speed is known within bounds. No number
/// is given before three jumps, for a log whose beginning stands, or where nothing is unread.
#[test]
fn how_soon_the_logs_beginning_arrives_is_told_from_its_jumps() {
    const JUMP: i64 = 10;
    let scene = Scene::new("log-start", 3);
    scene.produce_all(100);
    scene.run(&earliest());
    scene.await_positions(&[(0, 100), (1, 100), (2, 100)]);
    scene.job.stop();
    // Unread: something in 0, whose log will begin later, and in 1, whose log stands; nothing in 2, whose log moves too.
    scene.produce(0, 20);
    scene.produce(1, 20);
    let look = || {
        let view = scene.job.api.get(&scene.job.at("/offsets?fresh=true"));
        serde_json::from_value::<Offsets>(view).expect("offsets")
    };
    look();

    // When each jump began at the earliest, and when it had been seen at the latest.
    let mut jumps = Vec::new();
    for jump in 1..=4 {
        let began = now_ms();
        for partition in [2, 0] {
            scene
                .kafka
                .delete_records(&scene.name, partition, JUMP * jump);
        }
        let view = look();
        jumps.push((began, now_ms()));
        let retention = &view.row(0).retention;
        assert_eq!(retention.offsets_left, Some(100 - JUMP * jump), "{view:?}");
        if jump < 3 {
            assert_eq!(retention.estimated_ms, None, "{jump}: {view:?}");
        } else {
            let (first, last) = (jumps[0], jumps[jumps.len() - 1]);
            let at_speed_of = |ms: i64| (100 - JUMP * jump) * ms / (JUMP * (jump - 1));
            let estimate = retention
                .estimated_ms
                .unwrap_or_else(|| panic!("an estimate: {view:?}"));
            let bounds = at_speed_of(last.0 - first.1)..=at_speed_of(last.1 - first.0) + 1;
            assert!(
                bounds.contains(&estimate),
                "{estimate} of {bounds:?}: {view:?}"
            );
        }
        assert_eq!(view.row(1).retention.estimated_ms, None, "{view:?}");
        assert_eq!(view.row(2).retention.estimated_ms, None, "{view:?}");
        assert_eq!(
            view.row(2).retention.offsets_left,
            Some(100 - JUMP * jump),
            "{view:?}"
        );
    }

    scene.kafka.delete_records(&scene.name, 0, 105);
    let view = look();
    let retention = &view.row(0).retention;
    assert_eq!(
        (retention.offsets_left, retention.estimated_ms),
        (Some(-5), Some(0)),
        "{view:?}"
    );

    // Where a job begins anew, what was seen of it before says nothing.
    scene.job.start(&json!({"from": "earliest"}));
    scene.job.stop_with(&json!({"checkpoint": "none"}));
    let view = look();
    assert_eq!(view.row(0).retention.offsets_left, Some(0), "{view:?}");
    assert_eq!(
        view.map(|row| row.retention.estimated_ms),
        [(0, None), (1, None), (2, None)].into(),
        "{view:?}"
    );
}
