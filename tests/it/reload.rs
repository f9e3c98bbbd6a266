//! Changes of the configuration while the server runs: edit the file, send SIGHUP, look at the log and at what the API says.

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection};

use crate::support::{
    Database,
    client::{Job, block_on},
    kafka::Kafka,
    producer::Producer,
    server::TestServer,
    unique,
    wait::{SOON, eventually},
};

const RELOADED: &str = "configuration reloaded";
const REFUSED: &str = "configuration not reloaded, nothing changes";

/// Sends the signal and answers what is logged from then on until `lines` lines say `what`.
fn reload(server: &TestServer, what: &str, lines: usize) -> Vec<String> {
    let before = server.logged().len();
    server.hang_up();
    eventually(&format!("{lines} times '{what}'"), SOON, || {
        let log = server.logged();
        let new = &log[before..];
        // The last line may be half written.
        let complete = &new[..new.rfind('\n').map_or(0, |end| end + 1)];
        let said = complete.matches(what).count();
        if said == lines {
            Ok(complete.lines().map(str::to_owned).collect())
        } else {
            Err(new.to_owned())
        }
    })
}

fn line_with<'a>(lines: &'a [String], what: &str) -> &'a str {
    let found: Vec<&String> = lines.iter().filter(|line| line.contains(what)).collect();
    assert_eq!(found.len(), 1, "one line says '{what}': {lines:#?}");
    found[0]
}

fn with_connection(config: &str, name: &str, kafka: &Kafka) -> String {
    format!(
        "{config}\n[connections.{name}]\ntype = \"kafka\"\nbootstrap_servers = \"{}\"\n",
        kafka.bootstrap
    )
}

fn spec(connection: &str, topic: &str) -> Value {
    json!({
        "source": {"connection": connection, "topics": [topic]},
        "startup_mode": {"mode": "earliest"},
        "checkpoint": {"interval": "1h"},
        "sink": {"type": "log"},
    })
}

fn refused_spec(job: &Job, spec: &Value) -> String {
    let problem = job.api.refused(&Method::PUT, &job.at("/spec"), Some(spec));
    assert_eq!(problem.code, "invalid-spec", "{:#}", problem.body);
    problem.body.to_string()
}

#[test]
fn connections_change_while_jobs_run() {
    let server = TestServer::start();
    let kafka = Kafka::shared();
    let topic = unique("reload");
    kafka.create_topic(&topic, 1);
    Producer::new(&kafka).produce(&topic, 0, 10);
    let first = server.config();
    let job = server.job(&topic);

    // Added: named at once, by a job that runs.
    let said = refused_spec(&job, &spec("second", &topic));
    assert!(said.contains("no Kafka connection 'second'"), "{said}");
    let both = with_connection(&first, "second", &kafka);
    server.write_config(&both);
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, RELOADED);
    assert!(
        line.contains("config.changed=connections.second (added)"),
        "{line}"
    );
    assert!(!line.contains("old_clients"), "{line}");
    assert!(!line.contains(&kafka.bootstrap), "names only: {line}");
    job.put_spec(&spec("second", &topic));
    job.start(&json!({}));
    server
        .log
        .await_complete(0, &topic, &[(0, 10)].into_iter().collect(), SOON);

    // Removed while a spec names it: refused.
    server.write_config(&first);
    let log = reload(&server, REFUSED, 1);
    let line = line_with(&log, REFUSED);
    assert!(
        line.contains("connections.second: ") && line.contains(&topic),
        "{line}"
    );

    // Changed: the job runs on with what it has, and says so.
    let changed = format!("{both}properties = {{ \"socket.timeout.ms\" = 7000 }}\n");
    server.write_config(&changed);
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, RELOADED);
    assert!(line.contains("connections.second (changed)"), "{line}");
    assert!(
        line.contains(&format!("jobs.with_old_clients=\"{topic}\"")),
        "{line}"
    );
    assert!(!line.contains("7000"), "names only: {line}");
    assert_eq!(job.state(), "running");
    assert_eq!(job.offsets().row(0).latest, Some(10), "measured anew");

    // No spec names it any more, but the run does until it is stopped.
    job.put_spec(&spec("main", &topic));
    server.write_config(&first);
    reload(&server, REFUSED, 1);
    job.stop();
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, RELOADED);
    assert!(line.contains("connections.second (removed)"), "{line}");
    let said = refused_spec(&job, &spec("second", &topic));
    assert!(said.contains("no Kafka connection 'second'"), "{said}");
}

