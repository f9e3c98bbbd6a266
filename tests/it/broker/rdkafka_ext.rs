//! The unsafe layer where librdkafka's mock cluster answers differently from a broker.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rdkafka::{
    consumer::{BaseConsumer, Consumer},
    producer::Producer,
};
use rdkafka_ext::{
    AdminClient, AssignedOffset, BatchConsumer, CallError, CommitOffset, ErrorCode, GroupState,
    IsolationLevel, ListedOffset, NewGroupOffset, OffsetSpec, Run,
};

use super::{
    PATIENCE, client, delete_topic, make_topic, produce, producer, topic, transactional_producer,
    unique,
};

fn ask() -> AdminClient {
    AdminClient::create(&client(), Arc::new(|_| {})).unwrap()
}

fn consumer(group: &str, isolation: &str) -> BatchConsumer {
    let mut config = client();
    config
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "error")
        .set("isolation.level", isolation);
    BatchConsumer::create(&config, Arc::new(|_| {})).unwrap()
}

/// Reads a partition to its end: how many records, and the position at the end.
fn read_to_end(consumer: &BatchConsumer, topic: &str) -> (usize, i64) {
    let from = AssignedOffset {
        topic,
        partition: 0,
        next_offset: 0,
    };
    consumer.assign(&[from]).unwrap();
    let until = Instant::now() + PATIENCE;
    let mut records = 0;
    while Instant::now() < until {
        for run in consumer
            .consume_batch(1_000, Duration::from_millis(100))
            .runs()
        {
            match run {
                Run::Records(run) => records += run.len(),
                Run::EndOfPartition { next_offset, .. } => return (records, next_offset),
                Run::Error(error) => panic!("{error:?}"),
            }
        }
    }
    panic!("no end of {topic} within {PATIENCE:?}");
}

#[tokio::test]
async fn a_timestamp_beyond_the_last_record_is_not_found_and_never_a_number() {
    let topic = topic("timestamps", 2).await;
    let first_ms = 1_700_000_000_000;
    produce(&producer(), &topic, 0, 10, first_ms);
    let look_up = |partition, ms| (topic.as_str(), partition, OffsetSpec::Timestamp(ms));
    let specs = [look_up(0, first_ms + 4)];
    let found = ask()
        .list_offsets(&specs, IsolationLevel::ReadCommitted, PATIENCE)
        .unwrap();
    let expected = ListedOffset::Found {
        offset: 4,
        timestamp: Some(first_ms + 4),
    };
    assert_eq!(found[0].result, Ok(expected));
    // One after the last record, and one in an empty partition.
    let specs = [look_up(1, 0), look_up(0, first_ms + 10)];
    let missing = ask()
        .list_offsets(&specs, IsolationLevel::ReadCommitted, PATIENCE)
        .unwrap();
    assert_eq!(
        (missing[0].partition, &missing[0].result),
        (1, &Ok(ListedOffset::NotFound))
    );
    assert_eq!(
        (missing[1].partition, &missing[1].result),
        (0, &Ok(ListedOffset::NotFound))
    );
}

#[tokio::test]
async fn an_open_transaction_holds_the_stable_end_back() {
    let topic = topic("open-transaction", 1).await;
    let producer = transactional_producer();
    producer.begin_transaction().unwrap();
    produce(&producer, &topic, 0, 5, 1);
    producer.commit_transaction(PATIENCE).unwrap();
    producer.begin_transaction().unwrap();
    produce(&producer, &topic, 0, 3, 10);
    let end = |isolation| {
        let listed = ask()
            .list_offsets(
                &[(topic.as_str(), 0, OffsetSpec::Latest)],
                isolation,
                PATIENCE,
            )
            .unwrap();
        match listed[0].result {
            Ok(ListedOffset::Found { offset, .. }) => offset,
            ref other => panic!("{other:?}"),
        }
    };
    // Five records, the commit marker, three open records.
    assert_eq!(end(IsolationLevel::ReadCommitted), 6);
    assert_eq!(end(IsolationLevel::ReadUncommitted), 9);
    producer.abort_transaction(PATIENCE).unwrap();
    assert_eq!(end(IsolationLevel::ReadCommitted), 10);

    // Whoever has read all that it may see stands behind the markers, under both isolation levels.
    let committed = consumer(&unique("reader"), "read_committed");
    assert_eq!(read_to_end(&committed, &topic), (5, 10));
    let uncommitted = consumer(&unique("reader"), "read_uncommitted");
    assert_eq!(read_to_end(&uncommitted, &topic), (8, 10));
}

