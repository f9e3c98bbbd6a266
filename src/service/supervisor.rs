//! Makes the jobs do what was asked of them: one task a job, and the same path for an operator's start and for the first
//! start after the server came up.
//!
//! The supervisor reads the jobs once the instance is claimed, starts a task for each, and does the same for jobs that are
//! created later. A task carries out what is asked of its job one after the other, so no two starts or stops of a job ever
//! run at the same time.

use std::{future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    core::{Core, JobEntry},
    job_task::JobTask,
    monitor, oldest_unread, series,
};
use crate::model::job_state::{DesiredState, JobState};

/// The pause after the store did not answer.
const RETRY: Duration = Duration::from_secs(1);
/// Between two readings of all jobs, as a net.
const REREAD: Duration = Duration::from_secs(30);
/// Between two deletions of what is kept too long.
const PRUNE_EVERY: u32 = 40;

/// Runs until the server goes down and every job's task has ended.
pub(crate) async fn supervise(core: Arc<Core>) {
    let mut tasks: JoinSet<()> = JoinSet::new();
    let turnstile = monitor::turnstile();
    let readers = oldest_unread::turnstile();
    if !claimed(&core).await {
        return;
    }
    {
        let core = Arc::clone(&core);
        tasks.spawn(async move {
            let stopping = core.stopping.clone();
            let keep = || series::keep_series(Arc::clone(&core));
            until_it_ends("the keeping of series", &stopping, keep).await;
        });
    }
    let mut rounds = 0_u32;
    let mut recovered = false;
    while !core.stopping.is_cancelled() {
        let read = read_jobs(&core, recovered).await;
        recovered |= read;
        if recovered {
            for job in core.jobs() {
                if std::mem::replace(&mut job.shared().has_task, true) {
                    continue;
                }
                tasks.spawn(run_job(Arc::clone(&core), Arc::clone(&job)));
                tasks.spawn(monitor::watch_job(
                    Arc::clone(&core),
                    Arc::clone(&job),
                    Arc::clone(&turnstile),
                ));
                tasks.spawn(oldest_unread::read_when_asked(
                    Arc::clone(&core),
                    job,
                    Arc::clone(&readers),
                ));
            }
            if rounds.is_multiple_of(PRUNE_EVERY)
                && let Err(error) = core.store.prune().await
            {
                tracing::debug!(%error, "what is kept too long cannot be deleted now");
            }
            rounds = rounds.wrapping_add(1);
        }
        let pause = if read { REREAD } else { RETRY };
        tokio::select! {
            () = core.stopping.cancelled() => {}
            () = core.new_job.notified() => {}
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the measuring of a job crashed; its lags or ages stay as they are until the server is restarted");
                }
            }
            () = sleep(pause) => {}
        }
    }
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "the task of a job crashed");
        }
    }
}

/// Runs the task of a job. One that crashed is followed by another: it takes the lease under a new epoch, so that what the
/// crashed one may have left running can write no more.
async fn run_job(core: Arc<Core>, job: Arc<JobEntry>) {
    let name = job.name.clone();
    let run = || {
        job.shared().run = None;
        // Large, and one of its kind per job: on the heap.
        Box::pin(JobTask::new(Arc::clone(&core), Arc::clone(&job)).run())
    };
    until_it_ends(&format!("the task of job {name}"), &core.stopping, run).await;
}

/// Repeats what crashes, with a pause, until it ends by itself or the server goes down.
async fn until_it_ends<F, Fut>(what: &str, stopping: &CancellationToken, mut run: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = ()>,
{
    while AssertUnwindSafe(run()).catch_unwind().await.is_err() {
        // The panic's own words were printed by the panic hook.
        tracing::error!("{what} crashed; it begins again");
        tokio::select! {
            () = stopping.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// Waits until the instance id is ours; `false` when the server goes down first.
async fn claimed(core: &Core) -> bool {
    let mut incarnation = core.incarnation.subscribe();
    tokio::select! {
        claimed = incarnation.wait_for(Option::is_some) => claimed.is_ok(),
        () = core.stopping.cancelled() => false,
    }
}

/// Reads all jobs; the first time it also settles what died with its server.
async fn read_jobs(core: &Core, recovered: bool) -> bool {
    let read = async {
        core.install().await?;
        if !recovered {
            let orphans = core.store.fail_orphaned_checkpoints().await?;
            if orphans > 0 {
                tracing::info!(
                    orphans,
                    "checkpoints that died with their server were failed"
                );
            }
        }
        core.store.jobs().await.map_err(super::ServiceError::from)
    };
    match read.await {
        Ok(rows) => {
            for row in rows {
                let is_free = row.owner.as_ref().is_none_or(|owner| !owner.live);
                let resumes = is_free
                    && row.desired_state == DesiredState::Running
                    && !matches!(row.state, JobState::Failed | JobState::BackingOff);
                let job = core.remember(row);
                if !recovered && resumes {
                    job.shared().state = Some((JobState::Starting, core.now()));
                }
            }
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the jobs cannot be read");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_crashes_begins_again_until_it_ends() {
        let mut runs = 0;
        let run = || {
            runs += 1;
            let crashes = runs < 3;
            async move { assert!(!crashes, "as the test wants it") }
        };
        until_it_ends("a test", &CancellationToken::new(), run).await;
        assert_eq!(runs, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_goes_down_does_not_wait_for_what_crashes() {
        let stopping = CancellationToken::new();
        stopping.cancel();
        until_it_ends("a test", &stopping, || async {
            panic!("as the test wants it")
        })
        .await;
    }
}
