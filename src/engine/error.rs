//! Why something below the engine did not work, and what that means for the job.
//!
//! The one question that decides what happens next is whether trying the same again can help. Infrastructure that is away
//! (a broker, the store, a target database) is waited for without end; what would fail the same way for ever (a record that
//! cannot be decoded, a refused statement, a missing permission) fails at once and says what to do.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{
    code::Code,
    job_status::{FailedRecord, JobFailure},
    offset::Offset,
    topic::{TopicId, TopicPartition},
};

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Something is away or busy; it is tried again for ever.
    Infrastructure,
    /// The same would happen again; the job fails.
    Deterministic,
}

/// Kafka did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation}: {detail}")]
pub struct KafkaError {
    /// What was tried, for example `list offsets of 12 partitions`.
    pub operation: String,
    /// The broker's or the client's words, with the missing ACL if that is the cause.
    pub detail: String,
    /// `kafka-unreachable`, `kafka-timeout`, `kafka-error`, `kafka-not-authorized`, `unknown-topic` ...
    pub code: Code,
    /// Whether trying again can help.
    pub class: ErrorClass,
}

impl KafkaError {
    /// Waits so long for an answer, and no longer.
    pub(super) async fn unless_answered<T>(
        operation: &str,
        patience: Duration,
        answer: impl Future<Output = Result<T, Self>>,
    ) -> Result<T, Self> {
        let answer = tokio::time::timeout(patience, answer).await;
        answer.unwrap_or_else(|_elapsed| {
            Err(Self {
                operation: operation.to_owned(),
                detail: format!("no answer within {} s", patience.as_secs()),
                code: Code::KafkaTimeout,
                class: ErrorClass::Infrastructure,
            })
        })
    }
}

/// A consumer cannot go on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConsumerError {
    /// The broker no longer (or not yet) has the position.
    #[error("{partition}: position {position} is outside the log")]
    OutOfRange {
        /// Where.
        partition: TopicPartition,
        /// The position that was asked for.
        position: Offset,
    },
    /// The brokers say that they have no such partition: its topic was deleted, or they do not know it yet.
    #[error("{partition}: the brokers do not know it (any more)")]
    TopicUnknown {
        /// Which.
        partition: TopicPartition,
    },
    /// The topic was deleted, and another one has its name: the position means nothing there.
    #[error("{partition}: the topic was deleted and created again (id {then} then, {now} now)")]
    TopicRecreated {
        /// Which partition.
        partition: TopicPartition,
        /// The id of the topic that was read.
        then: TopicId,
        /// The id of the one that has its name.
        now: TopicId,
    },
    /// Anything else.
    #[error(transparent)]
    Kafka(#[from] KafkaError),
}

/// The store did not keep what it was given.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another owner holds the lease, or none does: nothing was written and nothing more may be.
    #[error("the lease is no longer held")]
    Fenced,
    /// The store does not answer. Whether the last statement took effect may be unknown; every protected write can be
    /// repeated safely.
    #[error("the store does not answer: {0}")]
    Unavailable(String),
    /// The job was deleted, or never was.
    #[error("there is no such job")]
    NoSuchJob,
    /// The store refused for a reason that will not pass; a bug or a damaged database.
    #[error("the store refused: {0}")]
    Refused(String),
}

/// A sink did not take records.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{detail}")]
pub struct SinkError {
    /// What happened, with the target's words.
    pub detail: String,
    /// The record, if one is to blame.
    pub record: Option<Box<FailedRecord>>,
    /// `sink-error`, or a code that says more; `lease-lost` when the target knows a newer owner, `panicked` when a
    /// part of the sink has crashed.
    pub code: Code,
    /// Whether trying again can help.
    pub class: ErrorClass,
}

impl SinkError {
    /// A part of the sink is gone: nobody knows whether it would happen again.
    #[must_use]
    pub fn crashed(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            record: None,
            code: Code::Panicked,
            class: ErrorClass::Deterministic,
        }
    }

    /// A target that is away or busy.
    #[must_use]
    pub fn away(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            record: None,
            code: Code::SinkError,
            class: ErrorClass::Infrastructure,
        }
    }

    /// A target that would refuse the same again.
    #[must_use]
    pub fn refused(detail: impl Into<String>) -> Self {
        Self {
            class: ErrorClass::Deterministic,
            ..Self::away(detail)
        }
    }

    /// A target that a newer owner has claimed.
    #[must_use]
    pub fn fenced(detail: impl Into<String>) -> Self {
        Self {
            code: Code::LeaseLost,
            ..Self::refused(detail)
        }
    }
}

/// Why a job's engine ended without being asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JobError {
    /// A record is not what the format says.
    #[error("cannot decode {topic}/{partition}@{offset}: {detail}", topic = record.topic, partition = record.partition, offset = record.offset)]
    Decode {
        /// The record.
        record: Box<FailedRecord>,
        /// What is wrong with it.
        detail: String,
    },
    /// A record that cannot be processed cannot be written to the topic for dead letters either.
    #[error("{why}; as a dead letter it is refused, too: {refusal}")]
    DeadLetter {
        /// The record.
        record: Box<FailedRecord>,
        /// What is wrong with it.
        why: String,
        /// Why the letter was refused.
        refusal: KafkaError,
    },
    /// A consumer cannot go on.
    #[error(transparent)]
    Consumer(#[from] ConsumerError),
    /// The sink refused.
    #[error("the sink refused: {0}")]
    Sink(SinkError),
    /// Another owner took the job.
    #[error("another server took the job over")]
    Fenced,
    /// The store refused.
    #[error("the store refused: {0}")]
    Store(String),
    /// A part of the engine crashed.
    #[error("{part} crashed: {detail}")]
    Panicked {
        /// Which part.
        part: String,
        /// The panic's words.
        detail: String,
    },
}

impl From<SinkError> for JobError {
    fn from(error: SinkError) -> Self {
        if error.code == Code::LeaseLost {
            Self::Fenced
        } else if error.code == Code::Panicked {
            Self::Panicked {
                part: "the sink".to_owned(),
                detail: error.detail,
            }
        } else {
            Self::Sink(error)
        }
    }
}

impl JobError {
    /// The code under which the failure is shown.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Decode { .. } | Self::DeadLetter { .. } => Code::BlockedOnRecord,
            Self::Consumer(ConsumerError::OutOfRange { .. }) => Code::OffsetOutOfRange,
            Self::Consumer(ConsumerError::TopicUnknown { .. }) => Code::PartitionGone,
            Self::Consumer(ConsumerError::TopicRecreated { .. }) => Code::TopicRecreated,
            Self::Consumer(ConsumerError::Kafka(error)) => error.code,
            Self::Sink(error) => error.code,
            Self::Fenced => Code::LeaseLost,
            Self::Store(_) => Code::Internal,
            Self::Panicked { .. } => Code::Panicked,
        }
    }

    /// The failure as it is kept with the job.
    #[must_use]
    pub fn failure(&self, at: DateTime<Utc>) -> JobFailure {
        let (record, phase) = match self {
            Self::Decode { record, .. } => (Some((**record).clone()), Some("decode")),
            Self::DeadLetter { record, .. } => (Some((**record).clone()), Some("dead-letter")),
            Self::Sink(error) => (error.record.as_deref().cloned(), Some("write")),
            Self::Consumer(_) | Self::Fenced | Self::Store(_) | Self::Panicked { .. } => {
                (None, None)
            }
        };
        JobFailure {
            code: self.code(),
            summary: self.to_string(),
            record,
            phase: phase.map(str::to_owned),
            first_seen: at,
        }
    }
}
