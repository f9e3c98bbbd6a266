//! Laws of job documents: whatever a valid document says is read, shown, read again and patched without a change of meaning.

use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::{
    ids::JobName,
    job::{CheckpointSpec, JobSpec, PartitionDiscovery},
    limits::LimitsSpec,
    restart::RestartStrategy,
};

const SECOND: u64 = 1_000;
const DAY: u64 = 86_400_000;

fn job() -> JobName {
    JobName::new("orders").unwrap()
}

/// An object of the members that are there.
fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let there = members
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(there.collect::<Map<_, _>>())
}

/// A length of time within bounds of milliseconds, in each way of writing it that is exact.
fn durations(least: u64, most: u64) -> BoxedStrategy<Value> {
    let units = [
        ("ms", 1),
        ("s", 1_000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", DAY),
    ];
    let fitting: Vec<(&str, u64)> = units
        .into_iter()
        .filter(|(_, unit)| least.div_ceil(*unit) <= most / unit)
        .collect();
    let written = select(fitting).prop_flat_map(move |(name, unit)| {
        (least.div_ceil(unit)..=most / unit)
            .prop_map(move |number| json!(format!("{number}{name}")))
    });
    written.boxed()
}

fn topics() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,30}"
}

fn offsets() -> impl Strategy<Value = Value> {
    let of_topic = prop::collection::btree_map(0..40_i32, 0..(1_i64 << 53), 1..4);
    prop::collection::btree_map(topics(), of_topic, 1..3).prop_map(|offsets| json!(offsets))
}

fn instants() -> impl Strategy<Value = Value> {
    const WRITTEN: [&str; 4] = [
        "1970-01-01T00:00:00Z",
        "2026-11-28T02:00:00+01:00",
        "2026-11-28T02:00:00.123456789-11:30",
        "9999-12-31T23:59:59.999Z",
    ];
    select(&WRITTEN[..]).prop_map(|instant| json!(instant))
}

fn startup_modes() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(&["group-offsets", "earliest", "latest"][..]).prop_map(|mode| json!({"mode": mode})),
        instants().prop_map(|at| json!({"mode": "timestamp", "timestamp": at})),
        offsets().prop_map(|offsets| json!({"mode": "specific-offsets", "offsets": offsets})),
    ]
}

fn stop_ats() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(&["group-offsets", "latest"][..]).prop_map(|mode| json!({"mode": mode})),
        instants().prop_map(|at| json!({"mode": "timestamp", "timestamp": at})),
        offsets().prop_map(|offsets| json!({"mode": "specific-offsets", "offsets": offsets})),
    ]
}

fn policies() -> impl Strategy<Value = Option<Value>> {
    option::of(select(&["fail", "earliest", "latest"][..]).prop_map(|policy| json!(policy)))
}

fn sources() -> impl Strategy<Value = Value> {
    let selected = prop_oneof![
        prop::collection::btree_set(topics(), 1..4).prop_map(|topics| ("topics", json!(topics))),
        select(&["orders", "orders-.*", r"[a-z]{1,3}\.\d+", "a|b"][..])
            .prop_map(|pattern| ("topic_pattern", json!(pattern))),
    ];
    let discovery = (
        option::of(durations(SECOND, DAY)),
        option::of(select(&["earliest", "startup-mode"][..]).prop_map(|word| json!(word))),
    );
    let discovery = discovery.prop_map(|(interval, new_partitions)| {
        object([("interval", interval), ("new_partitions", new_partitions)])
    });
    (
        selected,
        option::of(discovery),
        option::of("\\PC{1,60}".prop_map(|group| json!(group))),
        option::of(any::<bool>().prop_map(|shared| json!(shared))),
        option::of(
            select(&["read_committed", "read_uncommitted"][..]).prop_map(|word| json!(word)),
        ),
        option::of(select(&["bytes", "utf-8", "json"][..]).prop_map(|word| json!(word))),
        option::of(select(&["on-checkpoint", "off"][..]).prop_map(|word| json!(word))),
        [policies(), policies(), policies()],
        option::of(stop_ats()),
        option::of(Just(json!({"fetch.min.bytes": "1"}))),
    )
        .prop_map(
            |(
                selected,
                discovery,
                group,
                shared,
                isolation,
                format,
                commit,
                policies,
                stop_at,
                properties,
            )| {
                let (name, topics) = selected;
                let [outside, missing, recreated] = policies;
                // Ends of the job's own group are not overwritten.
                let at_the_group = |stop: &Value| stop["mode"] == "group-offsets";
                let commit = match stop_at.as_ref().is_some_and(at_the_group) {
                    true => Some(json!("off")),
                    false => commit,
                };
                object([
                    ("connection", Some(json!("main"))),
                    (name, Some(topics)),
                    ("partition_discovery", discovery),
                    ("group_id", group),
                    ("allow_shared_group", shared),
                    ("isolation", isolation),
                    ("format", format),
                    ("commit_to_group", commit),
                    ("on_out_of_range", outside),
                    ("on_missing_group_offset", missing),
                    ("on_topic_recreated", recreated),
                    ("stop_at", stop_at),
                    ("properties", properties),
                ])
            },
        )
}

