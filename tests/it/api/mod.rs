//! The API call by call, on a real server: every operation of the document, what it answers and what it refuses.
//!
//! Calls are made by operation id from `openapi/handover.json`, and every answer is held against it: its status must be
//! documented, its body must fit the schema, and the code of a problem must be one that the operation names.

mod attempts;
mod checkpoints;
mod deletions;
mod events;
mod jobs;
mod offsets;
mod operations;
mod reset_offsets;
mod schema;
mod series;
mod server;
mod specs;
mod start_stop;
mod startup_mode;

use std::{collections::BTreeSet, time::Duration};

use reqwest::{Method, header::HeaderMap};
use serde_json::{Value, json};

use crate::support::{
    client::block_on,
    kafka::Kafka,
    producer::Producer,
    server::TestServer,
    unique,
    wait::{SOON, eventually},
};

const DOCUMENT: &str = include_str!("../../../openapi/handover.json");

/// A server, and the API that its document describes.
struct Client {
    base: String,
    http: reqwest::Client,
    document: Value,
}

impl Client {
    fn new(server: &TestServer) -> Self {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(130))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .expect("a client");
        Self {
            base: server.base.clone(),
            http,
            document: serde_json::from_str(DOCUMENT).expect("a document"),
        }
    }

    /// An operation, with the parameters of its path.
    fn call(&self, operation: &str, path: &[(&str, &str)]) -> Call<'_> {
        let (mut target, method, documented) = operations(&self.document)
            .into_iter()
            .find(|(_, _, documented)| documented["operationId"] == operation)
            .unwrap_or_else(|| panic!("no operation {operation}"));
        for (name, value) in path {
            let hole = format!("{{{name}}}");
            assert!(target.contains(&hole), "{target} has no {name}");
            target = target.replace(&hole, value);
        }
        assert!(!target.contains('{'), "{target} is not filled in");
        Call {
            client: self,
            documented: documented.clone(),
            request: self.http.request(method, format!("{}{target}", self.base)),
            name: operation.to_owned(),
        }
    }

    /// An operation on a job.
    fn job(&self, operation: &str, job: &str) -> Call<'_> {
        self.call(operation, &[("job", job)])
    }

    /// A path that no operation documents.
    fn page(&self, path: &str) -> Answer {
        let request = self.http.get(format!("{}{path}", self.base));
        Answer::of(request, path)
    }
}

/// Path, method and description of every operation.
fn operations(document: &Value) -> Vec<(String, Method, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("an item") {
            let method = method.to_ascii_uppercase().parse().expect("a method");
            found.push((path.clone(), method, operation));
        }
    }
    found
}

/// A call that is being put together.
struct Call<'a> {
    client: &'a Client,
    documented: Value,
    request: reqwest::RequestBuilder,
    name: String,
}

impl Call<'_> {
    fn query(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.query(&[(name, value)]);
        self
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.request = self.request.header(name, value);
        self
    }

    fn json(mut self, body: &Value) -> Self {
        self.request = self.request.json(body);
        self
    }

    fn raw(mut self, media_type: &str, body: &str) -> Self {
        self.request = self
            .request
            .header("content-type", media_type)
            .body(body.to_owned());
        self
    }

    /// Sends it and holds the answer against the document.
    fn send(self) -> Answer {
        let answer = Answer::of(self.request, &self.name);
        let status = answer.status.to_string();
        let documented = &self.documented["responses"][&status];
        assert!(
            !documented.is_null(),
            "{} does not document {status}: {:#}",
            self.name,
            answer.body
        );
        let content = documented["content"].as_object();
        if let Some(content) = content.filter(|content| !content.is_empty()) {
            let found = answer.header("content-type");
            let documented = content
                .iter()
                .find(|(media_type, _)| found.starts_with(media_type.as_str()));
            let (media_type, content) =
                documented.unwrap_or_else(|| panic!("{}: {found}", self.name));
            if media_type.ends_with("json") {
                schema::check(&self.client.document, &content["schema"], &answer.body)
                    .unwrap_or_else(|fault| panic!("{}: {fault}\n{:#}", self.name, answer.body));
            }
        }
        if answer.status >= 400 {
            let codes = documented["x-problem-codes"].as_array().expect("codes");
            assert!(
                codes.contains(&answer.body["code"]),
                "{} does not document {}",
                self.name,
                answer.body["code"]
            );
        }
        answer
    }

    /// Sends it; it must be answered like this.
    #[track_caller]
    fn expect(self, status: u16) -> Answer {
        let answer = self.send();
        assert_eq!(answer.status, status, "{:#}", answer.body);
        answer
    }

    /// Sends it; it must be refused like this.
    #[track_caller]
    fn refused(self, code: &str) -> Answer {
        let answer = self.send();
        assert_eq!(answer.body["code"], code, "{:#}", answer.body);
        answer
    }
}

