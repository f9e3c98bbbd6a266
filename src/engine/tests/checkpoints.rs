//! Checkpoints, commits, and partitions that begin by them.

use super::{
    cluster::Commits,
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::model::{Code, checkpoint::GroupCommitStatus, subtask::owner};

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_covers_exactly_what_the_sink_prepared() {
    let world = World::new();
    let job = world.start(Setup::default());
    for round in 0..5 {
        world.cluster.deliver(0, round * 10..=round * 10 + 9);
        if round % 2 == 0 {
            world
                .until_written(10 * (usize::try_from(round).unwrap() + 1))
                .await;
        }
        let report = checkpoint(&job).await;
        let stored = world.store.newest();
        assert_eq!(
            (stored.id, stored.kind),
            (report.id, CheckpointKind::Manual)
        );
        assert_eq!(offsets_of(&stored), world.sink.prepared(report.id));
    }
    let note = world.cluster.last_note().unwrap();
    assert!(note.starts_with("handover:00000000:orders:"), "{note}");
    world.until_written(50).await;
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 50)]));
    assert_eq!(
        world.cluster.committed().last(),
        Some(&BTreeMap::from([(0, 50)]))
    );
}

/// That no commit lies above the newest completed checkpoint is checked at each commit of each test (I3).
#[tokio::test(flavor = "multi_thread")]
async fn the_group_learns_of_a_checkpoint_once_it_is_complete() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    world.store.answer(Answers::Slow);
    let waits = trigger(&job, None);
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    let status = until_status(&job, "the attempt", |status| status.in_progress.is_some()).await;
    assert!(!status.in_progress.as_ref().unwrap().uncertain);
    assert_eq!(world.cluster.commits_begun(), 0);
    // Consuming goes on meanwhile, and is not part of it.
    world.cluster.deliver(0, 5..=9);
    world.until_written(10).await;
    assert_eq!(world.cluster.commits_begun(), 0);
    world.store.answer(Answers::Yes);
    let report = waits.await.unwrap();
    assert_eq!(report.group_commit.status, GroupCommitStatus::Ok);
    assert_eq!(world.cluster.committed(), [BTreeMap::from([(0, 5)])]);
    world
        .until("the outcome is noted", || {
            world.store.outcome(report.id).is_some()
        })
        .await;
    stop(&job, StopCheckpoint::None).await;
}

/// The answer to a row gets lost again and again: it is one row in the end, and the attempt says what is known of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_outcome_is_settled_without_a_second_row() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    world.store.answer_to(Call::Complete, Answers::AwayAfter);
    let waits = trigger(&job, None);
    let status = until_status(&job, "an uncertain attempt", |status| {
        status
            .in_progress
            .as_ref()
            .is_some_and(|attempt| attempt.uncertain)
    })
    .await;
    assert_eq!(status.last_checkpoint.as_ref().unwrap().id, CheckpointId(1));
    until_status(&job, "the store is waited for", |status| {
        status
            .waiting
            .iter()
            .any(|waiting| waiting.code == Code::StoreUnreachable)
    })
    .await;
    world.cluster.deliver(0, 5..=9);
    world.until_written(10).await;
    world
        .until("it is tried again", || {
            world.store.calls(Call::Complete) >= 2
        })
        .await;
    world.store.answer(Answers::Yes);
    let report = waits.await.unwrap();
    assert_eq!(
        (report.id, report.status.as_str()),
        (CheckpointId(2), "completed")
    );
    assert_eq!(world.store.completed().len(), 2);
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 5)]));
    until_status(&job, "nothing is waited for", |status| {
        status.waiting.is_empty() && status.in_progress.is_none()
    })
    .await;
    assert_eq!(checkpoint(&job).await.id, CheckpointId(3));
    stop(&job, StopCheckpoint::None).await;
}

