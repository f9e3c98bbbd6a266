//! The hand-over of batches from a blocking consumer thread to an asynchronous fetch loop.
//!
//! # The idea
//!
//! A Kafka client is polled by a plain thread, because polling blocks. Records are processed by an asynchronous task,
//! because sinks wait. Between the two lies **one slot for one batch**. Where a queue would have to choose between
//! memory and speed, the slot does neither: the consumer polls the next batch while the fetcher works on the last one,
//! and when the fetcher falls behind, [`ConsumerSide::produce`] blocks. That is the whole back-pressure.
//!
//! In the other direction go *requests*: partitions to assign, and a stop. They are merged, never queued, and a pending
//! request interrupts a producer that is blocked on a full slot. Without that, a fetcher that takes no batch (its sink
//! is down) could not stop its consumer or give it a new partition. The interrupted producer gets its batch back, serves
//! the requests and tries again with the same batch.
//!
//! # The state machine
//!
//! ```text
//!                    produce: Delivered
//!           ┌──────────────────────────────────┐
//!           │                                  ▼
//!      ┌─────────┐                        ┌─────────┐  produce, nothing pending: blocks
//!      │  empty  │                        │  full   │  produce, request pending: Interrupted(batch)
//!      └─────────┘                        └─────────┘
//!       │   │   ▲          next            │     │
//!       │   │   └──────────────────────────┼─────┤
//!       │   │                              │     │
//!       │   └── report_error ─┬────────────┘     │ close, or a side is dropped:
//!       │       (batch        │                  │ the batch is dropped
//!       │        dropped)     ▼                  ▼
//!       │                ┌──────────┐       ┌──────────┐
//!       │                │ failed E │◄──────│  closed  │  next: Closed
//!       │                └──────────┘       └──────────┘  produce: Closed(batch)
//!       │                 next: Failed(E)        ▲     report_error: the cause is still recorded
//!       │                 produce: Closed(batch) │
//!       └────────────────────────────────────────┘
//! ```
//!
//! *Failed* keeps its first error through further errors, `close` and the drop of either side. Both end states are for
//! good. Pending requests lie beside this picture: a set of {partitions to assign, stop}, filled by
//! [`FetcherSide::assign`] and [`FetcherSide::stop`], emptied only by [`ConsumerSide::take_requests`]. In an end state
//! they read as "stop", so a consumer that looks at nothing else learns there that it is no longer wanted.
//!
//! Dropping an undelivered batch is safe: positions advance when the fetcher has processed a batch, so a batch that
//! never arrived is read again by whoever continues.
//!
//! # Where this departs from Flink
//!
//! The shape is that of `Handover` in Flink's legacy Kafka connector: a slot, an error and a wake-up flag under one lock.
//! Kept are the size of one batch, the first error winning, the dropped batch, and the carried-over batch. Changed are:
//!
//! * **The wake-up is state, not a flag.** Flink's `produce` clears the flag whenever it leaves its wait, so a wake-up
//!   that arrives while the slot is free is consumed silently, and the flag says nothing of what is wanted. Here the
//!   requests themselves are the wake-up. They stay pending until they are taken, and cannot be cleared without being
//!   seen. The price: a caller that answers `Interrupted` without taking the requests would spin.
//! * **One lock for slot and requests.** Flink keeps new partitions and commits outside the handover and wakes it in a
//!   second step. With two locks the order of the two steps matters; with one there is no such order.
//! * **A close hides no cause.** In Flink a close that comes first occupies the error slot, and an error that follows is
//!   lost: users saw only "handover closed". Here the error is recorded whichever comes first.
//! * **Closing is not an exception.** `Closed` is a value of its own, so a graceful stop cannot be mistaken for a failure
//!   (for years it was one in Flink, and stop-with-savepoint failed on it).
//! * **Errors do not beat batches by accident.** Flink's `pollNext` looks for a batch first, yet never finds one next to
//!   an error, because the error dropped it. That is made plain here: an end state never holds a batch.
//! * **A panic on one side reaches the other as a close.** Each side closes when it is dropped, so neither waits for ever
//!   for a thread or task that is gone. A lock poisoned by a panic is used as it is.
//! * **The fetcher's side is a future**, and a cancelled one loses nothing: the batch is taken in the poll that returns
//!   it, and each poll looks at the slot before it waits.
//! * **Commits do not pass through here.** In Flink they wake the producer, because only its thread may use the client.
//!
//! # How it is checked
//!
//! Mutex, condition variable and waker come from the private module `sync`, which the feature `loom` points at loom's;
//! `cargo test -p handover-slot --features loom` then tries the interleavings of each race. Properties and real threads
//! are tested without the feature.
//!
//! # Example
//!
#![cfg_attr(not(feature = "loom"), doc = "```")]
#![cfg_attr(feature = "loom", doc = "```no_run")]
//! use handover_slot::{Produced, channel};
//!
//! let (consumer, fetcher) = channel::<Vec<u8>, u32, String>();
//! fetcher.assign([0, 1]);
//! assert_eq!(consumer.take_requests().assign, [0, 1]);
//!
//! assert_eq!(consumer.produce(b"first".to_vec()), Produced::Delivered);
//! fetcher.stop();
//! // The slot is full and a request is pending: the batch comes back instead of blocking the thread.
//! assert_eq!(consumer.produce(b"second".to_vec()), Produced::Interrupted(b"second".to_vec()));
//! assert!(consumer.take_requests().stop);
//!
//! assert_eq!(fetcher.try_next(), Some(Ok(b"first".to_vec())));
#![doc = "```"]

