//! A witness: a thread that looks at one thing again and again and writes down what it saw.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::support::wait::{SOON, breathe, eventually};

/// Looks until it is ended.
pub(crate) struct Watcher<T> {
    what: &'static str,
    stop: Arc<AtomicBool>,
    /// Looks that were answered.
    answered: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<T>>>,
}

impl<T: Send + 'static> Watcher<T> {
    /// `look` answers `None` when what it looks at is away.
    pub(crate) fn start(
        what: &'static str,
        pace: Duration,
        mut look: impl FnMut() -> Option<T> + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                if let Some(event) = look() {
                    seen.push(event);
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                breathe(pace);
            }
            seen
        });
        Self {
            what,
            stop,
            answered,
            thread: Some(thread),
        }
    }

    /// Waits for as many answers as it takes for the last to belong to a question that was asked after this call.
    pub(crate) fn await_another(&self, more: u64) {
        let wanted = self.answered.load(Ordering::Relaxed) + 1 + more;
        eventually(self.what, SOON, || {
            assert!(
                self.thread
                    .as_ref()
                    .is_some_and(|thread| !thread.is_finished()),
                "{}: its thread panicked",
                self.what
            );
            let answered = self.answered.load(Ordering::Relaxed);
            if answered >= wanted {
                Ok(())
            } else {
                Err(format!("{answered} answers, wanted {wanted}"))
            }
        });
    }

    /// Ends it, and answers all that it saw.
    pub(crate) fn end(mut self) -> Vec<T> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        thread
            .join()
            .unwrap_or_else(|_| panic!("{}: panicked", self.what))
    }
}

impl<T> Drop for Watcher<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
