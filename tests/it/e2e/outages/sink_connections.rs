//! The network between a job and the database it writes to, cut where it hurts: at a COMMIT.

use fault_proxy::CommitFault;
use serde_json::{Value, json};

use crate::{
    e2e::{
        decided,
        warehouse::Warehouse,
        watch::{assert_history_grows, await_newer_checkpoint, while_watched},
    },
    support::{
        client::block_on,
        producer::Load,
        wait::{SOON, eventually},
    },
};

/// COMMITs of the target are cut under load, before and after it has them, and the target is silent for a while: the job
/// waits, goes on by itself, and every record is one row.
#[test]
fn commits_of_the_target_are_cut_and_every_record_is_one_row() {
    let warehouse = Warehouse::start("sink-cut");
    let scene = &warehouse.scene;
    let load = Load::start(&scene.kafka, &scene.name, 2, 400);
    let mut last = await_newer_checkpoint(scene, 1);
    while_watched(scene, || {
        for round in 1..=60 {
            let fault = if round % 2 == 0 {
                CommitFault::BeforeServer
            } else {
                CommitFault::AnswerDropped
            };
            warehouse.proxy.arm(fault, 1);
            warehouse.await_effective(round);
        }
        last = await_newer_checkpoint(scene, last);

        warehouse.proxy.freeze();
        eventually("a checkpoint waits for the sink", SOON, || {
            let open = scene.job.checkpoints("?status=in-progress");
            if open.len() == 1 {
                Ok(())
            } else {
                Err(format!("{open:#?}"))
            }
        });
        let rows = warehouse.rows();
        assert!(block_on(warehouse.proxy.cut()) > 0);
        warehouse.proxy.thaw();
        last = await_newer_checkpoint(scene, last + 1);
        assert!(warehouse.rows() > rows);
    });
    let ends = load.end();
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"]),
        (&json!("stopped"), &Value::Null),
        "{view:#}"
    );
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
    assert_history_grows(scene);
    warehouse.assert_one_row_each(&ends);
}
