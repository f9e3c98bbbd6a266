//! Questions on threads of their own.
//!
//! librdkafka's calls block, and one was seen not to return long after its own time-out. So each runs on a named thread
//! that is left behind if it does not come back, and the number of such threads is bounded. A client whose call had to be
//! abandoned is not asked again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rdkafka_ext::{
    AdminClient, CallError, ErrorCode, IsolationLevel, ListedOffset, OffsetSpec, PartitionOffset,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

use super::{
    client_config::KafkaConnection,
    error::{self, Subject},
    log,
};
use crate::{
    engine::error::{ErrorClass, KafkaError},
    model::{code::Code, topic::TopicPartition},
};

/// How long one request may take.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// How long a question may take with all its requests and repetitions.
const QUESTION_DEADLINE: Duration = Duration::from_secs(15);

/// How much longer than that its thread is waited for.
const GRACE: Duration = Duration::from_secs(3);

/// How many questions may be under way at once, abandoned ones included.
const MAX_QUESTIONS: usize = 32;

/// Partitions in one request. Answers to 10,000 take half a second and were once incomplete; 1,000 take 15 ms.
const MAX_PARTITIONS: usize = 1_000;

/// How often a partition is asked for.
const ATTEMPTS: usize = 3;

/// Pause before a repetition: a new leader is elected and known in about this time.
const PAUSE: Duration = Duration::from_millis(300);

/// The client that asks, made when it is first needed.
pub(super) struct Questions {
    connection: KafkaConnection,
    client: Mutex<Option<Arc<AdminClient>>>,
    places: Arc<Semaphore>,
}

impl Questions {
    pub(super) fn new(connection: KafkaConnection) -> Self {
        Self {
            connection,
            client: Mutex::new(None),
            places: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }

    /// Runs `question` on a thread of its own and waits for its answer.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        operation: &str,
        question: impl FnOnce(&Asked) -> Result<T, KafkaError> + Send + 'static,
    ) -> Result<T, KafkaError> {
        let place = self.place(operation).await?;
        let client = self.client()?;
        let asked = Asked {
            client: Arc::clone(&client),
            until: Instant::now() + QUESTION_DEADLINE,
        };
        let (sender, receiver) = oneshot::channel();
        let answer = move || {
            let _place: OwnedSemaphorePermit = place;
            // Nobody may be waiting any more.
            drop(sender.send(question(&asked)));
        };
        thread::Builder::new()
            .name("kafka-admin".to_owned())
            .spawn(answer)
            .map_err(|error| infrastructure(operation, format!("no thread: {error}")))?;
        match timeout(QUESTION_DEADLINE + GRACE, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(infrastructure(
                operation,
                "the question's thread ended without an answer".to_owned(),
            )),
            Err(_) => {
                self.give_up(&client);
                Err(infrastructure(
                    operation,
                    format!("the client did not return within {QUESTION_DEADLINE:?}"),
                ))
            }
        }
    }

    async fn place(&self, operation: &str) -> Result<OwnedSemaphorePermit, KafkaError> {
        let places = Arc::clone(&self.places);
        match timeout(REQUEST_DEADLINE, places.acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => Err(infrastructure(
                operation,
                format!("{MAX_QUESTIONS} questions to the cluster are under way"),
            )),
        }
    }

    fn client(&self) -> Result<Arc<AdminClient>, KafkaError> {
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was left with an open question is dropped when its last caller returns.
        if let Some(client) = slot.as_ref().filter(|client| !client.is_spent()) {
            return Ok(Arc::clone(client));
        }
        let config = self.connection.admin_config();
        let log = log::sink(
            self.connection.name(),
            config.get("client.id").unwrap_or_default(),
        );
        let client = AdminClient::create(&config, log)
            .map_err(|error| error::create("create an admin client", &error))?;
        let client = Arc::new(client);
        *slot = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Forgets a client that did not come back; the next question makes another.
    fn give_up(&self, hung: &Arc<AdminClient>) {
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if slot
            .as_ref()
            .is_some_and(|client| Arc::ptr_eq(client, hung))
        {
            *slot = None;
        }
        tracing::error!(
            connection = self.connection.name(),
            "an admin client hangs and is replaced"
        );
    }
}

fn infrastructure(operation: &str, detail: String) -> KafkaError {
    KafkaError {
        operation: operation.to_owned(),
        detail,
        code: Code::KafkaTimeout,
        class: ErrorClass::Infrastructure,
    }
}

/// Waits before asking again.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause of this thread alone, which runs no task and may be left behind"
)]
fn pause() {
    thread::sleep(PAUSE);
}

