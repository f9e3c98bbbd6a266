//! Which topics a spec reads, as the brokers have them at this moment.

use super::{
    error::KafkaError,
    ports::{KafkaCluster, TopicDescription},
};
use crate::model::job::SourceSpec;

/// Describes the topics that a spec names, or that its pattern matches.
///
/// A listed topic that does not exist is part of the answer, without partitions; a pattern answers what there is, which may be
/// nothing, and none of Kafka's own topics.
///
/// # Errors
/// When the cluster does not answer.
pub async fn describe(
    cluster: &dyn KafkaCluster,
    source: &SourceSpec,
) -> Result<Vec<TopicDescription>, KafkaError> {
    let Some(pattern) = &source.topic_pattern else {
        return cluster.describe_topics(&source.topics).await;
    };
    let mut matching = cluster.list_topics().await?;
    matching.retain(|topic| pattern.selects(topic));
    if matching.is_empty() {
        return Ok(Vec::new());
    }
    let mut described = cluster.describe_topics(&matching).await?;
    // A topic may be deleted between the two questions; the list is then older than the description.
    described.retain(|topic| !topic.internal && topic.partitions.is_some());
    Ok(described)
}
