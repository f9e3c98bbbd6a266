//! The partitions that a run does not read, kept with the job, because a record of one may be stepped over while nothing
//! runs.
//!
//! They are read from the run's status, so a run never waits for the store to tell of itself.

use std::time::Duration;

use tokio::time::timeout;

use super::JobTask;
use crate::{
    engine::ports::JobLease,
    model::{job_status::JobStatus, parked::ParkedPartition},
    service::core::{Core, JobEntry},
};

/// How long the end of a run waits for the store to keep what it did not read.
const KEEP_WITHIN: Duration = Duration::from_secs(2);

impl JobTask {
    /// Keeps the parked partitions of a run that has ended, in case it had just parked one.
    pub(super) async fn keep_parked(&self) {
        let (Some(lease), Some(run)) = (self.lease, &self.run) else {
            return;
        };
        let status = run.status();
        let kept = keep(&self.core, &self.job, &lease, &status);
        // Whoever comes to the record again will park again.
        let _late = timeout(KEEP_WITHIN, kept).await;
    }
}

/// Keeps what a run that is under way has parked.
pub(super) async fn follow(core: &Core, job: &JobEntry, status: &JobStatus) {
    let lease = JobLease {
        job: job.uid,
        epoch: status.epoch,
    };
    keep(core, job, &lease, status).await;
}

/// Keeps the parked partitions if they are not what is kept.
async fn keep(core: &Core, job: &JobEntry, lease: &JobLease, status: &JobStatus) {
    let parked: Vec<ParkedPartition> = status.parked.values().cloned().collect();
    if job.shared().row.parked == parked {
        return;
    }
    match core.store.set_parked(lease, parked.clone()).await {
        Ok(()) => job.shared().row.parked = parked,
        Err(error) => {
            tracing::debug!(job = %job.name, %error, "the parked partitions are not kept yet");
        }
    }
}
