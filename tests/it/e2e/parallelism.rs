//! Subtasks: each partition has one owner, by Flink's rule, and changing their number between runs loses nothing.

use std::collections::BTreeMap;

use serde_json::json;

use super::{Scene, earliest, with};

/// Flink's rule, written down once more: the hash of the topic's name (`String.hashCode`) times 31, without its sign, says
/// where the round over the subtasks begins.
fn owner(topic: &str, partition: i32, parallelism: u32) -> u32 {
    let mut hash: i32 = 0;
    for unit in topic.encode_utf16() {
        hash = hash.wrapping_mul(31).wrapping_add(i32::from(unit));
    }
    let start = i64::from(hash.wrapping_mul(31) & 0x7fff_ffff) % i64::from(parallelism);
    u32::try_from((start + i64::from(partition)) % i64::from(parallelism))
        .expect("below parallelism")
}

/// FLINK-7143: after a change of parallelism two subtasks owned one partition, or none did.
#[test]
fn changing_parallelism_between_runs_keeps_the_output_complete() {
    let scene = Scene::new("parallelism", 7);
    let mut end = 0;
    for parallelism in [1, 4, 3, 8] {
        scene.job.put_spec(&with(
            scene.spec(&earliest()),
            "/parallelism",
            json!(parallelism),
        ));
        // Some records wait already, others come while it runs.
        scene.produce_all(5);
        scene.job.start(&json!({}));
        scene.produce_all(5);
        end += 10;
        let wanted: Vec<_> = (0..scene.partitions)
            .map(|partition| (partition, 0..end))
            .collect();
        scene.await_exactly(0, &wanted);
        let view = scene.job.offsets();
        let owners = view.map(|row| row.subtask);
        let rule: BTreeMap<i32, u32> = (0..scene.partitions)
            .map(|partition| (partition, owner(&scene.name, partition, parallelism)))
            .collect();
        assert_eq!(owners, rule, "with {parallelism} subtasks");
        scene.job.stop();
        let checkpointed = super::decided(&scene.checkpointed().1);
        assert_eq!(
            checkpointed,
            (0..scene.partitions)
                .map(|partition| (partition, end))
                .collect()
        );
    }
}
