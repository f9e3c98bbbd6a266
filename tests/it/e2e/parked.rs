//! What would fail the same way again stops one partition; the others go on, and the job says so until somebody decides.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Scene, earliest, warehouse::Warehouse, with};
use crate::support::{
    kafka::Kafka,
    server::{Output, TestServer},
    wait::{SOON, eventually},
};

/// Waits until a job shows that many parked partitions, and answers the view.
pub(super) fn await_parked(scene: &Scene, partitions: usize) -> Value {
    eventually("the parked partitions", SOON, || {
        let view = scene.job.view();
        let parked = view["parked"].as_array().map_or(0, Vec::len);
        if parked == partitions && view["state"] == "running" {
            Ok(view)
        } else {
            Err(format!("{view:#}"))
        }
    })
}

fn skip_body(scene: &Scene, partition: i32, offset: i64) -> Value {
    json!({"topic": scene.name, "partition": partition, "offset": offset, "reason": "bad"})
}

/// The kinds of the job's events, oldest first.
fn events(scene: &Scene) -> Vec<String> {
    scene
        .server
        .database()
        .column("SELECT kind FROM events WHERE job_uid IS NOT NULL ORDER BY id")
}

fn metric(scene: &Scene, name: &str) -> Option<String> {
    let page = crate::support::client::block_on(async {
        let url = format!("{}/metrics", scene.server.base);
        reqwest::get(url).await.unwrap().text().await.unwrap()
    });
    let begins = format!("{name}{{job=\"{}\"", scene.name);
    let line = page.lines().find(|line| line.starts_with(&begins))?;
    line.rsplit(' ').next().map(str::to_owned)
}

