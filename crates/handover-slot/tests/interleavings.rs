//! Every interleaving of the races that matter, tried by loom. The models are small enough to need no bound on
//! preemptions: all of them together take seconds.
//!
//! A wake-up that gets lost shows as a deadlock of the model, because loom knows no time-outs and no spurious wake-ups.
#![cfg(test)]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use handover_slot::{ConsumerSide, FetcherSide, NextError, Produced, channel};
use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

type Consumer = ConsumerSide<u32, char, &'static str>;
type Fetcher = FetcherSide<u32, char, &'static str>;

/// Runs a model with a fresh handover, once for each interleaving.
fn explore(model: impl Fn(Consumer, Fetcher) + Send + Sync + 'static) {
    loom::model(move || {
        let (consumer, fetcher) = channel();
        model(consumer, fetcher);
    });
}

/// Produces until the batch is delivered or refused, as the consumer's loop does; returns the partitions it was asked to
/// assign meanwhile.
fn produce_serving(consumer: &Consumer, batch: u32) -> Vec<char> {
    let mut assigned = Vec::new();
    let mut batch = batch;
    while let Produced::Interrupted(kept) = consumer.produce(batch) {
        assigned.extend(consumer.take_requests().assign);
        batch = kept;
    }
    assigned
}

/// Polls `next` once with this waker and drops the future. A batch it got is given back to the caller.
fn poll_once_and_drop(
    fetcher: &Fetcher,
    waker: &Waker,
) -> Poll<Result<u32, NextError<&'static str>>> {
    pin!(fetcher.next()).poll(&mut Context::from_waker(waker))
}

#[test]
fn batches_arrive_in_order_and_none_is_lost() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            for batch in 1..=3 {
                assert_eq!(consumer.produce(batch), Produced::Delivered);
            }
            consumer
        });
        for batch in 1..=3 {
            assert_eq!(block_on(fetcher.next()), Ok(batch));
        }
        drop(thread.join().unwrap());
    });
}

#[test]
fn a_close_ends_a_blocked_produce_and_gives_the_batch_back() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            let first = consumer.produce(1);
            assert!(
                matches!(first, Produced::Delivered | Produced::Closed(1)),
                "{first:?}"
            );
            // Nobody takes a batch, so only the close can end this call.
            assert_eq!(consumer.produce(2), Produced::Closed(2));
            assert!(consumer.take_requests().stop);
        });
        fetcher.close();
        assert_eq!(block_on(fetcher.next()), Err(NextError::Closed));
        thread.join().unwrap();
        assert_eq!(fetcher.try_next(), Some(Err(NextError::Closed)));
    });
}

#[test]
fn an_error_drops_the_batch_in_a_full_slot_and_stays() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || {
            consumer.report_error("broker gone");
            assert_eq!(consumer.produce(2), Produced::Closed(2));
        });
        let first = block_on(fetcher.next());
        if first == Ok(1) {
            assert_eq!(
                block_on(fetcher.next()),
                Err(NextError::Failed("broker gone"))
            );
        } else {
            assert_eq!(first, Err(NextError::Failed("broker gone")));
        }
        thread.join().unwrap();
        assert_eq!(
            fetcher.try_next(),
            Some(Err(NextError::Failed("broker gone")))
        );
    });
}

#[test]
fn an_error_from_another_thread_ends_a_blocked_produce() {
    explore(|consumer, fetcher| {
        let consumer = Arc::new(consumer);
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let producer = {
            let consumer = Arc::clone(&consumer);
            thread::spawn(move || consumer.produce(2))
        };
        consumer.report_error("broker gone");
        assert_eq!(producer.join().unwrap(), Produced::Closed(2));
        assert_eq!(
            fetcher.try_next(),
            Some(Err(NextError::Failed("broker gone")))
        );
    });
}

