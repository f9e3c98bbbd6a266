//! Deleted jobs: what goes at once, what stays for a while, and that nobody inherits anything.

use handover::{
    engine::{error::StoreError, ports::CheckpointStore},
    model::{
        checkpoint::CheckpointKind,
        event::{EventKind, HistoryEntry},
        ids::{OperationId, PlanId},
        job_state::{DesiredState, JobState},
        operation::{OperationKind, OperationStatus},
        resolver::{PlanTotals, PlannedSink, ResolvedStart, StartBasis},
        start::{PendingStart, StartFrom, StartRequest},
    },
    store::{
        CreateOperation, IdempotencyKey, NewOperation, OperationFilter, OperationOutcome,
        StoredPlan,
    },
};
use serde_json::json;

use super::{World, checkpoint, now, operations::new_operation, spec, start_record};

fn deleted() -> OperationOutcome {
    OperationOutcome::Succeeded {
        changed: true,
        step: "deleted".to_owned(),
        result: json!({"summary": "gone"}),
    }
}

fn keyed(id: &str, job: &handover::store::JobRow) -> NewOperation {
    NewOperation {
        idempotency: Some(IdempotencyKey {
            scope: "test POST /jobs/orders/checkpoints".to_owned(),
            key: "k".to_owned(),
            body_hash: "h".to_owned(),
        }),
        ..new_operation(id, job, OperationKind::Checkpoint)
    }
}

