//! The network between a job and the database it writes to, cut where it hurts: at a COMMIT.

use fault_proxy::{CommitFault, Proxy};
use serde_json::{Value, json};

use crate::{
    e2e::{
        Scene, decided, earliest,
        watch::{assert_history_grows, await_newer_checkpoint, while_watched},
        with,
    },
    support::{
        Database,
        client::block_on,
        kafka::Kafka,
        producer::Load,
        proxied,
        server::{Output, TestServer},
        wait::{SOON, eventually},
    },
};

/// A job that writes each record into a row of `orders`, through a proxy.
struct Warehouse {
    scene: Scene,
    proxy: Proxy,
    target: Database,
    /// Dropped when the server is gone.
    _store: Database,
}

impl Warehouse {
    fn start(name: &str) -> Self {
        let target = block_on(Database::create());
        let _made: Vec<String> = target
            .column("CREATE TABLE orders (part int NOT NULL, pos bigint NOT NULL, value text)");
        let (proxy, url) = block_on(async { proxied(&target.url()) });
        let connection = format!("[connections.warehouse]\ntype = \"postgres\"\nurl = \"{url}\"");
        let kafka = Kafka::shared();
        let store = block_on(Database::create());
        let server =
            TestServer::start_configured(&kafka, &store.url(), Output::Followed, &connection);
        let scene = Scene::with(server, kafka, name, 2);
        let spec = with(
            scene.spec(&earliest()),
            "/checkpoint/interval",
            json!("200ms"),
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
            _store: store,
        }
    }

    fn await_effective(&self, total: u64) {
        eventually("the fault happens", SOON, || {
            match self.proxy.effective().total() {
                now if now >= total => Ok(()),
                now => Err(format!("{now} of {total}")),
            }
        });
    }

    fn rows(&self) -> i64 {
        self.target.column("SELECT count(*) FROM orders")[0]
    }
}

/// COMMITs of the target are cut under load, before and after it has them, and the target is silent for a while: the job
/// waits, goes on by itself, and every record is one row.
#[test]
fn commits_of_the_target_are_cut_and_every_record_is_one_row() {
    let warehouse = Warehouse::start("sink-cut");
    let scene = &warehouse.scene;
    let load = Load::start(&scene.kafka, &scene.name, 2, 400);
    let mut last = await_newer_checkpoint(scene, 1);
    while_watched(scene, || {
        for round in 1..=60 {
            let fault = if round % 2 == 0 {
                CommitFault::BeforeServer
            } else {
                CommitFault::AnswerDropped
            };
            warehouse.proxy.arm(fault, 1);
            warehouse.await_effective(round);
        }
        last = await_newer_checkpoint(scene, last);

        warehouse.proxy.freeze();
        eventually("a checkpoint waits for the sink", SOON, || {
            let open = scene.job.checkpoints("?status=in-progress");
            if open.len() == 1 {
                Ok(())
            } else {
                Err(format!("{open:#?}"))
            }
        });
        let rows = warehouse.rows();
        assert!(block_on(warehouse.proxy.cut()) > 0);
        warehouse.proxy.thaw();
        last = await_newer_checkpoint(scene, last + 1);
        assert!(warehouse.rows() > rows);
    });
    let ends = load.end();
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    let view = scene.job.view();
    assert_eq!(
        (&view["state"], &view["failure"]),
        (&json!("stopped"), &Value::Null),
        "{view:#}"
    );
    assert_eq!(decided(&scene.checkpointed().1), ends);
    assert_eq!(scene.group_offsets(), ends);
    assert_history_grows(scene);
    assert_eq!(
        warehouse.rows(),
        ends.values().sum::<i64>(),
        "every record is there once"
    );
    let counted: Vec<i64> = warehouse
        .target
        .column("SELECT count(DISTINCT (part, pos)) FROM orders");
    assert_eq!(counted, [ends.values().sum::<i64>()], "and once only");
}
