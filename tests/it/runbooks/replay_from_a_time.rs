//! Records of an instant on are wanted again.

use super::Scene;

/// 2025-11-28T02:00:00+01:00, the instant of the page.
const INSTANT_MS: i64 = 1_764_291_600_000;

pub(super) fn run(file: &'static str) {
    let scene = Scene::new("replay", 2);
    // A record a minute, ten before the instant and five from it on; the second partition has none from it on.
    for minute in -10..5 {
        let at = INSTANT_MS + minute * 60_000;
        scene.producer.produce_at(&scene.name, 0, at);
    }
    scene
        .producer
        .produce_at(&scene.name, 1, INSTANT_MS - 60_000);
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &[(0, 0..15), (1, 0..1)]);

    let mark = scene.server.log.mark();
    let mut page = scene.page(file);
    page.next_needs("T", "2025-11-28T02:00:00+01:00");
    page.run("Look");
    page.run("Act");
    page.run("Verify");
    scene.await_exactly(mark, &[(0, 10..15)]);

    // The way back repeats nothing and leaves nothing out.
    let mark = scene.server.log.mark();
    page.run("Go back");
    page.end();
    scene.produce(0, 1);
    scene.await_exactly(mark, &[(0, 15..16)]);
}
