//! A sink that keeps progress beside the store's checkpoints: whatever the two say of each other, the plan tells it before,
//! the start does it, and the table holds the topic: nothing lost, and nothing twice except what the plan called `replayed`.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{Scene, earliest, with};
use crate::support::{
    Database,
    client::{Plan, block_on, read_checkpoint},
    proxied,
    wait::{SOON, eventually, now_ms, rfc3339},
};

/// How often each offset of a partition stands in the table.
type Rows = BTreeMap<(i32, i64), i64>;

/// A job that writes its topic to a table, and what the table has to hold.
struct Written {
    scene: Scene,
    target: Database,
    wanted: Rows,
    /// Ends of the logs; each test begins with two partitions.
    ends: [i64; 2],
}

impl Written {
    /// The job has begun, ten records of each partition are in the table, and checkpoint says so.
    fn begin(name: &str) -> Self {
        let target = block_on(Database::create());
        target.run("CREATE TABLE orders (part int, at bigint, value bytea); CREATE TABLE elsewhere (LIKE orders)");
        let url = target.url();
        Self::begin_at(name, target, &url)
    }

    fn begin_at(name: &str, target: Database, url: &str) -> Self {
        let mut scene = Scene::new(name, 2);
        let config = format!(
            "{}\n[connections.warehouse]\ntype = \"postgres\"\nurl = \"{url}\"\n\
             [connections.depot]\ntype = \"postgres\"\nurl = \"{url}\"\n",
            scene.server.config()
        );
        scene.server.write_config(&config);
        scene.server.kill();
        scene.server.boot();
        let mut written = Self {
            scene,
            target,
            wanted: Rows::new(),
            ends: [0, 0],
        };
        written.scene.job.put_spec(&written.spec("orders"));
        written.scene.job.start(&json!({}));
        written.produce_and_expect(10);
        written.await_rows("orders");
        written.scene.job.checkpoint();
        written
    }

    fn spec(&self, table: &str) -> Value {
        let sink = json!({
            "type": "postgres", "connection": "warehouse", "table": format!("public.{table}"),
            "mapping": {"mode": "raw", "columns": {"part": "@partition", "at": "@offset", "value": "@value"}},
            "write": {"mode": "append"}, "batch": {"linger": "10ms"},
        });
        with(self.scene.spec(&earliest()), "/sink", sink)
    }

    fn produce(&mut self, count: usize) {
        self.scene.produce_all(count);
        for end in &mut self.ends {
            *end += i64::try_from(count).expect("a small number");
        }
    }

    fn expect(&mut self, partition: i32, offsets: std::ops::Range<i64>) {
        for offset in offsets {
            *self.wanted.entry((partition, offset)).or_default() += 1;
        }
    }

    /// Records that the running job writes once.
    fn produce_and_expect(&mut self, count: usize) {
        let before = self.ends;
        self.produce(count);
        for (partition, (from, to)) in (0..).zip(before.into_iter().zip(self.ends)) {
            self.expect(partition, from..to);
        }
    }

    fn rows(&self, table: &str) -> Rows {
        let sql = format!("SELECT part, at, count(*) FROM {table} GROUP BY part, at");
        let rows = self.target.rows(&sql);
        rows.iter()
            .map(|row| ((row.get(0), row.get(1)), row.get(2)))
            .collect()
    }

    /// Waits until the table holds what it has to, and fails on the first row too many.
    fn await_rows(&self, table: &str) {
        eventually(&format!("the rows of {table}"), SOON, || {
            let found = self.rows(table);
            for (record, count) in &found {
                let wanted = self.wanted.get(record).copied().unwrap_or_default();
                assert!(
                    *count <= wanted,
                    "{record:?} stands {count} times in {table}, wanted {wanted}"
                );
            }
            let missing: Vec<_> = self
                .wanted
                .iter()
                .filter(|(record, count)| found.get(*record) != Some(count))
                .map(|(record, _)| record)
                .collect();
            if missing.is_empty() {
                Ok(())
            } else {
                Err(format!("{} are missing: {missing:?}", missing.len()))
            }
        });
    }

