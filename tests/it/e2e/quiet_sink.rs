//! A job with a table behind it that nobody writes to and no checkpoint asks: what the target does is seen all the same.

use reqwest::Method;
use serde_json::{Value, json};

use super::{
    parked::await_parked,
    warehouse::{Lock, Warehouse},
};
use crate::support::wait::{SOON, eventually};

/// Six rows are there, and every reader has come to the end of its log.
fn at_rest(name: &str) -> Warehouse {
    let warehouse = Warehouse::quiet(name);
    warehouse.scene.produce_all(3);
    await_rows(&warehouse, 6);
    warehouse
}

fn await_rows(warehouse: &Warehouse, wanted: i64) {
    eventually("the rows", SOON, || match warehouse.rows() {
        rows if rows == wanted => Ok(()),
        rows => Err(format!("{rows} of {wanted}")),
    });
}

fn health(warehouse: &Warehouse) -> (Value, Value) {
    let view = warehouse.scene.job.view();
    (view["health"]["status"].clone(), view["waiting"].clone())
}

/// The last record before a pause meets a table that somebody has locked: the job says what it waits for, and when it is over.
#[test]
fn a_locked_table_is_seen_while_nothing_is_read_and_seen_to_be_free_again() {
    let warehouse = at_rest("quiet-locked");
    let scene = &warehouse.scene;
    let lock = Lock::take(&warehouse, "orders");
    scene.produce(0, 1);
    eventually("the job waits for the lock", SOON, || {
        match health(&warehouse) {
            (status, waiting)
                if status == "waiting"
                    && waiting[0]["code"] == "sink-error"
                    && waiting
                        .to_string()
                        .contains("lock timeout (SQLSTATE 55P03)") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
    lock.free();
    eventually("nothing is waited for", SOON, || match health(&warehouse) {
        (status, waiting) if status == "ok" && waiting == json!([]) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    await_rows(&warehouse, 7);
    assert_eq!(
        scene.job.checkpoints("?kind=periodic"),
        Vec::<Value>::new(),
        "nothing but the sink itself has said so"
    );
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    warehouse.assert_one_row_each(&scene.ends());
}

/// A record is refused under a code that a missing table has, too, and nothing comes after it: it is named, and can be skipped.
#[test]
fn a_refused_record_is_named_while_nothing_is_read_and_skipped() {
    let warehouse = at_rest("quiet-refused");
    let scene = &warehouse.scene;
    warehouse.target.run(
        "CREATE FUNCTION checks() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           IF NEW.value = 'bad' THEN RAISE 'no customer for %', NEW.value USING ERRCODE = 'undefined_table'; END IF;
           RETURN NEW;
         END $$;
         CREATE TRIGGER checks BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION checks()",
    );
    scene.producer.send(&scene.name, 1, b"bad", None);
    scene.producer.flush();
    let view = await_parked(scene, 1);
    let parked = &view["parked"][0];
    assert_eq!(parked["code"], "blocked-on-record", "{view:#}");
    let record = &parked["record"];
    assert_eq!(
        (&record["topic"], &record["partition"], &record["offset"]),
        (&json!(scene.name), &json!(1), &json!(3)),
        "{view:#}"
    );
    let summary = parked["detail"].as_str().expect("words");
    assert!(
        summary.contains("no customer for bad (SQLSTATE 42P01)"),
        "{summary}"
    );

    let skip = json!({"topic": scene.name, "partition": 1, "offset": 3, "reason": "no customer"});
    let done = scene.job.operate("/skip", &skip);
    assert_eq!(done["changed"], true, "{done:#}");
    scene.server.await_state(&scene.job, "running");
    scene.produce(1, 2);
    await_rows(&warehouse, 8);
    let offsets: Vec<i64> = warehouse
        .target
        .column("SELECT pos FROM orders WHERE part = 1 ORDER BY pos");
    assert_eq!(offsets, [0, 1, 2, 4, 5]);
}

/// What a deleted job leaves in the target: its progress, unless it is purged. The rows stay.
#[test]
fn a_purge_takes_the_progress_from_the_target_and_leaves_the_rows() {
    let warehouse = at_rest("quiet-purged");
    let scene = &warehouse.scene;
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    let kept = || -> Vec<i64> {
        warehouse.target.column(
            "SELECT (SELECT count(*) FROM handover_sink.claims) + (SELECT count(*) FROM handover_sink.progress)",
        )
    };
    scene.job.stop();
    scene.job.delete("");
    assert_eq!(kept(), [3], "a claim and two partitions");

    // The next job of that name begins anew, and keeps a progress of its own.
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    await_rows(&warehouse, 12);
    scene.job.stop();
    assert_eq!(kept(), [6]);

    // While the target does not answer nothing is deleted at all.
    let lock = Lock::take(&warehouse, "handover_sink.claims");
    let name = &scene.name;
    let path = scene
        .job
        .at(&format!("?confirm={name}&purge=true&wait=60s"));
    let refused = scene.job.api.refused(&Method::DELETE, &path, None);
    assert!(refused.body.to_string().contains("55P03"), "{refused:?}");
    assert_eq!(scene.job.state(), "stopped");
    lock.free();

    let deleted = scene.job.delete("&purge=true");
    assert_eq!(deleted["purged"], true, "{deleted:#}");
    assert_eq!(kept(), [3], "what the first job left");
    assert_eq!(warehouse.rows(), 12);
}
