//! When a job that crashed is started again by itself, and what is kept of a crash loop.
//!
//! A crash is what is neither infrastructure (waited for without end) nor deterministic (needs a decision at once): a panic,
//! a thread that died, a bug. Whether the same would happen again nobody knows, so a strategy of Flink's says how often it is
//! tried and after which pause.
//!
//! Crashes that follow each other are one *loop*. Its first cause is kept beside the newest, because what a second run dies
//! of is often only what the first one left behind. A loop is over when a run has lasted ([`RestartStrategy::loop_ends_after`]),
//! or when an operator has started or stopped the job.
//!
//! Everything here is pure: the time and the dice come in.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{duration::HumanDuration, job_status::JobFailure, reader::ObjectReader};

const DAY: Duration = Duration::from_secs(86_400);
/// The longest time after which a loop may count as over.
const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// The most restarts that a strategy may count.
const MOST_RESTARTS: u32 = 1_000_000;
/// The largest `max_failures`: their times are kept with the job.
const MOST_FAILURES: u32 = 100;
/// A run that has lasted this long has ended a loop whose strategy does not say otherwise; Flink's
/// `restart-strategy.exponential-delay.reset-backoff-threshold`.
const LASTING: HumanDuration = HumanDuration::from_secs(3_600);

/// What follows when a job crashes (Flink's restart strategies). It changes while the job runs, from the next crash on.
///
/// Brokers, stores and targets that are away do not count: they are waited for whatever stands here. Nor do failures that
/// would be the same again, like a record that cannot be decoded: they need a decision at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "strategy", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RestartStrategy {
    /// The job fails at the first crash.
    None,
    /// A number of restarts, each after the same pause.
    FixedDelay {
        /// Restarts in a loop until the job fails.
        #[schema(minimum = 1, maximum = 1_000_000)]
        attempts: u32,
        /// The pause before each.
        delay: HumanDuration,
    },
    /// As many restarts as it takes, unless crashes come too often.
    FailureRate {
        /// Crashes within `interval` that are followed by a restart; one more fails the job.
        #[schema(minimum = 1, maximum = 100)]
        max_failures: u32,
        /// In which time they are counted.
        interval: HumanDuration,
        /// The pause before each restart.
        delay: HumanDuration,
    },
    /// As many restarts as it takes, each after a longer pause.
    Exponential {
        /// The first pause.
        initial: HumanDuration,
        /// The longest pause.
        max: HumanDuration,
        /// How much longer each pause is than the one before.
        #[schema(value_type = f64, minimum = 1, maximum = 100)]
        multiplier: Factor,
        /// By which part of itself a pause is made longer or shorter at random, so that jobs do not come back in step.
        #[schema(value_type = f64, minimum = 0, maximum = 1)]
        jitter: Factor,
        /// How long a run must last for the pauses to begin with the first one again.
        reset_after: HumanDuration,
    },
}

/// A number that is no NaN: what JSON can hold.
///
/// It is read to the nearest millionth, so that what is shown, sent again and stored stays what it is: the last digits of
/// longer ones are not kept by every reader of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Factor(pub f64);

impl<'de> Deserialize<'de> for Factor {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = f64::deserialize(deserializer)?;
        Ok(Self((read * 1e6).round() / 1e6))
    }
}

/// JSON holds no NaN, so every factor equals itself.
impl Eq for Factor {}

impl Default for RestartStrategy {
    /// Flink's default since 1.20, with its values.
    fn default() -> Self {
        Self::Exponential {
            initial: HumanDuration::from_secs(1),
            max: HumanDuration::from_secs(60),
            multiplier: Factor(1.5),
            jitter: Factor(0.1),
            reset_after: LASTING,
        }
    }
}

