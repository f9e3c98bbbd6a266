//! `/ui/`: the web pages, embedded when the program is compiled.
//!
//! Building the program never needs Node: without `web/dist` it serves a notice that says how to get the pages.

use std::fmt::Write;

use axum::{
    extract::Path,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use rust_embed::{EmbeddedFile, RustEmbed};

use super::{conditional::is_current, problem::Problem};
use crate::model::code::Code;

#[derive(RustEmbed)]
#[folder = "$CARGO_MANIFEST_DIR/web/dist"]
#[allow_missing = true]
struct Dist;

const INDEX: &str = "index.html";

/// Where people begin.
pub(super) async fn to_ui() -> Redirect {
    Redirect::to("/ui/")
}

/// The shell of the pages.
pub(super) async fn index(headers: HeaderMap) -> Result<Response, Problem> {
    shell(&headers)
}

/// A file, or the shell for an address that the pages made up themselves.
pub(super) async fn file(
    Path(path): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some(file) = Dist::get(&path) {
        return serve(&path, file, &headers);
    }
    // A file that is missing must not be answered with a page: a browser would run the page as a script and fail
    // somewhere else. Addresses of pages have no dot in their last part.
    let last_part = path.rsplit('/').next().unwrap_or_default();
    if last_part.contains('.') || path.starts_with("assets/") {
        return Err(Problem::new(
            Code::NotFound,
            format!("there is nothing at /ui/{path}"),
        ));
    }
    shell(&headers)
}

fn shell(headers: &HeaderMap) -> Result<Response, Problem> {
    match Dist::get(INDEX) {
        Some(file) => serve(INDEX, file, headers),
        None => Ok((
            [(header::CONTENT_TYPE, "text/html; charset=utf-8")],
            include_str!("web_ui_missing.html"),
        )
            .into_response()),
    }
}

fn serve(path: &str, file: EmbeddedFile, headers: &HeaderMap) -> Result<Response, Problem> {
    // The build puts a hash of the content into these names: another content has another name.
    let cache = if path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    };
    let tag = entity_tag(&file.metadata.sha256_hash());
    let mut response = if is_current(headers, &tag)? {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let content_type = content_type(file.metadata.mimetype());
        (
            [(header::CONTENT_TYPE, content_type)],
            file.data.into_owned(),
        )
            .into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    Ok(response)
}

fn entity_tag(hash: &[u8]) -> String {
    let mut tag = String::from("\"");
    for byte in hash.iter().take(16) {
        // Writing to a string cannot fail.
        let _written = write!(tag, "{byte:02x}");
    }
    tag.push('"');
    tag
}

fn content_type(media_type: &str) -> String {
    if media_type.starts_with("text/") {
        format!("{media_type}; charset=utf-8")
    } else {
        media_type.to_owned()
    }
}

/// The style of the pages that are not part of the web UI.
pub(super) async fn stylesheet() -> Response {
    (
        [(header::CONTENT_TYPE, "text/css; charset=utf-8")],
        include_str!("page.css"),
    )
        .into_response()
}
