//! One run: a world made from a seed, faults and operators for a while, then peace, and the verdict.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    broker::{Entry, Log, TOPIC, topic_id},
    judge::OnBad,
    server::{Server, Wish, spec},
    store::{Asked, Incarnation, Operation},
    world::{Defect, Doom, Network, Peer, ServerId, State, World, spawn},
};
use crate::model::{
    code::Code,
    job::JobSpec,
    job_state::{DesiredState, JobState},
    offset::Offset,
    skip::SkipRequest,
    start::{PendingStart, StartFrom, StartRequest, StopCheckpoint},
};

/// How long the job may take to come to the end of its log once nothing is broken any more: the longest pause of a backoff,
/// and some of the shorter ones.
const PEACE: Duration = Duration::from_secs(240);
/// How long the last stop may take.
const LAST_STOP: Duration = Duration::from_secs(60);

/// How a run went.
pub(super) struct Outcome {
    pub(super) seed: u64,
    pub(super) violations: Vec<String>,
    pub(super) fingerprint: u64,
    pub(super) lines: Vec<String>,
    pub(super) tally: Tally,
}

/// What happened in a run, or in many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) steps: u64,
    pub(super) virtual_seconds: u64,
    pub(super) records: u64,
    pub(super) deaths: u64,
    pub(super) starts: u64,
    pub(super) checkpoints: u64,
    pub(super) failed_checkpoints: u64,
    pub(super) moved: u64,
    pub(super) moved_in_runs: u64,
    pub(super) rolled_forward: u64,
    pub(super) skips: u64,
    pub(super) commits: u64,
    pub(super) repeats: u64,
    pub(super) takeovers: u64,
    pub(super) appeared: u64,
    pub(super) recreated: u64,
    pub(super) finished: u64,
    pub(super) letters: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.virtual_seconds += other.virtual_seconds;
        self.records += other.records;
        self.deaths += other.deaths;
        self.starts += other.starts;
        self.checkpoints += other.checkpoints;
        self.failed_checkpoints += other.failed_checkpoints;
        self.moved += other.moved;
        self.moved_in_runs += other.moved_in_runs;
        self.rolled_forward += other.rolled_forward;
        self.skips += other.skips;
        self.commits += other.commits;
        self.repeats += other.repeats;
        self.takeovers += other.takeovers;
        self.appeared += other.appeared;
        self.recreated += other.recreated;
        self.finished += other.finished;
        self.letters += other.letters;
    }
}

/// Runs a seed.
pub(super) fn run(seed: u64, keep: bool, defect: Option<Defect>) -> Outcome {
    // The engine's own pauses.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let world = runtime.block_on(async {
        let world = World::new(seed, keep, defect);
        Scenario::new(Arc::clone(&world), seed).play().await;
        world
    });
    drop(runtime);
    let mut state = world.state();
    let judge = &state.judge;
    let tally = Tally {
        steps: state.trace.steps,
        virtual_seconds: judge.seconds,
        records: state
            .broker
            .logs
            .values()
            .map(|log| log.end().unsigned_abs())
            .sum(),
        deaths: judge.deaths,
        starts: judge.starts,
        checkpoints: judge.checkpoints,
        failed_checkpoints: judge.failed_checkpoints,
        moved: judge.moved,
        moved_in_runs: judge.moved_in_runs,
        rolled_forward: judge.rolled_forward,
        skips: judge.skips,
        commits: judge.commits,
        repeats: judge.repeats,
        takeovers: state.store.takeovers,
        appeared: judge.appeared,
        recreated: judge.recreated,
        finished: judge.finished,
        letters: judge.lettered,
    };
    Outcome {
        seed,
        violations: std::mem::take(&mut state.judge.violations),
        fingerprint: state.trace.fingerprint(),
        lines: state.trace.lines.take().unwrap_or_default(),
        tally,
    }
}

/// A server that is up, or comes up again.
struct Place {
    life: u64,
    task: Option<JoinHandle<()>>,
    stopping: CancellationToken,
    back_at: Instant,
}

