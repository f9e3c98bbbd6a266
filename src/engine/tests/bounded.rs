//! Runs with an end.

use std::collections::BTreeMap;

use super::{
    DEADLINE, NEVER, Setup, World, checkpoint,
    cluster::{Commits, Part, Scripted, records},
    discovery::{look_often_and_begin_anew, until_parked},
    offset, offsets_of, partition, stop, stopped, timing, until_status, within,
};
use crate::{
    engine::{JobEnd, JobHandle, StopOutcome, error::ConsumerError},
    model::{
        CheckpointKind, Code, PartitionOffsets,
        checkpoint::GroupCommitStatus,
        errors_spec::ErrorsSpec,
        event::EventKind,
        job::{Format, PositionPolicy},
        resolver::PlannedParking,
        start::StopCheckpoint,
        topic::TopicId,
    },
};

fn ends(ends: &[(i32, i64)]) -> Option<PartitionOffsets> {
    Some(
        ends.iter()
            .map(|(number, end)| (partition(*number), offset(*end)))
            .collect(),
    )
}

fn up_to(stops: &[(i32, i64)]) -> Setup {
    Setup {
        partitions: stops.iter().map(|(number, _)| (*number, Some(0))).collect(),
        ends: ends(stops),
        ..Setup::default()
    }
}

async fn finished(job: &JobHandle) -> StopOutcome {
    match within("the end of the run", job.ended()).await {
        JobEnd::Finished(outcome) => *outcome,
        other => panic!("it ended otherwise: {other:?}"),
    }
}

fn behind(number: i32, advance_to: i64) -> Scripted {
    Scripted::Batch(vec![Part {
        partition: number,
        records: Vec::new(),
        advance_to: Some(advance_to),
    }])
}

/// FLINK-20194, FLINK-20431: after the end the group's offset was not the end, because the commit came after the reader had
/// gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_ends_at_its_ends_with_a_last_checkpoint_and_commit() {
    let world = World::new();
    let job = world.start(up_to(&[(0, 5), (1, 3)]));
    // More than is wanted, in the batch that reaches the end and after it.
    world.cluster.deliver(1, 0..=9);
    world.until_written(3).await;
    world.cluster.deliver(1, 10..=12);
    world.cluster.deliver(0, 0..=3);
    world.until_written(7).await;
    assert_eq!(
        world.store.completed().len(),
        1,
        "one partition is not there"
    );
    world.cluster.deliver(0, 4..=8);
    let outcome = finished(&job).await;
    let mut written = world.sink.written();
    written.sort_unstable();
    let wanted: Vec<(i32, i64)> = (0..5)
        .map(|record| (0, record))
        .chain((0..3).map(|record| (1, record)))
        .collect();
    assert_eq!(written, wanted, "nothing at an end or behind it");
    let newest = world.store.newest();
    assert_eq!(newest.kind, CheckpointKind::Stop);
    assert_eq!(offsets_of(&newest), BTreeMap::from([(0, 5), (1, 3)]));
    assert_eq!(
        world.cluster.committed().last(),
        Some(&BTreeMap::from([(0, 5), (1, 3)]))
    );
    let report = outcome.checkpoint.unwrap();
    assert_eq!(
        (report.id, report.group_commit.status),
        (newest.id, GroupCommitStatus::Ok)
    );
    assert_eq!((outcome.will_replay, outcome.leaked_threads), (Some(0), 0));
}

/// FLINK-34470: a run whose end is behind a transaction's marker, or at a record that was compacted away, hung. What counts is
/// the position, and a record behind the end says as much as the one at it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_without_a_record_is_reached() {
    let world = World::new();
    // Partition 0: offset 4 is a marker, and the log ends there. Partition 1: 3 to 6 were compacted away.
    let job = world.start(up_to(&[(0, 5), (1, 5)]));
    world.cluster.script(Scripted::Batch(vec![Part {
        advance_to: Some(5),
        ..records(0, 0..=3)
    }]));
    world.cluster.deliver(1, 0..=2);
    world.until_written(7).await;
    world.cluster.deliver(1, 7..=8);
    finished(&job).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 5), (1, 5)])
    );
    assert_eq!(world.sink.written().len(), 7);
}