/// Flink's job restarts, meets the record again, and so on for ever (FLINK-39320 made it at least say which one).
#[test]
fn a_bad_record_parks_its_partition_through_a_kill_and_is_skipped_while_the_job_runs() {
    let mut scene = Scene::new("parked", 2);
    scene.produce(0, 7);
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    // More than the client holds at once: what was fetched behind the record must not be missing later.
    scene.produce(0, 5_000);
    scene.produce(1, 3);
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    let view = await_parked(&scene, 1);
    assert_eq!(view["health"]["status"], "blocked", "{view:#}");
    let parked = &view["parked"][0];
    assert_eq!(
        (
            &parked["partition"],
            &parked["offset"],
            &parked["code"],
            &parked["phase"]
        ),
        (
            &json!(0),
            &json!(7),
            &json!("blocked-on-record"),
            &json!("decode")
        ),
        "{view:#}"
    );
    assert!(view["failure"].is_null());
    let summary = view["summary"].as_str().unwrap();
    assert!(summary.starts_with("running, but blocked: "), "{summary}");
    let lines = view["next"].to_string();
    assert!(lines.contains("/skip?wait=60s"), "{lines}");

    // The other one goes on.
    scene.produce(1, 4);
    scene.await_positions(&[(0, 7), (1, 7)]);
    scene.job.checkpoint();
    assert_eq!(scene.checkpointed().1, [(0, Some(7)), (1, Some(7))].into());
    let row = scene.job.api.get(&scene.job.at("/offsets?only=flagged"));
    assert_eq!(row["partitions"][0]["parked"]["offset"], 7, "{row:#}");
    assert_eq!(row["partitions"][0]["flags"], json!(["parked"]), "{row:#}");
    assert_eq!(
        metric(&scene, "handover_parked_partitions").as_deref(),
        Some("1")
    );

    // A server that dies comes to the record again, parks again, and reads nothing twice.
    scene.server.kill();
    scene.server.boot();
    let view = await_parked(&scene, 1);
    assert_eq!(view["parked"][0]["offset"], 7, "{view:#}");

    for (offset, partition) in [(8, 0), (7, 1)] {
        let refused = scene
            .job
            .refused("/skip", &skip_body(&scene, partition, offset));
        assert_eq!(refused.code, "not-blocked-there", "{:#}", refused.body);
    }
    let dry_run = scene.job.at("/skip?dry_run=true");
    let look = scene.job.api.post(&dry_run, &skip_body(&scene, 0, 7));
    assert_eq!(
        (&look["next_offset"], &look["dry_run"]),
        (&json!(8), &json!(true))
    );
    let refused = scene
        .job
        .api
        .refused(&Method::POST, &dry_run, Some(&skip_body(&scene, 0, 8)));
    assert_eq!(refused.code, "not-blocked-there");

    let done = scene.job.operate("/skip", &skip_body(&scene, 0, 7));
    assert_eq!(done["changed"], true, "{done:#}");
    assert_eq!(done["result"]["record"]["value_bytes"], 9, "{done:#}");
    assert_eq!(scene.job.state(), "running");
    scene.await_positions(&[(0, 5_008), (1, 7)]);
    let delivered = scene.server.log.since(0, &scene.name);
    let wanted: Vec<i64> = (0..7).chain(8..5_008).collect();
    assert_eq!(delivered[&0], wanted, "each once, but the one");
    assert_eq!(delivered[&1], (0..7).collect::<Vec<_>>());
    let view = await_parked(&scene, 0);
    assert_ne!(view["health"]["status"], "blocked", "{view:#}");
    let skips = scene.job.checkpoints("?kind=skip");
    assert_eq!(skips.len(), 1, "{skips:?}");
    assert_eq!(skips[0]["id"], done["result"]["checkpoint"]);
    let again = scene.job.operate("/skip", &skip_body(&scene, 0, 7));
    assert_eq!(again["changed"], false, "{again:#}");
    eventually("the history", SOON, || {
        let events = events(&scene);
        let told = ["partition-parked", "record-skipped", "partition-goes-on"];
        if told
            .iter()
            .all(|kind| events.iter().any(|event| event == kind))
        {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    });
}

/// A job that was stopped while a partition was parked still knows the record.
#[test]
fn a_stopped_job_is_led_past_a_parked_record() {
    let scene = Scene::new("parked-stopped", 1);
    scene.produce(0, 2);
    scene.producer.send(&scene.name, 0, b"{not json", None);
    scene.producer.flush();
    scene.produce(0, 2);
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    await_parked(&scene, 1);
    scene.job.stop();
    let view = scene.job.view();
    assert_eq!(view["parked"][0]["offset"], 2, "{view:#}");
    assert!(
        view["next"].to_string().contains("/skip?wait=60s"),
        "{view:#}"
    );
    let done = scene.job.operate("/skip", &skip_body(&scene, 0, 2));
    assert_eq!(done["changed"], true, "{done:#}");
    assert_eq!(scene.job.view()["parked"], json!([]));
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 5)]);
    let delivered = scene.server.log.since(0, &scene.name);
    assert_eq!(delivered[&0], [0, 1, 3, 4]);
}