/// What ends a fault.
enum Undo {
    Cut(ServerId, Peer),
    Down(Peer),
    Slow(Peer),
    Leader(u32, i32),
    Commits,
    Topic,
}

struct Scenario {
    world: Arc<World>,
    spec: JobSpec,
    once: bool,
    places: Vec<Place>,
    undos: Vec<(Instant, Undo)>,
    began: Instant,
    bad_records: u32,
    refuses_letters: bool,
    topic: TopicFaults,
    operations: u64,
}

/// What may happen to the topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopicFaults {
    None,
    /// It gets more partitions.
    Grows,
    /// It vanishes for a while, and is deleted and created again, too.
    Unsettled,
}

/// The most partitions that the topic grows to.
const MOST_PARTITIONS: i32 = 6;

/// Where the job ends, if it does.
fn stop_at(state: &mut State, partitions: i32) -> Option<Value> {
    match state.chance.u32(0..20) {
        0 | 1 => Some(json!({"mode": "latest"})),
        2 => Some(json!({"mode": "timestamp", "timestamp": "2024-10-04T00:00:05Z"})),
        3 => {
            let end = state.chance.i64(5..150);
            let ends = (0..MOST_PARTITIONS).map(|number| (number.to_string(), json!(end)));
            let count = usize::try_from(partitions).unwrap();
            let ends: serde_json::Map<_, _> = ends.take(count).collect();
            Some(json!({"mode": "specific-offsets", "offsets": {TOPIC: ends}}))
        }
        _ => None,
    }
}

/// How it keeps event time, if it does.
fn watermark(state: &mut State) -> Value {
    match state.chance.u32(0..10) {
        0 => json!({"strategy": "monotonous", "idle_after": "2s"}),
        1 => json!({"strategy": "bounded-out-of-orderness", "max_delay": "1s"}),
        2 => {
            json!({"strategy": "bounded-out-of-orderness", "max_delay": "500ms", "idle_after": "3s",
                    "alignment": {"max_drift": "2s"}})
        }
        _ => Value::Null,
    }
}

impl Scenario {
    fn new(world: Arc<World>, seed: u64) -> Self {
        let began = Instant::now();
        let mut guard = world.state();
        let state = &mut *guard;
        let partitions = state.chance.i32(1..5);
        for number in 0..partitions {
            let has_leader = !state.happens(150);
            let log = Log {
                has_leader,
                ..Log::default()
            };
            state.broker.logs.insert(number, log);
        }
        let mode = match state.chance.u32(0..10) {
            0 => json!({"mode": "latest"}),
            1 => json!({"mode": "group-offsets"}),
            2 => json!({"mode": "timestamp", "timestamp": "2024-10-04T00:00:02Z"}),
            _ => json!({"mode": "earliest"}),
        };
        let block = if state.happens(500) {
            "partition"
        } else {
            "job"
        };
        let once = state.happens(750);
        state.judge.once = once;
        state.network = Network {
            losses: state.chance.u32(0..80),
            latency_ms: state.chance.u64(1..30),
            ..Network::default()
        };
        state.broker.lost_commits = state.chance.u32(0..100);
        let bad_records = if state.happens(400) { 10 } else { 0 };
        let servers = state.chance.usize(1..3);
        let on_bad = [
            OnBad::Stop,
            OnBad::Stop,
            OnBad::Letter,
            OnBad::Letter,
            OnBad::Skip,
        ];
        let on_bad = on_bad[state.chance.usize(0..on_bad.len())];
        state.judge.on_bad = on_bad;
        let refuses_letters = state.happens(300);
        let stop_at = stop_at(state, partitions);
        // A run to given offsets names every partition that there is.
        let names_all = matches!(&stop_at, Some(stop_at) if stop_at["mode"] == "specific-offsets");
        let topic = match state.chance.u32(0..10) {
            0..3 if !names_all => TopicFaults::Grows,
            3..5 if stop_at.is_none() => TopicFaults::Unsettled,
            _ => TopicFaults::None,
        };
        let on_recreated = ["fail", "earliest", "latest"];
        let watermark = watermark(state);
        // Told by the seed itself, not drawn: what seeds found before this was asked they find still.
        let on_out_of_range = ["earliest", "latest", "fail", "fail", "fail"][(seed % 5) as usize];
        state.judge.moves_outside = on_out_of_range != "fail";
        let limit = state.happens(150).then(|| state.chance.u64(15..150));
        state.judge.limit = limit;
        let wish = Wish {
            parallelism: state.chance.u32(1..4),
            mode,
            interval_ms: state.chance.u64(300..4_000),
            block,
            on_bad,
            by_pattern: state.happens(300),
            look_every_s: state.chance.u64(1..6),
            on_out_of_range,
            on_recreated: on_recreated[state.chance.usize(0..3)],
            stop_at,
            records_per_s: limit,
            watermark,
        };
        state.trace.note(format_args!(
            "{partitions} partitions, {servers} servers, once {once}, topic {topic:?}, letters are refused {refuses_letters}, {wish:?}"
        ));
        drop(guard);
        let place = || Place {
            life: 0,
            task: None,
            stopping: CancellationToken::new(),
            back_at: began,
        };
        Self {
            world,
            spec: spec(&wish),
            once,
            places: (0..servers).map(|_| place()).collect(),
            undos: Vec::new(),
            began,
            bad_records,
            refuses_letters,
            topic,
            operations: 0,
        }
    }