mod sync;

use std::fmt;
use std::future::poll_fn;
use std::mem;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sync::{Arc, Condvar, Mutex, MutexGuard};

/// Makes a handover and returns its two ends.
///
/// `B` is a batch, `A` a partition to assign with all the consumer needs to know about it, `E` the consumer's error. The
/// fetcher gets a clone of the error from every call after a failure, so `E` is best cheap to clone (an `Arc`).
pub fn channel<B, A, E>() -> (ConsumerSide<B, A, E>, FetcherSide<B, A, E>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            slot: None,
            error: None,
            ended: false,
            requests: Requests::default(),
            fetcher: None,
        }),
        consumer: Condvar::new(),
    });
    let consumer = ConsumerSide {
        shared: Arc::clone(&shared),
    };
    (consumer, FetcherSide { shared })
}

/// What the fetcher wants from the consumer, merged since it was last taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests<A> {
    /// Partitions to add to the assignment, in the order in which they were asked for.
    pub assign: Vec<A>,
    /// Whether the consumer should end. Always true once the handover has ended.
    pub stop: bool,
}

impl<A> Requests<A> {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.assign.is_empty() && !self.stop
    }
}

impl<A> Default for Requests<A> {
    fn default() -> Self {
        Self {
            assign: Vec::new(),
            stop: false,
        }
    }
}

/// What became of a batch that the consumer wanted to hand over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the variants other than `Delivered` give the batch back"]
pub enum Produced<B> {
    /// The batch is in the slot, and the fetcher is told.
    Delivered,
    /// The slot is still full, and a request is pending or the call does not wait. Keep the batch, take the requests, serve
    /// them, and try again with this batch before polling another.
    Interrupted(B),
    /// The handover has ended, by an error or a close; no batch will be accepted any more.
    Closed(B),
}

/// Why there will be no further batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NextError<E> {
    /// The consumer reported this error, the first one if there were several.
    #[error("consumer failed")]
    Failed(#[source] E),
    /// One of the two sides closed the handover, and no error was reported.
    #[error("handover is closed")]
    Closed,
}

/// The end that belongs to the consumer thread.
///
/// Its calls block the calling thread or return at once; none of them needs a runtime. Dropping it closes the handover,
/// also when the thread panics.
pub struct ConsumerSide<B, A, E> {
    shared: Arc<Shared<B, A, E>>,
}

impl<B, A, E> ConsumerSide<B, A, E> {
    /// Takes what the fetcher has asked for since the last call. Never blocks.
    ///
    /// Once the handover has ended the answer is always "stop, and assign nothing".
    pub fn take_requests(&self) -> Requests<A> {
        let mut state = self.shared.lock();
        let requests = mem::take(&mut state.requests);
        if state.ended {
            return Requests {
                stop: true,
                ..requests
            };
        }
        requests
    }

