//! A partition that cannot go on does not hold back the others.

use super::{
    cluster::Scripted,
    failures::poisoned,
    sink::{Does, Step},
    *,
};
use crate::{
    engine::{SkipOutcome, error::ConsumerError},
    model::{Code, parked::ParkedPartition},
};

fn two_partitions() -> Setup {
    Setup {
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
        ..Setup::default()
    }
}

/// Waits until a partition is parked, and answers why.
async fn until_parked(job: &JobHandle, number: i32) -> ParkedPartition {
    let what = format!("partition {number} is parked");
    let status = until_status(job, &what, |status| {
        status.parked.contains_key(&partition(number))
    })
    .await;
    status.parked[&partition(number)].clone()
}

async fn skip(job: &JobHandle, number: i32, at: i64) -> SkipOutcome {
    let skipped = within("a skip", job.skip(partition(number), offset(at))).await;
    skipped.expect("the job runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_parks_its_partition_and_the_others_go_on() {
    let world = World::new();
    let job = world.start_as(Format::Json, two_partitions());
    world.cluster.script(poisoned(0));
    let parked = until_parked(&job, 0).await;
    assert_eq!(parked.code, Code::BlockedOnRecord);
    assert_eq!(parked.offset, Some(offset(2)));
    assert_eq!(parked.phase.as_deref(), Some("decode"));
    assert_eq!(parked.record.unwrap().offset, 2);

    world.cluster.deliver(1, 0..=4);
    world.until_written(6).await;
    checkpoint(&job).await;
    let both = BTreeMap::from([(0, 2), (1, 5)]);
    assert_eq!(offsets_of(&world.store.newest()), both);
    world
        .until("the client reads it no more", || {
            world.cluster.assigned(0).is_none()
        })
        .await;
    let outcome = stop(&job, StopCheckpoint::Required).await;
    assert!(outcome.blocked.is_none());
    assert_eq!(offsets_of(&world.store.newest()), both);
    assert_eq!(world.sink.written_of(0), [0]);
}

/// The position behind the record is stored before the partition goes on, and nothing that was fetched before counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_skip_moves_a_parked_partition_by_one_record_while_the_job_runs() {
    let world = World::new();
    let job = world.start_as(Format::Json, two_partitions());
    // More of the same assignment waits in the slot and in the thread's hand while the partition is parked.
    world.sink.set(Step::Write, Does::Block);
    world.cluster.script(poisoned(0));
    world.cluster.deliver(0, 10..=12);
    world.cluster.deliver(0, 13..=15);
    world
        .until("three batches", || world.cluster.taken() == 3)
        .await;
    world.sink.set(Step::Write, Does::Work);
    until_parked(&job, 0).await;
    for elsewhere in [1, 3] {
        assert_eq!(skip(&job, 0, elsewhere).await, SkipOutcome::NotParkedThere);
    }
    assert_eq!(skip(&job, 1, 0).await, SkipOutcome::NotParkedThere);

    let outcome = skip(&job, 0, 2).await;
    let newest = world.store.newest();
    let expected = SkipOutcome::Skipped {
        checkpoint: newest.id,
        next_offset: offset(3),
    };
    assert_eq!(outcome, expected);
    assert_eq!(newest.kind, CheckpointKind::Skip);
    assert_eq!(offsets_of(&newest), BTreeMap::from([(0, 3), (1, 0)]));
    assert_eq!(newest.positions[&partition(0)].position_id, newest.id);
    assert_ne!(newest.positions[&partition(1)].position_id, newest.id);
    world
        .until("it is read again", || {
            world.cluster.assigned(0).is_some_and(|(_, at)| at == 3)
        })
        .await;
    assert!(
        world
            .sink
            .assigned()
            .iter()
            .any(|(_, number, at, id)| (*number, *at, *id) == (0, 3, newest.id.0)),
        "the sink hears of the decision"
    );
    until_status(&job, "nothing is parked", |status| status.parked.is_empty()).await;
    world.cluster.deliver(0, 3..=5);
    world.until_written(4).await;
    assert_eq!(world.sink.written_of(0), [0, 3, 4, 5]);
    checkpoint(&job).await;
    assert_eq!(offsets_of(&world.store.newest())[&0], 6);
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_outside_the_log_parks_its_partition() {
    let world = World::new();
    let job = world.start(two_partitions());
    world.cluster.deliver(0, 0..=3);
    world.until_written(4).await;
    let out_of_range = ConsumerError::OutOfRange {
        partition: partition(0),
        position: offset(4),
    };
    world.cluster.script(Scripted::Error(0, out_of_range));
    let parked = until_parked(&job, 0).await;
    assert_eq!(parked.code, Code::OffsetOutOfRange);
    assert_eq!((parked.offset, parked.record), (Some(offset(4)), None));
    assert_eq!(
        skip(&job, 0, 4).await,
        SkipOutcome::NotParkedThere,
        "there is no record to leave out"
    );
    world.cluster.deliver(1, 0..=4);
    world.until_written(9).await;
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 4), (1, 5)])
    );
}
