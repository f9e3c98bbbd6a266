//! How a run ends on its own, and what it tells of it.

use super::{
    cluster::{Commits, Part, Scripted},
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::{
    engine::error::ConsumerError,
    model::{Code, checkpoint::GroupCommitStatus, subtask::owner},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_owner_ends_and_writes_nothing_more() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    world.store.answer(Answers::Fenced);
    let waits = trigger(&job, None);
    assert!(matches!(failure(&job).await, JobError::Fenced));
    assert!(waits.await.is_none(), "the job ended under the attempt");
    assert_eq!(world.store.completed().len(), 1);
    assert_eq!(world.cluster.commits_begun(), 0);
    assert_eq!(world.store.calls(Call::Complete), 1);
    assert_eq!((world.sink.aborted(), world.cluster.closed()), (1, 1));
}

/// The lease is lost while a write waits for the store: it comes to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_ends_the_writes_that_wait() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.store.answer(Answers::Slow);
    let waits = trigger(&job, None);
    world
        .until("a write", || world.store.calls(Call::Complete) == 1)
        .await;
    world.lease.send_replace(LeaseHealth::Lost);
    assert!(matches!(failure(&job).await, JobError::Fenced));
    assert!(waits.await.is_none());
    assert_eq!(world.store.calls(Call::Complete), 1);
    assert_eq!(world.store.completed().len(), 1);
}

/// A process that slept wakes with a checkpoint that is complete, and the next owner may have told the group more already.
#[tokio::test(flavor = "multi_thread")]
async fn the_group_hears_nothing_under_a_lease_that_may_have_run_out() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.lease_until.send_replace(Instant::now());
    world.cluster.deliver(0, 0..=1);
    world.until_written(2).await;
    let report = checkpoint(&job).await;
    assert!(report.failure.is_none(), "{report:?}");
    assert_eq!(report.group_commit.status, GroupCommitStatus::Failed);
    assert_eq!(world.cluster.commits_begun(), 0);
    world.lease_until.send_replace(Instant::now() + NEVER);
    world.cluster.deliver(0, 2..=2);
    world.until_written(3).await;
    let report = checkpoint(&job).await;
    assert_eq!(report.group_commit.status, GroupCommitStatus::Ok);
    assert_eq!(world.cluster.committed(), [[(0, 3)].into()]);

    // Of a lease that was taken while the time had run out the run hears at once.
    job.lose_lease().await;
    assert!(matches!(failure(&job).await, JobError::Fenced));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubtful_lease_stops_the_intake_until_it_holds_again() {
    let world = World::new();
    world
        .lease
        .send_replace(LeaseHealth::Doubtful("not renewed".to_owned()));
    let job = world.start(Setup::default());
    until_status(&job, "the doubt", |status| {
        status
            .waiting
            .iter()
            .any(|waiting| waiting.detail == "not renewed")
    })
    .await;
    // It is frozen by the time it answers a barrier that was sent after the doubt was shown.
    checkpoint(&job).await;
    world.cluster.deliver(0, 0..=0);
    world.cluster.deliver(0, 1..=1);
    // The thread could only take a second batch if the slot or the subtask had taken the first one.
    world
        .until("both batches wait", || world.cluster.taken() == 2)
        .await;
    assert_eq!(world.sink.entered(Step::Write), 0);
    world.lease.send_replace(LeaseHealth::Held);
    world.until_written(2).await;
    until_status(&job, "no doubt", |status| status.waiting.is_empty()).await;
    stop(&job, StopCheckpoint::Required).await;
}

