//! The OpenAPI document: collected from the handlers, completed with what is true of all of them.
//!
//! A handler lists the codes that its own call can end with; the codes of the layers around it (unknown parameters, foreign
//! hosts, bodies that are no JSON) follow from its shape and are added here, so that nobody has to remember them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use axum::{
    http::{Method, header},
    response::{IntoResponse, Response},
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        Components, Content, ContentBuilder, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder,
        Paths, Ref, RefOr, ResponseBuilder, Schema,
        extensions::Extensions,
        path::{Operation, Parameter, ParameterIn, PathItem},
        response::Response as DocumentedResponse,
        tag::TagBuilder,
    },
};

use super::problem::{MEDIA_TYPE, ProblemDocument};
use crate::model::code::Code;

/// Where a response lists its codes, for machines.
const CODES: &str = "x-problem-codes";

/// Codes that every call can end with.
const EVERYWHERE: &[Code] = &[
    Code::InvalidRequest,
    Code::UnknownParameter,
    Code::HostNotAllowed,
    Code::Internal,
];
/// Codes of calls that change something.
const CHANGES: &[Code] = &[Code::ReadOnlyServer, Code::OriginNotAllowed];
/// Codes of calls that take a body.
const BODIES: &[Code] = &[
    Code::InvalidJson,
    Code::RequestTimeout,
    Code::BodyTooLarge,
    Code::UnsupportedMediaType,
];

/// Declares what a call's own problems are: a name, then codes.
macro_rules! problems {
    ($name:ident: $($code:ident),+ $(,)?) => {
        /// The problems that the call itself can end with.
        pub(super) struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                $crate::http::openapi::problem_responses([$($crate::model::code::Code::$code),+])
            }
        }
    };
}
pub(super) use problems;

/// The document as it is stored in `openapi/handover.json` and served at `/openapi.json`.
#[must_use]
pub fn openapi_json() -> String {
    let document = finish(super::routes::<super::Api>().into_openapi());
    // A document made of maps and texts has a JSON form.
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Serves the document.
pub(super) async fn document() -> Response {
    static DOCUMENT: LazyLock<String> = LazyLock::new(openapi_json);
    (
        [(header::CONTENT_TYPE, "application/json")],
        // Its end of line is added, as to every answer.
        DOCUMENT.trim_end(),
    )
        .into_response()
}

/// The document without paths.
pub(super) fn skeleton() -> OpenApi {
    let tags = [
        ("jobs", "The jobs and how they fare"),
        (
            "specs",
            "What a job reads, where it begins, how it checkpoints and where its records go",
        ),
        ("startup mode", "Where a job without a checkpoint begins"),
        (
            "start and stop",
            "Starting, stopping, and where a start would begin",
        ),
        ("checkpoints", "Stored positions"),
        (
            "offsets",
            "Live, checkpointed and committed positions against the ends of the logs",
        ),
        ("operations", "What was asked for, and what became of it"),
        ("server", "Health, metrics and the pages about codes"),
    ];
    let info = InfoBuilder::new()
        .title("handover")
        .version("1")
        .description(Some(
            "Kafka consumers as jobs, checkpointed in PostgreSQL. Every offset is the next one to read; unknown is `null`, never 0; unknown parameters and members are refused.",
        ))
        .license(Some(
            LicenseBuilder::new()
                .name("Apache-2.0")
                .identifier(Some("Apache-2.0"))
                .build(),
        ))
        .build();
    let tag =
        |(name, text): (&str, &str)| TagBuilder::new().name(name).description(Some(text)).build();
    OpenApiBuilder::new()
        .info(info)
        .paths(Paths::new())
        .tags(Some(tags.map(tag)))
        .build()
}

/// Adds what is true of every route.
pub(super) fn finish(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        for (method, operation) in operations_mut(item) {
            add_common_problems(&method, operation);
        }
    }
    let components = document.components.get_or_insert_with(Components::new);
    let mut schemas = vec![(
        ProblemDocument::name().into_owned(),
        ProblemDocument::schema(),
    )];
    ProblemDocument::schemas(&mut schemas);
    components.schemas.extend(schemas);
    document
}