    /// Reads the plan of a start, starts with it or (as `by_plan` says) without its id, writes a little more, and holds the
    /// table against what the plan announced.
    fn start_as_planned(&mut self, body: &Value, by_plan: bool, table: &str) -> Plan {
        let before = self.rows(table);
        let plan = self.scene.job.plan_of(body);
        assert_eq!(
            plan.blockers,
            Vec::<Value>::new(),
            "{body}: {:#}",
            plan.body
        );
        let request = if by_plan {
            json!({"plan": plan.plan.as_deref().expect("a plan that can be used")})
        } else {
            body.clone()
        };
        let report = self.scene.job.start(&request);
        for number in ["to_read", "replayed", "skipped", "lost"] {
            assert_eq!(report[number], plan.totals[number], "{number}: {report:#}");
        }
        // Its checkpoint holds the plan's numbers.
        let bootstrap = &report["bootstrap_checkpoint"];
        let view = self
            .scene
            .job
            .api
            .get(&self.scene.job.at(&format!("/checkpoints/{bootstrap}")));
        let stored = super::decided(&read_checkpoint(&view, &self.scene.name).1);
        assert_eq!(stored, plan.starts(), "{body}");
        self.produce(2);
        let mut announced = 0;
        for planned in &plan.partitions {
            let (partition, start) = (planned.partition, planned.start_at.expect("a number"));
            let held = planned.sink.as_ref().map_or(start, |sink| sink.next_offset);
            announced += (held - start).max(0);
            let end = self.ends[usize::try_from(partition).expect("a partition")];
            for at in start..end {
                // What a start had passed over before is read again by number, and is new to the table.
                let is_again = before.contains_key(&(partition, at));
                assert!(
                    !is_again || at < held,
                    "{partition}@{at} comes again unannounced: {:#}",
                    plan.body
                );
            }
            self.expect(partition, start..end);
        }
        assert_eq!(
            plan.totals["replayed"], announced,
            "{body}: {:#}",
            plan.body
        );
        let warned = plan.body["warnings"]
            .to_string()
            .contains("sink-may-duplicate");
        assert_eq!(warned, announced > 0, "{:#}", plan.body);
        self.await_rows(table);
        plan
    }

    /// Stops without a checkpoint: what the table holds beyond the last one is known to it alone.
    fn stop_without_checkpoint(&self) -> Value {
        self.scene.job.stop_with(&json!({"checkpoint": "none"}))
    }

    /// The only blocker of a bare start, and the plan of its only choice.
    fn the_way_out(&self, code: &str) -> (Value, Plan) {
        let plan = self.scene.job.plan();
        assert_eq!(plan.plan, None);
        let [blocker] = &plan.blockers[..] else {
            panic!("one blocker expected: {:#}", plan.body);
        };
        assert_eq!(blocker["code"], code);
        let refused = self.scene.job.refused("/start", &json!({}));
        assert_eq!(
            (refused.status, refused.code.as_str()),
            (409, "start-blocked")
        );
        assert_eq!(refused.body["choices"], blocker["choices"]);
        let choices = blocker["choices"].as_array().expect("a list");
        assert_eq!(choices.len(), 1, "{blocker:#}");
        (choices[0].clone(), self.scene.job.plan_of(&choices[0]))
    }
}

