//! A run under kills, with witnesses: a writer with a journal, readers of store, group, API and sink, and a driver that kills
//! the server at random times. What they saw goes to the oracle (`crates/oracle`).
//!
//! Everything random comes from one seed, which the verdict prints. (How far the server has come when it is killed is up to
//! the machine: the same seed is the same plan, not the same run.)

mod api;
mod clock;
mod course;
mod group;
mod life;
mod operator;
mod sink;
mod store;
mod watcher;
mod writer;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use fastrand::Rng;
use fault_proxy::Proxy;
use oracle::{
    CheckId, Run, Verdict,
    run::{Counters, Event, Fate, Fault, Guarantee, Look, Micros, Plan, Row, Vector, Written},
};
use reqwest::Method;
use serde_json::{Value, json};

pub(crate) use self::course::Course;
use self::{
    api::ApiReader,
    clock::Clock,
    course::{GROWN, RESCALED, SKIPPED},
    group::GroupReader,
    life::{Cut, Life, Place},
    operator::Operator,
    sink::{Left, LogReader, TableReader, create_table, postgres_sink, rows_of_log, rows_of_table},
    store::{Standing, StoreReader, sessions},
    watcher::Watcher,
    writer::{Pace, Writer},
};
use super::{
    Database,
    client::{Job, block_on},
    kafka::Kafka,
    proxied,
    server::{Output, TestServer},
    sink::SinkLog,
    unique,
    wait::{SOON, eventually},
};

/// The kinds of kills, by how far the server had come.
const KILLED_RUNNING: &str = "kill-running";
const KILLED_RECOVERING: &str = "kill-recovering";
const KILLED_BOOTING: &str = "kill-booting";
/// The server died by itself at a point of its choice.
const CRASHED: &str = "crash-point";
/// A connection broke at a COMMIT, so that the server could not know whether it took place.
const CUT_OF_STORE: &str = "commit-cut-of-store";
const CUT_OF_TARGET: &str = "commit-cut-of-target";
/// From the last kill on, or from the writer's end.
const LIVENESS: Duration = Duration::from_secs(30);

/// What a run does.
#[derive(Debug, Clone)]
pub(crate) struct Chaos {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) kills: u64,
    pub(crate) sink: SinkKind,
    pub(crate) course: Course,
    /// A life lasts at least and at most so many milliseconds.
    pub(crate) life_ms: (u64, u64),
}

/// The sink under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SinkKind {
    Log,
    Blackhole,
    Postgres,
}

impl SinkKind {
    fn spec(self) -> Value {
        match self {
            Self::Log => json!({"type": "log"}),
            Self::Blackhole => json!({"type": "blackhole"}),
            Self::Postgres => postgres_sink(WAREHOUSE),
        }
    }

    fn guarantee(self) -> Guarantee {
        match self {
            Self::Log => Guarantee::AtLeastOnce,
            Self::Blackhole => Guarantee::Counted,
            Self::Postgres => Guarantee::ExactlyOnce,
        }
    }
}

