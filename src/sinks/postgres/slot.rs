//! Where a writer and its flusher meet: the chunk that is being filled, and what each waits for.
//!
//! There is one writer and one flusher, so each has one bell. A bell that rings while nobody waits is heard by the next one
//! who does; whoever was woken looks at the state again.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{chunk::Chunk, mapping::Rows};
use crate::{
    engine::error::{ErrorClass, SinkError},
    model::{TopicPartition, resolver::SinkPosition},
};

/// A chunk is full at this size, whatever the number of its rows.
const FULL_BYTES: usize = 8 << 20;
/// How long a writer that knows of the trouble waits for its end before it is told again: shorter than the pauses between
/// its callers' attempts may become, so that it goes on as soon as the target is back.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the flusher does next.
pub(super) enum Work {
    Flush(Chunk),
    Assign(Vec<(TopicPartition, SinkPosition)>),
    Nothing,
    End,
}

pub(super) struct Slot {
    state: Mutex<State>,
    flusher: Notify,
    writer: Notify,
    /// Whether the flusher has rows that are not in the target yet.
    flushing: Arc<AtomicBool>,
    /// How empty rows look.
    empty: Rows,
    max_rows: usize,
    linger: Duration,
}

struct State {
    filling: Chunk,
    /// The memory of the chunk before, empty.
    spare: Option<Chunk>,
    /// When the first row came; `None` without rows.
    since: Option<Instant>,
    /// Whether the chunk goes before it is full or old.
    flush_now: bool,
    assign: Option<Vec<(TopicPartition, SinkPosition)>>,
    /// Whether the flusher works on something that it has taken.
    in_flight: bool,
    /// What the target said when it last failed for a reason that passes; `None` when it works.
    trouble: Option<String>,
    /// How many attempts have failed that were told of.
    failed: u64,
    /// Whether a writer was told of it.
    told: bool,
    /// Why the flusher has ended.
    failure: Option<SinkError>,
    ending: bool,
}

impl Slot {
    pub(super) fn new(empty: Rows, max_rows: usize, linger: Duration) -> Arc<Self> {
        let state = State {
            filling: Chunk::new(empty.clone()),
            spare: None,
            since: None,
            flush_now: false,
            assign: None,
            in_flight: false,
            trouble: None,
            failed: 0,
            told: false,
            failure: None,
            ending: false,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            flusher: Notify::new(),
            writer: Notify::new(),
            flushing: Arc::default(),
            empty,
            max_rows,
            linger,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, chunk: &Chunk) -> bool {
        chunk.rows.len() >= self.max_rows || chunk.rows.bytes() >= FULL_BYTES
    }

    // -----------------------------------------------------------------------------------------------------------------
    // The writer's side

    /// Waits until the chunk that is being filled has room and the target works.
    ///
    /// # Errors
    /// The flusher's trouble, whether it passes or not.
    pub(super) async fn room(&self) -> Result<(), SinkError> {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let is_in_trouble = {
                let mut state = self.state();
                let checked = state.check();
                let was_told = state.told;
                state.told = state.trouble.is_some();
                let may_wait = state.failure.is_none() && was_told && Instant::now() < give_up;
                match checked {
                    Err(error) if !may_wait => return Err(error),
                    Err(_) => true,
                    Ok(()) if !self.is_full(&state.filling) => return Ok(()),
                    Ok(()) => false,
                }
            };
            let called = self.writer.notified();
            if is_in_trouble {
                // Woken or late: looked at again either way.
                let _late = timeout_at(give_up, called).await;
            } else {
                called.await;
            }
        }
    }

    /// Lets `fill` put rows into the chunk.
    pub(super) fn fill<T>(&self, fill: impl FnOnce(&mut Chunk) -> T) -> T {
        let mut state = self.state();
        let filled = fill(&mut state.filling);
        let has_rows = !state.filling.rows.is_empty();
        let is_first = has_rows && state.since.is_none();
        if is_first {
            state.since = Some(Instant::now());
        }
        if is_first || self.is_full(&state.filling) {
            self.flusher.notify_one();
        }
        filled
    }

    /// Has everything written that was put in so far, without waiting for it.
    pub(super) fn flush_now(&self) {
        let mut state = self.state();
        state.flush_now = !state.filling.is_empty();
        self.flusher.notify_one();
    }

    /// Has the flusher note where partitions begin.
    pub(super) fn assign(&self, positions: Vec<(TopicPartition, SinkPosition)>) {
        self.state().assign = Some(positions);
        self.flusher.notify_one();
    }

