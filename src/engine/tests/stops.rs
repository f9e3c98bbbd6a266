//! Stops: each returns within its deadline, and what it says is so.

use std::time::Instant;

use futures_util::future::join_all;

use super::{
    cluster::Commits,
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::{engine::StopRefused, model::checkpoint::GroupCommitStatus};

/// What a sink is at when the stop comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SinkIs {
    Idle,
    Opening,
    Writing,
    Flushing,
    Refusing,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    how: StopCheckpoint,
    sink: SinkIs,
    store: Answers,
    commits: Commits,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for how in [
            StopCheckpoint::Required,
            StopCheckpoint::BestEffort,
            StopCheckpoint::None,
        ] {
            for sink in [
                SinkIs::Idle,
                SinkIs::Opening,
                SinkIs::Writing,
                SinkIs::Flushing,
                SinkIs::Refusing,
            ] {
                for store in [
                    Answers::Yes,
                    Answers::AwayBefore,
                    Answers::AwayAfter,
                    Answers::Slow,
                ] {
                    for commits in [Commits::Confirmed, Commits::Refused] {
                        cases.push(Self {
                            how,
                            sink,
                            store,
                            commits,
                        });
                    }
                }
            }
        }
        cases
    }

    /// Brings a job into the state, with three records delivered.
    async fn begin(&self) -> (World, JobHandle) {
        let world = World::new();
        let step = match self.sink {
            SinkIs::Opening => Some(Step::Open),
            SinkIs::Writing => Some(Step::Write),
            SinkIs::Idle | SinkIs::Flushing | SinkIs::Refusing => None,
        };
        if let Some(step) = step {
            world.sink.set(step, Does::Block);
        }
        match self.sink {
            SinkIs::Flushing => world.sink.set(Step::Prepare, Does::Block),
            SinkIs::Refusing => world.sink.set(Step::Prepare, Does::FailForNow),
            SinkIs::Idle | SinkIs::Opening | SinkIs::Writing => {}
        }
        world.store.answer(self.store);
        world.cluster.set_commits(self.commits);
        let job = world.start(Setup::default());
        world.cluster.deliver(0, 0..=2);
        match step {
            Some(step) => {
                world
                    .until("the sink is stuck", || world.sink.entered(step) == 1)
                    .await;
            }
            None => world.until_written(3).await,
        }
        (world, job)
    }

    fn check_end(&self, world: &World, outcome: &StopOutcome) {
        assert_eq!(outcome.leaked_threads, 0, "{self:?}");
        let replayed = match self.sink {
            SinkIs::Idle | SinkIs::Flushing | SinkIs::Refusing => Some(3),
            SinkIs::Opening => Some(0),
            // What a write kept that was cut off nobody knows.
            SinkIs::Writing => None,
        };
        if self.how == StopCheckpoint::None {
            assert!(outcome.checkpoint.is_none(), "{self:?}");
            assert_eq!(outcome.will_replay, replayed, "{self:?}");
            return;
        }
        let report = outcome.checkpoint.as_ref().unwrap();
        self.check_report(report);
        let expected = match report.status.as_str() {
            "completed" => Some(0),
            "uncertain" => None,
            _ => replayed,
        };
        assert_eq!(outcome.will_replay, expected, "{self:?}");
        if report.status == "completed" {
            let stored = world.store.newest();
            assert_eq!((stored.id, stored.kind), (report.id, CheckpointKind::Stop));
            assert_eq!(offsets_of(&stored), BTreeMap::from([(0, 3)]));
            let (status, committed) = match self.commits {
                Commits::Confirmed => (GroupCommitStatus::Ok, vec![BTreeMap::from([(0, 3)])]),
                Commits::Refused | Commits::Unanswered => (GroupCommitStatus::Failed, Vec::new()),
            };
            assert_eq!(report.group_commit.status, status, "{self:?}");
            assert_eq!(world.cluster.committed(), committed, "{self:?}");
        }
    }

    fn check_report(&self, report: &CheckpointReport) {
        let (status, phase) = match (self.sink, self.store) {
            (SinkIs::Idle, Answers::Yes) => ("completed", None),
            (SinkIs::Idle, _) => ("uncertain", Some("store")),
            (SinkIs::Flushing | SinkIs::Refusing, _) => ("failed", Some("sink_flush")),
            (SinkIs::Opening | SinkIs::Writing, _) => ("failed", Some("barrier")),
        };
        assert_eq!(report.status, status, "{self:?}");
        let failure = report.failure.as_ref();
        assert_eq!(
            failure.map(|failure| failure.phase.as_str()),
            phase,
            "{self:?}"
        );
        let phases = report.phases;
        if self.sink == SinkIs::Idle {
            // Every subtask has answered. What the store has not answered counts until now.
            let known = [phases.barrier_ms, phases.sink_flush_ms, phases.store_ms];
            assert!(known.iter().all(Option::is_some), "{self:?}: {phases:?}");
        } else {
            assert_eq!(phases.store_ms, None, "{self:?}");
        }
        let at = match self.sink {
            SinkIs::Idle => return,
            SinkIs::Opening => "sink-open",
            SinkIs::Writing => "sink-write",
            SinkIs::Flushing | SinkIs::Refusing => "sink-flush",
        };
        let summary = &failure.unwrap().summary;
        assert!(
            self.sink != SinkIs::Refusing || summary.ends_with("Prepare: the target said no"),
            "{summary}"
        );
        let slowest = &failure.unwrap().slowest;
        assert_eq!(slowest.len(), 1, "{self:?}");
        assert_eq!(slowest[0].at, at, "{self:?}");
    }

    async fn run(self) {
        let (world, job) = self.begin().await;
        let first = job.clone();
        let first = spawn(async move { first.stop(self.how, NEVER).await });
        // Its time runs out once it is where this case wants it: a second stop sees to that.
        let runs_out = self.how != StopCheckpoint::None
            && match self.sink {
                SinkIs::Idle => self.store != Answers::Yes,
                SinkIs::Opening | SinkIs::Writing | SinkIs::Flushing | SinkIs::Refusing => true,
            };
        let is_there = || match self.sink {
            SinkIs::Idle => world.store.calls(Call::Complete) >= 1,
            SinkIs::Flushing => world.sink.entered(Step::Prepare) >= 1,
            // It was tried again.
            SinkIs::Refusing => world.sink.entered(Step::Prepare) >= 2,
            SinkIs::Opening | SinkIs::Writing => true,
        };
        let began = Instant::now();
        if runs_out {
            let stopping = |status: &Arc<JobStatus>| status.stopping;
            until_status(&job, "the stop", stopping).await;
            world.until("the stop is under way", is_there).await;
            let _same_as_the_first = within("a stop", job.stop(self.how, SHORT)).await;
        }
        let end = within("a stop", first).await.unwrap();
        // The stop's own time, and at most two more seconds for notes that a store does not take.
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{self:?} took {:?}",
            began.elapsed()
        );
        match end {
            Ok(end) => {
                let outcome = stopped(end);
                assert!(
                    self.how != StopCheckpoint::Required
                        || outcome.checkpoint.as_ref().unwrap().status == "completed",
                    "{self:?}: {outcome:?}"
                );
                self.check_end(&world, &outcome);
            }
            Err(StopRefused { checkpoint }) => {
                assert_eq!(self.how, StopCheckpoint::Required);
                self.check_report(&checkpoint);
                self.goes_on(&world, &job).await;
            }
        }
        assert_eq!(world.cluster.closed(), 1, "{self:?}");
    }

    /// After a refused stop the job goes on, and can be stopped once what was in the way is gone.
    async fn goes_on(&self, world: &World, job: &JobHandle) {
        let status = until_status(job, "it goes on", |status| !status.stopping).await;
        assert_eq!(status.last_checkpoint.as_ref().unwrap().id, CheckpointId(1));
        for step in [Step::Open, Step::Write, Step::Prepare] {
            world.sink.set(step, Does::Work);
        }
        world.store.answer(Answers::Yes);
        world.cluster.set_commits(Commits::Confirmed);
        world.cluster.deliver(0, 3..=4);
        world.until_written(5).await;
        let outcome = stop(job, StopCheckpoint::Required).await;
        assert_eq!((outcome.will_replay, outcome.leaked_threads), (Some(0), 0));
        assert_eq!(
            offsets_of(&world.store.newest()),
            BTreeMap::from([(0, 5)]),
            "{self:?}"
        );
        assert_eq!(world.store.newest().id, outcome.checkpoint.unwrap().id);
        assert_eq!(
            world.cluster.committed().last(),
            Some(&BTreeMap::from([(0, 5)]))
        );
    }
}

