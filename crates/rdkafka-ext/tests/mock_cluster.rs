//! The crate against librdkafka's own mock cluster: a broker speaking the real protocol inside the process.
//!
//! What the mock answers differently from a real broker (topic ids, timestamps, groups) is tested on a real one elsewhere.

#![cfg(test)]

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    config::{ClientConfig, RDKafkaLogLevel},
    message::{Header, OwnedHeaders},
    mocking::MockCluster,
    producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer},
};
use rdkafka_ext::{
    AdminClient, AssignedOffset, BatchConsumer, CallError, CommitOffset, CreateError, ErrorCode,
    IsolationLevel, ListedOffset, LogSink, MessageBatch, NewGroupOffset, OffsetSpec, Run,
};
use rdkafka_sys::{RDKafkaApiKey, RDKafkaRespErr};

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// How long a condition may take; none takes a tenth of it on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);
const WAIT: Duration = Duration::from_millis(100);

fn quiet() -> LogSink {
    Arc::new(|_| {})
}

fn cluster(topic: &str, partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(topic, partitions, 1).unwrap();
    cluster
}

fn config(cluster: &Cluster) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("reconnect.backoff.max.ms", "200")
        .set_log_level(RDKafkaLogLevel::Error);
    config
}

fn consumer(cluster: &Cluster) -> BatchConsumer {
    let mut config = config(cluster);
    config
        .set("group.id", "readers")
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("fetch.queue.backoff.ms", "1");
    BatchConsumer::create(&config, quiet()).unwrap()
}

fn producer(cluster: &Cluster) -> BaseProducer {
    ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap()
}

fn produce(
    producer: &BaseProducer,
    topic: &str,
    partition: i32,
    values: impl IntoIterator<Item = String>,
) {
    for value in values {
        let record = BaseRecord::<str, str>::to(topic)
            .partition(partition)
            .payload(&value);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

fn at(topic: &str, partition: i32, next_offset: i64) -> AssignedOffset<'_> {
    AssignedOffset {
        topic,
        partition,
        next_offset,
    }
}

/// Collects batches until `done` says so.
fn consume_until(
    consumer: &BatchConsumer,
    max: usize,
    mut done: impl FnMut(&MessageBatch) -> bool,
) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if done(&consumer.consume_batch(max, WAIT)) {
            return;
        }
    }
    panic!("nothing of the kind within {PATIENCE:?}");
}

