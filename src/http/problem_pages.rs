//! `/problems/{code}`: what a code means and what to do, where the `type` of a problem document leads.

use std::{collections::BTreeSet, fmt::Write, sync::LazyLock};

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    extract::{accepts, names},
    openapi::{openapi_json, problems},
    problem::Problem,
};
use crate::model::{code::Code, reader::nearest};

problems!(ListProblems: NotAcceptable);
problems!(GetProblems: NotFound, NotAcceptable);

/// What a code means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct CodePage {
    /// The code.
    code: Code,
    /// The HTTP status it comes with; `null` for a code that ends no request: it stands in health, warnings and blockers.
    status: Option<u16>,
    /// What it means.
    title: &'static str,
    /// What to do.
    remedy: &'static str,
    /// The runbook, as a file of the project; `null` where the remedy says it all.
    runbook: Option<&'static str>,
}

/// The page for whoever is on call. A test holds the pages to the codes that are named here.
const RUNBOOKS: &[(&str, &[Code])] = &[
    (
        "docs/runbooks/fell-behind.md",
        &[
            Code::LagGrowing,
            Code::Stalled,
            Code::HeldByTransaction,
            Code::RateLimited,
        ],
    ),
    (
        "docs/runbooks/bad-record.md",
        &[Code::BlockedOnRecord, Code::NotBlockedThere],
    ),
    (
        "docs/runbooks/out-of-range.md",
        &[
            Code::OffsetOutOfRange,
            Code::BelowEarliest,
            Code::BeyondLatest,
        ],
    ),
    (
        "docs/runbooks/topic-gone.md",
        &[Code::PartitionGone, Code::TopicRecreated],
    ),
    ("docs/runbooks/replay-from-a-time.md", &[Code::StateNotUsed]),
    (
        "docs/runbooks/startup-mode-without-effect.md",
        &[Code::StartupModeShadowed],
    ),
    (
        "docs/runbooks/broker-gone.md",
        &[
            Code::KafkaUnreachable,
            Code::KafkaTimeout,
            Code::NoLeader,
            Code::DiscoveryFailing,
        ],
    ),
    (
        "docs/runbooks/crash-loop.md",
        &[Code::CrashLoop, Code::Panicked],
    ),
    (
        "docs/runbooks/postgresql-failover.md",
        &[Code::StoreUnreachable, Code::NotReady],
    ),
    (
        "docs/runbooks/target-gone.md",
        &[Code::SinkError, Code::SinkUnreachable],
    ),
];

/// The codes that the document has among the answers of a call.
static ANSWERS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let document = serde_json::from_str(&openapi_json()).unwrap_or(Value::Null);
    let paths = document.get("paths").and_then(Value::as_object);
    let calls = paths.into_iter().flat_map(Map::values);
    let calls = calls.filter_map(Value::as_object).flat_map(Map::values);
    let answers = calls.filter_map(|call| call.get("responses")?.as_object());
    let codes = answers
        .flat_map(Map::values)
        .filter_map(|answer| answer.get("x-problem-codes")?.as_array())
        .flatten();
    codes
        .filter_map(|code| code.as_str().map(str::to_owned))
        .collect()
});

/// The HTTP status of a code that is an answer. What a path answers to methods that it does not have stands in no document.
fn status(code: Code) -> Option<u16> {
    let is_answer = code == Code::MethodNotAllowed || ANSWERS.contains(code.as_str());
    is_answer.then(|| code.status())
}

fn runbook(code: Code) -> Option<&'static str> {
    RUNBOOKS
        .iter()
        .find(|(_, codes)| codes.contains(&code))
        .map(|(file, _)| *file)
}

impl From<Code> for CodePage {
    fn from(code: Code) -> Self {
        Self {
            code,
            status: status(code),
            title: code.title(),
            remedy: code.remedy(),
            runbook: runbook(code),
        }
    }
}

/// Every code.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CodeList {
    /// The codes, by HTTP status.
    items: Vec<CodePage>,
}

/// List the codes
///
/// As a page for browsers, as JSON for everybody else.
#[utoipa::path(
    get, path = "/problems", operation_id = "listProblems", tag = "server",
    responses((status = 200, description = "The codes", body = CodeList), ListProblems),
)]
pub(super) async fn list_problems(headers: HeaderMap) -> Result<Response, Problem> {
    answer(&headers, "Codes", Code::ALL, || {
        let items = Code::ALL.iter().copied().map(CodePage::from).collect();
        Json(CodeList { items }).into_response()
    })
}

/// Say what a code means
///
/// And what to do about it. As a page for browsers, as JSON for everybody else.
#[utoipa::path(
    get, path = "/problems/{code}", operation_id = "getProblem", tag = "server",
    params(("code" = String, Path, description = "The code", example = "job-not-found")),
    responses((status = 200, description = "What it means and what to do", body = CodePage), GetProblems),
)]
pub(super) async fn get_problem(
    path: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Path(name) = path.map_err(|error| Problem::new(Code::NotFound, error.body_text()))?;
    let Some(code) = Code::ALL.iter().copied().find(|code| code.as_str() == name) else {
        let known: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        let problem = Problem::new(Code::NotFound, format!("there is no code '{name}'"));
        return Err(match nearest(&name, &known) {
            Some(near) => problem.hint(format!("Did you mean /problems/{near}?")),
            None => problem.hint("GET /problems lists them."),
        });
    };
    answer(&headers, code.as_str(), &[code], || {
        Json(CodePage::from(code)).into_response()
    })
}

fn answer(
    headers: &HeaderMap,
    heading: &str,
    codes: &[Code],
    json: impl FnOnce() -> Response,
) -> Result<Response, Problem> {
    if names(headers, "text/html") {
        let page = html(heading, codes);
        return Ok(([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response());
    }
    if accepts(headers, "application/json") {
        return Ok(json());
    }
    Err(Problem::new(
        Code::NotAcceptable,
        "the page is text/html or application/json",
    ))
}

fn html(heading: &str, codes: &[Code]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{heading} - handover</title><link rel=\"icon\" href=\"data:,\"><link rel=\"stylesheet\" href=\"/page.css\"></head>\n<body>\n<main>\n<h1>{heading}</h1>\n"
    );
    for code in codes {
        // The texts are constants of the program; only characters that HTML reads itself need care.
        let (title, remedy) = (escape(code.title()), escape(code.remedy()));
        // Writing to a string cannot fail.
        let _written = write!(
            page,
            "<section>\n<h2><a href=\"/problems/{code}\">{code}</a></h2>\n<p><strong>{title}.</strong></p>\n<p>{remedy}</p>\n"
        );
        if let Some(status) = status(*code) {
            let _written = writeln!(page, "<p>HTTP status {status}</p>");
        }
        if let Some(file) = runbook(*code) {
            let _written = writeln!(page, "<p>Runbook: <code>{file}</code></p>");
        }
        page.push_str("</section>\n");
    }
    page.push_str("<p><a href=\"/problems\">All codes</a> · <a href=\"/docs/\">API</a> · <a href=\"/ui/\">Jobs</a></p>\n</main>\n</body>\n</html>\n");
    page
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
