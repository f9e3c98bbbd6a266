//! The adapter behind the engine's ports.

use std::{
    collections::BTreeMap,
    net::TcpListener,
    time::{Duration, Instant},
};

use handover::{
    engine::{
        error::{ConsumerError, ErrorClass},
        ports::{Consumer, ConsumerSettings, KafkaCluster, Polled},
    },
    kafka::{Cluster, KafkaConnection},
    model::{
        code::Code,
        job::{Isolation, JobSpec},
        offset::Offset,
        resolver::LogBounds,
        topic::TopicPartition,
    },
};
use rdkafka::producer::Producer;

use super::{PATIENCE, bootstrap, produce, producer, topic, transactional_producer, unique};

fn cluster_at(servers: &str) -> Cluster {
    let properties = BTreeMap::from([("bootstrap.servers".to_owned(), servers.to_owned())]);
    Cluster::new(KafkaConnection::new("main", properties, false).unwrap())
}

fn cluster() -> Cluster {
    cluster_at(&bootstrap())
}

fn settings(topic: &str, group: &str, isolation: Isolation) -> ConsumerSettings {
    let spec = serde_json::json!({
        "source": {"connection": "main", "topics": [topic], "group_id": group},
        "startup_mode": {"mode": "earliest"},
        "sink": {"type": "blackhole"},
    });
    let mut source = JobSpec::read(&"orders".parse().unwrap(), &spec)
        .unwrap()
        .source;
    source.isolation = isolation;
    ConsumerSettings {
        job: "orders".to_owned(),
        subtask: 0,
        source,
    }
}

fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

/// Polls until the client has reported the end of the partition: the records' offsets and the end.
fn read_to_end(consumer: &mut dyn Consumer) -> (Vec<i64>, Offset) {
    let until = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    while Instant::now() < until {
        let Polled::Batch(batch) = consumer.poll(Duration::from_millis(100)).unwrap() else {
            continue;
        };
        for run in batch.runs() {
            seen.extend(batch.records_of(run).map(|record| record.record_offset));
            if let Some(end) = run.advance_to {
                return (seen, end);
            }
        }
    }
    panic!("no end within {PATIENCE:?}");
}

#[tokio::test]
async fn a_consumer_begins_where_it_is_told_and_stands_behind_the_markers_at_the_end() {
    let topic = topic("markers", 1).await;
    let producer = transactional_producer();
    for number in 0..3 {
        producer.begin_transaction().unwrap();
        produce(&producer, &topic, 0, 4, 1);
        if number == 1 {
            producer.abort_transaction(PATIENCE).unwrap();
        } else {
            producer.commit_transaction(PATIENCE).unwrap();
        }
    }
    let partition = TopicPartition::new(topic.as_str(), 0);
    let cluster = cluster();
    let bounds = cluster
        .log_bounds(std::slice::from_ref(&partition))
        .await
        .unwrap();
    let expected = LogBounds {
        earliest: offset(0),
        last_stable: offset(15),
        latest: offset(15),
    };
    assert_eq!(bounds[&partition], expected);
    for (isolation, records) in [
        (Isolation::ReadCommitted, vec![2, 3, 10, 11, 12, 13]),
        (
            Isolation::ReadUncommitted,
            vec![2, 3, 5, 6, 7, 8, 10, 11, 12, 13],
        ),
    ] {
        let settings = settings(&topic, &unique("markers"), isolation);
        let mut consumer = cluster.consumer(&settings).unwrap();
        consumer.assign(&[(partition.clone(), offset(2))]).unwrap();
        let (seen, end) = read_to_end(&mut *consumer);
        assert_eq!(
            (seen, end),
            (records, bounds[&partition].readable_end(isolation))
        );
        consumer.close();
    }
}