    /// Blocks until a request is pending, the handover has ended, or `timeout` has passed. For a consumer without any
    /// partition, which has nothing to poll.
    ///
    /// Returns false only for the time-out: after true, [`take_requests`](Self::take_requests) has something to say.
    pub fn wait_for_request(&self, timeout: Duration) -> bool {
        let state = sync::wait_timeout_while(
            &self.shared.consumer,
            self.shared.lock(),
            timeout,
            |state| !state.wants_consumer(),
        );
        state.wants_consumer()
    }

    /// Hands a batch to the fetcher; blocks while the slot is full and nothing is pending.
    ///
    /// There is no time-out, because waiting is the back-pressure. The wait ends when the fetcher takes the slot's batch,
    /// asks for something, closes, or is dropped. A free slot accepts the batch even with requests pending: they stay
    /// pending, and the next turn of the consumer's loop takes them.
    pub fn produce(&self, batch: B) -> Produced<B> {
        let mut state = self.shared.lock();
        loop {
            if state.ended {
                return Produced::Closed(batch);
            }
            if state.slot.is_none() {
                break;
            }
            if !state.requests.is_empty() {
                return Produced::Interrupted(batch);
            }
            state = sync::wait(&self.shared.consumer, state);
        }
        Self::deliver(state, batch);
        Produced::Delivered
    }

    /// Hands a batch to the fetcher if there is room; never blocks.
    ///
    /// A full slot gives the batch back as [`Produced::Interrupted`], whether or not a request is pending: keep it, look for
    /// requests, and try again with it.
    pub fn try_produce(&self, batch: B) -> Produced<B> {
        let state = self.shared.lock();
        if state.ended {
            return Produced::Closed(batch);
        }
        if state.slot.is_some() {
            return Produced::Interrupted(batch);
        }
        Self::deliver(state, batch);
        Produced::Delivered
    }

    fn deliver(mut state: MutexGuard<'_, State<B, A, E>>, batch: B) {
        state.slot = Some(batch);
        let fetcher = state.fetcher.take();
        drop(state);
        wake(fetcher);
    }

    /// Ends the handover with an error; the first error wins, whether or not the handover was closed before.
    ///
    /// An undelivered batch and pending requests are dropped, so the fetcher sees the error at once and not after a batch
    /// that it would have to process first.
    pub fn report_error(&self, error: E) {
        self.shared.end(Some(error));
    }
}

impl<B, A, E> Drop for ConsumerSide<B, A, E> {
    fn drop(&mut self) {
        self.shared.end(None);
    }
}

/// The end that belongs to the fetch loop.
///
/// None of its calls blocks a runtime's worker: the lock is held for a few moves only, never while a batch is made,
/// processed or dropped. Dropping it closes the handover.
///
/// There is one place for one waiting task. Calls may overlap from anywhere, but only one [`next`](Self::next) should be
/// waiting at a time: of two, the one polled later is woken.
pub struct FetcherSide<B, A, E> {
    shared: Arc<Shared<B, A, E>>,
}

impl<B, A, E: Clone> FetcherSide<B, A, E> {
    /// Waits for the next batch.
    ///
    /// Cancel-safe: a future dropped before it was ready has taken nothing, and the next call finds whatever came in the
    /// meantime, so it may stand in a `select!`.
    ///
    /// # Errors
    ///
    /// [`NextError::Failed`] with the first error the consumer reported, else [`NextError::Closed`] once a side has
    /// closed. All later calls answer the same, except that an error reported after a close replaces `Closed`.
    pub async fn next(&self) -> Result<B, NextError<E>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Takes the batch or the end that is there now, without waiting; `None` when there is neither.
    pub fn try_next(&self) -> Option<Result<B, NextError<E>>> {
        let mut state = self.shared.lock();
        let outcome = state.take_outcome();
        drop(state);
        if matches!(outcome, Some(Ok(_))) {
            self.shared.consumer.notify_all();
        }
        outcome
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<B, NextError<E>>> {
        let mut state = self.shared.lock();
        let Some(outcome) = state.take_outcome() else {
            let displaced = state.wait_in(context.waker());
            drop(state);
            drop(displaced);
            return Poll::Pending;
        };
        // Of this call or of a dropped one: waking it for the next batch would only cost a turn of its task.
        let stale = state.fetcher.take();
        drop(state);
        drop(stale);
        if outcome.is_ok() {
            self.shared.consumer.notify_all();
        }
        Poll::Ready(outcome)
    }
}

impl<B, A, E> FetcherSide<B, A, E> {
    /// Asks the consumer to add partitions to its assignment; interrupts a blocked `produce`.
    ///
    /// Requests add up, in order, until the consumer takes them. Without partitions, and once the handover has ended, the
    /// call does nothing.
    pub fn assign(&self, partitions: impl IntoIterator<Item = A>) {
        // Foreign code runs before the lock is taken.
        let partitions: Vec<A> = partitions.into_iter().collect();
        if partitions.is_empty() {
            return;
        }
        let mut state = self.shared.lock();
        if state.ended {
            // `partitions` is dropped after the guard, which was declared after it.
            return;
        }
        state.requests.assign.extend(partitions);
        drop(state);
        self.shared.consumer.notify_all();
    }

