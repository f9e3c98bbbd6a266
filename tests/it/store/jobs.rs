//! Specs, startup modes, one-shot starts and the end of a run.

use handover::{
    engine::error::StoreError,
    model::{
        checkpoint::CheckpointKind,
        code::Code,
        ids::OperationId,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        operation::{OperationKind, OperationStatus},
        start::{PendingStart, StartFrom},
        startup_mode::StartupMode,
    },
    store::{OperationOutcome, PutSpec, SetMode, SpecPrecondition},
};
use serde_json::json;

use super::{World, checkpoint, now, open, operations::new_operation, spec, start_record};

fn pending(id: &str, from: StartFrom) -> PendingStart {
    PendingStart {
        id: id.to_owned(),
        from,
        partitions: None,
        requested_by: "test".to_owned(),
        at: now(),
    }
}

#[tokio::test]
async fn a_spec_is_put_under_its_precondition() {
    let world = World::new().await;
    let name = "orders".parse().unwrap();
    let put = async |members, precondition| {
        world
            .store
            .put_spec(&name, &spec("orders", members), &precondition, "test")
            .await
            .unwrap()
    };
    let first = json!({});
    let second = json!({"parallelism": 2});
    assert_eq!(
        put(first.clone(), SpecPrecondition::Present).await,
        PutSpec::Missing
    );
    assert_eq!(
        put(first.clone(), SpecPrecondition::Generation(1)).await,
        PutSpec::Missing
    );
    assert_eq!(world.store.job(&name).await.unwrap(), None);

    let PutSpec::Created(created) = put(first.clone(), SpecPrecondition::Absent).await else {
        panic!()
    };
    assert_eq!(created.generation, 1);
    assert_eq!(
        (created.desired_state, created.state),
        (DesiredState::Stopped, JobState::Stopped)
    );
    assert_eq!(world.store.job(&name).await.unwrap(), Some(created.clone()));

    assert_eq!(
        put(second.clone(), SpecPrecondition::Absent).await,
        PutSpec::Exists
    );
    assert_eq!(
        put(second.clone(), SpecPrecondition::Generation(2)).await,
        PutSpec::Stale { generation: 1 }
    );
    assert_eq!(
        put(first, SpecPrecondition::Generation(1)).await,
        PutSpec::Unchanged(created.clone())
    );
    let PutSpec::Replaced(replaced) = put(second.clone(), SpecPrecondition::Generation(1)).await
    else {
        panic!()
    };
    assert_eq!(
        (replaced.generation, replaced.spec.parallelism, replaced.uid),
        (2, 2, created.uid)
    );
    assert!(matches!(
        put(second, SpecPrecondition::Any).await,
        PutSpec::Unchanged(_)
    ));
    assert_eq!(world.store.jobs().await.unwrap(), [replaced]);
}

