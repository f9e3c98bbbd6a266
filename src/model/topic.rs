//! Topics and partitions.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One partition of one topic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub struct TopicPartition {
    /// The topic's name.
    #[schema(value_type = String)]
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    #[must_use]
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// The identity of one incarnation of a topic (KIP-516), in the base64 form in which Kafka's tools print it.
///
/// A topic that was deleted and recreated under its old name has another id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String)]
pub struct TopicId(pub Arc<str>);

impl TopicId {
    /// Whether these are two topics of one name. An id that is not known proves nothing.
    #[must_use]
    pub fn differ(then: Option<&Self>, now: Option<&Self>) -> bool {
        then.zip(now).is_some_and(|(then, now)| then != now)
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
