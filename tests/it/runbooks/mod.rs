//! The pages of `docs/runbooks/` in the situations they are for: their lines are run as they are written, by one shell, on
//! the real server; each must succeed and print what the page says, and afterwards the records say whether it helped.

mod bad_record;
mod broker_gone;
mod crash_loop;
mod fell_behind;
mod out_of_range;
mod page;
mod postgresql_failover;
mod replay_from_a_time;
mod startup_mode_without_effect;
mod table;
mod target_gone;
mod topic_gone;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use serde_json::{Value, json};

use self::page::Page;
use crate::support::{
    client::Job,
    kafka::Kafka,
    producer::Producer,
    server::TestServer,
    unique,
    wait::{SOON, eventually},
};

/// Each page with the module that makes its situation.
macro_rules! runbooks {
    ($($file:literal => $module:ident,)*) => {
        const PAGES: &[&str] = &[$($file,)*];

        mod as_written {
            $(
                #[test]
                fn $module() {
                    super::$module::run($file);
                }
            )*
        }
    };
}

runbooks! {
    "bad-record.md" => bad_record,
    "broker-gone.md" => broker_gone,
    "crash-loop.md" => crash_loop,
    "fell-behind.md" => fell_behind,
    "out-of-range.md" => out_of_range,
    "postgresql-failover.md" => postgresql_failover,
    "replay-from-a-time.md" => replay_from_a_time,
    "startup-mode-without-effect.md" => startup_mode_without_effect,
    "target-gone.md" => target_gone,
    "topic-gone.md" => topic_gone,
}

/// A server and a topic that one job reads. Topic, job and group have the same name.
struct Scene {
    server: TestServer,
    kafka: Kafka,
    producer: Producer,
    name: String,
    job: Job,
}

impl Scene {
    fn new(name: &str, partitions: i32) -> Self {
        Self::with(TestServer::start(), Kafka::shared(), name, partitions)
    }

    fn with(server: TestServer, kafka: Kafka, name: &str, partitions: i32) -> Self {
        let name = unique(name);
        kafka.create_topic(&name, partitions);
        let producer = Producer::new(&kafka);
        let job = server.job(&name);
        Self {
            server,
            kafka,
            producer,
            name,
            job,
        }
    }

    fn page(&self, file: &'static str) -> Page {
        Page::open(file, &self.server.base, &self.name)
    }

    fn spec(&self, mode: &str) -> Value {
        json!({
            "source": {"connection": "main", "topics": [self.name]},
            "startup_mode": {"mode": mode},
            "checkpoint": {"interval": "500ms"},
            "sink": {"type": "log"},
        })
    }

    fn put_and_start(&self, spec: &Value) {
        self.job.put_spec(spec);
        self.job.start(&json!({}));
    }

    fn produce(&self, partition: i32, count: usize) {
        self.producer.produce(&self.name, partition, count);
    }

    /// Waits until exactly these offsets were delivered since the mark.
    fn await_exactly(&self, mark: usize, wanted: &[(i32, Range<i64>)]) {
        let wanted = wanted
            .iter()
            .filter(|(_, range)| !range.is_empty())
            .map(|(partition, range)| (*partition, range.clone().collect()))
            .collect();
        self.server
            .log
            .await_exactly(mark, &self.name, &wanted, SOON);
    }

    /// Waits until the job's view is as wanted.
    fn await_view(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        eventually(what, SOON, || match self.job.view() {
            view if wanted(&view) => Ok(view),
            view => Err(format!("{view:#}")),
        })
    }

    /// The newest completed checkpoint's offsets.
    fn checkpointed(&self) -> BTreeMap<i32, Option<i64>> {
        self.job
            .latest_checkpoint(&self.name)
            .expect("a completed checkpoint")
            .1
    }
}

/// The codes that a page says it is for: the words between backticks of its line `Codes:`.
fn codes(text: &str) -> BTreeSet<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("Codes: "));
    let line = line.expect("a line 'Codes:'");
    line.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_page_has_a_test_and_stands_in_the_index() {
    let index = page::read("README.md");
    let mut found: Vec<String> = std::fs::read_dir(page::folder())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.into_string().expect("a name in UTF-8"))
        .filter(|name| name != "README.md")
        .collect();
    found.sort();
    assert_eq!(found, PAGES);
    for file in PAGES {
        assert!(index.contains(&format!("]({file})")), "{file}");
    }
}

/// The lines that come before any page.
#[test]
fn the_lines_of_the_index_work() {
    let scene = Scene::new("index", 1);
    scene.job.put_spec(&scene.spec("earliest"));
    let mut index = scene.page("README.md");
    index.run("Begin");
    index.run("Find the page");
    index.end();
}

/// Whoever sees a code finds the page, and whoever reads the page meets the codes that lead there.
#[test]
fn the_problem_pages_name_the_runbooks() {
    let server = TestServer::start();
    let list = server.api.get("/problems");
    let mut named: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for item in list["items"].as_array().expect("a list") {
        if let Some(file) = item["runbook"].as_str() {
            let file = file.strip_prefix("docs/runbooks/").expect("the folder");
            let code = item["code"].as_str().expect("a code");
            named.entry(file).or_default().insert(code.to_owned());
        }
    }
    let said = PAGES
        .iter()
        .map(|file| (*file, codes(&page::read(file))))
        .collect();
    assert_eq!(named, said);
}

#[test]
fn lines_wait_for_conditions_only_and_not_for_ever() {
    for file in PAGES {
        for line in page::read(file).lines() {
            let bounded = line.starts_with("timeout ") && line.contains("until ");
            assert!(bounded || !line.contains("sleep"), "{file}: {line}");
        }
    }
}
