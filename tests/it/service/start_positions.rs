//! Plans tell the truth: what a start is said to read is what it reads.

use handover::model::{JobState, start::StartRequest, startup_mode::OffsetsByTopic};
use serde_json::{Value, json};

use super::{Server, failed_with, job, produce, produce_at, succeeded};
use crate::{broker::topic, support::Database};

#[tokio::test(flavor = "multi_thread")]
async fn each_mode_reads_what_its_plan_says() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("modes", 2).await;
    produce_at(&topic, 0, 10, 1_700_000_000_000);
    produce_at(&topic, 1, 4, 1_700_000_100_000);
    let offsets: OffsetsByTopic =
        serde_json::from_value(json!({topic.as_str(): {"0": 9, "1": 1}})).unwrap();
    let modes: [(Value, i64); 5] = [
        (json!({"mode": "earliest"}), 14),
        (json!({"mode": "latest"}), 0),
        (
            json!({"mode": "timestamp", "timestamp": "2023-11-14T22:13:20.005Z"}),
            5 + 4,
        ),
        (
            json!({"mode": "timestamp", "timestamp": "2023-12-14T22:13:25Z"}),
            0,
        ),
        (
            json!({"mode": "specific-offsets", "offsets": offsets}),
            1 + 3,
        ),
    ];
    for (number, (mode, expected)) in modes.into_iter().enumerate() {
        let job = job();
        let source = json!({"connection": "main", "topics": [topic], "group_id": format!("{topic}-{number}")});
        server
            .create(
                &job,
                &topic,
                json!({"startup_mode": mode, "source": source}),
            )
            .await;
        let plan = server
            .service
            .start_plan(&job, &StartRequest::auto())
            .await
            .unwrap();
        assert_eq!(plan.resolved.totals.to_read, expected, "{mode}");
        succeeded(&server.start_job(&job, json!({})).await);
        server.read_all(&job).await;
        let records = server.view(&job).await.records.unwrap();
        assert_eq!(i64::try_from(records).unwrap(), expected, "{mode}");
        succeeded(&server.stop_job(&job, json!({})).await);
    }
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_without_offsets_blocks_a_start_until_somebody_decides() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("blocked", 1).await;
    produce(&topic, 0, 3);
    let job = job();
    server
        .create(
            &job,
            &topic,
            json!({"startup_mode": {"mode": "group-offsets"}}),
        )
        .await;
    let blocked = server.start_job(&job, json!({})).await;
    let error = failed_with(&blocked, "start-blocked");
    assert_eq!(error["blockers"][0]["code"], "group-missing");
    let view = server.view(&job).await;
    assert_eq!(view.state, JobState::Stopped);
    assert_eq!(view.owner, None);
    let choice = view
        .next
        .iter()
        .find(|step| step.curl.contains("\"earliest\""))
        .unwrap();
    let body = choice
        .curl
        .split("-d '")
        .nth(1)
        .unwrap()
        .trim_end_matches('\'');
    succeeded(
        &server
            .start_job(&job, serde_json::from_str(body).unwrap())
            .await,
    );
    server.read_all(&job).await;
    assert_eq!(server.view(&job).await.records, Some(3));
    server.app.shut_down().await;
}
