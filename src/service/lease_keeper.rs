//! This server's sign of life, on which the right to write of all its jobs rests.
//!
//! A claim of the instance id makes a new incarnation; while it is renewed in time nobody else may take the jobs. The time
//! is counted from *before* a renewal is sent, by a clock that cannot be set, so this server always thinks it has less
//! time than the database gives it. At two thirds of it without an answer the jobs are told to hold still; they go on when
//! a renewal succeeds, under the same epoch: one that comes after the time has run out looks first which of them were taken.

use std::{
    fs::{File, TryLockError},
    path::Path,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{
    core::Core,
    error::{Result, ServiceError},
};
use crate::{
    engine::{
        error::StoreError,
        ports::{JobLease, LeaseHealth},
    },
    model::code::Code,
    store::{ClaimInstance, Incarnation, Renewal},
};

/// The pause after a renewal or a claim that failed.
const RETRY: Duration = Duration::from_millis(500);

/// Holds the lock file of an instance id for as long as the process lives; a crash releases it.
#[derive(Debug)]
pub(crate) struct InstanceLock(
    #[expect(dead_code, reason = "held, not read: dropping it releases the lock")] File,
);

impl InstanceLock {
    /// Takes the lock, which proves that no other process of this host runs under the instance id.
    pub(crate) fn take(directory: &Path, instance: &str) -> Result<Self> {
        let name: String = instance
            .chars()
            .map(|char| {
                if char.is_ascii_alphanumeric() || char == '-' {
                    char
                } else {
                    '_'
                }
            })
            .collect();
        let path = directory.join(format!("handover-{name}.lock"));
        let failed = |error: std::io::Error| {
            ServiceError::new(
                Code::Internal,
                format!("cannot take the lock file {}: {error}", path.display()),
            )
        };
        std::fs::create_dir_all(directory).map_err(failed)?;
        let file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(in_use(instance, "on this host")),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

fn in_use(instance: &str, place: &str) -> ServiceError {
    ServiceError::new(
        Code::InstanceIdInUse,
        format!("another server runs {place} under the instance id '{instance}'"),
    )
}

/// Claims the instance id and renews the claim until the server goes down.
///
/// # Errors
/// `instance-id-in-use` when another process holds the id or takes it.
pub(crate) async fn keep_lease(core: Arc<Core>) -> Result<()> {
    let Some((incarnation, claimed_at)) = claim(&core).await? else {
        return Ok(());
    };
    core.lease_until
        .send_replace(claimed_at + core.settings.lease_ttl);
    core.lease_health.send_replace(LeaseHealth::Held);
    core.incarnation.send_replace(Some(incarnation.clone()));
    core.new_job.notify_one();
    renew(&core, &incarnation, claimed_at).await
}

async fn claim(core: &Core) -> Result<Option<(Incarnation, Instant)>> {
    let settings = &core.settings;
    let mut waited_for_host = false;
    loop {
        let asked_at = Instant::now();
        let claim = core
            .store
            .claim_instance(&settings.instance, &settings.host, settings.lease_ttl)
            .await;
        let pause = match claim {
            Ok(ClaimInstance::Claimed(incarnation)) => return Ok(Some((incarnation, asked_at))),
            Ok(ClaimInstance::HeldByOtherHost { host, .. }) if waited_for_host => {
                return Err(in_use(&settings.instance, &format!("on {host}")));
            }
            Ok(ClaimInstance::HeldByOtherHost { host, expires_in }) => {
                tracing::warn!(%host, "the instance id was used by another host lately: waiting whether it still lives");
                waited_for_host = true;
                expires_in + RETRY
            }
            Err(error) => {
                let reason = format!("the instance cannot be claimed: {error}");
                tracing::warn!(%error, "cannot claim the instance yet");
                core.lease_health
                    .send_replace(LeaseHealth::Doubtful(reason));
                RETRY
            }
        };
        tokio::select! {
            () = core.stopping.cancelled() => return Ok(None),
            () = sleep(pause) => {}
        }
    }
}

/// Renews until the tasks of the jobs have ended: their last writes need the lease.
async fn renew(core: &Core, incarnation: &Incarnation, claimed_at: Instant) -> Result<()> {
    let ttl = core.settings.lease_ttl;
    let mut renewed_at = claimed_at;
    let mut next = claimed_at + ttl / 3;
    loop {
        sleep_until(next).await;
        let sent_at = Instant::now();
        let doubtful_at = renewed_at + ttl * 2 / 3;
        let give_up_at = if doubtful_at > sent_at {
            doubtful_at.min(sent_at + ttl / 3)
        } else {
            sent_at + ttl / 3
        };
        let answer = timeout_at(give_up_at, core.store.renew_instance(incarnation, ttl)).await;
        let why = match answer {
            Ok(Ok(renewal @ (Renewal::InTime | Renewal::Late))) => {
                // What was taken meanwhile is told before the others go on.
                let told = match renewal {
                    Renewal::Late => end_what_was_taken(core, incarnation).await,
                    Renewal::InTime | Renewal::Replaced => Ok(()),
                };
                match told {
                    Ok(()) => {
                        renewed_at = sent_at;
                        next = sent_at + ttl / 3;
                        core.lease_until.send_replace(sent_at + ttl);
                        publish(core, LeaseHealth::Held);
                        continue;
                    }
                    Err(error) => error.to_string(),
                }
            }
            Ok(Ok(Renewal::Replaced) | Err(StoreError::Fenced)) => {
                publish(core, LeaseHealth::Lost);
                return Err(in_use(&incarnation.instance, "and has taken over"));
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "the store does not answer a renewal in time".to_owned(),
        };
        if Instant::now() >= doubtful_at {
            publish(core, LeaseHealth::Doubtful(why));
        }
        next = (Instant::now() + RETRY)
            .min(sent_at + ttl / 3)
            .max(Instant::now());
    }
}

/// Ends the runs whose jobs were taken while this server's time had run out. The runs are listed before the leases are read:
/// each of them was begun under a lease that is there, unless somebody has taken it.
async fn end_what_was_taken(
    core: &Core,
    incarnation: &Incarnation,
) -> std::result::Result<(), StoreError> {
    let jobs = core.jobs().into_iter();
    let runs: Vec<_> = jobs
        .filter_map(|job| Some((job.uid, job.shared().run.clone()?)))
        .collect();
    if runs.is_empty() {
        return Ok(());
    }
    let owned = core.store.leases_of(incarnation).await?;
    for (job, run) in runs {
        let lease = JobLease {
            job,
            epoch: run.status().epoch,
        };
        if !owned.contains(&lease) {
            run.lose_lease().await;
        }
    }
    Ok(())
}

fn publish(core: &Core, health: LeaseHealth) {
    core.lease_health.send_if_modified(|current| {
        let changed = *current != health;
        if changed {
            tracing::info!(?health, "the right to write");
            *current = health;
        }
        changed
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_id_has_one_process_on_a_host() {
        let directory = tempfile::tempdir().unwrap();
        let first = InstanceLock::take(directory.path(), "blue/1").unwrap();
        let second = InstanceLock::take(directory.path(), "blue/1").unwrap_err();
        assert_eq!(second.code, Code::InstanceIdInUse);
        assert!(InstanceLock::take(directory.path(), "green").is_ok());
        drop(first);
        assert!(InstanceLock::take(directory.path(), "blue/1").is_ok());
    }
}