/// Between a flush and its checkpoint the sink is ahead: it counts, after a stop as after `kill -9`.
#[test]
fn a_sink_that_is_ahead_is_where_the_job_goes_on() {
    let mut written = Written::begin("sink-ahead");
    written.produce_and_expect(5);
    written.await_rows("orders");
    let view = written.scene.job.offsets();
    assert_eq!(view.sources["sink"]["status"], "ok");
    let report = written.stop_without_checkpoint();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    assert_eq!(report["fence"], "claimed", "{report:#}");
    let resume = report["resume_from"].as_str().expect("words");
    assert!(
        resume.ends_with("and where the sink stands beyond it in 2 partitions"),
        "{resume}"
    );
    let view = written.scene.job.offsets();
    for row in &view.partitions {
        assert_eq!((row.checkpointed, row.sink_committed), (Some(10), Some(15)));
        assert_eq!(row.sink_ahead_of_checkpoint, Some(5));
    }
    assert_eq!(view.totals["sink_lag"], 0);
    let plan = written.scene.job.plan();
    assert_eq!(plan.reasons(), ["sink-progress", "sink-progress"]);
    assert_eq!(plan.starts(), [(0, 15), (1, 15)].into());

    // The plan rests on where the sink stands.
    let id = plan.plan.clone().expect("a plan");
    let progress = "UPDATE handover_sink.progress SET next_offset = next_offset";
    written
        .target
        .run(&format!("{progress} + 1 WHERE partition = 1"));
    let stale = written.scene.job.refused("/start", &json!({"plan": id}));
    assert_eq!(stale.code, "plan-stale");
    let detail = stale.body["detail"].to_string();
    assert!(
        detail.contains("/1: the sink stood at 15") && detail.contains("stands at 16"),
        "{detail}"
    );
    written
        .target
        .run(&format!("{progress} - 1 WHERE partition = 1"));
    written.start_as_planned(&json!({}), true, "orders");

    // The process dies between the two, and the next one knows.
    written.scene.server.kill();
    written
        .scene
        .server
        .boot_to_crash("before-checkpoint-stored");
    written.scene.server.await_ready();
    written
        .scene
        .server
        .await_state(&written.scene.job, "running");
    written.produce_and_expect(5);
    written.await_rows("orders");
    let triggered = written.scene.job.at("/checkpoints");
    drop(
        written
            .scene
            .job
            .api
            .try_send(&Method::POST, &triggered, Some(&json!({}))),
    );
    written.scene.server.await_crash();
    written.scene.server.boot();
    written
        .scene
        .server
        .await_state(&written.scene.job, "running");
    written.produce_and_expect(3);
    written.await_rows("orders");
    let (_, positions) = written.scene.checkpointed();
    assert_eq!(super::decided(&positions), [(0, 22), (1, 22)].into());

    // A stop that is carried to its end by the next process claims the sink before it says that nothing writes any more.
    written.scene.server.kill();
    written.scene.server.boot_to_crash("before-stop-settled");
    written.scene.server.await_ready();
    written
        .scene
        .server
        .await_state(&written.scene.job, "running");
    written.produce_and_expect(2);
    written.await_rows("orders");
    let path = written.scene.job.at("/stop");
    let body = json!({"checkpoint": "none"});
    let api = &written.scene.job.api;
    let asked = api
        .try_send(&Method::POST, &path, Some(&body))
        .expect("an answer");
    written.scene.server.await_crash();
    written.scene.server.boot();
    let operation = asked.body["id"].as_str().expect("an operation");
    let stopped = written
        .scene
        .job
        .api
        .get(&format!("/api/v1/operations/{operation}?wait=60s"));
    assert_eq!(stopped["status"], "succeeded", "{stopped:#}");
    assert_eq!(stopped["result"]["fence"], "claimed", "{stopped:#}");
    assert_eq!(stopped["result"]["will_replay"], 0, "{stopped:#}");
    let plan = written.start_as_planned(&json!({}), true, "orders");
    assert_eq!(plan.starts(), [(0, 27), (1, 27)].into());
}

