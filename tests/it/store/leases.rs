//! Who lives, who owns, and in which order.

use std::time::Duration;

use handover::{
    engine::error::StoreError,
    model::{ids::LeaseEpoch, job_state::JobState},
    store::{ClaimInstance, Incarnation, Renewal},
};

use super::{DEADLINE, TTL, World, instance, open};
use crate::support::eventually;

impl World {
    async fn renew(&self, owner: &Incarnation) -> Renewal {
        self.store.renew_instance(owner, TTL).await.unwrap()
    }
}

/// Both are alive in the end: what counts is who was not while the other one looked.
#[tokio::test]
async fn a_renewal_that_comes_late_says_so_and_what_was_taken_is_missing() {
    let world = World::new().await;
    let (job, late, lease) = world.owned_job("orders").await;
    let kept = world.job("kept").await;
    let of_kept = world.store.take_lease(kept.uid, &late).await.unwrap();
    let other = world.instance("other").await;
    assert_eq!(world.renew(&late).await, Renewal::InTime);
    world.expire(&late).await;
    let taken = world.store.take_lease(job.uid, &other).await.unwrap();
    assert!(taken.is_some());
    assert_eq!(world.renew(&late).await, Renewal::Late);
    assert_eq!(world.renew(&late).await, Renewal::InTime);
    let owned = world.store.leases_of(&late).await.unwrap();
    assert_eq!(owned, Vec::from_iter(of_kept));
    assert!(matches!(
        world.store.holds(&lease).await,
        Err(StoreError::Fenced)
    ));
    world.store.holds(&taken.unwrap()).await.unwrap();
}

/// The taker finds the time run out and waits for the row; the renewal that it waits for came first.
#[tokio::test]
async fn a_taker_judges_a_renewal_that_is_on_its_way() {
    let world = World::new().await;
    let (job, owner, lease) = world.owned_job("orders").await;
    let other = world.instance("other").await;
    world.expire(&owner).await;
    let mut renewal = world.sql.begin().await.unwrap();
    sqlx::query("UPDATE instances SET expires_at = clock_timestamp() + interval '1 h' WHERE incarnation = $1")
        .bind(owner.id)
        .execute(&mut *renewal)
        .await
        .unwrap();
    let taker = tokio::spawn({
        let store = world.store.clone();
        async move { store.take_lease(job.uid, &other).await }
    });
    eventually("the taker waits", DEADLINE, || async {
        world.waiting_for_locks().await == 1
    })
    .await;
    renewal.commit().await.unwrap();
    assert_eq!(taker.await.unwrap().unwrap(), None);
    world.store.holds(&lease).await.unwrap();
}

/// What a process has sent before it died may arrive when its successor lives.
#[tokio::test]
async fn a_claim_replaces_only_what_it_has_seen() {
    let world = World::new().await;
    world.instance("blue").await;
    let mut successor = world.sql.begin().await.unwrap();
    sqlx::query("UPDATE instances SET incarnation = gen_random_uuid() WHERE id = 'blue'")
        .execute(&mut *successor)
        .await
        .unwrap();
    let late = tokio::spawn({
        let store = world.store.clone();
        async move { store.claim_instance("blue", "here", TTL).await }
    });
    eventually("the claim waits", DEADLINE, || async {
        world.waiting_for_locks().await == 1
    })
    .await;
    successor.commit().await.unwrap();
    let refused = late.await.unwrap();
    assert!(
        matches!(&refused, Err(StoreError::Unavailable(why)) if why.contains("in between")),
        "{refused:?}"
    );
    // Whoever lives asks again, and has seen it.
    world.instance("blue").await;
}

#[tokio::test]
async fn of_two_takers_one_wins_and_the_epoch_grows() {
    let world = World::new().await;
    let job = world.job("orders").await;
    let stores = [open(&world.database.url()), open(&world.database.url())];
    let mut takers = [
        instance(&stores[0], "one").await,
        instance(&stores[1], "two").await,
    ];
    let mut epoch = LeaseEpoch(0);
    for round in 0..30 {
        let (a, b) = tokio::join!(
            stores[0].take_lease(job.uid, &takers[0]),
            stores[1].take_lease(job.uid, &takers[1])
        );
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!(a.is_some() ^ b.is_some(), "round {round}: {a:?} {b:?}");
        let lease = a.or(b).unwrap();
        assert_eq!(lease.epoch.0, epoch.0 + 1);
        epoch = lease.epoch;
        let owner = world.reload(&job).await.owner.unwrap();
        assert_eq!((owner.epoch, owner.live), (epoch, true));
        if round % 2 == 0 {
            let store = &world.store;
            store
                .settle_stopped(&lease, None, JobState::Stopped, None, true)
                .await
                .unwrap();
            assert_eq!(world.reload(&job).await.owner, None);
        } else {
            // The owner dies: both compete for what it held, itself as a new incarnation.
            let dead = usize::from(a.is_none());
            world.expire(&takers[dead]).await;
            assert!(!world.reload(&job).await.owner.unwrap().live);
            takers[dead] = instance(&stores[dead], &takers[dead].instance).await;
        }
    }
}

