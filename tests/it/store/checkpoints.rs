//! Checkpoints and their positions, there and back.

use std::{collections::BTreeMap, time::Duration};

use handover::{
    engine::{error::StoreError, ports::CheckpointStore},
    model::{
        checkpoint::{
            CheckpointKind, CheckpointPhases, CheckpointPosition, CheckpointStatus, GroupCommit,
            GroupCommitStatus,
        },
        ids::{CheckpointId, OperationId},
        job_state::{DesiredState, JobState},
        offset::Offset,
        stop_at::{BoundedRun, RunEnd, StopAt},
        topic::{TopicId, TopicPartition},
    },
    store::{CheckpointFilter, OperationOutcome, StartRecord},
};
use serde_json::json;

use super::{World, checkpoint, failed, now, position, put, spec, start_record};

#[tokio::test]
async fn a_checkpoint_comes_back_as_it_was_stored() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    assert_eq!(world.store.latest_checkpoint(job.uid).await.unwrap(), None);
    let mut stored = checkpoint(&lease, 1, CheckpointKind::Periodic, 0);
    stored.positions = BTreeMap::from([
        (TopicPartition::new("orders", 0), position(Some(0), 1)),
        (
            TopicPartition::new("orders", 1),
            position(Some((1 << 53) - 1), 1),
        ),
        // Waits for a leader since the first start.
        (TopicPartition::new("orders", 2), position(None, 1)),
        (
            TopicPartition::new("a.b_c-D", 17),
            CheckpointPosition {
                topic_id: None,
                ..position(Some(8), 1)
            },
        ),
    ]);
    world.store.complete(&lease, &stored).await.unwrap();
    let read = world
        .store
        .latest_checkpoint(job.uid)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(read.positions, stored.positions);
    assert_eq!(
        (read.id, read.kind, read.epoch),
        (stored.id, stored.kind, stored.epoch)
    );
    assert_eq!(
        (read.started_at, read.ended_at),
        (stored.started_at, stored.completed_at)
    );
    assert_eq!(read.confirmed_at, Some(stored.completed_at));
    assert_eq!((read.phases, read.has_output), (stored.phases, true));
    assert_eq!(read.sink_identity, "blackhole");
    assert_eq!(
        (read.status, read.failure.clone(), read.superseded),
        (CheckpointStatus::Completed, None, false)
    );
    assert_eq!(read.group_commit, GroupCommit::PENDING);
    assert_eq!(
        world.store.checkpoint(job.uid, stored.id).await.unwrap(),
        Some(read)
    );
    assert_eq!(
        world
            .store
            .checkpoint(job.uid, CheckpointId(2))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_checkpoint_without_partitions_and_one_with_very_many() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    for (id, count) in [(1, 0), (2, 20_000)] {
        let mut stored = checkpoint(&lease, id, CheckpointKind::Periodic, 0);
        stored.positions = (0..count)
            .map(|number| {
                (
                    TopicPartition::new(format!("t{}", number % 40), number / 40),
                    position(Some(i64::from(number)), 1),
                )
            })
            .collect();
        world.store.complete(&lease, &stored).await.unwrap();
        let read = world
            .store
            .checkpoint(job.uid, stored.id)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(read.positions, stored.positions);
    }
}

#[tokio::test]
async fn storing_again_succeeds_and_changes_nothing() {
    let world = World::new().await;
    let (job, owner, lease) = world.owned_job("orders").await;
    let first = checkpoint(&lease, 1, CheckpointKind::Periodic, 5);
    world.store.complete(&lease, &first).await.unwrap();
    world.store.complete(&lease, &first).await.unwrap();
    assert_eq!(
        world.count("SELECT count(*) FROM checkpoint_offsets").await,
        1
    );
    // An attempt that was given up although it is stored stays stored.
    world
        .store
        .record_failure(&lease, &failed(&lease, 1))
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .status,
        CheckpointStatus::Completed
    );

    let start = checkpoint(&lease, 2, CheckpointKind::Start, 7);
    world
        .store
        .store_start(&lease, &start, &start_record(&job))
        .await
        .unwrap();
    world
        .store
        .store_start(&lease, &start, &start_record(&job))
        .await
        .unwrap();
    assert_eq!(
        world
            .count("SELECT count(*) FROM events WHERE kind = 'job-started'")
            .await,
        1
    );

    // The same number under another lease is another checkpoint: somebody is where he must not be.
    let next = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    for outcome in [
        world
            .store
            .complete(&next, &checkpoint(&next, 1, CheckpointKind::Periodic, 9))
            .await,
        world.store.record_failure(&next, &failed(&next, 1)).await,
        world
            .store
            .store_start(
                &next,
                &checkpoint(&next, 2, CheckpointKind::Start, 9),
                &start_record(&job),
            )
            .await,
    ] {
        assert!(matches!(outcome, Err(StoreError::Fenced)), "{outcome:?}");
    }
    assert_eq!(
        world
            .store
            .checkpoint(job.uid, CheckpointId(1))
            .await
            .unwrap()
            .unwrap()
            .positions,
        first.positions
    );
}

