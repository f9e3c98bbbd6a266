//! Reads a few records at an offset, beside any run: to look at a record, to keep what is known of one that is left out, or
//! to learn how old what is unread is.
//!
//! One client for all partitions that are asked for. It is made for the purpose and goes with it; it commits nothing and
//! belongs to no group's balance.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    error::{ConsumerError, ErrorClass, KafkaError},
    ports::{Consumer, ConsumerSettings, KafkaCluster, Polled},
};
use crate::model::{
    code::Code,
    offset::Offset,
    record::{ConsumerRecord, RecordBatch},
    topic::TopicPartition,
};

/// The longest wait of one poll; between two the deadline is looked at.
const POLL: Duration = Duration::from_millis(200);

/// What a client that wants one record of each partition sets over the job's own: it must not wait for more to come, and
/// what it fetches behind that record is thrown away.
const FIRST_ONLY: [(&str, &str); 3] = [
    ("fetch.min.bytes", "1"),
    ("fetch.wait.max.ms", "100"),
    ("max.partition.fetch.bytes", "65536"),
];

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

/// What lies at a position or behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstRecord {
    /// This record is the first.
    At {
        /// Where it lies in its partition's log.
        record_offset: i64,
        /// Milliseconds since 1970 as the producer or the broker stamped it.
        timestamp_ms: Option<i64>,
    },
    /// There is none before this offset, where the log ended for the reader.
    NoneBefore(Offset),
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
    let mut reading = read_aside(
        Question {
            kafka,
            settings,
            what: format!("read {partition} at {from}"),
            from: vec![(partition.clone(), from)],
            limit,
            keep: |record| ReadRecord {
                record_offset: record.record_offset,
                timestamp_ms: record.timestamp_ms,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
            },
        },
        deadline,
    )
    .await?;
    reading.outcome?;
    let found = reading.found.remove(&partition);
    Ok(found.map_or_else(Vec::new, |found| found.records))
}

/// Finds the first record at or behind each position, with one client for all of them. Partitions about which nothing was
/// known by the deadline, or before the client's first error, are left out.
///
/// # Errors
/// See [`ConsumerError`], when nothing at all was known.
pub async fn first_records(
    kafka: Arc<dyn KafkaCluster>,
    mut settings: ConsumerSettings,
    from: Vec<(TopicPartition, Offset)>,
    deadline: Duration,
) -> Result<BTreeMap<TopicPartition, FirstRecord>, ConsumerError> {
    for (property, value) in FIRST_ONLY {
        let properties = &mut settings.source.properties;
        properties.insert(property.to_owned(), value.to_owned());
    }
    let reading = read_aside(
        Question {
            kafka,
            settings,
            what: format!("read one record each of {} partitions", from.len()),
            from,
            limit: 1,
            keep: |record| FirstRecord::At {
                record_offset: record.record_offset,
                timestamp_ms: record.timestamp_ms,
            },
        },
        deadline,
    )
    .await?;
    let firsts: BTreeMap<_, _> = reading
        .found
        .into_iter()
        .filter_map(|(partition, found)| {
            let none = found.end.map(FirstRecord::NoneBefore);
            Some((partition, found.records.first().copied().or(none)?))
        })
        .collect();
    match reading.outcome {
        Err(error) if firsts.is_empty() => Err(error),
        Err(_) | Ok(()) => Ok(firsts),
    }
}

/// What is to be read.
struct Question<T> {
    kafka: Arc<dyn KafkaCluster>,
    settings: ConsumerSettings,
    /// For errors.
    what: String,
    from: Vec<(TopicPartition, Offset)>,
    /// Records of each partition.
    limit: usize,
    /// What is kept of each record.
    keep: fn(ConsumerRecord<'_>) -> T,
}

/// What was read until all was found, the deadline passed, or the client failed.
struct Reading<T> {
    found: BTreeMap<TopicPartition, Found<T>>,
    outcome: Result<(), ConsumerError>,
}

/// What was read of one partition.
struct Found<T> {
    records: Vec<T>,
    /// Where the log ended, if that came before the last record that was asked for.
    end: Option<Offset>,
}

/// Reads on a thread of its own, which closes the client after it has answered.
async fn read_aside<T: Send + 'static>(
    question: Question<T>,
    deadline: Duration,
) -> Result<Reading<T>, ConsumerError> {
    let (answer, read) = oneshot::channel();
    let name = format!("read-{}", question.settings.job);
    let what = question.what.clone();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let until = Instant::now() + deadline;
        let mut consumer = match question.kafka.consumer(&question.settings) {
            Ok(consumer) => consumer,
            Err(error) => {
                // Nobody waits any more: then nobody is told.
                let _unheard = answer.send(Err(error.into()));
                return;
            }
        };
        let _unheard = answer.send(Ok(poll_all(&mut *consumer, &question, until)));
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

fn poll_all<T>(consumer: &mut dyn Consumer, question: &Question<T>, until: Instant) -> Reading<T> {
    let unread = || Found {
        records: Vec::new(),
        end: None,
    };
    let asked = question.from.iter();
    let mut found: BTreeMap<_, _> = asked
        .map(|(partition, _)| (partition.clone(), unread()))
        .collect();
    let mut open = found.len();
    let mut outcome = consumer.assign(&question.from);
    while outcome.is_ok() && open > 0 && Instant::now() < until {
        match consumer.poll(POLL) {
            Ok(Polled::Batch(batch)) => open -= take(&batch, question, &mut found),
            Ok(Polled::Idle | Polled::Unreachable(_)) => {}
            // The client gives up what it had fetched behind an error: what comes later may not be the first.
            Err(error) => outcome = Err(error),
        }
    }
    Reading { found, outcome }
}

/// Keeps what is wanted of a batch; answers how many partitions need no more.
fn take<T>(
    batch: &RecordBatch,
    question: &Question<T>,
    found: &mut BTreeMap<TopicPartition, Found<T>>,
) -> usize {
    let is_done = |found: &Found<T>| found.records.len() >= question.limit || found.end.is_some();
    let mut done = 0;
    for run in batch.runs() {
        let Some(found) = found.get_mut(&*run.partition) else {
            continue;
        };
        if is_done(found) {
            continue;
        }
        let wanted = question.limit - found.records.len();
        let records = batch.records_of(run).take(wanted).map(question.keep);
        found.records.extend(records);
        if found.records.len() < question.limit {
            found.end = run.advance_to;
        }
        done += usize::from(is_done(found));
    }
    done
}
