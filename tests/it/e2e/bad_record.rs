//! A record that cannot be read.

use serde_json::json;

use super::{Scene, earliest, with};

/// Flink's failure did not even name topic, partition and offset until FLINK-39320. lightbend/cloudflow issue 496: only a
/// closed hand-over was reported, the cause was hidden.
#[test]
fn a_record_that_is_no_json_fails_the_job_by_name_and_is_stepped_over_by_a_start_behind_it() {
    let scene = Scene::new("bad-record", 2);
    scene.produce(0, 7);
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    scene.produce(0, 5);
    scene.produce(1, 3);
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    scene
        .job
        .put_spec(&with(spec, "/checkpoint/interval", json!("100ms")));
    scene.job.start(&json!({}));
    scene.server.await_state(&scene.job, "failed");

    let view = scene.job.view();
    let failure = &view["failure"];
    assert_eq!(failure["code"], "blocked-on-record", "{view:#}");
    assert_eq!(failure["record"]["topic"], json!(scene.name), "{view:#}");
    assert_eq!(
        (
            &failure["record"]["partition"],
            &failure["record"]["offset"]
        ),
        (&json!(0), &json!(7)),
        "{view:#}"
    );
    assert_eq!(failure["record"]["value_bytes"], 9, "{view:#}");
    assert_eq!(failure["phase"], "decode", "{view:#}");
    let (_, offsets) = scene.checkpointed();
    assert!(
        offsets[&0].expect("a number") <= 7,
        "no checkpoint lies behind the record: {offsets:?}"
    );

    // A bare start meets the same record and says the same.
    scene.job.operate_any("/start", &json!({}));
    scene.server.await_state(&scene.job, "failed");
    let delivered = scene.server.log.since(0, &scene.name);
    assert!(
        delivered
            .get(&0)
            .is_none_or(|offsets| offsets.iter().all(|offset| *offset < 7)),
        "{delivered:?}"
    );

    let mark = scene.server.log.mark();
    let behind = json!({"from": "specific-offsets", "offsets": {&scene.name: {"0": 8}}, "partitions": {&scene.name: [0]}});
    scene.job.start(&behind);
    scene.produce(0, 1);
    crate::support::wait::eventually("the records behind it", crate::support::wait::SOON, || {
        let found = scene
            .server
            .log
            .since(mark, &scene.name)
            .remove(&0)
            .unwrap_or_default();
        if found == (8..14).collect::<Vec<_>>() {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
    assert_eq!(scene.job.state(), "running");
    assert!(scene.job.view()["failure"].is_null());
}