#[tokio::test]
async fn a_checkpoint_of_another_epoch_than_the_lease_is_refused() {
    let world = World::new().await;
    let (job, owner, old) = world.owned_job("orders").await;
    let lease = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    let outcome = world
        .store
        .complete(&lease, &checkpoint(&old, 1, CheckpointKind::Periodic, 5))
        .await;
    assert!(
        matches!(outcome, Err(StoreError::Refused(_))),
        "{outcome:?}"
    );
    assert_eq!(world.store.latest_checkpoint(job.uid).await.unwrap(), None);
}

#[tokio::test]
async fn numbers_are_never_used_twice() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let next = async || world.store.next_checkpoint_id(job.uid).await.unwrap().0;
    assert_eq!(next().await, 1);
    world
        .store
        .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Periodic, 5))
        .await
        .unwrap();
    assert_eq!(next().await, 2);
    world
        .store
        .record_failure(&lease, &failed(&lease, 4))
        .await
        .unwrap();
    assert_eq!(next().await, 5);
    // Also when the failed one is old enough to go.
    sqlx::query("UPDATE checkpoints SET ended_at = now() - interval '40 days', started_at = now() - interval '40 days'")
        .execute(&world.sql)
        .await
        .unwrap();
    world.store.thin(&lease).await.unwrap();
    assert_eq!(next().await, 5);
    // A failed one is nothing to resume from.
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .id,
        CheckpointId(1)
    );
}

#[tokio::test]
async fn a_start_can_set_older_checkpoints_aside_and_they_are_kept() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    for id in 1..=3 {
        world
            .store
            .complete(
                &lease,
                &checkpoint(&lease, id, CheckpointKind::Periodic, id),
            )
            .await
            .unwrap();
    }
    let mut record = start_record(&job);
    record.set_aside = true;
    world
        .store
        .store_start(
            &lease,
            &checkpoint(&lease, 4, CheckpointKind::Start, 0),
            &record,
        )
        .await
        .unwrap();
    let all = world
        .store
        .checkpoints(
            job.uid,
            &CheckpointFilter {
                limit: 10,
                ..CheckpointFilter::default()
            },
        )
        .await
        .unwrap();
    let superseded: Vec<_> = all.iter().map(|one| (one.id.0, one.superseded)).collect();
    assert_eq!(superseded, [(4, false), (3, true), (2, true), (1, true)]);
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .id,
        CheckpointId(4)
    );
    assert_eq!(
        world
            .store
            .checkpoint(job.uid, CheckpointId(3))
            .await
            .unwrap()
            .unwrap()
            .positions
            .len(),
        1
    );
}

#[tokio::test]
async fn the_history_is_filtered_and_paged() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    for id in 1..=10 {
        let kind = if id % 5 == 0 {
            CheckpointKind::Manual
        } else {
            CheckpointKind::Periodic
        };
        if id % 3 == 0 {
            world
                .store
                .record_failure(&lease, &failed(&lease, id))
                .await
                .unwrap();
        } else {
            world
                .store
                .complete(&lease, &checkpoint(&lease, id, kind, id))
                .await
                .unwrap();
        }
    }
    let ids = async |filter: CheckpointFilter| -> Vec<i64> {
        world
            .store
            .checkpoints(job.uid, &filter)
            .await
            .unwrap()
            .iter()
            .map(|one| one.id.0)
            .collect()
    };
    let all = CheckpointFilter {
        limit: 3,
        ..CheckpointFilter::default()
    };
    assert_eq!(ids(all.clone()).await, [10, 9, 8]);
    assert_eq!(
        ids(CheckpointFilter {
            before: Some(CheckpointId(8)),
            ..all.clone()
        })
        .await,
        [7, 6, 5]
    );
    assert_eq!(
        ids(CheckpointFilter {
            statuses: vec![CheckpointStatus::Failed],
            ..all.clone()
        })
        .await,
        [9, 6, 3]
    );
    assert_eq!(
        ids(CheckpointFilter {
            kinds: vec![CheckpointKind::Manual],
            ..all.clone()
        })
        .await,
        [10, 5]
    );
    let both = CheckpointFilter {
        kinds: vec![CheckpointKind::Manual],
        statuses: vec![CheckpointStatus::Failed],
        ..all.clone()
    };
    assert!(ids(both).await.is_empty());

    let failures = CheckpointFilter {
        statuses: vec![CheckpointStatus::Failed],
        limit: 1,
        ..CheckpointFilter::default()
    };
    let failure = world
        .store
        .checkpoints(job.uid, &failures)
        .await
        .unwrap()
        .remove(0);
    assert_eq!(failure.failure.unwrap().code, "checkpoint-timeout");
    assert_eq!(
        (failure.confirmed_at, failure.group_commit),
        (None, GroupCommit::OFF)
    );
    for with_positions in [false, true] {
        let filter = CheckpointFilter {
            with_positions,
            ..all.clone()
        };
        assert_eq!(
            world.store.checkpoints(job.uid, &filter).await.unwrap()[0]
                .positions
                .len(),
            usize::from(with_positions)
        );
    }
}

