//! One Kafka cluster behind the engine's port.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use async_trait::async_trait;
use rdkafka_ext::{ErrorCode, IsolationLevel, ListedOffset, NewGroupOffset, OffsetSpec, TopicInfo};

use super::{
    admin::{Asked, Questions},
    client_config::{self, KafkaConnection},
    consumer::JobConsumer,
    dead_letters::{self, LetterTopic},
    error::{self, Subject},
};
use crate::{
    engine::{
        error::KafkaError,
        ports::{
            Consumer, ConsumerSettings, DeadLetterTopic, GroupOffset, KafkaCluster,
            TopicDescription,
        },
    },
    model::{
        job::Isolation,
        offset::{Offset, PartitionOffsets},
        resolver::LogBounds,
        topic::{TopicId, TopicPartition},
    },
};

/// Topics in one request.
const MAX_TOPICS: usize = 500;

/// A connection of the server's file at work.
pub struct Cluster {
    connection: KafkaConnection,
    questions: Questions,
}

impl Cluster {
    /// Takes a connection. Nothing is asked of a broker until a question comes.
    #[must_use]
    pub fn new(connection: KafkaConnection) -> Self {
        Self {
            questions: Questions::new(connection.clone()),
            connection,
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl KafkaCluster for Cluster {
    fn consumer(&self, settings: &ConsumerSettings) -> Result<Box<dyn Consumer>, KafkaError> {
        let config = self.connection.consumer_config(settings);
        let consumer =
            JobConsumer::create(self.connection.name(), &config, &settings.source.group_id)?;
        Ok(Box::new(consumer))
    }

    fn dead_letters(&self, topic: &str) -> Result<Arc<dyn DeadLetterTopic>, KafkaError> {
        let config = self.connection.producer_config();
        Ok(dead_letters::shared(LetterTopic::create(config, topic)?))
    }

    fn check_properties(
        &self,
        properties: &BTreeMap<String, String>,
    ) -> Result<(), Vec<(String, String)>> {
        client_config::check_tuned(properties)
    }

    async fn describe_topics(
        &self,
        topics: &[String],
    ) -> Result<Vec<TopicDescription>, KafkaError> {
        let operation = format!("describe {}", count(topics.len(), "topic"));
        let topics = topics.to_vec();
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                describe_topics(asked, &asked_for, &topics)
            })
            .await
    }

    async fn list_topics(&self) -> Result<Vec<String>, KafkaError> {
        let operation = "list the topics";
        self.questions
            .ask(operation, move |asked| list_topics(asked, operation))
            .await
    }

    async fn log_bounds(
        &self,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, LogBounds>, KafkaError> {
        let operation = format!("list the ends of {}", count(partitions.len(), "partition"));
        let partitions = partitions.to_vec();
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                log_bounds(asked, &asked_for, &partitions)
            })
            .await
    }

    async fn offsets_for_timestamp(
        &self,
        partitions: &[TopicPartition],
        timestamp_ms: i64,
        isolation: Isolation,
    ) -> Result<PartitionOffsets, KafkaError> {
        let operation = format!(
            "look up {timestamp_ms} ms in {}",
            count(partitions.len(), "partition")
        );
        let partitions = partitions.to_vec();
        let asked_for = operation.clone();
        // No record is older than 1970, so an earlier instant finds the same ones.
        let spec = OffsetSpec::Timestamp(timestamp_ms.max(0));
        self.questions
            .ask(&operation, move |asked| {
                offsets_for_timestamp(asked, &asked_for, &partitions, spec, isolation)
            })
            .await
    }

    async fn group_offsets(
        &self,
        group: &str,
        partitions: &[TopicPartition],
    ) -> Result<BTreeMap<TopicPartition, GroupOffset>, KafkaError> {
        let operation = format!("read the offsets of group `{group}`");
        let group = group.to_owned();
        let partitions = partitions.to_vec();
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                group_offsets(asked, &asked_for, &group, &partitions)
            })
            .await
    }

    async fn group_members(&self, group: &str) -> Result<usize, KafkaError> {
        let operation = format!("describe group `{group}`");
        let group = group.to_owned();
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                group_members(asked, &asked_for, &group)
            })
            .await
    }

    async fn alter_group_offsets(
        &self,
        group: &str,
        offsets: &PartitionOffsets,
        note: &str,
    ) -> Result<BTreeMap<TopicPartition, KafkaError>, KafkaError> {
        let operation = format!("move group `{group}`");
        let (group, offsets, note) = (group.to_owned(), offsets.clone(), note.to_owned());
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                alter_group_offsets(asked, &asked_for, &group, &offsets, &note)
            })
            .await
    }

    async fn delete_group(&self, group: &str) -> Result<bool, KafkaError> {
        let operation = format!("delete group `{group}`");
        let group = group.to_owned();
        let asked_for = operation.clone();
        self.questions
            .ask(&operation, move |asked| {
                delete_group(asked, &asked_for, &group)
            })
            .await
    }
}

fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