fn restarts() -> impl Strategy<Value = Value> {
    let exponential = (
        option::of(durations(1, 60 * SECOND)),
        option::of(durations(60 * SECOND, DAY)),
        option::of(1.0..=100.0_f64),
        option::of(0.0..=1.0_f64),
        option::of(durations(SECOND, 30 * DAY)),
    );
    prop_oneof![
        Just(json!({"strategy": "none"})),
        (1..=1_000_000_u32, option::of(durations(0, DAY))).prop_map(|(attempts, delay)| {
            object([
                ("strategy", Some(json!("fixed-delay"))),
                ("attempts", Some(json!(attempts))),
                ("delay", delay),
            ])
        }),
        (
            1..=100_u32,
            option::of(durations(SECOND, 30 * DAY)),
            option::of(durations(0, DAY))
        )
            .prop_map(|(most, interval, delay)| {
                object([
                    ("strategy", Some(json!("failure-rate"))),
                    ("max_failures", Some(json!(most))),
                    ("interval", interval),
                    ("delay", delay),
                ])
            }),
        exponential.prop_map(|(initial, max, multiplier, jitter, reset_after)| {
            object([
                ("strategy", Some(json!("exponential"))),
                ("initial", initial),
                ("max", max),
                ("multiplier", multiplier.map(|factor| json!(factor))),
                ("jitter", jitter.map(|factor| json!(factor))),
                ("reset_after", reset_after),
            ])
        }),
    ]
}

fn bad_records() -> impl Strategy<Value = Value> {
    let policy = prop_oneof![
        Just(json!({"policy": "stop"})),
        Just(json!({"policy": "skip"})),
        topics().prop_map(
            |topic| json!({"policy": "dead-letter", "connection": "main", "topic": topic})
        ),
    ];
    let block = option::of(select(&["partition", "job"][..]).prop_map(|word| json!(word)));
    (block, option::of(policy))
        .prop_map(|(block, policy)| object([("block", block), ("on_bad_record", policy)]))
}

fn postgres_sinks() -> impl Strategy<Value = Value> {
    let identifier = "[a-z_][a-z0-9_$]{0,12}|\"[a-zA-Z. ]{1,12}\"";
    let table =
        (Just("public"), identifier).prop_map(|(schema, table)| format!("{schema}.{table}"));
    let write = select(vec![
        (json!({"mode": "raw"}), None),
        (
            json!({"mode": "json-document"}),
            Some(json!({"on_tombstone": "ignore"})),
        ),
        (
            json!({"mode": "json-fields", "columns": {"id": "$.order.id", "at": "@offset"}}),
            None,
        ),
        (
            json!({"mode": "json-fields", "columns": {"id": "@key", "total": "$['grand total']"}}),
            Some(json!({"mode": "upsert", "key": ["id"], "on_tombstone": "delete"})),
        ),
    ]);
    let batch = (
        option::of(1..=100_000_u32),
        option::of(durations(0, 10 * SECOND)),
    );
    (table, write, option::of(batch)).prop_map(|(table, (mapping, write), batch)| {
        object([
            ("type", Some(json!("postgres"))),
            ("connection", Some(json!("warehouse"))),
            ("table", Some(json!(table))),
            ("mapping", Some(mapping)),
            ("write", write),
            (
                "batch",
                batch.map(|(rows, linger)| {
                    object([
                        ("max_rows", rows.map(|rows| json!(rows))),
                        ("linger", linger),
                    ])
                }),
            ),
        ])
    })
}

