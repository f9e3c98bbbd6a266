//! Records that cannot be processed, in a topic of their own: byte for byte, with the reason beside them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use rdkafka::{
    Message as _, Offset, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _},
    message::{Header, Headers as _, OwnedHeaders},
    producer::{BaseProducer, BaseRecord, Producer as _},
};
use serde_json::json;

use super::{Scene, earliest, warehouse::Warehouse, with};
use crate::support::{
    unique,
    wait::{SOON, eventually},
};

type Bytes = Option<Vec<u8>>;

/// A record as it stands in a log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Raw {
    key: Bytes,
    value: Bytes,
    headers: Vec<(String, Bytes)>,
}

fn raw(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[(&str, Option<&[u8]>)]) -> Raw {
    Raw {
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(<[u8]>::to_vec)))
            .collect(),
    }
}

fn send(scene: &Scene, records: &[Raw]) {
    let producer: BaseProducer = scene.kafka.config().create().unwrap();
    for record in records {
        let headers = record
            .headers
            .iter()
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header {
                    key,
                    value: value.as_ref(),
                })
            });
        let mut sent = BaseRecord::<Vec<u8>, Vec<u8>>::to(&scene.name)
            .partition(0)
            .headers(headers);
        sent.key = record.key.as_ref();
        sent.payload = record.value.as_ref();
        producer.send(sent).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
}

/// The records of a topic of one partition, read until they are all there that are waited for.
fn read_until(scene: &Scene, topic: &str, done: impl Fn(&[Raw]) -> bool) -> Vec<Raw> {
    let consumer: BaseConsumer = scene
        .kafka
        .config()
        .set("group.id", unique("letters"))
        .create()
        .unwrap();
    let mut whole = TopicPartitionList::new();
    whole
        .add_partition_offset(topic, 0, Offset::Beginning)
        .unwrap();
    consumer.assign(&whole).unwrap();
    let mut found = Vec::new();
    let until = Instant::now() + SOON;
    while !done(&found) {
        assert!(Instant::now() < until, "{found:?}");
        let Some(message) = consumer.poll(Duration::from_millis(200)) else {
            continue;
        };
        let message = message.unwrap();
        let headers = message.headers().map_or_else(Vec::new, |headers| {
            headers
                .iter()
                .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
                .collect()
        });
        found.push(Raw {
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers,
        });
    }
    found
}

/// The headers of a letter: those of the record, and what is said of the error.
fn taken_apart(letter: &Raw) -> (Raw, BTreeMap<String, String>) {
    let is_ours = |name: &str| name.starts_with("handover.error.");
    let original = Raw {
        headers: letter
            .headers
            .iter()
            .filter(|(name, _)| !is_ours(name))
            .cloned()
            .collect(),
        ..letter.clone()
    };
    let said = letter.headers.iter().filter(|(name, _)| is_ours(name));
    let said = said.map(|(name, value)| {
        let name = name.trim_start_matches("handover.error.").to_owned();
        (name, String::from_utf8(value.clone().unwrap()).unwrap())
    });
    (original, said.collect())
}