#[tokio::test]
async fn a_job_of_a_deleted_job_s_name_inherits_nothing() {
    let world = World::new().await;
    let store = &world.store;
    let (old, owner, lease) = world.owned_job("orders").await;
    let start = checkpoint(&lease, 1, CheckpointKind::Start, 5);
    store
        .store_start(&lease, &start, &start_record(&old))
        .await
        .unwrap();
    store
        .complete(&lease, &checkpoint(&lease, 2, CheckpointKind::Stop, 9))
        .await
        .unwrap();
    store
        .settle_stopped(&lease, None, JobState::Stopped, None, false)
        .await
        .unwrap();
    let pending = PendingStart {
        id: "one".to_owned(),
        from: StartFrom::Latest,
        partitions: None,
        requested_by: "test".to_owned(),
        at: now(),
    };
    store.set_pending_start(old.uid, &pending).await.unwrap();
    let plan = StoredPlan {
        id: PlanId::from_ulid("01kbe7q2m8h4w1v5x9c3n6t0rz"),
        job: old.uid,
        generation: 1,
        state: None,
        pending_start: None,
        request: StartRequest::auto(),
        resolved: ResolvedStart {
            sink: PlannedSink::default(),
            basis: StartBasis::StartupMode,
            checkpoint: None,
            set_aside: None,
            partitions: Vec::new(),
            totals: PlanTotals::default(),
            bounded: None,
            forgotten: Vec::new(),
            blockers: Vec::new(),
            warnings: Vec::new(),
            summary: String::new(),
        },
        valid_until: now(),
    };
    store.save_plan(&plan).await.unwrap();
    store
        .create_operation(&keyed("op_1", &old), None)
        .await
        .unwrap();
    let delete = new_operation("op_2", &old, OperationKind::Delete);
    store.create_operation(&delete, None).await.unwrap();
    // While it is open nothing else that changes the job can be.
    let start = new_operation("op_3", &old, OperationKind::Start);
    let busy = store
        .create_operation(&start, Some(DesiredState::Running))
        .await;
    assert!(matches!(busy, Ok(CreateOperation::Busy(_))), "{busy:?}");

    let lease = store.take_lease(old.uid, &owner).await.unwrap().unwrap();
    for _repeated in 0..2 {
        store
            .delete_job(&lease, &delete.id, &deleted(), false)
            .await
            .unwrap();
    }
    assert_eq!(store.job(&old.name).await.unwrap(), None);
    assert_eq!(store.job_by_uid(old.uid).await.unwrap(), None);
    let gone = store.create_operation(&start, None).await;
    assert!(matches!(gone, Err(StoreError::NoSuchJob)), "{gone:?}");

    let new = world.job("orders").await;
    assert_ne!(new.uid, old.uid);
    assert_eq!((new.generation, &new.pending_start), (1, &None));
    assert!(store.latest_checkpoint(new.uid).await.unwrap().is_none());
    assert_eq!(store.next_checkpoint_id(new.uid).await.unwrap().0, 1);
    let of_new = OperationFilter {
        job: Some(new.uid),
        limit: 10,
        ..OperationFilter::default()
    };
    assert_eq!(store.operations(&of_new).await.unwrap(), []);
    assert!(store.plan(&plan.id).await.unwrap().is_none());
    // The same key is a new request.
    let again = store.create_operation(&keyed("op_4", &new), None).await;
    assert!(
        matches!(again, Ok(CreateOperation::Created(_))),
        "{again:?}"
    );

    // What was asked of the old one can still be read, and nothing of it is open.
    let of_old = async |id: &str| store.operation(&OperationId::from_text(id)).await;
    let outcome = of_old("op_2").await.unwrap().unwrap();
    assert_eq!(outcome.status, OperationStatus::Succeeded);
    assert_eq!(
        of_old("op_1").await.unwrap().unwrap().status,
        OperationStatus::Canceled
    );
    assert_eq!(world.count("SELECT count(*) FROM checkpoints").await, 2);
    assert_eq!(
        world
            .count("SELECT count(*) FROM events WHERE kind = 'job-deleted'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_purge_takes_the_checkpoints_and_time_takes_the_rest() {
    let world = World::new().await;
    let store = &world.store;
    let mut jobs = Vec::new();
    for (name, purge) in [("kept", false), ("purged", true)] {
        let (job, owner, lease) = world.owned_job(name).await;
        let start = checkpoint(&lease, 1, CheckpointKind::Start, 5);
        store
            .store_start(&lease, &start, &start_record(&job))
            .await
            .unwrap();
        store
            .settle_stopped(&lease, None, JobState::Stopped, None, false)
            .await
            .unwrap();
        assert_eq!(store.count_checkpoints(job.uid).await.unwrap(), 1);
        let delete = new_operation(&format!("op_{name}"), &job, OperationKind::Delete);
        store.create_operation(&delete, None).await.unwrap();
        let lease = store.take_lease(job.uid, &owner).await.unwrap().unwrap();
        store
            .delete_job(&lease, &delete.id, &deleted(), purge)
            .await
            .unwrap();
        let left = store.count_checkpoints(job.uid).await.unwrap();
        assert_eq!(left, i64::from(!purge));
        jobs.push(job);
    }
    let living = world.job("kept").await;

    // 29 days later.
    sqlx::query("UPDATE jobs SET deleted_at = deleted_at - interval '29 days'")
        .execute(&world.sql)
        .await
        .unwrap();
    store.prune().await.unwrap();
    assert_eq!(store.count_checkpoints(jobs[0].uid).await.unwrap(), 1);
    // 31 days later, but somebody looked after the history.
    sqlx::query("UPDATE jobs SET deleted_at = deleted_at - interval '2 days'")
        .execute(&world.sql)
        .await
        .unwrap();
    store.prune().await.unwrap();
    assert_eq!(store.count_checkpoints(jobs[0].uid).await.unwrap(), 0);
    assert_eq!(world.count("SELECT count(*) FROM jobs").await, 3);
    for table in [
        "UPDATE operations SET finished_at = finished_at - interval '31 days'",
        "UPDATE events SET at = at - interval '31 days'",
    ] {
        sqlx::query(table).execute(&world.sql).await.unwrap();
    }
    store.prune().await.unwrap();
    assert_eq!(world.count("SELECT count(*) FROM jobs").await, 1);
    assert_eq!(world.count("SELECT count(*) FROM job_leases").await, 1);
    assert_eq!(world.reload(&living).await.uid, living.uid);
}

#[tokio::test]
async fn a_job_that_runs_is_not_deleted_and_a_lost_lease_deletes_nothing() {
    let world = World::new().await;
    let store = &world.store;
    let (job, owner, lease) = world.owned_job("orders").await;
    let delete = new_operation("op_1", &job, OperationKind::Delete);
    store.create_operation(&delete, None).await.unwrap();
    store
        .set_state(&lease, JobState::Running, None)
        .await
        .unwrap();
    let running = store
        .delete_job(&lease, &delete.id, &deleted(), false)
        .await;
    assert!(
        matches!(running, Err(StoreError::Refused(_))),
        "{running:?}"
    );
    // The transaction was rolled back: the lease is still held.
    store
        .set_state(&lease, JobState::Stopped, None)
        .await
        .unwrap();
    let newer = store.take_lease(job.uid, &owner).await.unwrap().unwrap();
    for late in [
        store.delete_job(&lease, &delete.id, &deleted(), true).await,
        store
            .end_at_rest(&lease, &delete.id, &deleted(), None)
            .await,
        store.point_of_no_return(&lease, &delete.id, "late").await,
    ] {
        assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    }
    assert!(store.job(&job.name).await.unwrap().is_some());

    store
        .point_of_no_return(&newer, &delete.id, "now")
        .await
        .unwrap();
    let entry = HistoryEntry {
        kind: EventKind::GroupMoved,
        details: json!({"operation": "op_1"}),
    };
    for _repeated in 0..2 {
        store
            .end_at_rest(&newer, &delete.id, &deleted(), Some(&entry))
            .await
            .unwrap();
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM events WHERE kind = 'group-moved'")
            .await,
        1
    );
    assert_eq!(world.reload(&job).await.owner, None);
    let lease = store.take_lease(job.uid, &owner).await.unwrap().unwrap();
    let ended = store.point_of_no_return(&lease, &delete.id, "again").await;
    assert!(matches!(ended, Err(StoreError::Refused(_))), "{ended:?}");
}

#[tokio::test]
async fn who_else_uses_a_group_is_known_by_connection() {
    let world = World::new().await;
    let store = &world.store;
    let shared = json!({"source": {"group_id": "g", "allow_shared_group": true}});
    let mut uids = Vec::new();
    for name in ["a", "b"] {
        uids.push(
            super::put(store, name, &spec(name, shared.clone()))
                .await
                .uid,
        );
    }
    let others = |connection| store.other_users_of_group(uids[0], connection, "g");
    let names = others("main").await.unwrap();
    assert_eq!(names, ["b".parse().unwrap()]);
    assert!(others("other").await.unwrap().is_empty());
}
