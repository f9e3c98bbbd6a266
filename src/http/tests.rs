//! What holds for every route, tested without anything behind it.
//!
//! The routes are the real ones; the state behind them panics as soon as a handler asks for the service. So an answer that
//! is not 500 proves that the request never got that far.

use std::{collections::BTreeSet, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{HeaderMap, Method, StatusCode, header},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::*;
use crate::{http::json_body::OptionalJsonBody, model::code::Code};

#[derive(Clone)]
struct NoService(Arc<Context>);

impl FromRef<NoService> for Service {
    fn from_ref(_: &NoService) -> Self {
        panic!("a handler asked for the service")
    }
}

impl FromRef<NoService> for Arc<Context> {
    fn from_ref(state: &NoService) -> Self {
        Self::clone(&state.0)
    }
}

fn context(read_only: bool) -> Arc<Context> {
    let options = HttpOptions {
        public_url: "https://handover.example:8443/".to_owned(),
        read_only,
        per_partition_metrics: true,
    };
    let document = openapi::finish(routes::<Api>().into_openapi());
    Arc::new(Context::new(&options, &document, CancellationToken::new()))
}

/// The real routes and pages.
fn app_with(read_only: bool) -> Router {
    let context = context(read_only);
    let (routes, _) = routes::<NoService>().split_for_parts();
    let state = NoService(Arc::clone(&context));
    middleware::wrap(routes.merge(pages()).with_state(state), &context)
}

fn app() -> Router {
    app_with(false)
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    #[track_caller]
    fn assert_problem(&self, code: Code) {
        assert_eq!(
            self.header("content-type"),
            problem::MEDIA_TYPE,
            "{}",
            self.text()
        );
        let document = self.json();
        assert_eq!(document["code"], code.as_str(), "{document:#}");
        assert_eq!(self.status.as_u16(), code.status());
        assert_eq!(document["status"], code.status());
        assert_eq!(document["title"], code.title());
        assert_eq!(
            document["type"],
            format!("https://handover.example:8443/problems/{code}")
        );
        assert_eq!(document["request_id"], self.header("handover-request-id"));
        assert!(
            document["hint"]
                .as_str()
                .is_some_and(|hint| !hint.is_empty())
        );
    }
}

async fn send(app: Router, request: Request) -> Answer {
    let response = app.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: to_bytes(body, usize::MAX).await.unwrap().to_vec(),
    }
}

fn request(method: Method, target: &str, headers: &[(&str, &str)]) -> Request {
    let mut request = Request::builder().method(method).uri(target);
    if !headers.iter().any(|(name, _)| *name == "host") {
        request = request.header(header::HOST, "localhost:8080");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap()
}

async fn get_answer(target: &str, headers: &[(&str, &str)]) -> Answer {
    send(app(), request(Method::GET, target, headers)).await
}

/// Every documented operation: method, path with its parameters filled in, and the operation itself.
fn walk() -> Vec<(Method, String, Value)> {
    let document: Value = serde_json::from_str(&openapi_json()).unwrap();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let filled = path
            .replace("{job}", "orders")
            .replace("{checkpoint}", "latest")
            .replace("{operation}", "op_x")
            .replace("{code}", "internal");
        for (method, operation) in item.as_object().unwrap() {
            let method = method.to_ascii_uppercase().parse().unwrap();
            found.push((method, filled.clone(), operation.clone()));
        }
    }
    found
}

