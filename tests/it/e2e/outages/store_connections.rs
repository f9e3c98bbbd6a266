//! The network between the server and its store, cut where it hurts: at a COMMIT.

use std::time::{Duration, Instant};

use fault_proxy::{CommitFault, Proxy};
use serde_json::{Value, json};

use crate::{
    e2e::{
        Scene, earliest,
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

/// The table that a checkpoint's transaction writes, and no other.
const POSITIONS: &str = "checkpoint_offsets";

/// A job with a checkpoint five times a second, whose server reaches its database through a proxy.
struct Cut {
    scene: Scene,
    proxy: Proxy,
    database: Database,
}

impl Cut {
    fn start(name: &str) -> Self {
        let database = block_on(Database::create());
        let (proxy, url) = block_on(async { proxied(&database.url()) });
        let kafka = Kafka::shared();
        let server = TestServer::start_with(&kafka, &url, Output::Followed);
        let scene = Scene::with(server, kafka, name, 2);
        let spec = scene.spec(&earliest());
        scene
            .job
            .put_spec(&with(spec, "/checkpoint/interval", json!("200ms")));
        scene.job.start(&json!({}));
        Self {
            scene,
            proxy,
            database,
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

    /// What is not checkpointed, and what the job says of it.
    fn open_checkpoint(&self) -> (Vec<Value>, Value) {
        let open = self.scene.job.checkpoints("?status=uncertain");
        (open, self.scene.job.view())
    }

    /// Ends the load, stops the job, and looks whether everything is there and nothing is left behind.
    fn end(self, load: Load) {
        let scene = &self.scene;
        let ends = load.end();
        scene.server.log.await_complete(0, &scene.name, &ends, SOON);
        let view = scene.job.view();
        assert_eq!(
            (&view["state"], &view["failure"]),
            (&json!("running"), &Value::Null),
            "{view:#}"
        );
        assert_eq!(
            view["owner"]["epoch"], 1,
            "one run survived it all: {view:#}"
        );
        let report = scene.job.stop();
        assert_eq!(report["will_replay"], 0, "{report:#}");
        assert_eq!(super::super::decided(&scene.checkpointed().1), ends);
        assert_eq!(scene.group_offsets(), ends);
        assert_history_grows(scene);
        assert_eq!(
            scene.job.checkpoints("?status=uncertain"),
            Vec::<Value>::new()
        );
        self.assert_no_session_in_a_transaction();
    }

    /// A connection that went back to the pool inside a transaction would stay there.
    fn assert_no_session_in_a_transaction(&self) {
        eventually("no session is left in a transaction", SOON, || {
            let open: Vec<String> = self.database.column(
                "SELECT query FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'handover' AND xact_start IS NOT NULL",
            );
            if open.is_empty() {
                Ok(())
            } else {
                Err(open.join("; "))
            }
        });
    }
}

/// Thirty COMMITs of a running job are cut, before and after the server has them. Each checkpoint is settled under its
/// number. While none gets through, the checkpoint that was sent is shown as uncertain and the job as waiting.
#[test]
fn commits_cut_thirty_times_are_settled_and_meanwhile_not_called_done() {
    let cut = Cut::start("commits-cut");
    let load = Load::start(&cut.scene.kafka, &cut.scene.name, 2, 400);
    let mut last = await_newer_checkpoint(&cut.scene, 1);
    while_watched(&cut.scene, || {
        for round in 1..=30 {
            let fault = if round % 2 == 0 {
                CommitFault::BeforeServer
            } else {
                CommitFault::AnswerDropped
            };
            // Each third one at whatever is committed next.
            if round % 3 == 0 {
                cut.proxy.arm(fault, 1);
            } else {
                cut.proxy.arm_touching(POSITIONS, fault, 1);
            }
            cut.await_effective(round);
            last = await_newer_checkpoint(&cut.scene, last);
        }
        let effective = cut.proxy.effective();
        assert_eq!(
            (effective.before_server, effective.answer_dropped),
            (15, 15)
        );

        cut.proxy.arm(CommitFault::BeforeServer, 10_000);
        let uncertain = eventually(
            "the checkpoint that was sent is uncertain",
            SOON,
            || match cut.open_checkpoint() {
                (open, view) if open.len() == 1 && view["health"]["status"] == "waiting" => {
                    Ok(open[0]["id"].as_i64().expect("a number"))
                }
                found => Err(format!("{found:#?}")),
            },
        );
        let view = cut.scene.job.view();
        assert_eq!(view["state"], "running", "{view:#}");
        assert!(
            view["waiting"].to_string().contains("store-unreachable"),
            "{view:#}"
        );
        let completed = cut.scene.checkpointed().0;
        assert!(
            completed < uncertain,
            "{completed} is stored, {uncertain} is not"
        );
        block_on(cut.proxy.heal());
        await_newer_checkpoint(&cut.scene, uncertain);
        let settled = cut
            .scene
            .job
            .api
            .get(&cut.scene.job.at(&format!("/checkpoints/{uncertain}")));
        assert_eq!(settled["status"], "completed", "{settled:#}");
        eventually("the job waits for nothing", SOON, || {
            let view = cut.scene.job.view();
            if view["waiting"] == json!([]) {
                Ok(())
            } else {
                Err(format!("{view:#}"))
            }
        });
    });
    cut.end(load);
}

/// The answer to a checkpoint's COMMIT never comes and the connection stays open. The job gives up the silent connection,
/// finds the checkpoint stored, and keeps its lease and its number; nothing else waits for it meanwhile.
#[test]
fn an_answer_that_never_comes_holds_up_one_checkpoint_only_and_nothing_else() {
    let cut = Cut::start("commit-one-way");
    let load = Load::start(&cut.scene.kafka, &cut.scene.name, 2, 100);
    await_newer_checkpoint(&cut.scene, 1);
    cut.proxy
        .arm_touching(POSITIONS, CommitFault::AnswerSwallowed, 1);
    cut.await_effective(1);
    let silent_since = Instant::now();
    let (stored, _) = cut.scene.checkpointed();
    let seen = cut.scene.server.log.mark();
    eventually("records go on", SOON, || {
        let asked = Instant::now();
        let view = cut.scene.job.view();
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!(view["state"], "running", "{view:#}");
        match cut.scene.server.log.mark() {
            now if now > seen + 200 => Ok(()),
            now => Err(format!("{} records", now - seen)),
        }
    });
    assert_eq!(
        cut.scene.checkpointed().0,
        stored,
        "it is under way, no other overtakes it"
    );
    await_newer_checkpoint(&cut.scene, stored);
    let held_up = silent_since.elapsed();
    assert!(held_up < Duration::from_secs(35), "{held_up:?}");
    let settled = cut
        .scene
        .job
        .api
        .get(&cut.scene.job.at(&format!("/checkpoints/{stored}")));
    assert_eq!(settled["status"], "completed", "{settled:#}");
    assert_eq!(cut.proxy.effective().answer_swallowed, 1);
    cut.end(load);
}

/// All sessions of the server are ended twenty times, whatever they are doing: it connects again, and no connection comes
/// back from the pool broken.
#[test]
fn sessions_ended_twenty_times_cost_nothing() {
    let cut = Cut::start("sessions-ended");
    let load = Load::start(&cut.scene.kafka, &cut.scene.name, 2, 400);
    let mut last = await_newer_checkpoint(&cut.scene, 1);
    let mut ended = 0;
    while_watched(&cut.scene, || {
        for _ in 0..20 {
            let sessions: Vec<bool> = cut.database.column(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name = 'handover'",
            );
            ended += sessions.len();
            last = await_newer_checkpoint(&cut.scene, last);
        }
    });
    assert!(ended >= 20, "{ended} sessions were ended");
    cut.end(load);
}
