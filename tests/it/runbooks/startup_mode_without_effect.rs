//! A spec got another startup mode, the job was restarted, and nothing was read again.

use serde_json::json;

use super::{
    Scene,
    table::{self, await_rows, databases},
};

pub(super) fn run(file: &'static str) {
    let scene = Scene::new("mode", 2);
    scene.produce(0, 10);
    scene.produce(1, 10);
    scene.put_and_start(&scene.spec("latest"));
    scene.produce(0, 5);
    scene.await_exactly(0, &[(0, 10..15)]);
    scene.job.put_spec(&scene.spec("earliest"));
    scene.job.stop();
    scene.job.start(&json!({}));
    assert_eq!(scene.server.log.mark(), 5, "nothing happened");

    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    scene.await_exactly(mark, &[(0, 0..15), (1, 0..10)]);

    let mark = scene.server.log.mark();
    page.run("Go back");
    page.end();
    scene.produce(1, 3);
    scene.await_exactly(mark, &[(1, 10..13)]);
}

/// A healthy job that appends to a table, and a mode that would read everything again; then one that would read nothing of what
/// is unread.
#[test]
fn the_page_writes_nothing_twice_and_passes_nothing_over_unless_told() {
    let (target, store) = databases();
    let scene = table::scene("mode-table", &target.url(), &store);
    scene.put_and_start(&table::spec(&scene, "latest"));
    scene.produce(0, 10);
    await_rows(&target, 10);
    scene.job.checkpoint();
    scene.job.put_spec(&table::spec(&scene, "earliest"));
    let page_up_to_the_start = || {
        let mut page = scene
            .page("startup-mode-without-effect.md")
            .with_other_numbers();
        page.run("Look");
        page.run_one("Act");
        page.run_one("Act");
        let plan = page.run_one("Act").join("\n");
        (page, plan)
    };
    let (mut page, plan) = page_up_to_the_start();
    assert!(plan.contains("sink-may-duplicate"), "{plan}");
    page.next_stops("WRITE_TWICE");
    assert_eq!(scene.job.state(), "stopped");
    scene.job.start(&json!({"from": "checkpoint"}));
    scene.job.stop();
    assert_eq!(target.column::<i64>("SELECT count(*) FROM orders"), [10]);

    scene.job.put_spec(&table::spec(&scene, "latest"));
    scene.produce(0, 5);
    let (mut page, plan) = page_up_to_the_start();
    assert!(!plan.contains("sink-may-duplicate"), "{plan}");
    page.next_stops("PASS_OVER");
    assert_eq!(scene.job.state(), "stopped");
    scene.job.start(&json!({"from": "checkpoint"}));
    await_rows(&target, 15);
}
