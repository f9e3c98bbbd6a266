//! Operations: one at a time, keys, and what becomes of them.

use handover::{
    engine::error::StoreError,
    model::{
        ids::{JobUid, OperationId},
        job_state::DesiredState,
        operation::{Operation, OperationKind, OperationStatus},
        start::{PendingStart, StartFrom},
    },
    store::{
        CancelStart, CreateOperation, IdempotencyKey, JobRow, NewOperation, OperationFilter,
        OperationOutcome,
    },
};
use serde_json::json;

use super::{World, now};

pub(super) fn new_operation(id: &str, job: &JobRow, kind: OperationKind) -> NewOperation {
    NewOperation {
        id: OperationId::from_text(id),
        job: job.uid,
        kind,
        request: json!({"reason": "INC-4711", "a": 1}),
        requested_by: "test".to_owned(),
        reason: Some("INC-4711".to_owned()),
        request_id: Some("rq_1".to_owned()),
        idempotency: None,
        supersedes: Vec::new(),
    }
}

fn key(body_hash: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey {
        scope: "POST /jobs/orders/start".to_owned(),
        key: "k".to_owned(),
        body_hash: body_hash.to_owned(),
    })
}

fn done() -> OperationOutcome {
    OperationOutcome::Succeeded {
        changed: true,
        step: "done".to_owned(),
        result: json!({"z": 1, "a": 2}),
    }
}

async fn create(world: &World, new: &NewOperation) -> CreateOperation {
    world.store.create_operation(new, None).await.unwrap()
}