/// Cloudflow 496: the cause is told, not that something was closed by it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_cause_is_kept() {
    let world = World::new();
    let job = world.start(Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
        ..Setup::default()
    });
    world.sink.set(Step::Write, Does::Refuse);
    world.cluster.deliver(0, 7..=7);
    let error = failure(&job).await;
    assert_eq!(error.code(), Code::SinkError);
    assert_eq!(
        error.to_string(),
        "the sink refused: Write: the target said no"
    );
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 0), (1, 0)])
    );
    // A stop of a job that has ended tells the same end.
    let end = within("a stop", job.stop(StopCheckpoint::Required, NEVER)).await;
    assert!(matches!(end, Ok(JobEnd::Failed(JobError::Sink(_)))));
    assert!(job.trigger_checkpoint(None).await.is_none());
    assert_eq!(world.cluster.closed(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_outside_the_log_ends_the_job() {
    let world = World::new();
    let job = world.start_strict(Format::Bytes, Setup::default());
    let out_of_range = ConsumerError::OutOfRange {
        partition: partition(0),
        position: offset(0),
    };
    world.cluster.script(Scripted::Error(0, out_of_range));
    let error = failure(&job).await;
    assert_eq!(error.code(), Code::OffsetOutOfRange);
    assert_eq!(error.to_string(), "orders/0: position 0 is outside the log");
}

/// A refusal that the sink comes upon by itself ends the job at once, like one of a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_refuses_between_two_calls_ends_the_job() {
    let world = World::new();
    let job = world.start(Setup {
        checkpoint: timing(NEVER, NEVER),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=1);
    world.until_written(2).await;
    world.sink.set(Step::Idle, Does::Refuse);
    let error = failure(&job).await;
    assert_eq!(
        error.to_string(),
        "the sink refused: Idle: the target said no"
    );
    assert_eq!(world.sink.entered(Step::Prepare), 0);
    assert_eq!(world.cluster.closed(), 1);
}

/// Three records of a partition, of which the second is no JSON; offset 1 is a transaction's marker.
pub(super) fn poisoned(partition: i32) -> Scripted {
    Scripted::Batch(vec![Part {
        partition,
        records: vec![(0, b"{}"), (2, b"no"), (3, b"{}")],
        advance_to: None,
    }])
}

/// The job stands exactly before the record, and the other subtask's progress is covered too.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_not_what_the_format_says_is_named_and_the_job_stands_before_it() {
    let world = World::new();
    let setup = Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
        ..Setup::default()
    };
    let job = world.start_strict(Format::Json, setup);
    world.cluster.deliver(1, 0..=4);
    world.until_written(5).await;
    world.cluster.script(poisoned(0));
    let error = failure(&job).await;
    assert_eq!(error.code(), Code::BlockedOnRecord);
    let record = error.failure(DateTime::UNIX_EPOCH).record.unwrap();
    assert_eq!((record.partition, record.offset), (0, 2));
    let newest = world.store.newest();
    assert_eq!(newest.kind, CheckpointKind::Failure);
    assert_eq!(offsets_of(&newest), BTreeMap::from([(0, 2), (1, 5)]));
    assert_eq!(world.sink.written_of(0), [0]);
    assert_eq!(
        world.sink.prepared(newest.id),
        BTreeMap::from([(0, 1), (1, 5)])
    );
    assert_eq!(
        world.cluster.committed(),
        [BTreeMap::from([(0, 2), (1, 5)])],
        "the group is told too"
    );
}

/// Nothing is taken behind the record, and the cause is told, when its checkpoint cannot be stored in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_named_when_the_last_checkpoint_cannot_be_stored() {
    let cases = [
        (Answers::Slow, Does::Work),
        (Answers::AwayBefore, Does::Work),
        (Answers::Yes, Does::FailForNow),
        (Answers::Yes, Does::Block),
    ];
    let cases = cases.map(|(call, sink)| async move {
        let world = World::new();
        let setup = Setup {
            checkpoint: timing(NEVER, SHORT),
            ..Setup::default()
        };
        let job = world.start_strict(Format::Json, setup);
        world.store.answer_to(Call::Complete, call);
        world.sink.set(Step::Prepare, sink);
        world.cluster.script(poisoned(0));
        let error = failure(&job).await;
        assert_eq!(error.code(), Code::BlockedOnRecord, "{call:?} {sink:?}");
        assert_eq!(world.sink.written(), [(0, 0)]);
        assert_eq!(world.store.completed().len(), 1);
    });
    futures_util::future::join_all(cases).await;
}

/// Fenced owners say nothing of a job, also not what they failed at.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_does_not_hide_that_the_lease_is_lost() {
    let world = World::new();
    let job = world.start_strict(Format::Json, Setup::default());
    world.store.answer(Answers::Fenced);
    world.cluster.script(poisoned(0));
    assert!(matches!(failure(&job).await, JobError::Fenced));
}

/// The stop that comes at the same time has its checkpoint; it tells what the run would have failed with.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_at_a_record_that_cannot_be_processed_still_stops() {
    let world = World::new();
    let job = world.start_strict(Format::Json, Setup::default());
    world.sink.set(Step::Write, Does::Block);
    world.cluster.script(poisoned(0));
    world
        .until("the batch", || world.sink.entered(Step::Write) == 1)
        .await;
    let waits = job.clone();
    let waits = spawn(async move { waits.stop(StopCheckpoint::Required, NEVER).await });
    until_status(&job, "the stop", |status| status.stopping).await;
    world.sink.set(Step::Write, Does::Work);
    let outcome = stopped(within("a stop", waits).await.unwrap().unwrap());
    assert_eq!(outcome.checkpoint.unwrap().status, "completed");
    assert_eq!(outcome.blocked.unwrap().code(), Code::BlockedOnRecord);
    let newest = world.store.newest();
    assert_eq!(newest.kind, CheckpointKind::Stop);
    assert_eq!(offsets_of(&newest), BTreeMap::from([(0, 2)]));
}

