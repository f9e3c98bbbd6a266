//! The database goes away in the middle of things, and comes back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use fault_proxy::CommitFault;
use handover::{
    engine::{error::StoreError, ports::CheckpointStore},
    model::{checkpoint::CheckpointKind, job_state::JobState, operation::OperationKind},
    store::{CheckpointFilter, CreateOperation, OperationOutcome, Renewal, Store},
};
use serde_json::json;

use super::{
    DEADLINE, TTL, World, checkpoint, instance, open, operations::new_operation, put, spec,
    start_record,
};
use crate::support::{Cluster, eventually, proxied};

#[tokio::test]
async fn a_session_ended_in_the_middle_of_a_checkpoint_is_repeated() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let stored = checkpoint(&lease, 1, CheckpointKind::Periodic, 5);
    // The checkpoint is behind its fence and waits for the table of positions.
    let mut blocker = world.sql.begin().await.unwrap();
    sqlx::query("LOCK TABLE checkpoint_offsets IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *blocker)
        .await
        .unwrap();
    let write = {
        let (store, stored) = (world.store.clone(), stored.clone());
        tokio::spawn(async move { store.complete(&lease, &stored).await })
    };
    eventually("the write waits", DEADLINE, || async {
        world.waiting_for_locks().await == 1
    })
    .await;
    let ended = world
        .count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        .await;
    assert_eq!(ended, 1);
    let outcome = write.await.unwrap();
    assert!(
        matches!(&outcome, Err(StoreError::Unavailable(text)) if text.contains("57P01")),
        "{outcome:?}"
    );
    blocker.rollback().await.unwrap();
    assert_eq!(world.store.latest_checkpoint(job.uid).await.unwrap(), None);
    world.store.complete(&lease, &stored).await.unwrap();
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .positions,
        stored.positions
    );
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_when_it_is_repeated() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let (proxy, url) = proxied(&world.database.url());
    let store = open(&url);
    let owner = instance(&store, "owner").await;

    proxy.arm(CommitFault::AnswerDropped, 1);
    assert_unavailable(&store.take_lease(job.uid, &owner).await);
    assert_eq!(
        world.reload(&job).await.owner.unwrap().epoch.0,
        1,
        "it was taken"
    );
    let lease = store.take_lease(job.uid, &owner).await.unwrap().unwrap();

    let start = checkpoint(&lease, 1, CheckpointKind::Start, 5);
    proxy.arm(CommitFault::AnswerDropped, 1);
    assert_unavailable(&store.store_start(&lease, &start, &start_record(&job)).await);
    assert_eq!(
        world.count("SELECT count(*) FROM checkpoint_offsets").await,
        1,
        "it was stored"
    );
    store
        .store_start(&lease, &start, &start_record(&job))
        .await
        .unwrap();

    let stored = checkpoint(&lease, 2, CheckpointKind::Stop, 7);
    proxy.arm(CommitFault::AnswerDropped, 1);
    assert_unavailable(&store.complete(&lease, &stored).await);
    assert_eq!(
        world.count("SELECT count(*) FROM checkpoint_offsets").await,
        2,
        "it was stored"
    );
    store.complete(&lease, &stored).await.unwrap();
    assert_eq!(
        world.count("SELECT count(*) FROM checkpoint_offsets").await,
        2
    );

    let stop = new_operation("op_1", &job, OperationKind::Stop);
    proxy.arm(CommitFault::AnswerDropped, 1);
    assert_unavailable(&store.create_operation(&stop, None).await);
    let again = store.create_operation(&stop, None).await.unwrap();
    assert!(matches!(again, CreateOperation::Replayed(operation) if operation.id == stop.id));

    let done = OperationOutcome::Succeeded {
        changed: true,
        step: "released".to_owned(),
        result: json!({}),
    };
    for lost in [true, false] {
        if lost {
            proxy.arm(CommitFault::AnswerDropped, 1);
        }
        let outcome = store
            .settle_stopped(
                &lease,
                Some((&stop.id, &done)),
                JobState::Stopped,
                None,
                false,
            )
            .await;
        assert_eq!(outcome.is_err(), lost, "{outcome:?}");
        assert_eq!(world.reload(&job).await.owner, None);
    }
    assert_eq!(
        world
            .count("SELECT count(*) FROM events WHERE kind = 'job-stopped'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_cut_cable_is_noticed_in_time_and_mended() {
    let world = World::new().await;
    let (proxy, url) = proxied(&world.database.url());
    let store = open(&url);
    let owner = instance(&store, "owner").await;
    assert_ne!(
        store.renew_instance(&owner, TTL).await.unwrap(),
        Renewal::Replaced
    );
    proxy.freeze();
    // A lease lives 3 s at least, and its owner has to know before the end of two thirds of it.
    let asked = Instant::now();
    assert_unavailable(&store.renew_instance(&owner, TTL).await);
    assert!(
        asked.elapsed() < Duration::from_millis(2_000),
        "{:?}",
        asked.elapsed()
    );
    let asked = Instant::now();
    assert_unavailable(&store.install_id().await);
    assert!(
        asked.elapsed() < Duration::from_secs(8),
        "{:?}",
        asked.elapsed()
    );
    proxy.thaw();
    assert_ne!(
        store.renew_instance(&owner, TTL).await.unwrap(),
        Renewal::Replaced
    );
    store.install_id().await.unwrap();
}

fn assert_unavailable<T: std::fmt::Debug>(outcome: &Result<T, StoreError>) {
    assert!(
        matches!(outcome, Err(StoreError::Unavailable(_))),
        "{outcome:?}"
    );
}

const OUTAGES: [&[&[&str]]; 3] = [&[&["restart"]], &[&["kill"], &["up"]], &[&["restart"]]];

/// Stores checkpoints one after the other, each until it is known to be stored.
async fn checkpoint_for_ever(
    store: Store,
    lease: handover::engine::ports::JobLease,
    last: Arc<AtomicI64>,
    end: Arc<AtomicBool>,
) -> u64 {
    let mut unavailable = 0;
    while !end.load(Ordering::Relaxed) {
        let id = last.load(Ordering::Relaxed) + 1;
        let stored = checkpoint(&lease, id, CheckpointKind::Periodic, id);
        loop {
            match store.complete(&lease, &stored).await {
                Ok(()) => break,
                Err(StoreError::Unavailable(_)) => unavailable += 1,
                Err(error) => panic!("checkpoint {id}: {error}"),
            }
        }
        last.store(id, Ordering::Relaxed);
    }
    unavailable
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_and_crashes_of_the_cluster_lose_nothing_and_end_nothing() {
    let cluster = Cluster::create();
    let store = open(cluster.url());
    store.migrate().await.unwrap();
    let mut work = Vec::new();
    let end = Arc::new(AtomicBool::new(false));
    for name in ["one", "two", "three"] {
        let job = put(&store, name, &spec(name, json!({}))).await;
        let owner = instance(&store, name).await;
        let lease = store.take_lease(job.uid, &owner).await.unwrap().unwrap();
        let last = Arc::new(AtomicI64::new(0));
        let task = tokio::spawn(checkpoint_for_ever(
            store.clone(),
            lease,
            Arc::clone(&last),
            Arc::clone(&end),
        ));
        work.push((job, owner, last, task));
    }
    let cluster = Arc::new(cluster);
    // A fast shutdown cuts sessions with an answer; a crash cuts them without one.
    for commands in OUTAGES {
        let before: Vec<i64> = work
            .iter()
            .map(|(_, _, last, _)| last.load(Ordering::Relaxed))
            .collect();
        eventually("work before the outage", DEADLINE, || async {
            work.iter()
                .zip(&before)
                .all(|((_, _, last, _), before)| last.load(Ordering::Relaxed) > before + 5)
        })
        .await;
        for command in commands {
            let cluster = Arc::clone(&cluster);
            tokio::task::spawn_blocking(move || cluster.control(command))
                .await
                .unwrap();
        }
        let back = Instant::now();
        let before: Vec<i64> = work
            .iter()
            .map(|(_, _, last, _)| last.load(Ordering::Relaxed))
            .collect();
        eventually("work after the outage", DEADLINE, || async {
            work.iter()
                .zip(&before)
                .all(|((_, _, last, _), before)| last.load(Ordering::Relaxed) > before + 1)
        })
        .await;
        assert!(
            back.elapsed() < Duration::from_secs(8),
            "{:?} until all went on",
            back.elapsed()
        );
    }
    end.store(true, Ordering::Relaxed);
    let mut unavailable = 0;
    for (job, owner, last, task) in work {
        unavailable += task.await.unwrap();
        let last = last.load(Ordering::Relaxed);
        // Nothing that was confirmed is missing, nothing is there that was not asked for.
        let filter = CheckpointFilter {
            limit: u32::MAX,
            with_positions: true,
            ..CheckpointFilter::default()
        };
        let stored = store.checkpoints(job.uid, &filter).await.unwrap();
        let ids: Vec<i64> = stored.iter().map(|one| one.id.0).collect();
        assert_eq!(ids, (1..=last).rev().collect::<Vec<_>>());
        assert!(stored.iter().all(|one| {
            one.positions
                .values()
                .all(|position| position.next_offset.unwrap().get() == one.id.0)
        }));
        // The lease outlived it all.
        assert_ne!(
            store.renew_instance(&owner, TTL).await.unwrap(),
            Renewal::Replaced
        );
        assert!(
            store
                .job_by_uid(job.uid)
                .await
                .unwrap()
                .unwrap()
                .owner
                .unwrap()
                .live
        );
    }
    assert!(unavailable > 0, "the outages were not noticed");
}

#[tokio::test]
async fn a_database_that_is_away_at_the_beginning_is_waited_for() {
    let cluster = Cluster::create();
    cluster.control(&["down"]);
    let store = open(cluster.url());
    for outcome in [
        store.ping().await,
        store.pending_migrations().await.map(drop),
        store.migrate().await.map(drop),
    ] {
        assert!(
            matches!(outcome, Err(StoreError::Unavailable(_))),
            "{outcome:?}"
        );
    }
    cluster.control(&["up"]);
    store.ping().await.unwrap();
    store.migrate().await.unwrap();
}
