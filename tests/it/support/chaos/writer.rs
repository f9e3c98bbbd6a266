//! The writer: numbered records in transactions, some of them aborted, and a journal of what became of each.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use fastrand::Rng;
use oracle::{
    fingerprint,
    run::{Fate, Vector, Written},
};
use rdkafka::{
    ClientContext,
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext},
};
use serde::{Deserialize, Serialize};

use crate::support::{
    kafka::Kafka,
    unique,
    wait::{breathe, lock},
};

const ANSWER: Duration = Duration::from_secs(60);
/// One transaction in so many is aborted.
const ABORTED: u32 = 10;
const MOST_RECORDS: usize = 40;
const LONGEST_NONCE: usize = 200;

/// What the value of a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) run: String,
    pub(crate) p: i32,
    pub(crate) seq: u64,
    pub(crate) nonce: String,
}

/// Where a delivered record is.
type Delivery = ((i32, u64), Result<i64, String>);

#[derive(Default)]
struct Deliveries(Mutex<Vec<Delivery>>);

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<(i32, u64)>;

    fn delivery(&self, result: &DeliveryResult<'_>, record: Box<(i32, u64)>) {
        use rdkafka::Message;
        let offset = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.to_string()),
        };
        lock(&self.0).push((*record, offset));
    }
}

/// How a run's writer writes.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    pub(crate) topic: String,
    pub(crate) run: String,
    pub(crate) partitions: i32,
    /// Between two transactions of up to 40 records to a partition, at most.
    pub(crate) pause: Duration,
    /// One record in so many is no JSON.
    pub(crate) bad: Option<u32>,
    pub(crate) seed: u64,
}

/// A writer at work: for each partition an author with transactions of its own, so that they do not wait for each other.
pub(crate) struct Writer {
    kafka: Kafka,
    pace: Pace,
    stop: Arc<AtomicBool>,
    /// Behind the last record of each partition that is committed.
    ends: Arc<Mutex<Vector>>,
    threads: Vec<JoinHandle<Vec<Written>>>,
}