#[test]
fn batches_begin_at_the_assigned_offset_and_end_with_the_end_of_each_partition() {
    let cluster = cluster("orders", 2);
    let producer = producer(&cluster);
    produce(&producer, "orders", 0, (0..500).map(|n| format!("a{n}")));
    produce(&producer, "orders", 1, (0..300).map(|n| format!("b{n}")));
    let consumer = consumer(&cluster);
    consumer
        .assign(&[at("orders", 0, 7), at("orders", 1, 0)])
        .unwrap();

    let mut seen: [Vec<(i64, String)>; 2] = [Vec::new(), Vec::new()];
    let mut ends = [None, None];
    consume_until(&consumer, 64, |batch| {
        assert!(batch.len() <= 64);
        let mut counted = 0;
        for run in batch.runs() {
            match run {
                Run::Records(run) => {
                    assert_eq!(run.topic(), "orders");
                    assert_eq!(run.range().start, counted);
                    counted += run.len();
                    let partition = usize::try_from(run.partition()).unwrap();
                    assert!(ends[partition].is_none(), "a record behind the end");
                    for record in run.records() {
                        let value = String::from_utf8(record.value().unwrap().to_vec()).unwrap();
                        seen[partition].push((record.offset(), value));
                    }
                }
                Run::EndOfPartition {
                    topic,
                    partition,
                    next_offset,
                } => {
                    assert_eq!(topic, "orders");
                    assert!(batch.record_at(counted).is_none());
                    counted += 1;
                    ends[usize::try_from(partition).unwrap()] = Some(next_offset);
                }
                Run::Error(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(counted, batch.len());
        ends.iter().all(Option::is_some)
    });
    assert_eq!(
        seen[0],
        (7..500).map(|n| (n, format!("a{n}"))).collect::<Vec<_>>()
    );
    assert_eq!(
        seen[1],
        (0..300).map(|n| (n, format!("b{n}"))).collect::<Vec<_>>()
    );
    assert_eq!(ends, [Some(500), Some(300)]);
}

#[test]
fn a_full_batch_is_grouped_in_few_runs() {
    let cluster = cluster("orders", 2);
    let producer = producer(&cluster);
    produce(&producer, "orders", 0, (0..2_000).map(|n| n.to_string()));
    produce(&producer, "orders", 1, (0..2_000).map(|n| n.to_string()));
    let consumer = consumer(&cluster);
    consumer
        .assign(&[at("orders", 0, 0), at("orders", 1, 0)])
        .unwrap();
    let (mut records, mut runs) = (0, 0);
    consume_until(&consumer, 1_000, |batch| {
        for run in batch.runs() {
            if let Run::Records(run) = run {
                records += run.len();
                runs += 1;
            }
        }
        records == 4_000
    });
    assert!(runs < 100, "{runs} runs for 4,000 records");
}

#[test]
fn a_record_keeps_null_and_empty_apart_and_shows_its_headers() {
    let cluster = cluster("orders", 1);
    let producer = producer(&cluster);
    let headers = OwnedHeaders::new()
        .insert(Header {
            key: "trace",
            value: Some("1"),
        })
        .insert(Header {
            key: "trace",
            value: Some("2"),
        })
        .insert(Header::<&str> {
            key: "empty",
            value: None,
        });
    let full = BaseRecord::to("orders")
        .partition(0)
        .key("k")
        .payload("v")
        .timestamp(1_700_000_000_123)
        .headers(headers);
    producer.send(full).map_err(|(error, _)| error).unwrap();
    producer
        .send(BaseRecord::<str, str>::to("orders").partition(0).key("k"))
        .map_err(|(error, _)| error)
        .unwrap();
    producer
        .send(
            BaseRecord::<str, str>::to("orders")
                .partition(0)
                .payload(""),
        )
        .map_err(|(error, _)| error)
        .unwrap();
    producer.flush(PATIENCE).unwrap();

    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    let mut batches = Vec::new();
    let until = Instant::now() + PATIENCE;
    while batches.iter().map(MessageBatch::len).sum::<usize>() < 4 {
        assert!(Instant::now() < until);
        batches.push(consumer.consume_batch(10, WAIT));
    }
    // Records outlive their consumer as long as the batch is held.
    drop(consumer);
    let records: Vec<_> = batches
        .iter()
        .flat_map(|batch| (0..batch.len()).filter_map(|index| batch.record_at(index)))
        .collect();
    assert_eq!(records.len(), 3);
    assert_eq!(
        (records[0].key(), records[0].value()),
        (Some(&b"k"[..]), Some(&b"v"[..]))
    );
    assert_eq!(records[0].timestamp().unwrap().millis, 1_700_000_000_123);
    assert_eq!(
        (records[1].key(), records[1].value()),
        (Some(&b"k"[..]), None)
    );
    assert_eq!(
        (records[2].key(), records[2].value()),
        (None, Some(&b""[..]))
    );
    assert!(records[1].headers().is_empty());

    // Two threads parse the same headers at once.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let headers = records[0].headers();
                let pairs: Vec<_> = headers
                    .iter()
                    .map(|header| (header.name, header.value))
                    .collect();
                assert_eq!(
                    pairs[..2],
                    [
                        (&b"trace"[..], Some(&b"1"[..])),
                        (&b"trace"[..], Some(&b"2"[..]))
                    ]
                );
                assert_eq!(pairs[2].0, b"empty");
            });
        }
    });
}

#[test]
fn one_record_is_enough_to_return_and_a_wake_needs_none() {
    let cluster = cluster("orders", 1);
    let consumer = Arc::new(consumer(&cluster));
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    // The end of the empty partition comes first.
    consume_until(&consumer, 10, |batch| !batch.is_empty());

    let (returned, waiting) = mpsc::sync_channel(2);
    let thread = {
        let consumer = Arc::clone(&consumer);
        thread::spawn(move || {
            for _ in 0..2 {
                returned
                    .send(
                        consumer
                            .consume_batch(1_000, Duration::from_secs(600))
                            .len(),
                    )
                    .unwrap();
            }
        })
    };
    produce(&producer(&cluster), "orders", 0, ["x".to_owned()]);
    assert!(waiting.recv_timeout(PATIENCE).unwrap() >= 1);
    // The second call may still get the end of the partition; without it, it waits until woken.
    consumer.wake();
    assert!(waiting.recv_timeout(PATIENCE).unwrap() <= 1);
    thread.join().unwrap();
}

