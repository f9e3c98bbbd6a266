//! Points at which the program can be made to die, as if by `kill -9`, to show that it mends what it leaves behind.
//!
//! `HANDOVER_CRASH_AT=<point>` has the process end itself the first time it comes to that point, `<point>:<n>` the n-th time:
//! no destructor, no last word, no flush. A release build knows no crash points: it ignores the variable, and the calls are
//! compiled away.
//!
//! `HANDOVER_PANIC_AT=<point>:<n>` has the code panic there instead, the first n times that this process comes to the point:
//! a bug, to show what a job does about one. Several threads may come to a point, so all of them together n times.
//!
//! A point is one call where something has happened or is about to, and names what has happened by then. Where a write has
//! two ends, there are points on both sides of it: what counts is the moment between its effect and the knowledge of it.

use std::sync::{
    OnceLock,
    atomic::{AtomicU32, Ordering},
};

/// Only where assertions are compiled in too.
const KNOWN_TO_THIS_BUILD: bool = cfg!(debug_assertions);

/// The environment variable.
pub const VARIABLE: &str = "HANDOVER_CRASH_AT";

/// The environment variable of points at which the code panics.
pub const PANIC_VARIABLE: &str = "HANDOVER_PANIC_AT";

static ARMED: OnceLock<Armed> = OnceLock::new();
static ARMED_TO_PANIC: OnceLock<Armed> = OnceLock::new();

macro_rules! crash_points {
    ($($(#[$doc:meta])* $point:ident = $name:literal,)*) => {
        /// See the module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum CrashPoint {
            $($(#[$doc])* $point,)*
        }

        impl CrashPoint {
            /// All of them, in the order in which a job comes to them.
            pub const ALL: &[Self] = &[$(Self::$point,)*];

            /// Its name in the variable.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => $name,)*
                }
            }
        }
    };
}

crash_points! {
    /// A start: the lease is taken, under a new epoch.
    LeaseTaken = "lease-taken",
    /// A start: the sink is claimed for the epoch.
    SinkClaimed = "sink-claimed",
    /// A start: the positions are decided and not stored.
    BeforeStartStored = "before-start-stored",
    /// A start: the `start` checkpoint is stored, and nobody knows yet.
    StartStored = "start-stored",
    /// A run: the sink has heard where a subtask's partitions begin, and nothing is read yet.
    SinkAssigned = "sink-assigned",
    /// A run: the sink has taken a batch, and the position does not say so.
    BatchWritten = "batch-written",
    /// A checkpoint: its barrier has reached a subtask, and the sink is not asked yet.
    BeforeSinkPrepared = "before-sink-prepared",
    /// Inside a sink that keeps progress: everything is sent, and the target's transaction is not committed.
    BeforeSinkCommitted = "before-sink-committed",
    /// Inside a sink that keeps progress: the target has committed, and nobody knows yet.
    SinkCommitted = "sink-committed",
    /// A checkpoint: the sink has made a subtask's records durable, and the job does not know yet.
    SinkPrepared = "sink-prepared",
    /// A checkpoint: all subtasks have answered, and nothing is stored.
    BeforeCheckpointStored = "before-checkpoint-stored",
    /// A checkpoint: it is stored, and nobody knows yet.
    CheckpointStored = "checkpoint-stored",
    /// A checkpoint: it is complete, and the group has not heard of it.
    BeforeGroupCommitted = "before-group-committed",
    /// A checkpoint: the group has its offsets, and the history does not say so.
    GroupCommitted = "group-committed",
    /// A stop: the run has ended, and the store still shows it.
    BeforeStopSettled = "before-stop-settled",
    /// A stop: the store has the end of the run and of the operation, and nobody knows yet.
    StopSettled = "stop-settled",
}

impl CrashPoint {
    /// Says that the program has come to this point. Does not return when it is the one to die at.
    ///
    /// # Panics
    /// When it is the one to panic at.
    #[inline]
    pub fn reached(self) {
        if KNOWN_TO_THIS_BUILD
            && let Some(armed) = ARMED_TO_PANIC.get()
            && armed.is_left(self)
        {
            self.panic();
        }
        if KNOWN_TO_THIS_BUILD
            && let Some(armed) = ARMED.get()
            && armed.is_last(self)
        {
            rdkafka_ext::kill_this_process();
        }
    }

    #[expect(clippy::panic, reason = "the variable asks for it")]
    fn panic(self) {
        panic!("{PANIC_VARIABLE} names {}", self.name());
    }
}

/// The value of the variable names no crash point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{variable}={value}: not <point> or <point>:<n>, where <point> is one of {}",
    names()
)]
pub struct NoCrashPoint {
    variable: &'static str,
    value: String,
}