/// A note for the history that the store does not take says nothing about the attempt under way.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_attempt_itself_is_uncertain() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.sink.set(Step::Prepare, Does::FailForNow);
    world.store.answer_to(Call::Failure, Answers::AwayBefore);
    assert_eq!(checkpoint(&job).await.status, "failed");
    until_status(&job, "the store is waited for", |status| {
        !status.waiting.is_empty()
    })
    .await;
    world.sink.set(Step::Prepare, Does::Work);
    world.store.answer_to(Call::Complete, Answers::Slow);
    let waits = trigger(&job, None);
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    let status = until_status(&job, "the attempt", |status| status.in_progress.is_some()).await;
    assert!(!status.in_progress.as_ref().unwrap().uncertain);
    world.store.answer_to(Call::Complete, Answers::Yes);
    assert_eq!(waits.await.unwrap().status, "completed");
    // The note still waits, and is still shown.
    let status = until_status(&job, "a status after it", |status| {
        status.last_checkpoint.as_ref().unwrap().id == CheckpointId(3)
    })
    .await;
    assert_eq!(status.waiting[0].detail, "Failure: no connection");
    world.store.answer(Answers::Yes);
    until_status(&job, "nothing is waited for", |status| {
        status.waiting.is_empty()
    })
    .await;
    assert_eq!(world.store.failed()[0].id, CheckpointId(2));
    stop(&job, StopCheckpoint::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_barrier_that_is_not_answered_names_who_and_what() {
    let world = World::new();
    // Partitions 0 and 1 lie with different subtasks.
    let job = world.start(Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
        ..Setup::default()
    });
    world
        .until("both assigned", || {
            (0..2).all(|number| world.cluster.assigned(number).is_some())
        })
        .await;
    let (stuck, _) = world.cluster.assigned(1).unwrap();
    assert_ne!(stuck, world.cluster.assigned(0).unwrap().0);
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    world.sink.set_of(stuck, Step::Write, Does::Block);
    world.cluster.deliver(1, 0..=2);
    world
        .until("a stuck write", || world.sink.entered(Step::Write) == 2)
        .await;

    // Time enough for the other one to answer.
    let report = trigger(&job, Some(Duration::from_secs(1))).await.unwrap();
    let failure = report.failure.unwrap();
    assert_eq!(
        (failure.code.as_str(), failure.phase.as_str()),
        ("checkpoint-timeout", "barrier")
    );
    assert_eq!(failure.slowest.len(), 1);
    assert_eq!(failure.slowest[0].subtask, stuck);
    assert_eq!(failure.slowest[0].at, "sink-write");
    assert!(failure.slowest[0].waiting_ms >= 1_000);
    world
        .until("the history has it", || world.store.failed().len() == 1)
        .await;
    assert_eq!(world.store.failed()[0].id, report.id);
    let told = world.until_told(EventKind::CheckpointFailed, 1).await;
    assert_eq!(told[0]["checkpoint"], report.id.0);
    assert_eq!(told[0]["failure"]["phase"], "barrier");
    assert!(
        failure.summary.starts_with("1 subtask had not"),
        "{failure:?}"
    );
    // The row goes on, and is told when it ends.
    trigger(&job, Some(SHORT)).await.unwrap();

    world.sink.set_of(stuck, Step::Write, Does::Work);
    let next = checkpoint(&job).await;
    assert_eq!(next.id, report.id.next().next());
    let again = world
        .until_told(EventKind::CheckpointsCompleteAgain, 1)
        .await;
    assert_eq!(
        (&again[0]["checkpoint"], &again[0]["failed_in_a_row"]),
        (&next.id.0.into(), &2.into())
    );
    assert_eq!(world.told(EventKind::CheckpointFailed).len(), 1);
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 3), (1, 3)])
    );
    assert!(world.store.newest().has_output);
    assert_eq!(job.status().consecutive_failures, 0);
    stop(&job, StopCheckpoint::None).await;
}

/// The sink has prepared an attempt that was given up meanwhile: the next one says that there was output.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_keeps_its_output() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    world.sink.set(Step::Prepare, Does::Block);
    let given_up = trigger(&job, Some(SHORT)).await.unwrap();
    assert_eq!(given_up.status, "failed");
    world
        .until("the flush", || world.sink.entered(Step::Prepare) == 1)
        .await;
    world.sink.set(Step::Prepare, Does::Work);
    checkpoint(&job).await;
    let stored = world.store.newest();
    assert!(stored.has_output);
    assert_eq!(offsets_of(&stored), BTreeMap::from([(0, 3)]));
    checkpoint(&job).await;
    assert!(!world.store.newest().has_output);
    stop(&job, StopCheckpoint::None).await;
}