fn created(outcome: CreateOperation) -> Operation {
    match outcome {
        CreateOperation::Created(operation) => operation,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_operation_lives_from_queued_to_its_first_outcome() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let new = new_operation("op_1", &job, OperationKind::Start);
    let operation = created(
        world
            .store
            .create_operation(&new, Some(DesiredState::Running))
            .await
            .unwrap(),
    );
    assert_eq!(
        world.reload(&job).await.desired_state,
        DesiredState::Running
    );
    assert_eq!(
        (operation.status, operation.changed, operation.step.as_str()),
        (OperationStatus::Queued, None, "queued")
    );
    assert_eq!(
        (operation.job.as_str(), operation.reason.as_deref()),
        ("orders", Some("INC-4711"))
    );
    assert_eq!(
        world.store.open_operations(job.uid).await.unwrap(),
        [(operation.clone(), new.request.clone())]
    );
    // The caller does not know whether it was stored and asks again.
    assert_eq!(
        create(&world, &new).await,
        CreateOperation::Replayed(operation)
    );

    world
        .store
        .operation_step(&new.id, "resolving")
        .await
        .unwrap();
    let running = world.store.operation(&new.id).await.unwrap().unwrap();
    assert_eq!(
        (running.status, running.step.as_str()),
        (OperationStatus::Running, "resolving")
    );
    world
        .store
        .finish_operation(&new.id, &done())
        .await
        .unwrap();
    let finished = world.store.operation(&new.id).await.unwrap().unwrap();
    assert_eq!(
        (finished.status, finished.changed),
        (OperationStatus::Succeeded, Some(true))
    );
    assert!(finished.finished_at.unwrap() >= finished.created_at);
    // Members in the order in which they were written.
    assert_eq!(
        finished.result.as_ref().unwrap().to_string(),
        r#"{"z":1,"a":2}"#
    );

    let late = OperationOutcome::Failed {
        step: "late".to_owned(),
        error: json!({}),
    };
    world.store.finish_operation(&new.id, &late).await.unwrap();
    world.store.operation_step(&new.id, "late").await.unwrap();
    assert_eq!(
        world.store.operation(&new.id).await.unwrap(),
        Some(finished)
    );
    assert!(
        world
            .store
            .open_operations(job.uid)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        world
            .store
            .operation(&OperationId::from_text("op_\0"))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn one_operation_at_a_time_changes_a_job() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let start = created(create(&world, &new_operation("op_1", &job, OperationKind::Start)).await);
    let stop = new_operation("op_2", &job, OperationKind::Stop);
    assert_eq!(
        create(&world, &stop).await,
        CreateOperation::Busy(start.clone())
    );
    assert_eq!(
        create(&world, &new_operation("op_3", &job, OperationKind::Start)).await,
        CreateOperation::Busy(start.clone())
    );
    world
        .store
        .operation_step(&start.id, "resolving")
        .await
        .unwrap();
    assert!(matches!(
        create(&world, &stop).await,
        CreateOperation::Busy(_)
    ));
    // Another job is not concerned, nor is a checkpoint.
    let other = world.job("other").await;
    created(create(&world, &new_operation("op_4", &other, OperationKind::Stop)).await);
    created(
        create(
            &world,
            &new_operation("op_5", &job, OperationKind::Checkpoint),
        )
        .await,
    );
    world
        .store
        .finish_operation(&start.id, &done())
        .await
        .unwrap();
    created(create(&world, &stop).await);
}

#[tokio::test]
async fn of_many_requests_at_once_one_is_stored() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let (store, new) = (
                world.store.clone(),
                new_operation(&format!("op_{n}"), &job, OperationKind::Stop),
            );
            tokio::spawn(async move { store.create_operation(&new, None).await.unwrap() })
        })
        .collect();
    let mut stored = 0;
    for task in tasks {
        match task.await.unwrap() {
            CreateOperation::Created(_) => stored += 1,
            CreateOperation::Busy(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored, 1);
}

#[tokio::test]
async fn a_stop_supersedes_a_start() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let start = created(
        world
            .store
            .create_operation(
                &new_operation("op_1", &job, OperationKind::Start),
                Some(DesiredState::Running),
            )
            .await
            .unwrap(),
    );
    world
        .store
        .operation_step(&start.id, "waiting-for-kafka")
        .await
        .unwrap();
    let mut stop = new_operation("op_2", &job, OperationKind::Stop);
    stop.supersedes = vec![OperationKind::Start];
    created(
        world
            .store
            .create_operation(&stop, Some(DesiredState::Stopped))
            .await
            .unwrap(),
    );
    let start = world.store.operation(&start.id).await.unwrap().unwrap();
    assert_eq!(
        (start.status, start.step.as_str()),
        (OperationStatus::Canceled, "waiting-for-kafka")
    );
    let error = start.error.unwrap();
    assert_eq!(error["code"], "superseded");
    assert!(error["detail"].as_str().unwrap().contains("op_2"));
    assert_eq!(
        world.reload(&job).await.desired_state,
        DesiredState::Stopped
    );
    // A second stop is in the way of itself, and supersedes nothing.
    let again = NewOperation {
        id: OperationId::from_text("op_3"),
        ..stop.clone()
    };
    assert!(
        matches!(create(&world, &again).await, CreateOperation::Busy(busy) if busy.id == stop.id)
    );
}

#[tokio::test]
async fn one_checkpoint_runs_one_waits_and_the_rest_share_it() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let first = created(
        create(
            &world,
            &new_operation("op_1", &job, OperationKind::Checkpoint),
        )
        .await,
    );
    assert_eq!(
        create(
            &world,
            &new_operation("op_2", &job, OperationKind::Checkpoint)
        )
        .await,
        CreateOperation::Joined(first.clone())
    );
    world
        .store
        .operation_step(&first.id, "barrier")
        .await
        .unwrap();
    let second = created(
        create(
            &world,
            &new_operation("op_3", &job, OperationKind::Checkpoint),
        )
        .await,
    );
    for id in ["op_4", "op_5"] {
        let joined = create(&world, &new_operation(id, &job, OperationKind::Checkpoint)).await;
        assert_eq!(joined, CreateOperation::Joined(second.clone()));
    }
    let open: Vec<_> = world
        .store
        .open_operations(job.uid)
        .await
        .unwrap()
        .into_iter()
        .map(|(one, _)| one.id)
        .collect();
    assert_eq!(open, [first.id, second.id], "oldest first");
}

