//! Jobs without checkpoints: nothing is kept, and the group hears of what the sink has.
//!
//! That nothing but the lease is asked of the store is checked by the store itself, in each of these tests.

use super::{
    cluster::Commits,
    failures::poisoned,
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::{
    engine::SkipOutcome,
    model::{Code, checkpoint::GroupCommitStatus},
};

/// Commits so often.
const EVERY: Duration = Duration::from_millis(20);

fn off(commit_every: Duration) -> Setup {
    Setup {
        checkpoint: CheckpointSpec {
            interval: None,
            ..timing(NEVER, NEVER)
        },
        commit_every,
        ..Setup::default()
    }
}

/// Waits until the group stands there.
async fn until_committed(world: &World, position: i64) {
    let what = format!("the group stands at {position}");
    world
        .until(&what, || {
            world.cluster.committed().last() == Some(&BTreeMap::from([(0, position)]))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_group_hears_where_the_run_begins_and_then_of_what_the_sink_has() {
    let world = World::new();
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(7))]),
        ..off(EVERY)
    });
    until_committed(&world, 7).await;
    for round in 1..=5 {
        world.cluster.deliver(0, round * 10..=round * 10 + 9);
        until_committed(&world, round * 10 + 10).await;
    }
    let status = job.status();
    assert_eq!(
        (&status.last_checkpoint, status.last_failed.is_none()),
        (&None, true)
    );
    assert_eq!(status.commits.last_committed, None);
    until_status(&job, "six commits", |status| status.commits.succeeded >= 6).await;
    assert_eq!(
        world.cluster.last_note().as_deref(),
        Some("handover:00000000:orders:periodic")
    );
    // Each vector is one that the sink had made durable before.
    let durable: Vec<BTreeMap<i32, i64>> = world
        .sink
        .prepares()
        .iter()
        .map(|(id, _)| world.sink.prepared(*id))
        .collect();
    let after_the_first = &world.cluster.committed()[1..];
    assert!(
        after_the_first
            .iter()
            .all(|committed| durable.contains(committed))
    );
    stop(&job, StopCheckpoint::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_sink_holds_the_group_where_it_is() {
    let world = World::new();
    let mut setup = off(EVERY);
    setup.checkpoint.timeout = HumanDuration(SHORT);
    let job = world.start(setup);
    world.cluster.deliver(0, 0..=4);
    until_committed(&world, 5).await;
    world.sink.set(Step::Prepare, Does::Block);
    world.cluster.deliver(0, 5..=9);
    // The records are with the sink, and are not durable: nothing is committed, and that is told.
    world.until_written(10).await;
    let status = until_status(&job, "a commit that is given up", |status| {
        status.commits.failed >= 2
    })
    .await;
    assert_eq!(status.partitions[&partition(0)].position, Some(offset(10)));
    let said = status.commits.last_error.clone().unwrap();
    assert!(said.contains("nothing was sent"), "{said}");
    assert_eq!(
        (status.in_progress.is_none(), status.consecutive_failures),
        (true, 0)
    );
    assert_eq!(
        world.cluster.committed().last(),
        Some(&BTreeMap::from([(0, 5)]))
    );
    world.sink.set(Step::Prepare, Does::Work);
    until_committed(&world, 10).await;
    until_status(&job, "the trouble is over", |status| {
        status.commits.last_error.is_none()
    })
    .await;
    stop(&job, StopCheckpoint::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_former_owner_commits_nothing() {
    let world = World::new();
    let job = world.start(off(EVERY));
    world.cluster.deliver(0, 0..=4);
    until_committed(&world, 5).await;
    world.store.answer(Answers::Fenced);
    let begun = world.cluster.commits_begun();
    world.cluster.deliver(0, 5..=9);
    assert!(matches!(failure(&job).await, JobError::Fenced));
    assert_eq!(world.cluster.commits_begun(), begun);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_commits_off_the_group_is_left_alone() {
    let world = World::new();
    let job = world.start(Setup {
        commits: false,
        ..off(EVERY)
    });
    world.cluster.deliver(0, 0..=9);
    world.until_written(10).await;
    let outcome = stop(&job, StopCheckpoint::BestEffort).await;
    let report = outcome.checkpoint.unwrap();
    assert_eq!(report.group_commit.status, GroupCommitStatus::Off);
    assert_eq!(world.cluster.commits_begun(), 0);
    // The sink had everything durable all the same.
    assert_eq!(world.sink.prepared(report.id), BTreeMap::from([(0, 10)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_tells_the_group_last() {
    let world = World::new();
    let job = world.start(off(NEVER));
    until_committed(&world, 0).await;
    world.cluster.deliver(0, 0..=9);
    world.until_written(10).await;
    let outcome = stop(&job, StopCheckpoint::BestEffort).await;
    assert_eq!(
        outcome.checkpoint.unwrap().group_commit.status,
        GroupCommitStatus::Ok
    );
    assert_eq!(
        world.cluster.committed().last(),
        Some(&BTreeMap::from([(0, 10)]))
    );
}

/// A run decides once whether it takes checkpoints; a spec that changes it counts from the next start on.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_does_not_begin_to_take_checkpoints() {
    let world = World::new();
    let job = world.start(off(NEVER));
    until_committed(&world, 0).await;
    job.set_checkpointing(timing(EVERY, NEVER)).await;
    world.cluster.deliver(0, 0..=9);
    world.until_written(10).await;
    stop(&job, StopCheckpoint::None).await;
    assert_eq!(world.store.calls(Call::Complete), 0);
}

/// What is decided while the job runs needs no checkpoint: a record is left out, and the group hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_left_out() {
    let world = World::new();
    let job = world.start_as(Format::Json, off(EVERY));
    world.cluster.script(poisoned(0));
    let status = until_status(&job, "a parked partition", |status| {
        !status.parked.is_empty()
    })
    .await;
    let parked = &status.parked[&partition(0)];
    assert_eq!(
        (parked.code, parked.offset),
        (Code::BlockedOnRecord, Some(offset(2)))
    );
    until_committed(&world, 2).await;
    let skipped = within("the skip", job.skip(partition(0), offset(2))).await;
    assert_eq!(
        skipped,
        Some(SkipOutcome::Skipped {
            checkpoint: None,
            next_offset: offset(3)
        })
    );
    until_committed(&world, 3).await;
    world
        .until("it is read again", || {
            world.cluster.assigned(0).is_some_and(|(_, at)| at == 3)
        })
        .await;
    world.cluster.deliver(0, 3..=9);
    until_committed(&world, 10).await;
    stop(&job, StopCheckpoint::None).await;
}

/// The commits of a job without checkpoints fail and are made up for.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_fails_is_made_up_for() {
    let world = World::new();
    world.cluster.set_commits(Commits::Refused);
    let job = world.start(off(EVERY));
    world.cluster.deliver(0, 0..=4);
    until_status(&job, "commits fail", |status| status.commits.failed >= 2).await;
    world.cluster.set_commits(Commits::Confirmed);
    until_committed(&world, 5).await;
    stop(&job, StopCheckpoint::None).await;
}
