//! A job that keeps its records in a table.

use std::collections::BTreeMap;

use fault_proxy::Proxy;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use super::{Scene, earliest, with};
use crate::support::{
    Database,
    client::block_on,
    kafka::Kafka,
    proxied,
    server::{Output, TestServer},
    wait::{SOON, eventually},
};

/// A job that writes each record into a row of `orders`, through a proxy.
pub(super) struct Warehouse {
    pub(super) scene: Scene,
    pub(super) proxy: Proxy,
    pub(super) target: Database,
    /// Dropped when the server is gone.
    store: Database,
    config: String,
}

impl Warehouse {
    pub(super) fn start(name: &str) -> Self {
        Self::configured(name, "")
    }

    /// Without periodic checkpoints within the time of a test.
    pub(super) fn quiet(name: &str) -> Self {
        Self::make(name, "", "1h")
    }

    /// With more in the servers' configuration file.
    pub(super) fn configured(name: &str, more: &str) -> Self {
        Self::make(name, more, "200ms")
    }

    fn make(name: &str, more: &str, interval: &str) -> Self {
        let target = block_on(Database::create());
        let _made: Vec<String> = target
            .column("CREATE TABLE orders (part int NOT NULL, pos bigint NOT NULL, value text)");
        let (proxy, url) = block_on(async { proxied(&target.url()) });
        let config =
            format!("[connections.warehouse]\ntype = \"postgres\"\nurl = \"{url}\"\n{more}");
        let kafka = Kafka::shared();
        let store = block_on(Database::create());
        let server = TestServer::start_configured(&kafka, &store.url(), Output::Followed, &config);
        let scene = Scene::with(server, kafka, name, 2);
        let spec = with(
            scene.spec(&earliest()),
            "/checkpoint/interval",
            json!(interval),
        );
        let sink = json!({
            "type": "postgres", "connection": "warehouse", "table": "public.orders",
            "mapping": {"mode": "raw", "columns": {"part": "@partition", "pos": "@offset", "value": "@value"}},
            "batch": {"max_rows": 1000, "linger": "10ms"},
        });
        scene.job.put_spec(&with(spec, "/sink", sink));
        scene.job.start(&json!({}));
        Self {
            scene,
            proxy,
            target,
            store,
            config,
        }
    }

    /// Where the server keeps its jobs.
    pub(super) fn store(&self) -> &Database {
        &self.store
    }

    /// Another server on the same store.
    pub(super) fn second_server(&self) -> TestServer {
        TestServer::start_configured(
            &self.scene.kafka,
            &self.store.url(),
            Output::Followed,
            &self.config,
        )
    }

    pub(super) fn await_effective(&self, total: u64) {
        eventually("the fault happens", SOON, || {
            match self.proxy.effective().total() {
                now if now >= total => Ok(()),
                now => Err(format!("{now} of {total}")),
            }
        });
    }

    /// Runs a statement in the target.
    pub(super) fn run(&self, sql: &str) {
        self.target.run(sql);
    }

    /// Offsets of the rows of a partition, in order.
    pub(super) fn offsets_of(&self, partition: i32) -> Vec<i64> {
        let rows = self.target.rows(&format!(
            "SELECT pos FROM orders WHERE part = {partition} ORDER BY pos"
        ));
        rows.iter().map(|row| sqlx::Row::get(row, 0)).collect()
    }

    pub(super) fn rows(&self) -> i64 {
        self.target.column("SELECT count(*) FROM orders")[0]
    }

    /// Fails unless there is exactly one row for each record.
    pub(super) fn assert_one_row_each(&self, ends: &BTreeMap<i32, i64>) {
        let wanted: i64 = ends.values().sum();
        let distinct: Vec<i64> = self
            .target
            .column("SELECT count(DISTINCT (part, pos)) FROM orders");
        assert_eq!(
            (self.rows(), distinct[0]),
            (wanted, wanted),
            "rows, and different ones"
        );
    }
}

/// A table that nobody else can use.
pub(super) struct Lock(PgConnection);

impl Lock {
    pub(super) fn take(warehouse: &Warehouse, table: &str) -> Self {
        let sql = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE");
        block_on(async {
            let mut holder = PgConnection::connect(&warehouse.target.url())
                .await
                .unwrap();
            holder.execute(AssertSqlSafe(sql)).await.unwrap();
            Self(holder)
        })
    }

    pub(super) fn free(self) {
        block_on(self.0.close()).unwrap();
    }
}