/// FLINK-8871: attempts do not pile up behind a blocked sink to run all at once when it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn after_ten_blocked_intervals_one_attempt_runs() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=4);
    world.until_written(5).await;
    world.sink.set(Step::Write, Does::Block);
    world.cluster.deliver(0, 5..=9);
    world
        .until("a stuck write", || world.sink.entered(Step::Write) == 2)
        .await;
    let interval = Duration::from_millis(20);
    job.set_checkpointing(timing(interval, interval)).await;
    world
        .until("ten attempts given up", || world.store.failed().len() >= 10)
        .await;
    job.set_checkpointing(timing(NEVER, NEVER)).await;
    let asked = trigger(&job, None);
    assert_eq!(world.sink.prepares(), [].into());
    let status = until_status(&job, "the attempt that was asked for", |status| {
        let attempt = status.in_progress.as_ref();
        attempt.is_some_and(|attempt| attempt.kind == CheckpointKind::Manual)
    })
    .await;
    assert!(status.consecutive_failures >= 10);
    world.sink.set(Step::Write, Does::Work);
    let report = asked.await.unwrap();
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 10)]));
    assert!(world.store.newest().has_output);
    // Of all the barriers that were sent the sink saw the newest alone.
    assert_eq!(world.sink.prepares(), [(report.id, 0)].into());
    assert_eq!(world.store.completed().len(), 2);
    assert_eq!(job.status().consecutive_failures, 0);
    stop(&job, StopCheckpoint::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_triggers_share_the_attempt_that_waits() {
    let world = World::new();
    world.sink.set(Step::Prepare, Does::Block);
    let job = world.start(Setup::default());
    let first = trigger(&job, None);
    world
        .until("the first attempt", || {
            world.sink.entered(Step::Prepare) == 1
        })
        .await;
    let others = futures_util::future::join_all((0..5).map(|_| trigger(&job, None)));
    let others = spawn(others);
    // All six are there once a seventh, sent after them, is: commands are served in order.
    world.cluster.deliver(0, 0..=0);
    until_status(&job, "the attempt", |status| status.in_progress.is_some()).await;
    world.sink.set(Step::Prepare, Does::Work);
    let first = first.await.unwrap();
    let others = within("the others", others).await.unwrap();
    assert_eq!(first.id, CheckpointId(2));
    for report in others {
        let report = report.unwrap();
        assert_eq!(report.status, "completed");
        assert!(report.id >= CheckpointId(3));
    }
    stop(&job, StopCheckpoint::None).await;
}

/// Positions that have not moved write no row; a commit that failed is sent again for them.
/// A checkpoint that waits behind one whose store is away is answered in its own time, under an id of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_cannot_begin_is_answered_at_its_deadline() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.store.answer_to(Call::Complete, Answers::Slow);
    let first = trigger(&job, None);
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    let patient = trigger(&job, None);
    let late = trigger(&job, Some(SHORT)).await.unwrap();
    assert_eq!((late.id, late.status.as_str()), (CheckpointId(3), "failed"));
    let failure = late.failure.unwrap();
    assert_eq!(failure.code, "checkpoint-timeout");
    assert_eq!(
        failure.summary,
        "the checkpoint could not begin within its timeout: checkpoint 2 was still under way"
    );
    world.store.answer(Answers::Yes);
    assert_eq!(first.await.unwrap().id, CheckpointId(2));
    assert_eq!(
        patient.await.unwrap().id,
        CheckpointId(4),
        "it waits longer"
    );
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_position_writes_no_row_and_its_commit_is_made_up_for() {
    let world = World::new();
    world.cluster.set_commits(Commits::Refused);
    let job = world.start(Setup {
        checkpoint: timing(Duration::from_millis(20), NEVER),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=9);
    let status = until_status(&job, "commits fail", |status| {
        status.commits.last_error.is_some()
            && status.partitions[&partition(0)].position == Some(offset(10))
    })
    .await;
    let newest = status.last_checkpoint.as_ref().unwrap().id;
    assert!(newest >= CheckpointId(2));
    let begun = world.cluster.commits_begun();
    world
        .until("it is tried again", || {
            world.cluster.commits_begun() >= begun + 3
        })
        .await;
    world.cluster.set_commits(Commits::Confirmed);
    let status = until_status(&job, "the commit went through", |status| {
        status.commits.last_error.is_none()
    })
    .await;
    let last = status.last_checkpoint.clone().unwrap();
    assert_eq!(last.group_commit.status, GroupCommitStatus::Ok);
    assert_eq!(world.cluster.committed(), [BTreeMap::from([(0, 10)])]);
    assert_eq!(world.store.newest().id, last.id);
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 10)]));
    assert!(world.store.completed().len() <= 3, "rows without a move");
    world
        .until("the history tells it", || {
            world.store.outcome(last.id) == Some(GroupCommitStatus::Ok)
        })
        .await;
    stop(&job, StopCheckpoint::None).await;
}

