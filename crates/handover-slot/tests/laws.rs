//! Laws of the handover over arbitrary sequences of calls: against a model call by call, and between two real threads.
#![cfg(test)]
#![cfg(not(feature = "loom"))]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use handover_slot::{FetcherSide, NextError, Produced, channel};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Call {
    Produce,
    TryProduce,
    TryNext,
    PollNextAndDrop,
    Assign(Vec<u8>),
    Stop,
    TakeRequests,
    WaitForRequest,
    ReportError(u8),
    Close,
}

/// Mostly calls of an open handover; an end is rare, so that sequences grow long before it.
fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        8 => Just(Call::Produce),
        4 => Just(Call::TryProduce),
        6 => Just(Call::TryNext),
        6 => Just(Call::PollNextAndDrop),
        4 => vec(any::<u8>(), 0..3).prop_map(Call::Assign),
        2 => Just(Call::Stop),
        6 => Just(Call::TakeRequests),
        3 => Just(Call::WaitForRequest),
        1 => any::<u8>().prop_map(Call::ReportError),
        1 => Just(Call::Close),
    ]
}

/// The handover as a reader would draw it: no lock, no waiting.
#[derive(Default)]
struct Model {
    slot: Option<u32>,
    error: Option<u8>,
    ended: bool,
    assign: Vec<u8>,
    stop: bool,
}

impl Model {
    fn request_pending(&self) -> bool {
        self.ended || self.stop || !self.assign.is_empty()
    }

    fn produce_would_block(&self) -> bool {
        self.slot.is_some() && !self.request_pending()
    }

    fn produce(&mut self, batch: u32) -> Produced<u32> {
        if self.ended {
            return Produced::Closed(batch);
        }
        if self.slot.is_some() {
            return Produced::Interrupted(batch);
        }
        self.slot = Some(batch);
        Produced::Delivered
    }

    fn next(&mut self) -> Option<Result<u32, NextError<u8>>> {
        match (self.error, self.ended) {
            (Some(error), _) => Some(Err(NextError::Failed(error))),
            (None, true) => Some(Err(NextError::Closed)),
            (None, false) => self.slot.take().map(Ok),
        }
    }

    fn end(&mut self, error: Option<u8>) {
        *self = Self {
            error: self.error.or(error),
            ended: true,
            ..Self::default()
        };
    }
}

fn poll_next_and_drop(fetcher: &FetcherSide<u32, u8, u8>) -> Option<Result<u32, NextError<u8>>> {
    match pin!(fetcher.next()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

proptest! {
    #[test]
    fn every_sequence_of_calls_answers_as_the_model(calls in vec(call(), 0..200)) {
        let (consumer, fetcher) = channel();
        let mut model = Model::default();
        // Carried over after an interruption, as the consumer's loop does.
        let mut batch = 0;
        for call in calls {
            match call {
                Call::Produce if model.produce_would_block() => {}
                Call::Produce => {
                    let produced = consumer.produce(batch);
                    prop_assert_eq!(&produced, &model.produce(batch));
                    if produced == Produced::Delivered {
                        batch += 1;
                    }
                }
                Call::TryProduce => {
                    let produced = consumer.try_produce(batch);
                    prop_assert_eq!(&produced, &model.produce(batch));
                    if produced == Produced::Delivered {
                        batch += 1;
                    }
                }
                Call::TryNext => prop_assert_eq!(fetcher.try_next(), model.next()),
                Call::PollNextAndDrop => prop_assert_eq!(poll_next_and_drop(&fetcher), model.next()),
                Call::Assign(partitions) => {
                    fetcher.assign(partitions.clone());
                    if !model.ended {
                        model.assign.extend(partitions);
                    }
                }
                Call::Stop => {
                    fetcher.stop();
                    model.stop = true;
                }
                Call::TakeRequests => {
                    let requests = consumer.take_requests();
                    prop_assert_eq!(requests.stop, model.stop || model.ended);
                    prop_assert_eq!(requests.assign, std::mem::take(&mut model.assign));
                    model.stop = false;
                }
                Call::WaitForRequest => {
                    prop_assert_eq!(consumer.wait_for_request(Duration::ZERO), model.request_pending());
                }
                Call::ReportError(error) => {
                    consumer.report_error(error);
                    model.end(Some(error));
                }
                Call::Close => {
                    fetcher.close();
                    model.end(None);
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Turn {
    TakeBatch,
    PollAndDrop,
    Assign,
    Yield,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        Just(Turn::TakeBatch),
        Just(Turn::PollAndDrop),
        Just(Turn::Assign),
        Just(Turn::Yield)
    ]
}

/// Waits for the next batch by asking again, up to a deadline; the wake-ups have tests of their own.
fn take_batch(fetcher: &FetcherSide<u32, u32, u8>) -> u32 {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(outcome) = fetcher.try_next() {
            return outcome.expect("the handover is open");
        }
        assert!(Instant::now() < give_up, "no batch arrived");
        thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// While open, the fetcher gets all batches in order and the consumer all partitions in order, however the fetcher's
    /// turns fall between the consumer's.
    #[test]
    fn two_threads_keep_order_and_lose_nothing(turns in vec(turn(), 0..100), batches in 1_u32..200) {
        let (consumer, fetcher) = channel::<u32, u32, u8>();
        let thread = thread::spawn(move || {
            let mut assigned = Vec::new();
            for polled in 0..batches {
                let mut batch = polled;
                while let Produced::Interrupted(kept) = consumer.produce(batch) {
                    assigned.extend(consumer.take_requests().assign);
                    batch = kept;
                }
            }
            (consumer, assigned)
        });
        let mut received = Vec::new();
        let mut requested = 0;
        for turn in turns {
            match turn {
                Turn::TakeBatch if received.len() < batches as usize => received.push(take_batch(&fetcher)),
                Turn::TakeBatch | Turn::Yield => thread::yield_now(),
                Turn::PollAndDrop => {
                    let polled = pin!(fetcher.next()).poll(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(outcome) = polled {
                        received.push(outcome.expect("the handover is open"));
                    }
                }
                Turn::Assign => {
                    fetcher.assign([requested]);
                    requested += 1;
                }
            }
        }
        while received.len() < batches as usize {
            received.push(take_batch(&fetcher));
        }
        let (consumer, mut assigned) = thread.join().expect("the consumer's thread");
        assigned.extend(consumer.take_requests().assign);
        prop_assert_eq!(received, (0..batches).collect::<Vec<_>>());
        prop_assert_eq!(assigned, (0..requested).collect::<Vec<_>>());
    }
}