#[test]
fn partitions_come_and_go_without_disturbing_the_others() {
    let cluster = cluster("orders", 2);
    let producer = producer(&cluster);
    produce(&producer, "orders", 0, (0..10).map(|n| n.to_string()));
    produce(&producer, "orders", 1, (0..10).map(|n| n.to_string()));
    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 4)]).unwrap();
    consumer.assign(&[at("orders", 1, 8)]).unwrap();
    let twice = consumer.assign(&[at("orders", 1, 0)]).unwrap_err();
    assert!(matches!(twice, CallError::Failed { .. }), "{twice}");
    let logical = consumer.assign(&[at("orders", 0, -2)]).unwrap_err();
    assert!(matches!(logical, CallError::Argument { .. }), "{logical}");

    let mut offsets = [Vec::new(), Vec::new()];
    consume_until(&consumer, 100, |batch| {
        collect_offsets(batch, &mut offsets);
        offsets[0].len() + offsets[1].len() == 8
    });
    assert_eq!(offsets, [(4..10).collect::<Vec<_>>(), vec![8, 9]]);

    consumer.unassign(&[("orders", 0)]).unwrap();
    assert_eq!(consumer.assignment().unwrap(), [("orders".to_owned(), 1)]);
    produce(&producer, "orders", 0, ["never".to_owned()]);
    produce(&producer, "orders", 1, ["last".to_owned()]);
    consume_until(&consumer, 100, |batch| {
        collect_offsets(batch, &mut offsets);
        offsets[1].len() == 3
    });
    assert_eq!(offsets[0].len(), 6);
    consumer.unassign_all().unwrap();
    assert!(consumer.assignment().unwrap().is_empty());
    consumer.unassign_all().unwrap();
    consumer.close(PATIENCE).unwrap();
}

fn collect_offsets(batch: &MessageBatch, offsets: &mut [Vec<i64>; 2]) {
    for run in batch.runs() {
        if let Run::Records(run) = run {
            offsets[usize::try_from(run.partition()).unwrap()]
                .extend(run.records().map(rdkafka_ext::RecordView::offset));
        }
    }
}

#[test]
fn an_offset_out_of_range_is_an_error_and_never_a_jump() {
    let cluster = cluster("orders", 1);
    produce(
        &producer(&cluster),
        "orders",
        0,
        (0..5).map(|n| n.to_string()),
    );
    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 1_000)]).unwrap();
    consume_until(&consumer, 10, |batch| match batch.runs().next() {
        None => false,
        Some(Run::Error(error)) => {
            assert_eq!(error.error.code, ErrorCode::AUTO_OFFSET_RESET, "{error:?}");
            assert_eq!((error.topic, error.partition), (Some("orders"), Some(0)));
            assert_eq!(error.offset, Some(1_000));
            true
        }
        Some(other) => panic!("{other:?}"),
    });
}

#[test]
fn a_commit_is_stored_with_its_note() {
    let cluster = cluster("orders", 2);
    let consumer = consumer(&cluster);
    let commit = |next_offset, metadata| CommitOffset {
        topic: "orders",
        partition: 1,
        next_offset,
        metadata,
    };
    let results = consumer
        .commit(&[commit(42, "handover:1")], PATIENCE)
        .unwrap();
    assert_eq!(results.len(), 1);
    assert_eq!(
        (
            results[0].topic.as_str(),
            results[0].partition,
            &results[0].result
        ),
        ("orders", 1, &Ok(()))
    );

    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let asked = [("orders", 0), ("orders", 1)];
    let stored = admin
        .list_group_offsets("readers", Some(&asked), false, PATIENCE)
        .unwrap();
    let of = |partition: i32| {
        stored
            .iter()
            .find(|offset| offset.partition == partition)
            .unwrap()
            .result
            .clone()
            .unwrap()
    };
    assert_eq!(of(0), None);
    assert_eq!(of(1).unwrap().next_offset, 42);
    assert_eq!(of(1).unwrap().metadata, b"handover:1");

    let negative = consumer.commit(&[commit(-1001, "")], PATIENCE).unwrap_err();
    assert!(matches!(negative, CallError::Argument { .. }), "{negative}");
    assert_eq!(consumer.commit(&[], PATIENCE).unwrap(), []);
}