/// What was written around a record that the sink refuses counts, and no checkpoint lies beyond it.
#[tokio::test(flavor = "multi_thread")]
async fn no_checkpoint_lies_beyond_a_record_that_the_sink_refuses() {
    let world = World::new();
    let setup = Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
        ..Setup::default()
    };
    let job = world.start_strict(Format::Bytes, setup);
    world.cluster.deliver(0, 0..=1);
    world.cluster.deliver(1, 0..=1);
    world.until_written(4).await;
    checkpoint(&job).await;
    world.sink.refuse(0, 4);
    // A checkpoint is under way: the other subtask has answered, this one comes to the record first.
    let (blocked, free) = (owner("orders", 0, 2), owner("orders", 1, 2));
    world.sink.set_of(blocked, Step::Write, Does::Block);
    world.cluster.deliver(0, 2..=5);
    world
        .until("the batch", || world.sink.entered(Step::Write) == 3)
        .await;
    let waits = trigger(&job, None);
    world
        .until("the other has answered", || {
            world.sink.prepares().contains(&(CheckpointId(3), free))
        })
        .await;
    world.sink.set_of(blocked, Step::Write, Does::Work);
    // The sink keeps no progress: it is read again from the last checkpoint.
    let what = "the position of the last checkpoint is assigned again";
    world
        .until(what, || world.cluster.assigned_since(0) == Some((2, 2)))
        .await;
    world.cluster.deliver(0, 2..=5);
    let error = failure(&job).await;
    let record = error.failure(DateTime::UNIX_EPOCH).record.unwrap();
    assert_eq!((record.partition, record.offset), (0, 4));
    waits.await.expect("the barrier is answered all the same");
    let newest = world.store.newest();
    assert_eq!(newest.kind, CheckpointKind::Failure);
    assert_eq!(offsets_of(&newest), BTreeMap::from([(0, 4), (1, 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_becomes_a_failure_with_its_words() {
    for step in [Step::Open, Step::Write, Step::Prepare] {
        let world = World::new();
        world.sink.set(step, Does::Panic);
        let job = world.start(Setup::default());
        world.cluster.deliver(0, 0..=0);
        let waits = trigger(&job, None);
        let error = failure(&job).await;
        assert_eq!(error.code(), Code::Panicked);
        assert_eq!(
            error.to_string(),
            format!("subtask 0 crashed: {step:?}: the sink fell over")
        );
        assert!(
            waits
                .await
                .is_none_or(|report| step == Step::Write && report.status == "completed")
        );
        world
            .until("no thread is left", || world.cluster.closed() == 1)
            .await;
    }
    let world = World::new();
    let job = world.start(Setup::default());
    world
        .cluster
        .script(Scripted::Panic(0, "the thread fell over"));
    let error = failure(&job).await;
    assert_eq!(
        error.to_string(),
        "consumer-orders-0 crashed: the thread fell over"
    );
    assert_eq!(world.cluster.closed(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_away_is_shown_and_waited_for() {
    let world = World::new();
    world.cluster.set_answers(false);
    let job = world.start(Setup::default());
    let status = until_status(&job, "the loss", |status| !status.waiting.is_empty()).await;
    assert_eq!(status.waiting[0].code, Code::KafkaUnreachable);
    world.cluster.set_answers(true);
    until_status(&job, "it is back", |status| status.waiting.is_empty()).await;
    stop(&job, StopCheckpoint::Required).await;
}

/// FLINK-13226: a failure that meets a commit under way ends the run; nothing of it waits for the commit's answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_during_a_commit_ends_the_run() {
    let world = World::new();
    world.cluster.set_commits(Commits::Unanswered);
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    let waits = trigger(&job, None);
    world
        .until("a commit under way", || world.cluster.commits_begun() == 1)
        .await;
    world.sink.set(Step::Write, Does::Refuse);
    world.cluster.deliver(0, 5..=9);
    assert!(matches!(failure(&job).await, JobError::Sink(_)));
    // Who waited for the checkpoint is answered: it stands, whatever becomes of its commit.
    let report = waits.await.unwrap();
    assert_eq!(report.status, "completed");
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 5)]));
}