#[tokio::test]
async fn a_key_names_one_request() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let with_key = |id: &str, hash: &str| NewOperation {
        idempotency: key(hash),
        ..new_operation(id, &job, OperationKind::Start)
    };
    let first = created(create(&world, &with_key("op_1", "h1")).await);
    // Replayed while it runs, and not busy with itself.
    assert_eq!(
        create(&world, &with_key("op_2", "h1")).await,
        CreateOperation::Replayed(first.clone())
    );
    assert_eq!(
        create(&world, &with_key("op_3", "h2")).await,
        CreateOperation::KeyReused
    );
    world
        .store
        .finish_operation(&first.id, &done())
        .await
        .unwrap();
    assert!(
        matches!(create(&world, &with_key("op_4", "h1")).await, CreateOperation::Replayed(replayed) if replayed.status == OperationStatus::Succeeded)
    );
    let elsewhere = IdempotencyKey {
        scope: "POST /jobs/orders/stop".to_owned(),
        ..key("h1").unwrap()
    };
    let stop = NewOperation {
        idempotency: Some(elsewhere),
        ..new_operation("op_5", &job, OperationKind::Stop)
    };
    created(create(&world, &stop).await);
    world
        .store
        .finish_operation(&stop.id, &done())
        .await
        .unwrap();
    // After a day the key is free, whether or not it was pruned.
    sqlx::query("UPDATE operations SET created_at = created_at - interval '25 hours'")
        .execute(&world.sql)
        .await
        .unwrap();
    assert_eq!(
        created(create(&world, &with_key("op_6", "h2")).await)
            .id
            .as_str(),
        "op_6"
    );
}

#[tokio::test]
async fn what_was_done_at_once_is_kept_too() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let open = created(create(&world, &new_operation("op_1", &job, OperationKind::Start)).await);
    let unchanged = OperationOutcome::Succeeded {
        changed: false,
        step: "running".to_owned(),
        result: json!({"summary": "runs"}),
    };
    let new = NewOperation {
        idempotency: key("h"),
        ..new_operation("op_2", &job, OperationKind::Start)
    };
    let operation = created(
        world
            .store
            .insert_finished_operation(&new, &unchanged)
            .await
            .unwrap(),
    );
    assert_eq!(
        (operation.status, operation.changed),
        (OperationStatus::Succeeded, Some(false))
    );
    assert!(operation.finished_at.is_some());
    let replay = NewOperation {
        id: OperationId::from_text("op_3"),
        ..new
    };
    assert_eq!(
        world
            .store
            .insert_finished_operation(&replay, &unchanged)
            .await
            .unwrap(),
        CreateOperation::Replayed(operation)
    );
    assert_eq!(world.store.operation(&open.id).await.unwrap(), Some(open));
}

#[tokio::test]
async fn operations_are_filtered_and_paged() {
    let world = World::new().await;
    let (job, other) = (world.job("orders").await, world.job("other").await);
    for n in 1..=6 {
        let (owner, kind) = if n % 2 == 0 {
            (&job, OperationKind::Start)
        } else {
            (&other, OperationKind::Checkpoint)
        };
        let new = new_operation(&format!("op_{n}"), owner, kind);
        world
            .store
            .insert_finished_operation(&new, &done())
            .await
            .unwrap();
    }
    created(create(&world, &new_operation("op_7", &job, OperationKind::Stop)).await);
    let ids = async |filter: OperationFilter| -> String {
        let found = world.store.operations(&filter).await.unwrap();
        found
            .iter()
            .map(|one| one.id.as_str().trim_start_matches("op_"))
            .collect()
    };
    let all = OperationFilter {
        limit: 3,
        ..OperationFilter::default()
    };
    assert_eq!(ids(all.clone()).await, "765");
    assert_eq!(
        ids(OperationFilter {
            before: Some(OperationId::from_text("op_5")),
            ..all.clone()
        })
        .await,
        "432"
    );
    assert_eq!(
        ids(OperationFilter {
            job: Some(job.uid),
            ..all.clone()
        })
        .await,
        "764"
    );
    assert_eq!(
        ids(OperationFilter {
            kinds: vec![OperationKind::Checkpoint],
            ..all.clone()
        })
        .await,
        "531"
    );
    assert_eq!(
        ids(OperationFilter {
            statuses: vec![OperationStatus::Queued, OperationStatus::Running],
            ..all.clone()
        })
        .await,
        "7"
    );
}

