//! Every protected write, against a lease that is no longer held.

use futures_util::future::BoxFuture;
use handover::{
    engine::{
        error::StoreError,
        ports::{CheckpointStore, JobLease},
    },
    model::{
        checkpoint::{CheckpointKind, CheckpointPhases, GroupCommit},
        event::{EventKind, HistoryEntry},
        ids::{CheckpointId, LeaseEpoch},
        job_state::{DesiredState, JobState},
    },
    store::{JobRow, Store},
};
use serde_json::json;

use super::{DEADLINE, World, checkpoint, failed, now, start_record};
use crate::support::eventually;

type Call =
    for<'a> fn(&'a Store, &'a JobLease, &'a JobRow) -> BoxFuture<'a, Result<(), StoreError>>;

/// All calls that take a lease. One that is added belongs here.
const PROTECTED: [(&str, Call); 10] = [
    ("complete", |store, lease, _| {
        Box::pin(async move {
            store
                .complete(lease, &checkpoint(lease, 9, CheckpointKind::Periodic, 90))
                .await
        })
    }),
    ("record_failure", |store, lease, _| {
        Box::pin(async move { store.record_failure(lease, &failed(lease, 9)).await })
    }),
    ("confirm", |store, lease, _| {
        Box::pin(async move { store.confirm(lease, CheckpointId(1), now()).await })
    }),
    ("record_outcome", |store, lease, _| {
        Box::pin(async move {
            store
                .record_outcome(
                    lease,
                    CheckpointId(1),
                    &CheckpointPhases::default(),
                    &GroupCommit::OFF,
                )
                .await
        })
    }),
    ("note_events", |store, lease, _| {
        Box::pin(async move {
            let entry = HistoryEntry {
                kind: EventKind::PositionMoved,
                details: json!({}),
            };
            store.note_events(lease, &[entry.clone(), entry]).await
        })
    }),
    ("thin", |store, lease, _| {
        Box::pin(async move { store.thin(lease).await })
    }),
    ("store_start", |store, lease, job| {
        Box::pin(async move {
            store
                .store_start(
                    lease,
                    &checkpoint(lease, 9, CheckpointKind::Start, 90),
                    &start_record(job),
                )
                .await
        })
    }),
    ("set_state", |store, lease, _| {
        Box::pin(async move { store.set_state(lease, JobState::Failed, None).await })
    }),
    ("settle_stopped", |store, lease, _| {
        Box::pin(async move {
            store
                .settle_stopped(lease, None, JobState::Failed, None, false)
                .await
                .map(drop)
        })
    }),
    ("refuse_start", |store, lease, _| {
        Box::pin(async move {
            store
                .refuse_start(lease, None, DesiredState::Running)
                .await
                .map(drop)
        })
    }),
];

/// Everything that a protected write could have changed.
async fn picture(world: &World) -> String {
    sqlx::query_scalar(
        "SELECT concat((SELECT json_agg(j ORDER BY uid) FROM jobs j), (SELECT json_agg(l ORDER BY job_uid) FROM job_leases l),
                       (SELECT json_agg(c ORDER BY id) FROM checkpoints c), (SELECT count(*) FROM checkpoint_offsets),
                       (SELECT count(*) FROM events))",
    )
    .fetch_one(&world.sql)
    .await
    .unwrap()
}

#[tokio::test]
async fn without_the_lease_nothing_is_written() {
    let world = World::new().await;
    let (job, owner, old) = world.owned_job("orders").await;
    world
        .store
        .complete(&old, &checkpoint(&old, 1, CheckpointKind::Manual, 5))
        .await
        .unwrap();
    world.expire(&owner).await;
    let heir = world.instance("heir").await;
    let current = world
        .store
        .take_lease(job.uid, &heir)
        .await
        .unwrap()
        .unwrap();
    let never = JobLease {
        epoch: LeaseEpoch(current.epoch.0 + 1),
        ..current
    };
    let before = picture(&world).await;
    for (name, call) in PROTECTED {
        for (whose, lease) in [("an older owner's", &old), ("nobody's", &never)] {
            let outcome = call(&world.store, lease, &job).await;
            assert!(
                matches!(outcome, Err(StoreError::Fenced)),
                "{name} under {whose} lease: {outcome:?}"
            );
        }
    }
    assert_eq!(picture(&world).await, before);
}

