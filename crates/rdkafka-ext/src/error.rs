//! Errors as Kafka and librdkafka number them.
//!
//! The code is kept as the number that arrived: a broker newer than the linked library sends codes that the library has
//! no name for, and those must stay distinguishable.

use std::{
    fmt,
    time::{Duration, Instant},
};

use crate::ffi;

/// An error code of Kafka's protocol (positive) or of librdkafka itself (negative).
///
/// Source: `rd_kafka_resp_err_t` of librdkafka and the error table of Kafka's protocol guide.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub i32);

impl ErrorCode {
    /// No error.
    pub const NO_ERROR: Self = Self(0);
    /// The requested offset is not in the log.
    pub const OFFSET_OUT_OF_RANGE: Self = Self(1);
    /// The broker does not know the topic or partition.
    pub const UNKNOWN_TOPIC_OR_PARTITION: Self = Self(3);
    /// The partition has no leader at the moment.
    pub const LEADER_NOT_AVAILABLE: Self = Self(5);
    /// The broker asked does not lead the partition.
    pub const NOT_LEADER_OR_FOLLOWER: Self = Self(6);
    /// The broker gave up waiting.
    pub const REQUEST_TIMED_OUT: Self = Self(7);
    /// The offset's metadata is longer than the broker allows.
    pub const OFFSET_METADATA_TOO_LARGE: Self = Self(12);
    /// The coordinator still reads the group's state.
    pub const COORDINATOR_LOAD_IN_PROGRESS: Self = Self(14);
    /// No coordinator for the group.
    pub const COORDINATOR_NOT_AVAILABLE: Self = Self(15);
    /// The broker asked is not the coordinator of the group.
    pub const NOT_COORDINATOR: Self = Self(16);
    /// The group does not know the member: for an assigned consumer, a sign of a subscribed member in the same group.
    pub const UNKNOWN_MEMBER_ID: Self = Self(25);
    /// No right on the topic.
    pub const TOPIC_AUTHORIZATION_FAILED: Self = Self(29);
    /// No right on the consumer group.
    pub const GROUP_AUTHORIZATION_FAILED: Self = Self(30);
    /// No right on the cluster.
    pub const CLUSTER_AUTHORIZATION_FAILED: Self = Self(31);
    /// The group has members.
    pub const NON_EMPTY_GROUP: Self = Self(68);
    /// No such consumer group.
    pub const GROUP_ID_NOT_FOUND: Self = Self(69);
    /// librdkafka: the offsets between the requested one and the next one are gone; raised for `auto.offset.reset=error`.
    pub const AUTO_OFFSET_RESET: Self = Self(-140);
    /// librdkafka: the end of the partition was reached.
    pub const PARTITION_EOF: Self = Self(-191);
    /// librdkafka: no broker can be reached.
    pub const ALL_BROKERS_DOWN: Self = Self(-187);
    /// librdkafka: an argument of the call is wrong.
    pub const INVALID_ARGUMENT: Self = Self(-186);
    /// librdkafka: the call took longer than its time-out.
    pub const TIMED_OUT: Self = Self(-185);
    /// librdkafka: broken connection.
    pub const TRANSPORT: Self = Self(-195);
    /// librdkafka: the broker's name cannot be resolved.
    pub const RESOLVE: Self = Self(-193);
    /// librdkafka: the topic does not exist.
    pub const UNKNOWN_TOPIC: Self = Self(-188);
    /// librdkafka: the partition does not exist.
    pub const UNKNOWN_PARTITION: Self = Self(-190);
    /// librdkafka: TLS failed.
    pub const SSL: Self = Self(-181);
    /// librdkafka: SASL authentication failed.
    pub const AUTHENTICATION: Self = Self(-169);
    /// librdkafka: nothing to commit.
    pub const NO_OFFSET: Self = Self(-168);
    /// librdkafka: the answer left out what was asked for.
    pub const PARTIAL: Self = Self(-158);
    /// librdkafka: the log was cut and written anew behind the position.
    pub const LOG_TRUNCATION: Self = Self(-139);
    /// librdkafka: the client cannot go on at all.
    pub const FATAL: Self = Self(-150);

    /// The name in Kafka's or librdkafka's table, such as `OFFSET_OUT_OF_RANGE` or `_TRANSPORT`.
    #[must_use]
    pub fn name(self) -> String {
        ffi::error_name(self.0)
    }

    /// librdkafka's sentence for the code.
    #[must_use]
    pub fn text(self) -> String {
        ffi::error_text(self.0)
    }

    /// `Err` unless the code is 0.
    pub(crate) fn check(self, text: impl FnOnce() -> Option<String>) -> Result<(), KafkaError> {
        if self == Self::NO_ERROR {
            return Ok(());
        }
        Err(KafkaError {
            code: self,
            text: text().unwrap_or_else(|| self.text()),
        })
    }
}

impl fmt::Debug for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// An error with its code and the text that came with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} ({code})")]
pub struct KafkaError {
    /// The code.
    pub code: ErrorCode,
    /// The text of the broker or of librdkafka.
    pub text: String,
}

impl KafkaError {
    pub(crate) fn of(code: ErrorCode) -> Self {
        Self {
            code,
            text: code.text(),
        }
    }
}

/// An error of the whole client rather than of a call: a lost broker, a refused login.
///
/// librdkafka goes on trying after all of them but `fatal` ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientError {
    /// Code and text.
    pub error: KafkaError,
    /// True if the client can do nothing more and must be made anew; the code is then the original one.
    pub fatal: bool,
    /// When it was heard.
    pub at: Instant,
}

/// A client could not be made. Neither text contains the value of a property, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// librdkafka does not know the property or refuses its value.
    #[error("client property `{property}` is refused by librdkafka: {reason}")]
    Property {
        /// The property's name.
        property: String,
        /// Unknown name or invalid value.
        reason: &'static str,
    },
    /// The properties do not fit together, or the machine refuses threads or memory.
    #[error("cannot create the Kafka client: {0}")]
    Client(String),
}

/// A call failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer in time. What was asked may still happen: a commit that ran into its deadline is of unknown outcome.
    #[error("{operation}: no answer within {waited:?}{}", last_error_suffix(last_error.as_ref()))]
    Deadline {
        /// The call.
        operation: &'static str,
        /// The deadline given.
        waited: Duration,
        /// The newest error of the client as a whole, the likely cause; none if it is older than half a minute before
        /// the call.
        last_error: Option<ClientError>,
    },
    /// The broker or librdkafka said no.
    #[error("{operation}: {error}")]
    Failed {
        /// The call.
        operation: &'static str,
        /// The answer.
        #[source]
        error: KafkaError,
    },
    /// An argument that cannot be sent at all.
    #[error("{operation}: {problem}")]
    Argument {
        /// The call.
        operation: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

fn last_error_suffix(last_error: Option<&ClientError>) -> String {
    last_error.map_or_else(String::new, |last| {
        format!("; the client's last error: {}", last.error)
    })
}
