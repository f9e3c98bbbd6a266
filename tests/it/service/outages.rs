//! What is away is waited for, and a stop takes precedence over the wait.

use handover::{
    model::{
        Code, JobState,
        checkpoint::GroupCommitStatus,
        health::HealthStatus,
        operation::OperationStatus,
        start::StartRequest,
        views::{DivergenceCause, SourceStatus},
    },
    service::Service,
};
use serde_json::json;

use super::{PATIENCE, Server, caller, job, produce, succeeded};
use crate::{
    broker::topic,
    support::{Cluster, Database, eventually},
};

/// A port at which nobody listens.
async fn nobody() -> String {
    let socket = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap().to_string();
    drop(socket);
    address
}

async fn waits(service: &Service, job: &handover::model::JobName) -> bool {
    let view = service.job(job).await.unwrap();
    view.state == JobState::Starting && view.health.status == HealthStatus::Waiting
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_waits_for_the_brokers_and_a_stop_calls_it_off() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start_on(&database.url(), locks.path().to_owned(), &nobody().await).await;
    let job = job();
    server.create(&job, "orders", json!({})).await;
    let start = server
        .service
        .start(&job, &StartRequest::auto(), &caller())
        .await
        .unwrap();
    eventually("the start waits", PATIENCE, || waits(&server.service, &job)).await;
    eventually("the operation says what it waits for", PATIENCE, || async {
        let operation = server.service.operation(&start.operation.id).await.unwrap();
        operation.status == OperationStatus::Running && operation.step.contains("waiting")
    })
    .await;
    let offsets = server.offsets(&job).await;
    assert_ne!(offsets.sources.brokers.status, SourceStatus::Ok);

    let stopped = server.stop_job(&job, json!({})).await;
    assert_eq!(succeeded(&stopped)["will_replay"], 0);
    let start = server.end_of(&start.operation).await;
    assert_eq!(start.status, OperationStatus::Canceled);
    assert_eq!(start.error.unwrap()["code"], Code::Superseded.as_str());
    assert_eq!(server.view(&job).await.state, JobState::Stopped);
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_goes_and_comes_back_under_a_running_job() {
    let cluster = Cluster::create();
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(cluster.url(), locks.path().to_owned()).await;
    let topic = topic("store-away", 1).await;
    produce(&topic, 0, 5);
    let job = job();
    server.create(&job, &topic, json!({})).await;
    succeeded(&server.start_job(&job, json!({})).await);
    server.read_all(&job).await;
    let before = server.view(&job).await;
    let newest = || async { server.view(&job).await.last_checkpoint.unwrap() };
    // One more checkpoint, which nobody has read from the store when that goes.
    let known = newest().await.id;
    produce(&topic, 0, 3);
    eventually("another checkpoint", PATIENCE, || async {
        let last = newest().await;
        last.id > known && last.group_commit.status == GroupCommitStatus::Ok
    })
    .await;

    cluster.control(&["down"]);
    let offsets = server.offsets(&job).await;
    assert_eq!(
        offsets.totals.position_lag,
        Some(0),
        "live positions still answer"
    );
    let cause = offsets.partitions[0].divergence.cause;
    assert_ne!(
        cause,
        DivergenceCause::ExternalCommit,
        "the group is rightly ahead of what is known"
    );
    eventually("the job waits for the store", PATIENCE, || async {
        server.view(&job).await.health.status == HealthStatus::Waiting
    })
    .await;
    assert!(!server.service.readiness().await.ready);

    cluster.control(&["up", "--fast"]);
    produce(&topic, 0, 4);
    server.read_all(&job).await;
    let stopped = server
        .stop_job(&job, json!({"checkpoint": "required"}))
        .await;
    assert_eq!(succeeded(&stopped)["will_replay"], 0);
    let after = server
        .service
        .checkpoint(&job, handover::service::CheckpointRef::Latest)
        .await
        .unwrap();
    assert_eq!(
        Some(after.epoch),
        before.owner.map(|owner| owner.epoch),
        "the same run"
    );
    server.app.shut_down().await;
}