fn sinks() -> impl Strategy<Value = Value> {
    let log = (
        option::of(select(&["json", "text"][..]).prop_map(|word| json!(word))),
        option::of((0..=(1_u32 << 20)).prop_map(|bytes| json!(bytes))),
    );
    prop_oneof![
        Just(json!({"type": "blackhole"})),
        log.prop_map(|(format, most)| {
            object([
                ("type", Some(json!("log"))),
                ("format", format),
                ("max_value_bytes", most),
            ])
        }),
        postgres_sinks(),
    ]
}

fn watermarks() -> impl Strategy<Value = Value> {
    let strategy = prop_oneof![
        Just(("monotonous", None)),
        durations(0, 365 * DAY).prop_map(|delay| ("bounded-out-of-orderness", Some(delay))),
    ];
    let stamp = select(&["record", "$.at", "$.meta['created at'][0]"][..]);
    (
        strategy,
        option::of(durations(SECOND, DAY)),
        option::of(stamp.prop_map(|stamp| json!(stamp))),
        option::of(durations(SECOND, 365 * DAY)),
    )
        .prop_map(|((strategy, delay), idle_after, timestamp, drift)| {
            // Without idleness there is no alignment.
            let drift = drift.filter(|_| idle_after.is_some());
            object([
                ("strategy", Some(json!(strategy))),
                ("max_delay", delay),
                ("idle_after", idle_after),
                ("timestamp", timestamp),
                ("alignment", drift.map(|drift| json!({"max_drift": drift}))),
            ])
        })
}

