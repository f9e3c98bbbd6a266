//! The handover between real threads, and what a caller may rely on call by call.
//!
//! Threads wait for each other through the handover and through channels with a deadline, never by sleeping.
#![cfg(test)]
#![cfg(not(feature = "loom"))]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use handover_slot::{ConsumerSide, FetcherSide, NextError, Produced, Requests, channel};

/// Far beyond what any step takes; reached only when a wake-up is lost.
const DEADLINE: Duration = Duration::from_secs(10);

fn handover() -> (
    ConsumerSide<u32, char, &'static str>,
    FetcherSide<u32, char, &'static str>,
) {
    channel()
}

/// Runs `work` on its own thread and returns where its result will be.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || sender.send(work()));
    receiver
}

/// Wakes the thread that blocks on a future.
struct ThreadWaker(thread::Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks on a future up to the deadline.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut future = pin!(future);
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = give_up.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no wake-up within {DEADLINE:?}");
        thread::park_timeout(left);
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future + ?Sized>(
    future: Pin<&mut F>,
    waker: &Arc<CountingWaker>,
) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(waker))))
}

#[test]
fn ten_thousand_batches_arrive_in_order() {
    let (consumer, fetcher) = handover();
    let produced = on_a_thread(move || {
        for batch in 0..10_000 {
            assert_eq!(consumer.produce(batch), Produced::Delivered);
        }
        consumer
    });
    for batch in 0..10_000 {
        assert_eq!(block_on(fetcher.next()), Ok(batch));
    }
    produced.recv_timeout(DEADLINE).unwrap();
}

#[test]
fn a_full_slot_with_a_pending_request_gives_the_batch_back() {
    let (consumer, fetcher) = handover();
    assert_eq!(consumer.produce(1), Produced::Delivered);
    fetcher.assign(['a']);
    assert_eq!(consumer.produce(2), Produced::Interrupted(2));
    assert_eq!(fetcher.try_next(), Some(Ok(1)));
    assert_eq!(consumer.produce(2), Produced::Delivered);
}

#[test]
fn a_request_that_finds_the_slot_free_stays_pending() {
    let (consumer, fetcher) = handover();
    fetcher.assign(['a']);
    assert_eq!(consumer.produce(1), Produced::Delivered);
    // Flink's flag would be gone by now.
    assert_eq!(consumer.produce(2), Produced::Interrupted(2));
    assert_eq!(consumer.take_requests().assign, ['a']);
}

#[test]
fn requests_are_merged_in_order_and_taken_once() {
    let (consumer, fetcher) = handover();
    assert!(consumer.take_requests().is_empty());
    fetcher.assign(['a', 'b']);
    fetcher.stop();
    fetcher.assign(['c']);
    let merged = Requests {
        assign: vec!['a', 'b', 'c'],
        stop: true,
    };
    assert_eq!(consumer.take_requests(), merged);
    assert_eq!(consumer.take_requests(), Requests::default());
}

#[test]
fn an_assignment_of_nothing_is_no_request() {
    let (consumer, fetcher) = handover();
    fetcher.assign([]);
    assert!(!consumer.wait_for_request(Duration::ZERO));
    assert_eq!(consumer.produce(1), Produced::Delivered);
    assert_eq!(fetcher.try_next(), Some(Ok(1)));
}

#[test]
fn waiting_for_a_request_ends_with_the_time_out() {
    let (consumer, _fetcher) = handover();
    let before = Instant::now();
    assert!(!consumer.wait_for_request(Duration::from_millis(20)));
    assert!(before.elapsed() >= Duration::from_millis(20));
}

#[test]
fn waiting_for_a_request_ends_with_the_request() {
    let (consumer, fetcher) = handover();
    let requests = on_a_thread(move || {
        assert!(consumer.wait_for_request(Duration::MAX));
        consumer.take_requests()
    });
    fetcher.assign(['a']);
    assert_eq!(requests.recv_timeout(DEADLINE).unwrap().assign, ['a']);
}

#[test]
fn after_the_end_a_consumer_that_only_takes_requests_learns_to_stop() {
    let (consumer, fetcher) = handover();
    fetcher.assign(['a']);
    fetcher.close();
    fetcher.assign(['b']);
    let stop = Requests {
        assign: vec![],
        stop: true,
    };
    for _ in 0..2 {
        assert!(consumer.wait_for_request(Duration::ZERO));
        assert_eq!(consumer.take_requests(), stop);
    }
}

#[test]
fn an_error_comes_at_once_and_for_ever() {
    let (consumer, fetcher) = handover();
    assert_eq!(consumer.produce(1), Produced::Delivered);
    consumer.report_error("first");
    consumer.report_error("second");
    assert_eq!(fetcher.try_next(), Some(Err(NextError::Failed("first"))));
    assert_eq!(consumer.produce(2), Produced::Closed(2));
    fetcher.close();
    drop(consumer);
    assert_eq!(block_on(fetcher.next()), Err(NextError::Failed("first")));
}

#[test]
fn an_error_after_a_close_is_the_one_seen() {
    let (consumer, fetcher) = handover();
    fetcher.close();
    assert_eq!(fetcher.try_next(), Some(Err(NextError::Closed)));
    consumer.report_error("the cause");
    assert_eq!(
        fetcher.try_next(),
        Some(Err(NextError::Failed("the cause")))
    );
}

