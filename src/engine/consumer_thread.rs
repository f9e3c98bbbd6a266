//! The thread that owns a consumer client.
//!
//! librdkafka's client is polled by blocking, and one thread per client is what lets a full hand-over slot stop the polling
//! (that *is* the back-pressure) while everything else goes on. The loop keeps the order of Flink's
//! `KafkaConsumerThread`: serve control requests, poll unless a batch is being carried over, hand over. It differs in two
//! points: commits do not pass through it (librdkafka's handle is thread-safe, so a slow sink cannot freeze the group's
//! offset), and a partition is only ever assigned at a number, so there is nothing to seek or resolve here. A partition that
//! is parked is taken out of the assignment and not paused: what the client had prefetched of it goes away either way, and
//! where it goes on is again a number.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use handover_slot::{ConsumerSide, Produced};
use tokio::sync::oneshot;

use super::{
    error::{ConsumerError, JobError},
    ports::{Consumer, Polled},
    stages::Stopwatch,
    threads::Threads,
};
use crate::model::{offset::Offset, record::RecordBatch, topic::TopicPartition};

/// A partition to read, and from where.
pub(super) type Assignment = (TopicPartition, Offset);
/// The thread's end of the hand-over.
pub(super) type Producer = ConsumerSide<Fetched, Request, JobError>;

/// What a subtask asks of its consumer thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Read a partition.
    Read(Assignment),
    /// Read it no longer.
    Leave(TopicPartition),
}

/// What one poll brought, on its way to the subtask.
#[derive(Debug)]
pub(super) struct Fetched {
    /// How many requests had been served when it was fetched. Records of a partition that was left and given again lie in
    /// the client, in this thread's hand and in the slot at the same time: this tells which ones are of an older assignment.
    pub served: u64,
    /// What came.
    pub what: Content,
}

/// See [`Fetched`].
#[derive(Debug)]
pub(super) enum Content {
    /// Records.
    Batch(RecordBatch),
    /// The log does not hold a partition's position; nothing of it comes any more until it is left and given again.
    OutOfRange(TopicPartition),
    /// The brokers do not know a partition; nothing of it comes any more until it is left and given again.
    Unknown(TopicPartition),
}

/// A poll that finds nothing ends after this time, so it bounds the delay of an assignment and of a stop: a blocked poll
/// cannot be woken.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// Whether the client has lost its brokers, in its own words.
#[derive(Debug, Clone, Default)]
pub(super) struct Reachability(Arc<Mutex<Option<String>>>);

impl Reachability {
    pub(super) fn lost(&self, detail: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(detail);
    }