/// Documents that are valid, from the shortest to such that say everything.
fn documents() -> impl Strategy<Value = Value> {
    let labels = prop::collection::btree_map("[a-z./-]{1,20}", "\\PC{0,15}", 0..4);
    let checkpoint = (
        option::of(durations(100, DAY)),
        option::of(durations(100, DAY)),
        option::of(durations(0, DAY)),
        option::of(Just(json!("retain"))),
    );
    let checkpoint = checkpoint.prop_map(|(interval, timeout, min_pause, on_cancel)| {
        object([
            ("interval", interval),
            ("timeout", timeout),
            ("min_pause", min_pause),
            ("on_cancel", on_cancel),
        ])
    });
    let limit = || option::of((1..=1_000_000_000_000_u64).prop_map(|limit| json!(limit)));
    let limits = (limit(), limit());
    let limits = limits
        .prop_map(|(records, bytes)| object([("records_per_s", records), ("bytes_per_s", bytes)]));
    (
        option::of(labels.prop_map(|labels| json!(labels))),
        sources(),
        option::of((1..=64_u32).prop_map(|subtasks| json!(subtasks))),
        startup_modes(),
        option::of(checkpoint),
        option::of(bad_records()),
        option::of(restarts()),
        option::of(limits),
        option::of(watermarks()),
        sinks(),
    )
        .prop_map(
            |(
                labels,
                mut source,
                parallelism,
                mode,
                checkpoint,
                errors,
                restart,
                limits,
                watermark,
                sink,
            )| {
                let stamp = watermark.as_ref().and_then(|one| one["timestamp"].as_str());
                if stamp.is_some_and(|stamp| stamp != "record") {
                    source["format"] = json!("json");
                }
                object([
                    ("labels", labels),
                    ("source", Some(source)),
                    ("parallelism", parallelism),
                    ("startup_mode", Some(mode)),
                    ("checkpoint", checkpoint),
                    ("errors", errors),
                    ("restart", restart),
                    ("limits", limits),
                    ("watermark", watermark),
                    ("sink", Some(sink)),
                ])
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is shown can be sent again, and the store gives back what it was given.
    #[test]
    fn a_valid_document_is_read_shown_and_read_again_to_the_same(document in documents()) {
        let spec = JobSpec::read(&job(), &document).map_err(|faults| TestCaseError::fail(format!("{faults:?}")))?;
        let shown = serde_json::to_value(&spec).unwrap();
        prop_assert_eq!(JobSpec::read(&job(), &shown), Ok(spec.clone()));
        let stored = serde_json::to_string(&spec).unwrap();
        let loaded: JobSpec = serde_json::from_str(&stored).unwrap();
        prop_assert_eq!(&loaded, &spec);
        // Defaults are filled in once: what is shown twice is the same text.
        prop_assert_eq!(serde_json::to_string(&loaded).unwrap(), stored);
        prop_assert_eq!(spec.change_from(&loaded).pending_fields, Vec::<String>::new());
    }

    /// What a document leaves out is the default, whatever else it says; and `null` says as much as nothing.
    #[test]
    fn a_member_that_is_left_out_is_its_default(document in documents(), left_out in vec(select(
        &["labels", "parallelism", "checkpoint", "restart", "limits", "errors", "watermark"][..]), 1..6)) {
        let (mut short, mut nulled) = (document.clone(), document);
        for name in &left_out {
            short.as_object_mut().unwrap().shift_remove(*name);
            nulled[*name] = Value::Null;
        }
        let spec = JobSpec::read(&job(), &short).unwrap();
        prop_assert_eq!(JobSpec::read(&job(), &nulled), Ok(spec.clone()));
        for name in left_out {
            let is_default = match name {
                "labels" => spec.labels.is_empty(),
                "parallelism" => spec.parallelism == 1,
                "checkpoint" => spec.checkpoint == CheckpointSpec::default(),
                "restart" => spec.restart == RestartStrategy::default(),
                "limits" => spec.limits == LimitsSpec::default(),
                "watermark" => spec.watermark.is_none(),
                _ => spec.errors == super::errors_spec::ErrorsSpec::default(),
            };
            prop_assert!(is_default, "{name}: {spec:?}");
        }
        let discovery = short["source"].get("partition_discovery").is_some();
        prop_assert!(discovery || spec.source.partition_discovery == PartitionDiscovery::default());
    }

    /// A member that nobody knows is a fault with its place, wherever it stands, and never passed over.
    #[test]
    fn a_misspelt_member_is_a_fault_at_its_place(document in documents(), place in select(&["", "/source", "/checkpoint", "/errors", "/limits", "/watermark", "/sink"][..])) {
        let mut document = document;
        let Some(object) = document.pointer_mut(place).and_then(Value::as_object_mut) else {
            return Ok(());
        };
        object.insert("no_such_member".to_owned(), json!(1));
        let faults = JobSpec::read(&job(), &document).unwrap_err();
        let pointers: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        let expected = format!("{place}/no_such_member");
        prop_assert_eq!(pointers, vec![expected.as_str()]);
    }

    /// Reading is total: it answers with a spec or with faults, and each fault points into the document.
    #[test]
    fn anything_is_read_to_a_spec_or_to_faults(document in documents(), place in any::<prop::sample::Index>(), put in select(vec![
        json!(null), json!(-1), json!(1.5), json!("x"), json!(""), json!([]), json!({}), json!(u64::MAX), json!("\u{0}")])) {
        let mut pointers = Vec::new();
        walk(&document, String::new(), &mut pointers);
        let pointer = place.get(&pointers).clone();
        let mut broken = document;
        *broken.pointer_mut(&pointer).unwrap() = put;
        match JobSpec::read(&job(), &broken) {
            Ok(spec) => prop_assert_eq!(JobSpec::read(&job(), &serde_json::to_value(&spec).unwrap()), Ok(spec)),
            Err(faults) => {
                prop_assert!(!faults.is_empty());
                prop_assert!(faults.iter().all(|fault| fault.pointer.is_empty() || fault.pointer.starts_with('/')));
            }
        }
    }
}

/// The pointers of everything in a document.
fn walk(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('~', "~0").replace('/', "~1");
                walk(member, format!("{pointer}/{name}"), pointers);
            }
        }
        Value::Array(elements) => {
            for (index, element) in elements.iter().enumerate() {
                walk(element, format!("{pointer}/{index}"), pointers);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    pointers.push(pointer);
}