impl RestartStrategy {
    /// The word of the strategy.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::FixedDelay { .. } => "fixed-delay",
            Self::FailureRate { .. } => "failure-rate",
            Self::Exponential { .. } => "exponential",
        }
    }

    /// How long a run must last for the crashes before it to be forgotten.
    #[must_use]
    pub fn loop_ends_after(&self) -> Duration {
        match self {
            Self::None | Self::FixedDelay { .. } => LASTING.0,
            Self::FailureRate { interval, .. } => interval.0,
            Self::Exponential { reset_after, .. } => reset_after.0,
        }
    }

    /// Reads the member of a spec. Faults are left with the reader, and then it reads as the default.
    pub(super) fn read(mut reader: ObjectReader<'_>) -> Self {
        let word: Option<String> = reader.required(
            "strategy",
            "one of none, fixed-delay, failure-rate, exponential",
        );
        let read = match word.as_deref() {
            Some("none") => Self::None,
            Some("fixed-delay") => read_fixed_delay(&mut reader),
            Some("failure-rate") => read_failure_rate(&mut reader),
            Some("exponential") => read_exponential(&mut reader),
            Some(other) => {
                let message =
                    format!("'{other}' is none of none, fixed-delay, failure-rate, exponential");
                reader.fault("strategy", message);
                // What its members would have to be is not known.
                return Self::default();
            }
            None => return Self::default(),
        };
        reader.finish();
        read
    }

    /// What follows a crash, `restarts` of them having been made in this loop, this one included in `failures`.
    fn pause_after(&self, restarts: u32, failures: &[DateTime<Utc>], dice: f64) -> Decision {
        match self {
            Self::None => Decision::GiveUp("the restart strategy is none".to_owned()),
            Self::FixedDelay { attempts, .. } if restarts >= *attempts => {
                Decision::GiveUp(format!("it was restarted {}", times(*attempts)))
            }
            Self::FixedDelay { delay, .. } => Decision::RestartAfter(delay.0),
            Self::FailureRate {
                max_failures,
                interval,
                delay,
            } => {
                let newest = failures.last().copied().unwrap_or_default();
                let begin = newest - TimeDelta::milliseconds(interval.as_millis());
                let within = failures.iter().filter(|at| **at > begin).count();
                if within > usize::try_from(*max_failures).unwrap_or(usize::MAX) {
                    Decision::GiveUp(format!("it crashed {within} times within {interval}"))
                } else {
                    Decision::RestartAfter(delay.0)
                }
            }
            Self::Exponential {
                initial,
                max,
                multiplier,
                jitter,
                ..
            } => {
                let grown = multiplier
                    .0
                    .powi(i32::try_from(restarts).unwrap_or(i32::MAX));
                let pause = (initial.0.as_secs_f64() * grown).min(max.0.as_secs_f64());
                let shaken = pause * jitter.0.mul_add(dice.mul_add(2.0, -1.0), 1.0);
                let pause = shaken.clamp(0.0, max.0.as_secs_f64());
                Decision::RestartAfter(Duration::from_secs_f64(pause))
            }
        }
    }
}

fn times(number: u32) -> String {
    if number == 1 {
        "once".to_owned()
    } else {
        format!("{number} times")
    }
}

/// Reads a duration and holds it to its bounds.
fn duration(
    reader: &mut ObjectReader<'_>,
    name: &'static str,
    default: HumanDuration,
    (least, most): (Duration, Duration),
) -> HumanDuration {
    let read = reader.or(name, default);
    if read.0 < least || read.0 > most {
        let (least, most) = (HumanDuration(least), HumanDuration(most));
        reader.fault(name, format!("must lie between {least} and {most}"));
        return default;
    }
    read
}

fn number(reader: &mut ObjectReader<'_>, name: &'static str, remedy: &str, most: u32) -> u32 {
    let read: Option<u32> = reader.required(name, remedy);
    if read.is_some_and(|read| !(1..=most).contains(&read)) {
        reader.fault(name, format!("must lie between 1 and {most}"));
    }
    read.unwrap_or(1)
}

fn factor(
    reader: &mut ObjectReader<'_>,
    name: &'static str,
    default: Factor,
    (least, most): (f64, f64),
) -> Factor {
    let read = reader.or(name, default);
    if !(least..=most).contains(&read.0) {
        reader.fault(name, format!("must lie between {least} and {most}"));
        return default;
    }
    read
}

fn read_fixed_delay(reader: &mut ObjectReader<'_>) -> RestartStrategy {
    RestartStrategy::FixedDelay {
        attempts: number(reader, "attempts", "how many restarts", MOST_RESTARTS),
        delay: duration(
            reader,
            "delay",
            HumanDuration::from_secs(1),
            (Duration::ZERO, DAY),
        ),
    }
}

