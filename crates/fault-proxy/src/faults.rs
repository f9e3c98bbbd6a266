//! Which faults are switched on, and how many have happened.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// Where a COMMIT breaks. In all three the client is left without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// The COMMIT does not reach the server, and both sides are reset: the transaction does not take effect.
    BeforeServer,
    /// The server has committed; its answer is dropped, and both sides are reset.
    AnswerDropped,
    /// The server has committed; neither its answer nor anything else reaches the client again, and the connection stays
    /// open: a cable that is cut in one direction. What the client sends still arrives.
    AnswerSwallowed,
}

/// How many faults at a COMMIT have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Effective {
    /// Of [`CommitFault::BeforeServer`].
    pub before_server: u64,
    /// Of [`CommitFault::AnswerDropped`]: the server had said `COMMIT`.
    pub answer_dropped: u64,
    /// Of [`CommitFault::AnswerSwallowed`]: the server had said `COMMIT`.
    pub answer_swallowed: u64,
}

impl Effective {
    /// Of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.before_server + self.answer_dropped + self.answer_swallowed
    }
}

/// A fault that waits for its COMMIT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Armed {
    pub(crate) fault: CommitFault,
    /// What a statement of the transaction has to contain.
    touching: Option<Arc<str>>,
}

/// What everything that passes looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mode {
    pub(crate) frozen: bool,
    to_server: Duration,
    to_client: Duration,
}

impl Mode {
    pub(crate) fn latency(&self, direction: Direction) -> Duration {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

#[derive(Debug, Default)]
struct Connections {
    accepted: u64,
    open: BTreeSet<u64>,
    /// Those up to this number are to be cut.
    cut: u64,
}

#[derive(Debug, Default)]
struct Commits {
    armed: VecDeque<Armed>,
    effective: Effective,
}

/// The switches of one proxy.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    mode: watch::Sender<Mode>,
    /// Whether connections are to be refused, and whether they are.
    refuse: watch::Sender<bool>,
    refusing: watch::Sender<bool>,
    connections: watch::Sender<Connections>,
    commits: Mutex<Commits>,
}

impl Faults {
    pub(crate) fn heal(&self) {
        self.commits().armed.clear();
        self.mode.send_replace(Mode::default());
    }

    pub(crate) fn set_latency(&self, direction: Direction, latency: Duration) {
        self.mode.send_modify(|mode| match direction {
            Direction::ToServer => mode.to_server = latency,
            Direction::ToClient => mode.to_client = latency,
        });
    }

    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.mode.send_modify(|mode| mode.frozen = frozen);
    }

    pub(crate) fn mode(&self) -> watch::Receiver<Mode> {
        self.mode.subscribe()
    }

    pub(crate) async fn set_refusing(&self, refuse: bool) {
        self.refuse.send_replace(refuse);
        let mut refusing = self.refusing.subscribe();
        // Fails only when the proxy is gone, and with it the port.
        drop(refusing.wait_for(|refusing| *refusing == refuse).await);
    }

    pub(crate) fn refuse(&self) -> watch::Receiver<bool> {
        self.refuse.subscribe()
    }

    pub(crate) fn note_refusing(&self, refusing: bool) {
        self.refusing.send_replace(refusing);
    }

    pub(crate) async fn cut(&self) -> usize {
        let (mut connections, mut open) = (self.connections.subscribe(), 0);
        let mut up_to = 0;
        self.connections.send_modify(|connections| {
            up_to = connections.accepted;
            connections.cut = up_to;
            open = connections.open.len();
        });
        // Fails only when the proxy is gone, and all connections with it.
        drop(
            connections
                .wait_for(|connections| connections.open.range(..=up_to).next().is_none())
                .await,
        );
        open
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.borrow().open.len()
    }

    /// A connection, which is open as long as the answer lives.
    pub(crate) fn opened(self: &Arc<Self>) -> Open {
        let mut number = 0;
        self.connections.send_modify(|connections| {
            connections.accepted += 1;
            number = connections.accepted;
            connections.open.insert(number);
        });
        Open {
            faults: Arc::clone(self),
            number,
        }
    }

    pub(crate) fn arm(&self, fault: CommitFault, touching: Option<&str>, times: usize) {
        let armed = Armed {
            fault,
            touching: touching.map(Arc::from),
        };
        self.commits()
            .armed
            .extend(std::iter::repeat_n(armed, times));
    }

    pub(crate) fn armed(&self) -> usize {
        self.commits().armed.len()
    }

    pub(crate) fn effective(&self) -> Effective {
        self.commits().effective
    }

    /// Takes the first armed fault that fits a transaction.
    pub(crate) fn take(&self, touches: impl Fn(&str) -> bool) -> Option<Armed> {
        let mut commits = self.commits();
        let fits = |armed: &Armed| armed.touching.as_ref().is_none_or(|text| touches(text));
        let first = commits.armed.iter().position(fits)?;
        commits.armed.remove(first)
    }

    /// Gives a fault back whose COMMIT took no effect.
    pub(crate) fn give_back(&self, armed: Armed) {
        self.commits().armed.push_front(armed);
    }

    pub(crate) fn count(&self, fault: CommitFault) {
        let effective = &mut self.commits().effective;
        match fault {
            CommitFault::BeforeServer => effective.before_server += 1,
            CommitFault::AnswerDropped => effective.answer_dropped += 1,
            CommitFault::AnswerSwallowed => effective.answer_swallowed += 1,
        }
    }

    fn commits(&self) -> MutexGuard<'_, Commits> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is open.
pub(crate) struct Open {
    faults: Arc<Faults>,
    number: u64,
}

impl Open {
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Waits until the connection is to be cut.
    pub(crate) async fn cut(&self) {
        let mut connections = self.faults.connections.subscribe();
        // Cannot fail: this connection holds the switches.
        drop(
            connections
                .wait_for(|connections| connections.cut >= self.number)
                .await,
        );
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.faults.connections.send_modify(|connections| {
            connections.open.remove(&self.number);
        });
    }
}
