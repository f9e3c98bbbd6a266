//! Event time of a whole run: the time stamps stand in a field, so that a script can say them.

use super::{
    cluster::{Part, Scripted},
    sink::{Does, Step},
    *,
};
use crate::model::{
    HumanDuration,
    json_path::JsonPath,
    watermark::{
        JobWatermark, PartitionWatermark, TimestampSource, WatermarkAlignment, WatermarkStrategy,
    },
};

const IDLE: Duration = Duration::from_millis(600);

fn event_time(idle_after: Duration, max_drift_s: Option<u64>) -> WatermarkSpec {
    WatermarkSpec {
        strategy: WatermarkStrategy::Monotonous,
        max_delay: None,
        idle_after: Some(HumanDuration(idle_after)),
        timestamp: TimestampSource::Field(JsonPath::parse("$.at").unwrap()),
        alignment: max_drift_s.map(|seconds| WatermarkAlignment {
            max_drift: HumanDuration::from_secs(seconds),
        }),
    }
}

fn setup(partitions: i32, parallelism: u32, watermark: WatermarkSpec) -> Setup {
    Setup {
        parallelism,
        partitions: (0..partitions).map(|number| (number, Some(0))).collect(),
        watermark: Some(watermark),
        ..Setup::default()
    }
}

/// Values live as long as the test's process.
fn value(text: String) -> &'static [u8] {
    Box::leak(text.into_boxed_str()).as_bytes()
}

/// Records from this offset on, with these time stamps.
fn stamped(partition: i32, from: i64, stamps: &[i64]) -> Part {
    let records = (from..).zip(stamps);
    Part {
        partition,
        records: records
            .map(|(offset, stamp)| (offset, value(format!("{{\"at\": {stamp}}}"))))
            .collect(),
        advance_to: None,
    }
}

impl World {
    fn stamp(&self, partition: i32, from: i64, stamps: &[i64]) {
        let part = stamped(partition, from, stamps);
        self.cluster.script(Scripted::Batch(vec![part]));
    }
}

fn shown(status: &JobStatus) -> &JobWatermark {
    status.watermark.as_ref().expect("the job keeps event time")
}

fn of(status: &JobStatus, number: i32) -> &PartitionWatermark {
    let of = &status.partitions[&partition(number)];
    of.watermark.as_ref().expect("the job keeps event time")
}

fn ms(status: &JobStatus) -> Option<i64> {
    shown(status).timestamp.map(|at| at.timestamp_millis())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_partition_is_idle_once_the_brokers_say_that_there_is_nothing() {
    let world = World::new();
    let job = world.start_as(Format::Json, setup(2, 1, event_time(IDLE, None)));
    // 1 has something that does not come.
    world.cluster.elect(0, 0, 100);
    world.cluster.elect(1, 0, 1);
    world.stamp(0, 0, &[1_000, 3_000, 2_000]);
    world
        .until("it was asked for more than once", || {
            world.cluster.bounds_asked() >= 3
        })
        .await;
    let status = job.status();
    assert_eq!((ms(&status), shown(&status).idle_partitions), (None, 0));
    assert_eq!(shown(&status).held_by, Some(partition(1)));
    assert_eq!(of(&status, 0).timestamp.unwrap().timestamp_millis(), 2_999);
    world.cluster.elect(1, 0, 0);
    let status = until_status(&job, "1 is idle", |status| ms(status) == Some(2_999)).await;
    assert!(of(&status, 1).idle && !of(&status, 0).idle);
    // It comes back with an older record, which is late, and one that is not.
    world.stamp(1, 0, &[2_999, 3_000]);
    let status = until_status(&job, "it is back", |status| !of(status, 1).idle).await;
    assert_eq!((of(&status, 1).late_records, ms(&status)), (1, Some(2_999)));
    assert_eq!(shown(&status).late_records, 1);
    stop(&job, StopCheckpoint::Required).await;
}

/// Nothing is asked and nobody is idle while the sink takes nothing, and afterwards it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_stuck_makes_nobody_idle() {
    let world = World::new();
    world.sink.set(Step::Write, Does::Block);
    let job = world.start_as(Format::Json, setup(2, 1, event_time(IDLE, None)));
    world.cluster.elect(0, 0, 1);
    world.cluster.elect(1, 0, 0);
    world.stamp(0, 0, &[1_000]);
    world
        .until("the sink is stuck", || world.sink.entered(Step::Write) == 1)
        .await;
    let since = job.status().observed_at;
    // The clock of the tests counts the looks at it: there have been many.
    until_status(&job, "it is stuck for long", |status| {
        (status.observed_at - since).num_milliseconds() >= 12
    })
    .await;
    assert_eq!(world.cluster.bounds_asked(), 0);
    world.sink.set(Step::Write, Does::Work);
    let status = until_status(&job, "both are idle", |status| {
        shown(status).idle_partitions == 2
    })
    .await;
    assert_eq!((ms(&status), shown(&status).idle), (Some(999), true));
    stop(&job, StopCheckpoint::Required).await;
}

async fn until_held_back(world: &World, number: i32, is: bool) {
    let what = format!("{number} is held back: {is}");
    world
        .until(&what, || world.cluster.assigned(number).is_none() == is)
        .await;
}