impl Writer {
    pub(crate) fn start(kafka: &Kafka, pace: &Pace) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ends: Arc<Mutex<Vector>> = Arc::default();
        let mut writer = Self {
            kafka: kafka.clone(),
            pace: pace.clone(),
            stop,
            ends,
            threads: Vec::new(),
        };
        for partition in 0..pace.partitions {
            writer.write(partition);
        }
        writer
    }

    /// Begins to write another partition.
    pub(crate) fn write(&mut self, partition: i32) {
        let (kafka, pace) = (self.kafka.clone(), self.pace.clone());
        let (stop, ends) = (Arc::clone(&self.stop), Arc::clone(&self.ends));
        self.threads.push(std::thread::spawn(move || {
            let mut author = Author::new(kafka, pace, partition);
            while !stop.load(Ordering::Relaxed) {
                author.write_transaction(&ends);
            }
            author.journal
        }));
    }

    /// Behind the last record of each partition that is certainly readable.
    pub(crate) fn ends(&self) -> Vector {
        lock(&self.ends).clone()
    }

    /// Ends it after its present transactions, and answers the journal.
    pub(crate) fn end(&mut self) -> Vec<Written> {
        self.stop.store(true, Ordering::Relaxed);
        let threads = self.threads.drain(..);
        let journals = threads.map(|thread| thread.join().expect("the writer ran to its end"));
        journals.flatten().collect()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Writes one partition, on a thread of its own.
struct Author {
    kafka: Kafka,
    pace: Pace,
    partition: i32,
    transactional_id: String,
    random: Rng,
    producer: BaseProducer<Deliveries>,
    next: u64,
    journal: Vec<Written>,
    /// Which of them are no JSON.
    bad: Vec<bool>,
}

impl Author {
    fn new(kafka: Kafka, pace: Pace, partition: i32) -> Self {
        let transactional_id = unique("writer");
        let random = Rng::with_seed(pace.seed.wrapping_add(u64::from(partition.unsigned_abs())));
        Self {
            producer: producer(&kafka, &transactional_id),
            kafka,
            pace,
            partition,
            transactional_id,
            random,
            next: 0,
            journal: Vec::new(),
            bad: Vec::new(),
        }
    }

    fn write_transaction(&mut self, ends: &Mutex<Vector>) {
        let from = self.journal.len();
        let aborted = self.random.u32(..ABORTED) == 0;
        self.producer.begin_transaction().expect("a transaction");
        for _ in 0..self.random.usize(1..=MOST_RECORDS) {
            self.send();
        }
        let settled = self.settle(aborted);
        let fate = match (&settled, aborted) {
            (Ok(()), true) => Fate::Aborted,
            (Ok(()), false) => Fate::Acked,
            (Err(_), _) => Fate::Info,
        };
        self.note(from, fate);
        if fate == Fate::Acked {
            let mut ends = lock(ends);
            for written in &self.journal[from..] {
                let offset = written.offset.expect("a committed record has an offset");
                let end = ends.entry(written.p).or_default();
                *end = (*end).max(offset + 1);
            }
        }
        if let Err(error) = settled {
            println!("the writer begins anew: {error}");
            // The broker ends the old transaction, one way or the other, before this one begins.
            self.producer = producer(&self.kafka, &self.transactional_id);
        }
        let most = u64::try_from(self.pace.pause.as_millis()).expect("a short pause");
        breathe(Duration::from_millis(self.random.u64(0..=most)));
    }

    fn send(&mut self) {
        let (partition, seq) = (self.partition, self.next);
        self.next += 1;
        let length = self.random.usize(0..LONGEST_NONCE);
        let nonce = std::iter::repeat_with(|| self.random.alphanumeric()).take(length);
        let body = Body {
            run: self.pace.run.clone(),
            p: partition,
            seq,
            nonce: nonce.collect(),
        };
        let mut value = serde_json::to_vec(&body).expect("a document");
        let is_bad = self
            .pace
            .bad
            .is_some_and(|rarity| self.random.u32(..rarity) == 0);
        if is_bad {
            value.truncate(value.len() - 1);
        }
        self.bad.push(is_bad);
        self.journal.push(Written {
            p: partition,
            seq,
            offset: None,
            hash: fingerprint(&value),
            fate: Fate::Info,
        });
        let mut record: BaseRecord<'_, (), [u8], Box<(i32, u64)>> =
            BaseRecord::with_opaque_to(&self.pace.topic, Box::new((partition, seq)))
                .partition(partition)
                .payload(&value);
        loop {
            match self.producer.send(record) {
                Ok(()) => return,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    self.producer.poll(Duration::from_millis(20));
                    record = back;
                }
                // It stays in the journal as one of which nobody knows, and the end of the transaction will tell.
                Err((error, _)) => {
                    println!("{partition}@{seq} was not sent: {error}");
                    return;
                }
            }
        }
    }

    fn settle(&self, aborted: bool) -> Result<(), KafkaError> {
        self.producer.flush(ANSWER)?;
        if aborted {
            self.producer.abort_transaction(ANSWER)
        } else {
            self.producer.commit_transaction(ANSWER)
        }
    }

    /// Writes down what became of the records of one transaction.
    fn note(&mut self, from: usize, fate: Fate) {
        let delivered = std::mem::take(&mut *lock(&self.producer.context().0));
        let offsets: BTreeMap<(i32, u64), i64> = delivered
            .into_iter()
            .filter_map(|(record, offset)| Some((record, offset.ok()?)))
            .collect();
        for (written, is_bad) in self.journal[from..].iter_mut().zip(&self.bad[from..]) {
            written.offset = offsets.get(&(written.p, written.seq)).copied();
            written.fate = if *is_bad && fate == Fate::Acked {
                Fate::Bad
            } else {
                fate
            };
        }
    }
}

fn producer(kafka: &Kafka, transactional_id: &str) -> BaseProducer<Deliveries> {
    let producer: BaseProducer<Deliveries> = kafka
        .config()
        .set("linger.ms", "1")
        .set("transactional.id", transactional_id)
        .set("transaction.timeout.ms", "60000")
        .set("retry.backoff.ms", "10")
        .create_with_context(Deliveries::default())
        .expect("a producer");
    producer
        .init_transactions(ANSWER)
        .expect("an initialised producer");
    producer
}