#[tokio::test]
async fn a_topic_made_again_has_another_id() {
    let name = topic("recreated", 3).await;
    let missing = unique("missing");
    let describe = || ask().describe_topics(&[&missing, &name], PATIENCE).unwrap();
    let described = describe();
    assert_eq!(
        described[0].result.as_ref().unwrap_err().code,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
    );
    let before = described[1].result.clone().unwrap();
    let numbers: Vec<i32> = before
        .partitions
        .iter()
        .map(|partition| partition.partition)
        .collect();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(
        before
            .partitions
            .iter()
            .all(|partition| partition.leader.is_some())
    );
    assert_eq!(before.id.unwrap().to_string().len(), 22);

    delete_topic(&name).await;
    let until = Instant::now() + PATIENCE;
    while describe()[1].result.is_ok() {
        assert!(Instant::now() < until, "the topic is still there");
    }
    make_topic(&name, 3).await;
    let until = Instant::now() + PATIENCE;
    let after = loop {
        match &describe()[1].result {
            Ok(info) if info.partitions.len() == 3 => break info.clone(),
            _ => assert!(Instant::now() < until, "the topic did not come back"),
        }
    };
    assert_ne!(before.id, after.id);
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the other member of the group subscribes, which is the point"
)]
async fn a_subscribed_member_makes_commits_fail_but_not_the_reading() {
    let topic = topic("shared-group", 1).await;
    produce(&producer(), &topic, 0, 10, 1);
    let group = unique("shared");
    let asking = ask();
    match asking.describe_group(&group, PATIENCE) {
        Ok(description) => assert_eq!(
            (description.state, description.members.len()),
            (GroupState::Dead, 0)
        ),
        Err(CallError::Failed { error, .. }) => {
            assert_eq!(error.code, ErrorCode::GROUP_ID_NOT_FOUND);
        }
        Err(other) => panic!("{other}"),
    }

    let assigned = consumer(&group, "read_committed");
    let commit = |next_offset| {
        let offset = CommitOffset {
            topic: &topic,
            partition: 0,
            next_offset,
            metadata: "note",
        };
        assigned.commit(&[offset], PATIENCE)
    };
    assert_eq!(commit(3).unwrap()[0].result, Ok(()));
    let asked = [(topic.as_str(), 0)];
    let stored = asking
        .list_group_offsets(&group, Some(&asked), true, PATIENCE)
        .unwrap();
    let stored = stored[0].result.clone().unwrap().unwrap();
    assert_eq!(
        (stored.next_offset, stored.metadata.as_slice()),
        (3, &b"note"[..])
    );

    let member: BaseConsumer = client()
        .set("group.id", &group)
        .set("client.id", "the-other")
        .create()
        .unwrap();
    member.subscribe(&[&topic]).unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        drop(member.poll(Duration::from_millis(100)));
        let description = asking.describe_group(&group, PATIENCE).unwrap();
        if description.state == GroupState::Stable {
            assert_eq!(description.members.len(), 1);
            assert_eq!(description.members[0].client_id, "the-other");
            break;
        }
        assert!(Instant::now() < until, "{description:?}");
    }
    let refused = match commit(4) {
        Ok(results) => results[0].result.clone().unwrap_err().code,
        Err(CallError::Failed { error, .. }) => error.code,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(refused, ErrorCode::UNKNOWN_MEMBER_ID);
    // librdkafka gives the member's partitions up after this error; what was assigned by hand stays.
    assert_eq!(read_to_end(&assigned, &topic), (10, 10));
    assert!(commit(5).is_err() || commit(5).unwrap()[0].result.is_err());
    produce(&producer(), &topic, 0, 1, 100);
    let until = Instant::now() + PATIENCE;
    while assigned
        .consume_batch(10, Duration::from_millis(100))
        .is_empty()
    {
        assert!(
            Instant::now() < until,
            "reading stopped after a refused commit"
        );
    }
}