/// Two subtasks: who is ahead is left by its client, the other's progress lets it go on exactly where it stood, and a
/// checkpoint in between has it there.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_ahead_waits_for_the_partitions_of_other_subtasks() {
    let world = World::new();
    let job = world.start_as(Format::Json, setup(2, 2, event_time(NEVER, Some(10))));
    let subtask = |number| world.cluster.assigned(number).unwrap().0;
    world
        .until("both are read", || {
            (0..2).all(|one| world.cluster.assigned(one).is_some())
        })
        .await;
    assert_ne!(subtask(0), subtask(1));
    world.stamp(1, 0, &[1]);
    world.stamp(0, 0, &[5_000, 20_000]);
    until_held_back(&world, 0, true).await;
    world.stamp(0, 2, &[21_000]);
    let status = until_status(&job, "it is shown", |status| of(status, 0).paused).await;
    assert_eq!(shown(&status).paused_partitions, [partition(0)]);
    assert_eq!(ms(&status), Some(0));
    checkpoint(&job).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 2), (1, 1)])
    );
    // A little is not enough.
    world.stamp(1, 1, &[14_000]);
    until_status(&job, "the least one moves", |status| {
        ms(status) == Some(13_999)
    })
    .await;
    assert_eq!(world.cluster.assigned(0), None);
    world.stamp(1, 2, &[15_000]);
    until_held_back(&world, 0, false).await;
    assert_eq!(world.cluster.assigned_since(0), Some((2, 2)));
    world.until_written(6).await;
    assert_eq!(world.sink.written_of(0), [0, 1, 2]);
    assert_eq!(world.sink.written_of(1), [0, 1, 2]);
    stop(&job, StopCheckpoint::Required).await;
}

/// What is on its way when a partition is left still counts, and what is on its way when it is read again does not come
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_between_being_held_back_and_going_on() {
    let world = World::new();
    let job = world.start_as(Format::Json, setup(2, 1, event_time(NEVER, Some(10))));
    world.stamp(1, 0, &[1]);
    world.until_written(1).await;
    // Two batches behind the one that goes too far.
    world.sink.set(Step::Write, Does::Block);
    world.stamp(0, 0, &[20_000]);
    world.stamp(0, 1, &[20_001]);
    world.stamp(0, 2, &[20_002]);
    world
        .until("all are on their way", || world.cluster.taken() == 4)
        .await;
    world.sink.set(Step::Write, Does::Work);
    world.until_written(4).await;
    until_held_back(&world, 0, true).await;
    // It is let go while its subtask is stuck with a batch of the other.
    world.sink.set(Step::Write, Does::Block);
    let parts = vec![stamped(1, 1, &[30_000]), stamped(0, 3, &[30_000])];
    world.cluster.script(Scripted::Batch(parts));
    world
        .until("it is stuck", || world.sink.entered(Step::Write) == 5)
        .await;
    world.sink.set(Step::Write, Does::Work);
    until_held_back(&world, 0, false).await;
    let (from, _) = world.cluster.assigned_since(0).unwrap();
    assert_eq!(from, 4, "what the client had was taken");
    world.stamp(0, 3, &[30_000, 30_001]);
    world.until_written(7).await;
    assert_eq!(world.sink.written_of(0), [0, 1, 2, 3, 4]);
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(offsets_of(&world.store.newest())[&0], 5);
}

/// The sink refuses a record of another partition while one is held back: what the writer lost of that one is read again when
/// it goes on, from where the sink has it, and nothing behind it comes first.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_record_takes_back_what_is_held_back_too() {
    let world = World::new();
    let job = world.start_as(Format::Json, setup(2, 1, event_time(NEVER, Some(10))));
    world.stamp(1, 0, &[1]);
    world.until_written(1).await;
    checkpoint(&job).await;
    world.stamp(0, 0, &[5_000, 20_000]);
    until_held_back(&world, 0, true).await;
    world.sink.refuse(1, 2);
    world.stamp(1, 1, &[2, 3]);
    world
        .until("1 is read again", || {
            world.cluster.assigned_since(1) == Some((1, 2))
        })
        .await;
    assert_eq!(world.cluster.assigned(0), None, "it is still held back");
    let position = || job.status().partitions[&partition(0)].position;
    until_status(&job, "0 went back", |_| position() == Some(offset(0))).await;
    world.stamp(1, 1, &[2, 3]);
    let status = until_status(&job, "1 is parked", |status| !status.parked.is_empty()).await;
    assert_eq!(status.parked[&partition(1)].offset, Some(offset(2)));
    // Nobody waits for one that is parked.
    until_held_back(&world, 0, false).await;
    assert_eq!(world.cluster.assigned_since(0), Some((0, 2)));
    world.stamp(0, 0, &[5_000, 20_000, 25_000]);
    world
        .until("0 goes on", || {
            world.sink.written_of(0).ends_with(&[0, 1, 2])
        })
        .await;
    let status = until_status(&job, "the watermark waits for 1", |status| {
        of(status, 0).timestamp.map(|at| at.timestamp_millis()) == Some(24_999)
    })
    .await;
    assert_eq!(
        (ms(&status), shown(&status).held_by.clone()),
        (Some(1), Some(partition(1)))
    );
    assert_eq!(
        of(&status, 0).late_records,
        0,
        "what is read again is not late"
    );
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 3), (1, 2)])
    );
}

