//! A run under kills, with witnesses: a writer with a journal, readers of store, group, API and sink, and a driver that kills
//! the server at random times. What they saw goes to the oracle (`crates/oracle`).
//!
//! Everything random comes from one seed, which the verdict prints. (How far the server has come when it is killed is up to
//! the machine: the same seed is the same plan, not the same run.)

mod api;
mod clock;
mod group;
mod sink;
mod store;
mod watcher;
mod writer;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use fastrand::Rng;
use oracle::{
    Run, Verdict,
    run::{Counters, Event, Fate, Fault, Guarantee, Look, Plan, Row, Vector, Written},
};
use serde_json::{Value, json};

use self::{
    api::ApiReader,
    clock::Clock,
    group::GroupReader,
    sink::{LogReader, rows_of_log},
    store::{Standing, StoreReader, sessions},
    watcher::Watcher,
    writer::{Pace, Writer},
};
use super::{
    Database,
    client::{Job, block_on},
    kafka::Kafka,
    server::{Output, TestServer},
    unique,
    wait::{SOON, breathe, eventually},
};

/// The kinds of kills, by how far the server had come.
const KILLED_RUNNING: &str = "kill-running";
const KILLED_RECOVERING: &str = "kill-recovering";
const KILLED_BOOTING: &str = "kill-booting";
/// From the last kill on, or from the writer's end.
const LIVENESS: Duration = Duration::from_secs(30);

/// What a run does.
#[derive(Debug, Clone)]
pub(crate) struct Chaos {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) kills: u64,
    pub(crate) sink: Target,
    /// A life lasts at least and at most so many milliseconds.
    pub(crate) life_ms: (u64, u64),
}

/// The sink under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Log,
    Blackhole,
}

impl Target {
    fn spec(self) -> Value {
        match self {
            Self::Log => json!({"type": "log"}),
            Self::Blackhole => json!({"type": "blackhole"}),
        }
    }

    fn guarantee(self) -> Guarantee {
        match self {
            Self::Log => Guarantee::AtLeastOnce,
            Self::Blackhole => Guarantee::Counted,
        }
    }
}

const PARTITIONS: i32 = 4;
const PARALLELISM: u32 = 2;

impl Chaos {
    /// Runs it to its end and has it judged.
    ///
    /// # Panics
    /// With the verdict, when it is against the server. The evidence is kept then, and its folder named.
    pub(crate) fn judge(self) -> Verdict {
        let run = self.run();
        let verdict = oracle::judge(&run);
        println!("{verdict}");
        if !verdict.passed() {
            let folder = keep(&run);
            panic!("{verdict}\nevidence: {}", folder.display());
        }
        verdict
    }

    fn run(self) -> Run {
        println!("{}: seed {}", self.name, self.seed);
        let mut stage = Stage::set(self);
        // On a busy machine servers boot slowly, and more of the kills strike before there is anything to strike.
        while !stage.is_enough() {
            stage.kill();
        }
        stage.finish()
    }
}

/// Writes the evidence where it outlives the test.
fn keep(run: &Run) -> PathBuf {
    let root = std::env::var_os("HANDOVER_CHAOS_EVIDENCE");
    let root = root.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = root.join(format!("evidence-{}", run.plan.run));
    std::fs::create_dir_all(&folder).expect("a folder");
    oracle::write(&folder, run).expect("the evidence is written");
    folder
}

/// Server, writer and witnesses at work.
struct Stage {
    chaos: Chaos,
    random: Rng,
    clock: Clock,
    server: TestServer,
    job: Job,
    /// Run, topic, job and group.
    name: String,
    writer: Writer,
    store: StoreReader,
    store_watcher: Watcher<Event>,
    group_watcher: Watcher<Event>,
    api_watcher: Watcher<Event>,
    sink_watcher: Option<Watcher<Look>>,
    faults: Vec<Fault>,
    /// Where the job stood at the last kill.
    last: Standing,
    database: Database,
}