/// The target was restored to an earlier state, and knows it.
#[test]
fn a_sink_that_is_behind_is_followed_on_demand() {
    let mut written = Written::begin("sink-behind");
    written.scene.job.stop();
    written.target.run(
        "UPDATE handover_sink.progress SET next_offset = 6 WHERE partition = 0;
         DELETE FROM orders WHERE part = 0 AND at >= 6",
    );
    written
        .wanted
        .retain(|(partition, at), _| *partition == 1 || *at < 6);
    let flags = written.scene.job.offsets().map(|row| row.flags.clone());
    assert_eq!(flags[&0], ["sink-behind-store"]);
    assert_eq!(flags[&1], Vec::<String>::new());
    // Whoever has just seen that is not told beside it that a bare start will do.
    let view = written.scene.job.view();
    let summary = view["summary"].as_str().expect("a sentence");
    assert!(
        summary.starts_with("stopped; a start is refused") && summary.contains("in 1 partition"),
        "{summary}"
    );
    assert!(view["warnings"].to_string().contains("sink-behind-store"));
    assert!(
        !view["next"].to_string().contains("/start?wait"),
        "{view:#}"
    );
    // It was said of this sink and no other.
    let spec = written.spec("orders");
    written.scene.job.put_spec(&written.spec("elsewhere"));
    let summary = written.scene.job.view()["summary"].to_string();
    assert!(summary.contains("a start goes on"), "{summary}");
    written.scene.job.put_spec(&spec);
    let (choice, plan) = written.the_way_out("sink-behind-store");
    assert_eq!(plan.starts(), [(0, 6), (1, 10)].into());
    assert_eq!(plan.totals["replayed"], 0, "the sink does not hold them");
    written.start_as_planned(&choice, true, "orders");
}

/// The store was restored to an earlier state: the sink knows of a decision that the store does not.
#[test]
fn a_sink_that_knows_a_newer_decision_is_followed_on_demand() {
    let mut written = Written::begin("sink-newer");
    written.scene.job.stop();
    let (before, _) = written.scene.checkpointed();
    written.start_as_planned(&json!({"from": "shift", "by": -2}), false, "orders");
    written.scene.job.stop();
    written.scene.server.database().run(&format!(
        "DELETE FROM checkpoints WHERE id > {before}; UPDATE checkpoints SET superseded = false"
    ));
    let flags = written.scene.job.offsets().map(|row| row.flags.clone());
    assert!(
        flags
            .values()
            .all(|flags| flags.contains(&"store-behind-sink".to_owned())),
        "{flags:?}"
    );
    let (choice, plan) = written.the_way_out("store-behind-sink");
    assert_eq!(plan.starts(), [(0, 12), (1, 12)].into());
    written.start_as_planned(&choice, false, "orders");
    // Its number is above the one that the sink knew.
    let (newest, _) = written.scene.checkpointed();
    assert!(newest > before + 1, "{newest} after {before}");
}

/// The sink's progress was deleted. What lies after the checkpoint is written again, as the way out says.
#[test]
fn a_sink_that_lost_its_progress_goes_on_from_the_checkpoint_on_demand() {
    let mut written = Written::begin("sink-absent");
    written.produce_and_expect(3);
    written.await_rows("orders");
    written.stop_without_checkpoint();
    written.target.run("DELETE FROM handover_sink.progress");
    let flags = written.scene.job.offsets().map(|row| row.flags.clone());
    assert!(
        flags.values().all(|flags| flags == &["progress-lost"]),
        "{flags:?}"
    );
    let (choice, plan) = written.the_way_out("progress-lost");
    assert_eq!(plan.starts(), [(0, 10), (1, 10)].into());
    assert_eq!(plan.totals["replayed"], 0);
    let report = written.scene.job.start(&choice);
    for told in [&plan.body["warnings"], &report["warnings"]] {
        let told = told.to_string();
        assert!(
            told.contains("sink-may-duplicate") && told.contains("cannot be counted"),
            "{told}"
        );
    }
    for partition in 0..2 {
        written.expect(partition, 10..13);
    }
    written.produce_and_expect(2);
    written.await_rows("orders");
    written.scene.job.stop();
    // From now on the sink knows again.
    written.start_as_planned(&json!({}), true, "orders");
}

