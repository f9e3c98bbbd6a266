//! The consumer client of a subtask: librdkafka's batches as the engine's.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::config::ClientConfig;
use rdkafka_ext::{
    AssignedOffset, BatchConsumer, ClientError, CommitOffset, EntryError, ErrorCode, MessageBatch,
    RecordRun, RecordView, Run,
};

use super::{
    error::{self, Subject},
    log,
};
use crate::{
    engine::{
        error::{ConsumerError, ErrorClass, KafkaError},
        ports::{Consumer, OffsetCommitter, Polled},
    },
    model::{
        code::Code,
        offset::{Offset, PartitionOffsets},
        record::{BatchRun, ConsumerRecord, RecordBatch, RecordHeader, RecordSource},
        topic::TopicPartition,
    },
};

/// Most entries in a batch. Measured: from 500 on a larger batch is no faster, 100 costs a tenth of the throughput.
const BATCH_ENTRIES: usize = 1_000;

/// How long connecting may take before the brokers count as lost. A reconnection is tried each 0.1 to 10 s.
const CONNECTING: Duration = Duration::from_secs(3);

/// How long a close is waited for. Without a broker librdkafka can need a minute; it then goes on by itself.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

const POLL: &str = "fetch records";

/// An assigned consumer.
pub(super) struct JobConsumer {
    client: Arc<BatchConsumer>,
    group: String,
    /// Where each partition was assigned, by topic and number.
    assigned: HashMap<Arc<str>, HashMap<i32, Assigned>>,
    /// Errors to report once the batch before them has been taken.
    failures: VecDeque<ConsumerError>,
    /// Since when no broker is connected.
    alone_since: Option<Instant>,
}

struct Assigned {
    partition: Arc<TopicPartition>,
    from: Offset,
}

impl JobConsumer {
    pub(super) fn create(
        connection: &str,
        config: &ClientConfig,
        group: &str,
    ) -> Result<Self, KafkaError> {
        let client_id = config.get("client.id").unwrap_or_default();
        let client = BatchConsumer::create(config, log::sink(connection, client_id))
            .map_err(|error| error::create("create a consumer", &error))?;
        Ok(Self {
            client: Arc::new(client),
            group: group.to_owned(),
            assigned: HashMap::new(),
            failures: VecDeque::new(),
            alone_since: None,
        })
    }

    fn assigned(&self, topic: &str, partition: i32) -> Option<&Assigned> {
        self.assigned.get(topic)?.get(&partition)
    }

    /// Notes errors of the client as a whole. It mends all of them by itself but fatal ones.
    fn hear(&mut self, errors: &[ClientError]) {
        for client_error in errors {
            if client_error.fatal {
                self.failures.push_back(ConsumerError::Kafka(KafkaError {
                    operation: POLL.to_owned(),
                    detail: error::client(client_error),
                    code: Code::KafkaError,
                    class: ErrorClass::Deterministic,
                }));
            }
        }
    }

    /// The cause, if no broker has been connected for a while.
    fn unreachable(&mut self) -> Option<String> {
        if self.assigned.is_empty() || self.client.connected_brokers() > 0 {
            self.alone_since = None;
            return None;
        }
        let since = *self.alone_since.get_or_insert_with(Instant::now);
        if since.elapsed() < CONNECTING {
            return None;
        }
        self.client.recall_brokers();
        let cause = self.client.last_error().map(|last| error::client(&last));
        Some(cause.unwrap_or_else(|| "no broker is connected".to_owned()))
    }

    /// The runs up to the first error that ends the consumer; what stands behind it was never counted and is read again.
    fn runs(&mut self, batch: &MessageBatch) -> Vec<BatchRun> {
        let mut runs: Vec<BatchRun> = Vec::new();
        let mut index = 0;
        let mut unknown: Vec<TopicPartition> = Vec::new();
        for run in batch.runs() {
            let is_unknown = |topic: &str, number: i32| {
                let mut unknown = unknown.iter();
                unknown.any(|one| *one.topic == *topic && one.partition == number)
            };
            match run {
                Run::Records(records) => {
                    index = records.range().end;
                    // What comes behind may be of another topic of that name.
                    if !is_unknown(records.topic(), records.partition()) {
                        runs.extend(self.record_run(&records));
                    }
                }
                Run::EndOfPartition {
                    topic,
                    partition,
                    next_offset,
                } => {
                    if !is_unknown(topic, partition) {
                        self.end_of_partition(&mut runs, index, topic, partition, next_offset);
                    }
                    index += 1;
                }
                Run::Error(error) => {
                    index += 1;
                    let Some(failure) = self.failure(&error) else {
                        continue;
                    };
                    // One partition outside its log, or without one, does not end the others.
                    let ends = match &failure {
                        ConsumerError::OutOfRange { .. } => false,
                        ConsumerError::TopicUnknown { partition } => {
                            unknown.push(partition.clone());
                            false
                        }
                        ConsumerError::TopicRecreated { .. } | ConsumerError::Kafka(_) => true,
                    };
                    self.failures.push_back(failure);
                    if ends {
                        break;
                    }
                }
            }
        }
        if let Err(error) = self.unassign(&unknown) {
            self.failures.push_back(error);
        }
        runs
    }

