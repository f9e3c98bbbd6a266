//! What is asked of a job that does not run, when the server dies in the middle of it.

use handover::{
    model::{
        Code,
        ids::OperationId,
        operation::{Operation, OperationKind},
    },
    store::{CreateOperation, NewOperation, Store, StoreConfig},
};
use serde_json::{Value, json};

use super::{Server, failed_with, job, succeeded};
use crate::{broker::topic, support::Database};

/// Stores an operation as a server that died left it.
async fn leave(store: &Store, job: &str, kind: OperationKind, request: Value) -> Operation {
    let row = store.job(&job.parse().unwrap()).await.unwrap().unwrap();
    let ulid = uuid::Uuid::now_v7().simple().to_string();
    let new = NewOperation {
        id: OperationId::from_text(&format!("op_{}", &ulid[..26])),
        job: row.uid,
        kind,
        request,
        requested_by: "test".to_owned(),
        reason: None,
        request_id: None,
        idempotency: None,
        supersedes: Vec::new(),
    };
    let created = store.create_operation(&new, None).await.unwrap();
    let CreateOperation::Created(operation) = created else {
        panic!("{created:?}");
    };
    store
        .operation_step(&operation.id, "under way")
        .await
        .unwrap();
    operation
}

/// A group that may have been moved is not moved again: `shift` would move it twice. A deletion is carried to its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_not_repeated_and_a_deletion_is_finished_by_the_next_server() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("at-rest", 1).await;
    let (moved, deleted) = (job(), job());
    server.create(&moved, &topic, json!({})).await;
    let other = json!({"source": {"connection": "main", "topics": [topic]}});
    server.create(&deleted, &topic, other).await;
    server.app.shut_down().await;

    let store = Store::connect_lazy(&StoreConfig {
        url: database.url(),
        max_connections: 2,
    })
    .unwrap();
    let shift = json!({"to": {"mode": "shift", "by": -1}});
    let reset = leave(&store, moved.as_str(), OperationKind::ResetOffsets, shift).await;
    let request = json!({"purge": true, "group": "delete"});
    let deletion = leave(&store, deleted.as_str(), OperationKind::Delete, request).await;

    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let reset = server.end_of(&reset).await;
    failed_with(&reset, "owner-lost");
    // The job is free again.
    let started = server.start_job(&moved, json!({})).await;
    succeeded(&started);
    let deletion = server.end_of(&deletion).await;
    assert_eq!(succeeded(&deletion)["group"]["outcome"], "absent");
    let gone = server.service.job(&deleted).await.unwrap_err();
    assert_eq!(gone.code, Code::JobNotFound);
    server.app.shut_down().await;
}
