//! A job that its limits hold back.

use super::{sink::Step, *};
use crate::model::limits::LimitsSpec;

fn records_per_s(records_per_s: u64) -> LimitsSpec {
    LimitsSpec {
        records_per_s: Some(records_per_s),
        bytes_per_s: None,
    }
}

/// One record in an hour and more: a batch of a thousand would hold a barrier for weeks.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_held_back_holds_no_checkpoint_and_no_stop() {
    let world = World::new();
    let job = world.start(Setup {
        limits: LimitsSpec {
            bytes_per_s: Some(1),
            ..records_per_s(1)
        },
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=999);
    until_status(&job, "it is held back", |status| status.throttled).await;
    let report = checkpoint(&job).await;
    assert_eq!(report.failure, None);
    let position = offsets_of(&world.store.newest())[&0];
    let outcome = stop(&job, StopCheckpoint::Required).await;
    assert_eq!(outcome.will_replay, Some(0));
    let last = offsets_of(&world.store.newest())[&0];
    let written = i64::try_from(world.sink.written().len()).unwrap();
    assert!(
        position <= last && last == written && written < 1_000,
        "{position} {last} {written}"
    );
}

/// What is released piece by piece comes whole and in order, with checkpoints in between, and another limit counts at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_pieces_is_the_same_batch() {
    let world = World::new();
    let job = world.start(Setup {
        limits: records_per_s(40),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=999);
    world.until_written(5).await;
    for _ in 0..3 {
        let report = checkpoint(&job).await;
        let written = world.sink.written().len();
        let position = offsets_of(&world.store.newest())[&0];
        let covered = i64::try_from(written).unwrap();
        assert!(position <= covered && position >= 5, "{position} {covered}");
        assert_eq!(world.sink.prepared(report.id)[&0], position);
    }
    assert!(world.sink.written().len() < 900);
    let status = job.status();
    assert!(status.throttled && status.limits == records_per_s(40));
    within("a change", job.set_limits(LimitsSpec::default())).await;
    world.until_written(1_000).await;
    assert_eq!(world.sink.written_of(0), (0..1_000).collect::<Vec<i64>>());
    assert!(world.sink.entered(Step::Write) > 2);
    until_status(&job, "nothing is held back", |status| !status.throttled).await;
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(offsets_of(&world.store.newest())[&0], 1_000);
}