/// The target refuses a row among thousands of two partitions: exactly its partition stops exactly there, and each other
/// record has its row once, also after a kill and a skip.
#[test]
fn a_refused_row_parks_its_partition_and_every_other_record_stands_once() {
    let mut warehouse = Warehouse::start("parked-rows");
    warehouse.scene.job.stop();
    warehouse.run("ALTER TABLE orders ADD CONSTRAINT good CHECK (value <> 'bad')");
    let scene = &warehouse.scene;
    scene.produce(0, 700);
    scene.producer.send(&scene.name, 0, b"bad", None);
    scene.producer.flush();
    scene.produce(0, 3_000);
    scene.produce(1, 4_000);
    scene.job.start(&json!({}));
    let view = await_parked(scene, 1);
    let parked = &view["parked"][0];
    assert_eq!(
        (&parked["partition"], &parked["offset"], &parked["phase"]),
        (&json!(0), &json!(700), &json!("write")),
        "{view:#}"
    );
    scene.await_positions(&[(0, 700), (1, 4_000)]);
    scene.job.checkpoint();
    assert_eq!(warehouse.offsets_of(0), (0..700).collect::<Vec<_>>());
    assert_eq!(warehouse.offsets_of(1), (0..4_000).collect::<Vec<_>>());

    warehouse.scene.server.kill();
    warehouse.scene.server.boot();
    let scene = &warehouse.scene;
    await_parked(scene, 1);
    scene.produce(1, 500);
    let done = scene.job.operate("/skip", &skip_body(scene, 0, 700));
    assert_eq!(done["changed"], true, "{done:#}");
    scene.await_positions(&[(0, 3_701), (1, 4_500)]);
    scene.job.checkpoint();
    let wanted: Vec<i64> = (0..700).chain(701..3_701).collect();
    assert_eq!(warehouse.offsets_of(0), wanted);
    assert_eq!(warehouse.offsets_of(1), (0..4_500).collect::<Vec<_>>());
    // What the store says is where the sink stands: a start has nothing to ask.
    scene.job.stop();
    assert!(scene.job.plan().blockers.is_empty());
}

#[test]
fn bad_records_are_left_out_and_counted_by_policy() {
    let scene = Scene::new("skipped-by-policy", 1);
    for number in 0..30 {
        let value: &[u8] = if number % 3 == 1 { b"{not json" } else { b"{}" };
        scene.producer.send(&scene.name, 0, value, None);
    }
    scene.producer.flush();
    let spec = with(scene.spec(&earliest()), "/source/format", json!("json"));
    let errors = json!({"on_bad_record": {"policy": "skip"}});
    scene.job.put_spec(&with(spec, "/errors", errors));
    scene.job.start(&json!({}));
    scene.await_positions(&[(0, 30)]);
    let delivered = scene.server.log.since(0, &scene.name);
    let wanted: Vec<i64> = (0..30).filter(|number| number % 3 != 1).collect();
    assert_eq!(delivered[&0], wanted);
    scene.job.checkpoint();
    assert_eq!(scene.checkpointed().1[&0], Some(30));
    let view = scene.job.view();
    assert_eq!(
        view["bad_records"],
        json!({"skipped": 10, "dead_lettered": 0}),
        "{view:#}"
    );
    assert_ne!(view["health"]["status"], "blocked");
    eventually("the history", SOON, || {
        let events = events(&scene);
        if events.iter().any(|event| event == "records-skipped") {
            Ok(())
        } else {
            Err(format!("{events:?}"))
        }
    });
}

/// More than sink, engine and client hold together with the tuning below.
const RECORDS: i64 = 12_000;
const LEFT: i64 = 50;

/// A job whose sink stands still while the records that it has not read are deleted.
fn overtaken(name: &str, on_out_of_range: &str) -> Scene {
    let kafka = Kafka::shared();
    let server = TestServer::start_on(&kafka, Output::Unread);
    let mut scene = Scene::with(server, kafka, name, 2);
    for _ in 0..RECORDS {
        scene.producer.send(&scene.name, 0, &[b'x'; 2048], None);
    }
    scene.producer.flush();
    let mut spec = scene.spec(&earliest());
    spec["source"]["on_out_of_range"] = json!(on_out_of_range);
    spec["source"]["properties"] = json!({
        "queued.max.messages.kbytes": "1024",
        "fetch.max.bytes": "1048576",
        "max.partition.fetch.bytes": "65536",
    });
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    eventually("it reads", SOON, || match scene.job.view() {
        view if view["records"].as_i64() > Some(0) => Ok(()),
        view => Err(format!("{view:#}")),
    });
    scene.kafka.delete_records(&scene.name, 0, RECORDS - LEFT);
    scene.server.follow_output();
    scene
}

