//! Decides when a checkpoint is taken and what becomes of it. Pure: events and a time in, actions out.
//!
//! One attempt at a time. An attempt has two phases: *preparing*, until every subtask has answered its barrier, bounded by
//! a timeout; and *storing*, which has none, because a row that was sent to the store may be kept whatever we decide here:
//! giving the attempt up would be a lie. The store's adapter repeats it until the outcome is known, and meanwhile the
//! attempt is shown as `uncertain`.
//!
//! A trigger that arrives during an attempt waits; further ones join it. A stop's checkpoint goes before a manual one.
//! The pause is measured from the end of any attempt, also of a failed one (Flink measures it from completed ones only, so
//! failures follow each other without a pause: FLINK-9598).
//!
//! A job without checkpoints has attempts too, on the interval of its commits to the group: what is decided here is the same,
//! and nothing is stored.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use crate::model::{
    checkpoint::{CheckpointFailure, CheckpointKind, SlowSubtask},
    code::Code,
    ids::CheckpointId,
};

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CoordinatorEvent {
    /// Time has passed.
    Tick,
    /// Somebody wants a checkpoint.
    Trigger {
        /// Why.
        kind: CheckpointKind,
        /// How long it may take; the spec's timeout if nothing is said.
        timeout: Option<Duration>,
    },
    /// A subtask has answered the barrier.
    Prepared {
        /// The attempt it answered.
        id: CheckpointId,
        /// Which subtask.
        subtask: u32,
    },
    /// A subtask's sink could not make its part durable.
    PrepareFailed {
        /// The attempt.
        id: CheckpointId,
        /// Which subtask.
        subtask: u32,
        /// What the sink said.
        detail: String,
    },
    /// The store keeps it.
    Stored {
        /// The attempt.
        id: CheckpointId,
    },
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CoordinatorAction {
    /// A periodic checkpoint is due: take it, or confirm the newest one if nothing moved, and say so with
    /// [`CheckpointCoordinator::skipped`].
    Due,
    /// Send the barrier to every subtask.
    SendBarrier {
        /// The attempt.
        id: CheckpointId,
        /// Why it is taken.
        kind: CheckpointKind,
    },
    /// Every subtask has answered: store it.
    Store {
        /// The attempt.
        id: CheckpointId,
    },
    /// It is stored.
    Complete {
        /// The attempt.
        id: CheckpointId,
    },
    /// It is given up.
    Fail {
        /// The attempt.
        id: CheckpointId,
        /// Why.
        failure: CheckpointFailure,
    },
}

/// When attempts are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timing {
    /// Between the triggers of periodic ones; `None` where there are none.
    pub interval: Option<Duration>,
    /// How long an attempt may prepare.
    pub timeout: Duration,
    /// From the end of an attempt to the next periodic one.
    pub min_pause: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Attempt {
    id: CheckpointId,
    kind: CheckpointKind,
    began: Instant,
    deadline: Instant,
    missing: BTreeSet<u32>,
    storing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Queued {
    kind: CheckpointKind,
    timeout: Option<Duration>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct CheckpointCoordinator {
    timing: Timing,
    subtasks: u32,
    next_id: CheckpointId,
    attempt: Option<Attempt>,
    queued: Option<Queued>,
    /// When the newest attempt, or what took the place of one, began.
    beat: Instant,
    /// When the next periodic attempt is due whatever the beat.
    hurried: Option<Instant>,
    /// When the newest attempt ended.
    ended: Option<Instant>,
    /// Periodic ones are held back while the job is stopping.
    periodic: bool,
}

impl CheckpointCoordinator {
    pub(super) fn new(timing: Timing, subtasks: u32, next_id: CheckpointId, now: Instant) -> Self {
        Self {
            timing,
            subtasks,
            next_id,
            attempt: None,
            queued: None,
            beat: now,
            hurried: None,
            ended: None,
            periodic: true,
        }
    }

    /// Takes new timing, from now on. An attempt under way keeps its timeout.
    pub(super) fn set_timing(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// Makes the next periodic attempt due at once.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.hurried = Some(now);
    }

    /// Triggers keep their beat from the begin, and the pause from the end: whichever is later.
    fn next_due(&self) -> Option<Instant> {
        let interval = self.timing.interval.filter(|_| self.periodic)?;
        let by_beat = self.hurried.unwrap_or(self.beat + interval);
        let by_pause = self.ended.map(|ended| ended + self.timing.min_pause);
        Some(by_pause.map_or(by_beat, |by_pause| by_beat.max(by_pause)))
    }

    /// Lets periodic checkpoints through, or holds them back.
    pub(super) fn set_periodic(&mut self, periodic: bool) {
        self.periodic = periodic;
    }

    /// When to come back with a tick.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.attempt {
            Some(attempt) => (!attempt.storing).then_some(attempt.deadline),
            None => self.next_due(),
        }
    }

    /// Uses up an id for an attempt that failed before it began, so that no other one is ever called by it.
    pub(super) fn spend_id(&mut self) -> CheckpointId {
        let id = self.next_id;
        self.next_id = id.next();
        id
    }

    /// Takes a waiting trigger back.
    pub(super) fn withdraw(&mut self, kind: CheckpointKind) {
        self.queued.take_if(|queued| queued.kind == kind);
    }

    /// Gives an attempt up before its own deadline, unless it was sent to the store.
    pub(super) fn give_up(&mut self, id: CheckpointId, now: Instant) -> Vec<CoordinatorAction> {
        match &self.attempt {
            Some(attempt) if attempt.id == id && !attempt.storing => {
                let failure = timed_out(attempt, now);
                self.fail(failure, now)
            }
            None | Some(_) => Vec::new(),
        }
    }

    /// The subtasks that the attempt under way waits for.
    pub(super) fn missing(&self, now: Instant) -> Vec<SlowSubtask> {
        self.attempt
            .as_ref()
            .map_or_else(Vec::new, |attempt| slow_subtasks(attempt, now))
    }

    /// A due periodic checkpoint was answered by confirming the newest one.
    pub(super) fn skipped(&mut self, now: Instant) {
        self.hurried = None;
        self.beat = now;
    }

    /// Begins the periodic attempt that was due.
    pub(super) fn begin_due(&mut self, now: Instant) -> Vec<CoordinatorAction> {
        if self.attempt.is_some() {
            return Vec::new();
        }
        vec![self.begin(CheckpointKind::Periodic, None, now)]
    }

    pub(super) fn on(&mut self, event: CoordinatorEvent, now: Instant) -> Vec<CoordinatorAction> {
        match event {
            CoordinatorEvent::Tick => self.tick(now),
            CoordinatorEvent::Trigger { kind, timeout } => self.trigger(kind, timeout, now),
            CoordinatorEvent::Prepared { id, subtask } => self.prepared(id, subtask),
            CoordinatorEvent::PrepareFailed {
                id,
                subtask,
                detail,
            } => self.prepare_failed(id, subtask, &detail, now),
            CoordinatorEvent::Stored { id } => self.stored(id, now),
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<CoordinatorAction> {
        match &self.attempt {
            None if self.next_due().is_some_and(|due| now >= due) => vec![CoordinatorAction::Due],
            Some(attempt) if !attempt.storing && now >= attempt.deadline => {
                let failure = timed_out(attempt, now);
                self.fail(failure, now)
            }
            None | Some(_) => Vec::new(),
        }
    }

    fn trigger(
        &mut self,
        kind: CheckpointKind,
        timeout: Option<Duration>,
        now: Instant,
    ) -> Vec<CoordinatorAction> {
        if self.attempt.is_none() {
            return vec![self.begin(kind, timeout, now)];
        }
        let is_first = |queued: &Queued| precedence(kind) > precedence(queued.kind);
        if self.queued.as_ref().is_none_or(is_first) {
            self.queued = Some(Queued { kind, timeout });
        }
        Vec::new()
    }

    fn prepared(&mut self, id: CheckpointId, subtask: u32) -> Vec<CoordinatorAction> {
        // An answer to an attempt that was given up is late and harmless: the next one covers it.
        let Some(attempt) = self
            .attempt
            .as_mut()
            .filter(|attempt| attempt.id == id && !attempt.storing)
        else {
            return Vec::new();
        };
        attempt.missing.remove(&subtask);
        if !attempt.missing.is_empty() {
            return Vec::new();
        }
        attempt.storing = true;
        vec![CoordinatorAction::Store { id }]
    }

    fn prepare_failed(
        &mut self,
        id: CheckpointId,
        subtask: u32,
        detail: &str,
        now: Instant,
    ) -> Vec<CoordinatorAction> {
        let Some(attempt) = self
            .attempt
            .as_ref()
            .filter(|attempt| attempt.id == id && !attempt.storing)
        else {
            return Vec::new();
        };
        let mut slowest = slow_subtasks(attempt, now);
        for slow in slowest.iter_mut().filter(|slow| slow.subtask == subtask) {
            // It has given up by now; what it did until then is what took the time.
            FAILED_AT.clone_into(&mut slow.at);
        }
        let failure = CheckpointFailure {
            code: Code::SinkError.to_string(),
            phase: "sink_flush".to_owned(),
            summary: format!("the sink could not make the records durable: {detail}"),
            slowest,
        };
        self.fail(failure, now)
    }

    fn stored(&mut self, id: CheckpointId, now: Instant) -> Vec<CoordinatorAction> {
        if self.attempt.as_ref().is_none_or(|attempt| attempt.id != id) {
            return Vec::new();
        }
        let mut actions = vec![CoordinatorAction::Complete { id }];
        self.end_attempt(now);
        actions.extend(self.begin_queued(now));
        actions
    }

    fn fail(&mut self, failure: CheckpointFailure, now: Instant) -> Vec<CoordinatorAction> {
        let Some(attempt) = &self.attempt else {
            return Vec::new();
        };
        let mut actions = vec![CoordinatorAction::Fail {
            id: attempt.id,
            failure,
        }];
        self.end_attempt(now);
        actions.extend(self.begin_queued(now));
        actions
    }

    fn end_attempt(&mut self, now: Instant) {
        if let Some(attempt) = self.attempt.take() {
            self.beat = attempt.began;
            self.ended = Some(now);
        }
    }

    fn begin_queued(&mut self, now: Instant) -> Option<CoordinatorAction> {
        let queued = self.queued.take()?;
        Some(self.begin(queued.kind, queued.timeout, now))
    }

    fn begin(
        &mut self,
        kind: CheckpointKind,
        timeout: Option<Duration>,
        now: Instant,
    ) -> CoordinatorAction {
        let id = self.spend_id();
        self.hurried = None;
        self.attempt = Some(Attempt {
            id,
            kind,
            began: now,
            deadline: now + timeout.unwrap_or(self.timing.timeout),
            missing: (0..self.subtasks).collect(),
            storing: false,
        });
        CoordinatorAction::SendBarrier { id, kind }
    }
}

/// What a subtask did whose sink could not make its part durable.
const FAILED_AT: &str = "sink-flush";

/// Which of two waiting triggers gives the attempt its kind: a stop's must not be missed, and what somebody asked for is
/// kept longer than what the interval brings.
fn precedence(kind: CheckpointKind) -> u8 {
    match kind {
        CheckpointKind::Start
        | CheckpointKind::Skip
        | CheckpointKind::Reset
        | CheckpointKind::Periodic => 0,
        CheckpointKind::Discovery => 1,
        CheckpointKind::Manual => 2,
        CheckpointKind::Stop | CheckpointKind::Failure => 3,
    }
}

fn waited_ms(attempt: &Attempt, now: Instant) -> i64 {
    let waited = now.saturating_duration_since(attempt.began).as_millis();
    i64::try_from(waited).unwrap_or(i64::MAX)
}

fn slow_subtasks(attempt: &Attempt, now: Instant) -> Vec<SlowSubtask> {
    let waiting_ms = waited_ms(attempt, now);
    let slow = attempt.missing.iter().map(|subtask| SlowSubtask {
        subtask: *subtask,
        waiting_ms,
        at: String::new(),
    });
    slow.collect()
}

fn timed_out(attempt: &Attempt, now: Instant) -> CheckpointFailure {
    let waiting_ms = waited_ms(attempt, now);
    CheckpointFailure {
        code: Code::CheckpointTimeout.to_string(),
        phase: "barrier".to_owned(),
        summary: format!(
            "{} had not answered after {waiting_ms} ms",
            match attempt.missing.len() {
                1 => "1 subtask".to_owned(),
                several => format!("{several} subtasks"),
            }
        ),
        slowest: slow_subtasks(attempt, now),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn timing() -> Timing {
        Timing {
            interval: Some(Duration::from_secs(10)),
            timeout: Duration::from_secs(60),
            min_pause: Duration::from_secs(3),
        }
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn trigger(kind: CheckpointKind) -> CoordinatorEvent {
        CoordinatorEvent::Trigger {
            kind,
            timeout: None,
        }
    }

    #[test]
    fn an_attempt_is_stored_once_every_subtask_has_answered() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 2, CheckpointId(5), start);
        let id = CheckpointId(5);
        assert_eq!(
            coordinator.on(trigger(CheckpointKind::Manual), start),
            [CoordinatorAction::SendBarrier {
                id,
                kind: CheckpointKind::Manual
            }]
        );
        assert_eq!(
            coordinator.on(CoordinatorEvent::Prepared { id, subtask: 1 }, start),
            []
        );
        assert_eq!(
            coordinator.on(CoordinatorEvent::Prepared { id, subtask: 1 }, start),
            []
        );
        assert_eq!(
            coordinator.on(CoordinatorEvent::Prepared { id, subtask: 0 }, start),
            [CoordinatorAction::Store { id }]
        );
        // The store may be away for a day: the attempt is neither failed nor followed by another.
        let tomorrow = start + seconds(86_400);
        assert_eq!(coordinator.on(CoordinatorEvent::Tick, tomorrow), []);
        assert_eq!(
            coordinator.on(CoordinatorEvent::Stored { id }, tomorrow),
            [CoordinatorAction::Complete { id }]
        );
    }

    /// FLINK-9598: attempts that fail follow each other no faster than the pause allows.
    #[test]
    fn the_pause_holds_after_a_failure_too() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, CheckpointId(1), start);
        assert_eq!(
            coordinator.on(CoordinatorEvent::Tick, start + seconds(9)),
            []
        );
        assert_eq!(
            coordinator.on(CoordinatorEvent::Tick, start + seconds(10)),
            [CoordinatorAction::Due]
        );
        assert_eq!(coordinator.begin_due(start + seconds(10)).len(), 1);
        let failed_at = start + seconds(70);
        let actions = coordinator.on(CoordinatorEvent::Tick, failed_at);
        let [CoordinatorAction::Fail { failure, .. }] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        assert_eq!(failure.code, "checkpoint-timeout");
        assert_eq!(failure.slowest.len(), 1);
        assert_eq!(
            coordinator.on(CoordinatorEvent::Tick, failed_at + seconds(2)),
            []
        );
        assert_eq!(
            coordinator.on(CoordinatorEvent::Tick, failed_at + seconds(3)),
            [CoordinatorAction::Due]
        );
    }

    #[test]
    fn a_failure_of_the_sink_names_who_and_how_long() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 3, CheckpointId(2), start);
        coordinator.on(trigger(CheckpointKind::Manual), start);
        let id = CheckpointId(2);
        coordinator.on(CoordinatorEvent::Prepared { id, subtask: 0 }, start);
        let failed = CoordinatorEvent::PrepareFailed {
            id,
            subtask: 2,
            detail: "the disk is full".to_owned(),
        };
        let actions = coordinator.on(failed, start + seconds(4));
        let [CoordinatorAction::Fail { failure, .. }] = actions.as_slice() else {
            panic!("{actions:?}");
        };
        assert_eq!(failure.phase, "sink_flush");
        let slowest: Vec<_> = failure
            .slowest
            .iter()
            .map(|slow| (slow.subtask, slow.waiting_ms, slow.at.as_str()))
            .collect();
        assert_eq!(
            slowest,
            [(1, 4_000, ""), (2, 4_000, "sink-flush")],
            "what the other one does is seen when the failure is told"
        );
    }

    #[test]
    fn triggers_during_an_attempt_share_the_next_one_and_a_stop_goes_first() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, CheckpointId(1), start);
        coordinator.on(trigger(CheckpointKind::Manual), start);
        assert_eq!(coordinator.on(trigger(CheckpointKind::Manual), start), []);
        assert_eq!(coordinator.on(trigger(CheckpointKind::Manual), start), []);
        assert_eq!(coordinator.on(trigger(CheckpointKind::Stop), start), []);
        coordinator.on(
            CoordinatorEvent::Prepared {
                id: CheckpointId(1),
                subtask: 0,
            },
            start,
        );
        assert_eq!(
            coordinator.on(
                CoordinatorEvent::Stored {
                    id: CheckpointId(1)
                },
                start
            ),
            [
                CoordinatorAction::Complete {
                    id: CheckpointId(1)
                },
                CoordinatorAction::SendBarrier {
                    id: CheckpointId(2),
                    kind: CheckpointKind::Stop
                }
            ]
        );
    }

    #[test]
    fn new_timing_counts_from_the_last_attempt() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, CheckpointId(1), start);
        let every = |interval| Timing {
            interval: Some(seconds(interval)),
            ..timing()
        };
        coordinator.set_timing(every(30));
        assert_eq!(coordinator.deadline(), Some(start + seconds(30)));
        coordinator.set_timing(every(5));
        assert_eq!(coordinator.deadline(), Some(start + seconds(5)));
    }

    #[test]
    fn without_an_interval_only_what_is_asked_for_is_attempted() {
        let start = Instant::now();
        let none = Timing {
            interval: None,
            ..timing()
        };
        let mut coordinator = CheckpointCoordinator::new(none, 1, CheckpointId(1), start);
        assert_eq!(coordinator.deadline(), None);
        let tomorrow = start + seconds(86_400);
        assert_eq!(coordinator.on(CoordinatorEvent::Tick, tomorrow), []);
        let actions = coordinator.on(trigger(CheckpointKind::Discovery), tomorrow);
        assert!(
            matches!(actions.as_slice(), [CoordinatorAction::SendBarrier { .. }]),
            "{actions:?}"
        );
    }

    #[test]
    fn the_first_periodic_attempt_may_be_made_at_once_and_the_others_keep_the_beat() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, CheckpointId(1), start);
        coordinator.hurry(start);
        assert_eq!(coordinator.deadline(), Some(start));
        assert_eq!(
            coordinator.on(CoordinatorEvent::Tick, start),
            [CoordinatorAction::Due]
        );
        coordinator.skipped(start);
        assert_eq!(coordinator.deadline(), Some(start + seconds(10)));
    }

    #[test]
    fn a_manual_trigger_gives_a_waiting_periodic_one_its_kind() {
        let start = Instant::now();
        let id = CheckpointId(1);
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, id, start);
        coordinator.on(trigger(CheckpointKind::Periodic), start);
        coordinator.on(trigger(CheckpointKind::Periodic), start);
        coordinator.on(trigger(CheckpointKind::Manual), start);
        coordinator.on(trigger(CheckpointKind::Periodic), start);
        coordinator.on(CoordinatorEvent::Prepared { id, subtask: 0 }, start);
        assert_eq!(
            coordinator.on(CoordinatorEvent::Stored { id }, start)[1],
            CoordinatorAction::SendBarrier {
                id: CheckpointId(2),
                kind: CheckpointKind::Manual
            }
        );
    }

    #[test]
    fn an_attempt_is_given_up_early_only_before_it_was_sent_to_the_store() {
        let start = Instant::now();
        let id = CheckpointId(1);
        let mut coordinator = CheckpointCoordinator::new(timing(), 2, id, start);
        coordinator.on(trigger(CheckpointKind::Stop), start);
        assert_eq!(coordinator.give_up(CheckpointId(9), start), []);
        coordinator.on(CoordinatorEvent::Prepared { id, subtask: 1 }, start);
        let actions = coordinator.give_up(id, start + seconds(1));
        let [CoordinatorAction::Fail { failure, .. }] = actions.as_slice() else {
            panic!("{actions:?}")
        };
        assert_eq!(failure.slowest.len(), 1);
        assert_eq!(failure.slowest[0].waiting_ms, 1_000);

        let id = CheckpointId(2);
        coordinator.on(trigger(CheckpointKind::Stop), start);
        for subtask in 0..2 {
            coordinator.on(CoordinatorEvent::Prepared { id, subtask }, start);
        }
        assert_eq!(coordinator.give_up(id, start), []);
    }

    #[test]
    fn a_late_answer_changes_nothing() {
        let start = Instant::now();
        let mut coordinator = CheckpointCoordinator::new(timing(), 1, CheckpointId(1), start);
        coordinator.on(trigger(CheckpointKind::Manual), start);
        coordinator.on(CoordinatorEvent::Tick, start + seconds(60));
        let late = CoordinatorEvent::Prepared {
            id: CheckpointId(1),
            subtask: 0,
        };
        assert_eq!(coordinator.on(late, start + seconds(61)), []);
        assert_eq!(
            coordinator.on(
                CoordinatorEvent::Stored {
                    id: CheckpointId(1)
                },
                start + seconds(61)
            ),
            []
        );
    }

    proptest! {
        /// Under any order of events: ids grow strictly, one attempt at a time, each ends exactly once, and nothing completes
        /// that was not answered by every subtask and stored.
        #[test]
        fn one_attempt_at_a_time_and_each_ends_once(steps in prop::collection::vec((0_u8..12, 0_u64..30, 0_i64..12, 0_u32..3), 1..200)) {
            let start = Instant::now();
            let mut now = start;
            let mut coordinator = CheckpointCoordinator::new(timing(), 3, CheckpointId(1), start);
            let mut open: Option<CheckpointId> = None;
            let mut last = CheckpointId(0);
            let mut answered: BTreeSet<(CheckpointId, u32)> = BTreeSet::new();
            let mut stored_asked: BTreeSet<CheckpointId> = BTreeSet::new();
            for (what, advance, id, subtask) in steps {
                now += seconds(advance);
                let id = CheckpointId(id);
                let mut spent = None;
                let actions = match what {
                    6 => Some(coordinator.give_up(id, now)),
                    7 => { coordinator.set_periodic(subtask == 0); None }
                    8 => { coordinator.withdraw(if subtask == 0 { CheckpointKind::Stop } else { CheckpointKind::Manual }); None }
                    9 => { spent = Some(coordinator.spend_id()); None }
                    10 => { coordinator.skipped(now); None }
                    11 => { coordinator.set_timing(Timing { interval: Some(seconds(advance + 1)), ..timing() }); None }
                    _ => None,
                };
                if let Some(spent) = spent {
                    prop_assert!(spent > last);
                    last = spent;
                }
                let event = match what {
                    0 => CoordinatorEvent::Tick,
                    1 => trigger(CheckpointKind::Manual),
                    2 => trigger(CheckpointKind::Stop),
                    3 => { answered.insert((id, subtask)); CoordinatorEvent::Prepared { id, subtask } },
                    4 => CoordinatorEvent::PrepareFailed { id, subtask, detail: String::new() },
                    5 => CoordinatorEvent::Stored { id },
                    _ => CoordinatorEvent::Tick,
                };
                // A store only answers what it was asked.
                if let CoordinatorEvent::Stored { id } = &event && !stored_asked.contains(id) { continue; }
                let mut actions = actions.unwrap_or_else(|| coordinator.on(event, now));
                // What was sent to the store is neither given up nor followed by another attempt.
                if open.is_some_and(|open| stored_asked.contains(&open)) {
                    let goes_on = actions.iter().all(|action| !matches!(action, CoordinatorAction::Fail { .. }));
                    prop_assert!(goes_on, "{:?}", actions);
                }
                if actions == [CoordinatorAction::Due] { actions = coordinator.begin_due(now); }
                for action in actions {
                    match action {
                        CoordinatorAction::Due => prop_assert!(false, "due beside other actions"),
                        CoordinatorAction::SendBarrier { id, .. } => {
                            prop_assert_eq!(open, None);
                            prop_assert!(id > last);
                            last = id;
                            open = Some(id);
                        }
                        CoordinatorAction::Store { id } => {
                            prop_assert_eq!(open, Some(id));
                            for subtask in 0..3 { prop_assert!(answered.contains(&(id, subtask))); }
                            stored_asked.insert(id);
                        }
                        CoordinatorAction::Complete { id } => {
                            prop_assert_eq!(open.take(), Some(id));
                            prop_assert!(stored_asked.contains(&id));
                        }
                        CoordinatorAction::Fail { id, .. } => prop_assert_eq!(open.take(), Some(id)),
                    }
                }
            }
        }
    }
}