#[tokio::test]
async fn confirmations_and_group_commits_are_added_later() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let stored = checkpoint(&lease, 1, CheckpointKind::Periodic, 5);
    world.store.complete(&lease, &stored).await.unwrap();
    let read = async || {
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
    };
    let later = stored.completed_at + Duration::from_secs(30);
    world.store.confirm(&lease, stored.id, later).await.unwrap();
    // Two confirmations may overtake each other.
    world.store.confirm(&lease, stored.id, now()).await.unwrap();
    assert_eq!(read().await.confirmed_at, Some(later));
    assert_eq!(read().await.ended_at, stored.completed_at);

    let phases = CheckpointPhases {
        barrier_ms: Some(3),
        store_ms: Some(5),
        group_commit_ms: Some(17),
        ..CheckpointPhases::default()
    };
    let refused = GroupCommit {
        status: GroupCommitStatus::Failed,
        error: Some("coordinator\0gone".to_owned()),
    };
    world
        .store
        .record_outcome(&lease, stored.id, &phases, &refused)
        .await
        .unwrap();
    assert_eq!(
        read().await.group_commit.error.as_deref(),
        Some("coordinator\u{fffd}gone")
    );
    assert_eq!(read().await.phases, phases);
    let displaced = GroupCommit {
        status: GroupCommitStatus::Displaced,
        error: None,
    };
    world
        .store
        .record_outcome(&lease, stored.id, &CheckpointPhases::default(), &displaced)
        .await
        .unwrap();
    assert_eq!(
        (
            read().await.group_commit,
            read().await.phases.group_commit_ms
        ),
        (displaced, None)
    );

    let missing = world.store.confirm(&lease, CheckpointId(2), now()).await;
    assert!(
        matches!(missing, Err(StoreError::Refused(_))),
        "{missing:?}"
    );
}

#[tokio::test]
async fn a_job_that_does_not_commit_has_no_pending_commits() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let quiet = put(
        &world.store,
        "orders",
        &spec("orders", json!({"source": {"commit_to_group": "off"}})),
    )
    .await;
    // The spec that runs counts, not the newest one.
    let kinds = [
        (1, CheckpointKind::Start, GroupCommitStatus::Off),
        (2, CheckpointKind::Periodic, GroupCommitStatus::Pending),
        (3, CheckpointKind::Start, GroupCommitStatus::Off),
        (4, CheckpointKind::Periodic, GroupCommitStatus::Off),
    ];
    for (id, kind, expected) in kinds {
        let row = checkpoint(&lease, id, kind, 5);
        if kind == CheckpointKind::Start {
            let record = start_record(if id == 1 { &job } else { &quiet });
            world
                .store
                .store_start(&lease, &row, &record)
                .await
                .unwrap();
        } else {
            world.store.complete(&lease, &row).await.unwrap();
        }
        assert_eq!(
            world
                .store
                .latest_checkpoint(job.uid)
                .await
                .unwrap()
                .unwrap()
                .group_commit
                .status,
            expected,
            "{id}"
        );
    }
}

