//! A spec got another startup mode, the job was restarted, and nothing was read again.

use super::Scene;
use serde_json::json;

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