#[tokio::test]
async fn of_two_replacements_of_one_generation_one_is_stale() {
    let world = World::new().await;
    world.job("orders").await;
    let name = "orders".parse().unwrap();
    let (one, two) = (
        spec("orders", json!({"parallelism": 2})),
        spec("orders", json!({"parallelism": 3})),
    );
    let other = open(&world.database.url());
    let precondition = SpecPrecondition::Generation(1);
    let (a, b) = tokio::join!(
        world.store.put_spec(&name, &one, &precondition, "a"),
        other.put_spec(&name, &two, &precondition, "b")
    );
    let outcomes = [a.unwrap(), b.unwrap()];
    assert!(
        outcomes
            .iter()
            .any(|outcome| matches!(outcome, PutSpec::Replaced(row) if row.generation == 2)),
        "{outcomes:?}"
    );
    assert!(
        outcomes.contains(&PutSpec::Stale { generation: 2 }),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn a_group_belongs_to_one_job_unless_both_allow_it() {
    let world = World::new().await;
    let put = async |name: &str, members| {
        world
            .store
            .put_spec(
                &name.parse().unwrap(),
                &spec(name, members),
                &SpecPrecondition::Any,
                "test",
            )
            .await
            .unwrap()
    };
    let group = |allow: bool| json!({"source": {"group_id": "g", "allow_shared_group": allow}});
    assert!(matches!(
        put("first", group(false)).await,
        PutSpec::Created(_)
    ));
    let taken = PutSpec::GroupTaken {
        job: "first".parse().unwrap(),
    };
    assert_eq!(put("second", group(false)).await, taken);
    assert_eq!(
        put("second", group(true)).await,
        taken,
        "the first one does not allow it"
    );
    let elsewhere = json!({"source": {"group_id": "g", "connection": "other"}});
    assert!(
        matches!(put("second", elsewhere).await, PutSpec::Created(_)),
        "another cluster has other groups"
    );
    assert_eq!(
        put("second", group(true)).await,
        taken,
        "a replacement is checked too"
    );
    assert!(matches!(
        put("first", group(true)).await,
        PutSpec::Replaced(_)
    ));
    assert!(matches!(
        put("second", group(true)).await,
        PutSpec::Replaced(_)
    ));
    assert_eq!(
        put("first", group(false)).await,
        PutSpec::GroupTaken {
            job: "second".parse().unwrap()
        }
    );
}

#[tokio::test]
async fn two_jobs_at_once_do_not_get_one_group() {
    let world = World::new().await;
    let members = json!({"source": {"group_id": "g"}});
    let (one, two) = (spec("one", members.clone()), spec("two", members));
    let other = open(&world.database.url());
    let (names, precondition) = (
        ["one".parse().unwrap(), "two".parse().unwrap()],
        SpecPrecondition::Any,
    );
    let (a, b) = tokio::join!(
        world.store.put_spec(&names[0], &one, &precondition, "a"),
        other.put_spec(&names[1], &two, &precondition, "b")
    );
    let created = [a.unwrap(), b.unwrap()]
        .iter()
        .filter(|outcome| matches!(outcome, PutSpec::Created(_)))
        .count();
    assert_eq!(created, 1);
}

#[tokio::test]
async fn a_startup_mode_is_shadowed_while_there_is_state_and_until_it_is_used() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let set = async |mode, if_match| {
        world
            .store
            .set_startup_mode(job.uid, &mode, if_match, "test")
            .await
            .unwrap()
    };
    assert_eq!(
        set(StartupMode::Latest, Some(7)).await,
        SetMode::Stale { generation: 1 }
    );
    let SetMode::Changed(row) = set(StartupMode::Latest, Some(1)).await else {
        panic!()
    };
    assert_eq!(
        (row.generation, row.startup_mode_shadowed),
        (2, false),
        "without state it counts"
    );
    assert!(
        matches!(set(StartupMode::Latest, None).await, SetMode::Unchanged(row) if row.generation == 2)
    );

    let start = checkpoint(&lease, 1, CheckpointKind::Start, 5);
    world
        .store
        .store_start(&lease, &start, &start_record(&row))
        .await
        .unwrap();
    let SetMode::Changed(row) = set(StartupMode::Earliest, None).await else {
        panic!()
    };
    assert!(row.startup_mode_shadowed);
    // A start that resumes has not used it.
    let start = checkpoint(&lease, 2, CheckpointKind::Start, 5);
    world
        .store
        .store_start(&lease, &start, &start_record(&row))
        .await
        .unwrap();
    assert!(world.reload(&job).await.startup_mode_shadowed);
    // Nor has a spec with another member changed.
    let other = spec("orders", json!({"parallelism": 3}));
    let outcome = world
        .store
        .put_spec(&job.name, &other, &SpecPrecondition::Any, "test")
        .await
        .unwrap();
    assert!(matches!(outcome, PutSpec::Replaced(row) if row.startup_mode_shadowed));
    // One without state has.
    sqlx::query("UPDATE checkpoints SET superseded = true")
        .execute(&world.sql)
        .await
        .unwrap();
    let start = checkpoint(&lease, 3, CheckpointKind::Start, 5);
    world
        .store
        .store_start(&lease, &start, &start_record(&row))
        .await
        .unwrap();
    assert!(!world.reload(&job).await.startup_mode_shadowed);

    let missing = world
        .store
        .set_startup_mode(
            handover::model::ids::JobUid(uuid::Uuid::nil()),
            &StartupMode::Latest,
            None,
            "test",
        )
        .await;
    assert!(matches!(missing, Err(StoreError::NoSuchJob)));
}

#[tokio::test]
async fn a_one_shot_start_is_cleared_by_the_start_that_read_it_only() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let (first, second) = (
        pending("ps_1", StartFrom::Latest),
        pending("ps_2", StartFrom::Shift { by: -10 }),
    );
    assert_eq!(
        world
            .store
            .set_pending_start(job.uid, &first)
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        world
            .store
            .set_pending_start(job.uid, &first)
            .await
            .unwrap(),
        None,
        "a repetition discards nothing"
    );
    // A later intent arrives while the start works with the first one.
    assert_eq!(
        world
            .store
            .set_pending_start(job.uid, &second)
            .await
            .unwrap(),
        Some(first)
    );
    let mut record = start_record(&job);
    record.consumed_pending = Some("ps_1".to_owned());
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 1, CheckpointKind::Start, 5),
            &record,
        )
        .await
        .unwrap();
    assert_eq!(world.reload(&job).await.pending_start, Some(second.clone()));
    // An automatic start consumes none.
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 2, CheckpointKind::Start, 5),
            &start_record(&job),
        )
        .await
        .unwrap();
    assert_eq!(world.reload(&job).await.pending_start, Some(second));
    record.consumed_pending = Some("ps_2".to_owned());
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 3, CheckpointKind::Start, 5),
            &record,
        )
        .await
        .unwrap();
    assert_eq!(world.reload(&job).await.pending_start, None);
    // A repetition of that start leaves alone what came after it.
    let third = pending("ps_2", StartFrom::Earliest);
    world
        .store
        .set_pending_start(job.uid, &third)
        .await
        .unwrap();
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 3, CheckpointKind::Start, 5),
            &record,
        )
        .await
        .unwrap();
    assert_eq!(world.reload(&job).await.pending_start, Some(third));
}