fn describe_topics(
    asked: &Asked,
    operation: &str,
    topics: &[String],
) -> Result<Vec<TopicDescription>, KafkaError> {
    // The same topic twice would be refused; the answer has each once.
    let names: Vec<&str> = topics
        .iter()
        .map(String::as_str)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let mut described = Vec::with_capacity(names.len());
    for chunk in names.chunks(MAX_TOPICS) {
        described.extend(asked.repeat(|client, deadline| {
            let subject = Subject::Topics { topic: None };
            let answer = client.describe_topics(chunk, deadline);
            let answer = answer.map_err(|error| error::call(operation, &subject, &error))?;
            answer
                .into_iter()
                .map(|topic| describe_topic(operation, topic.name, topic.result))
                .collect::<Result<Vec<_>, _>>()
        })?);
    }
    Ok(described)
}

fn list_topics(asked: &Asked, operation: &str) -> Result<Vec<String>, KafkaError> {
    asked.repeat(|client, deadline| {
        let subject = Subject::Topics { topic: None };
        let answer = client.metadata(deadline);
        let metadata = answer.map_err(|error| error::call(operation, &subject, &error))?;
        Ok(metadata
            .topics
            .into_iter()
            .map(|topic| topic.name)
            .collect())
    })
}

fn describe_topic(
    operation: &str,
    name: String,
    result: Result<TopicInfo, rdkafka_ext::KafkaError>,
) -> Result<TopicDescription, KafkaError> {
    match result {
        Ok(info) => Ok(TopicDescription {
            name,
            internal: info.internal,
            id: info.id.map(|id| TopicId(id.to_string().into())),
            partitions: Some(
                info.partitions
                    .into_iter()
                    .map(|info| (info.partition, info.leader))
                    .collect(),
            ),
        }),
        Err(error) if error::is_unknown(error.code) => Ok(TopicDescription {
            name,
            id: None,
            partitions: None,
            internal: false,
        }),
        Err(error) => Err(error::answered(
            operation,
            &Subject::Topics { topic: Some(name) },
            &error,
        )),
    }
}

/// Earliest before end, and what is stable before what is there: offsets only grow, so the three fit together.
fn log_bounds(
    asked: &Asked,
    operation: &str,
    partitions: &[TopicPartition],
) -> Result<BTreeMap<TopicPartition, LogBounds>, KafkaError> {
    let ends = |partitions: &[TopicPartition], spec, isolation| {
        let listed = asked.list_offsets(operation, partitions, spec, isolation)?;
        let mut found = PartitionOffsets::new();
        for (partition, result) in listed {
            match result {
                Ok(ListedOffset::Found { offset, .. }) => {
                    found.extend(Offset::new(offset).map(|offset| (partition, offset)));
                }
                Ok(ListedOffset::NotFound) => {}
                Err(error)
                    if error::is_infrastructure(error.code) || error::is_unknown(error.code) =>
                {
                    tracing::debug!(%partition, %error, "the partition did not answer");
                }
                Err(error) => return Err(of_partition(operation, &partition, &error)),
            }
        }
        Ok(found)
    };
    let earliest = ends(
        partitions,
        OffsetSpec::Earliest,
        IsolationLevel::ReadUncommitted,
    )?;
    // Who did not answer after all repetitions is not asked twice more: on a slow network that alone would use up the time
    // in which the others' answers are waited for.
    let answering: Vec<TopicPartition> = earliest.keys().cloned().collect();
    // The end of the log before what is readable of it: in the other order, what is written in between would look like
    // records that an open transaction holds back.
    let latest = ends(
        &answering,
        OffsetSpec::Latest,
        IsolationLevel::ReadUncommitted,
    )?;
    let last_stable = ends(
        &answering,
        OffsetSpec::Latest,
        IsolationLevel::ReadCommitted,
    )?;
    let bounds = earliest.into_iter().filter_map(|(partition, earliest)| {
        let latest = *latest.get(&partition)?;
        let last_stable = *last_stable.get(&partition)?;
        let bounds = LogBounds {
            earliest,
            last_stable: last_stable.min(latest),
            latest,
        };
        Some((partition, bounds))
    });
    Ok(bounds.collect())
}

/// A partition that does not answer must not pass for one without such a record: the job would begin at its end.
fn offsets_for_timestamp(
    asked: &Asked,
    operation: &str,
    partitions: &[TopicPartition],
    spec: OffsetSpec,
    isolation: Isolation,
) -> Result<PartitionOffsets, KafkaError> {
    let listed = asked.list_offsets(operation, partitions, spec, isolation_level(isolation))?;
    let mut found = PartitionOffsets::new();
    for (partition, result) in listed {
        match result {
            Ok(ListedOffset::Found { offset, .. }) => {
                found.extend(Offset::new(offset).map(|offset| (partition, offset)));
            }
            Ok(ListedOffset::NotFound) => {}
            Err(error)
                if error::is_leader_error(error.code)
                    && has_no_leader(asked, operation, &partition)? => {}
            Err(error) => return Err(of_partition(operation, &partition, &error)),
        }
    }
    Ok(found)
}

