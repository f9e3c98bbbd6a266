//! Tests against a real Kafka and a real PostgreSQL; see docs/testing.md.
#![cfg(test)]

mod broker;
mod dev;
mod store;
mod support;
