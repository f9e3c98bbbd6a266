//! The runs of a job and its crash loops.

use std::time::Duration;

use handover::{
    engine::{error::StoreError, ports::JobLease},
    model::{
        attempt::{Attempt, AttemptKind, AttemptOutcome},
        checkpoint::CheckpointKind,
        code::Code,
        ids::CheckpointId,
        job_state::{DesiredState, JobState},
        job_status::JobFailure,
        restart::{CrashLoop, RestartStrategy},
    },
    store::{AttemptEnd, JobRow, NeverBegun, StartRecord},
};

use super::{World, checkpoint, now, start_record};

fn cause(words: &str) -> JobFailure {
    JobFailure {
        code: Code::Panicked,
        summary: words.to_owned(),
        record: None,
        phase: None,
        first_seen: now(),
    }
}

fn crash(before: Option<CrashLoop>, words: &str) -> (CrashLoop, AttemptEnd) {
    let cause = cause(words);
    let strategy = RestartStrategy::default();
    let second = Duration::from_secs(1);
    let is_first = before.is_none();
    let (crash_loop, _) = CrashLoop::after_crash(before, &strategy, &cause, second, now(), 0.5);
    let end = AttemptEnd {
        outcome: AttemptOutcome::Crashed,
        cause: Some(cause),
        records: 7,
        bytes: 70,
        first_of_loop: is_first,
    };
    (crash_loop, end)
}

impl World {
    /// Begins a run with an unchanged position.
    async fn begin(&self, job: &JobRow, lease: &JobLease, id: i64, kind: AttemptKind) {
        self.begin_at(job, lease, id, kind, 5).await;
    }

    async fn begin_at(
        &self,
        job: &JobRow,
        lease: &JobLease,
        id: i64,
        kind: AttemptKind,
        offset: i64,
    ) {
        let mut start = checkpoint(lease, id, CheckpointKind::Start, offset);
        start.has_output = false;
        let row = self.store.job_by_uid(job.uid).await.unwrap().unwrap();
        let crash_loop = row.crash_loop.map(|crash_loop| CrashLoop {
            next_attempt_at: None,
            ..crash_loop
        });
        let record = StartRecord {
            kind,
            crash_loop: crash_loop.filter(|_| kind.is_automatic()),
            ..start_record(job)
        };
        // Twice, as after an answer that was lost.
        for _ in 0..2 {
            self.store
                .store_start(lease, &start, &record)
                .await
                .unwrap();
        }
    }

    async fn attempts_of(&self, job: &JobRow) -> Vec<Attempt> {
        self.store.attempts(job.uid, 500, None).await.unwrap()
    }