/// Another target, and back: the checkpoint counts each time, and what a target holds from an earlier time does not.
#[test]
fn another_target_goes_on_from_the_checkpoint() {
    let mut written = Written::begin("sink-changed");
    written.scene.job.stop();
    let of_orders = std::mem::take(&mut written.wanted);
    let warned = |plan: &Plan| plan.body["warnings"].to_string().contains("sink-changed");
    written.scene.job.put_spec(&written.spec("elsewhere"));
    assert_eq!(
        written.scene.job.offsets().sources["sink"]["because"],
        "sink-changed"
    );
    let plan = written.start_as_planned(&json!({}), true, "elsewhere");
    assert!(warned(&plan), "{:#}", plan.body);
    assert_eq!(plan.starts(), [(0, 10), (1, 10)].into());
    assert_eq!(
        written.rows("orders"),
        of_orders,
        "the former target is left alone"
    );
    written.scene.job.stop();
    assert!(!warned(&written.scene.job.plan()));

    let of_elsewhere = std::mem::replace(&mut written.wanted, of_orders);
    written.scene.job.put_spec(&written.spec("orders"));
    let plan = written.start_as_planned(&json!({}), false, "orders");
    assert!(warned(&plan), "{:#}", plan.body);
    assert_eq!(plan.starts(), [(0, 12), (1, 12)].into());
    assert_eq!(written.rows("elsewhere"), of_elsewhere);

    // Changed under a running job whose owner dies: both tables have one claim, and the new target's is the one that counts.
    // What the former one holds beyond the checkpoint is not written to the new one, too.
    written.produce_and_expect(2);
    written.await_rows("orders");
    written.scene.job.put_spec(&written.spec("elsewhere"));
    let of_orders = std::mem::replace(&mut written.wanted, of_elsewhere);
    written.scene.server.kill();
    written.scene.server.boot();
    written
        .scene
        .server
        .await_state(&written.scene.job, "running");
    written.produce_and_expect(2);
    written.await_rows("elsewhere");
    assert_eq!(written.rows("orders"), of_orders);
    let events = written.scene.job.at("/events?kind=position-moved");
    let events = written.scene.job.api.get(&events);
    let moved = &events["items"][0]["details"];
    assert_eq!(
        (&moved["reason"], &moved["to"]),
        (&json!("sink-progress"), &json!(16)),
        "{events:#}"
    );
}

/// The same table under another name of its connection: both ways on count from what the table holds.
#[test]
fn under_another_name_of_its_connection_the_table_is_counted_by_what_it_holds() {
    let mut written = Written::begin("sink-renamed");
    written.produce_and_expect(3);
    written.await_rows("orders");
    written.stop_without_checkpoint();
    let by_name = written.spec("orders");
    let renamed = with(by_name.clone(), "/sink/connection", json!("depot"));
    written.scene.job.put_spec(&renamed);
    let choices = |written: &Written| {
        let blockers = written.scene.job.plan().blockers;
        assert_eq!(blockers[0]["code"], "sink-changed", "{blockers:?}");
        blockers[0]["choices"].as_array().expect("a list").clone()
    };
    let told = written.scene.job.plan().body["next"].to_string();
    assert!(
        told.contains("nothing is written twice") && told.contains("6 offsets that the sink holds"),
        "{told}"
    );
    let [goes_on, again] = &choices(&written)[..] else {
        panic!("two ways expected");
    };
    let plan = written.scene.job.plan_of(goes_on);
    assert_eq!(plan.starts(), [(0, 13), (1, 13)].into());
    assert_eq!(
        (&plan.totals["replayed"], &plan.totals["skipped"]),
        (&json!(0), &json!(0))
    );
    let plan = written.scene.job.plan_of(again);
    assert_eq!(plan.starts(), [(0, 10), (1, 10)].into());
    let report = written.scene.job.start(again);
    for (replayed, warnings) in [
        (&plan.totals["replayed"], &plan.body["warnings"]),
        (&report["replayed"], &report["warnings"]),
    ] {
        assert_eq!(replayed, &json!(6));
        assert!(warnings.to_string().contains("sink-may-duplicate"));
    }
    for partition in 0..2 {
        written.expect(partition, 10..13);
    }
    written.produce_and_expect(2);
    written.await_rows("orders");

    written.stop_without_checkpoint();
    written.scene.job.put_spec(&by_name);
    let goes_on = choices(&written)[0].clone();
    let plan = written.start_as_planned(&goes_on, true, "orders");
    assert_eq!(plan.starts(), [(0, 15), (1, 15)].into());
    assert_eq!(plan.totals["skipped"], 0, "{:#}", plan.body);
}

