//! A target that is too slow for whole transactions gets smaller ones, and the job says who is slow and what helps.

use std::time::{Duration, Instant};

use serde_json::json;

use super::warehouse::Warehouse;
use crate::support::wait::{SOON, eventually};

/// Each row takes 5 ms, and a statement is cancelled after 3.5 s, as the time limit of a statement would: a transaction of
/// 1000 rows, as the spec allows, never gets through.
const SLOW: &str = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
   BEGIN
     PERFORM pg_sleep(0.005);
     IF clock_timestamp() > statement_timestamp() + interval '3.5 s' THEN
       RAISE 'canceling statement due to statement timeout' USING ERRCODE = '57014';
     END IF;
     RETURN NEW;
   END $$;
 CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()";

/// What is said takes ten seconds of watching, and some more for a busy machine.
const WATCHED: Duration = Duration::from_secs(60);

#[test]
fn a_table_that_is_too_slow_for_its_transactions_is_written_to_slowly_and_named() {
    let warehouse = Warehouse::quiet("slow-target");
    let scene = &warehouse.scene;
    warehouse.run(SLOW);
    scene.produce(0, 2_500);

    eventually("the job says what is too slow", SOON, || {
        let waiting = scene.job.view()["waiting"].to_string();
        let says = waiting.contains("SQLSTATE 57014") && waiting.contains("the next one has 500");
        says.then_some(()).ok_or(waiting)
    });
    let view = eventually("the sink is what holds the job back", WATCHED, || {
        let view = scene.job.view();
        let is_sink = view["bottleneck"]["kind"] == "sink";
        is_sink
            .then(|| view.clone())
            .ok_or_else(|| format!("{:#} {:#}", view["bottleneck"], view["stages"]))
    });
    let bottleneck = &view["bottleneck"];
    let hint = bottleneck["hint"].as_str().unwrap_or_default();
    assert!(
        hint.contains("where they take long, a smaller one"),
        "{view:#}"
    );
    let first = &bottleneck["settings"][0];
    assert_eq!(*first, "/sink/batch/max_rows", "{view:#}");
    eventually("all is read and not written", WATCHED, || {
        let view = scene.job.view();
        let summary = view["summary"].as_str().unwrap_or_default();
        let rows = warehouse.rows();
        assert!(rows < 2_500, "{rows} are written: {summary}");
        let says = summary == "running; everything readable is read, and not all of it written yet";
        says.then_some(()).ok_or_else(|| summary.to_owned())
    });

    // What was read is written first; the next run has transactions of the new size from its beginning.
    let began = Instant::now();
    let report = scene.job.stop();
    assert_eq!(report["will_replay"], 0, "{report:#}");
    let smaller = json!({"sink": {"batch": {"max_rows": 100}}});
    scene.job.api.patch(&scene.job.at("/spec"), &smaller);
    scene.job.start(&json!({}));
    scene.produce(1, 200);
    let ends = scene.ends();
    eventually("all rows", WATCHED, || match warehouse.rows() {
        2_700 => Ok(()),
        rows => Err(rows),
    });
    assert!(began.elapsed() < WATCHED, "{:?}", began.elapsed());
    warehouse.assert_one_row_each(&ends);
    let largest: Vec<i64> = warehouse.target.column(
        "SELECT max(rows) FROM (SELECT count(*) AS rows FROM orders WHERE part = 1 GROUP BY xmin) AS one",
    );
    assert!(largest[0] <= 100, "{largest:?}");
}