#[test]
fn a_request_interrupts_a_blocked_produce_and_the_batch_is_kept() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || {
            // Nothing is taken from the slot until this thread has ended: only the request can end the call.
            let Produced::Interrupted(batch) = consumer.produce(2) else {
                panic!("neither delivered nor closed is possible");
            };
            let requests = consumer.take_requests();
            (consumer, batch, requests)
        });
        fetcher.assign(['a', 'b']);
        let (consumer, batch, requests) = thread.join().unwrap();
        assert_eq!(
            (batch, requests.assign, requests.stop),
            (2, vec!['a', 'b'], false)
        );

        assert_eq!(fetcher.try_next(), Some(Ok(1)));
        assert_eq!(consumer.produce(batch), Produced::Delivered);
        assert_eq!(fetcher.try_next(), Some(Ok(2)));
    });
}

#[test]
fn requests_beside_a_flow_of_batches_are_served_once_and_cost_no_batch() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            let mut assigned = produce_serving(&consumer, 1);
            assigned.extend(produce_serving(&consumer, 2));
            (consumer, assigned)
        });
        fetcher.assign(['a']);
        assert_eq!(block_on(fetcher.next()), Ok(1));
        fetcher.assign(['b']);
        assert_eq!(block_on(fetcher.next()), Ok(2));
        let (consumer, mut assigned) = thread.join().unwrap();
        assigned.extend(consumer.take_requests().assign);
        assert_eq!(assigned, ['a', 'b']);
    });
}

#[test]
fn a_stop_interrupts_a_blocked_produce_and_leaves_the_slot_alone() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || {
            assert_eq!(consumer.produce(2), Produced::Interrupted(2));
            assert!(consumer.take_requests().stop);
            consumer
        });
        fetcher.stop();
        let consumer = thread.join().unwrap();
        assert_eq!(block_on(fetcher.next()), Ok(1));
        drop(consumer);
        assert_eq!(block_on(fetcher.next()), Err(NextError::Closed));
    });
}

#[test]
fn an_idle_consumer_wakes_for_every_request() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            let mut assigned = Vec::new();
            loop {
                assert!(consumer.wait_for_request(Duration::from_secs(1)));
                let requests = consumer.take_requests();
                assert!(!requests.is_empty(), "woken for nothing");
                assigned.extend(requests.assign);
                if requests.stop {
                    return assigned;
                }
            }
        });
        fetcher.assign(['a']);
        fetcher.stop();
        assert_eq!(thread.join().unwrap(), ['a']);
    });
}

#[test]
fn an_idle_consumer_wakes_when_the_fetcher_is_dropped() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            assert!(consumer.wait_for_request(Duration::from_secs(1)));
            consumer.take_requests()
        });
        drop(fetcher);
        let requests = thread.join().unwrap();
        assert!(requests.stop && requests.assign.is_empty());
    });
}

#[test]
fn of_two_errors_the_first_is_the_one_seen_for_ever() {
    explore(|consumer, fetcher| {
        let consumer = Arc::new(consumer);
        let other = {
            let consumer = Arc::clone(&consumer);
            thread::spawn(move || consumer.report_error("b"))
        };
        consumer.report_error("a");
        let seen_early = fetcher.try_next();
        other.join().unwrap();
        let seen_late = fetcher.try_next();
        assert!(
            matches!(seen_early, Some(Err(NextError::Failed("a" | "b")))),
            "{seen_early:?}"
        );
        assert_eq!(seen_early, seen_late);
        fetcher.close();
        assert_eq!(fetcher.try_next(), seen_late);
    });
}

#[test]
fn a_close_hides_no_error_whichever_comes_first() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || consumer.report_error("broker gone"));
        fetcher.close();
        thread.join().unwrap();
        assert_eq!(
            block_on(fetcher.next()),
            Err(NextError::Failed("broker gone"))
        );
    });
}

#[test]
fn a_dropped_next_loses_no_batch_and_no_wake_up() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            assert_eq!(consumer.produce(1), Produced::Delivered);
            consumer
        });
        // First with a waker that wakes nobody, as of a task that has moved on, then within the task that waits.
        let mut got = poll_once_and_drop(&fetcher, Waker::noop());
        if got.is_pending() {
            got = block_on(poll_fn(|context| {
                Poll::Ready(poll_once_and_drop(&fetcher, context.waker()))
            }));
        }
        let got = match got {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => block_on(fetcher.next()),
        };
        assert_eq!(got, Ok(1));
        drop(thread.join().unwrap());
    });
}