/// A partition and the offset found for it, or its own error.
pub(super) type Listed = (
    TopicPartition,
    Result<ListedOffset, rdkafka_ext::KafkaError>,
);

/// A client with the end of the time for a question.
pub(super) struct Asked {
    pub(super) client: Arc<AdminClient>,
    until: Instant,
}

impl Asked {
    /// The deadline of the next request.
    pub(super) fn deadline(&self) -> Duration {
        self.until
            .saturating_duration_since(Instant::now())
            .min(REQUEST_DEADLINE)
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Repeats a question while it fails for a reason that passes, up to the number of attempts.
    pub(super) fn repeat<T>(
        &self,
        question: impl Fn(&AdminClient, Duration) -> Result<T, KafkaError>,
    ) -> Result<T, KafkaError> {
        let mut attempt = 1;
        loop {
            let answer = question(&self.client, self.deadline());
            match &answer {
                Err(error)
                    if error.class == ErrorClass::Infrastructure
                        // Who does not answer at all has had its time.
                        && error.code == Code::KafkaError
                        && attempt < ATTEMPTS
                        && !self.is_over() => {}
                _ => return answer,
            }
            attempt += 1;
            pause();
        }
    }

    /// Looks up one offset for each partition. What passes is asked again, partition by partition.
    ///
    /// Fails if no partition at all was answered for.
    pub(super) fn list_offsets(
        &self,
        operation: &str,
        partitions: &[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<Vec<Listed>, KafkaError> {
        let mut answers = Vec::with_capacity(partitions.len());
        let mut open: Vec<TopicPartition> = partitions.to_vec();
        let mut failed_whole: Option<CallError> = None;
        for attempt in 1..=ATTEMPTS {
            let last = attempt == ATTEMPTS;
            let mut again = Vec::new();
            for chunk in open.chunks(MAX_PARTITIONS) {
                match self.list_chunk(chunk, spec, isolation) {
                    Ok(listed) => {
                        for (partition, offset) in chunk.iter().zip(listed) {
                            match offset.result {
                                Err(error) if error::is_infrastructure(error.code) && !last => {
                                    again.push(partition.clone());
                                }
                                result => answers.push((partition.clone(), result)),
                            }
                        }
                    }
                    Err(error) => {
                        again.extend_from_slice(chunk);
                        failed_whole = Some(error);
                    }
                }
            }
            open = again;
            if open.is_empty() || self.is_over() {
                break;
            }
            if !last {
                pause();
            }
        }
        if let (true, Some(error)) = (answers.is_empty() && !partitions.is_empty(), &failed_whole) {
            return Err(error::call(
                operation,
                &Subject::Topics { topic: None },
                error,
            ));
        }
        let unanswered = || rdkafka_ext::KafkaError {
            code: ErrorCode::TIMED_OUT,
            text: "no answer".to_owned(),
        };
        answers.extend(
            open.into_iter()
                .map(|partition| (partition, Err(unanswered()))),
        );
        Ok(answers)
    }

    fn list_chunk(
        &self,
        chunk: &[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel,
    ) -> Result<Vec<PartitionOffset>, CallError> {
        let specs: Vec<(&str, i32, OffsetSpec)> = chunk
            .iter()
            .map(|partition| (&*partition.topic, partition.partition, spec))
            .collect();
        self.client.list_offsets(&specs, isolation, self.deadline())
    }
}
