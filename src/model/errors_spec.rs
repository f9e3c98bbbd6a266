//! What a job does with a record that it cannot process, as its spec says it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{job::check_topic, reader::ObjectReader};

/// What happens when something would fail the same way again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorsSpec {
    /// What a failure of one record, or of one partition, stops.
    #[serde(default)]
    #[schema(default = "partition")]
    pub block: Block,
    /// What becomes of a record that cannot be processed: it is not what the format says, or the sink refuses it.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
}

/// What a failure of one record, or of one partition, stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Block {
    /// The partition is parked exactly before it; the others go on.
    #[default]
    Partition,
    /// The job fails, with a last checkpoint exactly before it.
    Job,
}

/// What becomes of a record that cannot be processed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "policy", rename_all = "kebab-case", deny_unknown_fields)]
pub enum OnBadRecord {
    /// It stops what `block` says, until somebody decides.
    #[default]
    Stop,
    /// It is left out, counted, and told of in the history.
    Skip,
    /// It is written to a topic of its own, as it is, with headers that say why; then it counts as processed.
    DeadLetter {
        /// Name of a Kafka connection of the server's file.
        connection: String,
        /// The topic. It has to exist.
        topic: String,
    },
}

impl ErrorsSpec {
    pub(super) fn read(mut reader: ObjectReader<'_>) -> Self {
        let block = reader.or("block", Block::default());
        let on_bad_record = match reader.object("on_bad_record") {
            Some(policy) => OnBadRecord::read(policy),
            None => OnBadRecord::default(),
        };
        reader.finish();
        Self {
            block,
            on_bad_record,
        }
    }
}

impl OnBadRecord {
    fn read(mut reader: ObjectReader<'_>) -> Self {
        let policy: Option<String> = reader.required("policy", "stop, skip or dead-letter");
        let read = match policy.as_deref() {
            Some("stop") => Self::Stop,
            Some("skip") => Self::Skip,
            Some("dead-letter") => {
                let connection = reader.required(
                    "connection",
                    "the name of a Kafka connection of the server's file",
                );
                let topic: Option<String> = reader.required("topic", "the name of a topic");
                if let Some(fault) = topic.as_deref().and_then(check_topic) {
                    reader.fault("topic", fault);
                }
                Self::DeadLetter {
                    connection: connection.unwrap_or_default(),
                    topic: topic.unwrap_or_default(),
                }
            }
            Some(other) => {
                reader.fault(
                    "policy",
                    format!("'{other}' is no policy: use stop, skip or dead-letter"),
                );
                // Its members cannot be judged.
                return Self::Stop;
            }
            None => {
                // A misspelt `policy` is named beside the fault that it is missing.
                reader.raw("connection");
                reader.raw("topic");
                Self::Stop
            }
        };
        reader.finish();
        read
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::FieldError;

    fn read(value: &Value) -> Result<ErrorsSpec, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = ErrorsSpec::read(ObjectReader::open(value, "/errors", &mut errors));
        if errors.is_empty() {
            Ok(spec)
        } else {
            Err(errors)
        }
    }

    #[test]
    fn what_is_read_can_be_sent_again() {
        let letters = json!({"policy": "dead-letter", "connection": "main", "topic": "letters"});
        for value in [
            json!({}),
            json!({"block": "job"}),
            json!({"on_bad_record": {"policy": "stop"}}),
            json!({"block": "partition", "on_bad_record": {"policy": "skip"}}),
            json!({"on_bad_record": letters}),
        ] {
            let spec = read(&value).unwrap();
            let shown = serde_json::to_value(&spec).unwrap();
            assert_eq!(read(&shown), Ok(spec.clone()), "{value}");
            assert_eq!(serde_json::from_value::<ErrorsSpec>(shown).unwrap(), spec);
        }
        assert_eq!(read(&json!({})).unwrap(), ErrorsSpec::default());
    }

    #[test]
    fn each_fault_is_named() {
        for (policy, pointer) in [
            (json!({}), "/errors/on_bad_record/policy"),
            (json!({"policy": "drop"}), "/errors/on_bad_record/policy"),
            (
                json!({"policy": "skip", "topic": "letters"}),
                "/errors/on_bad_record/topic",
            ),
            (
                json!({"policy": "dead-letter", "topic": "letters"}),
                "/errors/on_bad_record/connection",
            ),
            (
                json!({"policy": "dead-letter", "connection": "main", "topic": "no/slash"}),
                "/errors/on_bad_record/topic",
            ),
        ] {
            let errors = read(&json!({"on_bad_record": policy})).unwrap_err();
            assert!(
                errors.iter().any(|error| error.pointer == pointer),
                "{policy}: {errors:?}"
            );
        }
    }
}
