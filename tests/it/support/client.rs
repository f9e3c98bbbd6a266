//! The REST API as a careful caller uses it: every unexpected answer fails with the whole problem document.

use std::{collections::BTreeMap, future::Future, sync::LazyLock, time::Duration};

use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
});

/// Waits for a future, so that tests read from top to bottom.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.block_on(future)
}

/// An answer, whatever it says.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// A problem document.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) body: Value,
}

/// The API of one server.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    base: String,
    http: reqwest::Client,
}

impl Api {
    pub(crate) fn new(base: &str) -> Self {
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(130))
            .no_proxy()
            .build()
            .expect("a client");
        Self {
            base: base.to_owned(),
            http,
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When there was no answer at all.
    pub(crate) fn try_send(
        &self,
        method: &Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let mut request = self
            .http
            .request(method.clone(), format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        block_on(async {
            let response = request.send().await.map_err(|error| format!("{error:?}"))?;
            let status = response.status().as_u16();
            let kind = response
                .headers()
                .get("content-type")
                .and_then(|kind| kind.to_str().ok())
                .unwrap_or_default()
                .to_owned();
            let text = response
                .text()
                .await
                .map_err(|error| format!("{error:?}"))?;
            if status >= 400 && path.starts_with("/api/") {
                assert!(
                    kind.starts_with("application/problem+json"),
                    "{method} {path}: {status} is {kind}: {text}"
                );
            }
            let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
            Ok(Answer { status, body })
        })
    }

    fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> Answer {
        self.try_send(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: no answer: {error}"))
    }

    fn expect(&self, method: &Method, path: &str, body: Option<&Value>) -> Value {
        let answer = self.send(method, path, body);
        assert!(
            (200..300).contains(&answer.status),
            "{method} {path} {}: {}\n{:#}",
            body.unwrap_or(&Value::Null),
            answer.status,
            answer.body
        );
        answer.body
    }

    /// Reads a resource that is there.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.expect(&Method::GET, path, None)
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Value {
        self.expect(&Method::PUT, path, Some(body))
    }

    pub(crate) fn patch(&self, path: &str, body: &Value) -> Value {
        self.expect(&Method::PATCH, path, Some(body))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.expect(&Method::POST, path, Some(body))
    }

    /// Sends what must be refused.
    pub(crate) fn refused(&self, method: &Method, path: &str, body: Option<&Value>) -> Problem {
        let answer = self.send(method, path, body);
        assert!(
            answer.status >= 400,
            "{method} {path} was not refused: {:#}",
            answer.body
        );
        let code = answer.body["code"].as_str().unwrap_or_default().to_owned();
        Problem {
            status: answer.status,
            code,
            body: answer.body,
        }
    }

    /// A job's part of the API.
    pub(crate) fn job(&self, name: &str) -> Job {
        Job {
            api: self.clone(),
            path: format!("/api/v1/jobs/{name}"),
        }
    }
}

/// One job, operated by REST.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) api: Api,
    pub(crate) path: String,
}

impl Job {
    pub(crate) fn at(&self, rest: &str) -> String {
        format!("{}{rest}", self.path)
    }

    pub(crate) fn put_spec(&self, spec: &Value) -> Value {
        self.api.put(&self.at("/spec"), spec)
    }

    pub(crate) fn view(&self) -> Value {
        self.api.get(&self.path)
    }

    pub(crate) fn state(&self) -> String {
        self.view()["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Starts it and answers the report of the start.
    pub(crate) fn start(&self, body: &Value) -> Value {
        self.act("/start", body)
    }

    /// Stops it and answers the report of the stop.
    pub(crate) fn stop(&self) -> Value {
        self.stop_with(&json!({"checkpoint": "required"}))
    }

    pub(crate) fn stop_with(&self, body: &Value) -> Value {
        self.act("/stop", body)
    }

    /// Triggers a checkpoint and answers its report.
    pub(crate) fn checkpoint(&self) -> Value {
        self.act("/checkpoints", &json!({}))
    }

    fn act(&self, verb: &str, body: &Value) -> Value {
        let operation = self.operate(verb, body);
        operation["result"].clone()
    }

    /// Carries out a verb, waits for its end and answers the whole operation.
    pub(crate) fn operate(&self, verb: &str, body: &Value) -> Value {
        let operation = self.api.post(&self.at(&format!("{verb}?wait=60s")), body);
        assert_eq!(
            operation["status"], "succeeded",
            "{verb} {body}: {operation:#}"
        );
        operation
    }

    /// Carries out a verb and waits for its end, whatever that is.
    pub(crate) fn operate_any(&self, verb: &str, body: &Value) -> Answer {
        self.api.send(
            &Method::POST,
            &self.at(&format!("{verb}?wait=60s")),
            Some(body),
        )
    }

    /// Carries out a verb that must not succeed.
    pub(crate) fn refused(&self, verb: &str, body: &Value) -> Problem {
        self.api.refused(
            &Method::POST,
            &self.at(&format!("{verb}?wait=60s")),
            Some(body),
        )
    }

    /// Moves the group and answers where it went.
    pub(crate) fn reset_offsets(&self, body: &Value) -> Value {
        self.act("/reset-offsets", body)
    }

    /// Deletes the job and answers what went with it.
    pub(crate) fn delete(&self, options: &str) -> Value {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let path = self.at(&format!("?confirm={name}&wait=60s{options}"));
        let operation = self.api.expect(&Method::DELETE, &path, None);
        assert_eq!(operation["status"], "succeeded", "{operation:#}");
        operation["result"].clone()
    }

    pub(crate) fn offsets(&self) -> Offsets {
        let body = self.api.get(&self.at("/offsets?fresh=true"));
        serde_json::from_value(body.clone()).unwrap_or_else(|error| panic!("{error}: {body:#}"))
    }

    /// Where a bare start would begin.
    pub(crate) fn plan(&self) -> Plan {
        Plan::read(self.api.get(&self.at("/start-plan")))
    }

    /// Where a start with this body would begin.
    pub(crate) fn plan_of(&self, body: &Value) -> Plan {
        Plan::read(self.api.post(&self.at("/start?dry_run=true"), body))
    }

    /// The newest completed checkpoint: number and offsets by partition of `topic`; `None` if there is none.
    pub(crate) fn latest_checkpoint(
        &self,
        topic: &str,
    ) -> Option<(i64, BTreeMap<i32, Option<i64>>)> {
        let answer = self
            .api
            .send(&Method::GET, &self.at("/checkpoints/latest"), None);
        if answer.status == 404 {
            return None;
        }
        assert_eq!(answer.status, 200, "{:#}", answer.body);
        Some(read_checkpoint(&answer.body, topic))
    }

    pub(crate) fn checkpoints(&self, query: &str) -> Vec<Value> {
        let page = self.api.get(&self.at(&format!("/checkpoints{query}")));
        page["items"].as_array().expect("a list").clone()
    }
}

/// Number and offsets of a checkpoint view.
pub(crate) fn read_checkpoint(view: &Value, topic: &str) -> (i64, BTreeMap<i32, Option<i64>>) {
    let id = view["id"]
        .as_i64()
        .unwrap_or_else(|| panic!("no number: {view:#}"));
    let offsets = view["offsets"][topic]
        .as_object()
        .unwrap_or_else(|| panic!("no offsets of {topic}: {view:#}"))
        .iter()
        .map(|(partition, position)| {
            (
                partition.parse().expect("a partition"),
                position["next_offset"].as_i64(),
            )
        })
        .collect();
    (id, offsets)
}

/// The offsets view, as far as tests read it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Offsets {
    pub(crate) sources: Value,
    pub(crate) totals: Value,
    pub(crate) partitions: Vec<PartitionRow>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PartitionRow {
    pub(crate) partition: i32,
    pub(crate) subtask: u32,
    pub(crate) earliest: Option<i64>,
    pub(crate) last_stable: Option<i64>,
    pub(crate) latest: Option<i64>,
    pub(crate) readable_end: Option<i64>,
    pub(crate) position: Option<i64>,
    pub(crate) start_reason: Option<String>,
    pub(crate) checkpointed: Option<i64>,
    pub(crate) position_id: Option<i64>,
    pub(crate) group_committed: Option<i64>,
    pub(crate) sink_committed: Option<i64>,
    pub(crate) sink_ahead_of_checkpoint: Option<i64>,
    pub(crate) oldest_unread_age_ms: Option<i64>,
    pub(crate) retention: Retention,
    pub(crate) lag: Lag,
    pub(crate) divergence: Divergence,
    pub(crate) flags: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Retention {
    pub(crate) offsets_left: Option<i64>,
    pub(crate) estimated_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Lag {
    pub(crate) position: Option<i64>,
    pub(crate) checkpoint: Option<i64>,
    pub(crate) group: Option<i64>,
}

impl Lag {
    pub(crate) const ZERO: Self = Self {
        position: Some(0),
        checkpoint: Some(0),
        group: Some(0),
    };
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Divergence {
    pub(crate) group_behind_checkpoint: Option<i64>,
    pub(crate) cause: String,
    pub(crate) group_note: Option<String>,
    pub(crate) group_checkpoint: Option<i64>,
}

impl Offsets {
    pub(crate) fn row(&self, partition: i32) -> &PartitionRow {
        self.partitions
            .iter()
            .find(|row| row.partition == partition)
            .unwrap_or_else(|| panic!("no partition {partition}: {self:?}"))
    }

    /// A number of each partition.
    pub(crate) fn map<T>(&self, read: impl Fn(&PartitionRow) -> T) -> BTreeMap<i32, T> {
        self.partitions
            .iter()
            .map(|row| (row.partition, read(row)))
            .collect()
    }
}

/// A start plan, as far as tests read it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Plan {
    pub(crate) plan: Option<String>,
    pub(crate) basis: String,
    pub(crate) partitions: Vec<PlannedPartition>,
    pub(crate) totals: Value,
    pub(crate) blockers: Vec<Value>,
    #[serde(skip)]
    pub(crate) body: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PlannedPartition {
    pub(crate) partition: i32,
    pub(crate) start_at: Option<i64>,
    pub(crate) reason: String,
    pub(crate) sink: Option<SinkPosition>,
}

/// Where the sink stands, as a plan shows it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SinkPosition {
    pub(crate) next_offset: i64,
}

impl Plan {
    fn read(body: Value) -> Self {
        let mut plan: Self = serde_json::from_value(body.clone())
            .unwrap_or_else(|error| panic!("{error}: {body:#}"));
        plan.body = body;
        plan
    }

    /// Where each partition begins.
    pub(crate) fn starts(&self) -> BTreeMap<i32, i64> {
        self.partitions
            .iter()
            .filter_map(|partition| Some((partition.partition, partition.start_at?)))
            .collect()
    }

    /// Why each partition begins there.
    pub(crate) fn reasons(&self) -> Vec<&str> {
        self.partitions
            .iter()
            .map(|partition| partition.reason.as_str())
            .collect()
    }
}