    /// Whether the flusher has rows that are not in the target yet; goes on to say so.
    pub(super) fn flushing(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flushing)
    }

    /// Waits until the flusher has done all there is to do. A trouble that was there before is not told again: what counts
    /// is how the next attempt ends.
    ///
    /// # Errors
    /// The flusher's trouble, whether it passes or not.
    pub(super) async fn settled(&self) -> Result<(), SinkError> {
        let known = self.state().failed;
        loop {
            {
                let state = self.state();
                if state.failure.is_some() || state.failed > known {
                    state.check()?;
                }
                if state.is_settled() {
                    return Ok(());
                }
            }
            self.writer.notified().await;
        }
    }

    /// Waits until the flusher's trouble is another than `known`, and says how it is then.
    ///
    /// # Errors
    /// The flusher's trouble, whether it passes or not.
    pub(super) async fn troubled(&self, known: Option<&str>) -> Result<(), SinkError> {
        loop {
            match (self.state().check(), known) {
                (Ok(()), None) => {}
                (Err(error), Some(known))
                    if error.class == ErrorClass::Infrastructure && error.detail == known => {}
                (outcome, _) => return outcome,
            }
            self.writer.notified().await;
        }
    }

    /// Gives up what was not taken yet and tells the flusher to end.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ending = true;
        state.filling.clear();
        state.since = None;
        self.flusher.notify_one();
    }

    // -----------------------------------------------------------------------------------------------------------------
    // The flusher's side

    /// Takes what is to be done now, or answers when the chunk that is being filled will be old enough.
    pub(super) fn take(&self, now: Instant) -> (Work, Option<Instant>) {
        let mut state = self.state();
        if state.ending {
            return (Work::End, None);
        }
        let due = state.since.map(|since| since + self.linger);
        let is_due = due.is_some_and(|due| due <= now);
        // Rows before new positions, as they came.
        if state.flush_now
            || is_due
            || self.is_full(&state.filling)
            || (state.assign.is_some() && !state.filling.is_empty())
        {
            let next = state.spare.take();
            let next = next.unwrap_or_else(|| Chunk::new(self.empty.clone()));
            let chunk = std::mem::replace(&mut state.filling, next);
            state.since = None;
            state.flush_now = false;
            state.in_flight = true;
            self.flushing.store(true, Ordering::Relaxed);
            self.writer.notify_one();
            return (Work::Flush(chunk), None);
        }
        if let Some(positions) = state.assign.take() {
            state.in_flight = true;
            return (Work::Assign(positions), None);
        }
        (Work::Nothing, due)
    }

    /// Waits until the writer has something.
    pub(super) async fn called(&self) {
        self.flusher.notified().await;
    }

    /// Gives back the memory of a chunk that was written.
    pub(super) fn recycle(&self, mut chunk: Chunk) {
        chunk.clear();
        self.state().spare = Some(chunk);
    }

    /// What was taken is done.
    pub(super) fn done(&self) {
        self.state().in_flight = false;
        self.flushing.store(false, Ordering::Relaxed);
        self.works();
    }

    /// The target took something.
    pub(super) fn works(&self) {
        let was_in_trouble = self.state().trouble.take().is_some();
        if was_in_trouble {
            tracing::info!("the target works again");
        }
        self.writer.notify_one();
    }

    /// What was taken is not done yet, and this is why.
    pub(super) fn set_trouble(&self, trouble: String) {
        let mut state = self.state();
        if state.trouble.is_none() {
            tracing::warn!(trouble, "the target does not take the rows; trying again");
        }
        state.trouble = Some(trouble);
        state.failed += 1;
        self.writer.notify_one();
    }

    /// What was taken will never be done.
    pub(super) fn fail(&self, error: SinkError) {
        self.state().failure = Some(error);
        self.flushing.store(false, Ordering::Relaxed);
        self.writer.notify_one();
    }

    /// A value whose end tells the writer that nobody works any more.
    pub(super) fn ends_with_this(self: &Arc<Self>) -> impl Drop + use<> {
        Ended(Arc::clone(self))
    }
}

impl State {
    fn check(&self) -> Result<(), SinkError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        match &self.trouble {
            Some(trouble) => Err(SinkError::away(trouble.clone())),
            None => Ok(()),
        }
    }

    fn is_settled(&self) -> bool {
        !self.in_flight && self.assign.is_none() && !self.flush_now
    }
}

struct Ended(Arc<Slot>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.failure.is_none() {
            state.failure = Some(SinkError::crashed(
                "the task that writes to the target ended without being asked to",
            ));
        }
        self.0.writer.notify_one();
    }
}
