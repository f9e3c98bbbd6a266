//! Whether dead letters can be written, asked before they have to be: when a spec is put, in a plan, and when an operator
//! starts the job. A start by the server itself goes on without asking: at a bad record the partition is parked then.

use std::time::Duration;

use tokio::time::timeout;

use super::core::Core;
use crate::{
    engine::error::{ErrorClass, KafkaError},
    model::{
        code::Code,
        errors_spec::OnBadRecord,
        field_error::FieldError,
        job::JobSpec,
        resolver::{Blocker, Warning},
    },
};

/// How long a caller waits for the brokers.
const TOPIC_DEADLINE: Duration = Duration::from_secs(5);

/// What a look at the topic brought.
pub(crate) enum Looked {
    /// Nothing stands against it, or no letters are to be written.
    Fine,
    /// It cannot be written to, and that will not pass.
    Refused {
        code: Code,
        pointer: &'static str,
        why: String,
    },
    /// The brokers do not say.
    Unknown(String),
}

const CONNECTION: &str = "/errors/on_bad_record/connection";
const TOPIC: &str = "/errors/on_bad_record/topic";

/// Asks for the topic.
pub(crate) async fn look(core: &Core, spec: &JobSpec) -> Looked {
    let OnBadRecord::DeadLetter { connection, topic } = &spec.errors.on_bad_record else {
        return Looked::Fine;
    };
    let refused = |code, pointer, why| Looked::Refused { code, pointer, why };
    let Some(cluster) = core.clusters.get(connection) else {
        return refused(
            Code::InvalidSpec,
            CONNECTION,
            format!("the server's file has no Kafka connection '{connection}'"),
        );
    };
    if *connection == spec.source.connection && spec.source.topics.contains(topic) {
        return refused(
            Code::InvalidSpec,
            TOPIC,
            format!("the job reads '{topic}' itself: its dead letters would come back to it"),
        );
    }
    let names = [topic.clone()];
    let described = timeout(TOPIC_DEADLINE, cluster.describe_topics(&names)).await;
    match described {
        Ok(Ok(described)) if described.iter().all(|known| known.partitions.is_some()) => {
            Looked::Fine
        }
        Ok(Ok(_)) => refused(
            Code::UnknownTopic,
            TOPIC,
            format!("the cluster has no topic '{topic}' for dead letters; create it"),
        ),
        Ok(Err(KafkaError {
            class: ErrorClass::Deterministic,
            code,
            detail,
            ..
        })) => refused(code, TOPIC, format!("dead letters to '{topic}': {detail}")),
        Ok(Err(error)) => Looked::Unknown(error.to_string()),
        Err(_elapsed) => {
            Looked::Unknown(format!("no answer within {} s", TOPIC_DEADLINE.as_secs()))
        }
    }
}

impl Looked {
    /// For a spec that is put: brokers that do not answer are a warning, since it may be right all the same.
    pub(crate) fn of_spec(self) -> (Vec<FieldError>, Vec<Warning>) {
        match self {
            Self::Fine => (Vec::new(), Vec::new()),
            Self::Refused { pointer, why, .. } => (vec![FieldError::new(pointer, why)], Vec::new()),
            Self::Unknown(why) => {
                let warning = Warning {
                    code: Code::KafkaUnreachable,
                    summary: format!("whether dead letters can be written is not known: {why}"),
                };
                (Vec::new(), vec![warning])
            }
        }
    }

    /// For a plan, and for a start by an operator.
    pub(crate) fn blocker(self) -> Option<Blocker> {
        match self {
            Self::Fine | Self::Unknown(_) => None,
            Self::Refused { code, why, .. } => Some(Blocker {
                code,
                partitions: Vec::new(),
                summary: why,
                choices: Vec::new(),
            }),
        }
    }
}