#[tokio::test]
#[expect(
    clippy::disallowed_methods,
    reason = "the member of the group subscribes, which is the point"
)]
async fn a_group_is_moved_and_deleted_unless_it_has_members() {
    let topic = topic("moved-group", 2).await;
    produce(&producer(), &topic, 0, 10, 1);
    let (group, missing) = (unique("moved"), unique("missing"));
    let asking = ask();
    let offset = |topic, partition, next_offset| NewGroupOffset {
        topic,
        partition,
        next_offset,
        metadata: "moved by hand",
    };
    let stored = || -> Vec<Option<(i64, Vec<u8>)>> {
        let asked = [(topic.as_str(), 0), (topic.as_str(), 1)];
        let listed = asking.list_group_offsets(&group, Some(&asked), true, PATIENCE);
        let listed = listed.unwrap().into_iter();
        listed
            .map(|listed| {
                let committed = listed.result.unwrap();
                committed.map(|committed| (committed.next_offset, committed.metadata))
            })
            .collect()
    };
    let note = || b"moved by hand".to_vec();
    let answer = asking
        .alter_group_offsets(
            &group,
            &[offset(&topic, 0, 4), offset(&topic, 1, 0)],
            PATIENCE,
        )
        .unwrap();
    assert!(
        answer.iter().all(|altered| altered.result == Ok(())),
        "{answer:?}"
    );
    assert_eq!(stored(), [Some((4, note())), Some((0, note()))]);

    // A partition that the broker refuses does not keep it from storing the others: callers have to look first.
    let answer = asking
        .alter_group_offsets(
            &group,
            &[offset(&topic, 0, 6), offset(&missing, 0, 1)],
            PATIENCE,
        )
        .unwrap();
    let of = |name: &str| {
        let found = answer.iter().find(|altered| altered.topic == name);
        found.unwrap().result.clone()
    };
    assert_eq!(of(&topic), Ok(()));
    assert_eq!(
        of(&missing).unwrap_err().code,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
    );
    assert_eq!(stored()[0], Some((6, note())));

    let member: BaseConsumer = client().set("group.id", &group).create().unwrap();
    member.subscribe(&[&topic]).unwrap();
    let until = Instant::now() + PATIENCE;
    while asking.describe_group(&group, PATIENCE).unwrap().state != GroupState::Stable {
        drop(member.poll(Duration::from_millis(100)));
        assert!(Instant::now() < until, "no member");
    }
    let refused = asking
        .alter_group_offsets(&group, &[offset(&topic, 0, 1)], PATIENCE)
        .unwrap();
    assert_eq!(
        refused[0].result.clone().unwrap_err().code,
        ErrorCode::UNKNOWN_MEMBER_ID
    );
    let code = |answer: Result<(), CallError>| match answer {
        Err(CallError::Failed { error, .. }) => error.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        code(asking.delete_group(&group, PATIENCE)),
        ErrorCode::NON_EMPTY_GROUP
    );
    member.unsubscribe();
    let until = Instant::now() + PATIENCE;
    while asking.describe_group(&group, PATIENCE).unwrap().state != GroupState::Empty {
        drop(member.poll(Duration::from_millis(100)));
        assert!(Instant::now() < until, "the member is still there");
    }
    assert_eq!(
        stored()[0],
        Some((6, note())),
        "a refused move moved nothing"
    );
    asking.delete_group(&group, PATIENCE).unwrap();
    assert_eq!(stored(), [None, None]);
    assert_eq!(
        code(asking.delete_group(&group, PATIENCE)),
        ErrorCode::GROUP_ID_NOT_FOUND
    );
}
