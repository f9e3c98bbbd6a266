//! Numbers of a job over time.

use handover::model::series::SeriesName;
use serde_json::{Value, json};

use super::Scene;
use crate::support::wait::{SOON, eventually};

/// Points of a series of an answer.
fn points(answer: &Value, series: usize) -> &Vec<Value> {
    let points = answer["series"][series]["points"].as_array();
    points.unwrap_or_else(|| panic!("no points: {answer:#}"))
}

#[test]
fn numbers_are_kept_over_a_stop_and_null_where_they_are_not_known() {
    let scene = Scene::new("api-series");
    let client = &scene.client;
    let job = scene.run("api-series");
    let series = || {
        client
            .job("jobSeries", &job)
            .query("names", "records_per_s,checkpoint_lag,stages.idle")
            .query("window", "2m")
    };
    let running = eventually("two points of a run", SOON, || {
        let answer = series().expect(200).body;
        let known = points(&answer, 2).iter().filter(|point| !point.is_null());
        (known.count() >= 1).then_some(answer.clone()).ok_or(answer)
    });
    assert!(running["since"].is_string(), "{running:#}");
    assert_eq!(running["at"].as_array().map(Vec::len), Some(12));
    assert_eq!(running["step_ms"], 10_000, "{running:#}");
    assert_eq!(points(&running, 0).len(), 12, "{running:#}");
    assert_eq!(points(&running, 0)[0], Value::Null, "{running:#}");
    assert_eq!(running["series"][1]["unit"], "offsets", "{running:#}");
    scene.stop(&job);
    let stopped = eventually("a point without a run", SOON, || {
        let answer = series().expect(200).body;
        let newest = answer["at"][11].as_str() > running["at"][11].as_str();
        let gap = newest && points(&answer, 2)[11].is_null();
        gap.then_some(answer.clone()).ok_or(answer)
    });
    // The share of the run is still there, and the lag is known without a run.
    let known = points(&stopped, 2).iter().any(|point| !point.is_null());
    assert!(known, "{stopped:#}");
    assert_eq!(points(&stopped, 1)[11].as_f64(), Some(0.0), "{stopped:#}");
    assert_eq!(points(&stopped, 0)[11], Value::Null, "{stopped:#}");
    assert_eq!(stopped["since"], running["since"]);

    let day = client
        .job("jobSeries", &job)
        .query("window", "24h")
        .query("step", "10m")
        .expect(200)
        .body;
    assert_eq!(day["at"].as_array().map(Vec::len), Some(144));
    let named = day["series"].as_array().into_iter().flatten();
    let named: Vec<&Value> = named.map(|series| &series["name"]).collect();
    let all = SeriesName::ALL.map(|name| json!(name));
    assert_eq!(named, all.iter().collect::<Vec<_>>());
}

#[test]
fn what_is_not_kept_is_refused_with_what_is() {
    let scene = Scene::new("api-series-refused");
    let client = &scene.client;
    let job = scene.run("api-series-refused");
    let refused = |query: &[(&str, &str)]| {
        let mut call = client.job("jobSeries", &job);
        for (name, value) in query {
            call = call.query(name, value);
        }
        let problem = call.refused("invalid-request");
        problem.body["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let names = refused(&[("names", "records_per_s,lag")]);
    for word in [
        "`lag`",
        "`records_per_s`",
        "`group_lag`",
        "`stages.sink_write`",
    ] {
        assert!(names.contains(word), "{names}");
    }
    for (query, words) in [
        (vec![("window", "25h")], "to 1d"),
        (vec![("window", "5s")], "one step (10s)"),
        (vec![("step", "15s")], "a multiple of 10s"),
        (vec![("step", "0s")], "a multiple of 10s"),
        (vec![("window", "2h"), ("step", "30s")], "a multiple of 1m"),
        (vec![("window", "soon")], "no duration"),
    ] {
        let detail = refused(&query);
        assert!(detail.contains(words), "{query:?}: {detail}");
    }
    client.job("jobSeries", "nobody").refused("job-not-found");
}
