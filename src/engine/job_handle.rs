//! What the rest of the program may ask of a running job.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    error::JobError,
    ports::{CheckpointStore, Clock, JobLease, KafkaCluster, LeaseHealth, Sink},
};
use crate::model::{
    checkpoint::Checkpoint,
    ids::{InstallId, JobName},
    job::{CheckpointSpec, JobSpec},
    job_status::JobStatus,
    start::StopCheckpoint,
    views::CheckpointReport,
};

/// Everything a run needs. The `start` checkpoint is stored already: its positions are where the run begins.
pub struct JobRun {
    /// The job's name.
    pub name: JobName,
    /// This installation, for the note in group commits.
    pub install: InstallId,
    /// The spec that runs.
    pub spec: JobSpec,
    /// The right to write.
    pub lease: JobLease,
    /// The stored `start` checkpoint.
    pub start: Checkpoint,
    /// The cluster to read.
    pub kafka: Arc<dyn KafkaCluster>,
    /// Where records go; claimed already.
    pub sink: Arc<dyn Sink>,
    /// Where checkpoints go.
    pub store: Arc<dyn CheckpointStore>,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// How well the lease is known to hold.
    pub lease_health: watch::Receiver<LeaseHealth>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub enum JobEnd {
    /// As asked.
    Stopped(StopOutcome),
    /// It gave up.
    Failed(JobError),
}

/// What a stop left behind.
#[derive(Debug, Clone)]
pub struct StopOutcome {
    /// The last checkpoint, if one was wanted.
    pub checkpoint: Option<CheckpointReport>,
    /// Offsets given to the sink after the newest completed checkpoint: they will be read again.
    pub will_replay: i64,
    /// Consumer threads that had not ended within their deadline.
    pub leaked_threads: usize,
}

/// Why a required stop did not take place.
#[derive(Debug, Clone)]
pub struct StopRefused {
    /// The checkpoint that failed.
    pub checkpoint: CheckpointReport,
}

/// A running job. Cheap to clone; the job ends when it is stopped, when it fails, or when the last handle is gone.
#[derive(Clone)]
pub struct JobHandle {}

impl JobHandle {
    /// Starts the run.
    #[must_use]
    pub fn spawn(_run: JobRun) -> Self {
        todo!()
    }

    /// The newest status, without waiting.
    #[must_use]
    pub fn status(&self) -> Arc<JobStatus> {
        todo!()
    }

    /// A receiver that sees each new status.
    #[must_use]
    pub fn watch_status(&self) -> watch::Receiver<Arc<JobStatus>> {
        todo!()
    }

    /// Takes a manual checkpoint and waits for its end and for the outcome of its commit to the group (bounded). One that
    /// was asked for while another attempt is under way begins after it; further callers share the one that waits.
    /// `None` if the job ended meanwhile.
    pub async fn trigger_checkpoint(&self, _timeout: Option<Duration>) -> Option<CheckpointReport> {
        todo!()
    }

    /// Stops the job. Returns when the run has ended and nothing of it can write any more.
    ///
    /// # Errors
    /// With [`StopCheckpoint::Required`], when the checkpoint failed: the job goes on.
    pub async fn stop(
        &self,
        _checkpoint: StopCheckpoint,
        _timeout: Duration,
    ) -> Result<JobEnd, StopRefused> {
        todo!()
    }

    /// Waits for the end of the run.
    pub async fn ended(&self) -> JobEnd {
        todo!()
    }

    /// Changes when checkpoints are taken, from now on.
    pub fn set_checkpointing(&self, _spec: CheckpointSpec) {
        todo!()
    }
}
