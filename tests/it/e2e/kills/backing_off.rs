//! A server dies while a job backs off.

use serde_json::{Value, json};

use crate::{
    e2e::{Scene, restarts::fixed_delay},
    support::wait::{SOON, eventually},
};

/// The pause is neither shortened nor begun anew by the server's death, and what is known of the loop outlives it.
#[test]
fn a_loop_outlives_the_server() {
    let mut scene = Scene::that_panics("kill-backing-off", 1, &fixed_delay(2, "1h"));
    scene.job.start(&json!({}));
    scene.server.await_state(&scene.job, "backing-off");
    let before = scene.job.view();
    for orderly in [false, true] {
        if orderly {
            let (status, _) = scene.server.terminate();
            assert!(status.success());
        } else {
            scene.server.kill();
        }
        scene.server.boot_to_panic("batch-written:2");
        let view = scene.job.view();
        assert_eq!(view["state"], "backing-off", "{view:#}");
        assert_eq!(view["crash_loop"], before["crash_loop"], "{view:#}");
    }

    // A shorter pause for what comes: the second crash is the loop's second, and the third is one too many.
    let spec = json!({"restart": fixed_delay(2, "1ms")});
    scene.job.api.patch(&scene.job.at("/spec"), &spec);
    scene.server.kill();
    let due = "UPDATE jobs SET crash_loop = jsonb_set(crash_loop::jsonb, '{next_attempt_at}', to_jsonb(now()))::json";
    scene.server.database().run(due);
    scene.server.boot_to_panic("batch-written:2");
    scene.server.await_state(&scene.job, "failed");
    let view = scene.job.view();
    let (first, known) = (
        &view["crash_loop"]["first_cause"],
        &before["crash_loop"]["first_cause"],
    );
    assert_eq!(first, known, "{view:#}");
    assert_eq!(view["crash_loop"]["restart"], 2, "{view:#}");
    let summary = view["failure"]["summary"].to_string();
    assert!(summary.contains("; it was restarted 2 times"), "{summary}");
    let attempts = scene.job.api.get(&scene.job.at("/attempts"));
    let kinds: Vec<&Value> = attempts["items"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|attempt| &attempt["kind"])
        .collect();
    assert_eq!(kinds, ["after-crash", "after-crash", "start"]);
    scene.job.start(&json!({}));
    eventually(
        "everything is read",
        SOON,
        || match scene.job.view()["records"].as_i64() {
            Some(10) => Ok(()),
            other => Err(format!("{other:?}")),
        },
    );
}