    pub(super) fn regained(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn problem(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// One consumer client, its end of the hand-over, and a batch that could not be handed over yet.
struct ConsumerLoop {
    consumer: Box<dyn Consumer>,
    producer: Producer,
    reachability: Reachability,
    /// How long it stood with a batch that nobody took.
    blocked: Arc<Stopwatch>,
    carried: Option<Fetched>,
    has_partitions: bool,
    /// Requests served.
    served: u64,
}

/// Whether a turn of the loop may block its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// Until there is something to do.
    Blocks,
    /// Never: the turns are those of a task.
    #[cfg(test)]
    None,
}

impl Patience {
    fn poll_wait(self) -> Duration {
        match self {
            Self::Blocks => POLL_WAIT,
            #[cfg(test)]
            Self::None => Duration::ZERO,
        }
    }
}

enum Step {
    GoOn,
    Ended,
}

impl ConsumerLoop {
    fn run(&mut self) {
        loop {
            match self.step(Patience::Blocks) {
                Ok(Step::GoOn) => {}
                Ok(Step::Ended) => return,
                Err(error) => return self.producer.report_error(error),
            }
        }
    }

    /// The same loop as a task whose turns follow each other in the runtime's time, which a simulation moves.
    #[cfg(test)]
    async fn run_as_task(&mut self) {
        loop {
            match self.step(Patience::None) {
                Ok(Step::GoOn) => Threads::pause(POLL_WAIT).await,
                Ok(Step::Ended) => return,
                Err(error) => return self.producer.report_error(error),
            }
        }
    }

    fn step(&mut self, patience: Patience) -> Result<Step, JobError> {
        let requests = self.producer.take_requests();
        if requests.stop {
            return Ok(Step::Ended);
        }
        self.serve(requests.assign)?;
        if !self.has_partitions {
            self.producer.wait_for_request(patience.poll_wait());
            return Ok(Step::GoOn);
        }
        let fetched = match self.carried.take() {
            Some(fetched) => fetched,
            None => match self.fetch(patience)? {
                Some(fetched) => fetched,
                None => return Ok(Step::GoOn),
            },
        };
        match self.hand_over(patience, fetched) {
            Produced::Delivered => Ok(Step::GoOn),
            Produced::Interrupted(fetched) => {
                self.carried = Some(fetched);
                Ok(Step::GoOn)
            }
            Produced::Closed(_) => Ok(Step::Ended),
        }
    }

    /// Hands over what was fetched; looks at the clock only where it has to wait.
    fn hand_over(&self, patience: Patience, fetched: Fetched) -> Produced<Fetched> {
        let is_patient = patience == Patience::Blocks;
        match self.producer.try_produce(fetched) {
            Produced::Interrupted(fetched) if is_patient => self
                .blocked
                .while_waiting(|| self.producer.produce(fetched)),
            outcome @ (Produced::Delivered | Produced::Interrupted(_) | Produced::Closed(_)) => {
                outcome
            }
        }
    }

    /// Serves requests in their order; partitions that are given one after the other go to the client together.
    fn serve(&mut self, requests: Vec<Request>) -> Result<(), JobError> {
        let mut together: Vec<Assignment> = Vec::new();
        for request in requests {
            self.served += 1;
            match request {
                Request::Read(assignment) => together.push(assignment),
                Request::Leave(partition) => {
                    self.assign(&mut together)?;
                    self.consumer.unassign(&[partition])?;
                }
            }
        }
        self.assign(&mut together)
    }

    fn assign(&mut self, partitions: &mut Vec<Assignment>) -> Result<(), JobError> {
        if partitions.is_empty() {
            return Ok(());
        }
        self.consumer.assign(partitions)?;
        partitions.clear();
        self.has_partitions = true;
        Ok(())
    }

    fn fetch(&mut self, patience: Patience) -> Result<Option<Fetched>, JobError> {
        let what = match self.consumer.poll(patience.poll_wait()) {
            Ok(Polled::Batch(batch)) => Content::Batch(batch),
            Ok(Polled::Idle) => {
                self.reachability.regained();
                return Ok(None);
            }
            Ok(Polled::Unreachable(detail)) => {
                self.reachability.lost(detail);
                return Ok(None);
            }
            Err(ConsumerError::OutOfRange { partition, .. }) => Content::OutOfRange(partition),
            Err(ConsumerError::TopicUnknown { partition }) => Content::Unknown(partition),
            Err(error) => return Err(error.into()),
        };
        self.reachability.regained();
        Ok(Some(Fetched {
            served: self.served,
            what,
        }))
    }
}

/// Starts the thread. The receiver resolves when the client is closed and the thread is about to end.
pub(super) fn spawn(
    threads: Threads,
    name: &str,
    consumer: Box<dyn Consumer>,
    producer: Producer,
    reachability: Reachability,
    blocked: Arc<Stopwatch>,
) -> std::io::Result<oneshot::Receiver<()>> {
    let (ended, has_ended) = oneshot::channel();
    let part = name.to_owned();
    let mut consumer_loop = ConsumerLoop {
        consumer,
        producer,
        reachability,
        blocked,
        carried: None,
        has_partitions: false,
        served: 0,
    };
    match threads {
        Threads::Own => {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| consumer_loop.run()));
                    consumer_loop.end(part, outcome, ended);
                })?;
        }
        #[cfg(test)]
        Threads::Tasks => {
            Threads::spawn_task(async move {
                consumer_loop.run_as_task().await;
                consumer_loop.end(part, Ok(()), ended);
            });
        }
    }
    Ok(has_ended)
}

impl ConsumerLoop {
    fn end(self, part: String, outcome: std::thread::Result<()>, ended: oneshot::Sender<()>) {
        let Self {
            consumer,
            producer,
            carried,
            ..
        } = self;
        if let Err(panic) = outcome {
            producer.report_error(JobError::Panicked {
                part,
                detail: panic_text(panic.as_ref()),
            });
        }
        // The fetch loop must see the end at once, not when the client has closed: that may take a session time-out.
        drop(producer);
        drop(carried);
        consumer.close();
        // Nobody listens any more when the job gave up waiting.
        let _unheard = ended.send(());
    }
}

/// The words of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no words".to_owned())
}
