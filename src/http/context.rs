//! What every request needs to know about the server.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use axum::http::{Method, Uri};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use utoipa::openapi::OpenApi;

use super::metrics::{JobsCollector, RequestCounter};
use crate::{model::code::Code, service::Service};

/// What the operator of the server decides about its HTTP surface.
#[derive(Debug, Clone)]
pub struct HttpOptions {
    /// Where people reach the server, for example `http://localhost:8080`: base of the addresses in problem documents,
    /// and a host that requests may name.
    pub public_url: String,
    /// Whether every call that would change something is refused.
    pub read_only: bool,
    /// Whether `/metrics` has series of each partition; with thousands of partitions they are many.
    pub per_partition_metrics: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Context {
    public_url: String,
    public_authority: Option<String>,
    public_host: Option<String>,
    /// Whether every call that would change something is refused.
    pub(super) read_only: bool,
    parameters: HashMap<String, HashMap<Method, Vec<String>>>,
    /// Cancelled when the server goes down.
    pub(super) shutdown: CancellationToken,
    /// Counts answers.
    pub(super) requests: RequestCounter,
    per_partition_metrics: bool,
    registry: Mutex<Registry>,
}

impl Context {
    /// `document` names the parameters that each route takes.
    pub(super) fn new(
        options: &HttpOptions,
        document: &OpenApi,
        shutdown: CancellationToken,
    ) -> Self {
        let public = options.public_url.parse::<Uri>().ok();
        let requests = RequestCounter::default();
        let mut registry = Registry::default();
        requests.register(&mut registry);
        Self {
            public_url: options.public_url.trim_end_matches('/').to_owned(),
            public_authority: public
                .as_ref()
                .and_then(Uri::authority)
                .map(|authority| authority.as_str().to_ascii_lowercase()),
            public_host: public
                .as_ref()
                .and_then(Uri::host)
                .map(str::to_ascii_lowercase),
            read_only: options.read_only,
            parameters: query_parameters(document),
            shutdown,
            requests,
            per_partition_metrics: options.per_partition_metrics,
            registry: Mutex::new(registry),
        }
    }

    /// Adds the jobs' numbers to `/metrics`.
    pub(super) fn register_jobs(&self, service: Service) {
        self.with_registry(|registry| {
            let collector = JobsCollector::new(service, self.per_partition_metrics);
            registry.register_collector(Box::new(collector));
        });
    }

    /// Lends the registry of `/metrics`.
    pub(super) fn with_registry<T>(&self, use_it: impl FnOnce(&mut Registry) -> T) -> T {
        // Nothing is half done in a registry when a panic poisons the lock.
        use_it(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Address of the page about a code.
    pub(super) fn problem_url(&self, code: Code) -> String {
        format!("{}/problems/{code}", self.public_url)
    }

    /// The query parameters of a route; `None` for a route that is not documented and takes what it likes.
    pub(super) fn query_parameters(&self, route: &str, method: &Method) -> Option<&[String]> {
        let method = if method == Method::HEAD {
            &Method::GET
        } else {
            method
        };
        self.parameters.get(route)?.get(method).map(Vec::as_slice)
    }

    /// Whether a `Host` header names this server, whatever the port. A page that a browser loaded from elsewhere cannot
    /// forge it, even if its name resolves to this address (DNS rebinding).
    pub(super) fn is_own_host(&self, authority: &str) -> bool {
        let Ok(authority) = authority.parse::<axum::http::uri::Authority>() else {
            return false;
        };
        let host = authority.host().to_ascii_lowercase();
        let port = authority.as_str().strip_prefix(authority.host());
        let well_formed = match port {
            Some("") => true,
            Some(port) => port
                .strip_prefix(':')
                .is_some_and(|digits| digits.parse::<u16>().is_ok()),
            // There is something before the host: user information.
            None => false,
        };
        well_formed
            && (matches!(host.as_str(), "localhost" | "127.0.0.1" | "[::1]")
                || self.public_host.as_deref() == Some(&host))
    }

    /// Whether an `Origin` header is the server's own: the host and port that the request was sent to, or the public one.
    pub(super) fn is_own_origin(&self, origin: &str, host: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else {
            return false;
        };
        let authority = authority.to_ascii_lowercase();
        matches!(scheme, "http" | "https")
            && (authority == host.to_ascii_lowercase()
                || self.public_authority.as_deref() == Some(&authority))
    }
}

fn query_parameters(document: &OpenApi) -> HashMap<String, HashMap<Method, Vec<String>>> {
    document
        .paths
        .paths
        .iter()
        .map(|(path, item)| {
            let operations = super::openapi::operations(item)
                .map(|(method, operation)| {
                    let names = super::openapi::query_parameters(operation)
                        .map(|parameter| parameter.name.clone())
                        .collect();
                    (method, names)
                })
                .collect();
            (path.clone(), operations)
        })
        .collect()
}