/// Every way to stop, against every state of sink, store and group.
#[tokio::test(flavor = "multi_thread")]
async fn every_stop_returns_and_tells_the_truth() {
    let cases = Case::all().into_iter().map(|case| spawn(case.run()));
    for case in join_all(cases).await {
        case.unwrap();
    }
}

/// A sink that is away for a moment does not fail the last checkpoint: no later one could cover it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_a_sink_that_comes_back() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    world.sink.set(Step::Prepare, Does::FailForNow);
    let waits = job.clone();
    let waits = spawn(async move { waits.stop(StopCheckpoint::Required, NEVER).await });
    let status = until_status(&job, "the sink is waited for", |status| {
        !status.waiting.is_empty()
    })
    .await;
    assert_eq!(status.waiting[0].detail, "Prepare: the target said no");
    world.sink.set(Step::Prepare, Does::Work);
    let outcome = stopped(within("a stop", waits).await.unwrap().unwrap());
    assert_eq!(outcome.will_replay, Some(0));
    assert_eq!(offsets_of(&world.store.newest()), BTreeMap::from([(0, 3)]));
    assert_eq!(world.store.failed().len(), 0);
}

/// The sink's own words end a stop whose time runs out.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_waited_for_its_sink_says_what_the_sink_said() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.sink.set(Step::Prepare, Does::FailForNow);
    let refused = within("a stop", job.stop(StopCheckpoint::Required, SHORT)).await;
    let failure = refused.unwrap_err().checkpoint.failure.unwrap();
    assert_eq!(failure.phase, "sink_flush");
    assert!(
        failure.summary.ends_with("Prepare: the target said no"),
        "{}",
        failure.summary
    );
    world.sink.set(Step::Prepare, Does::Work);
    stop(&job, StopCheckpoint::Required).await;
}