impl Stage {
    fn set(chaos: Chaos) -> Self {
        let kafka = Kafka::shared();
        let database = block_on(Database::create());
        let name = unique(chaos.name);
        kafka.create_topic(&name, PARTITIONS);
        let server = TestServer::start_with(&kafka, &database.url(), Output::Followed);
        let job = server.job(&name);
        job.put_spec(&json!({
            "source": {"connection": "main", "topics": [name], "group_id": name},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"interval": "100ms", "min_pause": "10ms"},
            "parallelism": PARALLELISM,
            "sink": chaos.sink.spec(),
        }));
        let clock = Clock::start();
        let url = database.url();
        let uid = store::job_uid(&url, &name);
        let mut of_store = StoreReader::new(&url, uid, clock);
        let store_watcher = Watcher::start("the store", Duration::from_millis(15), move || {
            of_store.look()
        });
        let mut of_group = GroupReader::new(&kafka, &name, &name, PARTITIONS, clock);
        let group_watcher = Watcher::start("the group", Duration::from_millis(30), move || {
            of_group.look()
        });
        let mut of_api = ApiReader::new(&job, &name, clock);
        let api_watcher =
            Watcher::start("the API", Duration::from_millis(25), move || of_api.look());
        let sink_watcher = (chaos.sink == Target::Log).then(|| {
            let mut of_sink = LogReader::new(&server.log, clock);
            Watcher::start("the sink", Duration::from_millis(250), move || {
                of_sink.look()
            })
        });
        // All of them have looked before anything happens.
        store_watcher.await_another(1);
        group_watcher.await_another(1);
        job.start(&json!({}));
        let pace = Pace {
            topic: name.clone(),
            run: name.clone(),
            partitions: PARTITIONS,
            pause: Duration::from_millis(20),
            seed: chaos.seed ^ 1,
        };
        Self {
            random: Rng::with_seed(chaos.seed),
            writer: Writer::start(&kafka, &pace),
            store: StoreReader::new(&url, uid, clock),
            chaos,
            clock,
            server,
            job,
            name,
            store_watcher,
            group_watcher,
            api_watcher,
            sink_watcher,
            faults: Vec::new(),
            last: Standing::default(),
            database,
        }
    }

    /// Whether the run has been as rough as planned, or is given up.
    fn is_enough(&self) -> bool {
        let planned = self.chaos.kills;
        let kills = self.faults.len() as u64;
        let struck = |fault: &&Fault| fault.effective && fault.kind == KILLED_RUNNING;
        let running = self.faults.iter().filter(struck).count() as u64;
        kills >= planned && (running >= planned_running(planned) || kills >= planned * 2)
    }

    /// Lets the server live for a while, kills it and starts it again.
    fn kill(&mut self) {
        let (least, most) = self.chaos.life_ms;
        let life = Duration::from_millis(self.random.u64(least..=most));
        breathe(life);
        let at = self.clock.now();
        self.server.kill();
        // Nobody writes any more: this is what the dead server left.
        let left = self.store.standing();
        let kind = match &left.start {
            Some(_) => KILLED_RUNNING,
            None if left.epoch > self.last.epoch => KILLED_RECOVERING,
            None => KILLED_BOOTING,
        };
        let ends = self.writer.ends();
        let is_uncovered = |(partition, end): (&i32, &i64)| left.newest.get(partition) < Some(end);
        self.faults.push(Fault {
            at,
            healed: None,
            kind: kind.to_owned(),
            effective: ends.iter().any(is_uncovered),
        });
        println!(
            "kill {} after {life:?}: {kind}, epoch {}",
            self.faults.len(),
            left.epoch
        );
        self.last = left;
        self.server.spawn(Output::Followed);
    }

    /// Lets everything come to rest, and collects the evidence.
    fn finish(mut self) -> Run {
        self.server.await_ready();
        self.server.await_state(&self.job, "running");
        if let Some(fault) = self.faults.last_mut() {
            fault.healed = Some(self.clock.now());
        }
        let journal = self.writer.end();
        let mut history = vec![Event::WriterEnded {
            at: self.clock.now(),
        }];
        let ends = readable_ends(&journal);
        // Twice as long as the oracle grants: it shall say what is late, not a wait.
        eventually("a checkpoint covers everything", LIVENESS * 2, || {
            let newest = self.store.standing().newest;
            let behind = ends
                .iter()
                .any(|(partition, end)| newest.get(partition) < Some(end));
            if behind {
                Err(format!("{newest:?}, wanted {ends:?}"))
            } else {
                Ok(())
            }
        });
        self.job.checkpoint();
        history.push(Event::Counters(self.counters()));
        self.job.stop();
        self.store_watcher.await_another(1);
        self.group_watcher.await_another(1);
        self.api_watcher.await_another(3);
        self.store_watcher.await_another(1);
        if let Some(watcher) = &self.sink_watcher {
            watcher.await_another(1);
        }
        let url = self.database.url();
        let mut left_over = sessions(&url, true);
        self.server.terminate();
        left_over.extend(eventually("the sessions end", SOON, || {
            let left = sessions(&url, false);
            if left.is_empty() {
                Ok(left)
            } else {
                Err(format!("{left:?}"))
            }
        }));
        history.push(Event::Residue {
            at: self.clock.now(),
            found: left_over,
        });
        history.extend(self.store_watcher.end());
        history.extend(self.group_watcher.end());
        history.extend(self.api_watcher.end());
        history.extend(self.faults.into_iter().map(Event::Fault));
        let looks = self.sink_watcher.map(Watcher::end).unwrap_or_default();
        Run {
            plan: plan(&self.chaos, &self.name),
            journal,
            rows: rows(self.chaos.sink, &self.server),
            looks,
            history,
        }
    }

    /// What the last life says it has read. Nothing moves any more.
    fn counters(&mut self) -> Counters {
        let view = self.job.view();
        let standing = self.store.standing();
        let given = view["records"].as_u64().expect("a running job counts");
        Counters {
            at: self.clock.now(),
            from: standing.start.expect("a running job has a start"),
            to: standing.newest,
            records_in: given,
            out: given,
            ..Counters::default()
        }
    }
}

fn rows(sink: Target, server: &TestServer) -> Vec<Row> {
    match sink {
        Target::Log => rows_of_log(&server.log),
        Target::Blackhole => Vec::new(),
    }
}

fn readable_ends(journal: &[Written]) -> Vector {
    let mut ends = Vector::new();
    for written in journal {
        if let (Fate::Acked, Some(offset)) = (written.fate, written.offset) {
            let end = ends.entry(written.p).or_default();
            *end = (*end).max(offset + 1);
        }
    }
    ends
}

/// Random times hit a server that boots or recovers too, which is meant; most must hit one that works.
fn planned_running(kills: u64) -> u64 {
    kills.div_ceil(2)
}

fn plan(chaos: &Chaos, name: &str) -> Plan {
    let running = planned_running(chaos.kills);
    Plan {
        run: name.to_owned(),
        seed: chaos.seed,
        guarantee: chaos.sink.guarantee(),
        versions: BTreeMap::from([("handover".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]),
        faults: BTreeMap::from([(KILLED_RUNNING.to_owned(), running)]),
        liveness_ms: u64::try_from(LIVENESS.as_millis()).expect("a short time"),
        group_commits: true,
        left_out: BTreeMap::new(),
    }
}
