//! A partition that cannot go on does not hold back the others.

use std::collections::BTreeSet;

use super::{
    cluster::{Part, Scripted},
    failures::poisoned,
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::{
    engine::{
        SkipOutcome,
        error::{ConsumerError, ErrorClass},
    },
    model::{
        Code,
        parked::{LostRange, LostSide, ParkedPartition},
    },
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
        checkpoint: Some(newest.id),
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

fn with_policy(on_bad_record: OnBadRecord) -> ErrorsSpec {
    ErrorsSpec {
        block: Block::Partition,
        on_bad_record,
    }
}

fn to_letters() -> ErrorsSpec {
    with_policy(OnBadRecord::DeadLetter {
        connection: "main".to_owned(),
        topic: "letters".to_owned(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_record_is_left_out_counted_and_told_of() {
    let world = World::new();
    let errors = with_policy(OnBadRecord::Skip);
    let job = world.start_under(Format::Json, errors, PositionPolicy::Fail, two_partitions());
    world.cluster.script(poisoned(0));
    world.until_written(2).await;
    assert_eq!(world.sink.written_of(0), [0, 3]);
    checkpoint(&job).await;
    assert_eq!(offsets_of(&world.store.newest())[&0], 4);
    let told = world.until_told(EventKind::RecordsSkipped, 1).await;
    let status = until_status(&job, "it is counted", |status| {
        status.bad_records.skipped == 1
    })
    .await;
    assert_eq!(status.parked.len(), 0);
    assert_eq!(told[0]["records"], 1);
    assert_eq!(told[0]["first"][0]["record"]["offset"], 2);
    assert_eq!(told[0]["first"][0]["phase"], "decode");
    // What comes too soon for an entry of its own is told at the end of the run.
    world.cluster.script(poisoned(1));
    world.until_written(4).await;
    stop(&job, StopCheckpoint::Required).await;
    let told = world.told(EventKind::RecordsSkipped);
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!(told[1]["first"][0]["record"]["partition"], 1);
}

/// Nothing behind a bad record reaches the sink before its letter is delivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_delivered_before_what_lies_behind_its_record() {
    let world = World::new();
    world.letters.set_fails(Some(ErrorClass::Infrastructure));
    let job = world.start_under(
        Format::Json,
        to_letters(),
        PositionPolicy::Fail,
        two_partitions(),
    );
    world.cluster.script(poisoned(0));
    world
        .until("two attempts", || world.letters.tried() >= 2)
        .await;
    let status = until_status(&job, "the wait", |status| !status.waiting.is_empty()).await;
    assert!(status.waiting[0].detail.contains("dead letters to letters"));
    assert_eq!(world.sink.written(), []);
    world.letters.set_fails(None);
    world.until_written(2).await;
    let letters = world.letters.delivered();
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].key.as_deref(), letters[0].value.as_deref()),
        (None, Some(&b"no"[..]))
    );
    let said: BTreeMap<String, String> = letters[0]
        .headers
        .iter()
        .map(|header| {
            let value = header.value.clone().unwrap();
            (
                String::from_utf8(header.name.clone()).unwrap(),
                String::from_utf8(value).unwrap(),
            )
        })
        .collect();
    for (name, value) in [
        ("job", "orders"),
        ("topic", "orders"),
        ("partition", "0"),
        ("offset", "2"),
        ("code", "blocked-on-record"),
        ("phase", "decode"),
    ] {
        assert_eq!(said[&format!("handover.error.{name}")], value);
    }
    let status = until_status(&job, "it is counted", |status| {
        status.bad_records.dead_lettered == 1
    })
    .await;
    assert_eq!(status.bad_records.skipped, 0);
    checkpoint(&job).await;
    assert_eq!(offsets_of(&world.store.newest())[&0], 4);
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_is_refused_parks_the_partition_before_its_record() {
    let world = World::new();
    world.letters.set_fails(Some(ErrorClass::Deterministic));
    let job = world.start_under(
        Format::Json,
        to_letters(),
        PositionPolicy::Fail,
        two_partitions(),
    );
    world.cluster.script(poisoned(0));
    let parked = until_parked(&job, 0).await;
    assert_eq!(
        (parked.code, parked.offset),
        (Code::BlockedOnRecord, Some(offset(2)))
    );
    assert_eq!(parked.phase.as_deref(), Some("dead-letter"));
    assert!(
        parked
            .detail
            .contains("as a dead letter it is refused, too")
    );
    world.cluster.deliver(1, 0..=1);
    world.until_written(3).await;
    assert_eq!(world.sink.written_of(0), [0]);
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 2), (1, 2)])
    );
}