/// A refused stop's row is kept after all, when the job has read on: a second stop is not satisfied by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_its_own_checkpoint() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    world.store.answer(Answers::Slow);
    let first = job.clone();
    let first = spawn(async move { first.stop(StopCheckpoint::Required, NEVER).await });
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    let hurried = within("a stop", job.stop(StopCheckpoint::Required, SHORT)).await;
    for refused in [hurried, within("a stop", first).await.unwrap()] {
        assert_eq!(refused.unwrap_err().checkpoint.status, "uncertain");
    }
    world.cluster.deliver(0, 3..=5);
    world.until_written(6).await;

    let second = job.clone();
    let second = spawn(async move { second.stop(StopCheckpoint::Required, NEVER).await });
    until_status(&job, "the second stop", |status| status.stopping).await;
    world.sink.set(Step::Prepare, Does::Block);
    world.store.answer(Answers::Yes);
    until_status(&job, "the first row is kept and committed", |status| {
        let last = status.last_checkpoint.as_ref().unwrap();
        last.id == CheckpointId(2) && last.group_commit.status == GroupCommitStatus::Ok
    })
    .await;
    world.sink.set(Step::Prepare, Does::Work);
    let outcome = stopped(within("a stop", second).await.unwrap().unwrap());
    assert_eq!(outcome.will_replay, Some(0));
    assert_eq!(outcome.checkpoint.unwrap().id, CheckpointId(3));
    let stored: Vec<_> = world.store.completed().iter().map(offsets_of).collect();
    assert_eq!(
        stored,
        [0, 3, 6].map(|offset| BTreeMap::from([(0, offset)]))
    );
}

