//! Waits for conditions, never for time: a look every few milliseconds until a deadline, and the last complaint is the failure.

use std::{
    fmt::Display,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long a test waits for what should be there within a blink. Generous, because the machine may be busy.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Looks until there is something to return.
///
/// # Panics
/// With the last complaint, at the deadline.
pub(crate) fn eventually<T, E: Display>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> Result<T, E>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        match look() {
            Ok(found) => return found,
            Err(complaint) if Instant::now() > deadline => {
                panic!("not within {within:?}: {what}: {complaint}")
            }
            Err(_) => breathe(Duration::from_millis(25)),
        }
    }
}

/// Looks again and again for the whole of `span`; `look` panics when something is wrong. For what must *not* happen.
pub(crate) fn throughout(span: Duration, mut look: impl FnMut()) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        look();
        breathe(Duration::from_millis(200));
    }
}

/// The pause between two looks, or between two records of a load.
#[expect(
    clippy::disallowed_methods,
    reason = "only paces; nothing is synchronised by it"
)]
pub(crate) fn breathe(pause: Duration) {
    std::thread::sleep(pause);
}

/// The wall clock in milliseconds, as Kafka counts them.
#[expect(
    clippy::disallowed_methods,
    reason = "tests use the real clock as the broker does"
)]
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970");
    i64::try_from(since.as_millis()).expect("a clock before the year 292 million")
}

/// An instant as the API takes it.
pub(crate) fn rfc3339(ms: i64) -> String {
    chrono::DateTime::from_timestamp_millis(ms)
        .expect("an instant")
        .to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// Takes a lock, also after another test panicked with it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
