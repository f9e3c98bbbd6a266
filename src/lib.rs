//! handover: Kafka consumers as jobs, checkpointed in Postgres, operated by REST.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod app;
pub mod config;
pub mod crash_point;
pub mod dev;
pub mod engine;
pub mod http;
pub mod kafka;
pub mod model;
pub mod service;
pub mod sinks;
pub mod store;
pub mod telemetry;