#[tokio::test]
async fn after_its_release_a_lease_writes_nothing_and_settling_again_succeeds() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    world
        .store
        .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Stop, 5))
        .await
        .unwrap();
    world
        .store
        .settle_stopped(&lease, None, JobState::Stopped, None, false)
        .await
        .unwrap();
    let before = picture(&world).await;
    for (name, call) in PROTECTED {
        let outcome = call(&world.store, &lease, &job).await;
        match name {
            // The answer to the first one may have been lost.
            "settle_stopped" | "refuse_start" => assert!(outcome.is_ok(), "{name}: {outcome:?}"),
            _ => assert!(
                matches!(outcome, Err(StoreError::Fenced)),
                "{name}: {outcome:?}"
            ),
        }
    }
    assert_eq!(picture(&world).await, before);
}

#[tokio::test]
async fn with_the_lease_every_call_works() {
    // Or the tests above would also pass for calls that always refuse.
    let world = World::new().await;
    for (name, call) in PROTECTED {
        let (job, _, lease) = world.owned_job(&name.replace('_', "-")).await;
        world
            .store
            .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Manual, 5))
            .await
            .unwrap();
        let before = picture(&world).await;
        let outcome = call(&world.store, &lease, &job).await;
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
        // Nothing is old enough to be thinned out.
        assert_eq!(picture(&world).await == before, name == "thin", "{name}");
        let again = call(&world.store, &lease, &job).await;
        assert!(again.is_ok(), "{name} again: {again:?}");
    }
}

#[tokio::test]
async fn a_taker_waits_for_each_protected_write_under_way() {
    let world = World::new().await;
    for (name, call) in PROTECTED {
        let (job, owner, lease) = world.owned_job(&name.replace('_', "-")).await;
        world
            .store
            .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Manual, 5))
            .await
            .unwrap();
        world.expire(&owner).await;
        let heir = world.instance("heir").await;
        // Stops the write behind its fence: it cannot go on to its rows.
        let mut blocker = world.sql.begin().await.unwrap();
        sqlx::query("LOCK TABLE checkpoints, jobs IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *blocker)
            .await
            .unwrap();
        let write = {
            let (store, job) = (world.store.clone(), job.clone());
            tokio::spawn(async move { call(&store, &lease, &job).await })
        };
        eventually("the write is behind its fence", DEADLINE, || async {
            world.waiting_for_locks().await == 1
        })
        .await;
        let take = {
            let (store, uid) = (world.store.clone(), job.uid);
            tokio::spawn(async move { store.take_lease(uid, &heir).await })
        };
        eventually("the taker waits", DEADLINE, || async {
            world.waiting_for_locks().await == 2
        })
        .await;
        blocker.rollback().await.unwrap();
        // Commit, then take.
        let written = write.await.unwrap();
        assert!(written.is_ok(), "{name}: {written:?}");
        let taken = take.await.unwrap().unwrap().unwrap();
        assert_eq!(taken.epoch.0, lease.epoch.0 + 1, "{name}");
    }
}

#[tokio::test]
async fn a_protected_write_waits_for_a_taker_and_is_refused() {
    let world = World::new().await;
    for (name, call) in PROTECTED {
        let (job, _, lease) = world.owned_job(&name.replace('_', "-")).await;
        world
            .store
            .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Manual, 5))
            .await
            .unwrap();
        let heir = world.instance("heir").await;
        let mut taker = world.sql.begin().await.unwrap();
        sqlx::query("UPDATE job_leases SET owner = $1, owner_instance = 'heir', epoch = epoch + 1 WHERE job_uid = $2")
            .bind(heir.id)
            .bind(job.uid.0)
            .execute(&mut *taker)
            .await
            .unwrap();
        let write = {
            let (store, job) = (world.store.clone(), job.clone());
            tokio::spawn(async move { call(&store, &lease, &job).await })
        };
        eventually("the write waits", DEADLINE, || async {
            world.waiting_for_locks().await == 1
        })
        .await;
        taker.commit().await.unwrap();
        // Take, then refuse.
        let outcome = write.await.unwrap();
        assert!(
            matches!(outcome, Err(StoreError::Fenced)),
            "{name}: {outcome:?}"
        );
    }
}
