//! The process dies at each point where what it has done and what it knows differ, and the next one goes on rightly.
//!
//! Each test goes through its points in turn with one job, whose offsets must only grow. What was done before the point
//! stands, what was to come after it is done by the next process; so each point says where reading goes on.

use std::collections::BTreeMap;

use handover::crash_point::CrashPoint;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    e2e::{
        Scene, decided, earliest,
        warehouse::Warehouse,
        watch::{assert_history_grows, await_newer_checkpoint},
    },
    support::wait::{SOON, eventually},
};

/// What one round sends to each partition.
const SOME: usize = 10;
const SENT: i64 = 10;

/// One job on two partitions, what its topic holds, and what was seen of it.
struct Life {
    scene: Scene,
    produced: i64,
    checkpoint: i64,
    epoch: i64,
}

impl Life {
    fn begin(name: &str) -> Self {
        let scene = Scene::new(name, 2);
        scene.run(&earliest());
        let mut life = Self {
            scene,
            produced: 0,
            checkpoint: 0,
            epoch: 0,
        };
        life.produce();
        life.await_all();
        life.scene.job.checkpoint();
        life.has_grown();
        life
    }

    fn produce(&mut self) {
        self.scene.produce_all(SOME);
        self.produced += SENT;
    }

    fn everything(&self) -> BTreeMap<i32, i64> {
        (0..2).map(|partition| (partition, self.produced)).collect()
    }

    /// Waits until everything has come at least once.
    fn await_all(&self) {
        let scene = &self.scene;
        scene
            .server
            .log
            .await_complete(0, &scene.name, &self.everything(), SOON);
    }

    /// Fails if the number of the newest checkpoint or the epoch has not grown since the last look.
    fn has_grown(&mut self) {
        let (checkpoint, _) = self.scene.checkpointed();
        assert!(
            checkpoint > self.checkpoint,
            "{checkpoint} after {}",
            self.checkpoint
        );
        self.checkpoint = checkpoint;
        let view = self.scene.job.view();
        let Some(epoch) = view["owner"]["epoch"].as_i64() else {
            return;
        };
        assert!(epoch > self.epoch, "epoch {epoch} after {}", self.epoch);
        self.epoch = epoch;
    }

    fn checkpointed(&self) -> BTreeMap<i32, i64> {
        decided(&self.scene.checkpointed().1)
    }

    /// Begins something that the process does not survive; it may die before it has answered.
    fn call_that_dies(&self, verb: &str, body: &Value) {
        let path = self.scene.job.at(verb);
        let answer = self
            .scene
            .job
            .api
            .try_send(&Method::POST, &path, Some(body));
        assert!(answer.is_ok_and(|answer| answer.status == 202));
    }
}

/// A server that starts a job by itself dies on the way: whatever was done, the job goes on where it was, and under a new
/// epoch each time.
#[test]
fn at_each_point_of_a_start() {
    let mut life = Life::begin("crash-start");
    for point in [
        "lease-taken",
        "sink-claimed",
        "before-start-stored",
        "start-stored",
        "sink-assigned",
    ] {
        life.scene.server.kill();
        life.scene.server.boot_to_crash(point);
        life.scene.server.await_crash();
        let mark = life.scene.server.log.mark();
        life.scene.server.boot();
        life.scene.server.await_state(&life.scene.job, "running");
        life.produce();
        life.await_all();
        let first = life.scene.server.log.first_since(mark, &life.scene.name);
        let wanted = life.produced - SENT;
        assert_eq!(first, [(0, wanted), (1, wanted)].into(), "{point}");
        life.scene.job.checkpoint();
        life.has_grown();
    }
}

/// A start that moves the position is carried to its end by the next process, and moves it once.
#[test]
fn a_start_that_moves_the_position_moves_it_once() {
    let mut life = Life::begin("crash-shift");
    for point in [
        "sink-claimed",
        "before-start-stored",
        "start-stored",
        "sink-assigned",
    ] {
        life.scene.job.stop();
        let mark = life.scene.server.log.mark();
        life.scene.server.kill();
        life.scene.server.boot_to_crash(point);
        life.scene.server.await_ready();
        life.call_that_dies("/start", &json!({"from": "shift", "by": -3}));
        life.scene.server.await_crash();
        life.scene.server.boot();
        life.scene.server.await_state(&life.scene.job, "running");
        let again = life.produced - 3..life.produced;
        life.scene
            .await_exactly(mark, &[(0, again.clone()), (1, again)]);
        life.scene.job.checkpoint();
        life.has_grown();
    }
}