#[tokio::test]
async fn a_live_owner_keeps_its_job_and_may_take_it_again() {
    let world = World::new().await;
    let (job, owner, first) = world.owned_job("orders").await;
    let other = world.instance("other").await;
    assert_eq!(world.store.take_lease(job.uid, &other).await.unwrap(), None);
    // As after a lost answer.
    let second = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    assert!(second.epoch > first.epoch);
    let refused = world.store.set_state(&first, JobState::Running, None).await;
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");

    world.store.release_instance(&owner).await.unwrap();
    let third = world
        .store
        .take_lease(job.uid, &other)
        .await
        .unwrap()
        .unwrap();
    assert!(third.epoch > second.epoch);
}

#[tokio::test]
async fn a_successor_takes_over_at_once_and_its_predecessor_is_out() {
    let world = World::new().await;
    let (job, dead, lease) = world.owned_job("orders").await;
    let successor = world.instance(&dead.instance).await;
    assert_ne!(successor.id, dead.id);
    // The dead one was not dead after all: it hears of it with its next sign of life, and can take nothing.
    assert_eq!(world.renew(&dead).await, Renewal::Replaced);
    assert_eq!(world.renew(&successor).await, Renewal::InTime);
    let refused = world.store.take_lease(job.uid, &dead).await;
    assert!(matches!(refused, Err(StoreError::Fenced)), "{refused:?}");
    let taken = world
        .store
        .take_lease(job.uid, &successor)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(taken.epoch.0, lease.epoch.0 + 1);
    // Releasing under the old name does not touch the successor.
    world.store.release_instance(&dead).await.unwrap();
    assert!(world.reload(&job).await.owner.unwrap().live);
}

#[tokio::test]
async fn another_host_waits_until_the_instance_has_expired() {
    let world = World::new().await;
    let holder = world.instance("blue").await;
    let held = world
        .store
        .claim_instance("blue", "elsewhere", TTL)
        .await
        .unwrap();
    let ClaimInstance::HeldByOtherHost { host, expires_in } = held else {
        panic!("{held:?}");
    };
    assert_eq!(host, "here");
    assert!(expires_in > TTL / 2 && expires_in <= TTL, "{expires_in:?}");

    let short = Duration::from_millis(300);
    let renewed = world.store.renew_instance(&holder, short).await.unwrap();
    assert_eq!(renewed, Renewal::InTime);
    eventually("the claim of the other host", DEADLINE, || async {
        let claim = world
            .store
            .claim_instance("blue", "elsewhere", TTL)
            .await
            .unwrap();
        matches!(claim, ClaimInstance::Claimed(_))
    })
    .await;
    assert_eq!(world.renew(&holder).await, Renewal::Replaced);
}

#[tokio::test]
async fn signs_of_life_do_not_queue_behind_work() {
    let world = World::new().await;
    let (_, owner, lease) = world.owned_job("orders").await;
    // All four connections of the store wait for a row.
    let mut blocker = world.sql.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM job_leases FOR UPDATE")
        .execute(&mut *blocker)
        .await
        .unwrap();
    let work: Vec<_> = (0..4)
        .map(|_| {
            let store = world.store.clone();
            tokio::spawn(async move { store.set_state(&lease, JobState::Running, None).await })
        })
        .collect();
    eventually("four waiting sessions", DEADLINE, || async {
        world.waiting_for_locks().await == 4
    })
    .await;
    assert_eq!(world.renew(&owner).await, Renewal::InTime);
    blocker.rollback().await.unwrap();
    for one in work {
        one.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_does_not_come_is_an_outage_and_not_a_refusal() {
    let world = World::new().await;
    let (job, owner, _) = world.owned_job("orders").await;
    let mut blocker = world.sql.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM job_leases FOR SHARE")
        .execute(&mut *blocker)
        .await
        .unwrap();
    let error = world.store.take_lease(job.uid, &owner).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(text) if text.contains("55P03")),
        "{error}"
    );
    blocker.rollback().await.unwrap();
    assert!(
        world
            .store
            .take_lease(job.uid, &owner)
            .await
            .unwrap()
            .is_some()
    );
}
