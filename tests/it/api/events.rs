//! The history of a job.

use serde_json::{Value, json};

use super::Scene;

#[test]
fn the_history_is_listed_newest_first_by_kind_and_in_pages() {
    let scene = Scene::new("api-events");
    let client = &scene.client;
    let job = scene.run("api-events");
    client
        .job("patchSpec", &job)
        .json(&json!({"labels": {"team": "billing"}}))
        .expect(200);
    scene.stop(&job);

    let list = || client.job("listEvents", &job);
    let all = list().expect(200);
    let kinds = all.each("kind");
    for kind in [
        "job-created",
        "operation-created",
        "job-started",
        "operation-finished",
        "spec-replaced",
        "job-stopped",
    ] {
        assert!(kinds.contains(&json!(kind)), "{kind}: {:#}", all.body);
    }
    assert_eq!(kinds.last(), Some(&json!("job-created")));
    let ids: Vec<i64> = all.each("id").iter().filter_map(Value::as_i64).collect();
    assert!(ids.windows(2).all(|pair| pair[0] > pair[1]), "{ids:?}");
    let newest = &all.body["items"][0];
    assert!(
        newest["actor"].is_string() && newest["at"].is_string(),
        "{newest:#}"
    );
    assert!(newest["details"].is_object(), "{newest:#}");

    let some = list().query("kind", "job-started,job-stopped").expect(200);
    assert_eq!(some.each("kind"), ["job-stopped", "job-started"]);
    let page = list()
        .query("limit", "1")
        .query("kind", "job-started,job-stopped")
        .expect(200);
    assert_eq!(page.each("kind"), ["job-stopped"]);
    let cursor = page.body["next"].as_str().expect("a cursor");
    let rest = list()
        .query("limit", "1")
        .query("kind", "job-started,job-stopped")
        .query("after", cursor)
        .expect(200);
    assert_eq!(
        (rest.each("kind"), &rest.body["next"]),
        (vec![json!("job-started")], &Value::Null)
    );

    list().query("after", "x").refused("invalid-cursor");
    let refused = list()
        .query("kind", "job-startd")
        .refused("invalid-request");
    let hint = refused.body["hint"].as_str().expect("a hint");
    assert!(hint.starts_with("Did you mean job-started?"), "{hint}");
    client.job("listEvents", "nobody").refused("job-not-found");
}
