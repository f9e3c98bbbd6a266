//! What the integration tests share.

pub(crate) mod chaos;
pub(crate) mod client;
mod database;
pub(crate) mod kafka;
pub(crate) mod producer;
pub(crate) mod server;
pub(crate) mod sink;
mod until;
pub(crate) mod wait;

pub(crate) use database::{Cluster, Database, proxied};
pub(crate) use until::eventually;

/// A name that no other test uses, in this run or in another.
pub(crate) fn unique(name: &str) -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("{name}-{}", &id[..10])
}
