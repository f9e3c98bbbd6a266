//! A job whose first run panics, and whose restart is an hour away.

use serde_json::json;

use super::Scene;

pub(super) fn run(file: &'static str) {
    let mut scene = Scene::new("crash-loop", 1);
    scene.server.kill();
    scene.server.boot_to_panic("batch-written:1");
    scene.produce(0, 10);
    let mut spec = scene.spec("earliest");
    spec["restart"] = json!({"strategy": "fixed-delay", "attempts": 9, "delay": "1h"});
    scene.put_and_start(&spec);
    scene.await_view("it backs off", |view| view["state"] == "backing-off");

    let mut page = scene.page(file);
    page.run("Look");
    let mark = scene.server.log.mark();
    page.run("Act");
    page.run("Verify");
    page.end();
    // The run that crashed had stored no progress.
    scene.await_exactly(mark, &[(0, 0..10)]);
    assert_eq!(scene.checkpointed(), [(0, Some(10))].into());
}