#[tokio::test]
async fn checkpoints_that_nobody_will_take_fail() {
    let world = World::new().await;
    let (job, owner, _) = world.owned_job("orders").await;
    let (live, _, _) = world.owned_job("live").await;
    let first = created(
        create(
            &world,
            &new_operation("op_1", &job, OperationKind::Checkpoint),
        )
        .await,
    );
    world
        .store
        .operation_step(&first.id, "barrier")
        .await
        .unwrap();
    created(
        create(
            &world,
            &new_operation("op_2", &job, OperationKind::Checkpoint),
        )
        .await,
    );
    created(create(&world, &new_operation("op_3", &job, OperationKind::Stop)).await);
    created(
        create(
            &world,
            &new_operation("op_4", &live, OperationKind::Checkpoint),
        )
        .await,
    );
    assert_eq!(world.store.fail_orphaned_checkpoints().await.unwrap(), 0);
    // The owner's process comes up again.
    world.instance(&owner.instance).await;
    assert_eq!(world.store.fail_orphaned_checkpoints().await.unwrap(), 2);
    let failed = world.store.operation(&first.id).await.unwrap().unwrap();
    assert_eq!(
        (failed.status, &failed.error.unwrap()["code"]),
        (OperationStatus::Failed, &json!("owner-lost"))
    );
    let open: Vec<_> = world.store.open_operations(job.uid).await.unwrap();
    assert_eq!(open.len(), 1, "a stop is carried on by the next owner");
    assert_eq!(
        world.store.open_operations(live.uid).await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn an_operation_of_no_job_is_refused() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let stray = NewOperation {
        job: JobUid(uuid::Uuid::nil()),
        ..new_operation("op_1", &job, OperationKind::Stop)
    };
    let outcome = world.store.create_operation(&stray, None).await;
    assert!(matches!(outcome, Err(StoreError::NoSuchJob)), "{outcome:?}");
}

#[tokio::test]
async fn a_reason_may_hold_any_character() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let odd = NewOperation {
        reason: Some("a\0b".to_owned()),
        request: json!({"reason": "a\0b"}),
        ..new_operation("op_1", &job, OperationKind::Stop)
    };
    let operation = created(create(&world, &odd).await);
    assert_eq!(operation.reason.as_deref(), Some("a\u{fffd}b"));
    assert_eq!(
        world.store.open_operations(job.uid).await.unwrap()[0].1,
        odd.request
    );
}

#[tokio::test]
async fn a_start_asked_for_ahead_is_called_off_unless_a_start_may_have_read_it() {
    let world = World::new().await;
    let store = &world.store;
    let job = world.job("orders").await;
    let pending = PendingStart {
        id: "one".to_owned(),
        from: StartFrom::Latest,
        partitions: None,
        requested_by: "test".to_owned(),
        at: now(),
    };
    let cancel = async |only| {
        let why = Some("INC-4711");
        store
            .cancel_pending_start(job.uid, only, "test", why)
            .await
            .unwrap()
    };
    assert_eq!(cancel(None).await, CancelStart::NotPending);
    store.set_pending_start(job.uid, &pending).await.unwrap();
    assert_eq!(cancel(Some("two")).await, CancelStart::NotPending);
    for (id, kind) in [
        ("op_1", OperationKind::Start),
        ("op_2", OperationKind::Restart),
    ] {
        let start = created(create(&world, &new_operation(id, &job, kind)).await);
        let refused = cancel(Some("one")).await;
        assert!(
            matches!(&refused, CancelStart::Busy(busy) if busy.id == start.id),
            "{refused:?}"
        );
        store.finish_operation(&start.id, &done()).await.unwrap();
    }
    assert_eq!(cancel(Some("one")).await, CancelStart::Cancelled(pending));
    let row = store.job_by_uid(job.uid).await.unwrap().unwrap();
    assert_eq!(row.pending_start, None);
    assert_eq!(cancel(Some("one")).await, CancelStart::NotPending);
    let told = world
        .count("SELECT count(*) FROM events WHERE kind = 'next-start-cancelled' AND details ->> 'reason' = 'INC-4711'")
        .await;
    assert_eq!(told, 1);
}
