//! Records on their way to the sink.

use super::{
    cluster::{Part, Scripted, records},
    sink::{Does, Step},
    *,
};
use crate::model::subtask::owner;

/// Redelivered records are dropped, whether they come in a batch of their own or within one.
#[tokio::test(flavor = "multi_thread")]
async fn records_reach_the_sink_once_and_in_order() {
    let world = World::new();
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(5))]),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=2);
    world.cluster.deliver(0, 1..=4);
    world.cluster.script(Scripted::Batch(vec![
        records(1, 3..=6),
        records(0, 5..=6),
        records(1, 6..=7),
        records(0, 4..=7),
    ]));
    world.until_written(11).await;
    assert_eq!(world.sink.written_of(0), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(world.sink.written_of(1), [5, 6, 7]);

    let report = checkpoint(&job).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 8), (1, 8)])
    );
    let status = job.status();
    assert_eq!(status.last_checkpoint.as_ref().unwrap().id, report.id);
    assert_eq!((status.records, status.redelivered), (11, 2 + 2 + 1 + 3));
    assert_eq!(
        stop(&job, StopCheckpoint::Required).await.will_replay,
        Some(0)
    );
}

/// The position behind a transaction's marker counts, in order, once the records before it are with the sink.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_partition_counts_after_the_records_before_it() {
    let world = World::new();
    world.sink.set(Step::Write, Does::Block);
    let job = world.start(Setup::default());
    let end = |advance_to| Part {
        advance_to: Some(advance_to),
        ..records(0, 0..=1)
    };
    world.cluster.script(Scripted::Batch(vec![end(3)]));
    world
        .until("a write", || world.sink.entered(Step::Write) == 1)
        .await;
    let position = |status: &Arc<JobStatus>| status.partitions[&partition(0)].position;
    // An attempt that runs into its timeout shows how things stand.
    let timed_out = trigger(&job, Some(SHORT)).await.unwrap();
    let status = until_status(&job, "the failed attempt", |status| {
        let failed = status.last_failed.as_ref();
        failed.is_some_and(|(id, _)| *id == timed_out.id)
    })
    .await;
    assert_eq!(position(&status), Some(offset(0)));
    world.sink.set(Step::Write, Does::Work);
    until_status(&job, "the marker passed", |status| {
        position(status) == Some(offset(3))
    })
    .await;
    // An end without records: the sink is not asked, and the checkpoint says so.
    checkpoint(&job).await;
    assert!(world.store.newest().has_output);
    world.cluster.script(Scripted::Batch(vec![Part {
        partition: 0,
        records: Vec::new(),
        advance_to: Some(5),
    }]));
    until_status(&job, "the next marker passed", |status| {
        position(status) == Some(offset(5))
    })
    .await;
    let outcome = stop(&job, StopCheckpoint::Required).await;
    assert_eq!(outcome.will_replay, Some(0));
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 5)]));
    assert!(!world.store.newest().has_output);
    assert_eq!(world.sink.entered(Step::Write), 1);
}

/// A sink that does not take records holds three batches at most: its own, the one in the slot, the one in the thread.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_sink_stops_the_polling() {
    let world = World::new();
    world.sink.set(Step::Write, Does::Block);
    let job = world.start(Setup::default());
    for number in 0..10 {
        world.cluster.deliver(0, number..=number);
    }
    world
        .until("three batches taken", || world.cluster.taken() == 3)
        .await;
    // Time passes, by an attempt that runs into its timeout.
    let timed_out = trigger(&job, Some(SHORT)).await.unwrap();
    assert_eq!(timed_out.status, "failed");
    assert_eq!(world.cluster.taken(), 3);

    world.sink.set(Step::Write, Does::Work);
    world.until_written(10).await;
    assert_eq!(world.sink.written_of(0), Vec::from_iter(0..10));
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_subtasks_share_the_partitions_and_one_checkpoint() {
    let world = World::new();
    let job = world.start(Setup {
        parallelism: 4,
        partitions: (0..8).map(|number| (number, Some(10))).collect(),
        ..Setup::default()
    });
    for number in 0..8 {
        world.cluster.deliver(number, 10..=11 + i64::from(number));
    }
    world
        .until_written((0..8).map(|number| 2 + number).sum())
        .await;
    for number in 0..8 {
        let subtask = owner("orders", number, 4);
        assert_eq!(world.cluster.assigned(number), Some((subtask, 10)));
        assert_eq!(
            world.sink.written_of(number),
            Vec::from_iter(10..=11 + i64::from(number))
        );
    }
    let report = checkpoint(&job).await;
    let expected: BTreeMap<i32, i64> = (0..8).map(|n| (n, 12 + i64::from(n))).collect();
    assert_eq!(offsets_of(&world.store.newest()), expected);
    assert_eq!(world.sink.prepared(report.id), expected);
    assert_eq!(world.sink.prepares().len(), 4);
    stop(&job, StopCheckpoint::BestEffort).await;
    assert_eq!(world.sink.closed(), 4);
    assert_eq!(world.cluster.closed(), 4);
}

/// A sink whose trouble passes gets the same batch again; nothing moves before it has taken it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_away_is_waited_for() {
    let world = World::new();
    world.sink.set(Step::Write, Does::FailForNow);
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=1);
    let status = until_status(&job, "the sink's trouble", |status| {
        !status.waiting.is_empty()
    })
    .await;
    assert_eq!(status.waiting[0].detail, "Write: the target said no");
    assert_eq!(status.partitions[&partition(0)].position, Some(offset(0)));
    world.sink.set(Step::Write, Does::Work);
    until_status(&job, "no trouble", |status| {
        status.waiting.is_empty() && status.records == 2
    })
    .await;
    assert_eq!(world.sink.written_of(0), [0, 1]);
    stop(&job, StopCheckpoint::Required).await;
}

/// A sink that comes into trouble by itself says so at once, without a batch or a checkpoint that asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_in_trouble_between_two_calls_is_shown_until_it_works_again() {
    let world = World::new();
    let setup = Setup {
        checkpoint: timing(NEVER, NEVER),
        ..Setup::default()
    };
    let job = world.start(setup);
    world.cluster.deliver(0, 0..=1);
    world.until_written(2).await;
    world.sink.set(Step::Idle, Does::FailForNow);
    let status = until_status(&job, "the sink's trouble", |status| {
        !status.waiting.is_empty()
    })
    .await;
    assert_eq!(status.waiting[0].detail, "Idle: the target said no");
    // The sink decides what it takes meanwhile; a batch that it takes is no end of the trouble.
    world.cluster.deliver(0, 2..=2);
    world.until_written(3).await;
    until_status(&job, "the trouble is still there", |status| {
        !status.waiting.is_empty()
    })
    .await;
    world.sink.set(Step::Idle, Does::Work);
    until_status(&job, "no trouble", |status| status.waiting.is_empty()).await;
    stop(&job, StopCheckpoint::Required).await;
}