fn names() -> String {
    let names: Vec<&str> = CrashPoint::ALL.iter().map(|point| point.name()).collect();
    names.join(", ")
}

/// Takes the value of the variable, once and before anything begins. A release build does not look at it.
///
/// # Errors
/// When it names no point: a test would wait for a crash that never comes.
pub fn arm(value: Option<&str>) -> Result<(), NoCrashPoint> {
    let Some(armed) = read(KNOWN_TO_THIS_BUILD, VARIABLE, value)? else {
        return Ok(());
    };
    tracing::warn!(
        point = armed.point.name(),
        "the process will end itself at a crash point"
    );
    // Armed before: the first one stays.
    let _first = ARMED.set(armed);
    Ok(())
}

/// Takes the value of the other variable, as [`arm`] does.
///
/// # Errors
/// When it names no point.
pub fn arm_panics(value: Option<&str>) -> Result<(), NoCrashPoint> {
    let Some(armed) = read(KNOWN_TO_THIS_BUILD, PANIC_VARIABLE, value)? else {
        return Ok(());
    };
    tracing::warn!(point = armed.point.name(), "the code will panic at a point");
    // Armed before: the first one stays.
    let _first = ARMED_TO_PANIC.set(armed);
    Ok(())
}

fn read(
    known_to_the_build: bool,
    variable: &'static str,
    value: Option<&str>,
) -> Result<Option<Armed>, NoCrashPoint> {
    let Some(value) = value.filter(|_| known_to_the_build) else {
        return Ok(None);
    };
    let (name, times) = match value.split_once(':') {
        Some((name, times)) => (name, times.parse().unwrap_or(0)),
        None => (value, 1),
    };
    let point = CrashPoint::ALL.iter().find(|point| point.name() == name);
    match point {
        Some(point) if times > 0 => Ok(Some(Armed {
            point: *point,
            times_left: AtomicU32::new(times),
        })),
        _ => Err(NoCrashPoint {
            variable,
            value: value.to_owned(),
        }),
    }
}

#[derive(Debug)]
struct Armed {
    point: CrashPoint,
    times_left: AtomicU32,
}

impl Armed {
    /// Whether the point was reached no more often than it takes.
    fn is_left(&self, point: CrashPoint) -> bool {
        self.point == point
            && self
                .times_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
    }

    /// Whether the point was reached as often as it takes.
    fn is_last(&self, point: CrashPoint) -> bool {
        self.point == point
            && self
                .times_left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    left.checked_sub(1)
                })
                == Ok(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_named_with_the_times_it_is_passed() {
        let armed = read(true, VARIABLE, Some("lease-taken")).unwrap().unwrap();
        assert!(!armed.is_last(CrashPoint::SinkClaimed));
        assert!(armed.is_last(CrashPoint::LeaseTaken));
        let armed = read(true, VARIABLE, Some("checkpoint-stored:3"))
            .unwrap()
            .unwrap();
        let reached: Vec<bool> = (0..5)
            .map(|_| armed.is_last(CrashPoint::CheckpointStored))
            .collect();
        assert_eq!(reached, [false, false, true, false, false]);
        let armed = read(true, PANIC_VARIABLE, Some("batch-written:2"))
            .unwrap()
            .unwrap();
        let panics: Vec<bool> = (0..4)
            .map(|_| armed.is_left(CrashPoint::BatchWritten))
            .collect();
        assert_eq!(panics, [true, true, false, false]);
        assert!(read(true, VARIABLE, None).unwrap().is_none());
    }

    #[test]
    fn what_is_no_point_is_refused_with_those_that_are() {
        for value in [
            "",
            "lease-token",
            "lease-taken:",
            "lease-taken:0",
            "lease-taken:x",
        ] {
            let error = read(true, VARIABLE, Some(value)).unwrap_err().to_string();
            assert!(
                error.contains("before-start-stored, start-stored"),
                "{error}"
            );
        }
    }

    /// A release build differs in this one constant; `scripts/bench` runs one with the variable set.
    #[test]
    fn a_build_without_crash_points_does_not_look_at_the_variable() {
        for value in ["lease-taken", "nonsense"] {
            assert!(read(false, VARIABLE, Some(value)).unwrap().is_none());
        }
        assert_eq!(KNOWN_TO_THIS_BUILD, cfg!(debug_assertions));
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = CrashPoint::ALL.iter().map(|point| point.name()).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
