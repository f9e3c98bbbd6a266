//! A TCP proxy on loopback whose faults are switched while it runs. For tests: a program that claims to survive a network
//! has to be shown one that misbehaves on demand, and exactly where it hurts.
//!
//! Byte by byte it can delay, freeze (everything stays open and nothing moves), cut with a reset, and refuse. With
//! [`Protocol::Postgres`] it also reads the messages that pass, as far as it takes to know a COMMIT and its answer, and can
//! break a connection at the one moment that matters: when the client cannot know whether its transaction took effect.
//! Every such fault is counted once it has really happened, so that a test can demand that it tested something.
//!
//! ```no_run
//! # fn example() -> std::io::Result<()> {
//! use fault_proxy::{CommitFault, Protocol, Proxy};
//!
//! let proxy = Proxy::start("127.0.0.1:5432", Protocol::Postgres)?;
//! let url = format!("postgres://user@{}/db", proxy.address());
//! proxy.arm(CommitFault::AnswerDropped, 1);
//! // ... commit something through `url`: it takes effect, and the client is told nothing ...
//! assert_eq!(proxy.effective().answer_dropped, 1);
//! # Ok(())
//! # }
//! ```

mod connection;
mod faults;
mod listener;
mod postgres;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::task::JoinSet;

pub use faults::{CommitFault, Direction, Effective};

use faults::Faults;
use listener::{Listener, Target};

/// What the proxy understands of what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Nothing: bytes.
    Bytes,
    /// PostgreSQL's messages, protocol version 3. Encryption is declined, as a server without certificates does: what is
    /// encrypted could not be read.
    Postgres,
}

/// A running proxy. Its port is closed and its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    target: Arc<Target>,
    faults: Arc<Faults>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Listens on a free loopback port and forwards to `target` (`host:port`), which is looked up anew for every connection.
    /// A target that does not answer resets the client.
    ///
    /// # Errors
    /// When there is no port to listen on.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(target: &str, protocol: Protocol) -> io::Result<Self> {
        let listener = Listener::bind()?;
        let address = listener.address()?;
        let faults = Arc::new(Faults::default());
        let target = Arc::new(Target::new(target));
        let mut tasks = JoinSet::new();
        tasks.spawn(listener.run(Arc::clone(&target), protocol, Arc::clone(&faults)));
        Ok(Self {
            address,
            target,
            faults,
            _tasks: tasks,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Forwards connections from now on to another target. Those that are open stay. For a server that has to be told the
    /// proxy's address before it starts, as Kafka's brokers have.
    pub fn aim(&self, target: &str) {
        self.target.set(target);
    }

    /// Ends every fault that is switched on or armed. What was done to a connection stays done. Returns when it is so.
    pub async fn heal(&self) {
        self.faults.heal();
        self.faults.set_refusing(false).await;
    }

    /// Delays everything that passes in a direction from now on. The order stays, and so does the throughput.
    pub fn set_latency(&self, direction: Direction, latency: Duration) {
        self.faults.set_latency(direction, latency);
    }

    /// Forwards nothing, not even the end of a connection, until [`Self::thaw`]. Connections are accepted and stay open: a
    /// cut cable, or a peer that hangs. What has been sent meanwhile arrives after the thaw.
    pub fn freeze(&self) {
        self.faults.set_frozen(true);
    }

    /// Ends a freeze.
    pub fn thaw(&self) {
        self.faults.set_frozen(false);
    }

    /// Refuses connections from now on, as a port does on which nobody listens. Those that are open stay. Returns when it
    /// is so.
    pub async fn refuse(&self) {
        self.faults.set_refusing(true).await;
    }

    /// Accepts connections again. Returns when it is so.
    pub async fn accept(&self) {
        self.faults.set_refusing(false).await;
    }

    /// Resets every connection that is open, on both sides, with whatever is under way. Returns how many that were, when
    /// they are gone. Not delayed by latency or a freeze.
    pub async fn cut(&self) -> usize {
        self.faults.cut().await
    }

    /// Breaks the next `times` COMMITs, after those that are armed already.
    pub fn arm(&self, fault: CommitFault, times: usize) {
        self.faults.arm(fault, None, times);
    }

    /// Breaks the next `times` COMMITs of transactions in which a statement contains `text`, for instance the name of a
    /// table. Others pass, and armed faults are used in their order.
    pub fn arm_touching(&self, text: &str, fault: CommitFault, times: usize) {
        self.faults.arm(fault, Some(text), times);
    }

    /// How many armed faults have not happened yet.
    #[must_use]
    pub fn armed(&self) -> usize {
        self.faults.armed()
    }

    /// How many faults at a COMMIT have really happened.
    #[must_use]
    pub fn effective(&self) -> Effective {
        self.faults.effective()
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.faults.connections()
    }
}