/// Name of the sink's connection in the server's file.
const WAREHOUSE: &str = "warehouse";
/// What stands in every statement that appends rows.
const ROWS: &str = "FROM STDIN";
const PARALLELISM: u32 = 2;
const MOST_SUBTASKS: u32 = 4;

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

    /// Random times hit a server that boots or recovers too, which is meant; enough of them must hit one that works.
    fn planned(&self) -> BTreeMap<String, u64> {
        let mut planned = BTreeMap::from([
            (KILLED_RUNNING.to_owned(), self.kills.div_ceil(3)),
            (CRASHED.to_owned(), self.kills.div_ceil(10)),
            // Short runs may have none: the long ones have them all.
            (CUT_OF_STORE.to_owned(), self.kills / 20),
        ]);
        if self.sink == SinkKind::Postgres {
            planned.insert(CUT_OF_TARGET.to_owned(), self.kills / 20);
        }
        match self.course {
            Course::Plain | Course::Bounded => {}
            Course::Growing => {
                planned.insert(GROWN.to_owned(), 3);
                planned.insert(RESCALED.to_owned(), self.kills.div_ceil(10));
            }
            Course::Parked => drop(planned.insert(SKIPPED.to_owned(), self.kills.div_ceil(10))),
        }
        planned
    }

    fn run(self) -> Run {
        println!("{}: seed {}", self.name, self.seed);
        let mut stage = Stage::set(self);
        // On a busy machine servers boot slowly, and more of the kills strike before there is anything to strike.
        while !stage.is_enough() {
            stage.die();
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
    deaths: Vec<Fault>,
    /// What else happened to the job.
    changes: Vec<Fault>,
    partitions: i32,
    operator: Option<Operator>,
    cuts: Vec<Watcher<Fault>>,
    /// What the present life has to bear.
    life: Life,
    /// Where the job stood at the last kill.
    last: Standing,
    /// What was in the sink at each.
    left: Vec<Left>,
    store_proxy: Breaker,
    target: Option<Breaker>,
}

/// A database behind a proxy that breaks connections.
struct Breaker {
    proxy: Arc<Proxy>,
    /// Through the proxy.
    proxied: String,
    /// Past it.
    url: String,
    _database: Database,
}

impl Breaker {
    fn start() -> Self {
        let database = block_on(Database::create());
        let url = database.url();
        let (proxy, proxied) = block_on(async { proxied(&url) });
        Self {
            proxy: Arc::new(proxy),
            proxied,
            url,
            _database: database,
        }
    }

    /// Notes when a connection breaks.
    fn watch(&self, kind: &'static str, clock: Clock) -> Watcher<Fault> {
        let proxy = Arc::clone(&self.proxy);
        let (mut known, mut looked) = (0, clock.now());
        Watcher::start(kind, Duration::from_millis(2), move || {
            let began = std::mem::replace(&mut looked, clock.now());
            if proxy.effective().total() == known {
                return None;
            }
            known += 1;
            Some(fault(Some(began), clock.now(), kind, true))
        })
    }
}

fn fault(began: Option<Micros>, at: Micros, kind: &str, effective: bool) -> Fault {
    Fault {
        began,
        at,
        healed: None,
        kind: kind.to_owned(),
        effective,
    }
}

impl Stage {
    fn set(chaos: Chaos) -> Self {
        let kafka = Kafka::shared();
        let store_proxy = Breaker::start();
        let name = unique(chaos.name);
        let (course, partitions) = (chaos.course, chaos.course.partitions());
        kafka.create_topic(&name, partitions);
        let mut server = TestServer::start_with(&kafka, &store_proxy.proxied, Output::Followed);
        let target = (chaos.sink == SinkKind::Postgres).then(Breaker::start);
        if let Some(target) = &target {
            create_table(&target.url);
            connect(&mut server, &target.proxied);
        }
        let job = server.job(&name);
        let mut spec = json!({
            "source": {"connection": "main", "topics": [name], "group_id": name},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"interval": "100ms", "min_pause": "10ms"},
            "parallelism": PARALLELISM,
            "sink": chaos.sink.spec(),
        });
        course.shape(&mut spec, &name, chaos.kills);
        job.put_spec(&spec);
        let clock = Clock::start();
        let url = store_proxy.url.clone();
        let uid = store::job_uid(&url, &name);
        let mut of_store = StoreReader::new(&url, uid, clock);
        let store_watcher = Watcher::start("the store", Duration::from_millis(15), move || {
            of_store.look()
        });
        let mut of_group = GroupReader::new(&kafka, &name, &name, course.most_partitions(), clock);
        let group_watcher = Watcher::start("the group", Duration::from_millis(30), move || {
            of_group.look()
        });
        let mut of_api = ApiReader::new(&job, &name, clock);
        let api_watcher =
            Watcher::start("the API", Duration::from_millis(25), move || of_api.look());
        let sink_watcher = watch_sink(&server, target.as_ref(), chaos.sink, clock);
        let mut cuts = vec![store_proxy.watch(CUT_OF_STORE, clock)];
        cuts.extend(
            target
                .iter()
                .map(|target| target.watch(CUT_OF_TARGET, clock)),
        );
        // All of them have looked before anything happens.
        store_watcher.await_another(1);
        group_watcher.await_another(1);
        job.start(&json!({}));
        let pace = Pace {
            topic: name.clone(),
            run: name.clone(),
            partitions,
            pause: course.pause(),
            bad: course.bad_records(chaos.kills),
            seed: chaos.seed ^ 1,
        };
        let operator = (course == Course::Parked).then(|| Operator::start(&job, &name, clock));
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
            deaths: Vec::new(),
            changes: Vec::new(),
            partitions,
            operator,
            cuts,
            life: Life::short(),
            last: Standing::default(),
            left: Vec::new(),
            store_proxy,
            target,
        }
    }

    /// Whether the run has been as rough as planned, or is given up.
    fn is_enough(&self) -> bool {
        let planned = self.chaos.kills;
        let deaths = self.deaths.len() as u64;
        let faults = self.chaos.planned();
        let is_met = faults
            .iter()
            .all(|(kind, least)| self.effective(kind) >= *least);
        deaths >= planned && (is_met || deaths >= planned * 2)
    }

    /// How many faults of a kind have taken effect.
    fn effective(&self, kind: &str) -> u64 {
        let cuts = |breaker: &Breaker| breaker.proxy.effective().total();
        match kind {
            CUT_OF_STORE => cuts(&self.store_proxy),
            CUT_OF_TARGET => self.target.as_ref().map_or(0, cuts),
            SKIPPED => self.operator.as_ref().map_or(0, Operator::skipped),
            kind => {
                let struck = |fault: &&Fault| fault.effective && fault.kind == kind;
                self.deaths
                    .iter()
                    .chain(&self.changes)
                    .filter(struck)
                    .count() as u64
            }
        }
    }

    /// Lets the server live until its time is over or it comes to its crash point, and starts it again.
    fn die(&mut self) {
        let mut has_crashed = self.life.from_reading && self.crashes_before_it_reads();
        if !has_crashed {
            self.arm(|place| !place.is_armed_at_boot());
            self.change_while_it_lives();
            has_crashed = self.server.crashes_within(self.life.span);
        }
        // One that died by itself was seen to live at most a moment ago; the time of that is not known so well.
        let began = (!has_crashed).then(|| self.clock.now());
        if !has_crashed {
            self.server.kill();
        }
        let at = self.clock.now();
        // Nobody writes any more: this is what the dead server left.
        let left = self.store.standing();
        let kind = if has_crashed {
            CRASHED
        } else if left.epoch == self.last.epoch {
            KILLED_BOOTING
        } else if left.start.is_none() {
            KILLED_RECOVERING
        } else {
            KILLED_RUNNING
        };
        let ends = self.writer.ends();
        let is_uncovered = |(partition, end): (&i32, &i64)| left.newest.get(partition) < Some(end);
        println!(
            "{at} us, death {}: {kind}, epoch {}, {:?}",
            self.deaths.len() + 1,
            left.epoch,
            self.life
        );
        let effective = ends.iter().any(is_uncovered);
        self.deaths.push(fault(began, at, kind, effective));
        self.has_left(left);
        self.next_life();
    }

    /// Notes what a dead server left: what comes later is of another life.
    fn has_left(&mut self, standing: Standing) {
        self.left.push(Left {
            records: self.server.log.mark(),
            epoch: standing.epoch,
        });
        self.last = standing;
    }

    /// Has the topic grow, and the job read with another number of subtasks from its next life on.
    fn change_while_it_lives(&mut self) {
        if self.chaos.course != Course::Growing {
            return;
        }
        // Drawn whatever becomes of it, so that a seed stays a plan.
        let (grows, rescales) = (self.random.u32(..4) == 0, self.random.u32(..3) > 0);
        let subtasks = self.random.u32(1..=MOST_SUBTASKS);
        if rescales {
            // The server may be away, or not be there yet.
            let spec = self.job.at("/spec");
            let body = json!({"parallelism": subtasks});
            let answer = self.job.api.try_send(&Method::PATCH, &spec, Some(&body));
            if answer.is_ok_and(|answer| answer.status == 200) {
                self.note_change(RESCALED);
            }
        }
        if grows {
            self.grow();
        }
    }

    fn grow(&mut self) {
        if self.partitions == self.chaos.course.most_partitions() {
            return;
        }
        let added = self.partitions;
        self.partitions += 1;
        Kafka::shared().add_partitions(&self.name, self.partitions);
        self.writer.write(added);
        println!("{} us, partition {added} is new", self.clock.now());
        self.note_change(GROWN);
    }

    fn note_change(&mut self, kind: &str) {
        self.changes.push(fault(None, self.clock.now(), kind, true));
    }

    /// Waits until the job reads, under an epoch that it had not before.
    fn crashes_before_it_reads(&mut self) -> bool {
        eventually("the job reads", SOON, || {
            if self.server.crashes_within(Duration::from_millis(5)) {
                return Ok(true);
            }
            let standing = self.store.standing();
            let reads = standing.epoch > self.last.epoch && standing.start.is_some();
            if reads {
                Ok(false)
            } else {
                Err(format!("{standing:?}"))
            }
        })
    }

    fn next_life(&mut self) {
        self.life = Life::draw(&self.chaos, self.deaths.len(), &mut self.random);
        self.heal();
        if self.chaos.course == Course::Growing && self.random.u32(..4) == 0 {
            // While no server is there to see it appear.
            self.grow();
        }
        self.arm(Place::is_armed_at_boot);
        match self.life.crash_at.clone() {
            Some(point) => self.server.boot_to_crash(&point),
            None => self.server.spawn(Output::Followed),
        }
    }

    /// Arms what is to break, if its time has come.
    fn arm(&self, is_due: fn(Place) -> bool) {
        const CHECKPOINT: &str = "INSERT INTO checkpoints";
        let Some(Cut { fault, at }) = self.life.cut.filter(|cut| is_due(cut.at)) else {
            return;
        };
        let store = &self.store_proxy.proxy;
        match (at, &self.target) {
            (Place::Rows, Some(target)) => target.proxy.arm_touching(ROWS, fault, 1),
            (Place::Rows | Place::Store, _) => store.arm(fault, 1),
            (Place::Start | Place::Checkpoint, _) => store.arm_touching(CHECKPOINT, fault, 1),
        }
    }

    fn heal(&self) {
        for breaker in [Some(&self.store_proxy), self.target.as_ref()]
            .into_iter()
            .flatten()
        {
            block_on(breaker.proxy.heal());
        }
    }

    /// Lets everything come to rest, and collects the evidence.
    fn finish(mut self) -> Run {
        // The last life is given nothing to bear.
        self.heal();
        self.server.kill();
        let left = self.store.standing();
        self.has_left(left);
        self.server.boot();
        if self.chaos.course == Course::Bounded {
            self.job
                .api
                .patch(&self.job.at("/spec"), &json!({"limits": null}));
            self.await_written();
            // The writer goes on: the run ends all the same.
            self.server.await_state(&self.job, "finished");
        } else {
            self.server.await_state(&self.job, "running");
        }
        if let Some(fault) = self.deaths.last_mut() {
            fault.healed = Some(self.clock.now());
        }
        let journal = self.writer.end();
        let mut history = vec![Event::WriterEnded {
            at: self.clock.now(),
        }];
        if self.chaos.course != Course::Bounded {
            history.extend(self.come_to_the_end(&journal));
        }
        self.store_watcher.await_another(1);
        self.group_watcher.await_another(1);
        self.api_watcher.await_another(3);
        self.store_watcher.await_another(1);
        if let Some(watcher) = &self.sink_watcher {
            watcher.await_another(1);
        }
        let skipped = self.effective(SKIPPED);
        let skips = self.operator.take().map(Operator::end).unwrap_or_default();
        history.extend(skips);
        for _ in 0..skipped {
            self.note_change(SKIPPED);
        }
        history.push(self.residue());
        history.extend(self.store_watcher.end());
        history.extend(self.group_watcher.end());
        history.extend(self.api_watcher.end());
        let versions = versions(&self.store_proxy.url);
        let cuts = self.cuts.into_iter().flat_map(Watcher::end);
        let faults = self.deaths.into_iter().chain(self.changes).chain(cuts);
        history.extend(faults.map(Event::Fault));
        let looks = self.sink_watcher.map(Watcher::end).unwrap_or_default();
        let log = (&self.server.log, self.left.as_slice());
        let rows = rows(log, self.target.as_ref(), self.chaos.sink);
        Run {
            plan: plan(&self.chaos, &self.name, versions),
            journal,
            rows,
            looks,
            history,
        }
    }

    /// Waits until the log reaches the ends of the bounded run, as long as the writer comes on: on a busy machine it has written less
    /// in as many lives.
    fn await_written(&self) {
        let Some(end) = self.chaos.course.end(self.chaos.kills) else {
            return;
        };
        let least = || self.writer.ends().into_values().min().unwrap_or(0);
        let mut written = least();
        while written < end {
            written = eventually("the writer writes on", SOON, || {
                let now = least();
                (now > written)
                    .then_some(now)
                    .ok_or_else(|| format!("{now} of {end}"))
            });
        }
    }

    /// Waits until everything is read, and stops the job.
    fn come_to_the_end(&mut self, journal: &[Written]) -> Option<Event> {
        let ends = readable_ends(journal);
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
        // The counters of a run do not tell what it left out before a decision.
        let counters = (self.chaos.course != Course::Parked).then(|| self.counters());
        self.job.stop();
        counters.map(Event::Counters)
    }

    /// Ends the server, and says what it left behind in the databases.
    fn residue(&mut self) -> Event {
        let target = self.target.as_ref().map(|target| target.url.clone());
        let urls: Vec<String> = [self.store_proxy.url.clone()]
            .into_iter()
            .chain(target)
            .collect();
        let mut found: Vec<String> = urls.iter().flat_map(|url| sessions(url, true)).collect();
        self.server.terminate();
        // Whatever the proxies still hold is not the server's.
        let all = || urls.iter().flat_map(|url| sessions(url, false));
        let gone = eventually("the sessions end", SOON, || {
            let left: Vec<String> = all().collect();
            if left.is_empty() {
                Ok(left)
            } else {
                Err(format!("{left:?}"))
            }
        });
        found.extend(gone);
        Event::Residue {
            at: self.clock.now(),
            found,
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

/// Tells the server of the sink's target, and starts it again.
fn connect(server: &mut TestServer, target: &str) {
    let text = format!(
        "{}[connections.{WAREHOUSE}]\ntype = \"postgres\"\nurl = \"{target}\"\n",
        server.config()
    );
    server.write_config(&text);
    server.terminate();
    server.boot();
}

fn watch_sink(
    server: &TestServer,
    target: Option<&Breaker>,
    sink: SinkKind,
    clock: Clock,
) -> Option<Watcher<Look>> {
    const PACE: Duration = Duration::from_millis(400);
    match (sink, target) {
        (SinkKind::Log, _) => {
            let mut of_log = LogReader::new(&server.log, clock);
            Some(Watcher::start("the sink", PACE, move || of_log.look()))
        }
        (SinkKind::Postgres, Some(target)) => {
            let mut of_table = TableReader::new(&target.url, clock);
            Some(Watcher::start("the sink", PACE, move || of_table.look()))
        }
        (SinkKind::Postgres | SinkKind::Blackhole, _) => None,
    }
}

fn rows((log, left): (&SinkLog, &[Left]), target: Option<&Breaker>, sink: SinkKind) -> Vec<Row> {
    match (sink, target) {
        (SinkKind::Log, _) => rows_of_log(log, left),
        (SinkKind::Postgres, Some(target)) => rows_of_table(&target.url),
        (SinkKind::Postgres | SinkKind::Blackhole, _) => Vec::new(),
    }
}

fn readable_ends(journal: &[Written]) -> Vector {
    let mut ends = Vector::new();
    for written in journal {
        if let (Fate::Acked | Fate::Bad, Some(offset)) = (written.fate, written.offset) {
            let end = ends.entry(written.p).or_default();
            *end = (*end).max(offset + 1);
        }
    }
    ends
}

fn versions(store: &str) -> BTreeMap<String, String> {
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    let versions = [
        ("handover", env!("CARGO_PKG_VERSION").to_owned()),
        ("librdkafka", librdkafka),
        ("PostgreSQL", store::server_version(store)),
    ];
    versions
        .map(|(what, version)| (what.to_owned(), version))
        .into()
}

fn plan(chaos: &Chaos, name: &str, versions: BTreeMap<String, String>) -> Plan {
    let end = chaos.course.end(chaos.kills);
    let ends = (0..chaos.course.partitions()).filter_map(|number| Some((number, end?)));
    let mut left_out = BTreeMap::new();
    if matches!(chaos.course, Course::Bounded | Course::Parked) {
        let why = match chaos.course {
            Course::Bounded => "a finished run shows no counters",
            _ => "a run does not count what was left out before a decision",
        };
        left_out.insert(CheckId::O15, why.to_owned());
    }
    Plan {
        run: name.to_owned(),
        seed: chaos.seed,
        guarantee: chaos.sink.guarantee(),
        versions,
        faults: chaos.planned(),
        liveness_ms: u64::try_from(LIVENESS.as_millis()).expect("a short time"),
        group_commits: true,
        from_the_first: true,
        ends: ends.collect(),
        left_out,
    }
}