fn has_no_leader(
    asked: &Asked,
    operation: &str,
    partition: &TopicPartition,
) -> Result<bool, KafkaError> {
    let described = describe_topics(asked, operation, &[partition.topic.to_string()])?;
    let leaders = described.into_iter().find_map(|topic| topic.partitions);
    Ok(leaders.is_some_and(|leaders| leaders.get(&partition.partition) == Some(&None)))
}

fn of_partition(
    operation: &str,
    partition: &TopicPartition,
    error: &rdkafka_ext::KafkaError,
) -> KafkaError {
    let subject = Subject::Topics {
        topic: Some(partition.topic.to_string()),
    };
    error::answered(format!("{operation}, {partition}"), &subject, error)
}

/// Offsets of an open transaction are waited for, as a consumer of Kafka's own waits.
fn group_offsets(
    asked: &Asked,
    operation: &str,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<BTreeMap<TopicPartition, GroupOffset>, KafkaError> {
    let subject = Subject::Group {
        group: group.to_owned(),
    };
    let names: Vec<(&str, i32)> = partitions
        .iter()
        .map(|partition| (&*partition.topic, partition.partition))
        .collect();
    asked.repeat(|client, deadline| {
        let answer = client.list_group_offsets(group, Some(&names), true, deadline);
        let answer = answer.map_err(|error| error::call(operation, &subject, &error))?;
        let mut found = BTreeMap::new();
        for listed in answer {
            let partition = TopicPartition::new(listed.topic, listed.partition);
            match listed.result {
                Ok(committed) => found.extend(committed.and_then(|committed| {
                    let note = String::from_utf8_lossy(&committed.metadata).into_owned();
                    let note = Some(note).filter(|note| !note.is_empty());
                    Some((
                        partition,
                        GroupOffset {
                            offset: Offset::new(committed.next_offset)?,
                            note,
                        },
                    ))
                })),
                Err(error) if error::is_unknown(error.code) => {}
                Err(error) => {
                    let operation = format!("{operation}, {partition}");
                    return Err(error::answered(operation, &subject, &error));
                }
            }
        }
        Ok(found)
    })
}

fn group_members(asked: &Asked, operation: &str, group: &str) -> Result<usize, KafkaError> {
    let subject = Subject::Group {
        group: group.to_owned(),
    };
    asked.repeat(
        |client, deadline| match client.describe_group(group, deadline) {
            Ok(description) => Ok(description.members.len()),
            Err(rdkafka_ext::CallError::Failed { error, .. })
                if error.code == ErrorCode::GROUP_ID_NOT_FOUND =>
            {
                Ok(0)
            }
            Err(error) => Err(error::call(operation, &subject, &error)),
        },
    )
}

/// Never cut into several requests: one is stored as a whole. Repeating it is harmless, the offsets are absolute.
fn alter_group_offsets(
    asked: &Asked,
    operation: &str,
    group: &str,
    offsets: &PartitionOffsets,
    note: &str,
) -> Result<BTreeMap<TopicPartition, KafkaError>, KafkaError> {
    let subject = |topic: Option<String>| Subject::Commit {
        group: group.to_owned(),
        topic,
    };
    let wanted: Vec<NewGroupOffset<'_>> = offsets
        .iter()
        .map(|(partition, offset)| NewGroupOffset {
            topic: &partition.topic,
            partition: partition.partition,
            next_offset: offset.get(),
            metadata: note,
        })
        .collect();
    asked.repeat(|client, deadline| {
        let answer = client.alter_group_offsets(group, &wanted, deadline);
        let answer = answer.map_err(|error| error::call(operation, &subject(None), &error))?;
        let all = answer.len();
        let mut refused = BTreeMap::new();
        for altered in answer {
            let partition = TopicPartition::new(altered.topic, altered.partition);
            if let Err(error) = altered.result {
                let subject = subject(Some(partition.topic.to_string()));
                let operation = format!("{operation}, {partition}");
                refused.insert(partition, error::answered(operation, &subject, &error));
            }
        }
        match refused.values().next() {
            // What holds for the group as a whole comes with each partition.
            Some(error) if refused.len() == all => Err(error.clone()),
            _ => Ok(refused),
        }
    })
}

fn delete_group(asked: &Asked, operation: &str, group: &str) -> Result<bool, KafkaError> {
    let subject = Subject::DeletedGroup {
        group: group.to_owned(),
    };
    asked.repeat(
        |client, deadline| match client.delete_group(group, deadline) {
            Ok(()) => Ok(true),
            Err(rdkafka_ext::CallError::Failed { error, .. })
                if error.code == ErrorCode::GROUP_ID_NOT_FOUND =>
            {
                Ok(false)
            }
            Err(error) => Err(error::call(operation, &subject, &error)),
        },
    )
}

fn isolation_level(isolation: Isolation) -> IsolationLevel {
    match isolation {
        Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
        Isolation::ReadUncommitted => IsolationLevel::ReadUncommitted,
    }
}
