//! Where the time goes: each stage is made the slow one, and the API says which.

use std::time::Duration;

use fault_proxy::Direction;
use serde_json::{Value, json};

use super::{earliest, spec, with};
use crate::support::{
    Database,
    client::{Job, block_on},
    kafka::{Kafka, PrivateKafka},
    producer::{Load, Producer},
    server::{Output, TestServer},
    unique,
    wait::eventually,
};

/// How long a run is watched before it is said where its time goes, and some more for a busy machine.
const WATCHED: Duration = Duration::from_secs(40);

/// The shares that add up.
const STAGES: [&str; 8] = [
    "fetch_wait",
    "decode",
    "sink_write",
    "sink_flush",
    "checkpoint",
    "rate_limit",
    "alignment",
    "idle",
];

/// Waits until the job says what holds it back, checks that the shares add up, and answers its view.
pub(super) fn await_bottleneck(job: &Job, kind: &str) -> Value {
    let view = eventually(
        &format!("{} is held back by {kind}", job.path),
        WATCHED,
        || {
            let view = job.view();
            let says = view["bottleneck"]["kind"] == kind;
            says.then_some(view.clone())
                .ok_or_else(|| format!("{:#} {:#}", view["bottleneck"], view["stages"]))
        },
    );
    let shares = &view["stages"]["shares"];
    let sum: f64 = STAGES
        .iter()
        .filter_map(|stage| shares[*stage].as_f64())
        .sum();
    assert!((0.99..=1.01).contains(&sum), "{sum}: {shares:#}");
    assert!(
        view["stages"]["window_ms"].as_i64() >= Some(10_000),
        "{view:#}"
    );
    view
}

pub(super) fn share(view: &Value, stage: &str) -> f64 {
    view["stages"]["shares"][stage].as_f64().expect("a share")
}

/// A sink in a table whose rows, or whose transactions, are slow.
fn table(target: &Database, name: &str, trigger: &str, body: &str) -> Value {
    target.run(&format!("CREATE TABLE {name} (pos bigint NOT NULL)"));
    target.run(&format!(
        "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$"
    ));
    target.run(&format!(
        "CREATE {trigger} ON {name} {} FOR EACH ROW EXECUTE FUNCTION {name}()",
        if trigger.starts_with("CONSTRAINT") {
            "DEFERRABLE INITIALLY DEFERRED"
        } else {
            ""
        },
    ));
    json!({
        "type": "postgres", "connection": "warehouse", "table": format!("public.{name}"),
        "mapping": {"mode": "raw", "columns": {"pos": "@offset"}},
        "batch": {"max_rows": 1000},
    })
}

/// A gigabyte of numbers to look at, of which the broker stores little.
fn fill_with_documents(kafka: &Kafka, topic: &str) {
    let producer = Producer::tuned(kafka, "compression.type", "lz4");
    let document = format!("[1{}]", ",1".repeat(100_000));
    for _ in 0..5_000 {
        producer.send(topic, 0, document.as_bytes(), None);
    }
    producer.flush();
}

fn await_idle(job: &Job) {
    let view = await_bottleneck(job, "none");
    assert!(share(&view, "idle") > 0.5, "{view:#}");
    assert_eq!(view["bottleneck"]["hint"], Value::Null, "{view:#}");
    assert_eq!(view["bottleneck"]["next"], json!([]), "{view:#}");
}

