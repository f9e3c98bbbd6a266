//! A startup mode that a checkpoint makes ineffective is never changed without saying so.

use handover::model::{Code, start::StartRequest};
use serde_json::json;

use super::{PATIENCE, Server, caller, job, produce, succeeded};
use crate::{
    broker::topic,
    support::{Database, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn next_start_counts_once_and_only_for_an_operator() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("once", 1).await;
    produce(&topic, 0, 6);
    let job = job();
    server
        .create(&job, &topic, json!({"startup_mode": {"mode": "latest"}}))
        .await;
    let service = &server.service;
    // Without a checkpoint the mode is simply stored.
    let view = service
        .set_startup_mode(&job, &json!({"mode": "earliest"}), None, false, &caller())
        .await
        .unwrap();
    assert_eq!((view.changed, view.effective), (Some(true), true));
    succeeded(&server.start_job(&job, json!({})).await);
    server.read_all(&job).await;
    // What a start would read again is counted from the checkpoint.
    eventually("all is checkpointed", PATIENCE, || async {
        server.offsets(&job).await.totals.checkpoint_lag == Some(0)
    })
    .await;

    let latest = json!({"mode": "latest"});
    let refused = service
        .set_startup_mode(&job, &latest, None, false, &caller())
        .await
        .unwrap_err();
    assert_eq!(refused.code, Code::StartupModeShadowed);
    assert_eq!(refused.choices.len(), 3);
    assert!(
        refused.choices[0]["curl"]
            .as_str()
            .unwrap()
            .contains("\"apply\":\"next-start\"")
    );

    // The same mode again is never refused.
    let same = json!({"mode": "earliest"});
    let view = service
        .set_startup_mode(&job, &same, None, false, &caller())
        .await
        .unwrap();
    assert_eq!(
        (view.changed, view.because),
        (Some(false), Some("checkpoint-exists"))
    );

    let again = json!({"mode": "earliest", "apply": "next-start"});
    let view = service
        .set_startup_mode(&job, &again, None, false, &caller())
        .await
        .unwrap();
    assert!(view.effective && view.job_is_running);
    assert_eq!(view.estimate.unwrap().replayed, 6);

    // The server's own restart leaves it alone.
    let lock_dir = server.lock_dir.clone();
    server.app.shut_down().await;
    let server = Server::start(&database.url(), lock_dir).await;
    server
        .in_state(&job, handover::model::JobState::Running)
        .await;
    server.read_all(&job).await;
    let view = server.view(&job).await;
    assert_eq!(view.records, Some(0));
    assert!(view.pending_start.is_some());

    succeeded(&server.stop_job(&job, json!({})).await);
    let plan = server
        .service
        .start_plan(&job, &StartRequest::auto())
        .await
        .unwrap();
    assert_eq!(plan.resolved.totals.replayed, 6);
    let started = server.start_job(&job, json!({})).await;
    assert_eq!(succeeded(&started)["basis"], "one-shot");
    server.read_all(&job).await;
    assert_eq!(server.view(&job).await.records, Some(6));
    assert_eq!(server.view(&job).await.pending_start, None);
    succeeded(&server.stop_job(&job, json!({})).await);
    let plan = server
        .service
        .start_plan(&job, &StartRequest::auto())
        .await
        .unwrap();
    assert_eq!(plan.resolved.totals.replayed, 0, "once");
    server.app.shut_down().await;
}
