//! Topics that are no longer the ones that were read.

use serde_json::json;

use super::{Scene, earliest};
use crate::support::wait::{SOON, eventually};

/// confluentinc/librdkafka issue 1558: after the broker had lost data the lag was negative, and commits did not mend it.
#[test]
fn a_topic_recreated_shorter_has_no_negative_lag_and_is_read_only_by_choice() {
    let scene = Scene::new("recreated", 1);
    scene.produce(0, 10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10)]);
    scene.job.stop();

    scene.kafka.delete_topic(&scene.name);
    scene.kafka.create_topic(&scene.name, 1);
    scene.produce(0, 3);
    eventually("the new topic is told from the old one", SOON, || {
        let view = scene.job.offsets();
        let row = view.row(0);
        let is_told = row.flags.iter().any(|flag| flag == "topic-recreated");
        if is_told && row.latest == Some(3) && row.checkpointed == Some(10) {
            assert!(row.lag.checkpoint.is_none_or(|lag| lag >= 0), "{row:?}");
            return Ok(());
        }
        Err(format!("{row:?}"))
    });

    let problem = scene.job.refused("/start", &json!({}));
    assert_eq!(
        (problem.status, problem.code.as_str()),
        (409, "start-blocked"),
        "{:#}",
        problem.body
    );
    assert_eq!(
        problem.body["blockers"][0]["code"], "topic-recreated",
        "{:#}",
        problem.body
    );

    let mark = scene.server.log.mark();
    scene.job.start(&json!({"on_topic_recreated": "earliest"}));
    scene.await_exactly(mark, &[(0, 0..3)]);
    scene.await_positions(&[(0, 3)]);
}
