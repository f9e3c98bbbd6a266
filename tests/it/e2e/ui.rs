//! The first page in a real browser.

use std::process::Command;

use serde_json::json;

use super::{Scene, earliest, with};
use crate::support::producer::Load;

/// Runs `web/e2e/first-page.mjs`, which holds every number of the page against the API.
#[test]
fn the_first_page_shows_jobs_and_offsets_in_a_browser() {
    let scene = Scene::new("first-page", 3);
    scene.produce(0, 20);
    scene.produce(2, 4);
    scene.producer.send(&scene.name, 2, b"{not json", None);
    scene.producer.flush();
    let spec = with(scene.spec(&earliest()), "/checkpoint/interval", json!("2s"));
    scene
        .job
        .put_spec(&with(spec, "/source/format", json!("json")));
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..20), (2, 0..4)]);
    let load = Load::start(&scene.kafka, &scene.name, 2, 20);
    let web = format!("{}/web", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("node")
        .current_dir(web)
        .args(["e2e/first-page.mjs", &scene.server.base, &scene.name])
        .output()
        .expect("node runs");
    let text = format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    println!("{text}");
    load.end();
}
