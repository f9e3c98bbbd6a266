//! Retention removes what a stopped job had not read.

use super::Scene;
use serde_json::json;

pub(super) fn run(file: &'static str) {
    let scene = Scene::new("out-of-range", 2);
    scene.produce(0, 20);
    scene.produce(1, 20);
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &[(0, 0..20), (1, 0..20)]);
    scene.job.stop();
    scene.produce(0, 100);
    scene.produce(1, 10);
    scene.kafka.delete_records(&scene.name, 0, 70);
    let refused = scene.job.refused("/start", &json!({}));
    assert_eq!(refused.code, "start-blocked", "{:#}", refused.body);

    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    page.end();

    // Exactly what was left, from exactly where the plan said; the other partition from its checkpoint.
    scene.await_exactly(mark, &[(0, 70..120), (1, 20..30)]);
    let landed = scene.job.checkpoints("?kind=start&offsets=true");
    assert_eq!(
        landed[0]["offsets"][&scene.name]["0"]["next_offset"], 70,
        "{landed:#?}"
    );
    assert_eq!(scene.checkpointed(), [(0, Some(120)), (1, Some(30))].into());
}
