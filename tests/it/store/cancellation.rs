//! Callers that go away in the middle of a conversation with the database.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use handover::engine::ports::CheckpointStore;
use handover::model::{
    checkpoint::CheckpointKind,
    event::EventKind,
    job_state::JobState,
    start::{PendingStart, StartFrom},
};

use serde_json::json;

use super::{TTL, World, checkpoint, now, open};
use crate::support::eventually;

/// Drops a future when it is pending for the n-th time, so that all of its waiting places are met.
async fn drop_when_pending<F: Future>(future: F, nth: usize) {
    let mut future = pin!(future);
    let mut pending = 0;
    std::future::poll_fn(|context| {
        if future.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        pending += 1;
        if pending >= nth {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dropped_requests_leave_no_transaction_open() {
    let world = World::new().await;
    let (job, owner, lease) = world.owned_job("orders").await;
    let pending = PendingStart {
        id: "ps_1".to_owned(),
        from: StartFrom::Latest,
        partitions: None,
        requested_by: "test".to_owned(),
        at: now(),
    };
    // In rounds, because a connection that was left inside a transaction is mended by the next transaction on it.
    for round in 0..25_usize {
        let requests: Vec<_> = (0..40_usize)
            .map(|n| {
                let store = world.store.clone();
                let (pending, owner, uid) = (pending.clone(), owner.clone(), job.uid);
                // Waiting places of a request: for a connection, for its sign of life, for BEGIN, for statements, for COMMIT.
                let nth = 1 + (n + round) % 10;
                tokio::spawn(async move {
                    match n % 8 {
                        0 => drop_when_pending(store.job_by_uid(uid), nth).await,
                        1 => drop_when_pending(store.renew_instance(&owner, TTL), nth).await,
                        2..5 => {
                            let state = store.set_state(&lease, JobState::Running, None);
                            drop_when_pending(state, nth).await;
                        }
                        _ => drop_when_pending(store.set_pending_start(uid, &pending), nth).await,
                    }
                })
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
        // What was asked for goes on to its end; then no session is inside a transaction. Well before the server would end
        // such a session by itself.
        eventually("all transactions end", Duration::from_secs(3), || async {
            world
                .count(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'handover' AND state <> 'idle'",
                )
                .await
                == 0
        })
        .await;
    }
    // Every connection of the pool works, and what it is told is committed: others see it.
    for id in 1..=20 {
        let stored = checkpoint(&lease, id, CheckpointKind::Periodic, id);
        world.store.complete(&lease, &stored).await.unwrap();
        assert_eq!(world.count("SELECT count(*) FROM checkpoints").await, id);
        world
            .store
            .add_event(None, EventKind::RecordsRead, "probe", &json!({}))
            .await
            .unwrap();
        assert_eq!(
            world
                .count("SELECT count(*) FROM events WHERE actor = 'probe'")
                .await,
            id
        );
    }
    // No lock is left.
    let tables = "LOCK TABLE jobs, job_leases, instances, checkpoints, operations, events IN ACCESS EXCLUSIVE MODE NOWAIT";
    sqlx::query(tables)
        .execute(&mut *world.sql.begin().await.unwrap())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_is_still_made() {
    let world = World::new().await;
    let (_, _, lease) = world.owned_job("orders").await;
    let stored = checkpoint(&lease, 1, CheckpointKind::Manual, 5);
    drop_when_pending(world.store.complete(&lease, &stored), 1).await;
    // Closing waits for it.
    world.store.close().await;
    assert_eq!(
        world.count("SELECT count(*) FROM checkpoint_offsets").await,
        1
    );
    let after = world.store.install_id().await;
    assert!(
        matches!(
            after,
            Err(handover::engine::error::StoreError::Unavailable(_))
        ),
        "{after:?}"
    );
    open(&world.database.url()).install_id().await.unwrap();
}
