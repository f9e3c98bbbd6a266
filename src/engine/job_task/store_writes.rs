//! Protected writes that are repeated until the store has said yes or no.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::engine::{backoff::Backoff, error::StoreError};

/// Longest pause between attempts at the store.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// The writes that the store did not answer at their last attempt, each with its own words: that another write went
/// through says nothing about them.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreWrites(Arc<Mutex<Unanswered>>);

#[derive(Debug, Default)]
struct Unanswered {
    next_key: u64,
    problems: BTreeMap<u64, String>,
    /// One of them heard that the lease is lost: none is sent again.
    is_fenced: bool,
}

impl StoreWrites {
    /// Begins a write.
    pub(super) fn begin(&self) -> StoreWrite {
        let mut unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.next_key += 1;
        StoreWrite {
            key: unanswered.next_key,
            writes: self.clone(),
        }
    }

    /// What the store last failed with, if a write waits for it.
    pub(super) fn problem(&self) -> Option<String> {
        let unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.problems.values().next_back().cloned()
    }

    /// Whether this write was sent, not answered, and is repeated.
    pub(super) fn is_unanswered(&self, key: u64) -> bool {
        let unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.problems.contains_key(&key)
    }

    fn is_fenced(&self) -> bool {
        let unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.is_fenced
    }

    fn fence(&self) {
        let mut unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered.is_fenced = true;
    }

    fn note(&self, key: u64, problem: Option<String>) {
        let mut unanswered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match problem {
            Some(detail) => unanswered.problems.insert(key, detail),
            None => unanswered.problems.remove(&key),
        };
    }
}

/// One write, repeated until its outcome is known.
#[derive(Debug)]
pub(super) struct StoreWrite {
    key: u64,
    writes: StoreWrites,
}

impl StoreWrite {
    /// By which [`StoreWrites::is_unanswered`] is asked.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Repeats the write until the store has said yes or no. Every one of them may be repeated after an unknown outcome.
    ///
    /// # Errors
    /// The store's no.
    pub(super) async fn until_known<F, Fut>(self, mut write: F) -> Result<(), StoreError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<(), StoreError>>,
    {
        let mut backoff = Backoff::up_to(STORE_PAUSE);
        loop {
            if self.writes.is_fenced() {
                return Err(StoreError::Fenced);
            }
            match write().await {
                Err(StoreError::Unavailable(detail)) => {
                    self.writes.note(self.key, Some(detail));
                    backoff.wait().await;
                }
                Err(StoreError::Fenced) => {
                    self.writes.fence();
                    return Err(StoreError::Fenced);
                }
                known => return known,
            }
        }
    }
}

impl Drop for StoreWrite {
    fn drop(&mut self) {
        // Answered, or given up with the run.
        self.writes.note(self.key, None);
    }
}