fn add_common_problems(method: &Method, operation: &mut Operation) {
    let mut codes: BTreeSet<Code> = operation
        .responses
        .responses
        .values()
        .flat_map(documented_codes)
        .collect();
    codes.extend(EVERYWHERE);
    if !method.is_safe() {
        codes.extend(CHANGES);
    }
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        codes.extend(BODIES);
        body.content.values_mut().for_each(leave_out_null);
    }
    if query_parameters(operation).any(|parameter| parameter.name == "wait") {
        codes.insert(Code::InvalidWait);
    }
    let answers_json = operation
        .responses
        .responses
        .values()
        .filter_map(inline)
        .any(|response| response.content.contains_key("application/json"));
    if answers_json {
        codes.insert(Code::NotAcceptable);
    }
    operation
        .responses
        .responses
        .extend(problem_responses(codes));
}

/// A body that may be left out is described as one that may be `null`, which it may not.
fn leave_out_null(content: &mut RefOr<Content>) {
    let RefOr::T(content) = content else { return };
    let Some(RefOr::T(Schema::OneOf(one_of))) = &content.schema else {
        return;
    };
    if let Some(reference @ RefOr::Ref(_)) = one_of.items.first().cloned() {
        content.schema = Some(reference);
    }
}

/// One response per status, with the codes that stand behind it.
pub(super) fn problem_responses(
    codes: impl IntoIterator<Item = Code>,
) -> BTreeMap<String, RefOr<DocumentedResponse>> {
    let mut by_status: BTreeMap<u16, BTreeSet<Code>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.status()).or_default().insert(code);
    }
    by_status
        .into_iter()
        .map(|(status, codes)| (status.to_string(), RefOr::T(problem_response(&codes))))
        .collect()
}

fn problem_response(codes: &BTreeSet<Code>) -> DocumentedResponse {
    let lines: Vec<String> = codes
        .iter()
        .map(|code| format!("- `{code}`: {}", code.title()))
        .collect();
    let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    ResponseBuilder::new()
        .description(lines.join("\n"))
        .content(
            MEDIA_TYPE,
            ContentBuilder::new()
                .schema(Some(Ref::from_schema_name(ProblemDocument::name())))
                .build(),
        )
        .extensions(Some(Extensions::from_iter([(CODES, names)])))
        .build()
}

fn inline(response: &RefOr<DocumentedResponse>) -> Option<&DocumentedResponse> {
    match response {
        RefOr::T(response) => Some(response),
        RefOr::Ref(_) => None,
    }
}

fn documented_codes(response: &RefOr<DocumentedResponse>) -> Vec<Code> {
    let names = inline(response)
        .and_then(|response| {
            response
                .extensions
                .as_ref()?
                .get(CODES)?
                .as_array()
                .cloned()
        })
        .unwrap_or_default();
    Code::ALL
        .iter()
        .copied()
        .filter(|code| names.iter().any(|name| name == code.as_str()))
        .collect()
}

/// The query parameters of an operation.
pub(super) fn query_parameters(operation: &Operation) -> impl Iterator<Item = &Parameter> {
    operation
        .parameters
        .iter()
        .flatten()
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(parameter),
            RefOr::Ref(_) => None,
        })
        .filter(|parameter| parameter.parameter_in == ParameterIn::Query)
}

/// The operations of a path.
pub(super) fn operations(item: &PathItem) -> impl Iterator<Item = (Method, &Operation)> {
    [
        (Method::GET, &item.get),
        (Method::PUT, &item.put),
        (Method::POST, &item.post),
        (Method::PATCH, &item.patch),
        (Method::DELETE, &item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_ref()?)))
}

fn operations_mut(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::PATCH, &mut item.patch),
        (Method::DELETE, &mut item.delete),
    ]
    .into_iter()
    .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}