#[test]
fn a_commit_gives_up_at_its_deadline_and_its_late_answer_harms_nobody() {
    let cluster = cluster("orders", 1);
    let consumer = consumer(&cluster);
    let commit = |next_offset| {
        [CommitOffset {
            topic: "orders",
            partition: 0,
            next_offset,
            metadata: "",
        }]
    };
    consumer.commit(&commit(1), PATIENCE).unwrap();

    // With something to read the client needs its broker and notices the loss.
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    consume_until(&consumer, 10, |batch| !batch.is_empty());
    cluster.broker_down(1).unwrap();
    for next_offset in 2..5 {
        let deadline = Duration::from_millis(500);
        let before = Instant::now();
        let error = consumer.commit(&commit(next_offset), deadline).unwrap_err();
        let took = before.elapsed();
        assert!(took < deadline + Duration::from_secs(5), "{took:?}");
        // librdkafka itself may say earlier that the coordinator is away.
        match error {
            CallError::Deadline { .. } => assert!(took >= deadline, "{took:?}"),
            CallError::Failed { .. } => {}
            CallError::Argument { .. } => panic!("{error}"),
        }
    }
    // The client as a whole reports the loss, with a code.
    consume_until(&consumer, 10, |batch| {
        let codes = batch.client_errors().iter().map(|lost| lost.error.code);
        codes.into_iter().any(|code| code == ErrorCode::TRANSPORT)
    });

    cluster.broker_up(1).unwrap();
    let until = Instant::now() + PATIENCE;
    while consumer.commit(&commit(9), Duration::from_secs(2)).is_err() {
        assert!(
            Instant::now() < until,
            "no commit after the broker was back"
        );
    }
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let stored = admin
        .list_group_offsets("readers", Some(&[("orders", 0)]), false, PATIENCE)
        .unwrap();
    assert_eq!(stored[0].result.clone().unwrap().unwrap().next_offset, 9);
}

