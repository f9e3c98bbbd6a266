//! Follows changes of the configuration while the server runs: at SIGHUP it is read again and counts wholly or not at all.
//!
//! What can be followed is `log.filter` and the connections; a new configuration that wants more is refused with
//! everything that stands against it, and nothing changes. A run keeps the clients it has, since a change of broker or
//! password under its feet would be a failure that nobody asked for: what is new counts from its next start on.

use std::{collections::BTreeSet, convert::Infallible, sync::Arc, time::Duration};

use tokio::{signal::unix::Signal, task::spawn_blocking, time::timeout};

use super::server::{AppError, cluster, targets};
use crate::{
    config::{Changes, Config, ConfigFault, ConnectionChange, InvalidConfig},
    model::ids::JobName,
    service::{Clusters, Connections, JobsByConnection, NotReplaced, TargetChanges},
    sinks::{PostgresTargets, Sinks},
    telemetry::LogFilter,
};

/// How long reading may take: the file and those of the secrets may lie on a disk that does not answer.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// What it takes to follow changes of the configuration.
pub struct Reloading {
    /// Tells when to look.
    pub hangups: Signal,
    /// Reads and checks the configuration anew, from the sources it came from at the start. May block.
    pub load: Arc<dyn Fn() -> Result<Config, InvalidConfig> + Send + Sync>,
    /// What is logged.
    pub filter: LogFilter,
}

/// One thing that stands against a new configuration. Its text holds no secret.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Fault(ConfigFault),
    #[error(
        "{0}: is different and cannot change while the server runs: take it back, or restart the server"
    )]
    Fixed(String),
    #[error(
        "connections.{connection}: cannot be removed, since the specs of jobs name it: {}",
        listed(.jobs)
    )]
    InUse {
        connection: String,
        jobs: BTreeSet<JobName>,
    },
    #[error(transparent)]
    Connections(NotReplaced),
    #[error(transparent)]
    Connection(AppError),
    #[error("the configuration cannot be read: {0}")]
    Unread(String),
}

/// What was followed.
struct Followed {
    changes: Changes,
    /// Jobs that run with clients of a connection that has changed.
    old_clients: Vec<JobName>,
}

/// Waits for signals and does as they ask; see the module.
pub(super) struct Reloader {
    reloading: Reloading,
    /// What counts now.
    config: Config,
    connections: Connections,
    sinks: Sinks,
}

impl Reloader {
    pub(super) fn new(
        reloading: Reloading,
        config: Config,
        connections: Connections,
        sinks: Sinks,
    ) -> Self {
        Self {
            reloading,
            config,
            connections,
            sinks,
        }
    }

    /// Goes on until it is dropped. Signals that come during a reload lead to one more.
    pub(super) async fn run(mut self) -> Infallible {
        while self.reloading.hangups.recv().await.is_some() {
            tracing::debug!("SIGHUP: the configuration is read again");
            match self.reload().await {
                Ok(followed) => followed.tell(),
                Err(refusals) => {
                    for refusal in refusals {
                        tracing::error!(error = %refusal, "configuration not reloaded, nothing changes");
                    }
                }
            }
        }
        std::future::pending().await
    }

    async fn reload(&mut self) -> Result<Followed, Vec<Refusal>> {
        let new = self.read().await?;
        let changes = self.config.changes_to(&new);
        if !changes.fixed.is_empty() {
            return Err(self.all_against(&changes).await);
        }
        let clusters = self
            .clusters(&new, &changes)
            .map_err(|refusal| vec![refusal])?;
        let targets = targets(&new).map_err(|error| vec![Refusal::Connection(error)])?;
        let put_targets = || self.sinks.replace_targets(targets.clone());
        let replaced = self
            .connections
            .replace(
                clusters,
                self.target_changes(&changes, &targets),
                put_targets,
            )
            .await;
        let old_clients = match replaced {
            Ok(old_clients) => old_clients,
            Err(NotReplaced::InUse(naming)) => return Err(in_use(naming).collect()),
            Err(unknown @ NotReplaced::Unknown(_)) => {
                return Err(vec![Refusal::Connections(unknown)]);
            }
        };
        // Last, since it was checked and nothing is left to go wrong.
        if changes.log_filter
            && let Err(error) = self.reloading.filter.change(&new.log.filter)
        {
            tracing::error!(%error, "the log stays as it was");
        }
        self.config = new;
        Ok(Followed {
            changes,
            old_clients,
        })
    }

