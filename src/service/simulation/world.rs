//! What everything in a simulation shares: the seeded chance, the time, the trace, the network, and what was broken.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::{
    sync::oneshot,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use super::{broker::Broker, judge::Judge, sink::Target, store::Table};
use crate::engine::ports::Clock;

/// A server, in all of its lives.
pub(super) type ServerId = usize;

/// Whom a server talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    Store,
    Sink,
    Broker,
}

/// A part of the program that is wrong on purpose, to show that the simulation notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// The target takes writes of an owner that lost it, at the place where they find it.
    SinkWithoutFence,
    /// The store takes writes of an owner that lost the lease.
    StoreWithoutFence,
    /// Offsets go to the group although the store has not kept the checkpoint: the store says yes and forgets.
    CommitBeforeStore,
    /// The start's positions are read from without being stored.
    StartNotStored,
    /// A position is counted on by one more than the record before it.
    PlusOneTwice,
    /// The sink answers a barrier and still holds records in its memory.
    BarrierBeforeFlush,
    /// A start begins at the checkpoint, though the sink has come further.
    SinkProgressIgnored,
    /// A client that goes back delivers records again in a way that nobody can tell, as others.
    LostRecord,
    /// A start by the server itself uses up what an operator has asked for.
    OneShotUsedByServer,
    /// The end of a run is never noticed.
    NoRestart,
    /// A partition that appears while the job runs is read from its end.
    NewPartitionAtEnd,
    /// A look at the topics shows only what is known.
    DiscoveryBlind,
    /// A topic that was created again has the id of the old one.
    TopicIdIgnored,
    /// Each start of a bounded run decides anew where it ends.
    EndsDecidedAnew,
    /// A bounded run reads one record more than its ends say.
    ReadsBeyondEnd,
    /// A dead letter is said to be delivered, and is lost.
    LetterLost,
    /// A skip leaves out the record behind it, too.
    SkipsTwo,
    /// While one partition is parked nothing of the others is read.
    ParkedHoldsAll,
    /// The limits of the spec do not reach the run.
    LimitIgnored,
    /// A run moves a position that its log does not hold, though the spec says that somebody has to decide.
    MovesUnasked,
    /// Records are stamped with a time that is still to come.
    TimeAhead,
}

/// What can happen to calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Network {
    /// Of a thousand calls, how many lose their request or their answer.
    pub(super) losses: u32,
    /// The longest that one way of a usual call takes, in milliseconds.
    pub(super) latency_ms: u64,
    /// Peers that answer nobody.
    pub(super) down: BTreeSet<Peer>,
    /// Servers that cannot reach a peer.
    pub(super) cut: BTreeSet<(ServerId, Peer)>,
    /// Peers that take long.
    pub(super) slow: BTreeSet<Peer>,
}

/// When a server dies without being asked.
pub(super) struct Doom {
    /// Effects of its calls until then.
    pub(super) effects_left: u32,
    /// Whether the last one still takes place.
    pub(super) after: bool,
}

/// Everything that is shared.
pub(super) struct State {
    pub(super) chance: fastrand::Rng,
    pub(super) trace: Trace,
    pub(super) network: Network,
    pub(super) dooms: BTreeMap<ServerId, Doom>,
    pub(super) lives: BTreeMap<ServerId, AbortHandle>,
    pub(super) broker: Broker,
    pub(super) store: Table,
    pub(super) target: Target,
    pub(super) judge: Judge,
    pub(super) defect: Option<Defect>,
}

impl State {
    /// Whether something of so many in a thousand happens.
    pub(super) fn happens(&mut self, in_a_thousand: u32) -> bool {
        self.chance.u32(0..1000) < in_a_thousand
    }

    pub(super) fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Notes that a rule was broken.
    pub(super) fn violation(&mut self, what: fmt::Arguments<'_>) {
        self.trace.note(format_args!("VIOLATION {what}"));
        self.judge.violations.push(what.to_string());
    }