/// The sink's refusal of one record stops its partition only. What the writer lost is read again, for all partitions.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_sink_refuses_parks_its_partition() {
    let world = World::new();
    let job = world.start(two_partitions());
    world.cluster.deliver(0, 0..=1);
    world.cluster.deliver(1, 0..=1);
    world.until_written(4).await;
    checkpoint(&job).await;
    world.cluster.deliver(1, 2..=3);
    world.until_written(6).await;
    world.sink.refuse(0, 3);
    world.cluster.deliver(0, 2..=5);
    // The sink keeps no progress: both partitions go back to the last checkpoint.
    for number in [0, 1] {
        let what = format!("partition {number} is given again");
        world
            .until(&what, || {
                world.cluster.assigned_since(number) == Some((2, 2))
            })
            .await;
    }
    assert_eq!(world.sink.closed(), 1);
    world.cluster.deliver(1, 2..=5);
    world.cluster.deliver(0, 2..=5);
    let parked = until_parked(&job, 0).await;
    assert_eq!(parked.phase.as_deref(), Some("write"));
    assert_eq!(parked.offset, Some(offset(3)));
    assert_eq!(parked.record.unwrap().offset, 3);
    world
        .until("the other goes on", || {
            world.sink.written_of(1).ends_with(&[2, 3, 4, 5])
        })
        .await;
    checkpoint(&job).await;
    let both = BTreeMap::from([(0, 3), (1, 6)]);
    assert_eq!(offsets_of(&world.store.newest()), both);
    let outcome = skip(&job, 0, 3).await;
    assert!(
        matches!(outcome, SkipOutcome::Skipped { .. }),
        "{outcome:?}"
    );
    // What the client has fetched until it hears of that is thrown away.
    world
        .until("it is read again", || {
            world.cluster.assigned(0).is_some_and(|(_, at)| at == 4)
        })
        .await;
    world.cluster.deliver(0, 3..=5);
    world
        .until("it goes on behind the record", || {
            world.sink.written_of(0).ends_with(&[2, 4, 5])
        })
        .await;
    stop(&job, StopCheckpoint::Required).await;
}

/// A letter may stand twice, but what is left out counts once, however often it is read.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_read_again_after_a_refusal_is_counted_once() {
    let world = World::new();
    let job = world.start_under(
        Format::Json,
        to_letters(),
        PositionPolicy::Fail,
        two_partitions(),
    );
    let batch = |from: i64, values: &[&'static str]| {
        let records = (from..).zip(values);
        Scripted::Batch(vec![Part {
            partition: 0,
            records: records.map(|(at, text)| (at, text.as_bytes())).collect(),
            advance_to: None,
        }])
    };
    world.cluster.script(batch(0, &["{}", "no"]));
    until_status(&job, "the first", |status| {
        status.bad_records.dead_lettered == 1
    })
    .await;
    // The batch has a bad record before the one that the sink refuses, and one behind it. The sink keeps no progress: all
    // begins anew.
    let again: &[&str] = &["{}", "no", "no", "{}", "no", "{}"];
    world.sink.refuse(0, 3);
    world.cluster.script(batch(2, &again[2..]));
    world
        .until("it is given again", || {
            world.cluster.assigned_since(0) == Some((0, 2))
        })
        .await;
    assert_eq!(world.letters.delivered().len(), 3);
    world.cluster.script(batch(0, again));
    world
        .until("it goes on", || world.sink.written_of(0) == [0, 0, 5])
        .await;
    let status = until_status(&job, "the refused one too", |status| {
        status.bad_records.dead_lettered >= 4
    })
    .await;
    assert_eq!(status.bad_records.dead_lettered, 4);
    checkpoint(&job).await;
    assert_eq!(world.letters.delivered().len(), 7, "three of them twice");
    stop(&job, StopCheckpoint::Required).await;
}

async fn out_of_range(world: &World, policy: PositionPolicy, bounds: (i64, i64)) -> JobHandle {
    let setup = Setup {
        partitions: BTreeMap::from([(0, Some(50)), (1, Some(0))]),
        ..Setup::default()
    };
    // Else it would be parked for want of its topic.
    world.cluster.topic(Some(("a", 2)));
    let errors = ErrorsSpec::default();
    let job = world.start_under(Format::Bytes, errors, policy, setup);
    let cause = ConsumerError::OutOfRange {
        partition: partition(0),
        position: offset(50),
    };
    world.cluster.script(Scripted::Error(0, cause));
    // What the brokers say is not known at once.
    until_parked(&job, 0).await;
    world.cluster.elect(0, bounds.0, bounds.1);
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_outside_the_log_says_what_is_lost() {
    for (bounds, side, from, to) in [
        ((70, 90), LostSide::BelowEarliest, 50, 70),
        ((0, 45), LostSide::BeyondLatest, 45, 50),
    ] {
        let world = World::new();
        let job = out_of_range(&world, PositionPolicy::Fail, bounds).await;
        let status = until_status(&job, "the lost range", |status| {
            status.parked[&partition(0)].lost.is_some()
        })
        .await;
        let lost = LostRange {
            side,
            from: offset(from),
            to: offset(to),
            offsets: to - from,
        };
        assert_eq!(status.parked[&partition(0)].lost, Some(lost));
        let told = world.until_told(EventKind::PartitionParked, 1).await;
        assert_eq!(told[0]["parked"]["lost"]["offsets"], to - from);
        stop(&job, StopCheckpoint::Required).await;
        assert_eq!(offsets_of(&world.store.newest())[&0], 50, "it did not jump");
    }
}

/// Retention goes on while somebody makes up their mind: what is shown goes with it, and so does the end of the story.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_asked_again_while_a_partition_stays_parked() {
    let world = World::new();
    let job = out_of_range(&world, PositionPolicy::Fail, (70, 90)).await;
    world.until_told(EventKind::PartitionParked, 1).await;
    world.cluster.elect(0, 85, 90);
    let status = until_status(&job, "the range has grown", |status| {
        let lost = status.parked[&partition(0)].lost;
        lost.is_some_and(|lost| lost.offsets == 35)
    })
    .await;
    let detail = &status.parked[&partition(0)].detail;
    assert!(detail.contains("85") && !detail.contains("70"), "{detail}");
    job.set_policies(PositionPolicy::Earliest, PositionPolicy::Fail)
        .await;
    let told = world.until_told(EventKind::PartitionGoesOn, 1).await;
    assert_eq!(told[0]["parked"]["lost"]["offsets"], 35);
    assert_eq!(world.told(EventKind::PartitionParked).len(), 1);
    stop(&job, StopCheckpoint::Required).await;
}