    async fn read(&self) -> Result<Config, Vec<Refusal>> {
        let load = Arc::clone(&self.reloading.load);
        let unread = |why: String| vec![Refusal::Unread(why)];
        match timeout(READ_WITHIN, spawn_blocking(move || load())).await {
            Ok(Ok(Ok(config))) => Ok(config),
            Ok(Ok(Err(InvalidConfig(faults)))) => {
                Err(faults.into_iter().map(Refusal::Fault).collect())
            }
            Ok(Err(crash)) => Err(unread(crash.to_string())),
            Err(_elapsed) => Err(unread(format!(
                "its files did not open within {} s",
                READ_WITHIN.as_secs()
            ))),
        }
    }

    /// Everything that stands against changes of which some cannot be followed.
    async fn all_against(&self, changes: &Changes) -> Vec<Refusal> {
        let removed = changes
            .connections
            .iter()
            .filter(|(_, change)| **change == ConnectionChange::Removed)
            .map(|(name, _)| name.clone())
            .collect();
        let mut refusals: Vec<Refusal> =
            changes.fixed.iter().cloned().map(Refusal::Fixed).collect();
        match self.connections.jobs_that_name(&removed).await {
            Ok(naming) => refusals.extend(in_use(naming)),
            Err(error) => refusals.push(Refusal::Connections(NotReplaced::Unknown(error))),
        }
        refusals
    }

    /// What becomes of the target databases.
    fn target_changes(&self, changes: &Changes, new: &PostgresTargets) -> TargetChanges {
        let was_target = |name: &String| {
            self.config
                .connections
                .get(name)
                .is_some_and(|connection| connection.postgres().is_some())
        };
        let (renewed, removed) = changes
            .connections
            .keys()
            .filter(|name| was_target(name))
            .cloned()
            .partition(|name| new.contains_key(name));
        TargetChanges { removed, renewed }
    }

    /// The clusters of a new configuration; those of connections that stay as they are go on with their clients.
    fn clusters(&self, new: &Config, changes: &Changes) -> Result<Clusters, Refusal> {
        let current = self.connections.current();
        let same = |name: &String| {
            current
                .get(name)
                .filter(|_| !changes.connections.contains_key(name))
        };
        new.connections
            .iter()
            .filter_map(|(name, connection)| Some((name, connection.kafka()?)))
            .map(|(name, connection)| {
                let cluster = match same(name) {
                    Some(cluster) => Arc::clone(cluster),
                    None => cluster(name, connection).map_err(Refusal::Connection)?,
                };
                Ok((name.clone(), cluster))
            })
            .collect()
    }
}

impl Followed {
    /// One line, with names and never with values.
    fn tell(&self) {
        let old_clients = (!self.old_clients.is_empty()).then(|| listed(&self.old_clients));
        tracing::info!(
            config.changed = %self.changes,
            jobs.with_old_clients = old_clients,
            "configuration reloaded"
        );
    }
}

fn in_use(naming: JobsByConnection) -> impl Iterator<Item = Refusal> {
    naming
        .into_iter()
        .map(|(connection, jobs)| Refusal::InUse { connection, jobs })
}

fn listed<'a>(jobs: impl IntoIterator<Item = &'a JobName>) -> String {
    let names: Vec<String> = jobs.into_iter().map(ToString::to_string).collect();
    names.join(", ")
}