/// One commit is in flight and the newest waits; who waits for one that was displaced is answered at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_displaced_commit_is_answered() {
    let world = World::new();
    world.cluster.set_commits(Commits::Unanswered);
    let job = world.start(Setup::default());
    let completed = async |id| {
        until_status(&job, "the checkpoint completes", |status| {
            status.last_checkpoint.as_ref().unwrap().id == CheckpointId(id)
        })
        .await
    };
    let second = trigger(&job, None);
    completed(2).await;
    let third = trigger(&job, None);
    completed(3).await;
    let fourth = trigger(&job, None);
    completed(4).await;
    let third = third.await.unwrap();
    assert_eq!(third.group_commit.status, GroupCommitStatus::Displaced);
    assert_eq!(job.status().commits.displaced, 1);
    world.cluster.set_commits(Commits::Confirmed);
    assert_eq!(
        second.await.unwrap().group_commit.status,
        GroupCommitStatus::Ok
    );
    assert_eq!(
        fourth.await.unwrap().group_commit.status,
        GroupCommitStatus::Ok
    );
    assert_eq!(world.cluster.commits_begun(), 2);
    stop(&job, StopCheckpoint::None).await;
}

/// That no partition is assigned before a completed checkpoint holds its position is checked at each assignment.
async fn a_partition_without_a_leader_begins_with_the_checkpoint_that_holds_its_position() {
    let world = World::new();
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(0)), (1, None)]),
        ..Setup::default()
    });
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    let status = until_status(&job, "the leader is waited for", |status| {
        !status.waiting.is_empty()
    })
    .await;
    assert_eq!(status.waiting[0].code, Code::NoLeader);
    checkpoint(&job).await;
    let stored = world.store.newest();
    assert_eq!(stored.positions[&partition(1)].next_offset, None);

    // Startup mode latest: it begins at the end of its log.
    world.store.answer(Answers::Slow);
    world.cluster.elect(1, 0, 7);
    world
        .until("its position is sent to the store", || {
            world.store.calls(Call::Complete) == 2
        })
        .await;
    assert_eq!(world.cluster.assigned(1), None);
    // Asked for while the position is being stored: taken right after, when the partition is hardly assigned.
    let next = trigger(&job, None);
    world.store.answer(Answers::Yes);
    let next = next.await.unwrap();
    let decided = world
        .store
        .completed()
        .into_iter()
        .find(|checkpoint| offsets_of(checkpoint).contains_key(&1))
        .unwrap();
    let position = &decided.positions[&partition(1)];
    assert_eq!(
        (position.next_offset, position.position_id),
        (Some(offset(7)), decided.id)
    );
    let after = world.store.newest();
    assert_eq!(after.id, next.id);
    assert_eq!(after.positions[&partition(1)], *position);
    let late = (owner("orders", 1, 1), 1, 7, decided.id.0);
    world
        .until("the sink hears of it", || {
            world.sink.assigned().last() == Some(&late)
        })
        .await;
    assert_eq!(world.sink.assigned(), [(0, 0, 0, 1), late]);
    world.cluster.deliver(1, 7..=8);
    world.until_written(5).await;
    until_status(&job, "nothing is waited for", |status| {
        status.waiting.is_empty()
    })
    .await;
    stop(&job, StopCheckpoint::Required).await;
    assert_eq!(
        offsets_of(&world.store.newest()),
        BTreeMap::from([(0, 3), (1, 9)])
    );
}

