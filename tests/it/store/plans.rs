//! Start plans, events, and what is pruned.

use chrono::Duration;
use handover::{
    model::{
        event::EventKind,
        ids::{CheckpointId, OperationId, PlanId},
        operation::OperationKind,
        resolver::{PlanTotals, PlannedSink, ResolvedStart, StartBasis},
        start::StartRequest,
    },
    store::{IdempotencyKey, NewOperation, OperationOutcome, StoredPlan},
};
use serde_json::json;

use super::{World, now, operations::new_operation};

#[tokio::test]
async fn a_plan_comes_back_as_it_was_stored() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let plan = StoredPlan {
        id: PlanId::from_text("pl_1"),
        job: job.uid,
        generation: 3,
        state: Some(CheckpointId(7)),
        pending_start: None,
        request: StartRequest::read(
            &json!({"from": "shift", "by": -1000, "partitions": {"orders": [0, 2]}}),
        )
        .unwrap(),
        resolved: ResolvedStart {
            basis: StartBasis::Checkpoint,
            checkpoint: Some(CheckpointId(7)),
            set_aside: None,
            summary: "resumes".to_owned(),
            partitions: Vec::new(),
            sink: PlannedSink::default(),
            totals: PlanTotals::default(),
            bounded: None,
            forgotten: Vec::new(),
            blockers: Vec::new(),
            warnings: Vec::new(),
        },
        valid_until: now() + Duration::minutes(15),
    };
    world.store.save_plan(&plan).await.unwrap();
    world.store.save_plan(&plan).await.unwrap();
    assert_eq!(world.store.plan(&plan.id).await.unwrap(), Some(plan));
    assert_eq!(
        world.store.plan(&PlanId::from_text("pl_\0")).await.unwrap(),
        None
    );
}

#[tokio::test]
async fn what_is_kept_too_long_goes_and_the_rest_stays() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let done = OperationOutcome::Succeeded {
        changed: true,
        step: "done".to_owned(),
        result: json!({}),
    };
    let key = IdempotencyKey {
        scope: "s".to_owned(),
        key: "k".to_owned(),
        body_hash: "h".to_owned(),
    };
    for id in ["op_old", "op_new"] {
        let new = NewOperation {
            idempotency: Some(IdempotencyKey {
                key: id.to_owned(),
                ..key.clone()
            }),
            ..new_operation(id, &job, OperationKind::Stop)
        };
        world
            .store
            .insert_finished_operation(&new, &done)
            .await
            .unwrap();
    }
    world
        .store
        .create_operation(&new_operation("op_open", &job, OperationKind::Stop), None)
        .await
        .unwrap();
    world
        .store
        .add_event(
            None,
            EventKind::RecordsRead,
            "instance:blue",
            &json!({"version": "0.1.0"}),
        )
        .await
        .unwrap();
    let events = world.count("SELECT count(*) FROM events").await;
    sqlx::raw_sql(
        "UPDATE operations SET created_at = created_at - interval '31 days' WHERE id <> 'op_new';
         UPDATE operations SET finished_at = finished_at - interval '31 days' WHERE id = 'op_old';
         UPDATE operations SET created_at = created_at - interval '25 hours' WHERE id = 'op_new';
         UPDATE events SET at = at - interval '31 days' WHERE kind = 'job-created';
         INSERT INTO start_plans SELECT 'pl_' || n, uid, 1, NULL, NULL, '{}', '{}', now() - interval '10 minutes' * n FROM jobs, generate_series(1, 2) n;",
    )
    .execute(&world.sql)
    .await
    .unwrap();
    world.store.prune().await.unwrap();
    let left: Vec<String> = sqlx::query_scalar("SELECT id FROM operations ORDER BY id")
        .fetch_all(&world.sql)
        .await
        .unwrap();
    assert_eq!(left, ["op_new", "op_open"], "an open one is never too old");
    assert_eq!(
        world
            .count("SELECT count(*) FROM operations WHERE idempotency_key IS NOT NULL")
            .await,
        0
    );
    assert_eq!(
        world
            .count("SELECT count(*) FROM start_plans WHERE id = 'pl_1'")
            .await,
        1
    );
    assert_eq!(world.count("SELECT count(*) FROM start_plans").await, 1);
    assert_eq!(world.count("SELECT count(*) FROM events").await, events - 1);
    assert!(
        world
            .store
            .operation(&OperationId::from_text("op_new"))
            .await
            .unwrap()
            .is_some()
    );
}
