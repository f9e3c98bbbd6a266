//! Reads a few records at an offset, beside any run: to look at a record, or to keep what is known of one that is left out.
//!
//! The client is made for the purpose and goes with it; it commits nothing and belongs to no group's balance.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    error::{ConsumerError, ErrorClass, KafkaError},
    ports::{ConsumerSettings, KafkaCluster, Polled},
};
use crate::model::{code::Code, offset::Offset, record::RecordBatch, topic::TopicPartition};

/// The longest wait of one poll; between two the deadline is looked at.
const POLL: Duration = Duration::from_millis(200);

/// A record by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadRecord {
    /// Where it lies in its partition's log.
    pub record_offset: i64,
    /// Milliseconds since 1970 as the producer or the broker stamped it.
    pub timestamp_ms: Option<i64>,
    /// The key, if there is one.
    pub key: Option<Vec<u8>>,
    /// The value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

/// Reads up to `limit` records of a partition, from the first that lies at or behind `from`; fewer when the log ends.
///
/// # Errors
/// See [`ConsumerError`]; `kafka-timeout` when nothing at all was known by the deadline.
pub async fn read_records(
    kafka: Arc<dyn KafkaCluster>,
    settings: ConsumerSettings,
    partition: TopicPartition,
    from: Offset,
    limit: usize,
    deadline: Duration,
) -> Result<Vec<ReadRecord>, ConsumerError> {
    let (answer, read) = oneshot::channel();
    let name = format!("read-{}", settings.job);
    let what = format!("read {partition} at {from}");
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let until = std::time::Instant::now() + deadline;
        let mut consumer = match kafka.consumer(&settings) {
            Ok(consumer) => consumer,
            Err(error) => {
                // Nobody waits any more: then nobody is told.
                let _unheard = answer.send(Err(error.into()));
                return;
            }
        };
        let mut found = Vec::new();
        let mut outcome = consumer.assign(&[(partition.clone(), from)]);
        while outcome.is_ok() && found.len() < limit && std::time::Instant::now() < until {
            match consumer.poll(POLL) {
                Ok(Polled::Batch(batch)) => {
                    if take(&batch, &partition, limit, &mut found) {
                        break;
                    }
                }
                Ok(Polled::Idle | Polled::Unreachable(_)) => {}
                Err(error) => outcome = Err(error),
            }
        }
        let _unheard = answer.send(outcome.map(|()| found));
        consumer.close();
    });
    let failed = |detail: String| {
        ConsumerError::Kafka(KafkaError {
            operation: what.clone(),
            detail,
            code: Code::KafkaTimeout,
            class: ErrorClass::Infrastructure,
        })
    };
    // The thread ends by itself within its deadline, and the closing of its client is nobody's concern.
    let _detached = thread.map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(deadline + POLL * 5, read).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(failed("the reading thread crashed".to_owned())),
        Err(_elapsed) => Err(failed("the brokers did not answer in time".to_owned())),
    }
}

/// Copies the records of a batch; true when the end of the log was reached.
fn take(
    batch: &RecordBatch,
    partition: &TopicPartition,
    limit: usize,
    found: &mut Vec<ReadRecord>,
) -> bool {
    let mut ended = false;
    for run in batch
        .runs()
        .iter()
        .filter(|run| *run.partition == *partition)
    {
        for record in batch.records_of(run) {
            if found.len() == limit {
                return true;
            }
            found.push(ReadRecord {
                record_offset: record.record_offset,
                timestamp_ms: record.timestamp_ms,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
            });
        }
        ended |= run.advance_to.is_some();
    }
    ended
}
