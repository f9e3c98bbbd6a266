//! What an answer of Kafka means for the job: wait, fail, or ask for a permission.

use rdkafka_ext::{CallError, ClientError, CreateError, ErrorCode};

use crate::{
    engine::error::{ErrorClass, KafkaError},
    model::code::Code,
};

/// What a call was about, to name the ACL if it is refused.
///
/// Source of the permissions: the table of operations in Kafka's documentation, section "Authorization and ACLs".
#[derive(Debug, Clone)]
pub(super) enum Subject {
    /// Reading records.
    Fetch { topic: String },
    /// Writing records.
    Produce { topic: String },
    /// Metadata and offsets of topics; the refused one if it is known.
    Topics { topic: Option<String> },
    /// Reading a group's members or offsets.
    Group { group: String },
    /// Committing to a group.
    Commit {
        group: String,
        topic: Option<String>,
    },
    /// Deleting a group.
    DeletedGroup { group: String },
}

impl Subject {
    /// The ACL to grant when the broker answers with an authorization error.
    fn acl(&self, code: ErrorCode) -> String {
        if code == ErrorCode::CLUSTER_AUTHORIZATION_FAILED {
            return "Describe on the cluster".to_owned();
        }
        let of_topic = |operation: &str, topic: Option<&str>| match topic {
            Some(topic) => format!("{operation} on topic `{topic}`"),
            None => format!("{operation} on the topics"),
        };
        match self {
            Self::Fetch { topic } => of_topic("Read", Some(topic)),
            Self::Produce { topic } => of_topic("Write", Some(topic)),
            Self::Topics { topic } => of_topic("Describe", topic.as_deref()),
            Self::Group { group } if code == ErrorCode::GROUP_AUTHORIZATION_FAILED => {
                format!("Describe on group `{group}`")
            }
            Self::Group { .. } => of_topic("Describe", None),
            Self::Commit { group, .. } if code == ErrorCode::GROUP_AUTHORIZATION_FAILED => {
                format!("Read on group `{group}`")
            }
            Self::Commit { topic, .. } => of_topic("Read", topic.as_deref()),
            Self::DeletedGroup { group } => format!("Delete on group `{group}`"),
        }
    }
}

/// An answer with an error code.
pub(super) fn answered(
    operation: impl Into<String>,
    subject: &Subject,
    error: &rdkafka_ext::KafkaError,
) -> KafkaError {
    let (code, class) = classify(error.code);
    let detail = if code == Code::KafkaNotAuthorized {
        format!(
            "{error}; grant the connection's user the ACL {}",
            subject.acl(error.code)
        )
    } else if code == Code::GroupInUse {
        format!("{error}; another consumer is a member of the group by subscription")
    } else {
        error.to_string()
    };
    KafkaError {
        operation: operation.into(),
        detail,
        code,
        class,
    }
}

/// A call that failed as a whole.
pub(super) fn call(
    operation: impl Into<String>,
    subject: &Subject,
    error: &CallError,
) -> KafkaError {
    match error {
        CallError::Failed { error, .. } => answered(operation, subject, error),
        CallError::Deadline {
            waited, last_error, ..
        } => deadline(operation, *waited, last_error.as_ref()),
        CallError::Argument { problem, .. } => KafkaError {
            operation: operation.into(),
            detail: problem.clone(),
            code: Code::KafkaError,
            class: ErrorClass::Deterministic,
        },
    }
}

/// No answer in time. The client's last error says why, if there is one.
fn deadline(
    operation: impl Into<String>,
    waited: std::time::Duration,
    last_error: Option<&ClientError>,
) -> KafkaError {
    let (code, detail) = match last_error {
        Some(last) => (
            Code::KafkaUnreachable,
            format!("no answer within {}; {}", in_seconds(waited), client(last)),
        ),
        None => (
            Code::KafkaTimeout,
            format!("no answer within {}", in_seconds(waited)),
        ),
    };
    KafkaError {
        operation: operation.into(),
        detail,
        code,
        class: ErrorClass::Infrastructure,
    }
}

/// To the tenth: what was left of a deadline is not a round number.
fn in_seconds(waited: std::time::Duration) -> String {
    let tenths = (waited.as_secs_f64() * 10.0).round() / 10.0;
    format!("{tenths} s")
}

/// An error of a whole client, in words.
pub(super) fn client(error: &ClientError) -> String {
    if error.error.code == ErrorCode::AUTHENTICATION {
        return format!("the broker refuses the login: {}", error.error);
    }
    error.error.to_string()
}

/// A client that could not be made.
pub(super) fn create(operation: impl Into<String>, error: &CreateError) -> KafkaError {
    KafkaError {
        operation: operation.into(),
        detail: error.to_string(),
        code: Code::KafkaError,
        class: ErrorClass::Deterministic,
    }
}

/// Whether the error is about the partition having (for the moment) nobody who answers for it.
pub(super) fn is_leader_error(code: ErrorCode) -> bool {
    // LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, REPLICA_NOT_AVAILABLE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
    matches!(code.0, 5 | 6 | 9 | 74 | 75)
}

/// Whether the topic or partition does not exist.
pub(super) fn is_unknown(code: ErrorCode) -> bool {
    [
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode::UNKNOWN_TOPIC,
        ErrorCode::UNKNOWN_PARTITION,
    ]
    .contains(&code)
}

/// Whether asking again can help.
pub(super) fn is_infrastructure(code: ErrorCode) -> bool {
    classify(code).1 == ErrorClass::Infrastructure
}

