//! Against a real Kafka, named by `HANDOVER_TEST_KAFKA` (`host:port,...`). Without it these tests fail: a run that skips
//! them silently would look like a passed one.

mod cluster;
mod rdkafka_ext;

use std::{env, time::Duration};

use rdkafka::{
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    config::ClientConfig,
    producer::{BaseProducer, BaseRecord, Producer},
};

/// How long a condition may take; none takes a tenth of it on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The brokers under test.
pub(crate) fn bootstrap() -> String {
    env::var("HANDOVER_TEST_KAFKA")
        .expect("HANDOVER_TEST_KAFKA must name the brokers, see scripts/kafka")
}

pub(crate) fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap());
    config
}

/// A name that no other test and no other run has.
pub(crate) fn unique(word: &str) -> String {
    format!("{word}-{}", uuid::Uuid::now_v7().simple())
}

fn admin() -> AdminClient<DefaultClientContext> {
    client().create().unwrap()
}

/// Makes a topic of its own for a test.
pub(crate) async fn topic(word: &str, partitions: i32) -> String {
    let name = unique(word);
    make_topic(&name, partitions).await;
    name
}

pub(crate) async fn make_topic(name: &str, partitions: i32) {
    let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    let results = admin().create_topics([&topic], &AdminOptions::new()).await;
    results.unwrap().remove(0).unwrap();
}

pub(crate) async fn delete_topic(name: &str) {
    let results = admin().delete_topics(&[name], &AdminOptions::new()).await;
    results.unwrap().remove(0).unwrap();
}

pub(crate) fn producer() -> BaseProducer {
    client().create().unwrap()
}

/// A producer that has called `init_transactions`.
pub(crate) fn transactional_producer() -> BaseProducer {
    let producer: BaseProducer = client()
        .set("transactional.id", unique("txn"))
        .create()
        .unwrap();
    producer.init_transactions(PATIENCE).unwrap();
    producer
}

/// Writes values with ascending timestamps from `first_ms` on, and waits until the broker has them.
pub(crate) fn produce(
    producer: &BaseProducer,
    topic: &str,
    partition: i32,
    count: i64,
    first_ms: i64,
) {
    for number in 0..count {
        let value = number.to_string();
        let record = BaseRecord::<str, str>::to(topic)
            .partition(partition)
            .payload(&value)
            .timestamp(first_ms + number);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}