#[tokio::test]
async fn a_position_outside_the_log_is_reported_with_its_number() {
    let topic = topic("out-of-range", 2).await;
    produce(&producer(), &topic, 0, 5, 1);
    produce(&producer(), &topic, 1, 5, 1);
    let settings = settings(&topic, &unique("range"), Isolation::ReadCommitted);
    let cluster = cluster();
    let mut consumer = cluster.consumer(&settings).unwrap();
    let outside = TopicPartition::new(topic.as_str(), 0);
    consumer
        .assign(&[(outside.clone(), offset(1_000))])
        .unwrap();
    let until = Instant::now() + PATIENCE;
    let error = loop {
        match consumer.poll(Duration::from_millis(100)) {
            Ok(Polled::Batch(batch)) => panic!("{batch:?}"),
            Ok(Polled::Idle | Polled::Unreachable(_)) => assert!(Instant::now() < until),
            Err(error) => break error,
        }
    };
    match error {
        ConsumerError::OutOfRange {
            partition,
            position,
        } => assert_eq!((partition, position), (outside, offset(1_000))),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn every_topic_is_listed_and_kafkas_own_are_marked() {
    let topic = topic("listed", 1).await;
    let cluster = cluster();
    let listed = cluster.list_topics().await.unwrap();
    assert!(listed.contains(&topic), "{listed:?}");
    let own = listed.iter().find(|name| *name == "__consumer_offsets");
    let asked: Vec<String> = own.into_iter().cloned().chain([topic]).collect();
    for topic in cluster.describe_topics(&asked).await.unwrap() {
        assert_eq!(topic.internal, topic.name.starts_with("__"), "{topic:?}");
    }
}

#[tokio::test]
async fn a_group_shows_what_was_committed_with_its_note() {
    let topic = topic("group", 2).await;
    produce(&producer(), &topic, 0, 5, 1);
    let group = unique("group");
    let cluster = cluster();
    let zero = TopicPartition::new(topic.as_str(), 0);
    let one = TopicPartition::new(topic.as_str(), 1);
    let both = [zero.clone(), one.clone()];
    assert!(
        cluster
            .group_offsets(&group, &both)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(cluster.group_members(&group).await.unwrap(), 0);

    let settings = settings(&topic, &group, Isolation::ReadCommitted);
    let consumer = cluster.consumer(&settings).unwrap();
    let committer = consumer.committer();
    let offsets = BTreeMap::from([(zero.clone(), offset(4))]);
    tokio::task::spawn_blocking(move || committer.commit(&offsets, "handover:1", PATIENCE))
        .await
        .unwrap()
        .unwrap();
    let stored = cluster.group_offsets(&group, &both).await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[&zero].offset, offset(4));
    assert_eq!(stored[&zero].note.as_deref(), Some("handover:1"));
    // An assigned consumer is no member.
    assert_eq!(cluster.group_members(&group).await.unwrap(), 0);
    consumer.close();
}

#[tokio::test]
async fn questions_tell_what_is_missing_from_what_does_not_exist() {
    let first_ms = 1_700_000_000_000;
    let topic = topic("questions", 2).await;
    produce(&producer(), &topic, 0, 5, first_ms);
    let cluster = cluster();

    let missing = unique("missing");
    let names = [missing.clone(), topic.clone(), topic.clone()];
    let described = cluster.describe_topics(&names).await.unwrap();
    assert_eq!(described.len(), 2);
    let of = |name: &str| described.iter().find(|topic| topic.name == name).unwrap();
    assert_eq!((&of(&missing).partitions, &of(&missing).id), (&None, &None));
    assert_eq!(of(&topic).partitions.as_ref().unwrap().len(), 2);
    assert!(of(&topic).id.is_some());

    let zero = TopicPartition::new(topic.as_str(), 0);
    let one = TopicPartition::new(topic.as_str(), 1);
    let nowhere = TopicPartition::new(missing.as_str(), 0);
    let bounds = cluster
        .log_bounds(&[zero.clone(), one.clone(), nowhere])
        .await
        .unwrap();
    assert_eq!(bounds.keys().collect::<Vec<_>>(), [&zero, &one]);
    assert_eq!(bounds[&zero].latest, offset(5));

    let found = cluster
        .offsets_for_timestamp(&[zero.clone(), one], first_ms + 2, Isolation::ReadCommitted)
        .await
        .unwrap();
    assert_eq!(found, BTreeMap::from([(zero, offset(2))]));
}

#[tokio::test]
async fn a_cluster_that_is_away_is_infrastructure_with_its_cause() {
    // A port that was free a moment ago; nothing listens on it.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let cluster = cluster_at(&format!("127.0.0.1:{port}"));
    let before = Instant::now();
    let partition = TopicPartition::new("orders", 0);
    let topics = ["orders".to_owned()];
    let (bounds, described) = tokio::join!(
        cluster.log_bounds(std::slice::from_ref(&partition)),
        cluster.describe_topics(&topics),
    );
    for error in [bounds.unwrap_err(), described.unwrap_err()] {
        assert_eq!(
            (error.class, error.code),
            (ErrorClass::Infrastructure, Code::KafkaUnreachable),
            "{error}"
        );
    }
    assert!(
        before.elapsed() < Duration::from_secs(25),
        "{:?}",
        before.elapsed()
    );
}
