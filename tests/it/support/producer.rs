//! Producers: plain ones, transactions that are committed, aborted or left open, and a load in the background.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext,
    error::{KafkaError, RDKafkaErrorCode},
    producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext},
};

use super::{
    kafka::{ATTEMPT, Kafka},
    wait::{breathe, eventually, lock},
};

const ANSWER: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Deliveries {
    delivered: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => {
                self.delivered.fetch_add(1, Ordering::Relaxed);
            }
            Err((error, _)) => lock(&self.errors).push(error.to_string()),
        }
    }
}

/// A producer whose every record must arrive, exactly once and in order.
pub(crate) struct Producer {
    inner: BaseProducer<Deliveries>,
    sent: AtomicU64,
}

impl Producer {
    pub(crate) fn new(kafka: &Kafka) -> Self {
        Self::with(kafka, None)
    }

    /// One with a property of the client set.
    pub(crate) fn tuned(kafka: &Kafka, property: &str, value: &str) -> Self {
        let mut config = kafka.config();
        config.set(property, value);
        Self::of(&config)
    }

    fn with(kafka: &Kafka, transactional_id: Option<&str>) -> Self {
        // A broker may be away for a while.
        Self::patient(kafka, transactional_id, Duration::from_secs(120))
    }

    fn patient(kafka: &Kafka, transactional_id: Option<&str>, patience: Duration) -> Self {
        let mut config = kafka.config();
        config
            .set("linger.ms", "2")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", patience.as_millis().to_string())
            .set("topic.metadata.refresh.interval.ms", "5000");
        if let Some(id) = transactional_id {
            // Longer than any test leaves one open.
            config
                .set("transactional.id", id)
                .set("transaction.timeout.ms", "600000");
        }
        Self::of(&config)
    }

    fn of(config: &ClientConfig) -> Self {
        let inner = config
            .create_with_context(Deliveries::default())
            .expect("a producer");
        Self {
            inner,
            sent: AtomicU64::new(0),
        }
    }

    /// Sends `count` small JSON records to a partition and waits until they are in the log.
    pub(crate) fn produce(&self, topic: &str, partition: i32, count: usize) {
        for number in 0..count {
            self.send(
                topic,
                partition,
                format!("{{\"n\":{number}}}").as_bytes(),
                None,
            );
        }
        self.flush();
    }

    /// Brings at least `count` records into a partition right after its broker was frozen.
    ///
    /// A client that asks the broker at the wrong moment then forgets it for ever (librdkafka issue 5301). So each attempt
    /// has a client of its own; one whose answer was lost leaves its records there, too.
    pub(crate) fn produce_after_freeze(kafka: &Kafka, topic: &str, partition: i32, count: usize) {
        eventually("records are written", Duration::from_secs(60), || {
            let producer = Self::patient(kafka, None, ATTEMPT);
            for _ in 0..count {
                producer.send(topic, partition, b"{}", None);
            }
            producer.flushed()
        });
    }

    /// Sends one record with a key and waits.
    pub(crate) fn produce_keyed(&self, topic: &str, partition: i32, key: &str) {
        let record = BaseRecord::<str, [u8]>::to(topic)
            .partition(partition)
            .key(key)
            .payload(b"{}");
        self.queue(topic, partition, record);
        self.flush();
    }

    /// Sends one record with a time stamp and waits.
    pub(crate) fn produce_at(&self, topic: &str, partition: i32, timestamp_ms: i64) {
        self.send(topic, partition, b"{}", Some(timestamp_ms));
        self.flush();
    }

    /// Queues a record.
    pub(crate) fn send(
        &self,
        topic: &str,
        partition: i32,
        value: &[u8],
        timestamp_ms: Option<i64>,
    ) {
        let mut record = BaseRecord::<str, [u8]>::to(topic)
            .partition(partition)
            .payload(value);
        if let Some(timestamp) = timestamp_ms {
            record = record.timestamp(timestamp);
        }
        self.queue(topic, partition, record);
    }

    fn queue(&self, topic: &str, partition: i32, mut record: BaseRecord<'_, str, [u8]>) {
        loop {
            match self.inner.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                    self.inner.poll(Duration::from_millis(20));
                    record = back;
                }
                Err((error, _)) => panic!("{topic}/{partition}: {error}"),
            }
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.inner.poll(Duration::ZERO);
    }

    /// Waits until everything queued is in the log.
    pub(crate) fn flush(&self) {
        self.flushed().expect("all records are in the log");
    }

    fn flushed(&self) -> Result<(), String> {
        self.inner
            .flush(Duration::from_secs(150))
            .map_err(|error| error.to_string())?;
        let deliveries = self.inner.context();
        let errors = lock(&deliveries.errors);
        let delivered = deliveries.delivered.load(Ordering::Relaxed);
        let sent = self.sent.load(Ordering::Relaxed);
        if errors.is_empty() && delivered == sent {
            Ok(())
        } else {
            Err(format!("{delivered} of {sent} records: {errors:?}"))
        }
    }
}

/// An open transaction. Dropped without an end it stays open, as that of a producer that died.
pub(crate) struct Transaction(Producer);

impl Transaction {
    pub(crate) fn begin(kafka: &Kafka, id: &str) -> Self {
        let producer = Producer::with(kafka, Some(id));
        producer
            .inner
            .init_transactions(ANSWER)
            .expect("an initialised producer");
        producer.inner.begin_transaction().expect("a transaction");
        Self(producer)
    }

    pub(crate) fn produce(&self, topic: &str, partition: i32, count: usize) {
        self.0.produce(topic, partition, count);
    }

    pub(crate) fn commit(self) {
        self.0
            .inner
            .commit_transaction(ANSWER)
            .expect("a committed transaction");
    }

    pub(crate) fn abort(self) {
        self.0
            .inner
            .abort_transaction(ANSWER)
            .expect("an aborted transaction");
    }
}

/// Records that keep coming until the load is ended.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeMap<i32, i64>>>,
}

impl Load {
    /// About `per_second` records, in turn over the partitions.
    pub(crate) fn start(kafka: &Kafka, topic: &str, partitions: i32, per_second: u32) -> Self {
        let (kafka, topic) = (kafka.clone(), topic.to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let producer = Producer::new(&kafka);
            let mut sent: BTreeMap<i32, i64> = (0..partitions).map(|p| (p, 0)).collect();
            // Twenty bursts a second.
            let burst = (per_second / 20).max(1);
            let mut next = 0;
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..burst {
                    let partition = next % partitions;
                    next += 1;
                    producer.send(
                        &topic,
                        partition,
                        format!("{{\"n\":{next}}}").as_bytes(),
                        None,
                    );
                    *sent.entry(partition).or_default() += 1;
                }
                breathe(Duration::from_millis(50));
            }
            producer.flush();
            sent
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Ends it, and says how many records went to each partition. All of them are in the log.
    pub(crate) fn end(mut self) -> BTreeMap<i32, i64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("ended once");
        thread.join().expect("the load ran to its end")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
