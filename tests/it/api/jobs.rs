//! The list of jobs, and one of them.

use serde_json::json;

use super::Scene;
use crate::support::unique;

#[test]
fn jobs_are_listed_filtered_and_paged() {
    let scene = Scene::new("api-jobs");
    let client = &scene.client;
    let mut names = Vec::new();
    for (name, team) in [
        ("aa", "red"),
        ("bb", "blue"),
        ("cc", "red"),
        ("dd", "green"),
    ] {
        let job = unique(name);
        let mut spec = scene.spec();
        spec["labels"] = json!({"team": team});
        client.job("putSpec", &job).json(&spec).expect(201);
        names.push(json!(job));
    }

    let all = client.call("listJobs", &[]).expect(200);
    assert_eq!(all.each("job"), names);
    assert!(all.body["next"].is_null());
    assert_eq!(all.header("cache-control"), "no-store");

    let first = client.call("listJobs", &[]).query("limit", "3").expect(200);
    assert_eq!(first.each("job"), names[..3]);
    let cursor = first.body["next"].as_str().expect("a cursor");
    let second = client
        .call("listJobs", &[])
        .query("limit", "3")
        .query("after", cursor)
        .expect(200);
    assert_eq!(second.each("job"), names[3..]);
    assert!(second.body["next"].is_null());

    for (name, value, wanted) in [
        ("label.team", "red", vec![0, 2]),
        ("label.team", "red,green", vec![0, 2, 3]),
        ("label.team", "yellow", vec![]),
        ("label.owner", "red", vec![]),
        ("state", "stopped", vec![0, 1, 2, 3]),
        ("state", "running,failed", vec![]),
        ("health", "stopped", vec![0, 1, 2, 3]),
        ("connection", "main", vec![0, 1, 2, 3]),
        ("connection", "other", vec![]),
        ("q", "bb-", vec![1]),
    ] {
        let found = client.call("listJobs", &[]).query(name, value).expect(200);
        let wanted: Vec<_> = wanted
            .into_iter()
            .map(|index: usize| names[index].clone())
            .collect();
        assert_eq!(found.each("job"), wanted, "{name}={value}");
    }
    for sort in ["name", "-checkpoint_lag", "-group_lag", "-age"] {
        let found = client.call("listJobs", &[]).query("sort", sort).expect(200);
        assert_eq!(found.each("job").len(), 4, "{sort}");
    }

    for (name, value) in [
        ("state", "runing"),
        ("health", "sick"),
        ("sort", "lag"),
        ("limit", "0"),
        ("limit", "501"),
        ("limit", "many"),
    ] {
        client
            .call("listJobs", &[])
            .query(name, value)
            .refused("invalid-request");
    }
    client
        .call("listJobs", &[])
        .query("after", "nonsense")
        .refused("invalid-cursor");
    client
        .call("listJobs", &[])
        .query("after", cursor)
        .query("q", "other")
        .refused("invalid-cursor");
    client
        .call("listJobs", &[])
        .header("accept", "text/csv")
        .refused("not-acceptable");
}

#[test]
fn a_job_says_how_it_stands_and_what_to_do_next() {
    let scene = Scene::new("api-job");
    let job = scene.create("api-job");
    let view = scene.client.job("getJob", &job).expect(200);
    assert_eq!(view.body["state"], "stopped");
    assert_eq!(view.body["generation"], 1);
    assert!(view.body["running_generation"].is_null());
    assert!(view.body["lag"]["position"].is_null(), "unknown is null");
    assert!(
        !view.body["summary"]
            .as_str()
            .expect("a sentence")
            .is_empty()
    );
    let next = view.body["next"].as_array().expect("steps");
    assert!(
        next.iter()
            .any(|step| step["curl"].to_string().contains("/start"))
    );
    // Status changes without a new generation, so a tag here would be a lie.
    assert_eq!(view.header("etag"), "");

    for missing in ["nobody", "Nobody", "no_body"] {
        scene.client.job("getJob", missing).refused("job-not-found");
    }
}
