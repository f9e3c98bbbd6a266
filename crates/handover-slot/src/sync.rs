//! The primitives under the handover: the standard library's, or loom's with the feature `loom`.
//!
//! Only here does the crate know which of the two it runs on. A poisoned lock is taken as it is: every critical section
//! of this crate leaves the state consistent at each point where foreign code (a `Clone`, a waker) could panic, so there
//! is nothing to protect the other side from, and a panic on one side must not become a second one on the other.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(feature = "loom")]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "loom"))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Locks, whether or not a panic poisoned the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the next notification, which may be a spurious one.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `keep_waiting` says no, or `timeout` has passed.
#[cfg(not(feature = "loom"))]
pub(crate) fn wait_timeout_while<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
    keep_waiting: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    let (guard, _timed_out) = condvar
        .wait_timeout_while(guard, timeout, keep_waiting)
        .unwrap_or_else(PoisonError::into_inner);
    guard
}

/// Waits until `keep_waiting` says no.
///
/// Loom has no clock, so the time-out never comes: a wake-up that got lost shows as a deadlock of the model instead of
/// being covered by the time-out.
#[cfg(feature = "loom")]
pub(crate) fn wait_timeout_while<'a, T>(
    condvar: &Condvar,
    mut guard: MutexGuard<'a, T>,
    _timeout: Duration,
    mut keep_waiting: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    while keep_waiting(&mut guard) {
        guard = wait(condvar, guard);
    }
    guard
}