#[test]
fn a_held_batch_keeps_the_client_open_and_closing_gives_up_in_time() {
    let cluster = cluster("orders", 1);
    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    consume_until(&consumer, 10, |batch| !batch.is_empty());
    let held = consumer.consume_batch(1, Duration::ZERO);
    let before = Instant::now();
    let error = consumer.close(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    assert!(before.elapsed() < Duration::from_secs(5));
    drop(held);
}

#[test]
fn a_lost_broker_is_not_counted_until_it_is_back() {
    let cluster = cluster("orders", 1);
    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    consume_until(&consumer, 10, |batch| !batch.is_empty());
    assert!(consumer.connected_brokers() > 0);
    for _ in 0..3 {
        cluster.broker_down(1).unwrap();
        consume_until(&consumer, 10, |_| consumer.connected_brokers() == 0);
        // It stays lost while librdkafka tries again.
        for _ in 0..10 {
            drop(consumer.consume_batch(10, WAIT));
            assert_eq!(consumer.connected_brokers(), 0);
        }
        assert!(consumer.last_error().is_some());
        cluster.broker_up(1).unwrap();
        consume_until(&consumer, 10, |_| consumer.connected_brokers() > 0);
        consume_until(&consumer, 10, |_| consumer.last_error().is_none());
    }
}

#[test]
fn closing_needs_no_broker() {
    let cluster = cluster("orders", 1);
    let consumer = consumer(&cluster);
    consumer.assign(&[at("orders", 0, 0)]).unwrap();
    consume_until(&consumer, 10, |batch| !batch.is_empty());
    cluster.broker_down(1).unwrap();
    consumer.close(PATIENCE).unwrap();
}

#[test]
fn closing_under_an_unanswered_commit_ends_when_the_broker_is_back() {
    let cluster = cluster("orders", 1);
    let consumer = consumer(&cluster);
    let commit = CommitOffset {
        topic: "orders",
        partition: 0,
        next_offset: 1,
        metadata: "",
    };
    consumer.commit(&[commit], PATIENCE).unwrap();
    cluster.broker_down(1).unwrap();
    consumer
        .commit(&[commit], Duration::from_millis(200))
        .unwrap_err();
    let (closed, closing) = mpsc::sync_channel(2);
    thread::spawn(move || closed.send(consumer.close(PATIENCE)));
    assert!(closing.recv_timeout(Duration::from_millis(500)).is_err());
    cluster.broker_up(1).unwrap();
    closing.recv_timeout(PATIENCE).unwrap().unwrap();
}

#[test]
fn offsets_of_many_partitions_come_in_the_order_asked() {
    let cluster = cluster("orders", 3);
    produce(
        &producer(&cluster),
        "orders",
        1,
        (0..5).map(|n| n.to_string()),
    );
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let specs = [
        ("orders", 2, OffsetSpec::Latest),
        ("orders", 1, OffsetSpec::Latest),
        ("orders", 0, OffsetSpec::Earliest),
        ("orders", 7, OffsetSpec::Earliest),
    ];
    let listed = admin
        .list_offsets(&specs, IsolationLevel::ReadCommitted, PATIENCE)
        .unwrap();
    let partitions: Vec<_> = listed.iter().map(|offset| offset.partition).collect();
    assert_eq!(partitions, [2, 1, 0, 7]);
    let offset_of = |index: usize| match &listed[index].result {
        Ok(ListedOffset::Found { offset, .. }) => *offset,
        other => panic!("{other:?}"),
    };
    assert_eq!([offset_of(0), offset_of(1), offset_of(2)], [0, 5, 0]);
    let missing = listed[3].result.clone().unwrap_err();
    assert!(
        [
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode::UNKNOWN_PARTITION
        ]
        .contains(&missing.code),
        "{missing:?}"
    );

    assert_eq!(
        admin
            .list_offsets(&[], IsolationLevel::ReadCommitted, PATIENCE)
            .unwrap(),
        []
    );
    let negative = [("orders", 0, OffsetSpec::Timestamp(-1))];
    let error = admin
        .list_offsets(&negative, IsolationLevel::ReadCommitted, PATIENCE)
        .unwrap_err();
    assert!(matches!(error, CallError::Argument { .. }), "{error}");
    let nul = admin.describe_topics(&["or\0ders"], PATIENCE).unwrap_err();
    assert!(matches!(nul, CallError::Argument { .. }), "{nul}");
}

#[test]
fn metadata_lists_brokers_and_topics() {
    let cluster = cluster("orders", 3);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let metadata = admin.metadata(PATIENCE).unwrap();
    assert_eq!(metadata.brokers.len(), 1);
    assert!(metadata.cluster_id.is_some_and(|id| !id.is_empty()));
    let topic = metadata
        .topics
        .iter()
        .find(|topic| topic.name == "orders")
        .unwrap();
    let partitions = topic.result.as_ref().unwrap();
    assert_eq!(partitions.len(), 3);
    assert!(
        partitions
            .iter()
            .all(|partition| partition.leader == Some(1)),
        "{partitions:?}"
    );
}

#[test]
fn an_unreachable_cluster_is_a_deadline_with_its_cause() {
    // A port that was free a moment ago; nothing listens on it.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", format!("127.0.0.1:{port}"))
        .set_log_level(RDKafkaLogLevel::Error);
    let admin = AdminClient::create(&config, quiet()).unwrap();
    let deadline = Duration::from_secs(1);
    let specs = [("orders", 0, OffsetSpec::Latest)];
    let before = Instant::now();
    let errors = [
        admin
            .list_offsets(&specs, IsolationLevel::ReadCommitted, deadline)
            .unwrap_err(),
        admin.describe_topics(&["orders"], deadline).unwrap_err(),
        admin.describe_group("readers", deadline).unwrap_err(),
        admin
            .list_group_offsets("readers", None, true, deadline)
            .unwrap_err(),
        admin.metadata(deadline).unwrap_err(),
    ];
    assert!(
        before.elapsed() < Duration::from_secs(20),
        "{:?}",
        before.elapsed()
    );
    for error in &errors {
        // At a deadline a client that has forgotten all brokers is told its servers again.
        assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    }
    let cause = admin.last_error().unwrap();
    assert!(
        [ErrorCode::ALL_BROKERS_DOWN, ErrorCode::TRANSPORT].contains(&cause.error.code),
        "{cause:?}"
    );
    assert!(
        errors[0].to_string().contains("last error"),
        "{}",
        errors[0]
    );
}

#[test]
fn log_lines_reach_the_sink_and_its_panic_stays_in_it() {
    let cluster = cluster("orders", 1);
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink: LogSink = {
        let lines = Arc::clone(&lines);
        Arc::new(move |line| {
            lines
                .lock()
                .unwrap()
                .push(format!("{:?} {}", line.level, line.facility));
            // The lock is free again, so the sink goes on working.
            assert!(
                lines.lock().unwrap().len() != 1,
                "on purpose, at the first line"
            );
        })
    };
    let mut config = config(&cluster);
    config
        .set("debug", "broker")
        .set_log_level(RDKafkaLogLevel::Debug);
    let admin = AdminClient::create(&config, sink).unwrap();
    admin.metadata(PATIENCE).unwrap();
    let lines = lines.lock().unwrap();
    assert!(lines.len() > 1);
    assert!(
        lines.iter().any(|line| line.starts_with("Debug ")),
        "{lines:?}"
    );
}

#[test]
fn a_refused_property_is_named_without_its_value() {
    let mut config = ClientConfig::new();
    config.set("no.such.property", "hunter2");
    let error = AdminClient::create(&config, quiet()).unwrap_err();
    assert!(
        matches!(&error, CreateError::Property { property, .. } if property == "no.such.property")
    );
    assert!(!error.to_string().contains("hunter2"), "{error}");

    let mut config = ClientConfig::new();
    config.set("fetch.min.bytes", "hunter2");
    let error = BatchConsumer::create(&config, quiet()).unwrap_err();
    assert!(!error.to_string().contains("hunter2"), "{error}");

    // A consumer cannot be without a group.
    let error = BatchConsumer::create(&ClientConfig::new(), quiet()).unwrap_err();
    assert!(error.to_string().contains("group.id"), "{error}");
}

/// librdkafka issue 5040: a null pointer, unless the asking client has a group.
#[test]
fn a_group_without_a_coordinator_yet_is_an_error_and_no_crash() {
    let cluster = cluster("orders", 1);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let not_coordinator = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR; 20];
    cluster.request_errors(RDKafkaApiKey::OffsetFetch, &not_coordinator);
    let answer = admin.list_group_offsets("readers", Some(&[("orders", 0)]), false, PATIENCE);
    assert!(answer.is_err(), "{answer:?}");
}