/// A stop of a job that retains nothing leaves the numbers and nothing to resume from; a repetition changes nothing.
#[tokio::test]
async fn a_stop_that_deletes_checkpoints_leaves_only_the_number() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    for id in 1..=4 {
        let stored = checkpoint(&lease, id, CheckpointKind::Periodic, id * 10);
        world.store.complete(&lease, &stored).await.unwrap();
    }
    world
        .store
        .record_failure(&lease, &failed(&lease, 5))
        .await
        .unwrap();
    let stored = checkpoint(&lease, 6, CheckpointKind::Stop, 60);
    world.store.complete(&lease, &stored).await.unwrap();
    let operation = OperationId::from_text("op_01stop");
    let outcome = OperationOutcome::Succeeded {
        changed: true,
        step: "released".to_owned(),
        result: json!({}),
    };
    for _ in 0..2 {
        let settled = world
            .store
            .settle_canceled(&lease, (&operation, &outcome), None)
            .await;
        assert_eq!(settled.unwrap(), JobState::Stopped);
    }
    assert_eq!(world.store.latest_checkpoint(job.uid).await.unwrap(), None);
    let all = world
        .store
        .checkpoints(
            job.uid,
            &CheckpointFilter {
                limit: 10,
                ..CheckpointFilter::default()
            },
        )
        .await
        .unwrap();
    let left: Vec<_> = all.iter().map(|one| (one.id.0, one.superseded)).collect();
    assert_eq!(left, [(6, true)]);
    assert_eq!(
        world.store.next_checkpoint_id(job.uid).await.unwrap(),
        CheckpointId(7)
    );
}

fn bounded_run_to(stop_offset: i64) -> BoundedRun {
    BoundedRun {
        stop_at: StopAt::Latest,
        begun_by: CheckpointId(1),
        begun_at: now(),
        finished_at: None,
        ends: BTreeMap::from([
            (
                TopicPartition::new("orders", 0),
                RunEnd {
                    stop_offset: Offset::new(stop_offset).unwrap(),
                    topic_id: Some(TopicId("abc".into())),
                },
            ),
            (
                TopicPartition::new("a.b_c-D", 17),
                RunEnd {
                    stop_offset: Offset::ZERO,
                    topic_id: None,
                },
            ),
        ]),
    }
}

/// A bounded run is stored with its start's checkpoint; the next start replaces it, and only a start does.
#[tokio::test]
async fn a_bounded_run_lasts_until_a_start_replaces_it() {
    let world = World::new().await;
    let (job, owner, lease) = world.owned_job("orders").await;
    let run = bounded_run_to;
    let bounded = run(70);
    let record = StartRecord {
        bounded: Some(bounded.clone()),
        ..start_record(&job)
    };
    let start = checkpoint(&lease, 1, CheckpointKind::Start, 0);
    for _ in 0..2 {
        world
            .store
            .store_start(&lease, &start, &record)
            .await
            .unwrap();
        let read = world.store.bounded_run(job.uid).await.unwrap();
        assert_eq!(read, Some(bounded.clone()));
    }
    let settled = world
        .store
        .settle_stopped(&lease, None, JobState::Finished, None, false)
        .await;
    assert_eq!(settled.unwrap(), JobState::Finished);
    let row = world.reload(&job).await;
    assert_eq!(
        (row.state, row.desired_state),
        (JobState::Finished, DesiredState::Stopped)
    );
    let read = world.store.bounded_run(job.uid).await.unwrap().unwrap();
    assert!(read.finished_at.is_some());

    // A start that is refused, or called off by a stop, leaves it finished.
    let lease = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    world
        .store
        .set_state(&lease, JobState::Starting, None)
        .await
        .unwrap();
    let refused = world
        .store
        .refuse_start(&lease, None, DesiredState::Stopped)
        .await;
    assert_eq!(refused.unwrap(), JobState::Finished);
    let lease = world
        .store
        .take_lease(job.uid, &owner)
        .await
        .unwrap()
        .unwrap();
    let stopped = world
        .store
        .settle_stopped(&lease, None, JobState::Stopped, None, false)
        .await;
    assert_eq!(stopped.unwrap(), JobState::Finished);

    // Another run, and one without an end.
    for (id, bounded) in [(2, Some(run(90))), (3, None)] {
        let lease = world
            .store
            .take_lease(job.uid, &owner)
            .await
            .unwrap()
            .unwrap();
        let start = checkpoint(&lease, id, CheckpointKind::Start, 0);
        let record = StartRecord {
            bounded: bounded.clone(),
            ..start_record(&job)
        };
        world
            .store
            .store_start(&lease, &start, &record)
            .await
            .unwrap();
        assert_eq!(world.store.bounded_run(job.uid).await.unwrap(), bounded);
        let stopped = world
            .store
            .settle_stopped(&lease, None, JobState::Stopped, None, false)
            .await;
        assert_eq!(stopped.unwrap(), JobState::Stopped);
    }
}