    fn is_bounded(&self) -> bool {
        self.spec.source.stop_at.is_some()
    }

    async fn play(mut self) {
        let chaos = {
            let mut state = self.world.state();
            Duration::from_millis(state.chance.u64(8_000..45_000))
        };
        self.write(true);
        while self.began.elapsed() < chaos {
            self.revive();
            self.end_faults(false);
            self.event();
            let pause = {
                let mut state = self.world.state();
                Duration::from_millis(state.chance.u64(20..900))
            };
            sleep(pause).await;
        }
        self.make_peace();
        let caught_up = self.catch_up().await;
        if caught_up {
            self.stop_for_good().await;
            self.world.state().judge_end();
        }
        let seconds = self.began.elapsed().as_secs();
        self.world.state().judge.seconds = seconds;
    }

    /// Brings servers up that are down for long enough.
    fn revive(&mut self) {
        for (server, place) in self.places.iter_mut().enumerate() {
            if place.task.as_ref().is_some_and(JoinHandle::is_finished) {
                place.task = None;
                let mut state = self.world.state();
                let pause = state.chance.u64(0..6_000);
                place.back_at = Instant::now() + Duration::from_millis(pause);
            }
            if place.task.is_some() || place.back_at > Instant::now() {
                continue;
            }
            place.life += 1;
            place.stopping = CancellationToken::new();
            let me = Incarnation {
                server,
                life: place.life,
            };
            let mut spec = self.spec.clone();
            {
                let mut state = self.world.state();
                if state.happens(200) {
                    // The job is given another number of subtasks between two lives.
                    spec.parallelism = state.chance.u32(1..4);
                }
            }
            let server_task = Server::new(
                &self.world,
                me,
                spec,
                (self.once, self.refuses_letters),
                place.stopping.clone(),
                self.began,
            );
            let task = spawn(server_task.live());
            let mut state = self.world.state();
            state.trace.note(format_args!("server {server} comes up"));
            state.lives.insert(server, task.abort_handle());
            place.task = Some(task);
        }
    }