    fn record_run(&self, records: &RecordRun<'_>) -> Option<BatchRun> {
        let Some(assigned) = self.assigned(records.topic(), records.partition()) else {
            tracing::error!(
                topic = records.topic(),
                partition = records.partition(),
                "records of a partition that is not assigned are dropped"
            );
            return None;
        };
        Some(BatchRun {
            partition: Arc::clone(&assigned.partition),
            records: records.range(),
            advance_to: None,
        })
    }

    /// The end belongs to the run before it if that is of the same partition, else it is a run without records.
    fn end_of_partition(
        &self,
        runs: &mut Vec<BatchRun>,
        index: usize,
        topic: &str,
        partition: i32,
        next_offset: i64,
    ) {
        let (Some(assigned), Some(end)) =
            (self.assigned(topic, partition), Offset::new(next_offset))
        else {
            return;
        };
        match runs.last_mut() {
            Some(last) if Arc::ptr_eq(&last.partition, &assigned.partition) => {
                last.advance_to = Some(end);
            }
            _ => runs.push(BatchRun {
                partition: Arc::clone(&assigned.partition),
                records: Range {
                    start: index,
                    end: index,
                },
                advance_to: Some(end),
            }),
        }
    }

    /// What an error in place of records means; `None` if the client goes on by itself.
    fn failure(&self, entry: &EntryError<'_>) -> Option<ConsumerError> {
        let code = entry.error.code;
        let assigned = entry
            .topic
            .zip(entry.partition)
            .and_then(|(topic, partition)| self.assigned(topic, partition));
        // LOG_TRUNCATION too: with `auto.offset.reset=error` every way in which a position has no record ends here.
        let out_of_range = [
            ErrorCode::AUTO_OFFSET_RESET,
            ErrorCode::OFFSET_OUT_OF_RANGE,
            ErrorCode::LOG_TRUNCATION,
        ]
        .contains(&code);
        if let (true, Some(assigned)) = (out_of_range, assigned) {
            let position = entry.offset.and_then(Offset::new).unwrap_or(assigned.from);
            return Some(ConsumerError::OutOfRange {
                partition: (*assigned.partition).clone(),
                position,
            });
        }
        if out_of_range && entry.partition.is_some() {
            // Of a partition that was taken out of the assignment meanwhile.
            return None;
        }
        if error::is_unknown(code) && entry.partition.is_some() {
            return assigned.map(|assigned| ConsumerError::TopicUnknown {
                partition: (*assigned.partition).clone(),
            });
        }
        if error::is_infrastructure(code) {
            tracing::warn!(topic = entry.topic, partition = entry.partition, error = %entry.error, "fetching is disturbed");
            return None;
        }
        let topic = entry.topic.unwrap_or_default();
        let operation = match entry.partition {
            Some(partition) => format!("{POLL} of {topic}/{partition}"),
            None => format!("{POLL} of {topic}"),
        };
        let subject = Subject::Fetch {
            topic: topic.to_owned(),
        };
        Some(ConsumerError::Kafka(error::answered(
            operation,
            &subject,
            &entry.error,
        )))
    }
}

impl Consumer for JobConsumer {
    fn assign(&mut self, partitions: &[(TopicPartition, Offset)]) -> Result<(), ConsumerError> {
        let offsets: Vec<AssignedOffset<'_>> = partitions
            .iter()
            .map(|(partition, offset)| AssignedOffset {
                topic: &partition.topic,
                partition: partition.partition,
                next_offset: offset.get(),
            })
            .collect();
        self.client.assign(&offsets).map_err(|error| {
            let operation = format!("assign {} partitions", partitions.len());
            error::call(operation, &Subject::Topics { topic: None }, &error)
        })?;
        for (partition, from) in partitions {
            let of_topic = self
                .assigned
                .entry(Arc::clone(&partition.topic))
                .or_default();
            let assigned = Assigned {
                partition: Arc::new(partition.clone()),
                from: *from,
            };
            of_topic.insert(partition.partition, assigned);
        }
        Ok(())
    }

