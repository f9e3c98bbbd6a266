//! `/docs`: the OpenAPI document to read and try, from assets inside the binary.

use std::sync::{Arc, LazyLock};

use axum::{
    extract::Path,
    http::header,
    response::{IntoResponse, Redirect, Response},
};
use utoipa_swagger_ui::Config;

use super::problem::Problem;
use crate::model::code::Code;

/// The page's assets are relative to it, so its address ends with a slash.
pub(super) async fn to_docs() -> Redirect {
    Redirect::permanent("/docs/")
}

/// The page.
pub(super) async fn index() -> Result<Response, Problem> {
    serve("index.html")
}

/// One of its assets.
pub(super) async fn file(Path(path): Path<String>) -> Result<Response, Problem> {
    serve(&path)
}

fn serve(path: &str) -> Result<Response, Problem> {
    static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
        // No validator: it would send the document to a server elsewhere.
        Arc::new(
            Config::from("/openapi.json")
                .validator_url("none")
                // The other layout has a logo with a style of its own, which the policy refuses.
                .use_base_layout()
                .display_operation_id(true)
                .deep_linking(true),
        )
    });
    let file = utoipa_swagger_ui::serve(path, Arc::clone(&CONFIG))
        .map_err(|error| {
            Problem::new(
                Code::Internal,
                format!("cannot serve /docs/{path}: {error}"),
            )
        })?
        .ok_or_else(|| Problem::new(Code::NotFound, format!("there is nothing at /docs/{path}")))?;
    let mut response = (
        [(header::CONTENT_TYPE, file.content_type)],
        file.bytes.into_owned(),
    )
        .into_response();
    if file.gzpipped {
        response.headers_mut().insert(
            header::CONTENT_ENCODING,
            axum::http::HeaderValue::from_static("gzip"),
        );
    }
    Ok(response)
}