/// Sorts a code. What is not known to pass by itself is taken for lasting: a job that waits for ever without a reason is
/// worse than one that says what happened.
fn classify(code: ErrorCode) -> (Code, ErrorClass) {
    use ErrorClass::{Deterministic, Infrastructure};
    match code.0 {
        // TOPIC_, GROUP_, CLUSTER_ and TRANSACTIONAL_ID_AUTHORIZATION_FAILED.
        29 | 30 | 31 | 53 => (Code::KafkaNotAuthorized, Deterministic),
        // ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, NON_EMPTY_GROUP, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH: somebody else is a member.
        22 | 25 | 68 | 82 | 110 => (Code::GroupInUse, Infrastructure),
        1 => (Code::OffsetOutOfRange, Deterministic),
        3 | -188 | -190 => (Code::UnknownTopic, Deterministic),
        // REQUEST_TIMED_OUT; librdkafka's own time-outs.
        7 | -185 | -192 | -166 => (Code::KafkaTimeout, Infrastructure),
        // librdkafka: transport, resolving, all brokers down, TLS, login, connection failure, coordinator or metadata
        // awaited, node changed, broker removed.
        -195 | -193 | -187 | -181 | -169 | -196 | -180 | -164 | -182 | -137 => {
            (Code::KafkaUnreachable, Infrastructure)
        }
        // librdkafka's _NOENT: none of the partitions asked about has a leader, for example after all brokers were fenced.
        -156 => (Code::NoLeader, Infrastructure),
        // Kafka's retriable errors: no leader or coordinator (yet), load in progress, storage error, rebalance, throttling,
        // unstable offsets, topic id not known (yet) and the unnamed server error; librdkafka: partial answer, try again.
        -1
        | 5
        | 6
        | 8
        | 9
        | 13..=16
        | 19
        | 20
        | 27
        | 41
        | 51
        | 56
        | 72
        | 74
        | 75
        | 78
        | 88
        | 89
        | 100
        | 103
        | -158
        | -153
        | -178
        | -177 => (Code::KafkaError, Infrastructure),
        _ => (Code::KafkaError, Deterministic),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn answer(code: i32, subject: &Subject) -> KafkaError {
        let error = rdkafka_ext::KafkaError {
            code: ErrorCode(code),
            text: "Broker: no".to_owned(),
        };
        answered("list offsets", subject, &error)
    }

    #[test]
    fn a_missing_permission_is_named_and_lasting() {
        let topic = Some("orders".to_owned());
        let group = "readers".to_owned();
        let cases = [
            (
                29,
                Subject::Fetch {
                    topic: "orders".to_owned(),
                },
                "Read on topic `orders`",
            ),
            (
                29,
                Subject::Topics {
                    topic: topic.clone(),
                },
                "Describe on topic `orders`",
            ),
            (
                30,
                Subject::Group {
                    group: group.clone(),
                },
                "Describe on group `readers`",
            ),
            (
                30,
                Subject::Commit {
                    group: group.clone(),
                    topic: topic.clone(),
                },
                "Read on group `readers`",
            ),
            (
                29,
                Subject::Commit { group, topic },
                "Read on topic `orders`",
            ),
            (
                31,
                Subject::Topics { topic: None },
                "Describe on the cluster",
            ),
        ];
        for (code, subject, acl) in cases {
            let error = answer(code, &subject);
            assert_eq!(
                (error.code, error.class),
                (Code::KafkaNotAuthorized, ErrorClass::Deterministic)
            );
            assert!(
                error.detail.ends_with(&format!("the ACL {acl}")),
                "{}",
                error.detail
            );
        }
    }

    #[test]
    fn what_passes_is_waited_for_and_what_does_not_is_not() {
        let subject = Subject::Topics { topic: None };
        for code in [
            -195, -193, -187, -185, -169, -156, 5, 6, 7, 14, 15, 16, 56, 88,
        ] {
            assert_eq!(
                answer(code, &subject).class,
                ErrorClass::Infrastructure,
                "{code}"
            );
        }
        // CORRUPT_MESSAGE, OFFSET_METADATA_TOO_LARGE, INVALID_TOPIC, UNSUPPORTED_VERSION, bad message, and one from the future.
        for code in [2, 12, 17, 35, -199, 999] {
            assert_eq!(
                answer(code, &subject).class,
                ErrorClass::Deterministic,
                "{code}"
            );
        }
        assert_eq!(answer(3, &subject).code, Code::UnknownTopic);
    }

    #[test]
    fn what_was_waited_is_told_in_tenths_of_a_second() {
        assert_eq!(in_seconds(Duration::from_nanos(9_213_817_848)), "9.2 s");
        assert_eq!(in_seconds(Duration::from_secs(5)), "5 s");
    }

    #[test]
    fn a_deadline_tells_the_cause_if_there_is_one() {
        let waited = Duration::from_secs(5);
        let silent = CallError::Deadline {
            operation: "x",
            waited,
            last_error: None,
        };
        assert_eq!(
            call("x", &Subject::Topics { topic: None }, &silent).code,
            Code::KafkaTimeout
        );
        let login = ClientError {
            error: rdkafka_ext::KafkaError {
                code: ErrorCode::AUTHENTICATION,
                text: "bad password".to_owned(),
            },
            fatal: false,
            at: Instant::now(),
        };
        let refused = CallError::Deadline {
            operation: "x",
            waited,
            last_error: Some(login),
        };
        let error = call("x", &Subject::Topics { topic: None }, &refused);
        assert_eq!(error.code, Code::KafkaUnreachable);
        assert!(
            error.detail.contains("refuses the login"),
            "{}",
            error.detail
        );
    }
}