/// FLINK-28475, FLINK-27041: with an end at 0, or before the beginning, a run read for ever or failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_at_or_before_the_beginning_ends_at_once() {
    let world = World::new();
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(7)), (2, Some(7))]),
        ends: ends(&[(0, 0), (1, 7), (2, 4)]),
        parallelism: 2,
        ..Setup::default()
    });
    finished(&job).await;
    assert_eq!(world.sink.written(), Vec::new());
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 0), (1, 7), (2, 7)]),
        "no position goes back to its end"
    );
    assert_eq!(world.cluster.committed().len(), 1);
}

/// A transaction that is open before the end holds the run back; it goes on when the transaction has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_the_log_does_not_reach_is_waited_for() {
    let world = World::new();
    let job = world.start(up_to(&[(0, 10)]));
    world.cluster.script(Scripted::Batch(vec![Part {
        advance_to: Some(5),
        ..records(0, 0..=4)
    }]));
    world.until_written(5).await;
    let status = until_status(&job, "it stands before the transaction", |status| {
        status.partitions[&partition(0)].position == Some(offset(5))
    })
    .await;
    assert_eq!(
        status.partitions[&partition(0)].stop_offset,
        Some(offset(10))
    );
    assert_eq!(world.store.completed().len(), 1, "it has not ended");
    world.cluster.script(behind(0, 11));
    finished(&job).await;
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 10)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_leader_keeps_the_run_from_ending() {
    let world = World::new();
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(0)), (1, None)]),
        ends: ends(&[(0, 2), (1, 4)]),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=1);
    world.until_written(2).await;
    // The startup mode is `latest`: it begins at its end.
    world.cluster.elect(1, 0, 4);
    finished(&job).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 2), (1, 4)])
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_commit_is_tried_until_the_group_has_it() {
    let world = World::new();
    world.cluster.set_commits(Commits::Refused);
    let job = world.start(up_to(&[(0, 2)]));
    world.cluster.deliver(0, 0..=1);
    until_status(&job, "it says what it waits for", |status| {
        status
            .waiting
            .iter()
            .any(|waiting| waiting.code == Code::CommitsFailing)
    })
    .await;
    world.cluster.set_commits(Commits::Confirmed);
    finished(&job).await;
    assert_eq!(world.cluster.committed(), [BTreeMap::from([(0, 2)])]);
    assert_eq!(
        world.store.completed().len(),
        2,
        "one checkpoint, several commits"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_does_not_wait_for_a_group_that_does_not_answer() {
    let world = World::new();
    world.cluster.set_commits(Commits::Refused);
    let job = world.start(up_to(&[(0, 2)]));
    world.cluster.deliver(0, 0..=1);
    until_status(&job, "it waits for the group", |status| {
        !status.waiting.is_empty()
    })
    .await;
    let end = within("a stop", job.stop(StopCheckpoint::BestEffort, super::SHORT)).await;
    let JobEnd::Finished(outcome) = end.expect("a stop") else {
        panic!("everything is read and stored: it is finished");
    };
    let report = outcome.checkpoint.unwrap();
    assert_eq!(report.group_commit.status, GroupCommitStatus::Failed);
}

/// A stop that comes first stops, and one that finds everything read finishes: there is nothing left to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_the_middle_stops_and_one_at_the_end_finishes() {
    let world = World::new();
    let job = world.start(up_to(&[(0, 5)]));
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    stop(&job, StopCheckpoint::BestEffort).await;
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 3)]));

    let world = World::new();
    let job = world.start(Setup {
        checkpoint: timing(NEVER, DEADLINE),
        ..up_to(&[(0, 3)])
    });
    world.cluster.deliver(0, 0..=2);
    let end = within("a stop", job.stop(StopCheckpoint::BestEffort, NEVER)).await;
    match end.expect("a stop") {
        // The stop came before the records, or between them and the end.
        JobEnd::Stopped(outcome) => assert!(stopped(JobEnd::Stopped(outcome)).checkpoint.is_some()),
        JobEnd::Finished(_) => assert_eq!(offsets_of(&world.store.newest())[&0], 3),
        JobEnd::Failed(error) => panic!("{error}"),
    }
}

