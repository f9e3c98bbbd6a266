//! A job whose records go into a table.

use serde_json::{Value, json};

use super::Scene;
use crate::support::{
    Database,
    client::block_on,
    kafka::Kafka,
    server::{Output, TestServer},
    wait::{SOON, eventually},
};

/// The table of every such job.
pub(super) const CREATE: &str =
    "CREATE TABLE orders (part int NOT NULL, pos bigint NOT NULL, value text)";

/// A scene whose server knows the database at `target`.
pub(super) fn scene(name: &str, target: &str, store: &Database) -> Scene {
    let config = format!("[connections.warehouse]\ntype = \"postgres\"\nurl = \"{target}\"\n");
    let kafka = Kafka::shared();
    let server = TestServer::start_configured(&kafka, &store.url(), Output::Followed, &config);
    Scene::with(server, kafka, name, 1)
}

/// The spec of a job that appends to the table.
pub(super) fn spec(scene: &Scene, mode: &str) -> Value {
    let mut spec = scene.spec(mode);
    spec["sink"] = json!({
        "type": "postgres", "connection": "warehouse", "table": "public.orders",
        "mapping": {"mode": "raw", "columns": {"part": "@partition", "pos": "@offset", "value": "@value"}},
        "batch": {"max_rows": 1000, "linger": "10ms"},
    });
    spec
}

/// A database with the table, and one for the store.
pub(super) fn databases() -> (Database, Database) {
    let target = block_on(Database::create());
    target.run(CREATE);
    (target, block_on(Database::create()))
}

pub(super) fn await_rows(target: &Database, wanted: i64) {
    eventually("the rows", SOON, || {
        match target.column::<i64>("SELECT count(*) FROM orders")[0] {
            rows if rows == wanted => Ok(()),
            rows => Err(format!("{rows} of {wanted}")),
        }
    });
}
