use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::code::Code;

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
}

fn cause(words: &str, second: i64) -> JobFailure {
    JobFailure {
        code: Code::Panicked,
        summary: words.to_owned(),
        record: None,
        phase: None,
        first_seen: at(second),
    }
}

fn read(value: &Value) -> Result<RestartStrategy, Vec<String>> {
    let mut errors = Vec::new();
    let read = RestartStrategy::read(ObjectReader::open(value, "/restart", &mut errors));
    if errors.is_empty() {
        return Ok(read);
    }
    Err(errors.into_iter().map(|error| error.pointer).collect())
}

/// Crashes one after the other, each so long after the beginning and after so long a run: the pauses in milliseconds, and
/// `None` where it is given up.
fn pauses(strategy: &RestartStrategy, crashes: &[(i64, u64)]) -> Vec<Option<u128>> {
    let mut known = None;
    let mut pauses = Vec::new();
    for (second, ran_for) in crashes {
        let (next, decision) = CrashLoop::after_crash(
            known,
            strategy,
            &cause("again", *second),
            Duration::from_secs(*ran_for),
            at(*second),
            0.5,
        );
        pauses.push(match decision {
            Decision::RestartAfter(pause) => Some(pause.as_millis()),
            Decision::GiveUp(_) => None,
        });
        known = Some(next);
    }
    pauses
}

#[test]
fn each_strategy_decides_as_its_table_says() {
    let fixed = json!({"strategy": "fixed-delay", "attempts": 2, "delay": "3s"});
    let rate =
        json!({"strategy": "failure-rate", "max_failures": 2, "interval": "1m", "delay": "5s"});
    let exponential = json!({"strategy": "exponential", "initial": "1s", "max": "5s", "multiplier": 2, "jitter": 0.1, "reset_after": "10m"});
    type Row<'a> = (&'a Value, &'a [(i64, u64)], &'a [Option<u128>]);
    let rows: [Row<'_>; 7] = [
        (&json!({"strategy": "none"}), &[(0, 9_000)], &[None]),
        (
            &fixed,
            &[(0, 1), (4, 1), (8, 1)],
            &[Some(3_000), Some(3_000), None],
        ),
        // A run that lasts an hour ends the loop, and the restarts count anew.
        (
            &fixed,
            &[(0, 1), (4, 1), (4_000, 3_600), (4_004, 1), (4_008, 1)],
            &[Some(3_000), Some(3_000), Some(3_000), Some(3_000), None],
        ),
        (
            &rate,
            &[(0, 1), (30, 1), (59, 1)],
            &[Some(5_000), Some(5_000), None],
        ),
        // The first one no longer counts when the third comes.
        (
            &rate,
            &[(0, 1), (30, 1), (60, 1), (80, 1)],
            &[Some(5_000), Some(5_000), Some(5_000), None],
        ),
        (
            &exponential,
            &[(0, 1), (2, 1), (6, 1), (11, 1), (17, 1)],
            &[
                Some(1_000),
                Some(2_000),
                Some(4_000),
                Some(5_000),
                Some(5_000),
            ],
        ),
        (
            &exponential,
            &[(0, 1), (2, 599), (700, 600)],
            &[Some(1_000), Some(2_000), Some(1_000)],
        ),
    ];
    for (strategy, crashes, expected) in rows {
        let strategy = read(strategy).unwrap();
        assert_eq!(pauses(&strategy, crashes), expected, "{strategy:?}");
    }
}

#[test]
fn jitter_makes_a_pause_longer_or_shorter_and_never_longer_than_the_longest() {
    let strategy =
        read(&json!({"strategy": "exponential", "initial": "10s", "max": "10s", "jitter": 0.5}))
            .unwrap();
    for (dice, expected) in [(0.0, 5_000), (0.25, 7_500), (0.5, 10_000), (0.99, 10_000)] {
        let decision = strategy.pause_after(0, &[at(0)], dice);
        assert_eq!(
            decision,
            Decision::RestartAfter(Duration::from_millis(expected)),
            "{dice}"
        );
    }
}

#[test]
fn a_loop_keeps_its_first_cause_until_it_is_over() {
    let strategy = RestartStrategy::default();
    let crash = |before, words, second, ran_for| {
        CrashLoop::after_crash(
            before,
            &strategy,
            &cause(words, second),
            Duration::from_secs(ran_for),
            at(second),
            0.5,
        )
        .0
    };
    let first = crash(None, "the cause", 0, 5);
    let second = crash(Some(first), "what followed", 7, 5);
    assert_eq!(second.first_cause, cause("the cause", 0));
    assert_eq!(second.last_cause, cause("what followed", 7));
    assert_eq!((second.restarts, second.failures.len()), (2, 2));
    assert_eq!(
        second.next_attempt_at,
        Some(at(8) + TimeDelta::milliseconds(500))
    );
    let after_a_while = crash(Some(second), "something else", 9_000, 3_600);
    assert_eq!(after_a_while.first_cause, cause("something else", 9_000));
    assert_eq!(after_a_while.restarts, 1);
}

