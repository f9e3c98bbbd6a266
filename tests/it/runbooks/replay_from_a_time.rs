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

/// The instant lies behind what was read: the records in between are passed over only if that is said.
#[test]
fn an_instant_behind_the_position_stops_the_page() {
    let scene = Scene::new("replay-late", 1);
    let produce = |minutes: std::ops::Range<i64>| {
        for minute in minutes {
            let at = INSTANT_MS + minute * 60_000;
            scene.producer.produce_at(&scene.name, 0, at);
        }
        scene.producer.flush();
    };
    produce(-20..-10);
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &[(0, 0..10)]);
    scene.job.stop();
    produce(-10..0);

    let mark = scene.server.log.mark();
    let mut page = scene.page("replay-from-a-time.md").with_other_numbers();
    page.next_needs("T", "2025-11-28T02:00:00+01:00");
    page.run("Look");
    page.run_one("Act");
    let plan = page.run_one("Act").join("\n");
    assert!(plan.contains("10 offsets skipped"), "{plan}");
    page.next_needs("PASS_OVER", "yes");
    assert_eq!(scene.job.state(), "stopped");
    page.run("Act");
    scene.produce(0, 1);
    scene.await_exactly(mark, &[(0, 20..21)]);
}
