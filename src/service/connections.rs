//! The connections of the server's file, which can be replaced while the server runs. Kafka clusters are kept here; target
//! databases are kept by whoever makes sinks, and replaced together with them.
//!
//! Whoever needs a cluster takes it by name at that moment and keeps it for one piece of work: a question, a plan, a start
//! together with the run it leads to. So what replaces it counts for whatever begins afterwards, and no work is torn.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{RwLock, RwLockReadGuard},
    time::timeout,
};

use super::{
    core::{Core, lock},
    error::{Result, ServiceError},
};
use crate::{
    engine::ports::KafkaCluster,
    model::{code::Code, ids::JobName, job::JobSpec},
};

/// How long a replacement waits for specs that are being stored, and then for the store.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);

/// The clusters by the names of the server's file.
pub type Clusters = BTreeMap<String, Arc<dyn KafkaCluster>>;

/// Which jobs name a connection, by the connection.
pub type JobsByConnection = BTreeMap<String, BTreeSet<JobName>>;

/// The clusters that count now.
pub(crate) struct CurrentClusters {
    clusters: Mutex<Arc<Clusters>>,
    /// Shared by those who check a spec against the clusters and store it; a removal of clusters holds it alone.
    naming: RwLock<()>,
}

impl CurrentClusters {
    pub(crate) fn new(clusters: Clusters) -> Self {
        Self {
            clusters: Mutex::new(Arc::new(clusters)),
            naming: RwLock::new(()),
        }
    }

    pub(crate) fn all(&self) -> Arc<Clusters> {
        Arc::clone(&lock(&self.clusters))
    }

    pub(crate) fn get(&self, connection: &str) -> Option<Arc<dyn KafkaCluster>> {
        lock(&self.clusters).get(connection).cloned()
    }

    /// As long as the guard lives no cluster is removed, so that a spec can be checked and stored.
    pub(crate) async fn keep_names(&self) -> RwLockReadGuard<'_, ()> {
        self.naming.read().await
    }

    fn replace(&self, clusters: Clusters) {
        let before = std::mem::replace(&mut *lock(&self.clusters), Arc::new(clusters));
        // A client whose last user this was is closed, which may take a moment.
        drop(tokio::task::spawn_blocking(move || drop(before)));
    }
}

/// The connections of a running server, for whoever replaces them.
pub struct Connections {
    core: Arc<Core>,
}

/// What becomes of the target databases when the connections are replaced.
#[derive(Debug, Default)]
pub struct TargetChanges {
    /// Names that will be gone.
    pub removed: BTreeSet<String>,
    /// Names that stand for something else.
    pub renewed: BTreeSet<String>,
}

/// Why the connections were left as they were.
#[derive(Debug, thiserror::Error)]
pub enum NotReplaced {
    /// Jobs name connections that would be gone.
    #[error("jobs name connections that would be gone")]
    InUse(JobsByConnection),
    /// The store did not say which jobs name connections that would be gone.
    #[error("whether jobs name a connection that would be gone is not known: {0}")]
    Unknown(#[source] ServiceError),
}

impl Connections {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// The clusters that count now.
    #[must_use]
    pub fn current(&self) -> Arc<Clusters> {
        self.core.clusters.all()
    }

    /// Which jobs name these connections: by the spec that is stored, or by the one that runs.
    ///
    /// # Errors
    /// `store-unreachable`.
    pub async fn jobs_that_name(&self, connections: &BTreeSet<String>) -> Result<JobsByConnection> {
        let mut naming = JobsByConnection::new();
        if connections.is_empty() {
            return Ok(naming);
        }
        let rows = timeout(SETTLE_WITHIN, self.core.store.jobs()).await;
        let mut note = |connection: &str, job: &JobName| {
            if connections.contains(connection) {
                let jobs = naming.entry(connection.to_owned()).or_default();
                jobs.insert(job.clone());
            }
        };
        for row in rows.map_err(|_elapsed| busy())?? {
            for connection in named_by(&row.spec) {
                note(connection, &row.name);
            }
        }
        for job in self.core.jobs() {
            let facts = job.shared();
            if facts.run.is_some() {
                for connection in named_by(facts.spec()) {
                    note(connection, &job.name);
                }
            }
        }
        Ok(naming)
    }

    /// Puts these clusters in place of the current ones, and has `put_targets` do the same with the target databases. A
    /// cluster that stays is given as the same value. Answers the jobs that run with clients of what was replaced, and keep
    /// them until their next start.
    ///
    /// # Errors
    /// See [`NotReplaced`]; nothing has changed then.
    pub async fn replace(
        &self,
        clusters: Clusters,
        targets: TargetChanges,
        put_targets: impl FnOnce() + Send,
    ) -> std::result::Result<Vec<JobName>, NotReplaced> {
        let before = self.current();
        let mut removed: BTreeSet<String> = before
            .keys()
            .filter(|name| !clusters.contains_key(*name))
            .cloned()
            .collect();
        removed.extend(targets.removed);
        let _nothing_named = if removed.is_empty() {
            None
        } else {
            let alone = timeout(SETTLE_WITHIN, self.core.clusters.naming.write()).await;
            Some(alone.map_err(|_elapsed| NotReplaced::Unknown(busy()))?)
        };
        let naming = self
            .jobs_that_name(&removed)
            .await
            .map_err(NotReplaced::Unknown)?;
        if !naming.is_empty() {
            return Err(NotReplaced::InUse(naming));
        }
        let mut renewed: BTreeSet<String> = clusters
            .iter()
            .filter(|(name, cluster)| {
                before
                    .get(*name)
                    .is_none_or(|before| !Arc::ptr_eq(before, cluster))
            })
            .map(|(name, _)| name.clone())
            .collect();
        renewed.extend(targets.renewed);
        drop(before);
        self.core.clusters.replace(clusters);
        put_targets();
        Ok(self.measure_anew(&renewed))
    }

    /// What was measured through a cluster that is gone is used no more. Answers the jobs that run with its clients.
    fn measure_anew(&self, connections: &BTreeSet<String>) -> Vec<JobName> {
        let mut running = Vec::new();
        for job in self.core.jobs() {
            let (concerned, runs) = {
                let facts = job.shared();
                let concerned = named_by(facts.spec()).any(|name| connections.contains(name));
                (concerned, facts.run.is_some())
            };
            if !concerned {
                continue;
            }
            job.measure_anew();
            if runs {
                running.push(job.name.clone());
            }
        }
        running
    }
}

/// The connections that a spec names.
fn named_by(spec: &JobSpec) -> impl Iterator<Item = &str> {
    let source = spec.source.connection.as_str();
    std::iter::once(source).chain(spec.sink.connection())
}

fn busy() -> ServiceError {
    ServiceError::new(
        Code::StoreUnreachable,
        format!(
            "the store did not answer within {} s",
            SETTLE_WITHIN.as_secs()
        ),
    )
}