    fn unassign(&mut self, partitions: &[TopicPartition]) -> Result<(), ConsumerError> {
        let mut taken = Vec::new();
        for partition in partitions {
            let Some(of_topic) = self.assigned.get_mut(&partition.topic) else {
                continue;
            };
            if of_topic.remove(&partition.partition).is_some() {
                taken.push((&*partition.topic, partition.partition));
            }
            if of_topic.is_empty() {
                self.assigned.remove(&partition.topic);
            }
        }
        self.client.unassign(&taken).map_err(|error| {
            let operation = format!("unassign {} partitions", taken.len());
            error::call(operation, &Subject::Topics { topic: None }, &error)
        })?;
        Ok(())
    }

    fn poll(&mut self, wait: Duration) -> Result<Polled, ConsumerError> {
        if let Some(failure) = self.failures.pop_front() {
            return Err(failure);
        }
        let batch = self.client.consume_batch(BATCH_ENTRIES, wait);
        self.hear(batch.client_errors());
        let runs = self.runs(&batch);
        if !runs.is_empty() {
            return Ok(Polled::Batch(RecordBatch::new(
                runs,
                Box::new(Messages(batch)),
            )));
        }
        if let Some(failure) = self.failures.pop_front() {
            return Err(failure);
        }
        Ok(self.unreachable().map_or(Polled::Idle, Polled::Unreachable))
    }

    fn committer(&self) -> Arc<dyn OffsetCommitter> {
        Arc::new(GroupCommitter {
            client: Arc::clone(&self.client),
            group: self.group.clone(),
        })
    }

    fn close(self: Box<Self>) {
        // A committer that is still held keeps the client: it ends with the committer's last use.
        let Some(client) = Arc::into_inner(self.client) else {
            return;
        };
        if let Err(error) = client.close(CLOSE_DEADLINE) {
            tracing::warn!(group = self.group, %error, "the consumer is still closing");
        }
    }
}

/// Commits over a consumer's client. librdkafka ends a client on a thread of its own, so dropping this never blocks.
struct GroupCommitter {
    client: Arc<BatchConsumer>,
    group: String,
}

impl OffsetCommitter for GroupCommitter {
    fn commit(
        &self,
        offsets: &PartitionOffsets,
        note: &str,
        deadline: Duration,
    ) -> Result<(), KafkaError> {
        let list: Vec<CommitOffset<'_>> = offsets
            .iter()
            .map(|(partition, offset)| CommitOffset {
                topic: &partition.topic,
                partition: partition.partition,
                next_offset: offset.get(),
                metadata: note,
            })
            .collect();
        let subject = |topic: Option<String>| Subject::Commit {
            group: self.group.clone(),
            topic,
        };
        let results = self.client.commit(&list, deadline).map_err(|error| {
            let topics: BTreeSet<&str> =
                offsets.keys().map(|partition| &*partition.topic).collect();
            let only = topics
                .first()
                .filter(|_| topics.len() == 1)
                .map(|topic| (*topic).to_owned());
            let operation = format!(
                "commit {} partitions to group `{}`",
                offsets.len(),
                self.group
            );
            error::call(operation, &subject(only), &error)
        })?;
        let refused: Vec<_> = results
            .iter()
            .filter_map(|result| result.result.as_ref().err().map(|error| (result, error)))
            .filter(|(_, error)| error.code != ErrorCode::NO_OFFSET)
            .collect();
        let Some((first, error)) = refused.first() else {
            return Ok(());
        };
        let operation = format!(
            "commit {} of {} partitions to group `{}`, first {}/{}",
            refused.len(),
            results.len(),
            self.group,
            first.topic,
            first.partition
        );
        Err(error::answered(
            operation,
            &subject(Some(first.topic.clone())),
            error,
        ))
    }
}

/// librdkafka's messages as the owner of a batch's records.
struct Messages(MessageBatch);