/// A bad record before the end parks its partition, and the run does not end without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_partition_keeps_the_run_from_ending() {
    let world = World::new();
    let job = world.start_as(Format::Json, up_to(&[(0, 3), (1, 2)]));
    let mut bad = records(0, 0..=2);
    bad.records[1].1 = b"nope";
    world.cluster.script(Scripted::Batch(vec![bad]));
    world.cluster.deliver(1, 0..=1);
    let status = until_status(&job, "one is parked, the other at its end", |status| {
        let ended = &status.partitions[&partition(1)];
        !status.parked.is_empty() && ended.position == ended.stop_offset
    })
    .await;
    assert_eq!(status.partitions[&partition(0)].position, Some(offset(1)));
    assert!(checkpoint(&job).await.failure.is_none(), "it runs");
    let outcome = stop(&job, StopCheckpoint::BestEffort).await;
    assert!(outcome.checkpoint.is_some());
    assert_eq!(offsets_of(&world.store.newest())[&0], 1);
}

/// The ends are numbers of the old topic: in the new one the run would be cut at them, or wait for them. The next start decides
/// both, whatever the policy says meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recreated_topic_is_left_for_the_next_start() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        topic_id: Some("a"),
        source: look_often_and_begin_anew,
        ..up_to(&[(0, 40), (1, 2)])
    });
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    world.looked().await;
    world.cluster.topic(Some(("b", 2)));
    for number in [0, 1] {
        let parked = until_parked(&job, number, Code::TopicRecreated).await;
        assert!(
            parked.detail.contains("the next start decides"),
            "{parked:?}"
        );
    }
    job.set_policies(PositionPolicy::Fail, PositionPolicy::Latest)
        .await;
    world.looked().await;
    checkpoint(&job).await;
    let stored = offsets_of(&world.store.newest());
    assert_eq!(stored, BTreeMap::from([(0, 5), (1, 0)]));
    assert_eq!(world.cluster.assigned(0), None);
    assert_eq!(world.told(EventKind::PositionMoved).len(), 0);
    stop(&job, StopCheckpoint::Required).await;
}

/// The start could not ask anybody: the end is one of the new topic, the position one of the old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_does_not_end_by_the_position_in_a_topic_that_is_gone() {
    let world = World::watching(Some(("b", 2)));
    let parking = PlannedParking {
        code: Code::TopicRecreated,
        detail: "the topic was created again".to_owned(),
        lost: None,
        replaced_by: Some(TopicId("b".into())),
        again: true,
    };
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(50)), (1, Some(0))]),
        parked: BTreeMap::from([(0, parking)]),
        ..up_to(&[(0, 10), (1, 2)])
    });
    world.cluster.deliver(1, 0..=1);
    until_status(&job, "the other is at its end", |status| {
        let ended = &status.partitions[&partition(1)];
        ended.position == ended.stop_offset
    })
    .await;
    assert!(checkpoint(&job).await.failure.is_none(), "it runs");
    let outcome = stop(&job, StopCheckpoint::Required).await;
    assert!(outcome.checkpoint.is_some(), "stopped, not finished");
}

/// What is gone behind the end is no part of the run, and so not lost to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_is_told_up_to_the_end() {
    let world = World::new();
    world.cluster.topic(Some(("a", 1)));
    world.cluster.elect(0, 250, 300);
    let setup = Setup {
        partitions: BTreeMap::from([(0, Some(60))]),
        ..up_to(&[(0, 200)])
    };
    let (errors, policy) = (ErrorsSpec::default(), PositionPolicy::Earliest);
    let job = world.start_under(Format::Bytes, errors, policy, setup);
    world.cluster.script(Scripted::Error(
        0,
        ConsumerError::OutOfRange {
            partition: partition(0),
            position: offset(60),
        },
    ));
    finished(&job).await;
    let told = &world.told(EventKind::PositionMoved)[0];
    assert_eq!(
        (&told["lost"]["to"], &told["lost"]["offsets"]),
        (&200.into(), &140.into())
    );
}
