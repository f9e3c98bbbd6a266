//! Puts the parts together and takes them apart again in order. No decisions here.
//!
//! What is given: the store, the clusters, a way to make sinks, a clock. What runs: the lease keeper, and the supervisor
//! with a task for each job. What a shutdown does, in this order: nothing new is taken on; the callers of HTTP have been
//! answered by then; each job takes a last checkpoint and is settled, and wants to run again at the next start; the
//! instance id is released; the pool is closed.

mod reload;
mod server;

use std::sync::Arc;

use tokio::{
    task::JoinSet,
    time::{Duration, timeout},
};

use crate::{
    engine::ports::{Clock, SinkFactory},
    service::{Clusters, Connections, Running, Service, ServiceError, Settings},
    store::Store,
};

pub use reload::Reloading;
pub use server::{AppError, run};

/// How long the store may take to let the instance id go and to close, after the jobs have ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What a server is made of.
pub struct Parts {
    /// Where everything is kept. May be away when the server comes up.
    pub store: Store,
    /// The Kafka clusters by the names of the server's file.
    pub clusters: Clusters,
    /// Makes the sink of a job.
    pub sinks: Arc<dyn SinkFactory>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// What the server's file says.
    pub settings: Settings,
}

/// A running server, without its HTTP listener.
pub struct App {
    store: Store,
    service: Service,
    running: Running,
    lease: JoinSet<Result<(), ServiceError>>,
    supervisor: JoinSet<()>,
}

impl App {
    /// Starts the server's parts. Does not wait for the store or for Kafka.
    ///
    /// # Errors
    /// `instance-id-in-use` when another process of this host runs under the instance id.
    pub fn start(parts: Parts) -> Result<Self, ServiceError> {
        let store = parts.store.clone();
        let (service, running) = Service::new(
            parts.store,
            parts.clusters,
            parts.sinks,
            parts.clock,
            parts.settings,
        )?;
        let mut lease = JoinSet::new();
        lease.spawn(running.keep_lease());
        let mut supervisor = JoinSet::new();
        supervisor.spawn(running.supervise());
        Ok(Self {
            store,
            service,
            running,
            lease,
            supervisor,
        })
    }

    /// What the HTTP layer calls.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service.clone()
    }

    /// The Kafka connections, to replace them.
    #[must_use]
    pub fn connections(&self) -> Connections {
        self.running.connections()
    }

    /// Waits until the server cannot go on: another process has taken its instance id. The caller then shuts down; the jobs
    /// have lost their right to write already.
    pub async fn failed(&mut self) -> ServiceError {
        match self.lease.join_next().await {
            Some(Ok(Err(error))) => error,
            // Ends without an error only when the server goes down before the id was claimed.
            Some(Ok(Ok(()))) | None => std::future::pending().await,
            Some(Err(crash)) => ServiceError::new(
                crate::model::Code::Internal,
                format!("the lease keeper crashed: {crash}"),
            ),
        }
    }

    /// Says that nothing new is to be taken on, while callers are still being answered.
    pub fn begin_shutdown(&self) {
        self.running.begin_shutdown();
    }

    /// Ends everything; see the module. Returns after the deadline of the settings at the latest, and a few seconds.
    pub async fn shut_down(mut self) {
        self.running.begin_shutdown();
        let left = self.running.shutdown_time_left() + LAST_WORDS;
        match timeout(left, self.supervisor.join_next()).await {
            Ok(Some(Err(crash))) => tracing::error!(%crash, "the supervisor crashed"),
            Ok(_) => {}
            Err(_elapsed) => {
                tracing::warn!("the jobs did not end in time; their leases run out by themselves");
                self.supervisor.abort_all();
            }
        }
        // The last writes needed it.
        self.lease.abort_all();
        let release = async {
            self.running.release_instance().await;
            self.store.close().await;
        };
        if timeout(LAST_WORDS, release).await.is_err() {
            tracing::warn!("the store did not let go in time");
        }
    }
}