    fn end_faults(&mut self, all: bool) {
        let now = Instant::now();
        let undos = std::mem::take(&mut self.undos);
        let (over, open): (Vec<_>, Vec<_>) = undos
            .into_iter()
            .partition(|(until, _)| all || *until <= now);
        self.undos = open;
        let mut state = self.world.state();
        for (_, undo) in over {
            match undo {
                Undo::Cut(server, peer) => drop(state.network.cut.remove(&(server, peer))),
                Undo::Down(peer) => drop(state.network.down.remove(&peer)),
                Undo::Slow(peer) => drop(state.network.slow.remove(&peer)),
                Undo::Leader(creation, number) => {
                    let is_it = creation == state.broker.creation;
                    let log = state.broker.logs.get_mut(&number).filter(|_| is_it);
                    if let Some(log) = log {
                        log.has_leader = true;
                    }
                }
                Undo::Commits => state.broker.lost_commits = 20,
                Undo::Topic => {
                    state.trace.note(format_args!("the topic is there"));
                    state.broker.is_gone = false;
                }
            }
        }
    }

    /// One thing that happens.
    fn event(&mut self) {
        let what = self.world.state().chance.u32(0..100);
        match what {
            0..45 => self.write(false),
            45..55 => self.kill(),
            55..59 => self.shut_down(),
            59..79 => self.fault(),
            79..83 => self.truncate(),
            83..87 => self.change_topic(),
            _ => self.operate(false),
        }
    }

    /// The topic grows, vanishes for a while, or is deleted and created again.
    fn change_topic(&mut self) {
        let mut guard = self.world.state();
        let state = &mut *guard;
        let roll = state.chance.u32(0..10);
        let broker = &mut state.broker;
        let partitions = i32::try_from(broker.logs.len()).unwrap();
        match self.topic {
            TopicFaults::None => {}
            TopicFaults::Unsettled if roll < 6 && !broker.is_gone => {
                broker.is_gone = true;
                broker.was_unsettled = true;
                if roll < 3 {
                    let partitions = state.chance.i32(1..5);
                    state.broker.recreate(partitions);
                }
                let lasts = Duration::from_millis(state.chance.u64(500..10_000));
                let creation = state.broker.creation;
                state.trace.note(format_args!(
                    "the topic is gone for {lasts:?}, then there is creation {creation}"
                ));
                self.undos.push((Instant::now() + lasts, Undo::Topic));
            }
            TopicFaults::Grows | TopicFaults::Unsettled if partitions < MOST_PARTITIONS => {
                let log = Log {
                    has_leader: state.happens(700),
                    ..Log::default()
                };
                let (creation, has_leader) = (state.broker.creation, log.has_leader);
                state.broker.logs.insert(partitions, log);
                state.trace.note(format_args!(
                    "orders/{partitions} is new, with a leader {has_leader}"
                ));
                if !has_leader {
                    let until = Instant::now() + Duration::from_secs(4);
                    self.undos.push((until, Undo::Leader(creation, partitions)));
                }
            }
            TopicFaults::Grows | TopicFaults::Unsettled => {}
        }
    }

    fn any_server(&self) -> ServerId {
        self.world.state().chance.usize(0..self.places.len())
    }

    fn kill(&mut self) {
        let server = self.any_server();
        let mut guard = self.world.state();
        let state = &mut *guard;
        if !state.lives.contains_key(&server) {
            return;
        }
        if state.happens(300) {
            state.judge.deaths += 1;
            return state.kill(server);
        }
        let doom = Doom {
            effects_left: state.chance.u32(0..12),
            after: state.happens(500),
        };
        state.judge.deaths += 1;
        state.dooms.insert(server, doom);
    }

    fn shut_down(&mut self) {
        let server = self.any_server();
        self.world
            .state()
            .trace
            .note(format_args!("server {server} is asked to go down"));
        self.places[server].stopping.cancel();
    }

