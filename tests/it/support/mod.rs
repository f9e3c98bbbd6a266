//! What the integration tests share.

mod database;
mod wait;

pub(crate) use database::{Cluster, Database};
pub(crate) use wait::eventually;
