//! A table that somebody has locked; and a target whose server is down and comes back.

use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use super::{
    Scene,
    table::{self, await_rows, databases},
};
use crate::support::{Cluster, Database, client::block_on};

/// The job waits, and says why.
fn await_why(scene: &Scene, why: &str) {
    let view = scene.await_view("the job waits", |view| {
        let words = view["summary"].as_str().expect("a sentence");
        words.starts_with("running, and waits: The sink does not take the records (")
            && words.contains(why)
    });
    let next = view["next"][0].to_string();
    assert!(next.contains("goes on by itself"), "{view:#}");
}

pub(super) fn run(file: &'static str) {
    let (target, store) = databases();
    let scene = table::scene("target-locked", &target.url(), &store);
    scene.produce(0, 10);
    scene.put_and_start(&table::spec(&scene, "earliest"));
    await_rows(&target, 10);
    let (holder, pid): (PgConnection, i32) = block_on(async {
        let mut holder = PgConnection::connect(&target.url())
            .await
            .expect("a session");
        holder.execute("BEGIN").await.expect("a transaction");
        holder
            .execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            .await
            .expect("the lock");
        let row = holder.fetch_one("SELECT pg_backend_pid()").await;
        let pid = row.expect("its pid").get(0);
        (holder, pid)
    });
    scene.produce(0, 10);
    await_why(&scene, "55P03");

    let mut page = scene.page(file);
    page.run("Look");
    page.next_needs("TARGET", &target.url());
    let holders = page.run_one("Act").join("\n");
    assert!(
        holders.starts_with(&format!("{pid} "))
            && holders.contains("idle in transaction AccessExclusiveLock"),
        "{holders}"
    );
    page.next_needs("HOLDER", &pid.to_string());
    page.run("Act");
    page.run("Verify");
    page.end();
    await_rows(&target, 20);
    assert_eq!(scene.job.view()["next"], serde_json::json!([]));
    drop(holder);
}

/// A target that does not answer has refused nothing, and is not said to have.
#[test]
fn a_target_that_is_down_is_said_to_be_away_and_comes_back() {
    let cluster = Cluster::create();
    let store = block_on(Database::create());
    block_on(async {
        let mut target = PgConnection::connect(cluster.url())
            .await
            .expect("it is there");
        target.execute(table::CREATE).await.expect("a table");
    });
    let scene = table::scene("target-down", cluster.url(), &store);
    scene.produce(0, 10);
    scene.put_and_start(&table::spec(&scene, "earliest"));
    scene.await_view("it has read", |view| view["lag"]["checkpoint"] == 0);
    cluster.control(&["kill"]);
    scene.produce(0, 10);
    await_why(&scene, "the sink cannot be reached: connect to database");
    let mut page = scene.page("target-gone.md");
    let said = page.run("Look").join("\n");
    assert!(said.contains(r#""sink": "unreachable""#), "{said}");
    page.next_stops("TARGET");
    page.next_stops("HOLDER");

    cluster.control(&["up", "--fast"]);
    page.run("Verify");
    page.end();
    let rows: i64 = block_on(async {
        let mut target = PgConnection::connect(cluster.url())
            .await
            .expect("it is there");
        let row = target
            .fetch_one("SELECT count(DISTINCT pos) * 1000 + count(*) FROM orders")
            .await;
        row.expect("a number").get(0)
    });
    assert_eq!(rows, 20_020, "each once");
}