#[tokio::test]
async fn a_spec_does_not_touch_a_one_shot_start() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let wanted = pending("ps_1", StartFrom::Checkpoint { checkpoint: None });
    world
        .store
        .set_pending_start(job.uid, &wanted)
        .await
        .unwrap();
    let other = spec("orders", json!({"parallelism": 3}));
    world
        .store
        .put_spec(&job.name, &other, &SpecPrecondition::Any, "test")
        .await
        .unwrap();
    assert_eq!(world.reload(&job).await.pending_start, Some(wanted));
}

#[tokio::test]
async fn a_run_ends_as_a_whole() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    world
        .store
        .set_state(&lease, JobState::Starting, None)
        .await
        .unwrap();
    let since = world.reload(&job).await.state_since;
    world
        .store
        .set_state(&lease, JobState::Starting, None)
        .await
        .unwrap();
    assert_eq!(
        world.reload(&job).await.state_since,
        since,
        "the same state has not begun again"
    );
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 1, CheckpointKind::Start, 5),
            &start_record(&job),
        )
        .await
        .unwrap();
    let running = world.reload(&job).await;
    assert_eq!(running.state, JobState::Running);
    assert_eq!(running.running.unwrap().spec, job.spec);

    let stop = new_operation("op_1", &job, OperationKind::Stop);
    world
        .store
        .create_operation(&stop, Some(DesiredState::Running))
        .await
        .unwrap();
    let outcome = OperationOutcome::Succeeded {
        changed: true,
        step: "released".to_owned(),
        result: json!({"will_replay": 0}),
    };
    world
        .store
        .settle_stopped(
            &lease,
            Some((&stop.id, &outcome)),
            JobState::Stopped,
            None,
            false,
        )
        .await
        .unwrap();
    let stopped = world.reload(&job).await;
    assert_eq!(
        (stopped.state, stopped.desired_state),
        (JobState::Stopped, DesiredState::Stopped)
    );
    assert_eq!((stopped.running, stopped.owner), (None, None));
    let operation = world.store.operation(&stop.id).await.unwrap().unwrap();
    assert_eq!(
        (operation.status, operation.step.as_str()),
        (OperationStatus::Succeeded, "released")
    );
}

#[tokio::test]
async fn a_failure_is_kept_until_the_next_state_and_the_job_wants_to_run_on_request() {
    let world = World::new().await;
    let (job, owner, lease) = world.owned_job("orders").await;
    world
        .store
        .create_operation(
            &new_operation("op_1", &job, OperationKind::Start),
            Some(DesiredState::Running),
        )
        .await
        .unwrap();
    let failure = JobFailure {
        code: Code::BlockedOnRecord,
        // Words of a record: PostgreSQL has no U+0000 in text.
        summary: "cannot decode orders/0@7: \0".to_owned(),
        record: None,
        phase: Some("decode".to_owned()),
        first_seen: now(),
    };
    world
        .store
        .settle_stopped(&lease, None, JobState::Failed, Some(&failure), true)
        .await
        .unwrap();
    let row = world.reload(&job).await;
    assert_eq!(
        (row.state, row.desired_state),
        (JobState::Failed, DesiredState::Running)
    );
    assert_eq!(row.failure, Some(failure));

    let lease = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    let error = json!({"code": "start-blocked"});
    let outcome = OperationOutcome::Failed {
        step: "resolve".to_owned(),
        error: error.clone(),
    };
    let id = OperationId::from_text("op_1");
    world
        .store
        .refuse_start(&lease, Some((&id, &outcome)), DesiredState::Stopped)
        .await
        .unwrap();
    let row = world.reload(&job).await;
    assert_eq!(
        (row.state, row.desired_state, row.failure, row.owner),
        (JobState::Stopped, DesiredState::Stopped, None, None)
    );
    assert_eq!(
        world.store.operation(&id).await.unwrap().unwrap().error,
        Some(error)
    );
}