/// A stop that could not even begin has an id of its own, and an entry in the history.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_behind_another_attempt_is_refused_under_an_id_of_its_own() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.store.answer_to(Call::Complete, Answers::Slow);
    let manual = trigger(&job, None);
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    let refused = within("a stop", job.stop(StopCheckpoint::Required, SHORT)).await;
    let refused = refused.unwrap_err().checkpoint;
    assert_eq!(
        (refused.id, refused.status.as_str()),
        (CheckpointId(3), "failed")
    );
    let failure = refused.failure.unwrap();
    assert!(
        failure.summary.contains("checkpoint 2 was still under way"),
        "{}",
        failure.summary
    );
    world
        .until("the history has it", || world.store.failed().len() == 1)
        .await;
    let failed = &world.store.failed()[0];
    assert_eq!(
        (failed.id, failed.kind),
        (CheckpointId(3), CheckpointKind::Stop)
    );

    world.store.answer(Answers::Yes);
    assert_eq!(manual.await.unwrap().status, "completed");
    assert_eq!(checkpoint(&job).await.id, CheckpointId(4));
    stop(&job, StopCheckpoint::Required).await;
}

/// Who asked for a checkpoint before or during a stop is answered: by the stop's, or by one after its refusal.
#[tokio::test(flavor = "multi_thread")]
async fn triggers_around_a_stop_are_answered() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.store.answer_to(Call::Complete, Answers::Slow);
    let first = trigger(&job, None);
    world
        .until("the row is sent", || world.store.calls(Call::Complete) == 1)
        .await;
    // Waits behind the first one; the stop takes its place, and is refused.
    let before = trigger(&job, None);
    let refused = within("a stop", job.stop(StopCheckpoint::Required, SHORT)).await;
    assert_eq!(refused.unwrap_err().checkpoint.status, "failed");
    world.store.answer(Answers::Yes);
    assert_eq!(first.await.unwrap().status, "completed");
    assert_eq!(before.await.unwrap().status, "completed");

    // Asked for while the stop's own attempt is under way: it is the same checkpoint.
    world.sink.set(Step::Prepare, Does::Block);
    let stops = job.clone();
    let stops = spawn(async move { stops.stop(StopCheckpoint::Required, NEVER).await });
    until_status(&job, "the stop", |status| status.stopping).await;
    let during = trigger(&job, None);
    // Commands are served in order: once this one is done the trigger was heard.
    tokio::task::yield_now().await;
    job.set_checkpointing(timing(NEVER, NEVER)).await;
    world.sink.set(Step::Prepare, Does::Work);
    let outcome = stopped(within("a stop", stops).await.unwrap().unwrap());
    // Heard before the end, it shares the checkpoint; heard after it, there is no job any more.
    if let Some(during) = during.await {
        assert_eq!(during.id, outcome.checkpoint.unwrap().id);
    }
}

/// Two stops at once: the second one's terms hold, and both see the same end.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_stop_can_hurry_the_first() {
    let world = World::new();
    world.sink.set(Step::Write, Does::Block);
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world
        .until("a stuck write", || world.sink.entered(Step::Write) == 1)
        .await;
    let patient = job.clone();
    let patient = spawn(async move { patient.stop(StopCheckpoint::Required, NEVER).await });
    until_status(&job, "the first stop", |status| status.stopping).await;
    let hurried = within("a stop", job.stop(StopCheckpoint::BestEffort, SHORT)).await;
    let hurried = stopped(hurried.unwrap());
    let patient = stopped(within("a stop", patient).await.unwrap().unwrap());
    for outcome in [hurried, patient] {
        assert_eq!(outcome.checkpoint.unwrap().status, "failed");
        assert_eq!(outcome.will_replay, None);
    }
    // And a third, of a job that has ended.
    assert_eq!(stop(&job, StopCheckpoint::Required).await.leaked_threads, 0);
}

/// The last commit is awaited; a stop without a checkpoint cuts that short, and says what is open.
async fn a_last_commit_that_nobody_answers_is_told() {
    let world = World::new();
    world.cluster.set_commits(Commits::Unanswered);
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    let first = job.clone();
    let first = spawn(async move { first.stop(StopCheckpoint::Required, SHORT).await });
    world
        .until("the commit is sent", || world.cluster.commits_begun() == 1)
        .await;
    until_status(&job, "the checkpoint is shown", |status| {
        status.last_checkpoint.as_ref().unwrap().id == CheckpointId(2)
    })
    .await;
    let now = within("a stop", job.stop(StopCheckpoint::None, NEVER)).await;
    let first = within("a stop", first).await.unwrap();
    for outcome in [stopped(now.unwrap()), stopped(first.unwrap())] {
        let report = outcome.checkpoint.unwrap();
        assert_eq!(report.status, "completed");
        assert_eq!(report.group_commit.status, GroupCommitStatus::Failed);
        let error = report.group_commit.error.unwrap();
        assert!(error.contains("may still take effect"), "{error}");
        // The thread that still waits for the broker is counted.
        assert_eq!((outcome.will_replay, outcome.leaked_threads), (Some(0), 1));
    }
}

