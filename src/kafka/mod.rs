//! Kafka, as the engine asks for it: the only code that names the client library.
//!
//! [`Cluster`] is one connection of the server's file. It answers questions over one long-lived client and makes a consumer
//! for each subtask. Jobs choose a connection by name and may tune a short list of properties; everything else is the
//! server's or the engine's business ([`client_config`]). Whatever goes wrong becomes an
//! [`engine::error::KafkaError`](crate::engine::error::KafkaError) that says whether waiting helps and, if a permission is
//! missing, which.

pub mod client_config;

mod admin;
mod cluster;
mod consumer;
mod dead_letters;
mod error;
mod log;

pub use client_config::KafkaConnection;
pub use cluster::Cluster;