#[test]
fn a_dropped_next_does_not_hold_a_producer_up() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || {
            assert_eq!(consumer.produce(2), Produced::Delivered);
            consumer
        });
        assert_eq!(
            poll_once_and_drop(&fetcher, Waker::noop()),
            Poll::Ready(Ok(1))
        );
        let consumer = thread.join().unwrap();
        assert_eq!(fetcher.try_next(), Some(Ok(2)));
        drop(consumer);
    });
}

#[test]
fn try_next_frees_a_blocked_producer() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || {
            assert_eq!(consumer.produce(2), Produced::Delivered);
            consumer
        });
        assert_eq!(fetcher.try_next(), Some(Ok(1)));
        let consumer = thread.join().unwrap();
        assert_eq!(fetcher.try_next(), Some(Ok(2)));
        drop(consumer);
    });
}

#[test]
fn dropping_the_fetcher_ends_a_blocked_produce() {
    explore(|consumer, fetcher| {
        assert_eq!(consumer.produce(1), Produced::Delivered);
        let thread = thread::spawn(move || consumer.produce(2));
        drop(fetcher);
        assert_eq!(thread.join().unwrap(), Produced::Closed(2));
    });
}

#[test]
fn dropping_the_consumer_ends_a_waiting_next() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || drop(consumer));
        assert_eq!(block_on(fetcher.next()), Err(NextError::Closed));
        thread.join().unwrap();
    });
}

#[test]
fn dropping_both_sides_at_once_drops_the_batch_once() {
    loom::model(|| {
        let batch = Arc::new(());
        let (consumer, fetcher) = channel::<Arc<()>, char, &'static str>();
        assert!(matches!(
            consumer.produce(Arc::clone(&batch)),
            Produced::Delivered
        ));
        let thread = thread::spawn(move || drop(consumer));
        drop(fetcher);
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&batch), 1);
    });
}

#[test]
fn a_batch_that_is_only_tried_reaches_a_waiting_next_or_comes_back() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            assert_eq!(consumer.try_produce(1), Produced::Delivered);
            // The first may lie there still: then the second comes back, and nobody waited.
            let second = consumer.try_produce(2);
            (consumer, second)
        });
        assert_eq!(block_on(fetcher.next()), Ok(1));
        let (consumer, second) = thread.join().unwrap();
        match second {
            Produced::Delivered => assert_eq!(fetcher.try_next(), Some(Ok(2))),
            Produced::Interrupted(batch) => {
                assert_eq!(batch, 2);
                assert_eq!(fetcher.try_next(), None);
            }
            Produced::Closed(_) => panic!("nobody closed"),
        }
        drop(consumer);
    });
}

#[test]
fn an_error_beside_a_waiting_next_comes_after_the_batch_or_instead_of_it() {
    explore(|consumer, fetcher| {
        let thread = thread::spawn(move || {
            assert_eq!(consumer.produce(1), Produced::Delivered);
            consumer.report_error("broker gone");
        });
        let mut outcome = block_on(fetcher.next());
        if outcome == Ok(1) {
            outcome = block_on(fetcher.next());
        }
        assert_eq!(outcome, Err(NextError::Failed("broker gone")));
        thread.join().unwrap();
    });
}

#[test]
fn a_close_by_another_task_ends_a_waiting_next() {
    explore(|consumer, fetcher| {
        let fetcher = Arc::new(fetcher);
        let other = {
            let fetcher = Arc::clone(&fetcher);
            thread::spawn(move || fetcher.close())
        };
        assert_eq!(block_on(fetcher.next()), Err(NextError::Closed));
        other.join().unwrap();
        assert_eq!(consumer.produce(1), Produced::Closed(1));
    });
}
