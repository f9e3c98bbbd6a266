//! Records that are not what the format says, in each of two partitions; and a failed job that comes to the next one.

use serde_json::json;

use super::Scene;

pub(super) fn run(file: &'static str) {
    let scene = Scene::new("bad-record", 2);
    scene.produce(0, 3);
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    scene.produce(0, 4);
    scene.produce(1, 5);
    scene.producer.send(&scene.name, 1, b"{nor this", None);
    scene.producer.flush();
    scene.produce(1, 2);
    let mut spec = scene.spec("earliest");
    spec["source"]["format"] = json!("json");
    scene.put_and_start(&spec);
    scene.await_view("both partitions are parked", |view| {
        view["parked"].as_array().is_some_and(|all| all.len() == 2)
    });
    scene.await_exactly(0, &[(0, 0..3), (1, 0..5)]);

    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    page.end();
    scene.await_exactly(mark, &[(0, 4..8), (1, 6..8)]);
    let view = scene.await_view("it goes on", |view| view["state"] == "running");
    assert_eq!(view["parked"], json!([]), "{view:#}");
    scene.job.stop();
    assert_eq!(scene.checkpointed(), [(0, Some(8)), (1, Some(8))].into());
    // Where nothing stands at a record nothing is waited for either.
    let mut page = scene.page(file);
    page.pass("Look");
    page.pass("Act");
    page.next_stops("AT");
    fails_at_the_next_one(file);
}

/// With `errors.block: job` nothing is parked: the job fails, and fails again at the record behind.
fn fails_at_the_next_one(file: &'static str) {
    let scene = Scene::new("bad-records", 1);
    scene.produce(0, 3);
    for bad in ["{not json", "7", "{nor this"] {
        scene.producer.send(&scene.name, 0, bad.as_bytes(), None);
    }
    scene.producer.flush();
    scene.produce(0, 2);
    let mut spec = scene.spec("earliest");
    spec["source"]["format"] = json!("json");
    spec["errors"] = json!({"block": "job"});
    scene.put_and_start(&spec);
    scene.await_view("it fails", |view| view["state"] == "failed");
    for (again, at) in [(true, 3), (false, 5)] {
        let failed = scene.job.view();
        assert_eq!(failed["failure"]["record"]["offset"], at, "{failed:#}");
        let mut page = scene.page(file).with_other_numbers();
        page.run("Look");
        page.run("Act");
        let said = page.run("Verify").join("\n");
        page.end();
        assert_eq!(said.contains("stands again"), again, "{said}");
        assert_eq!(said.contains("nothing is parked"), !again, "{said}");
    }
}