#[test]
fn a_record_that_cannot_be_decoded_becomes_a_letter_byte_for_byte() {
    let scene = Scene::new("letters-decode", 1);
    let letters = unique("letters");
    let errors =
        json!({"on_bad_record": {"policy": "dead-letter", "connection": "main", "topic": letters}});
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    let spec = with(spec, "/errors", errors);
    // The topic has to be there, and must not be the job's own.
    let refused = scene
        .job
        .api
        .refused(&reqwest::Method::PUT, &scene.job.at("/spec"), Some(&spec));
    assert_eq!(refused.code, "invalid-spec", "{:#}", refused.body);
    assert_eq!(
        refused.body["errors"][0]["pointer"], "/errors/on_bad_record/topic",
        "{:#}",
        refused.body
    );
    let own = with(
        spec.clone(),
        "/errors/on_bad_record/topic",
        json!(scene.name),
    );
    let refused = scene
        .job
        .api
        .refused(&reqwest::Method::PUT, &scene.job.at("/spec"), Some(&own));
    assert!(
        refused.body.to_string().contains("come back to it"),
        "{:#}",
        refused.body
    );
    scene.kafka.create_topic(&letters, 1);
    scene.job.put_spec(&spec);

    let bad = [
        raw(None, Some(b"{not json"), &[]),
        raw(
            Some(b"\x00\xff key"),
            Some(&[0xff, 0x00, 0xfe]),
            &[
                ("trace", Some(b"1")),
                ("trace", Some(b"2")),
                ("empty", Some(b"")),
                ("null", None),
                ("bytes", Some(&[0xff, 0x00])),
            ],
        ),
        raw(Some(b""), Some(b""), &[("", Some(b"no name"))]),
    ];
    let good = raw(Some(b"k"), Some(b"{}"), &[]);
    send(
        &scene,
        &[
            bad[0].clone(),
            good.clone(),
            bad[1].clone(),
            good,
            bad[2].clone(),
        ],
    );
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 5)]);
    assert_eq!(scene.server.log.since(0, &scene.name)[&0], [1, 3]);
    let found = read_until(&scene, &letters, |found| found.len() == 3);
    for ((letter, record), offset) in found.iter().zip(&bad).zip(["0", "2", "4"]) {
        let (original, said) = taken_apart(letter);
        assert_eq!(original, *record);
        let says = |name: &str| said.get(name).map(String::as_str);
        assert_eq!(says("topic"), Some(scene.name.as_str()));
        assert_eq!(says("job"), Some(scene.name.as_str()));
        assert_eq!(
            (says("partition"), says("offset")),
            (Some("0"), Some(offset))
        );
        assert_eq!(says("code"), Some("blocked-on-record"));
        assert_eq!(says("phase"), Some("decode"));
        assert!(says("detail").unwrap().contains("the value is no JSON"));
        assert!(says("timestamp").unwrap().parse::<i64>().unwrap() > 0);
        assert!(says("at").unwrap().ends_with('Z'));
    }
    let view = scene.job.view();
    assert_eq!(
        view["bad_records"],
        json!({"skipped": 0, "dead_lettered": 3}),
        "{view:#}"
    );
    scene.job.stop();

    a_topic_that_is_gone_stands_against_a_start(&scene, &letters);
}

fn a_topic_that_is_gone_stands_against_a_start(scene: &Scene, letters: &str) {
    scene.kafka.delete_topic(letters);
    eventually("the plan says so", SOON, || {
        let plan = scene.job.plan();
        if plan
            .blockers
            .iter()
            .any(|blocker| blocker["code"] == "unknown-topic")
        {
            Ok(())
        } else {
            Err(format!("{:#}", plan.body))
        }
    });
    assert_eq!(
        scene.job.refused("/start", &json!({})).code,
        "start-blocked"
    );
}

/// The target refuses what the format allows: also a tombstone, which has no value to copy.
#[test]
fn a_refused_row_becomes_a_letter_and_every_other_record_stands_once() {
    let warehouse = Warehouse::start("letters-rows");
    let scene = &warehouse.scene;
    scene.job.stop();
    warehouse.run("ALTER TABLE orders ALTER value SET NOT NULL, ADD CHECK (value <> 'bad')");
    let letters = unique("letters");
    scene.kafka.create_topic(&letters, 1);
    let spec = scene.job.api.get(&scene.job.at("/spec"));
    let spec = spec.get("spec").cloned().unwrap_or(spec);
    let errors =
        json!({"on_bad_record": {"policy": "dead-letter", "connection": "main", "topic": letters}});
    scene.job.put_spec(&with(spec, "/errors", errors));
    scene.produce(0, 300);
    let bad = [
        raw(None, None, &[("why", Some(b"tombstone"))]),
        raw(
            Some(b"key"),
            Some(b"bad"),
            &[("a", None), ("a", Some(b"2"))],
        ),
    ];
    send(scene, &bad);
    scene.produce(0, 300);
    scene.produce(1, 500);
    scene.job.start(&json!({}));
    // Positions run ahead of the rows, and go back when a row is refused.
    let wanted: Vec<i64> = (0..300).chain(302..602).collect();
    eventually("the rows", SOON, || {
        let (first, second) = (warehouse.offsets_of(0), warehouse.offsets_of(1));
        if first == wanted && second == (0..500).collect::<Vec<_>>() {
            Ok(())
        } else {
            Err(format!("{} and {} rows", first.len(), second.len()))
        }
    });
    scene.await_positions(&[(0, 602), (1, 500)]);
    scene.job.checkpoint();
    assert_eq!(
        scene.checkpointed().1,
        [(0, Some(602)), (1, Some(500))].into()
    );
    assert_eq!(warehouse.rows(), 1_100);
    // At least once: a letter whose record is read again is written again.
    let is_there = |found: &[Raw], record: &Raw| {
        let mut originals = found.iter().map(|letter| taken_apart(letter).0);
        originals.any(|original| original == *record)
    };
    let found = read_until(scene, &letters, |found| {
        bad.iter().all(|record| is_there(found, record))
    });
    let (_, said) = taken_apart(&found[0]);
    assert_eq!(said["phase"], "write");
}