/// A checkpoint that the store has counts although nobody was told; one that it has not does not. The group follows with
/// the next one.
#[test]
fn at_each_point_of_a_checkpoint() {
    let mut life = Life::begin("crash-checkpoint");
    let points = [
        ("batch-written", false, false),
        ("before-sink-prepared", false, false),
        ("sink-prepared", false, false),
        ("before-checkpoint-stored", false, false),
        ("checkpoint-stored", true, false),
        ("before-group-committed", true, false),
        ("group-committed", true, true),
    ];
    for (point, is_stored, is_committed) in points {
        life.scene.server.kill();
        life.scene.server.boot_to_crash(point);
        life.scene.server.await_ready();
        life.scene.server.await_state(&life.scene.job, "running");
        let before = (life.checkpointed(), life.scene.group_offsets());
        life.produce();
        if point != "batch-written" {
            life.await_all();
            life.call_that_dies("/checkpoints", &json!({}));
        }
        life.scene.server.await_crash();
        let after = (life.everything(), life.everything());
        let group = if is_committed { after.1 } else { before.1 };
        assert_eq!(life.scene.group_offsets(), group, "{point}");

        let mark = life.scene.server.log.mark();
        life.scene.server.boot();
        life.scene.server.await_state(&life.scene.job, "running");
        let resumed = if is_stored { after.0 } else { before.0 };
        assert_eq!(life.checkpointed(), resumed, "{point}");
        life.produce();
        life.await_all();
        let first = life.scene.server.log.first_since(mark, &life.scene.name);
        assert_eq!(first, resumed, "{point}");
        life.scene.job.checkpoint();
        life.has_grown();
        assert_eq!(life.scene.group_offsets(), life.everything(), "{point}");
    }
}

/// A stop whose last checkpoint is stored is carried to its end by the next process, and nothing comes twice.
#[test]
fn at_each_point_of_a_stop() {
    let mut life = Life::begin("crash-stop");
    for point in ["checkpoint-stored", "before-stop-settled", "stop-settled"] {
        life.scene.server.kill();
        life.scene.server.boot_to_crash(point);
        life.scene.server.await_ready();
        life.scene.server.await_state(&life.scene.job, "running");
        let mark = life.scene.server.log.mark();
        life.produce();
        life.await_all();
        life.call_that_dies("/stop", &json!({"checkpoint": "required"}));
        life.scene.server.await_crash();
        life.scene.server.boot();
        life.scene.server.await_state(&life.scene.job, "stopped");
        assert_eq!(life.checkpointed(), life.everything(), "{point}");
        eventually("the stop has ended", SOON, || {
            let path = format!("/api/v1/operations?job={}", life.scene.name);
            let operations = life.scene.job.api.get(&path);
            let newest = operations["items"][0].clone();
            if newest["kind"] == "stop" && newest["status"] == "succeeded" {
                Ok(())
            } else {
                Err(format!("{newest:#}"))
            }
        });
        life.scene.job.start(&json!({}));
        life.produce();
        life.await_all();
        let wanted = life.produced - 2 * SENT..life.produced;
        life.scene
            .await_exactly(mark, &[(0, wanted.clone()), (1, wanted)]);
        life.scene.job.checkpoint();
        life.has_grown();
    }
}

/// A job that writes to a table dies at each point of its life, one after the other and without a quiet start in between:
/// whatever the table, the store and the group knew of each other, every record is one row.
#[test]
fn wherever_a_job_with_a_table_dies_every_record_is_one_row() {
    let mut warehouse = Warehouse::start("crash-rows");
    let mut ends = BTreeMap::from([(0, 0), (1, 0)]);
    let mut produce = |scene: &Scene| {
        scene.produce_all(SOME);
        ends.values_mut().for_each(|end| *end += SENT);
        ends.clone()
    };
    await_newer_checkpoint(&warehouse.scene, 0);
    let of_a_stop = [CrashPoint::BeforeStopSettled, CrashPoint::StopSettled];
    let points = CrashPoint::ALL
        .iter()
        .filter(|point| !of_a_stop.contains(point));
    warehouse.scene.server.kill();
    for point in points {
        warehouse.scene.server.boot_to_crash(point.name());
        produce(&warehouse.scene);
        warehouse.scene.server.await_crash();
    }
    warehouse.scene.server.boot();
    let ends = produce(&warehouse.scene);
    eventually("everything is checkpointed", SOON, || {
        match warehouse.scene.checkpointed() {
            (_, offsets) if decided(&offsets) == ends => Ok(()),
            found => Err(format!("{found:?}, wanted {ends:?}")),
        }
    });
    warehouse.assert_one_row_each(&ends);
    assert_history_grows(&warehouse.scene);
    let report = warehouse.scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    assert_eq!(warehouse.scene.group_offsets(), ends);
}

/// A test that waits for a crash at a misspelt point would wait for ever.
#[test]
fn a_point_that_is_none_is_refused_at_the_start() {
    let mut life = Scene::new("crash-nowhere", 1);
    life.server.kill();
    life.server.boot_to_crash("checkpoint-stord");
    let status = life.server.await_exit();
    assert_eq!(status.code(), Some(1));
    let logged = life.server.logged();
    assert!(
        logged.contains("checkpoint-stord") && logged.contains("checkpoint-stored"),
        "{logged}"
    );
}