/// Every way to move a position, for all partitions and for one, under exactly-once.
#[test]
fn every_start_that_moves_a_position_doubles_what_its_plan_says() {
    let mut written = Written::begin("sink-moved");
    let middle = rfc3339(now_ms());
    written.produce_and_expect(4);
    written.await_rows("orders");
    written.scene.job.stop();
    let (older, _) = written.scene.checkpointed();
    let topic = written.scene.name.clone();
    let only = json!({&topic: [1]});
    let bodies = [
        json!({"from": "earliest", "partitions": only}),
        json!({"from": "latest"}),
        json!({"from": "timestamp", "timestamp": middle}),
        json!({"from": "specific-offsets", "offsets": {&topic: {"0": 3, "1": 5}}}),
        json!({"from": "specific-offsets", "offsets": {&topic: {"1": 7}}, "partitions": only}),
        json!({"from": "shift", "by": -3, "partitions": only}),
        json!({"from": "group-offsets"}),
        json!({"from": "checkpoint", "checkpoint": older}),
        json!({"from": "checkpoint", "checkpoint": older, "partitions": only}),
        json!({}),
    ];
    for (index, body) in bodies.iter().enumerate() {
        // Unread ones for those who pass over them; and now and then the sink is ahead.
        written.produce(1);
        let by_plan = index % 2 == 0;
        written.start_as_planned(body, by_plan, "orders");
        if index % 3 == 0 {
            written.stop_without_checkpoint();
        } else {
            written.scene.job.stop();
        }
    }
    // Asked for ahead of time, and used up once.
    let mode = json!({"mode": "earliest", "apply": "next-start"});
    let asked = written
        .scene
        .job
        .api
        .put(&written.scene.job.at("/startup-mode"), &mode);
    let plan = written.start_as_planned(&json!({}), false, "orders");
    assert_eq!(asked["estimate"]["replayed"], plan.totals["replayed"]);
    assert_eq!(plan.basis, "one-shot");
    written.scene.server.kill();
    written.scene.server.boot();
    written
        .scene
        .server
        .await_state(&written.scene.job, "running");
    written.produce_and_expect(1);
    written.await_rows("orders");
}

/// A sink that does not answer: the views say so and show the rest, and a plan promises nothing.
#[test]
fn a_sink_that_is_away_is_said_to_be_unknown() {
    let target = block_on(Database::create());
    target.run("CREATE TABLE orders (part int, at bigint, value bytea)");
    let url = target.url();
    let (proxy, through) = block_on(async { proxied(&url) });
    let mut written = Written::begin_at("sink-away", target, &through);
    written.scene.job.stop();
    proxy.freeze();
    let view = written.scene.job.offsets();
    assert_eq!(
        view.sources["sink"]["status"], "timeout",
        "{:#}",
        view.sources
    );
    for source in ["checkpoint", "group", "brokers"] {
        assert_eq!(view.sources[source]["status"], "ok", "{:#}", view.sources);
    }
    let found = view.map(|row| (row.checkpointed, row.sink_committed));
    assert_eq!(found[&0], (Some(10), None));
    let plan = written.scene.job.plan();
    assert_eq!((&plan.plan, &plan.blockers), (&None, &Vec::new()));
    assert!(
        plan.body["warnings"]
            .to_string()
            .contains("sink-progress-unknown"),
        "{:#}",
        plan.body
    );
    assert_eq!(plan.starts(), [(0, 10), (1, 10)].into());
    proxy.thaw();
    written.start_as_planned(&json!({}), true, "orders");
}