fn read_failure_rate(reader: &mut ObjectReader<'_>) -> RestartStrategy {
    let remedy = "how many crashes within `interval` are followed by a restart";
    RestartStrategy::FailureRate {
        max_failures: number(reader, "max_failures", remedy, MOST_FAILURES),
        interval: duration(
            reader,
            "interval",
            HumanDuration::from_secs(60),
            (Duration::from_secs(1), MONTH),
        ),
        delay: duration(
            reader,
            "delay",
            HumanDuration::from_secs(1),
            (Duration::ZERO, DAY),
        ),
    }
}

fn read_exponential(reader: &mut ObjectReader<'_>) -> RestartStrategy {
    let least = Duration::from_millis(1);
    let initial = duration(reader, "initial", HumanDuration::from_secs(1), (least, DAY));
    let max = duration(reader, "max", HumanDuration::from_secs(60), (least, DAY));
    if max < initial {
        reader.fault(
            "max",
            format!("must not be shorter than initial ({initial})"),
        );
    }
    RestartStrategy::Exponential {
        initial,
        max,
        multiplier: factor(reader, "multiplier", Factor(1.5), (1.0, 100.0)),
        jitter: factor(reader, "jitter", Factor(0.1), (0.0, 1.0)),
        reset_after: duration(
            reader,
            "reset_after",
            LASTING,
            (Duration::from_secs(1), MONTH),
        ),
    }
}

/// What follows a crash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The job is started again after this pause.
    RestartAfter(Duration),
    /// The job fails, for this reason.
    GiveUp(String),
}

/// Crashes that follow each other; kept with the job, over the server's death too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashLoop {
    /// Restarts in this loop, the one that is waited for included.
    pub restarts: u32,
    /// What the loop began with.
    pub first_cause: JobFailure,
    /// What the newest run ended with.
    pub last_cause: JobFailure,
    /// When the newest crashes were, oldest first; as many as a failure rate may count, and one more.
    pub failures: Vec<DateTime<Utc>>,
    /// When the next run begins; `None` while it runs, and when the strategy has given up.
    pub next_attempt_at: Option<DateTime<Utc>>,
}

impl CrashLoop {
    /// The pause before the next run, in words: which restart it is, when, and why.
    #[must_use]
    pub fn pause(&self) -> String {
        let at = self.next_attempt_at.map_or_else(String::new, |at| {
            format!(
                " begins at {}",
                at.to_rfc3339_opts(SecondsFormat::Secs, true)
            )
        });
        let first = if self.restarts > 1 {
            format!(
                "; the first of these crashes was: {}",
                self.first_cause.summary
            )
        } else {
            String::new()
        };
        format!(
            "restart {}{at} after a crash: {}{first}",
            self.restarts, self.last_cause.summary
        )
    }

    /// What follows a crash: the loop as it is now, and the decision.
    ///
    /// `ran_for` is how long the crashed run has lasted. `dice` lies in `0..1`.
    #[must_use]
    pub fn after_crash(
        before: Option<Self>,
        strategy: &RestartStrategy,
        cause: &JobFailure,
        ran_for: Duration,
        now: DateTime<Utc>,
        dice: f64,
    ) -> (Self, Decision) {
        let before = before.filter(|_| ran_for < strategy.loop_ends_after());
        let mut this = match before {
            Some(before) => Self {
                last_cause: cause.clone(),
                ..before
            },
            None => Self {
                restarts: 0,
                first_cause: cause.clone(),
                last_cause: cause.clone(),
                failures: Vec::new(),
                next_attempt_at: None,
            },
        };
        this.failures.push(now);
        let kept = usize::try_from(MOST_FAILURES)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let superfluous = this.failures.len().saturating_sub(kept);
        this.failures.drain(..superfluous);
        let decision = strategy.pause_after(this.restarts, &this.failures, dice);
        this.next_attempt_at = match &decision {
            Decision::RestartAfter(pause) => {
                this.restarts = this.restarts.saturating_add(1);
                TimeDelta::from_std(*pause).ok().map(|pause| now + pause)
            }
            Decision::GiveUp(_) => None,
        };
        (this, decision)
    }
}

#[cfg(test)]
mod tests;