    fn fault(&mut self) {
        let server = self.any_server();
        let mut guard = self.world.state();
        let state = &mut *guard;
        let lasts = Duration::from_millis(state.chance.u64(200..16_000));
        let peers = [
            Peer::Store,
            Peer::Store,
            Peer::Sink,
            Peer::Sink,
            Peer::Broker,
        ];
        let peer = peers[state.chance.usize(0..peers.len())];
        let undo = match state.chance.u32(0..10) {
            0..3 => {
                state.network.cut.insert((server, peer));
                Undo::Cut(server, peer)
            }
            3..5 => {
                state.network.down.insert(peer);
                Undo::Down(peer)
            }
            5..7 => {
                state.network.slow.insert(peer);
                Undo::Slow(peer)
            }
            7..9 => {
                let numbers: Vec<i32> = state.broker.logs.keys().copied().collect();
                let number = numbers[state.chance.usize(0..numbers.len())];
                if let Some(log) = state.broker.logs.get_mut(&number) {
                    log.has_leader = false;
                }
                Undo::Leader(state.broker.creation, number)
            }
            _ => {
                state.broker.lost_commits = 900;
                Undo::Commits
            }
        };
        let kind = match &undo {
            Undo::Cut(server, peer) => format!("server {server} is cut from {peer:?}"),
            Undo::Down(peer) => format!("{peer:?} is down"),
            Undo::Slow(peer) => format!("{peer:?} is slow"),
            Undo::Leader(_, number) => format!("orders/{number} has no leader"),
            Undo::Commits => "commits are lost".to_owned(),
            Undo::Topic => String::new(),
        };
        state.trace.note(format_args!("{kind} for {lasts:?}"));
        self.undos.push((Instant::now() + lasts, undo));
    }

    fn write(&self, first: bool) {
        let mut guard = self.world.state();
        let state = &mut *guard;
        let at = i64::try_from(self.began.elapsed().as_millis()).unwrap();
        let at = at + 20_000 * 86_400_000;
        let numbers: Vec<i32> = state.broker.logs.keys().copied().collect();
        for number in numbers {
            let most = if first { 30 } else { 12 };
            for _ in 0..state.chance.u32(0..most) {
                let bad = !first && state.happens(self.bad_records);
                let marker = state.happens(80);
                let entry = match (bad, marker) {
                    (true, _) => Entry::Bad,
                    (false, true) => Entry::Marker,
                    (false, false) => Entry::Record,
                };
                let log = state.broker.logs.get_mut(&number).unwrap();
                log.entries.push(entry);
                log.written_at.push(at);
            }
        }
    }

    fn truncate(&self) {
        let mut guard = self.world.state();
        let state = &mut *guard;
        let numbers: Vec<i32> = state.broker.logs.keys().copied().collect();
        let number = numbers[state.chance.usize(0..numbers.len())];
        let at = super::broker::partition(number);
        let stored = state.store.newest().and_then(|newest| {
            let stored = newest.positions.get(&at)?;
            let is_of_it = stored.topic_id == Some(topic_id(state.broker.creation));
            stored.next_offset.filter(|_| is_of_it).map(Offset::get)
        });
        let log = &state.broker.logs[&number];
        let (start, end) = (log.start, log.end());
        let stored = stored.unwrap_or(0);
        // What is behind it is unread, as far as anybody can know.
        let beyond = state.happens(300);
        let (least, most) = if beyond {
            (stored.clamp(start, end), end)
        } else {
            (start, stored)
        };
        if most <= start {
            return;
        }
        let to = state.chance.i64(least..=most);
        state
            .trace
            .note(format_args!("{at} begins at {to} from now on"));
        if let Some(log) = state.broker.logs.get_mut(&number) {
            log.truncate(to);
        }
    }

    fn make_peace(&mut self) {
        self.end_faults(true);
        self.write(false);
        let mut guard = self.world.state();
        let state = &mut *guard;
        state.trace.note(format_args!("peace"));
        state.network = Network {
            latency_ms: 5,
            ..Network::default()
        };
        state.broker.lost_commits = 0;
        state.broker.is_gone = false;
        state.dooms.clear();
        for log in state.broker.logs.values_mut() {
            log.has_leader = true;
        }
    }