impl RecordSource for Messages {
    fn record(&self, index: usize) -> ConsumerRecord<'_> {
        let Some(record) = self.0.record_at(index) else {
            // Runs name records only; a number that is not in one has no record, and -1 is before every position.
            debug_assert!(false, "entry {index} is no record");
            return ConsumerRecord {
                record_offset: -1,
                timestamp_ms: None,
                key: None,
                value: None,
            };
        };
        ConsumerRecord {
            record_offset: record.offset(),
            timestamp_ms: record.timestamp().map(|timestamp| timestamp.millis),
            key: record.key(),
            value: record.value(),
        }
    }

    fn headers(&self, index: usize) -> Vec<RecordHeader> {
        let headers = self.0.record_at(index).map(RecordView::headers);
        headers
            .unwrap_or_default()
            .into_iter()
            .map(|header| RecordHeader {
                name: header.name.to_vec(),
                value: header.value.map(<[u8]>::to_vec),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::{
        mocking::MockCluster,
        producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer},
    };

    use super::*;
    use crate::{engine::ports::ConsumerSettings, kafka::KafkaConnection, model::job::JobSpec};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn consumer(cluster: &MockCluster<'static, DefaultProducerContext>) -> Box<JobConsumer> {
        let properties = [("bootstrap.servers".to_owned(), cluster.bootstrap_servers())];
        let connection = KafkaConnection::new("main", properties.into(), false).unwrap();
        let spec = serde_json::json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"},
        });
        let source = JobSpec::read(&"readers".parse().unwrap(), &spec)
            .unwrap()
            .source;
        let settings = ConsumerSettings {
            job: "readers".to_owned(),
            subtask: 0,
            source,
        };
        let config = connection.consumer_config(&settings);
        Box::new(JobConsumer::create("main", &config, "readers").unwrap())
    }

    fn produce(
        cluster: &MockCluster<'static, DefaultProducerContext>,
        partition: i32,
        count: usize,
    ) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .create()
            .unwrap();
        for _ in 0..count {
            let record = BaseRecord::<str, str>::to("orders")
                .partition(partition)
                .payload("x");
            producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        producer.flush(PATIENCE).unwrap();
    }

    fn at(partition: i32, offset: i64) -> (TopicPartition, Offset) {
        (
            TopicPartition::new("orders", partition),
            Offset::new(offset).unwrap(),
        )
    }

    /// Polls until an answer satisfies `done`.
    fn poll_until(
        consumer: &mut JobConsumer,
        mut done: impl FnMut(Result<Polled, ConsumerError>) -> bool,
    ) {
        let until = Instant::now() + PATIENCE;
        while !done(consumer.poll(Duration::from_millis(50))) {
            assert!(
                Instant::now() < until,
                "nothing of the kind within {PATIENCE:?}"
            );
        }
    }

    #[test]
    fn lost_brokers_are_reported_for_as_long_as_they_are_away() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 1, 1).unwrap();
        let mut consumer = consumer(&cluster);
        consumer.assign(&[at(0, 0)]).unwrap();
        poll_until(&mut consumer, |polled| {
            matches!(polled, Ok(Polled::Batch(_)))
        });
        cluster.broker_down(1).unwrap();
        let lost = Instant::now();
        poll_until(&mut consumer, |polled| match polled.unwrap() {
            Polled::Unreachable(cause) => {
                assert!(cause.contains("_TRANSPORT"), "{cause}");
                true
            }
            Polled::Batch(_) | Polled::Idle => false,
        });
        assert!(lost.elapsed() >= CONNECTING);
        for _ in 0..5 {
            let polled = consumer.poll(Duration::from_millis(50)).unwrap();
            assert!(matches!(polled, Polled::Unreachable(_)), "{polled:?}");
        }
        cluster.broker_up(1).unwrap();
        poll_until(&mut consumer, |polled| matches!(polled, Ok(Polled::Idle)));
        produce(&cluster, 0, 1);
        poll_until(&mut consumer, |polled| match polled.unwrap() {
            Polled::Batch(batch) => batch.len() == 1,
            Polled::Unreachable(_) | Polled::Idle => false,
        });
        consumer.close();
    }

    #[test]
    fn an_error_comes_after_the_records_before_it_and_other_partitions_are_not_lost() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("orders", 2, 1).unwrap();
        produce(&cluster, 0, 10);
        produce(&cluster, 1, 10);
        let mut consumer = consumer(&cluster);
        consumer.assign(&[at(0, 3), at(1, 99)]).unwrap();
        let mut seen = Vec::new();
        poll_until(&mut consumer, |polled| match polled {
            Ok(Polled::Batch(batch)) => {
                for run in batch.runs() {
                    assert_eq!(run.partition.partition, 0);
                    seen.extend(batch.records_of(run).map(|record| record.record_offset));
                }
                false
            }
            Ok(Polled::Idle | Polled::Unreachable(_)) => false,
            Err(ConsumerError::OutOfRange {
                partition,
                position,
            }) => {
                assert_eq!((partition, position), at(1, 99));
                true
            }
            Err(other) => panic!("{other}"),
        });
        // Whatever came before the error is whole and in order.
        assert!(
            seen.iter()
                .copied()
                .eq(3..3 + i64::try_from(seen.len()).unwrap())
        );
    }
}