    /// Asks the consumer to end; interrupts a blocked `produce`.
    ///
    /// The handover stays open, so a batch in the slot can still be taken; the consumer closes it by dropping its side.
    pub fn stop(&self) {
        self.shared.lock().requests.stop = true;
        self.shared.consumer.notify_all();
    }

    /// Ends the handover and drops the batch in the slot and the pending requests. An error that was reported before
    /// stays what [`next`](Self::next) answers.
    pub fn close(&self) {
        self.shared.end(None);
    }
}

impl<B, A, E> Drop for FetcherSide<B, A, E> {
    fn drop(&mut self) {
        self.shared.end(None);
    }
}

impl<B, A, E> fmt::Debug for ConsumerSide<B, A, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConsumerSide")
            .finish_non_exhaustive()
    }
}

impl<B, A, E> fmt::Debug for FetcherSide<B, A, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FetcherSide")
            .finish_non_exhaustive()
    }
}

struct Shared<B, A, E> {
    state: Mutex<State<B, A, E>>,
    /// Notified whenever `produce` or `wait_for_request` might go on. Every notification is sent to all, so that it does
    /// not matter which of the two a thread waits in.
    consumer: Condvar,
}

impl<B, A, E> Shared<B, A, E> {
    fn lock(&self) -> MutexGuard<'_, State<B, A, E>> {
        sync::lock(&self.state)
    }

    /// The one way into both end states.
    fn end(&self, error: Option<E>) {
        let mut state = self.lock();
        state.ended = true;
        let superfluous = match &state.error {
            Some(_) => error,
            None => mem::replace(&mut state.error, error),
        };
        let batch = state.slot.take();
        let requests = mem::take(&mut state.requests);
        let fetcher = state.fetcher.take();
        drop(state);
        self.consumer.notify_all();
        wake(fetcher);
        // Foreign destructors may be slow (a batch owns messages of the client) or panic: not under the lock, and after
        // both sides know.
        drop((superfluous, batch, requests));
    }
}

struct State<B, A, E> {
    /// Only ever filled while the handover has not ended.
    slot: Option<B>,
    /// The first error.
    error: Option<E>,
    /// Set by a close and by an error: nothing is accepted any more.
    ended: bool,
    requests: Requests<A>,
    /// The task that waits in `next`, or waited in a `next` that was dropped since.
    fetcher: Option<Waker>,
}

impl<B, A, E> State<B, A, E> {
    fn wants_consumer(&self) -> bool {
        self.ended || !self.requests.is_empty()
    }

    /// Remembers whom to wake; returns the waker that had the place before, to be dropped without the lock.
    fn wait_in(&mut self, waker: &Waker) -> Option<Waker> {
        if self
            .fetcher
            .as_ref()
            .is_some_and(|present| present.will_wake(waker))
        {
            return None;
        }
        self.fetcher.replace(waker.clone())
    }
}

impl<B, A, E: Clone> State<B, A, E> {
    fn take_outcome(&mut self) -> Option<Result<B, NextError<E>>> {
        if let Some(error) = &self.error {
            return Some(Err(NextError::Failed(error.clone())));
        }
        if self.ended {
            return Some(Err(NextError::Closed));
        }
        self.slot.take().map(Ok)
    }
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
