//! A skip is stored wholly or not at all.

use handover::{
    engine::error::StoreError,
    model::{
        checkpoint::CheckpointKind,
        ids::CheckpointId,
        job_state::{DesiredState, JobState},
        offset::Offset,
        operation::OperationKind,
        skip::SkipRequest,
        views::SkipReport,
    },
    store::OperationOutcome,
};
use serde_json::json;

use super::{World, checkpoint, operations::new_operation};

fn report() -> SkipReport {
    let body = json!({"topic": "orders", "partition": 0, "offset": 7, "reason": "no JSON"});
    SkipReport {
        summary: "left out".to_owned(),
        skipped: SkipRequest::read(&body).unwrap(),
        next_offset: Offset::new(8),
        checkpoint: Some(CheckpointId(2)),
        record: None,
        desired_state: DesiredState::Stopped,
        dry_run: false,
    }
}

fn done() -> OperationOutcome {
    OperationOutcome::Succeeded {
        changed: true,
        step: "done".to_owned(),
        result: json!(report()),
    }
}

#[tokio::test]
async fn a_skip_ends_with_its_checkpoint_its_operation_and_the_lease() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let new = new_operation("op_1", &job, OperationKind::Skip);
    world.store.create_operation(&new, None).await.unwrap();
    let skip = checkpoint(&lease, 2, CheckpointKind::Skip, 8);
    // Twice, as after an answer that was lost.
    for _ in 0..2 {
        world
            .store
            .end_skip(&lease, &new.id, &done(), Some((&skip, &report())))
            .await
            .unwrap();
    }
    let stored = world
        .store
        .latest_checkpoint(job.uid)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((stored.id, stored.kind), (skip.id, CheckpointKind::Skip));
    assert_eq!(
        stored.group_commit.status,
        handover::model::checkpoint::GroupCommitStatus::Off
    );
    let operation = world.store.operation(&new.id).await.unwrap().unwrap();
    assert_eq!(operation.changed, Some(true));
    let row = world.reload(&job).await;
    assert_eq!((row.state, row.owner), (JobState::Stopped, None));
    let events = "SELECT count(*) FROM events WHERE kind = 'record-skipped'";
    assert_eq!(world.count(events).await, 1);
    let late = checkpoint(&lease, 3, CheckpointKind::Skip, 9);
    let new = new_operation("op_2", &job, OperationKind::Skip);
    world.store.create_operation(&new, None).await.unwrap();
    let other = world.instance("other").await;
    world
        .store
        .take_lease(job.uid, &other)
        .await
        .unwrap()
        .unwrap();
    let fenced = world
        .store
        .end_skip(&lease, &new.id, &done(), Some((&late, &report())))
        .await;
    assert!(matches!(fenced, Err(StoreError::Fenced)), "{fenced:?}");
}

#[tokio::test]
async fn a_skip_that_was_called_off_leaves_nothing() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let new = new_operation("op_1", &job, OperationKind::Skip);
    world.store.create_operation(&new, None).await.unwrap();
    let mut stop = new_operation("op_2", &job, OperationKind::Stop);
    stop.supersedes = vec![OperationKind::Skip];
    world.store.create_operation(&stop, None).await.unwrap();
    let skip = checkpoint(&lease, 2, CheckpointKind::Skip, 8);
    world
        .store
        .end_skip(&lease, &new.id, &done(), Some((&skip, &report())))
        .await
        .unwrap();
    assert!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(world.reload(&job).await.owner, None);
}

#[tokio::test]
async fn the_hash_is_the_published_one() {
    let world = World::new().await;
    // FIPS 180-4, the example "abc".
    assert_eq!(
        world.store.sha256(b"abc".to_vec()).await.unwrap(),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}
