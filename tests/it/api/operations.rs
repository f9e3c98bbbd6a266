//! What was asked for, and what became of it.

use super::Scene;

#[test]
fn operations_are_kept_listed_and_shown() {
    let mut scene = Scene::new("api-operations");
    let job = scene.run("api-operations");
    let other = scene.run("api-operations-other");
    scene.stop(&job);
    // They live in the store.
    let (status, _) = scene.server.terminate();
    assert!(status.success());
    scene.server.boot();

    let client = &scene.client;
    let list = || client.call("listOperations", &[]);
    let of_job = list().query("job", &job).expect(200);
    assert_eq!(of_job.each("kind"), ["stop", "start"], "newest first");
    assert_eq!(
        list().query("job", &other).expect(200).each("kind").len(),
        1
    );
    assert_eq!(
        list().query("kind", "start").expect(200).each("kind").len(),
        2
    );
    assert_eq!(
        list()
            .query("status", "failed")
            .expect(200)
            .each("kind")
            .len(),
        0
    );
    let page = list().query("limit", "2").expect(200);
    let rest = list()
        .query("limit", "2")
        .query("after", page.body["next"].as_str().expect("a cursor"))
        .expect(200);
    assert_eq!(rest.each("id").len(), 1);
    assert!(rest.body["next"].is_null());
    list().query("kind", "begin").refused("invalid-request");
    list().query("after", "x").refused("invalid-cursor");
    list().query("job", "nobody").refused("job-not-found");

    let show = |id: &str| client.call("getOperation", &[("operation", id)]);
    let shown = show(of_job.body["items"][0]["id"].as_str().expect("an id"))
        .query("wait", "1s")
        .expect(200);
    assert_eq!(shown.body, of_job.body["items"][0]);
    for missing in ["op_00000000000000000000000000", "op_", "x"] {
        show(missing).refused("operation-not-found");
    }
}