fn parameters<'a>(operation: &'a Value, place: &str) -> Vec<&'a str> {
    operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|parameter| parameter["in"] == place)
        .map(|parameter| parameter["name"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_misspelt_parameter_is_refused_on_every_route() {
    let operations = walk();
    assert!(operations.len() >= 21, "{}", operations.len());
    for (method, path, operation) in &operations {
        let known = parameters(operation, "query");
        let misspelt = known
            .iter()
            .map(|name| (name.replace(['_', '.', '*'], "-") + "s", Some(*name)));
        for (wrong, near) in misspelt.chain([("zzzzzzzz".to_owned(), None)]) {
            let target = format!("{path}?{wrong}=true");
            let answer = send(app(), request(method.clone(), &target, &[])).await;
            answer.assert_problem(Code::UnknownParameter);
            if let Some(near) = near.filter(|near| *near != "label.*" && *near != "q") {
                let hint = answer.json()["hint"].as_str().unwrap().to_owned();
                assert!(
                    hint.contains(&format!("'{near}'")),
                    "{method} {target}: {hint}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_read_only_server_refuses_every_change() {
    for (method, path, _) in walk() {
        let answer = send(app_with(true), request(method.clone(), &path, &[])).await;
        if method == Method::GET {
            assert_ne!(answer.status, StatusCode::FORBIDDEN, "{path}");
        } else {
            answer.assert_problem(Code::ReadOnlyServer);
        }
    }
}

#[tokio::test]
async fn every_refusal_is_a_problem_document() {
    get_answer("/nothing/here", &[])
        .await
        .assert_problem(Code::NotFound);
    get_answer("/api/v1/jobs/orders?dry_run=%00", &[])
        .await
        .assert_problem(Code::UnknownParameter);
    get_answer("/api/v1/jobs?q=%00", &[])
        .await
        .assert_problem(Code::InvalidRequest);
    get_answer("/api/v1/jobs?limit=1&limit=2", &[])
        .await
        .assert_problem(Code::InvalidRequest);
    get_answer(&format!("/{}", "x".repeat(9000)), &[])
        .await
        .assert_problem(Code::InvalidRequest);
    get_answer("/problems/job-not-fuond", &[("accept", "application/json")])
        .await
        .assert_problem(Code::NotFound);
    get_answer("/problems/internal", &[("accept", "text/csv")])
        .await
        .assert_problem(Code::NotAcceptable);

    for method in [Method::DELETE, Method::OPTIONS, Method::TRACE, Method::POST] {
        let answer = send(app(), request(method, "/api/v1/jobs/orders/spec", &[])).await;
        answer.assert_problem(Code::MethodNotAllowed);
        let allowed: BTreeSet<&str> = answer.header("allow").split(',').map(str::trim).collect();
        assert_eq!(allowed, BTreeSet::from(["GET", "HEAD", "PATCH", "PUT"]));
        assert!(!answer.headers.contains_key("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn a_panic_is_an_internal_problem_without_its_text() {
    let answer = get_answer("/api/v1/jobs", &[]).await;
    answer.assert_problem(Code::Internal);
    assert!(
        !answer.text().contains("asked for the service"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn every_answer_has_a_request_id_of_its_own() {
    let mut seen = BTreeSet::new();
    for target in [
        "/livez",
        "/nothing",
        "/ui/",
        "/problems",
        "/api/v1/jobs",
        "/",
    ] {
        let answer = get_answer(target, &[]).await;
        let id = answer.header("handover-request-id").to_owned();
        let ulid = id.strip_prefix("rq_").unwrap();
        assert_eq!(ulid.len(), 26, "{target}");
        assert_eq!(ulid, ulid.to_ascii_lowercase());
        assert!(seen.insert(id), "{target}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert!(
            answer
                .header("content-security-policy")
                .contains("frame-ancestors 'none'")
        );
    }
}

#[tokio::test]
async fn only_own_hosts_are_answered() {
    for (host, own) in [
        ("localhost", true),
        ("localhost:9", true),
        ("LOCALHOST:8080", true),
        ("127.0.0.1:8080", true),
        ("[::1]:8080", true),
        ("handover.example", true),
        ("handover.example:8443", true),
        ("evil.example", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.nip.example", false),
        ("user@localhost", false),
        ("localhost:x", false),
        ("0.0.0.0:8080", false),
        ("", false),
    ] {
        let answer = get_answer("/livez", &[("host", host)]).await;
        if own {
            assert_eq!(answer.status, StatusCode::OK, "{host}");
        } else {
            assert_eq!(answer.status, StatusCode::FORBIDDEN, "{host}");
            answer.assert_problem(Code::HostNotAllowed);
        }
    }
    let mut without = request(Method::GET, "/livez", &[]);
    without.headers_mut().remove(header::HOST);
    send(app(), without)
        .await
        .assert_problem(Code::HostNotAllowed);
    get_answer("http://evil.example/livez", &[])
        .await
        .assert_problem(Code::HostNotAllowed);
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing() {
    let start = |headers: &[(&str, &str)]| {
        send(
            app(),
            request(Method::POST, "/api/v1/jobs/orders/start", headers),
        )
    };
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "null")],
        &[("origin", "http://localhost:9999")],
        &[("origin", "file://localhost:8080")],
        &[("sec-fetch-site", "cross-site")],
        &[
            ("origin", "http://localhost:8080"),
            ("sec-fetch-site", "cross-site"),
        ],
    ] {
        start(headers).await.assert_problem(Code::OriginNotAllowed);
    }
    for headers in [
        &[][..],
        &[
            ("origin", "http://localhost:8080"),
            ("sec-fetch-site", "same-origin"),
        ],
        &[("origin", "https://handover.example:8443")],
    ] {
        // Let through: the handler was reached.
        start(headers).await.assert_problem(Code::Internal);
    }
    // Reading is harmless: no header lets the other site see the answer.
    let read = get_answer("/livez", &[("origin", "https://evil.example")]).await;
    assert_eq!(read.status, StatusCode::OK);
    assert!(
        !read
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("access-control"))
    );
}

/// A route that takes a body and nothing else.
fn body_app() -> Router {
    async fn echo(OptionalJsonBody(body): OptionalJsonBody) -> axum::Json<Value> {
        axum::Json(body)
    }
    middleware::wrap(Router::new().route("/echo", post(echo)), &context(false))
}

async fn post_body(headers: &[(&str, &str)], body: Vec<u8>) -> Answer {
    let mut request = request(Method::POST, "/echo", headers);
    *request.body_mut() = Body::from(body);
    send(body_app(), request).await
}

#[tokio::test]
async fn a_body_is_json_and_says_so() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    let accepted = post_body(&[JSON], b"{\"a\": 1}".to_vec()).await;
    assert_eq!(accepted.json(), json!({"a": 1}));
    let charset = ("content-type", "Application/JSON; charset=UTF-8");
    assert_eq!(
        post_body(&[charset], b"{}".to_vec()).await.json(),
        json!({})
    );
    assert_eq!(post_body(&[], Vec::new()).await.json(), json!({}));
    assert_eq!(post_body(&[JSON], Vec::new()).await.json(), json!({}));

    for headers in [
        &[][..],
        &[("content-type", "application/x-www-form-urlencoded")],
        &[("content-type", "text/plain")],
        &[("content-type", "application/json; charset=latin1")],
        &[JSON, ("content-encoding", "gzip")],
    ] {
        let refused = post_body(headers, b"{}".to_vec()).await;
        refused.assert_problem(Code::UnsupportedMediaType);
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let refused = post_body(&form, b"{}".to_vec()).await.json();
    assert!(
        refused["hint"]
            .as_str()
            .unwrap()
            .contains("-H 'Content-Type: application/json'"),
        "{refused:#}"
    );

    let malformed = post_body(&[JSON], b"{\"a\": 1,\n\"b\" 2}".to_vec()).await;
    malformed.assert_problem(Code::InvalidJson);
    let detail = malformed.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("line 2 column 5"), "{detail}");
}

#[tokio::test]
async fn a_body_has_a_limit_however_it_is_sent() {
    const JSON: (&str, &str) = ("content-type", "application/json");
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2)).into_bytes();
    let limit = json_body::MAX_BODY_BYTES;
    assert_eq!(post_body(&[JSON], text(limit)).await.status, StatusCode::OK);
    post_body(&[JSON], text(limit + 1))
        .await
        .assert_problem(Code::BodyTooLarge);
    let announced = [JSON, ("content-length", "10000000000")];
    post_body(&announced, b"{}".to_vec())
        .await
        .assert_problem(Code::BodyTooLarge);
}

#[test]
fn the_document_is_the_one_in_the_repository() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi/handover.json");
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        stored == openapi_json(),
        "the API and openapi/handover.json differ. If the change is meant: cargo run -- openapi > openapi/handover.json, and look at the difference"
    );
}

#[test]
fn the_operations_have_the_names_that_users_know() {
    let ids: BTreeSet<String> = walk()
        .iter()
        .map(|(_, _, operation)| operation["operationId"].as_str().unwrap().to_owned())
        .collect();
    let wanted = [
        "listJobs",
        "getJob",
        "getSpec",
        "putSpec",
        "patchSpec",
        "getStartupMode",
        "setStartupMode",
        "cancelNextStart",
        "getStartPlan",
        "startJob",
        "stopJob",
        "restartJob",
        "skipRecord",
        "lookAtRecords",
        "triggerCheckpoint",
        "listAttempts",
        "listEvents",
        "jobSeries",
        "listCheckpoints",
        "getCheckpoint",
        "inspectOffsets",
        "resetOffsets",
        "deleteJob",
        "listOperations",
        "getOperation",
        "livez",
        "readyz",
        "metrics",
        "listProblems",
        "getProblem",
    ];
    assert_eq!(ids, wanted.map(str::to_owned).into());
}

#[test]
fn every_operation_documents_itself() {
    for (method, path, operation) in walk() {
        for member in ["summary", "tags", "operationId"] {
            assert!(!operation[member].is_null(), "{method} {path}: {member}");
        }
        let documented: BTreeSet<&str> = operation["responses"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(|response| response["x-problem-codes"].as_array())
            .flatten()
            .map(|code| code.as_str().unwrap())
            .collect();
        let mut wanted = vec!["unknown-parameter", "host-not-allowed", "internal"];
        if method != Method::GET && method != Method::DELETE {
            wanted.push("invalid-json");
            let content = operation["requestBody"]["content"].as_object().unwrap();
            assert!(!content.is_empty(), "{method} {path}");
        }
        if method != Method::GET {
            wanted.extend(["origin-not-allowed", "read-only-server"]);
            assert!(
                parameters(&operation, "header").contains(&"Handover-Reason"),
                "{method} {path}"
            );
        }
        if path.starts_with("/api/v1/") {
            wanted.extend(["store-unreachable", "not-acceptable"]);
        }
        for code in wanted {
            assert!(documented.contains(code), "{method} {path}: {code}");
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            assert!(
                parameter["description"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{method} {path}: {parameter}"
            );
        }
    }
}

#[test]
fn every_reference_of_the_document_leads_somewhere() {
    let document: Value = serde_json::from_str(&openapi_json()).unwrap();
    let text = document.to_string();
    let mut seen = 0;
    for part in text.split("\"$ref\":\"#").skip(1) {
        let pointer = part.split('"').next().unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[tokio::test]
async fn every_code_has_a_page_for_people_and_for_programs() {
    for code in Code::ALL {
        let page = get_answer(
            &format!("/problems/{code}"),
            &[("accept", "text/html,*/*;q=0.8")],
        )
        .await;
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(page.text().contains(&format!("<h1>{code}</h1>")), "{code}");
        assert!(!page.text().contains("<script"), "{code}");
        let mut json = get_answer(&format!("/problems/{code}"), &[("accept", "*/*")])
            .await
            .json();
        // Which runbook a code has is held against the pages in tests/it/runbooks.
        let runbook = json.as_object_mut().unwrap().remove("runbook").unwrap();
        assert!(runbook.is_null() || page.text().contains(runbook.as_str().unwrap()));
        let status = json.as_object_mut().unwrap().remove("status").unwrap();
        assert!(status.is_null() || status == code.status(), "{code}");
        let says = page.text().contains("<p>HTTP status ");
        assert_eq!(says, !status.is_null(), "{code}");
        assert_eq!(
            json,
            json!({"code": code, "title": code.title(), "remedy": code.remedy()})
        );
    }
    // What only stands in health, warnings and blockers has none.
    for (code, status) in [
        ("job-not-found", json!(404)),
        ("method-not-allowed", json!(405)),
        ("start-blocked", json!(409)),
        ("lag-growing", json!(null)),
        ("partition-gone", json!(null)),
        ("sink-changed", json!(null)),
    ] {
        let page = get_answer(&format!("/problems/{code}"), &[]).await.json();
        assert_eq!(page["status"], status, "{code}");
    }
    let all = get_answer("/problems", &[]).await.json();
    assert_eq!(all["items"].as_array().unwrap().len(), Code::ALL.len());
}

#[test]
fn the_codes_of_the_documentation_are_those_that_exist() {
    let text = include_str!("../../docs/api-design.md");
    let (_, section) = text.split_once("\n## Codes\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let named: BTreeSet<&str> = section.split('`').skip(1).step_by(2).collect();
    let exist: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    assert_eq!(named, exist);
}

#[tokio::test]
async fn the_web_pages_are_served_and_missing_files_are_missing() {
    let root = get_answer("/", &[]).await;
    assert_eq!(root.status, StatusCode::SEE_OTHER);
    assert_eq!(root.header("location"), "/ui/");
    for target in ["/ui/", "/ui/jobs", "/ui/jobs/orders"] {
        let page = get_answer(target, &[("accept", "text/html")]).await;
        assert_eq!(page.status, StatusCode::OK, "{target}");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert!(
            page.header("content-security-policy")
                .contains("default-src 'self'")
        );
        assert!(
            page.header("content-security-policy")
                .contains("base-uri 'self'")
        );
        assert!(!page.header("cache-control").contains("immutable"));
    }
    for target in [
        "/ui/assets/missing",
        "/ui/missing.js",
        "/ui/../Cargo.toml",
        "/ui/..%2f..%2fCargo.toml",
        "/ui/%2e%2e/Cargo.toml",
        "/ui/jobs/index.map",
        "/docs/missing.js",
        "/docs/..%2fCargo.toml",
    ] {
        get_answer(target, &[]).await.assert_problem(Code::NotFound);
    }
}

#[tokio::test]
async fn the_documentation_needs_nothing_from_elsewhere() {
    let page = get_answer("/docs/", &[]).await;
    assert_eq!(page.status, StatusCode::OK);
    let html = page.text();
    let linked: Vec<&str> = ["src=\"", "href=\""]
        .iter()
        .flat_map(|mark| html.split(*mark).skip(1))
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert!(linked.len() >= 4, "{html}");
    for link in linked {
        assert!(!link.contains("//"), "{link}");
        let asset = get_answer(&format!("/docs/{}", link.trim_start_matches("./")), &[]).await;
        assert_eq!(asset.status, StatusCode::OK, "{link}");
    }
    // The policy allows no script inside of the page.
    assert!(!html.contains("<script>"), "{html}");
    let start = get_answer("/docs/swagger-initializer.js", &[]).await.text();
    assert!(start.contains("/openapi.json"), "{start}");
    assert!(!start.contains("https://"), "{start}");
    let document = get_answer("/openapi.json", &[]).await;
    assert_eq!(document.text(), openapi_json());
}

#[tokio::test]
async fn answers_are_counted_by_route() {
    let app = app();
    for target in ["/livez", "/livez", "/nothing/1", "/nothing/2"] {
        send(app.clone(), request(Method::GET, target, &[])).await;
    }
    send(app.clone(), request("BREW".parse().unwrap(), "/livez", &[])).await;
    let page = send(app, request(Method::GET, "/metrics", &[]))
        .await
        .text();
    for line in [
        "handover_http_requests_total{method=\"GET\",route=\"/livez\",status=\"200\"} 2",
        "handover_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"} 2",
        "handover_http_requests_total{method=\"other\",route=\"/livez\",status=\"405\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}

struct Running {
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

async fn run(router: Router, limits: ServeLimits) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let ended = TaskTracker::new().spawn(serve(listener, router, shutdown.clone(), limits));
    Running {
        address,
        shutdown,
        ended,
    }
}

const PATIENCE: Duration = Duration::from_secs(20);

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes))
        .await
        .expect("the server ends the connection")
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_head_that_does_not_arrive_ends_its_connection() {
    let limits = ServeLimits {
        head_deadline: Duration::from_millis(200),
        ..ServeLimits::default()
    };
    let server = run(app(), limits).await;
    for sent in ["", "GET /livez HTTP/1.1\r\nHost: local"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.contains("200 OK"), "{answer}");
    }
    server.shutdown.cancel();
    server.ended.await.unwrap();
}

#[tokio::test]
async fn connections_over_the_limit_wait_for_their_turn() {
    let limits = ServeLimits {
        max_connections: 1,
        ..ServeLimits::default()
    };
    let server = run(app(), limits).await;
    let ask = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut first = TcpStream::connect(server.address).await.unwrap();
    let mut second = TcpStream::connect(server.address).await.unwrap();
    second.write_all(ask).await.unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(300), second.read(&mut byte)).await;
    assert!(
        early.is_err(),
        "the second connection was served beside the first"
    );
    first.write_all(ask).await.unwrap();
    assert!(read_to_end(&mut first).await.contains("200 OK"));
    assert!(read_to_end(&mut second).await.contains("200 OK"));
    server.shutdown.cancel();
    server.ended.await.unwrap();
}

#[tokio::test]
async fn a_shutdown_lets_requests_finish_and_takes_no_new_ones() {
    let (reached, is_reached) = oneshot::channel::<()>();
    let (release, is_released) = oneshot::channel::<()>();
    let ends = Arc::new(std::sync::Mutex::new(Some((reached, is_released))));
    let slow = move || {
        let (reached, is_released) = ends.lock().unwrap().take().expect("asked once");
        async move {
            reached.send(()).unwrap();
            is_released.await.unwrap();
            "finished"
        }
    };
    let router = Router::new().route("/slow", axum::routing::get(slow));
    let server = run(router, ServeLimits::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    is_reached.await.unwrap();
    server.shutdown.cancel();
    let refused = async {
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, refused)
        .await
        .expect("the listener closes");
    assert!(!server.ended.is_finished());
    release.send(()).unwrap();
    assert!(read_to_end(&mut stream).await.ends_with("finished"));
    server.ended.await.unwrap();
}
