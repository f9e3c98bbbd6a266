//! Looks at a job's offsets again and again while something is done to the services, and fails when one goes back.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use reqwest::Method;

use super::{Scene, decided};
use crate::support::{
    client::read_checkpoint,
    wait::{breathe, eventually},
};

/// Does something while the offsets of the newest checkpoint and of the group are watched. Needs a broker that answers.
pub(super) fn while_watched<T>(scene: &Scene, work: impl FnOnce() -> T) -> T {
    let mut watch = OffsetWatch::default();
    while_looking(|| watch.look(scene), work)
}

/// The same with the group alone, for which no server has to answer.
pub(super) fn while_group_is_watched<T>(scene: &Scene, work: impl FnOnce() -> T) -> T {
    let mut before = BTreeMap::new();
    let look = || {
        let group = scene.group_offsets();
        assert_not_back("group", &before, &group);
        before = group;
    };
    while_looking(look, work)
}

fn while_looking<T>(mut look: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                look();
                breathe(Duration::from_millis(100));
            }
        });
        // Also when the work panics: the watch must end for that to be told.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        watch.join().expect("no offset went back");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// What was seen last.
#[derive(Default)]
pub(super) struct OffsetWatch {
    checkpoint: i64,
    checkpointed: BTreeMap<i32, i64>,
    group: BTreeMap<i32, i64>,
}

impl OffsetWatch {
    /// Fails when an offset of the newest checkpoint or of the group is lower than it was.
    pub(super) fn look(&mut self, scene: &Scene) {
        // The group first: it may trail the checkpoint, never lead it.
        let group = scene.group_offsets();
        assert_not_back("group", &self.group, &group);
        if let Some((id, offsets)) = checkpoint_if_readable(scene) {
            let offsets = decided(&offsets);
            assert!(
                id >= self.checkpoint,
                "checkpoint {id} after {}",
                self.checkpoint
            );
            assert_not_back("checkpoint", &self.checkpointed, &offsets);
            assert_not_back("the group is ahead of the checkpoint", &group, &offsets);
            (self.checkpoint, self.checkpointed) = (id, offsets);
        }
        self.group = group;
    }
}

fn assert_not_back(what: &str, before: &BTreeMap<i32, i64>, after: &BTreeMap<i32, i64>) {
    for (partition, offset) in before {
        let now = after.get(partition).copied().unwrap_or_default();
        assert!(
            now >= *offset,
            "{what}: partition {partition} went from {offset} to {now}"
        );
    }
}

/// Waits for a completed checkpoint with a higher number.
pub(super) fn await_newer_checkpoint(scene: &Scene, than: i64) -> i64 {
    eventually(
        "checkpoints go on",
        Duration::from_secs(60),
        || match checkpoint_if_readable(scene) {
            Some((id, _)) if id > than => Ok(id),
            found => Err(format!("{found:?}, wanted one after {than}")),
        },
    )
}

/// The newest checkpoint, or nothing while the store is away.
fn checkpoint_if_readable(scene: &Scene) -> Option<(i64, BTreeMap<i32, Option<i64>>)> {
    let path = scene.job.at("/checkpoints/latest");
    let answer = scene.job.api.try_send(&Method::GET, &path, None).ok()?;
    match answer.status {
        200 => Some(read_checkpoint(&answer.body, &scene.name)),
        404 | 503 => None,
        _ => panic!("{}: {:#}", answer.status, answer.body),
    }
}

/// Fails unless the stored checkpoints have numbers of their own, which grow with their epochs, and the completed ones with
/// their offsets.
pub(super) fn assert_history_grows(scene: &Scene) {
    let history = scene.job.checkpoints("?limit=500&offsets=true");
    let (mut last, mut last_epoch, mut last_offsets) = (0, 0, BTreeMap::new());
    for view in history.iter().rev() {
        let id = view["id"].as_i64().expect("a number");
        let epoch = view["epoch"].as_i64().expect("an epoch");
        assert!(id > last, "checkpoint {id} after {last}");
        assert!(
            epoch >= last_epoch,
            "checkpoint {id}: epoch {epoch} after {last_epoch}"
        );
        (last, last_epoch) = (id, epoch);
        if view["status"] == "completed" {
            let offsets = decided(&read_checkpoint(view, &scene.name).1);
            assert_not_back(&format!("checkpoint {id}"), &last_offsets, &offsets);
            last_offsets = offsets;
        }
    }
    assert!(!last_offsets.is_empty(), "no history");
}