#[test]
fn a_mock_topic_can_be_described() {
    let cluster = cluster("orders", 3);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let answer = admin.describe_topics(&["orders"], PATIENCE).unwrap();
    assert_eq!(answer[0].result.as_ref().unwrap().partitions.len(), 3);
}

#[test]
fn a_question_to_a_coordinator_may_be_given_up_before_its_answer_comes() {
    let cluster = cluster("orders", 1);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let ask =
        |deadline| admin.list_group_offsets("readers", Some(&[("orders", 0)]), false, deadline);
    ask(PATIENCE).unwrap();

    let slowly = |answers_after| cluster.broker_round_trip_time(1, answers_after).unwrap();
    slowly(Duration::from_secs(2));
    let given_up = ask(Duration::from_millis(300)).unwrap_err();
    assert!(matches!(given_up, CallError::Deadline { .. }), "{given_up}");
    slowly(Duration::ZERO);
    ask(PATIENCE).unwrap();

    // Without a broker, whether it fails at once or runs out of time.
    cluster.broker_down(1).unwrap();
    ask(Duration::from_millis(300)).unwrap_err();
    cluster.broker_up(1).unwrap();
    ask(PATIENCE).unwrap();

    cluster.broker_down(1).unwrap();
    ask(Duration::from_millis(300)).unwrap_err();
    // A client that carries an open question can be dropped.
    drop(admin);
    cluster.broker_up(1).unwrap();
    let another = AdminClient::create(&config(&cluster), quiet()).unwrap();
    another
        .list_group_offsets("readers", None, false, PATIENCE)
        .unwrap();
}

