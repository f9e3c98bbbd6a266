//! The tables of `docs/spec.md` and `docs/metrics.md` against what they are of: the OpenAPI document, and a server's `/metrics`.
//! And the lines of `docs/guarantees.md` that turn checkpoints off and on, for a job that has said how it commits.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
};

use serde_json::{Value, json};

use crate::support::{
    Database,
    client::block_on,
    kafka::Kafka,
    server::{Output, TestServer},
    unique,
};

fn read(file: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of the rows that begin with a name in backticks, by that name.
fn rows(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = line.trim_matches('|').split(" | ").map(str::trim);
        let name = cells.next().expect("a name").trim_matches('`').to_owned();
        let more = cells.map(str::to_owned).collect();
        assert_eq!(rows.insert(name.clone(), more), None, "{name} twice");
    }
    rows
}

/// The words between backticks.
fn words(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// What the document says of one member: the words it may be, and its default.
#[derive(Debug, Default, PartialEq, Eq)]
struct Member {
    words: BTreeSet<String>,
    default: Option<String>,
}

/// A schema with all that it refers to and all its variants.
fn parts<'a>(schema: &'a Value, document: &'a Value) -> Vec<&'a Value> {
    let mut found = vec![schema];
    if let Some(reference) = schema["$ref"].as_str() {
        let to = reference.strip_prefix('#').expect("a local reference");
        let to = document.pointer(to).expect("a schema");
        found.extend(parts(to, document));
    }
    for kind in ["oneOf", "allOf"] {
        for one in schema[kind].as_array().into_iter().flatten() {
            found.extend(parts(one, document));
        }
    }
    found
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn collect(path: &str, schema: &Value, document: &Value, members: &mut BTreeMap<String, Member>) {
    let parts = parts(schema, document);
    let inner = parts
        .iter()
        .filter_map(|part| part["properties"].as_object());
    let inner: Vec<(&String, &Value)> = inner.flatten().collect();
    for (name, schema) in &inner {
        let path = if path.is_empty() {
            (*name).clone()
        } else {
            format!("{path}.{name}")
        };
        collect(&path, schema, document, members);
    }
    if !inner.is_empty() {
        return;
    }
    let member = members.entry(path.to_owned()).or_default();
    for part in parts {
        let words = part["enum"].as_array().into_iter().flatten();
        member.words.extend(words.map(plain));
        if let Some(default) = part.get("default") {
            member.default = Some(plain(default));
        }
    }
}

#[test]
fn the_spec_has_the_members_that_its_page_says() {
    let document: Value = serde_json::from_str(&read("openapi/handover.json")).expect("JSON");
    let mut members = BTreeMap::new();
    let spec = &document["components"]["schemas"]["JobSpecDocument"];
    collect("", spec, &document, &mut members);
    let text = read("docs/spec.md");
    let rows = rows(&text);
    let names = |names: Vec<&String>| names.into_iter().cloned().collect::<BTreeSet<String>>();
    assert_eq!(
        names(rows.keys().collect()),
        names(members.keys().collect())
    );
    for (name, member) in members {
        let row = &rows[&name];
        let default = words(&row[1]).first().map(|word| (*word).to_owned());
        assert_eq!(default, member.default, "the default of {name}");
        if !member.words.is_empty() {
            let said: BTreeSet<String> = words(&row[0]).into_iter().map(str::to_owned).collect();
            assert_eq!(said, member.words, "the words of {name}");
        }
    }
}

/// The names of a series' labels; no value has a comma here, but routes have braces.
fn labels(series: &str) -> BTreeSet<&str> {
    let inner = series
        .split_once('{')
        .and_then(|(_, more)| more.rsplit_once('}'));
    let inner = inner.map_or("", |(inner, _)| inner).split(',');
    inner
        .filter_map(|label| label.split_once('=').map(|(name, _)| name))
        .collect()
}

#[test]
fn the_metrics_are_those_that_their_page_says() {
    let (kafka, store) = (Kafka::shared(), block_on(Database::create()));
    let more = "[metrics]\nper_partition = true\n";
    let server = TestServer::start_configured(&kafka, &store.url(), Output::Followed, more);
    let name = unique("metrics");
    kafka.create_topic(&name, 1);
    let job = server.job(&name);
    job.put_spec(&json!({
        "source": {"connection": "main", "topics": [name]},
        "startup_mode": {"mode": "earliest"},
        "sink": {"type": "blackhole"},
    }));
    job.start(&json!({}));
    let page = server.api.get("/metrics");
    let page = page.as_str().expect("text");

    let text = read("docs/metrics.md");
    let rows = rows(&text);
    let said: BTreeMap<&str, &str> = rows
        .iter()
        .map(|(name, row)| (name.as_str(), row[0].as_str()))
        .collect();
    let served: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    assert_eq!(said, served);
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let metric = line.split(['{', ' ']).next().expect("a name");
        assert_eq!(labels(line), words(&rows[metric][1]), "{line}");
        seen.insert(metric);
    }
    for metric in [
        "handover_job_state",
        "handover_records_total",
        "handover_offset",
    ] {
        assert!(seen.contains(metric), "{metric}\n{page}");
    }
}

#[test]
fn the_lines_that_turn_checkpoints_off_and_on_work() {
    let text = read("docs/guarantees.md");
    let (_, text) = text.split_once("**Turning them off").expect("the part");
    let (_, lines) = text.split_once("```sh\n").expect("lines");
    let (lines, _) = lines.split_once("```").expect("their end");
    let server = TestServer::start();
    let name = unique("off-and-on");
    server.job(&name).put_spec(&json!({
        "source": {"connection": "main", "topics": [name], "commit_to_group": "on-checkpoint"},
        "startup_mode": {"mode": "group-offsets"},
        "sink": {"type": "blackhole"},
    }));
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", lines])
        .env("H", format!("{}/api/v1", server.base))
        .env("JOB", &name)
        .env("no_proxy", "*")
        .output()
        .expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    let answers = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let answers: Vec<Value> = answers.map(|answer| answer.expect("JSON")).collect();
    let said: Vec<[&Value; 2]> = answers
        .iter()
        .map(|answer| {
            let spec = &answer["spec"];
            [
                &spec["checkpoint"]["interval"],
                &spec["source"]["commit_to_group"],
            ]
        })
        .collect();
    let wanted = [
        [&Value::Null, &json!("periodic")],
        [&json!("10s"), &json!("on-checkpoint")],
    ];
    assert_eq!(said, wanted, "{answers:#?}");
}