#[test]
fn closing_drops_the_batch() {
    let batch = Arc::new(());
    let (consumer, fetcher) = channel::<Arc<()>, char, &'static str>();
    assert_eq!(consumer.produce(Arc::clone(&batch)), Produced::Delivered);
    fetcher.close();
    assert_eq!(Arc::strong_count(&batch), 1);
    assert_eq!(fetcher.try_next(), Some(Err(NextError::Closed)));
}

#[test]
fn a_panicking_consumer_thread_closes_the_handover() {
    let (consumer, fetcher) = handover();
    let thread = thread::spawn(move || {
        let _consumer = consumer;
        panic!("as a bug in the consumer would");
    });
    assert_eq!(block_on(fetcher.next()), Err(NextError::Closed));
    assert!(thread.join().is_err());
}

#[test]
fn dropping_the_fetcher_frees_a_blocked_producer() {
    let (consumer, fetcher) = handover();
    assert_eq!(consumer.produce(1), Produced::Delivered);
    let refused = on_a_thread(move || consumer.produce(2));
    drop(fetcher);
    assert_eq!(refused.recv_timeout(DEADLINE).unwrap(), Produced::Closed(2));
}

#[test]
fn a_batch_wakes_the_waiting_task_once() {
    let (consumer, fetcher) = handover();
    let task = Arc::new(CountingWaker::default());
    let mut next = Box::pin(fetcher.next());
    assert!(poll_once(next.as_mut(), &task).is_pending());
    assert!(poll_once(next.as_mut(), &task).is_pending());
    assert_eq!(consumer.produce(1), Produced::Delivered);
    assert_eq!(task.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll_once(next.as_mut(), &task), Poll::Ready(Ok(1)));

    assert_eq!(consumer.produce(2), Produced::Delivered);
    assert_eq!(
        task.0.load(Ordering::SeqCst),
        1,
        "nobody waits for the second batch"
    );
}

#[test]
fn a_dropped_next_takes_nothing_with_it() {
    let (consumer, fetcher) = handover();
    let (gone, waiting) = (
        Arc::new(CountingWaker::default()),
        Arc::new(CountingWaker::default()),
    );
    let mut dropped = Box::pin(fetcher.next());
    assert!(poll_once(dropped.as_mut(), &gone).is_pending());
    drop(dropped);

    let mut next = Box::pin(fetcher.next());
    assert!(poll_once(next.as_mut(), &waiting).is_pending());
    assert_eq!(consumer.produce(1), Produced::Delivered);
    assert_eq!(
        (
            gone.0.load(Ordering::SeqCst),
            waiting.0.load(Ordering::SeqCst)
        ),
        (0, 1)
    );
    drop(next);
    assert_eq!(fetcher.try_next(), Some(Ok(1)));
}

#[test]
fn the_future_and_both_sides_may_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    let (consumer, fetcher) = handover();
    is_send(&consumer);
    is_send(&fetcher);
    is_send(&fetcher.next());
}

#[test]
fn a_poisoned_lock_is_used_as_it_is() {
    struct Explosive(Arc<AtomicUsize>);
    impl Clone for Explosive {
        fn clone(&self) -> Self {
            assert!(
                self.0.fetch_add(1, Ordering::SeqCst) > 0,
                "the first clone panics, with the lock held"
            );
            Self(Arc::clone(&self.0))
        }
    }
    let (consumer, fetcher) = channel::<u32, char, Explosive>();
    consumer.report_error(Explosive(Arc::default()));
    assert!(catch_unwind(AssertUnwindSafe(|| fetcher.try_next())).is_err());

    assert!(matches!(
        fetcher.try_next(),
        Some(Err(NextError::Failed(_)))
    ));
    assert_eq!(consumer.produce(1), Produced::Closed(1));
    assert!(consumer.wait_for_request(Duration::ZERO));
    fetcher.close();
}

#[test]
fn a_batch_is_dropped_without_the_lock() {
    /// Asks the handover something while it is dropped, which would deadlock under the lock.
    struct Curious(Option<Arc<FetcherSide<Curious, char, &'static str>>>);
    impl Drop for Curious {
        fn drop(&mut self) {
            if let Some(fetcher) = self.0.take() {
                assert!(matches!(fetcher.try_next(), Some(Err(NextError::Closed))));
            }
        }
    }
    let dropped = on_a_thread(|| {
        let (consumer, fetcher) = channel();
        let fetcher = Arc::new(fetcher);
        let delivered = consumer.produce(Curious(Some(Arc::clone(&fetcher))));
        assert!(matches!(delivered, Produced::Delivered));
        fetcher.close();
    });
    dropped
        .recv_timeout(DEADLINE)
        .expect("the drop must not wait for the lock");
}

#[test]
fn errors_keep_their_source() {
    let cause = std::io::Error::other("connection reset");
    let error = NextError::Failed(Arc::new(cause));
    assert_eq!(error.to_string(), "consumer failed");
    let source = std::error::Error::source(&error).expect("the consumer's error");
    assert_eq!(source.to_string(), "connection reset");
}