    fn fate(&mut self, server: ServerId, peer: Peer) -> Fate {
        let latency = self.network.latency_ms.max(1);
        let slow = self.network.slow.contains(&peer);
        let longest = if slow { latency * 60 } else { latency };
        let mut way = || Duration::from_micros(self.chance.u64(50..longest * 1000));
        let (there, back) = (way(), way());
        let away = self.network.down.contains(&peer) || self.network.cut.contains(&(server, peer));
        let lost = !away && self.happens(self.network.losses);
        // A broken connection is noticed at once or at a deadline.
        let patience = if self.happens(500) {
            there + back
        } else {
            Duration::from_millis(self.chance.u64(1_000..6_000))
        };
        // Now and then what was sent arrives when nobody thinks of it any more.
        let stray = lost && self.happens(300);
        let arrives = if stray {
            Some(Duration::from_millis(self.chance.u64(1_000..30_000)))
        } else if away || (lost && self.happens(500)) {
            None
        } else {
            Some(there)
        };
        let answered = !away && !lost;
        Fate {
            arrives,
            answer: answered.then_some(back),
            patience: if answered {
                Duration::from_secs(3_600)
            } else {
                patience
            },
        }
    }

    /// Whether the server of a call that arrives lives on, and whether the call takes effect.
    fn arrive(&mut self, server: ServerId) -> bool {
        let Some(doom) = self.dooms.get_mut(&server) else {
            return true;
        };
        if doom.effects_left > 0 {
            doom.effects_left -= 1;
            return true;
        }
        let after = doom.after;
        self.dooms.remove(&server);
        self.kill(server);
        after
    }

    /// Ends a life of a server at the await where it is.
    pub(super) fn kill(&mut self, server: ServerId) {
        if let Some(life) = self.lives.remove(&server) {
            self.trace.note(format_args!("server {server} dies"));
            life.abort();
        }
        self.dooms.remove(&server);
    }
}

struct Fate {
    /// After which time the request is there.
    arrives: Option<Duration>,
    /// How long the answer takes.
    answer: Option<Duration>,
    /// When the caller gives up.
    patience: Duration,
}

/// The steps of a run, as a number that tells two runs apart and, if somebody is to read them, as lines.
pub(super) struct Trace {
    began: Instant,
    hasher: DefaultHasher,
    pub(super) steps: u64,
    pub(super) lines: Option<Vec<String>>,
}

impl Trace {
    fn new(keep: bool) -> Self {
        Self {
            began: Instant::now(),
            // Without keys of its own: the same in every process.
            hasher: DefaultHasher::new(),
            steps: 0,
            lines: keep.then(Vec::new),
        }
    }

    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        let at = self.began.elapsed();
        self.steps += 1;
        let line = format!("{:>10.3} {what}", at.as_secs_f64() * 1000.0);
        self.hasher.write(line.as_bytes());
        if let Some(lines) = &mut self.lines {
            lines.push(line);
        }
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.hasher.finish()
    }
}

/// The handle on what is shared.
pub(super) struct World(Mutex<State>);

impl World {
    pub(super) fn new(seed: u64, keep: bool, defect: Option<Defect>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            chance: fastrand::Rng::with_seed(seed),
            trace: Trace::new(keep),
            network: Network::default(),
            dooms: BTreeMap::new(),
            lives: BTreeMap::new(),
            broker: Broker::default(),
            store: Table::default(),
            target: Target::default(),
            judge: Judge::default(),
            defect,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Asks a peer. `None`: no answer came, and whether it took effect, or will, is not known.
    pub(super) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        server: ServerId,
        peer: Peer,
        effect: impl FnOnce(&mut State) -> T + Send + 'static,
    ) -> Option<T> {
        let fate = self.state().fate(server, peer);
        let (answer, answered) = oneshot::channel();
        if let Some(arrives) = fate.arrives {
            let world = Arc::clone(self);
            spawn(async move {
                sleep(arrives).await;
                let outcome = {
                    let mut state = world.state();
                    if !state.arrive(server) {
                        return;
                    }
                    effect(&mut state)
                };
                if let Some(back) = fate.answer {
                    sleep(back).await;
                    // Nobody listens any more when the server died.
                    drop(answer.send(outcome));
                } else {
                    // Kept until the caller has given up: a dropped end would be an answer.
                    sleep(Duration::from_secs(60)).await;
                    drop(answer);
                }
            });
            return timeout(fate.patience, answered).await.ok()?.ok();
        }
        sleep(fate.patience).await;
        None
    }
}

/// The time of the trace, on a day of its own.
pub(super) struct WorldClock(pub(super) Instant);

impl Clock for WorldClock {
    fn now(&self) -> DateTime<Utc> {
        let elapsed = i64::try_from(self.0.elapsed().as_millis()).unwrap();
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::milliseconds(elapsed)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is under way in the world outlives the server that sent it, and ends with the runtime"
)]
pub(super) fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}