/// A sink that keeps progress could not tell what a record belongs to otherwise. (That no record is written before its
/// partition's beginning was heard is checked at each write.)
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_hears_where_partitions_begin_before_their_first_record() {
    let world = World::new();
    world.sink.set(Step::Assign, Does::FailForNow);
    let job = world.start(Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(3)), (1, Some(4)), (2, Some(5))]),
        ..Setup::default()
    });
    for number in 0..=2 {
        world.cluster.deliver(number, 9..=9);
    }
    world
        .until("both ask again", || world.sink.entered(Step::Assign) >= 4)
        .await;
    assert_eq!(world.sink.entered(Step::Write), 0);
    world.sink.set(Step::Assign, Does::Work);
    world.until_written(3).await;
    let mut assigned = world.sink.assigned();
    assigned.sort_unstable_by_key(|(_, partition, ..)| *partition);
    let expected = [(0, 3), (1, 4), (2, 5)];
    let expected = expected.map(|(number, at)| (owner("orders", number, 2), number, at, 1));
    assert_eq!(assigned, expected);
    stop(&job, StopCheckpoint::Required).await;
}

/// A broker that comes back with more partitions than a queue would hold, while the sink is stuck.
async fn a_hundred_partitions_get_their_leaders_at_once() {
    let world = World::new();
    let pending = (1..=100).map(|number| (number, None));
    let job = world.start(Setup {
        partitions: pending.chain([(0, Some(0))]).collect(),
        checkpoint: timing(NEVER, NEVER),
        ..Setup::default()
    });
    // The subtask answers its barrier, and is stuck when it gets the partitions.
    world.store.answer(Answers::Slow);
    for number in 1..=100 {
        world.cluster.elect(number, 0, 3);
    }
    world
        .until("their positions are sent to the store", || {
            world.store.calls(Call::Complete) == 1
        })
        .await;
    world.sink.set(Step::Write, Does::Block);
    world.cluster.deliver(0, 0..=0);
    world
        .until("a stuck write", || world.sink.entered(Step::Write) == 1)
        .await;
    world.store.answer(Answers::Yes);
    until_status(&job, "positions stored", |status| {
        status.last_checkpoint.as_ref().unwrap().id == CheckpointId(2)
    })
    .await;
    world.sink.set(Step::Write, Does::Work);
    world
        .until("all assigned", || {
            (0..=100).all(|number| world.cluster.assigned(number).is_some())
        })
        .await;
    stop(&job, StopCheckpoint::Required).await;
}

/// Leaders are asked for every other second, so these wait together.
#[tokio::test(flavor = "multi_thread")]
async fn partitions_without_a_leader_follow() {
    tokio::join!(
        a_partition_without_a_leader_begins_with_the_checkpoint_that_holds_its_position(),
        a_hundred_partitions_get_their_leaders_at_once(),
    );
}

/// FLINK-40469: a checkpoint that is asked for while a run only begins holds every partition: those that no subtask has yet,
/// and those without a leader, as they were stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_amid_the_begin_of_a_run_keeps_every_partition() {
    let world = World::new();
    world.sink.set(Step::Open, Does::Block);
    let job = world.start(Setup {
        parallelism: 2,
        partitions: BTreeMap::from([(0, Some(10)), (1, Some(20)), (2, Some(30)), (3, None)]),
        ..Setup::default()
    });
    let asked = trigger(&job, None);
    until_status(&job, "the attempt", |status| status.in_progress.is_some()).await;
    world.sink.set(Step::Open, Does::Work);
    let report = asked.await.unwrap();
    let stored = world.store.newest();
    assert_eq!(stored.id, report.id);
    assert_eq!(stored.positions.len(), 4, "{stored:?}");
    assert_eq!(
        offsets_of(&stored),
        BTreeMap::from([(0, 10), (1, 20), (2, 30)])
    );
    assert_eq!(stored.positions[&partition(3)].next_offset, None);
    stop(&job, StopCheckpoint::None).await;
}