/// What a group has stored for partition 0 of `orders`.
fn stored(admin: &AdminClient) -> Option<(i64, Vec<u8>)> {
    let answer = admin.list_group_offsets("readers", Some(&[("orders", 0)]), false, PATIENCE);
    let committed = answer.unwrap().remove(0).result.unwrap();
    committed.map(|committed| (committed.next_offset, committed.metadata))
}

fn moved(next_offset: i64) -> [NewGroupOffset<'static>; 1] {
    [NewGroupOffset {
        topic: "orders",
        partition: 0,
        next_offset,
        metadata: "a note",
    }]
}

#[test]
fn a_group_is_moved_with_a_note_and_without_being_its_member() {
    let cluster = cluster("orders", 2);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    assert_eq!(stored(&admin), None);
    for next_offset in [7, 3] {
        let answer = admin
            .alter_group_offsets("readers", &moved(next_offset), PATIENCE)
            .unwrap();
        assert_eq!(answer.len(), 1);
        assert_eq!(answer[0].result, Ok(()));
        assert_eq!(stored(&admin), Some((next_offset, b"a note".to_vec())));
    }
    let none = admin.alter_group_offsets("readers", &[], PATIENCE);
    assert_eq!(none.unwrap(), []);
    for wrong in [moved(-1).to_vec(), [moved(1), moved(2)].concat()] {
        let error = admin.alter_group_offsets("readers", &wrong, PATIENCE);
        assert!(error.is_err(), "{wrong:?}: {error:?}");
    }
    assert_eq!(stored(&admin), Some((3, b"a note".to_vec())));
}

/// The counterpart of librdkafka issue 5040 for what writes: a broker that is not the coordinator says so for each partition.
#[test]
fn moving_a_group_without_a_coordinator_is_an_error_and_no_crash() {
    let cluster = cluster("orders", 1);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let elsewhere = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR; 20];
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &elsewhere);
    let error = admin
        .alter_group_offsets("readers", &moved(1), PATIENCE)
        .unwrap_err();
    assert!(
        matches!(&error, CallError::Failed { error, .. } if error.code == ErrorCode::NOT_COORDINATOR),
        "{error}"
    );
}

/// librdkafka PR 5397: a request to a coordinator that is away, given up and answered later, ended the process. Asked by the
/// broker's number it does not; what was never sent is not sent later, what was sent may still be carried out.
#[test]
fn moving_a_group_may_be_given_up() {
    let cluster = cluster("orders", 1);
    let admin = AdminClient::create(&config(&cluster), quiet()).unwrap();
    let alter =
        |next_offset, deadline| admin.alter_group_offsets("readers", &moved(next_offset), deadline);
    alter(1, PATIENCE).unwrap();

    // The broker has the request and does not answer.
    let slowly = |answers_after| cluster.broker_round_trip_time(1, answers_after).unwrap();
    slowly(Duration::from_secs(1));
    let given_up = alter(2, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(given_up, CallError::Deadline { .. }), "{given_up}");
    slowly(Duration::ZERO);
    let until = Instant::now() + PATIENCE;
    while stored(&admin).map(|(next_offset, _)| next_offset) != Some(2) {
        assert!(Instant::now() < until, "the request was not carried out");
    }

    cluster.broker_down(1).unwrap();
    for _ in 0..3 {
        alter(3, Duration::from_millis(200)).unwrap_err();
    }
    cluster.broker_up(1).unwrap();
    let until = Instant::now() + PATIENCE;
    while admin
        .list_group_offsets("readers", None, false, Duration::from_secs(2))
        .is_err()
    {
        assert!(Instant::now() < until, "the broker did not come back");
    }
    assert_eq!(stored(&admin), Some((2, b"a note".to_vec())));
    alter(4, PATIENCE).unwrap();
    assert_eq!(stored(&admin), Some((4, b"a note".to_vec())));

    cluster.broker_down(1).unwrap();
    alter(5, Duration::from_millis(200)).unwrap_err();
    admin
        .delete_group("readers", Duration::from_millis(200))
        .unwrap_err();
    // A client that carries open requests can be dropped.
    drop(admin);
}