/// The same, with a batch of the one that is held back on its way while the writer is lost: it is of the time before.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_on_its_way_when_the_writer_was_lost_does_not_count() {
    let world = World::new();
    let job = world.start_as(Format::Json, setup(2, 1, event_time(NEVER, Some(10))));
    world.stamp(1, 0, &[1]);
    world.until_written(1).await;
    checkpoint(&job).await;
    world.sink.refuse(1, 1);
    world.sink.set(Step::Write, Does::Block);
    world.stamp(0, 0, &[20_000]);
    world.stamp(1, 1, &[2]);
    world.stamp(0, 1, &[20_001]);
    world
        .until("all are on their way", || world.cluster.taken() == 4)
        .await;
    // It takes no batch until 0 is held back.
    let doubt = LeaseHealth::Doubtful("no renewal".to_owned());
    world.lease.send_replace(doubt);
    until_status(&job, "it hears that", |status| !status.waiting.is_empty()).await;
    world.sink.set(Step::Write, Does::Work);
    until_held_back(&world, 0, true).await;
    world.lease.send_replace(LeaseHealth::Held);
    world
        .until("1 is read again", || {
            world.cluster.assigned_since(1) == Some((1, 2))
        })
        .await;
    world.stamp(1, 1, &[2]);
    until_status(&job, "1 is parked", |status| !status.parked.is_empty()).await;
    until_held_back(&world, 0, false).await;
    assert_eq!(world.cluster.assigned_since(0), Some((0, 2)));
    world.stamp(0, 0, &[20_000, 20_001, 20_002]);
    world
        .until("0 goes on", || world.sink.written_of(0).ends_with(&[2]))
        .await;
    assert_eq!(world.sink.written_of(0), [0, 0, 1, 2]);
    stop(&job, StopCheckpoint::Required).await;
}

/// FLINK-39728: partitions come to their ends while others are held back, and while they are held back themselves.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_end_while_others_are_held_back() {
    let world = World::new();
    let ends = [(0, 3), (1, 2), (2, 2)];
    let job = world.start_as(
        Format::Json,
        Setup {
            ends: Some(ends.map(|(one, end)| (partition(one), offset(end))).into()),
            ..setup(3, 2, event_time(NEVER, Some(10)))
        },
    );
    world.stamp(1, 0, &[1]);
    world.until_written(1).await;
    // 2 comes to its end with records that are far ahead: it has left when it is to be held back.
    world.stamp(2, 0, &[50_000, 60_000]);
    world.stamp(0, 0, &[50_000]);
    until_held_back(&world, 0, true).await;
    until_held_back(&world, 2, true).await;
    // And the one that all wait for comes to its own.
    world.stamp(1, 1, &[2]);
    until_held_back(&world, 0, false).await;
    world.stamp(0, 1, &[70_000, 80_000]);
    let end = within("the end", job.ended()).await;
    assert!(matches!(end, JobEnd::Finished(_)), "{end:?}");
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 3), (1, 2), (2, 2)])
    );
    assert_eq!(world.cluster.assigned_since(2), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_a_time_stamp_cannot_be_processed() {
    let bad = |from: i64| Part {
        partition: 0,
        records: vec![
            (from, value("{\"at\": 5}".to_owned())),
            (from + 1, value("{\"at\": \"noon\"}".to_owned())),
            (from + 2, value("{\"at\": 7}".to_owned())),
        ],
        advance_to: None,
    };
    let world = World::new();
    let job = world.start_as(Format::Json, setup(1, 1, event_time(NEVER, None)));
    world.cluster.script(Scripted::Batch(vec![bad(0)]));
    let status = until_status(&job, "it is parked", |status| !status.parked.is_empty()).await;
    let parked = &status.parked[&partition(0)];
    assert_eq!(parked.offset, Some(offset(1)));
    assert!(parked.detail.contains("$.at is another text"), "{parked:?}");
    let status = until_status(&job, "what came before counts", |status| {
        ms(status) == Some(4)
    })
    .await;
    assert_eq!(world.sink.written_of(0), [0]);
    assert_eq!(status.bad_records.skipped, 0);
    stop(&job, StopCheckpoint::Required).await;

    let world = World::new();
    let errors = ErrorsSpec {
        on_bad_record: OnBadRecord::Skip,
        ..ErrorsSpec::default()
    };
    let job = world.start_under(
        Format::Json,
        errors,
        PositionPolicy::Fail,
        setup(1, 1, event_time(NEVER, None)),
    );
    world.cluster.script(Scripted::Batch(vec![bad(0)]));
    let status = until_status(&job, "it is left out", |status| ms(status) == Some(6)).await;
    assert_eq!(status.bad_records.skipped, 1);
    assert_eq!(world.sink.written_of(0), [0, 2]);
    stop(&job, StopCheckpoint::Required).await;
}
