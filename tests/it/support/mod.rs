//! What the integration tests share.

pub(crate) mod client;
pub(crate) mod kafka;
pub(crate) mod postgres;
pub(crate) mod producer;
pub(crate) mod server;
pub(crate) mod sink;
pub(crate) mod wait;

/// A name that no other test uses, in this run or in another.
pub(crate) fn unique(name: &str) -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    format!("{name}-{}", &id[..10])
}