/// redpanda-data/connect issue 2366: records that expire under a running consumer. It does not jump: it says what is lost.
#[test]
fn a_running_job_that_is_overtaken_says_what_is_lost_and_the_other_partition_goes_on() {
    let scene = overtaken("overtaken-fail", "fail");
    let view = eventually("the lost range", SOON, || {
        let view = scene.job.view();
        if view["parked"][0]["lost"]["to"] == RECORDS - LEFT {
            Ok(view)
        } else {
            Err(format!("{view:#}"))
        }
    });
    let parked = &view["parked"][0];
    assert_eq!(parked["code"], "offset-out-of-range", "{view:#}");
    let lost = &parked["lost"];
    assert_eq!(lost["side"], "below-earliest", "{view:#}");
    let from = lost["from"].as_i64().unwrap();
    assert_eq!(parked["offset"], from, "{view:#}");
    assert_eq!(lost["offsets"], RECORDS - LEFT - from, "{view:#}");
    let delivered = scene.server.log.since(0, &scene.name);
    assert_eq!(delivered[&0], (0..from).collect::<Vec<_>>(), "up to there");
    scene.produce(1, 3);
    scene.await_positions(&[(0, from), (1, 3)]);

    scene.job.checkpoint();

    // A server that comes up does not stand still for it, and an operator's start does not ask again: it is known.
    let mut scene = scene;
    scene.server.kill();
    scene.server.boot();
    scene.produce(1, 2);
    scene.await_positions(&[(0, from), (1, 5)]);
    scene.job.stop();
    let plan = scene.job.plan();
    assert_eq!(plan.blockers.len(), 0, "{:#}", plan.body);
    assert_eq!(plan.totals["parked_partitions"], 1, "{:#}", plan.body);
    let planned = &plan.body["partitions"][0];
    assert_eq!(
        (
            &planned["kept"],
            &planned["start_at"],
            &planned["parked"]["again"]
        ),
        (&json!(from), &Value::Null, &json!(true)),
        "{planned:#}"
    );
    assert_eq!(
        plan.body["warnings"][0]["code"], "offset-out-of-range",
        "{:#}",
        plan.body
    );
    scene.job.start(&json!({"plan": plan.body["plan"]}));
    let view = await_parked(&scene, 1);
    assert_eq!(view["parked"][0]["lost"], *lost, "{view:#}");
    eventually("the history tells it once", SOON, || {
        let events = events(&scene);
        let told = events.iter().filter(|kind| *kind == "partition-parked");
        match told.count() {
            1 => Ok(()),
            _ => Err(format!("{events:?}")),
        }
    });
    // The line that it proposes is the way on.
    let lines = view["next"].to_string();
    assert!(
        lines.contains(r#"{\"on_out_of_range\":\"earliest\"}"#),
        "{lines}"
    );
    let mark = scene.server.log.mark();
    scene
        .job
        .operate("/restart", &json!({"on_out_of_range": "earliest"}));
    scene.await_exactly(mark, &[(0, RECORDS - LEFT..RECORDS)]);
}

/// What expired while the server was away is noticed by a start that nobody asked for.
#[test]
fn a_server_that_comes_up_parks_what_its_log_does_not_hold_and_a_policy_lets_it_go_on() {
    let mut scene = Scene::new("expired-away", 2);
    scene.produce_all(10);
    scene.run(&earliest());
    scene.await_exactly(0, &[(0, 0..10), (1, 0..10)]);
    scene.job.checkpoint();
    scene.server.kill();
    scene.produce_all(10);
    scene.kafka.delete_records(&scene.name, 0, 15);
    let mark = scene.server.log.mark();
    scene.server.boot();
    let view = await_parked(&scene, 1);
    let parked = &view["parked"][0];
    assert_eq!(
        (&parked["offset"], &parked["code"], &parked["lost"]["to"]),
        (&json!(10), &json!("offset-out-of-range"), &json!(15)),
        "{view:#}"
    );
    assert_eq!(view["health"]["status"], "blocked", "{view:#}");
    scene.await_exactly(mark, &[(1, 10..20)]);
    scene.job.checkpoint();
    assert_eq!(
        scene.checkpointed().1,
        [(0, Some(10)), (1, Some(20))].into()
    );
    eventually("the history tells it", SOON, || {
        let events = events(&scene);
        let told = events.iter().filter(|kind| *kind == "partition-parked");
        match told.count() {
            1 => Ok(()),
            _ => Err(format!("{events:?}")),
        }
    });
    // The policy counts at once, for what is parked too.
    let spec = with(
        scene.spec(&earliest()),
        "/source/on_out_of_range",
        json!("earliest"),
    );
    let applied = scene.job.put_spec(&spec);
    assert_eq!(applied["applies"], "now", "{applied:#}");
    scene.await_exactly(mark, &[(0, 15..20), (1, 10..20)]);
    scene.await_positions(&[(0, 20), (1, 20)]);
    assert_eq!(await_parked(&scene, 0)["positions_moved"], 1);
}

/// Whoever wants the whole job to stop has it stand still.
#[test]
fn a_job_that_stops_as_a_whole_does_not_come_up_without_one_of_its_partitions() {
    let mut scene = Scene::new("expired-block", 2);
    scene.produce_all(10);
    let spec = with(scene.spec(&earliest()), "/errors", json!({"block": "job"}));
    scene.job.put_spec(&spec);
    scene.job.start(&json!({}));
    scene.await_exactly(0, &[(0, 0..10), (1, 0..10)]);
    scene.job.checkpoint();
    scene.server.kill();
    scene.produce_all(10);
    scene.kafka.delete_records(&scene.name, 0, 15);
    scene.server.boot();
    scene.server.await_state(&scene.job, "failed");
    assert_eq!(scene.job.view()["failure"]["code"], "offset-out-of-range");
}

#[test]
fn a_running_job_that_is_overtaken_goes_on_as_its_spec_says() {
    for (policy, goes_on_at) in [("earliest", RECORDS - LEFT), ("latest", RECORDS)] {
        let scene = overtaken(&format!("overtaken-{policy}"), policy);
        eventually("it goes on", SOON, || match scene.job.offsets() {
            view if view.row(0).position == Some(RECORDS) => Ok(()),
            view => Err(format!("{:?}", view.row(0))),
        });
        scene.produce(0, 5);
        scene.await_positions(&[(0, RECORDS + 5), (1, 0)]);
        let view = scene.job.view();
        assert_eq!(view["positions_moved"], 1, "{view:#}");
        assert_eq!(view["parked"], json!([]), "{view:#}");
        let resets = scene.job.checkpoints("?kind=reset&offsets=true");
        assert_eq!(resets.len(), 1, "{resets:?}");
        let decided = &resets[0]["offsets"][&scene.name]["0"]["next_offset"];
        assert_eq!(*decided, goes_on_at, "{resets:?}");
        let told: Vec<String> = eventually("the history", SOON, || {
            let told: Vec<String> = scene.server.database().column(
                "SELECT details::text FROM events WHERE kind = 'position-moved' ORDER BY id",
            );
            if told.is_empty() {
                Err("nothing")
            } else {
                Ok(told)
            }
        });
        assert_eq!(told.len(), 1);
        let told: Value = serde_json::from_str(&told[0]).unwrap();
        let (from, to) = (told["from"].as_i64().unwrap(), told["to"].as_i64().unwrap());
        assert_eq!(to, goes_on_at, "{told:#}");
        assert_eq!(told["lost"]["offsets"], RECORDS - LEFT - from, "{told:#}");
        let delivered = scene.server.log.since(0, &scene.name);
        let wanted: Vec<i64> = (0..from).chain(to..RECORDS + 5).collect();
        assert_eq!(delivered[&0], wanted);
    }
}