#[test]
fn a_strategy_reads_to_all_its_faults() {
    assert_eq!(
        read(&json!({"strategy": "exponential"})),
        Ok(RestartStrategy::default())
    );
    for (value, pointers) in [
        (json!({}), &["/restart/strategy"][..]),
        (json!({"strategy": "always"}), &["/restart/strategy"]),
        (
            json!({"strategy": "none", "attempts": 1}),
            &["/restart/attempts"],
        ),
        (json!({"strategy": "fixed-delay"}), &["/restart/attempts"]),
        (
            json!({"strategy": "fixed-delay", "attempts": 0, "delay": "2d"}),
            &["/restart/attempts", "/restart/delay"],
        ),
        (
            json!({"strategy": "failure-rate", "max_failures": 101, "interval": "1ms"}),
            &["/restart/max_failures", "/restart/interval"],
        ),
        (
            json!({"strategy": "exponential", "initial": "2m", "multiplier": 0.5, "jitter": 2, "factor": 2}),
            &[
                "/restart/max",
                "/restart/multiplier",
                "/restart/jitter",
                "/restart/factor",
            ],
        ),
    ] {
        assert_eq!(read(&value).unwrap_err(), pointers, "{value}");
    }
    for strategy in [
        RestartStrategy::default(),
        read(&json!({"strategy": "failure-rate", "max_failures": 3})).unwrap(),
    ] {
        let shown = serde_json::to_value(&strategy).unwrap();
        assert_eq!(read(&shown), Ok(strategy));
    }
}

fn some_strategy() -> impl Strategy<Value = RestartStrategy> {
    let short = || (1_u64..5_000).prop_map(|ms| HumanDuration(Duration::from_millis(ms)));
    prop_oneof![
        Just(RestartStrategy::None),
        (1_u32..5, short())
            .prop_map(|(attempts, delay)| RestartStrategy::FixedDelay { attempts, delay }),
        (1_u32..5, 1_u64..300, short()).prop_map(|(max_failures, seconds, delay)| {
            RestartStrategy::FailureRate {
                max_failures,
                interval: HumanDuration::from_secs(seconds),
                delay,
            }
        }),
        (short(), short(), 1.0..4.0, 0.0..1.0, 1_u64..300).prop_map(
            |(one, other, multiplier, jitter, seconds)| RestartStrategy::Exponential {
                initial: one.min(other),
                max: one.max(other),
                multiplier: Factor(multiplier),
                jitter: Factor(jitter),
                reset_after: HumanDuration::from_secs(seconds),
            }
        ),
    ]
}

proptest! {
    /// Whatever crashes come: pauses stay within their bounds, counts only grow within a loop, the first cause stays, what is
    /// stored stays small, and the strategy's own promise holds.
    #[test]
    fn laws_of_a_loop(
        strategy in some_strategy(),
        crashes in prop::collection::vec((1_i64..200, 0.0..1.0), 1..150),
    ) {
        let mut known: Option<CrashLoop> = None;
        let mut now = 0;
        let mut restarted_at = Vec::new();
        for (index, (ran_for, dice)) in crashes.into_iter().enumerate() {
            now += ran_for;
            let ran_for = Duration::from_secs(u64::try_from(ran_for).unwrap());
            let goes_on = known.is_some() && ran_for < strategy.loop_ends_after();
            let new = cause(&index.to_string(), now);
            let (next, decision) =
                CrashLoop::after_crash(known.clone(), &strategy, &new, ran_for, at(now), dice);
            prop_assert_eq!(&next.last_cause, &new);
            prop_assert!(next.failures.len() <= 101);
            if let Some(known) = known.filter(|_| goes_on) {
                prop_assert_eq!(&next.first_cause, &known.first_cause);
                prop_assert!(next.restarts >= known.restarts);
            } else {
                prop_assert_eq!(&next.first_cause, &new);
                prop_assert!(next.restarts <= 1);
                restarted_at.clear();
            }
            match (&strategy, decision) {
                (RestartStrategy::None, decision) => prop_assert!(matches!(decision, Decision::GiveUp(_))),
                (_, Decision::GiveUp(_)) => prop_assert_eq!(next.next_attempt_at, None),
                (_, Decision::RestartAfter(pause)) => {
                    restarted_at.push(now);
                    prop_assert!(next.next_attempt_at.unwrap() >= at(now));
                    match &strategy {
                        RestartStrategy::FixedDelay { attempts, delay } => {
                            prop_assert!(next.restarts <= *attempts);
                            prop_assert_eq!(pause, delay.0);
                        }
                        RestartStrategy::FailureRate { max_failures, interval, .. } => {
                            let seconds = i64::try_from(interval.0.as_secs()).unwrap();
                            let within = restarted_at.iter().filter(|at| **at > now - seconds).count();
                            prop_assert!(within <= usize::try_from(*max_failures).unwrap());
                        }
                        RestartStrategy::Exponential { initial, max, jitter, .. } => {
                            prop_assert!(pause <= max.0);
                            let least = initial.0.as_secs_f64() * (1.0 - jitter.0) - 1e-6;
                            prop_assert!(pause.as_secs_f64() >= least);
                        }
                        RestartStrategy::None => {}
                    }
                }
            }
            known = Some(next);
        }
    }
}