/// An answer; its body is JSON, or text as a JSON string.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Answer {
    fn of(request: reqwest::RequestBuilder, what: &str) -> Self {
        block_on(async {
            let response = request
                .send()
                .await
                .unwrap_or_else(|error| panic!("{what}: {error:?}"));
            let status = response.status().as_u16();
            let headers = response.headers().clone();
            let text = response.text().await.expect("a body");
            let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Self {
                status,
                headers,
                body,
            }
        })
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("text"))
    }

    /// A member of every item of a list.
    fn each(&self, member: &str) -> Vec<Value> {
        let items = self.body["items"].as_array().expect("a list");
        items.iter().map(|item| item[member].clone()).collect()
    }

    /// The pointers of the faults.
    fn pointers(&self) -> BTreeSet<&str> {
        let errors = self.body["errors"].as_array().expect("errors");
        errors
            .iter()
            .map(|error| error["pointer"].as_str().expect("a pointer"))
            .collect()
    }
}

/// A server with one topic of three partitions and ten records in each.
struct Scene {
    client: Client,
    topic: String,
    kafka: Kafka,
    // Ends last.
    server: TestServer,
}

impl Scene {
    fn new(name: &str) -> Self {
        let server = TestServer::start();
        let kafka = Kafka::shared();
        let topic = unique(name);
        kafka.create_topic(&topic, 3);
        let producer = Producer::new(&kafka);
        for partition in 0..3 {
            producer.produce(&topic, partition, 10);
        }
        Self {
            client: Client::new(&server),
            topic,
            kafka,
            server,
        }
    }

    /// A spec without periodic checkpoints within the time of a test.
    fn spec(&self) -> Value {
        json!({
            "source": {"connection": "main", "topics": [self.topic]},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"interval": "1h"},
            "sink": {"type": "blackhole"},
        })
    }

    /// Makes a job.
    fn create(&self, name: &str) -> String {
        let job = unique(name);
        self.client
            .job("putSpec", &job)
            .json(&self.spec())
            .expect(201);
        job
    }

    /// Makes a job, starts it and waits until it has read everything.
    fn run(&self, name: &str) -> String {
        let job = self.create(name);
        self.start(&job);
        job
    }

    /// Starts a job and waits until it has read everything.
    fn start(&self, job: &str) {
        self.client
            .job("startJob", job)
            .query("wait", "60s")
            .expect(200);
        eventually("everything is read", SOON, || {
            let view = self
                .client
                .job("inspectOffsets", job)
                .query("fresh", "true")
                .expect(200);
            match view.body["totals"]["position_lag"].as_i64() {
                Some(0) => Ok(()),
                lag => Err(format!("{lag:?}")),
            }
        });
    }

    fn stop(&self, job: &str) {
        self.client
            .job("stopJob", job)
            .query("wait", "60s")
            .expect(200);
    }
}

#[test]
fn every_operation_is_called_by_a_test() {
    let sources = [
        include_str!("attempts.rs"),
        include_str!("checkpoints.rs"),
        include_str!("deletions.rs"),
        include_str!("events.rs"),
        include_str!("jobs.rs"),
        include_str!("offsets.rs"),
        include_str!("operations.rs"),
        include_str!("reset_offsets.rs"),
        include_str!("series.rs"),
        include_str!("server.rs"),
        include_str!("specs.rs"),
        include_str!("start_stop.rs"),
        include_str!("startup_mode.rs"),
    ];
    let document: Value = serde_json::from_str(DOCUMENT).expect("a document");
    let called = |id: &str| {
        ["call(", "job("].iter().any(|call| {
            let call = format!("{call}\"{id}\"");
            sources.iter().any(|source| source.contains(&call))
        })
    };
    let missing: Vec<&str> = operations(&document)
        .iter()
        .map(|(_, _, operation)| operation["operationId"].as_str().expect("an id"))
        .filter(|id| !called(id))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