/// The decision is stored before the first fetch (the cluster checks that), and told.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_outside_the_log_is_moved_as_the_spec_says() {
    for (policy, bounds, moved_to) in [
        (PositionPolicy::Earliest, (70, 90), 70),
        (PositionPolicy::Latest, (70, 90), 90),
        (PositionPolicy::Earliest, (10, 45), 10),
        (PositionPolicy::Latest, (10, 45), 45),
    ] {
        let world = World::new();
        let job = out_of_range(&world, policy, bounds).await;
        world
            .until("it goes on there", || {
                let assigned = world.cluster.assigned(0);
                assigned.is_some_and(|(_, at)| at == moved_to)
            })
            .await;
        let status = until_status(&job, "it is told", |status| status.parked.is_empty()).await;
        assert_eq!(status.positions_moved, 1);
        world.until_told(EventKind::PartitionGoesOn, 1).await;
        let told = world.store.events();
        let kinds: Vec<EventKind> = told.iter().map(|(kind, _)| *kind).collect();
        let wanted = [EventKind::PositionMoved, EventKind::PartitionGoesOn];
        assert_eq!(kinds, wanted);
        let details = &told[0].1;
        assert_eq!(
            (&details["from"], &details["to"]),
            (&50.into(), &moved_to.into())
        );
        let skipped = if moved_to == 90 { 20 } else { 0 };
        assert_eq!(details["skipped"], skipped, "{details}");
        let newest = world.store.newest();
        assert_eq!(newest.kind, CheckpointKind::Reset);
        assert_eq!(offsets_of(&newest)[&0], moved_to);
        assert_eq!(newest.positions[&partition(0)].position_id, newest.id);
        world.cluster.deliver(0, moved_to..=moved_to + 2);
        world.until_written(3).await;
        stop(&job, StopCheckpoint::Required).await;
    }
}

/// However many there are at once, and although the store is away for a moment: each has its entry with what is lost, once.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_has_every_partition_that_is_overtaken() {
    const PARTITIONS: i32 = 100;
    for answers in [Answers::AwayBefore, Answers::Slow] {
        let world = World::new();
        world.cluster.topic(Some(("a", PARTITIONS)));
        world.store.answer_to(Call::Event, answers);
        let setup = Setup {
            partitions: (0..PARTITIONS).map(|number| (number, Some(50))).collect(),
            ..Setup::default()
        };
        let errors = ErrorsSpec::default();
        let job = world.start_under(Format::Bytes, errors, PositionPolicy::Earliest, setup);
        for number in 0..PARTITIONS {
            world.cluster.elect(number, 70, 90);
            let cause = ConsumerError::OutOfRange {
                partition: partition(number),
                position: offset(50),
            };
            world.cluster.script(Scripted::Error(number, cause));
        }
        until_status(&job, "all go on", |status| {
            status.positions_moved == 100 && status.parked.is_empty()
        })
        .await;
        assert_eq!(world.store.events(), []);
        world
            .until("the store is asked", || world.store.calls(Call::Event) > 0)
            .await;
        world.store.answer_to(Call::Event, Answers::Yes);
        // The end of the run waits for what is not written yet.
        let moved = match answers {
            Answers::Slow => {
                stop(&job, StopCheckpoint::Required).await;
                world.told(EventKind::PositionMoved)
            }
            _ => world.until_told(EventKind::PositionMoved, 100).await,
        };
        let moved: BTreeSet<i64> = moved
            .iter()
            .inspect(|entry| assert_eq!(entry["lost"]["offsets"], 20, "{entry}"))
            .map(|entry| entry["partition"].as_i64().unwrap())
            .collect();
        assert_eq!(moved, (0..100).collect());
        if answers == Answers::AwayBefore {
            world.until_told(EventKind::PartitionGoesOn, 100).await;
            stop(&job, StopCheckpoint::Required).await;
        }
        assert_eq!(world.store.events().len(), 200);
    }
}