    async fn catch_up(&mut self) -> bool {
        let until = Instant::now() + PEACE;
        let mut rounds = 0_u32;
        loop {
            self.revive();
            self.operate(true);
            let unfinished = if self.is_bounded() {
                self.write_up_to_the_ends();
                let state = self.world.state();
                let open = state.unfinished(&BTreeSet::new());
                let is_finished = state.store.state == JobState::Finished
                    && state.store.desired == DesiredState::Stopped
                    && state.store.operation.is_none();
                (!is_finished).then(|| format!("the bounded run has not finished: {open:?}"))
            } else {
                self.world.state().unfinished(&BTreeSet::new())
            };
            let Some(why) = unfinished else {
                return true;
            };
            if Instant::now() >= until {
                let mut state = self.world.state();
                let (desired, shown) = (state.store.desired, state.store.state);
                state.violation(format_args!(
                    "I9: {PEACE:?} after the last fault the job is not done ({shown:?}, desired {desired:?}): {why}"
                ));
                return false;
            }
            rounds += 1;
            let pause = u64::from(rounds.min(8)) * 100;
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// A bounded run waits for logs that do not reach its ends yet.
    fn write_up_to_the_ends(&self) {
        let is_short = {
            let state = self.world.state();
            let bounded = state.store.bounded.as_ref();
            bounded.is_some_and(|run| {
                run.ends.iter().any(|(at, end)| {
                    let log = state.broker.logs.get(&at.partition);
                    log.is_some_and(|log| log.end() < end.stop_offset.get())
                })
            })
        };
        if is_short {
            self.write(false);
        }
    }

    async fn stop_for_good(&mut self) {
        let until = Instant::now() + LAST_STOP;
        loop {
            {
                let mut guard = self.world.state();
                let state = &mut *guard;
                if state.store.operation.is_none()
                    && matches!(state.store.state, JobState::Stopped | JobState::Finished)
                    && state.store.desired == DesiredState::Stopped
                {
                    return;
                }
                if Instant::now() >= until {
                    let (shown, open) = (state.store.state, state.store.operation.clone());
                    return state.violation(format_args!(
                        "I9: the last stop is not done: {shown:?}, {open:?}"
                    ));
                }
            }
            let stop = Asked::Stop(StopCheckpoint::Required, Duration::from_secs(20));
            self.ask(stop);
            self.revive();
            sleep(Duration::from_millis(100)).await;
        }
    }

    // The operator.

    fn ask(&mut self, asked: Asked) {
        let mut guard = self.world.state();
        let state = &mut *guard;
        if state.store.operation.is_some() {
            return;
        }
        self.operations += 1;
        state
            .trace
            .note(format_args!("an operator asks: {asked:?}"));
        match asked {
            Asked::Start(_) => state.store.desired = DesiredState::Running,
            Asked::Stop(..) => state.store.desired = DesiredState::Stopped,
            Asked::Skip(_) => {}
        }
        state.store.operation = Some(Operation {
            id: self.operations,
            asked,
            stored: false,
        });
    }

    /// Does something with the job, or what it takes to have it run.
    fn operate(&mut self, in_peace: bool) {
        let (shown, desired, failure, record, busy, parked) = {
            let state = self.world.state();
            let store = &state.store;
            (
                store.state,
                store.desired,
                store.failure,
                store.failed_record.clone(),
                store.operation.is_some(),
                state.judge.parked.clone(),
            )
        };
        if busy {
            return;
        }
        let roll = self.world.state().chance.u32(0..100);
        // One that is gone comes back by itself, or never.
        let mut waiting = parked
            .iter()
            .filter(|(_, (code, _))| *code != Code::PartitionGone);
        if shown == JobState::Running
            && (roll < 50 || in_peace)
            && let Some((number, (code, at))) = waiting.next()
            && (!in_peace || self.others_are_done(parked.keys()))
        {
            return self.release(*number, *code, *at);
        }
        match shown {
            JobState::Failed => {
                if failure == Some(Code::UnknownPartition) {
                    // What was asked for the next start names partitions that are no more.
                    self.world.state().store.pending_start = None;
                }
                let is_blocked = failure == Some(Code::BlockedOnRecord);
                // A skip is refused where something else stands against a start, which a start with a remedy decides.
                if let Some(record) = record.filter(|_| is_blocked && roll < 70) {
                    let skip = SkipRequest {
                        topic: TOPIC.to_owned(),
                        partition: record.partition,
                        offset: super::broker::offset(record.offset),
                        reason: None,
                    };
                    return self.ask(Asked::Skip(skip));
                }
                self.ask(Asked::Start(self.remedy(roll)));
            }
            JobState::Finished if in_peace => {}
            JobState::Stopped | JobState::Finished if desired == DesiredState::Stopped => {
                let request = if in_peace {
                    self.remedy(roll)
                } else {
                    self.request(roll)
                };
                self.ask(Asked::Start(request));
            }
            _ if in_peace => {
                if desired == DesiredState::Stopped {
                    self.ask(Asked::Start(self.remedy(roll)));
                }
            }
            _ if roll < 25 => {
                let another = self.world.state().chance.u32(0..100);
                let from = self.request(another);
                let id = format!("next-{}", self.operations + 1_000);
                self.operations += 1;
                let mut state = self.world.state();
                state.trace.note(format_args!(
                    "an operator asks for the next start: {from:?}"
                ));
                state.store.pending_start = (from.from != StartFrom::Auto).then(|| PendingStart {
                    id,
                    from: from.from,
                    partitions: from.partitions,
                    requested_by: "operator".to_owned(),
                    at: chrono::DateTime::UNIX_EPOCH,
                });
            }
            _ => {
                let how = [
                    StopCheckpoint::Required,
                    StopCheckpoint::BestEffort,
                    StopCheckpoint::None,
                ];
                let time = {
                    let mut state = self.world.state();
                    Duration::from_millis(state.chance.u64(500..15_000))
                };
                self.ask(Asked::Stop(how[roll as usize % 3], time));
            }
        }
    }

    /// A parked partition holds up no other one: whoever decides has time to wait for them.
    fn others_are_done<'a>(&self, parked: impl Iterator<Item = &'a i32>) -> bool {
        let parked: BTreeSet<i32> = parked.copied().collect();
        self.world.state().unfinished(&parked).is_none()
    }

    /// Has a parked partition go on: behind its record, or by a start that decides.
    fn release(&mut self, number: i32, code: Code, at: Option<i64>) {
        match at.and_then(Offset::new) {
            Some(offset) if code == Code::BlockedOnRecord => self.ask(Asked::Skip(SkipRequest {
                topic: TOPIC.to_owned(),
                partition: number,
                offset,
                reason: None,
            })),
            _ => self.ask(Asked::Stop(
                StopCheckpoint::BestEffort,
                Duration::from_secs(10),
            )),
        }
    }

    /// Where the operator wants a start to begin.
    fn request(&self, roll: u32) -> StartRequest {
        let mut state = self.world.state();
        let by = state.chance.i64(-12..5);
        let mut body = match roll % 10 {
            0 => json!({"from": "earliest"}),
            1 => json!({"from": "latest"}),
            2 => json!({"from": "shift", "by": by}),
            3 => json!({"from": "ago", "duration": "3s"}),
            4 => json!({"from": "group-offsets"}),
            _ => return StartRequest::auto(),
        };
        if state.happens(400) {
            let last = i32::try_from(state.broker.logs.len()).unwrap();
            let chosen: BTreeSet<i32> = [state.chance.i32(0..last), state.chance.i32(0..last)]
                .into_iter()
                .collect();
            body["partitions"] = json!({TOPIC: chosen});
        }
        body["on_out_of_range"] = json!("earliest");
        StartRequest::read(&body).unwrap()
    }

    /// Starts in spite of what the log has lost.
    fn remedy(&self, roll: u32) -> StartRequest {
        let policy = if roll.is_multiple_of(2) {
            "earliest"
        } else {
            "latest"
        };
        let body = json!({"on_out_of_range": policy, "on_topic_recreated": policy});
        StartRequest::read(&body).unwrap()
    }
}
