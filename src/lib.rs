//! handover: Kafka consumers as jobs, checkpointed in Postgres, operated by REST.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod engine;
pub mod kafka;
pub mod model;
pub mod sinks;