/// Five jobs side by side on one server: the time of each goes elsewhere.
#[test]
fn each_stage_that_is_slow_is_named() {
    let kafka = Kafka::shared();
    let target = block_on(Database::create());
    let store = block_on(Database::create());
    let server = TestServer::start_configured(
        &kafka,
        &store.url(),
        Output::Followed,
        &format!(
            "[connections.warehouse]\ntype = \"postgres\"\nurl = \"{}\"\n",
            target.url()
        ),
    );
    let topic = |name: &str| {
        let name = unique(name);
        kafka.create_topic(&name, 2);
        name
    };
    let start = |name: &str, spec: &Value| {
        let job = server.job(&unique(name));
        job.put_spec(spec);
        job.start(&json!({}));
        job
    };
    let blackhole = json!({"type": "blackhole"});

    let small = topic("small");
    let producer = Producer::new(&kafka);
    producer.produce(&small, 0, 60_000);
    let of_small = with(spec(&small, &earliest()), "/sink", blackhole.clone());

    // Everything is read at once: then there is nothing that it would wait for.
    let idle = start("idle", &of_small);
    let first = idle.view();
    assert_eq!(first["bottleneck"]["kind"], Value::Null, "{first:#}");
    assert_eq!(first["stages"]["shares"], Value::Null, "{first:#}");
    assert!(first["stages"]["since"].is_string(), "{first:#}");
    let summary = first["bottleneck"]["summary"].as_str().unwrap_or_default();
    assert!(summary.starts_with("not known yet"), "{summary}");

    let limits = json!({"records_per_s": 50, "bytes_per_s": null});
    let limited = with(of_small.clone(), "/limits", limits);
    let limited = start("limited", &with(limited, "/parallelism", json!(2)));

    let rows = table(
        &target,
        "slow_rows",
        "TRIGGER slow BEFORE INSERT",
        "PERFORM pg_sleep(0.002);",
    );
    let sink = start("sink", &with(of_small, "/sink", rows));

    // The first row of a transaction makes its COMMIT slow, however many rows there are.
    let once = "IF current_setting('test.slept', true) IS DISTINCT FROM 'yes' THEN
        PERFORM set_config('test.slept', 'yes', true), pg_sleep(0.4); END IF;";
    let commits = table(
        &target,
        "slow_commits",
        "CONSTRAINT TRIGGER slow AFTER INSERT",
        once,
    );
    let trickle = topic("trickle");
    let load = Load::start(&kafka, &trickle, 2, 100);
    let spec_of = with(spec(&trickle, &earliest()), "/sink", commits);
    let checkpoint = start(
        "commits",
        &with(spec_of, "/checkpoint/interval", json!("300ms")),
    );

    let documents = topic("documents");
    fill_with_documents(&kafka, &documents);
    let json_documents = with(spec(&documents, &earliest()), "/sink", blackhole);
    let decode = start(
        "decode",
        &with(json_documents, "/source/format", json!("json")),
    );

    await_idle(&idle);

    let view = await_bottleneck(&limited, "rate-limit");
    assert_eq!(
        view["bottleneck"]["settings"],
        json!(["/limits/records_per_s"]),
        "{view:#}"
    );
    // All records are in one partition: the other subtask has nothing to do, and does not hide the one that is held back.
    let subtask = view["bottleneck"]["subtask"].as_u64().expect("a subtask");
    let of_subtask = &view["stages"]["subtasks"][usize::from(subtask == 1)];
    assert_eq!(of_subtask["subtask"], subtask, "{view:#}");
    assert!(
        of_subtask["shares"]["rate_limit"].as_f64() > Some(0.8),
        "{view:#}"
    );
    assert!(share(&view, "idle") > 0.4, "{view:#}");

    let view = await_bottleneck(&sink, "sink");
    assert!(share(&view, "sink_write") > 0.8, "{view:#}");
    assert!(share(&view, "handover_wait") > 0.8, "{view:#}");
    let next = view["bottleneck"]["next"].to_string();
    assert!(next.contains("\\\"parallelism\\\":2"), "{next}");

    let view = await_bottleneck(&checkpoint, "checkpoint");
    assert!(share(&view, "sink_flush") > 0.6, "{view:#}");
    let next = view["bottleneck"]["next"].to_string();
    assert!(next.contains("\\\"interval\\\":\\\"1200ms"), "{next}");
    load.end();

    let view = await_bottleneck(&decode, "decode");
    assert!(share(&view, "decode") > 0.5, "{view:#}");
    let metrics = server.api.get("/metrics").to_string();
    assert!(metrics.contains("stage=\\\"sink_write\\\""), "{metrics}");
}

/// The records are in the log, and every answer of the broker takes its time.
#[test]
fn a_broker_that_is_slow_is_named() {
    let (cluster, proxy) = PrivateKafka::start_behind_proxy();
    let kafka = &cluster.kafka;
    let server = TestServer::start_on(kafka, Output::Followed);
    let topic = unique("far");
    kafka.create_topic(&topic, 2);
    // An answer to a fetch is never less than one of the producer's batches.
    let producer = Producer::tuned(kafka, "batch.size", "16384");
    let value = vec![b'x'; 1_000];
    for _ in 0..20_000 {
        producer.send(&topic, 0, &value, None);
    }
    producer.flush();
    proxy.set_latency(Direction::ToClient, Duration::from_millis(150));
    let job = server.job(&topic);
    let small = json!({"max.partition.fetch.bytes": "65536"});
    let spec = with(
        spec(&topic, &earliest()),
        "/sink",
        json!({"type": "blackhole"}),
    );
    job.put_spec(&with(spec, "/source/properties", small));
    job.start(&json!({}));
    let view = await_bottleneck(&job, "broker");
    assert!(share(&view, "fetch_wait") > 0.6, "{view:#}");
    assert!(view["lag"]["position"].as_i64() > Some(0), "{view:#}");
    let settings = view["bottleneck"]["settings"].to_string();
    assert!(settings.contains("max.partition.fetch.bytes"), "{settings}");

    // It is near again: what is left is read, and then nothing is waited for.
    block_on(proxy.heal());
    eventually("everything is read", WATCHED, || {
        let view = job.view();
        (view["lag"]["position"] == 0).then_some(()).ok_or(view)
    });
}
