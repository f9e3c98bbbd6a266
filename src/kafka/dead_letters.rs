//! Writes records that a job cannot process to a topic of their own.
//!
//! A plain producer with `acks=all`: a letter counts when all in-sync replicas have it. It is not idempotent on purpose: a
//! letter may stand twice after a lost answer, and a client that ends for good after one would hold the job back.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use rdkafka::{
    ClientContext,
    config::{ClientConfig, RDKafkaLogLevel},
    error::{KafkaError as ClientFailure, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, ProducerContext, ThreadedProducer},
};
use tokio::sync::oneshot;

use super::error::{self, Subject};
use crate::{
    engine::{
        error::{ErrorClass, KafkaError},
        ports::{DeadLetter, DeadLetterTopic},
    },
    model::code::Code,
};

/// How long one letter is tried by the client before it says that it could not.
const DELIVERY_MS: &str = "30000";
/// The pause before a full queue is tried again.
const QUEUE_PAUSE: Duration = Duration::from_millis(20);
/// Letters may be as large as any record that the brokers took, and a few headers more; whether they take it is their word.
const MAX_BYTES: &str = "1000000000";

type Delivered = Result<(), RDKafkaErrorCode>;

/// A topic for dead letters.
pub(super) struct LetterTopic {
    topic: String,
    /// `None` only while it is dropped.
    producer: Option<ThreadedProducer<Context>>,
}

impl LetterTopic {
    /// Makes the client. Nothing is asked of a broker.
    ///
    /// # Errors
    /// When the settings are refused.
    pub(super) fn create(mut config: ClientConfig, topic: &str) -> Result<Self, KafkaError> {
        config
            .set("acks", "all")
            .set("message.timeout.ms", DELIVERY_MS)
            .set("message.max.bytes", MAX_BYTES)
            // Java's partitioner: letters of one key stay together, and where other producers would put them.
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "0");
        let producer = config
            .create_with_context(Context)
            .map_err(|error| KafkaError {
                operation: format!("make a producer for dead letters to {topic}"),
                detail: error.to_string(),
                code: Code::KafkaError,
                class: ErrorClass::Deterministic,
            })?;
        Ok(Self {
            topic: topic.to_owned(),
            producer: Some(producer),
        })
    }

    fn failed(&self, code: RDKafkaErrorCode) -> KafkaError {
        let error = rdkafka_ext::KafkaError {
            code: rdkafka_ext::ErrorCode(code as i32),
            text: code.to_string(),
        };
        let subject = Subject::Produce {
            topic: self.topic.clone(),
        };
        error::answered(
            format!("write a dead letter to {}", self.topic),
            &subject,
            &error,
        )
    }

    /// Queues a letter and waits for the brokers' answer.
    async fn deliver_one(&self, letter: &DeadLetter) -> Result<(), KafkaError> {
        let Some(producer) = &self.producer else {
            return Ok(());
        };
        loop {
            let (opaque, delivered) = oneshot::channel::<Delivered>();
            let mut record =
                BaseRecord::<[u8], [u8], _>::with_opaque_to(&self.topic, Box::new(opaque))
                    .headers(headers_of(letter));
            if let Some(key) = &letter.key {
                record = record.key(key);
            }
            if let Some(value) = &letter.value {
                record = record.payload(value);
            }
            let refused = match producer.send(record) {
                Ok(()) => {
                    let outcome = delivered.await.unwrap_or(Err(RDKafkaErrorCode::PurgeQueue));
                    return outcome.map_err(|code| self.failed(code));
                }
                Err((ClientFailure::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => {
                    tokio::time::sleep(QUEUE_PAUSE).await;
                    continue;
                }
                Err((refused, _)) => refused,
            };
            let code = refused.rdkafka_error_code();
            return Err(self.failed(code.unwrap_or(RDKafkaErrorCode::Unknown)));
        }
    }
}

#[async_trait]
impl DeadLetterTopic for LetterTopic {
    fn name(&self) -> &str {
        &self.topic
    }

    async fn deliver(&self, letters: &[DeadLetter]) -> Vec<Result<(), KafkaError>> {
        futures_util::future::join_all(letters.iter().map(|letter| self.deliver_one(letter))).await
    }
}

impl Drop for LetterTopic {
    fn drop(&mut self) {
        // The end of a client waits for its threads, which may wait for a broker.
        let producer = self.producer.take();
        let ended = std::thread::Builder::new()
            .name("dead-letters-end".to_owned())
            .spawn(move || drop(producer));
        if let Err(error) = ended {
            tracing::warn!(%error, "the producer of dead letters was ended by its user");
        }
    }
}

fn headers_of(letter: &DeadLetter) -> OwnedHeaders {
    let headers = OwnedHeaders::new_with_capacity(letter.headers.len());
    letter.headers.iter().fold(headers, |headers, header| {
        // A name that is no UTF-8 cannot be written by this client; no other client of Kafka's own can read one either.
        let name = String::from_utf8_lossy(&header.name);
        headers.insert(Header {
            key: &name,
            value: header.value.as_ref(),
        })
    })
}

struct Context;

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        use RDKafkaLogLevel as Level;
        let worth_a_line = match level {
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => true,
            Level::Notice | Level::Info | Level::Debug => false,
        };
        if worth_a_line {
            tracing::warn!(target: "librdkafka", client = "dead-letters", facility, "{message}");
        }
    }

    fn error(&self, error: ClientFailure, reason: &str) {
        tracing::warn!(%error, reason, "the producer of dead letters is disturbed");
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<oneshot::Sender<Delivered>>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Self::DeliveryOpaque) {
        let outcome = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error
                .rdkafka_error_code()
                .unwrap_or(RDKafkaErrorCode::Unknown)),
        };
        // Nobody waits any more when the run has ended: the record is read again and written again.
        let _unheard = opaque.send(outcome);
    }
}

/// Keeps a topic's client for as long as it is used.
pub(super) fn shared(topic: LetterTopic) -> Arc<dyn DeadLetterTopic> {
    Arc::new(topic)
}
