//! One run: a world made from a seed, faults and operators for a while, then peace, and the verdict.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    broker::{Entry, Log, TOPIC},
    server::{Server, spec},
    store::{Asked, Incarnation, Operation},
    world::{Defect, Doom, Network, Peer, ServerId, World, spawn},
};
use crate::model::{
    code::Code,
    duration::HumanDuration,
    job::JobSpec,
    job_state::{DesiredState, JobState},
    offset::Offset,
    skip::SkipRequest,
    start::{PendingStart, StartFrom, StartRequest, StopCheckpoint},
    watermark::{TimestampSource, WatermarkAlignment, WatermarkSpec, WatermarkStrategy},
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
    pub(super) rolled_forward: u64,
    pub(super) skips: u64,
    pub(super) commits: u64,
    pub(super) repeats: u64,
    pub(super) takeovers: u64,
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
        self.rolled_forward += other.rolled_forward;
        self.skips += other.skips;
        self.commits += other.commits;
        self.repeats += other.repeats;
        self.takeovers += other.takeovers;
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
        Scenario::new(Arc::clone(&world)).play().await;
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
        rolled_forward: judge.rolled_forward,
        skips: judge.skips,
        commits: judge.commits,
        repeats: judge.repeats,
        takeovers: state.store.takeovers,
    };
    Outcome {
        seed,
        violations: std::mem::take(&mut state.judge.violations),
        fingerprint: state.trace.fingerprint(),
        lines: state.trace.lines.take().unwrap_or_default(),
        tally,
    }
}

fn event_time() -> WatermarkSpec {
    let second = HumanDuration::from_secs(1);
    WatermarkSpec {
        strategy: WatermarkStrategy::Monotonous,
        max_delay: None,
        idle_after: Some(second),
        timestamp: TimestampSource::Record,
        alignment: Some(WatermarkAlignment { max_drift: second }),
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
    Leader(i32),
    Commits,
}

struct Scenario {
    world: Arc<World>,
    spec: JobSpec,
    once: bool,
    places: Vec<Place>,
    undos: Vec<(Instant, Undo)>,
    began: Instant,
    bad_records: u32,
    operations: u64,
}

impl Scenario {
    fn new(world: Arc<World>) -> Self {
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
        let parallelism = state.chance.u32(1..4);
        let interval = state.chance.u64(300..4_000);
        let once = state.happens(750);
        state.judge.once = once;
        state.network = Network {
            losses: state.chance.u32(0..80),
            latency_ms: state.chance.u64(1..30),
            ..Network::default()
        };
        state.broker.lost_commits = state.chance.u32(0..100);
        let bad_records = if state.happens(300) { 10 } else { 0 };
        let servers = state.chance.usize(1..3);
        state.trace.note(format_args!(
            "{partitions} partitions, {parallelism} subtasks, {servers} servers, once {once}, {mode}, every {interval} ms, a failure stops the {block}"
        ));
        let mut spec = spec(parallelism, &mode, interval, block);
        // No draw of its own: the other worlds stay what they are.
        spec.watermark = interval.is_multiple_of(3).then(event_time);
        state.judge.aligns = spec.watermark.is_some();
        drop(guard);
        let place = || Place {
            life: 0,
            task: None,
            stopping: CancellationToken::new(),
            back_at: began,
        };
        Self {
            world,
            spec,
            once,
            places: (0..servers).map(|_| place()).collect(),
            undos: Vec::new(),
            began,
            bad_records,
            operations: 0,
        }
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
            let server_task = Server::new(
                &self.world,
                me,
                self.spec.clone(),
                self.once,
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
                Undo::Leader(number) => {
                    if let Some(log) = state.broker.logs.get_mut(&number) {
                        log.has_leader = true;
                    }
                }
                Undo::Commits => state.broker.lost_commits = 20,
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
            _ => self.operate(false),
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
                Undo::Leader(number)
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
            Undo::Leader(number) => format!("orders/{number} has no leader"),
            Undo::Commits => "commits are lost".to_owned(),
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
            let next = newest.positions.get(&at)?.next_offset;
            next.map(Offset::get)
        });
        let log = &state.broker.logs[&number];
        let (start, end) = (log.start, log.end());
        let beyond = state.happens(150);
        let most = if beyond { end } else { stored.unwrap_or(0) };
        if most <= start {
            return;
        }
        let to = state.chance.i64(start..=most);
        state
            .trace
            .note(format_args!("{at} begins at {to} from now on"));
        if let Some(log) = state.broker.logs.get_mut(&number) {
            log.start = to;
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
            let unfinished = self.world.state().unfinished();
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

    async fn stop_for_good(&mut self) {
        let until = Instant::now() + LAST_STOP;
        loop {
            {
                let mut guard = self.world.state();
                let state = &mut *guard;
                if state.store.operation.is_none()
                    && state.store.state == JobState::Stopped
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
        if shown == JobState::Running
            && (in_peace || roll < 50)
            && let Some((number, (code, at))) = parked.first_key_value()
        {
            return self.release(*number, *code, *at);
        }
        match shown {
            JobState::Failed => {
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
            JobState::Stopped if desired == DesiredState::Stopped => {
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
        StartRequest::read(&json!({"on_out_of_range": policy})).unwrap()
    }
}
