//! Where a run says that its time goes.

use super::{sink::Does, sink::Step, *};
use crate::model::stages::{Stage, StageTimes};

fn times(status: &JobStatus) -> StageTimes {
    status.stages.totals.first().copied().unwrap_or_default()
}

async fn until_spent(job: &JobHandle, stage: Stage, at_least: Duration) -> StageTimes {
    until_status(job, stage.name(), |status| {
        times(status).of(stage) >= at_least
    })
    .await;
    times(&job.status())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_the_brokers_only_while_there_is_something_to_read() {
    let world = World::new();
    let job = world.start(Setup::default());
    let partition = TopicPartition::new("orders", 0);
    let up_to = |end| PartitionOffsets::from([(partition.clone(), Offset::new(end).unwrap())]);
    let before = until_spent(&job, Stage::Idle, 2 * SHORT).await;
    assert_eq!(before.of(Stage::FetchWait), Duration::ZERO);

    job.saw_log_ends(up_to(5));
    let waited = until_spent(&job, Stage::FetchWait, 4 * SHORT).await;
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    let idle = waited.of(Stage::Idle);
    let read = until_spent(&job, Stage::Idle, idle + 4 * SHORT).await;
    let later = read
        .of(Stage::FetchWait)
        .saturating_sub(waited.of(Stage::FetchWait));
    // The look in which it was read, and the one before it.
    assert!(later < 8 * SHORT, "{later:?}");
    let last = until_spent(&job, Stage::Idle, read.of(Stage::Idle) + 4 * SHORT).await;
    assert_eq!(last.of(Stage::FetchWait), read.of(Stage::FetchWait));
    assert_eq!(last.handover_wait, Duration::ZERO);
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_waited_for_has_the_time_and_the_fetching_thread_stands() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.sink.set(Step::Write, Does::Block);
    // One with the sink, one in the slot, and one in the thread's hand.
    for offset in 0..4 {
        world.cluster.deliver(0, offset..=offset);
    }
    let blocked = until_spent(&job, Stage::SinkWrite, 4 * SHORT).await;
    assert!(blocked.of(Stage::SinkWrite) > blocked.of(Stage::FetchWait));
    until_status(&job, "the thread stands", |status| {
        times(status).handover_wait >= SHORT
    })
    .await;
    world.sink.set(Step::Write, Does::Work);
    world.until_written(4).await;
    world.sink.set(Step::Prepare, Does::Block);
    let flush = async {
        until_spent(&job, Stage::SinkFlush, 2 * SHORT).await;
        world.sink.set(Step::Prepare, Does::Work);
    };
    let (report, ()) = tokio::join!(checkpoint(&job), flush);
    assert_eq!(report.failure, None);
    let status = job.status();
    let times = times(&status);
    assert!(times.total() <= Duration::from_secs(60), "{times:?}");
    // A moment belongs to one stage: together they are the time that has passed.
    let passed = status.stages.window;
    assert!(
        times.total().abs_diff(passed) < SHORT,
        "{times:?} {passed:?}"
    );
    stop(&job, StopCheckpoint::Required).await;
}