/// A commit that comes to its end while the run closes still counts.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_answered_while_the_run_closes_counts() {
    let world = World::new();
    world.cluster.set_commits(Commits::Unanswered);
    world.cluster.set_closes(false);
    let job = world.start(Setup::default());
    let manual = trigger(&job, None);
    world
        .until("the commit is sent", || world.cluster.commits_begun() == 1)
        .await;
    let stops = job.clone();
    let stops = spawn(async move { stops.stop(StopCheckpoint::None, NEVER).await });
    world
        .until("the run closes", || world.sink.closed() == 1)
        .await;
    world.cluster.set_commits(Commits::Confirmed);
    world.cluster.set_closes(true);
    let report = manual.await.unwrap();
    assert_eq!(report.group_commit.status, GroupCommitStatus::Ok);
    let outcome = stopped(within("a stop", stops).await.unwrap().unwrap());
    assert_eq!(outcome.leaked_threads, 0);
    assert_eq!(world.store.outcome(report.id), Some(GroupCommitStatus::Ok));
}

async fn a_client_that_does_not_close_is_left_and_counted() {
    let world = World::new();
    world.cluster.set_closes(false);
    let job = world.start(Setup {
        parallelism: 2,
        ..Setup::default()
    });
    let outcome = stop(&job, StopCheckpoint::Required).await;
    assert_eq!(outcome.leaked_threads, 2);
    assert_eq!(outcome.checkpoint.unwrap().status, "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_nobody_holds_ends() {
    let world = World::new();
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=2);
    world.until_written(3).await;
    drop(job);
    world
        .until("client and writer are closed", || {
            world.cluster.closed() == 1 && world.sink.closed() == 1
        })
        .await;
    assert_eq!(world.sink.aborted(), 1);
}

/// FLINK-28758: a stop while polls are in flight is no failure, however often.
#[tokio::test(flavor = "multi_thread")]
async fn stops_amid_records_are_clean() {
    let runs = (0..20).map(|_| {
        spawn(async {
            let world = World::new();
            let job = world.start(Setup {
                parallelism: 2,
                partitions: BTreeMap::from([(0, Some(0)), (1, Some(0))]),
                ..Setup::default()
            });
            for number in 0..20 {
                world.cluster.deliver(0, number * 3..=number * 3 + 2);
                world.cluster.deliver(1, number..=number);
            }
            world.until_written(10).await;
            let outcome = stop(&job, StopCheckpoint::Required).await;
            assert_eq!(outcome.will_replay, Some(0));
            let stored = world.store.newest();
            let written = |number| i64::try_from(world.sink.written_of(number).len()).unwrap();
            let expected = BTreeMap::from([(0, written(0)), (1, written(1))]);
            assert_eq!(offsets_of(&stored), expected);
            assert_eq!(world.cluster.committed().last(), Some(&expected));
        })
    });
    for run in join_all(runs).await {
        run.unwrap();
    }
}

/// A target that refuses for good and then does not let go either.
async fn a_sink_that_hangs_when_it_gives_up_hides_nothing() {
    let world = World::new();
    world.sink.set(Step::Abort, Does::Block);
    world.sink.set(Step::Write, Does::Refuse);
    let job = world.start(Setup::default());
    world.cluster.deliver(0, 0..=0);
    assert!(matches!(failure(&job).await, JobError::Sink(_)));
}

/// Each of these waits out a time of seconds, so they do it together.
#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_while_a_run_closes_holds_it_for_a_bounded_time() {
    tokio::join!(
        a_last_commit_that_nobody_answers_is_told(),
        a_client_that_does_not_close_is_left_and_counted(),
        a_sink_that_hangs_when_it_gives_up_hides_nothing(),
    );
}