    async fn starts(&self) -> Vec<i64> {
        sqlx::query_scalar("SELECT id FROM checkpoints WHERE kind = 'start' ORDER BY id")
            .fetch_all(&self.sql)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_crash_is_kept_with_its_loop_and_the_lease_stays() {
    let world = World::new().await;
    let (job, incarnation, lease) = world.owned_job("orders").await;
    world.begin(&job, &lease, 1, AttemptKind::Start).await;
    let (first, end) = crash(None, "the cause");
    for _ in 0..2 {
        world
            .store
            .crashed(&lease, &first, &end, None)
            .await
            .unwrap();
    }
    let row = world.store.job_by_uid(job.uid).await.unwrap().unwrap();
    assert_eq!((row.state, &row.running), (JobState::BackingOff, &None));
    assert_eq!(row.crash_loop.as_ref(), Some(&first));
    assert_eq!(row.backs_off_until(), first.next_attempt_at);
    assert_eq!(row.owner.map(|owner| owner.epoch), Some(lease.epoch));
    let crashes = "SELECT count(*) FROM events WHERE kind = 'job-crashed'";
    assert_eq!(world.count(crashes).await, 1);

    // The next run takes a new epoch, and what the first left behind can write no more.
    let next = world
        .store
        .take_lease(job.uid, &incarnation)
        .await
        .unwrap()
        .unwrap();
    assert!(next.epoch > lease.epoch);
    let late = world.store.crashed(&lease, &first, &end, None).await;
    assert!(matches!(late, Err(StoreError::Fenced)), "{late:?}");
    world.begin(&job, &next, 2, AttemptKind::AfterCrash).await;
    let (second, end) = crash(Some(first), "what followed");
    world
        .store
        .crashed(&next, &second, &end, None)
        .await
        .unwrap();
    let attempts = world.attempts_of(&job).await;
    let seen: Vec<_> = attempts
        .iter()
        .map(|one| {
            (
                one.attempt,
                one.kind,
                one.outcome,
                one.first_of_loop,
                one.records,
            )
        })
        .collect();
    let crashed = Some(AttemptOutcome::Crashed);
    assert_eq!(
        seen,
        [
            (2, AttemptKind::AfterCrash, crashed, false, Some(7)),
            (1, AttemptKind::Start, crashed, true, Some(7)),
        ]
    );
    assert_eq!(attempts[1].cause.as_ref().unwrap().summary, "the cause");
    assert_eq!(attempts[0].checkpoint, Some(CheckpointId(2)));

    // Whoever stops the job has seen it.
    world
        .store
        .settle_stopped(&next, None, JobState::Stopped, None, false)
        .await
        .unwrap();
    let row = world.store.job_by_uid(job.uid).await.unwrap().unwrap();
    assert_eq!(
        (row.desired_state, row.crash_loop),
        (DesiredState::Stopped, None)
    );
}

/// The bug is in what begins or ends a run, and not in the run.
#[tokio::test]
async fn a_crash_before_the_positions_and_one_after_the_end_are_kept_too() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    let (first, end) = crash(None, "the start crashed");
    let never_begun = NeverBegun {
        kind: AttemptKind::Start,
        generation: job.generation,
        operation: None,
    };
    // Twice, as after an answer that was lost.
    for _ in 0..2 {
        let crashed = world
            .store
            .crashed(&lease, &first, &end, Some(&never_begun));
        crashed.await.unwrap();
    }
    world.begin(&job, &lease, 1, AttemptKind::AfterCrash).await;
    let stopped = AttemptEnd {
        outcome: AttemptOutcome::Stopped,
        cause: None,
        records: 9,
        bytes: 90,
        first_of_loop: false,
    };
    world.store.end_attempt(&lease, &stopped).await.unwrap();
    let (second, end) = crash(Some(first), "the stop crashed");
    for _ in 0..2 {
        let crashed = world.store.crashed(&lease, &second, &end, None);
        crashed.await.unwrap();
    }
    let attempts = world.attempts_of(&job).await;
    let crashed = Some(AttemptOutcome::Crashed);
    let seen: Vec<_> = attempts
        .iter()
        .map(|one| (one.kind, one.outcome, one.checkpoint, one.records))
        .collect();
    assert_eq!(
        seen,
        [
            (
                AttemptKind::AfterCrash,
                crashed,
                Some(CheckpointId(1)),
                Some(9)
            ),
            (AttemptKind::Start, crashed, None, Some(0)),
        ]
    );
    let causes: Vec<_> = attempts
        .iter()
        .filter_map(|one| Some(one.cause.as_ref()?.summary.as_str()))
        .collect();
    assert_eq!(causes, ["the stop crashed", "the start crashed"]);
}

#[tokio::test]
async fn a_run_that_its_owner_did_not_end_is_closed_by_the_next() {
    let world = World::new().await;
    let (job, incarnation, lease) = world.owned_job("orders").await;
    world.begin(&job, &lease, 1, AttemptKind::Start).await;
    let next = world
        .store
        .take_lease(job.uid, &incarnation)
        .await
        .unwrap()
        .unwrap();
    world.begin(&job, &next, 2, AttemptKind::Recovery).await;
    let attempts = world.attempts_of(&job).await;
    assert_eq!(attempts[1].outcome, Some(AttemptOutcome::OwnerLost));
    assert_eq!((attempts[1].records, attempts[0].outcome), (None, None));
    // So does a stop that finds no run.
    world
        .store
        .settle_stopped(&next, None, JobState::Stopped, None, false)
        .await
        .unwrap();
    let attempts = world.attempts_of(&job).await;
    assert_eq!(attempts[0].outcome, Some(AttemptOutcome::OwnerLost));
    // An end that was noted before stays.
    let third = world
        .store
        .take_lease(job.uid, &incarnation)
        .await
        .unwrap()
        .unwrap();
    world.begin(&job, &third, 3, AttemptKind::Start).await;
    let (_, end) = crash(None, "");
    let stopped = AttemptEnd {
        outcome: AttemptOutcome::Stopped,
        cause: None,
        ..end
    };
    for _ in 0..2 {
        world.store.end_attempt(&third, &stopped).await.unwrap();
    }
    world
        .store
        .settle_stopped(&third, None, JobState::Stopped, None, false)
        .await
        .unwrap();
    let newest = world.store.attempts(job.uid, 1, None).await.unwrap();
    assert_eq!(newest[0].outcome, Some(AttemptOutcome::Stopped));
    let older = world.store.attempts(job.uid, 500, Some(3)).await.unwrap();
    assert_eq!(older.len(), 2);
}

/// However often a job crashes where it began: one row for all of its automatic starts.
#[tokio::test]
async fn a_crash_loop_fills_neither_the_checkpoints_nor_the_runs() {
    let world = World::new().await;
    let (job, incarnation, mut lease) = world.owned_job("orders").await;
    world.begin(&job, &lease, 1, AttemptKind::Start).await;
    let mut known = None;
    for id in 2..=140 {
        let (crash_loop, end) = crash(known, &id.to_string());
        world
            .store
            .crashed(&lease, &crash_loop, &end, None)
            .await
            .unwrap();
        known = Some(crash_loop);
        lease = world
            .store
            .take_lease(job.uid, &incarnation)
            .await
            .unwrap()
            .unwrap();
        world.begin(&job, &lease, id, AttemptKind::AfterCrash).await;
    }
    assert_eq!(
        world.starts().await,
        [1, 140],
        "the operator's and the newest"
    );
    let attempts = world.attempts_of(&job).await;
    assert_eq!(attempts.len(), 101);
    let oldest = attempts.last().unwrap();
    assert_eq!((oldest.attempt, oldest.first_of_loop), (1, true));
    let row = world.store.job_by_uid(job.uid).await.unwrap().unwrap();
    let crash_loop = row.crash_loop.unwrap();
    assert_eq!(crash_loop.first_cause.summary, "2");
    assert_eq!(
        (crash_loop.restarts, crash_loop.next_attempt_at),
        (139, None)
    );

    // Something has moved, or was stored in between: both rows say something.
    world
        .begin_at(&job, &lease, 141, AttemptKind::AfterCrash, 6)
        .await;
    assert_eq!(world.starts().await, [1, 140, 141]);
    sqlx::query("UPDATE checkpoint_offsets SET position_id = 2 WHERE checkpoint_id = 141")
        .execute(&world.sql)
        .await
        .unwrap();
    world
        .begin_at(&job, &lease, 142, AttemptKind::AfterCrash, 6)
        .await;
    assert_eq!(world.starts().await, [1, 140, 141, 142]);
}