#[test]
fn target_databases_change_while_jobs_run() {
    let server = TestServer::start();
    let kafka = Kafka::shared();
    let topic = unique("reload");
    kafka.create_topic(&topic, 1);
    Producer::new(&kafka).produce(&topic, 0, 10);
    let target = block_on(Database::create());
    let look = async |sql: &'static str| {
        let mut connection = PgConnection::connect(&target.url())
            .await
            .expect("a session");
        connection.fetch_one(sql).await
    };
    block_on(look("CREATE TABLE public.sink (pos bigint)")).expect_err("no row");
    let sink = json!({
        "type": "postgres", "connection": "warehouse", "table": "public.sink",
        "mapping": {"mode": "raw", "columns": {"pos": "@offset"}}
    });
    let mut with_target = spec("main", &topic);
    with_target["sink"] = sink;
    let job = server.job(&topic);
    let said = refused_spec(&job, &with_target);
    assert!(
        said.contains("no PostgreSQL connection 'warehouse'"),
        "{said}"
    );

    // Added, and used at once.
    let first = server.config();
    let url = target.url();
    let both = format!("{first}\n[connections.warehouse]\ntype = \"postgres\"\nurl = \"{url}\"\n");
    server.write_config(&both);
    let log = reload(&server, RELOADED, 1);
    line_with(&log, "connections.warehouse (added)");
    job.put_spec(&with_target);
    job.start(&json!({}));
    eventually("the rows", SOON, || {
        let rows = block_on(look("SELECT count(*) FROM public.sink")).expect("a row");
        let rows: i64 = sqlx::Row::get(&rows, 0);
        if rows == 10 { Ok(()) } else { Err(rows) }
    });

    // Changed: the run keeps its session, and is named.
    let slash = if url.contains('?') { '&' } else { '?' };
    let changed = both.replace(&url, &format!("{url}{slash}application_name=blue"));
    server.write_config(&changed);
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, "connections.warehouse (changed)");
    assert!(
        line.contains(&format!("jobs.with_old_clients=\"{topic}\"")),
        "{line}"
    );
    assert!(!line.contains("blue"), "names only: {line}");

    // Removed while a spec names it, or it became something else: refused.
    let other = format!(
        "{first}\n[connections.warehouse]\ntype = \"kafka\"\nbootstrap_servers = \"{}\"\n",
        kafka.bootstrap
    );
    for gone in [&first, &other] {
        server.write_config(gone);
        let log = reload(&server, REFUSED, 1);
        let line = line_with(&log, REFUSED);
        assert!(
            line.contains("connections.warehouse: ") && line.contains(&topic),
            "{line}"
        );
    }
    job.stop();
    job.put_spec(&spec("main", &topic));
    server.write_config(&first);
    let log = reload(&server, RELOADED, 1);
    line_with(&log, "connections.warehouse (removed)");
}

#[test]
fn a_configuration_that_is_faulty_or_asks_too_much_changes_nothing() {
    let server = TestServer::start();
    let kafka = Kafka::shared();
    let first = server.config();
    let job = server.job(&unique("reload"));
    let good = with_connection(&first, "second", &kafka).replace("\"info\"", "\"off\"");

    // Every fault is named, and the parts that are in order do not count either.
    server.write_config(&format!(
        "{good}oops = 1\n[connections.third]\ntype = \"s3\"\n"
    ));
    let log = reload(&server, REFUSED, 2);
    line_with(&log, "connections.second.oops: no such key");
    line_with(
        &log,
        "connections.third.type: \"s3\" is no type of connection",
    );

    // So is every setting that has to wait for a restart.
    let fixed = good
        .replace("\"20s\"", "\"21s\"")
        .replace("format = \"text\"", "format = \"json\"")
        + "\n[lease]\nttl = \"11s\"\n";
    server.write_config(&fixed);
    let log = reload(&server, REFUSED, 3);
    for setting in ["server.shutdown_grace", "log.format", "lease.ttl"] {
        line_with(&log, &format!("{setting}: is different"));
    }

    std::fs::remove_file(server.config_path()).expect("a file");
    let log = reload(&server, REFUSED, 1);
    line_with(&log, "cannot be read");

    let said = refused_spec(&job, &spec("second", "any"));
    assert!(said.contains("it has: main\""), "{said}");
    server.write_config(&first);
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, RELOADED);
    assert!(line.contains("config.changed=nothing"), "{line}");
}

#[test]
fn a_changed_log_filter_counts_at_once() {
    const STEP: &str = "SIGHUP: the configuration is read again";
    let server = TestServer::start();
    let quiet = server.config();
    let loud = quiet.replace("\"info\"", "\"info,handover::app=debug\"");
    server.write_config(&loud);
    let log = reload(&server, RELOADED, 1);
    let line = line_with(&log, RELOADED);
    assert!(line.contains("config.changed=log.filter"), "{line}");
    assert!(!log.iter().any(|line| line.contains(STEP)), "{log:#?}");

    let log = reload(&server, RELOADED, 1);
    line_with(&log, STEP);

    server.write_config(&quiet);
    reload(&server, RELOADED, 1);
    let log = reload(&server, RELOADED, 1);
    assert!(!log.iter().any(|line| line.contains(STEP)), "{log:#?}");
}
