//! Tests against a real Kafka and a real PostgreSQL; see docs/testing.md.
#![cfg(test)]

mod api;
mod broker;
mod dev;
mod e2e;
mod kills;
mod proxy;
mod reference_pages;
mod reload;
mod runbooks;
mod service;
mod sinks;
mod store;
mod support;
