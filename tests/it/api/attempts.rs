//! The runs of a job.

use serde_json::{Value, json};

use super::Scene;

#[test]
fn runs_are_listed_newest_first_and_in_pages() {
    let scene = Scene::new("api-attempts");
    let client = &scene.client;
    let job = scene.run("api-attempts");
    scene.stop(&job);
    client
        .job("startJob", &job)
        .query("wait", "60s")
        .expect(200);
    client
        .job("restartJob", &job)
        .query("wait", "60s")
        .expect(200);

    let list = || client.job("listAttempts", &job);
    let all = list().expect(200);
    assert_eq!(
        all.each("kind"),
        ["restart", "start", "start"],
        "{:#}",
        all.body
    );
    assert_eq!(all.each("attempt"), [3, 2, 1]);
    assert_eq!(
        all.each("outcome"),
        [Value::Null, json!("stopped"), json!("stopped")]
    );
    let oldest = &all.body["items"][2];
    assert_eq!(
        (&oldest["records"], &oldest["cause"]),
        (&json!(30), &Value::Null)
    );
    let operation = oldest["operation"].as_str().expect("an operation");
    client
        .call("getOperation", &[("operation", operation)])
        .expect(200);

    let page = list().query("limit", "2").expect(200);
    assert_eq!(page.each("attempt"), [3, 2]);
    let cursor = page.body["next"].as_str().expect("a cursor");
    let rest = list()
        .query("limit", "2")
        .query("after", cursor)
        .expect(200);
    assert_eq!(
        (rest.each("attempt"), &rest.body["next"]),
        (vec![json!(1)], &Value::Null)
    );
    list().query("after", "x").refused("invalid-cursor");
    list()
        .query("outcome", "crashed")
        .refused("unknown-parameter");
    client
        .job("listAttempts", "nobody")
        .refused("job-not-found");
}
