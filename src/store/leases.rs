//! Who lives, and who owns which job.
//!
//! Liveness belongs to the process: one row for each instance id, which it renews. Ownership belongs to the job: one row
//! with the owner and an epoch that grows with every change. So a process that comes up again under its instance id takes
//! its predecessor's jobs at once (the predecessor's incarnation is gone), and one renewal keeps a thousand jobs.
//!
//! Expiry is politeness, the epoch is safety: whoever is late finds its epoch gone when it writes. Only the database's
//! clock is asked, and by `clock_timestamp()`: `now()` is the beginning of the transaction, which may have waited for a lock.

use std::time::Duration;

use sqlx::{PgConnection, postgres::types::PgInterval};
use uuid::Uuid;

use super::{Result, Store};
use crate::{
    engine::{error::StoreError, ports::JobLease},
    model::ids::{JobUid, LeaseEpoch},
};

/// One life of a server process under its instance id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// The instance id of the server's file.
    pub instance: String,
    /// Made anew each time a process claims the instance id.
    pub id: Uuid,
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimInstance {
    /// The instance id is ours; what a dead predecessor owned can be taken at once.
    Claimed(Incarnation),
    /// A process on another host holds it and was alive lately.
    HeldByOtherHost {
        /// That host.
        host: String,
        /// After this time without a sign of life the claim succeeds.
        expires_in: Duration,
    },
}

/// What a sign of life found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The one before still held: nobody can have taken anything.
    InTime,
    /// The one before had run out: jobs may have been taken meanwhile, see [`Store::leases_of`].
    Late,
    /// Another process has taken the instance id, and all jobs must stop.
    Replaced,
}

impl Store {
    /// Takes an instance id for this process. A predecessor on the same host is replaced at once: the caller holds the lock
    /// file that proves it dead.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn claim_instance(
        &self,
        instance: &str,
        host: &str,
        ttl: Duration,
    ) -> Result<ClaimInstance> {
        let (instance, host, ttl) = (instance.to_owned(), host.to_owned(), interval(ttl)?);
        self.in_transaction(format!("claim instance {instance}"), move |connection| {
            Box::pin(async move {
                let incarnation = Incarnation {
                    instance,
                    id: Uuid::new_v4(),
                };
                let seen = sqlx::query_scalar!(
                    "SELECT incarnation FROM instances WHERE id = $1",
                    incarnation.instance
                )
                .fetch_optional(&mut *connection)
                .await?;
                // On a conflict the row is locked, and judged as it is now. A claim replaces what it has seen only: one that
                // its process sent and died, and that arrives late, must not replace the successor.
                let claimed = sqlx::query_scalar!(
                    r#"INSERT INTO instances (id, incarnation, host, expires_at)
                       VALUES ($1, $2, $3, clock_timestamp() + $4)
                       ON CONFLICT (id) DO UPDATE
                       SET incarnation = excluded.incarnation, host = excluded.host, expires_at = excluded.expires_at,
                           claimed_at = clock_timestamp()
                       WHERE (instances.host = excluded.host OR instances.expires_at <= clock_timestamp())
                         AND instances.incarnation = $5
                       RETURNING 1 AS "one!""#,
                    incarnation.instance,
                    incarnation.id,
                    host,
                    ttl,
                    seen,
                )
                .fetch_optional(&mut *connection)
                .await?;
                if claimed.is_some() {
                    return Ok(ClaimInstance::Claimed(incarnation));
                }
                let holder = sqlx::query!(
                    r#"SELECT host, incarnation, (extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint AS "expires_in_ms!"
                       FROM instances WHERE id = $1"#,
                    incarnation.instance,
                )
                .fetch_one(connection)
                .await?;
                if Some(holder.incarnation) != seen {
                    let why = "another claim of it came in between".to_owned();
                    return Err(StoreError::Unavailable(why));
                }
                Ok(ClaimInstance::HeldByOtherHost {
                    host: holder.host,
                    expires_in: Duration::from_millis(
                        u64::try_from(holder.expires_in_ms).unwrap_or(0),
                    ),
                })
            })
        })
        .await
    }

    /// Says that this process lives, for `ttl` from now by the database's clock. Answers within 2 s, one way or the other.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn renew_instance(
        &self,
        incarnation: &Incarnation,
        ttl: Duration,
    ) -> Result<Renewal> {
        let (incarnation, ttl) = (incarnation.clone(), interval(ttl)?);
        self.renewal(
            format!("renew instance {}", incarnation.instance),
            move |connection| {
                Box::pin(async move {
                    // Locked first, so that the time that was left is the one at which nobody could take anything any more.
                    let in_time = sqlx::query_scalar!(
                        r#"WITH before AS (SELECT id, expires_at FROM instances WHERE id = $1 AND incarnation = $2 FOR UPDATE)
                           UPDATE instances SET expires_at = clock_timestamp() + $3 FROM before WHERE instances.id = before.id
                           RETURNING before.expires_at > clock_timestamp() AS "in_time!""#,
                        incarnation.instance,
                        incarnation.id,
                        ttl,
                    )
                    .fetch_optional(connection)
                    .await?;
                    Ok(match in_time {
                        Some(true) => Renewal::InTime,
                        Some(false) => Renewal::Late,
                        None => Renewal::Replaced,
                    })
                })
            },
        )
        .await
    }

    /// The jobs that an incarnation owns.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn leases_of(&self, incarnation: &Incarnation) -> Result<Vec<JobLease>> {
        let incarnation = incarnation.clone();
        self.renewal(
            format!("read the leases of instance {}", incarnation.instance),
            move |connection| {
                Box::pin(async move {
                    let owned = sqlx::query!(
                        "SELECT job_uid, epoch FROM job_leases WHERE owner = $1",
                        incarnation.id
                    )
                    .fetch_all(connection)
                    .await?;
                    let lease = owned.into_iter().map(|row| JobLease {
                        job: JobUid(row.job_uid),
                        epoch: LeaseEpoch(row.epoch),
                    });
                    Ok(lease.collect())
                })
            },
        )
        .await
    }

    /// Whether a lease is still held: then nobody else has written for the job since it was taken.
    ///
    /// # Errors
    /// `Fenced` when it is not.
    pub async fn holds(&self, lease: &JobLease) -> Result<()> {
        let job = lease.job;
        self.fenced(format!("look at the lease of job {job}"), lease, |_, _| {
            Box::pin(async { Ok(()) })
        })
        .await
    }

    /// Says that this process ends; what it still owns can be taken at once.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn release_instance(&self, incarnation: &Incarnation) -> Result<()> {
        let incarnation = incarnation.clone();
        self.query(
            format!("release instance {}", incarnation.instance),
            move |connection| {
                Box::pin(async move {
                    // The row stays, for its host and for the next incarnation.
                    sqlx::query!(
                        "UPDATE instances SET expires_at = clock_timestamp() WHERE id = $1 AND incarnation = $2",
                        incarnation.instance,
                        incarnation.id,
                    )
                    .execute(connection)
                    .await?;
                    Ok(())
                })
            },
        )
        .await
    }

    /// Takes the right to write for a job, under a new epoch. `None`: a live other process holds it.
    ///
    /// Taking what this process holds already gives a new epoch too: the answer to an earlier call may have been lost.
    /// Waits for protected writes that are under way.
    ///
    /// # Errors
    /// `Fenced` when this incarnation has itself been replaced; `NoSuchJob`.
    pub async fn take_lease(
        &self,
        job: JobUid,
        incarnation: &Incarnation,
    ) -> Result<Option<JobLease>> {
        let incarnation = incarnation.clone();
        self.in_transaction(format!("take the lease of job {job}"), move |connection| {
            Box::pin(async move { take(connection, job, &incarnation).await })
        })
        .await
    }
}

async fn take(
    connection: &mut PgConnection,
    job: JobUid,
    incarnation: &Incarnation,
) -> Result<Option<JobLease>> {
    let seen = sqlx::query!(
        "SELECT epoch, owner FROM job_leases WHERE job_uid = $1",
        job.0
    )
    .fetch_optional(&mut *connection)
    .await?
    .ok_or(StoreError::NoSuchJob)?;
    if let Some(owner) = seen.owner.filter(|owner| *owner != incarnation.id)
        && !is_dead(connection, owner).await?
    {
        return known(connection, incarnation).await;
    }
    // `epoch = seen`: of two takers the second waits for the first one's row lock and would then judge the new owner by
    // a snapshot of `instances` in which that owner may not be yet.
    let epoch = sqlx::query_scalar!(
        "UPDATE job_leases l SET owner = $3, owner_instance = $4, epoch = epoch + 1
         WHERE job_uid = $1 AND epoch = $2
           AND (owner = $3
                OR NOT EXISTS (SELECT FROM instances i WHERE i.incarnation = l.owner AND i.expires_at > clock_timestamp()))
           AND EXISTS (SELECT FROM instances i WHERE i.incarnation = $3)
         RETURNING epoch",
        job.0,
        seen.epoch,
        incarnation.id,
        incarnation.instance,
    )
    .fetch_optional(&mut *connection)
    .await?;
    if let Some(epoch) = epoch {
        return Ok(Some(JobLease {
            job,
            epoch: LeaseEpoch(epoch),
        }));
    }
    known(connection, incarnation).await
}

/// Whether an owner's time has run out, or another incarnation has its instance id.
///
/// One whose time has run out is locked: a renewal that is on its way waits until the lease is taken, and then finds itself
/// late. One that came first is seen, because the lock waits for it.
async fn is_dead(connection: &mut PgConnection, owner: Uuid) -> Result<bool> {
    let expired = sqlx::query_scalar!(
        r#"SELECT 1 AS "one!" FROM instances WHERE incarnation = $1 AND expires_at <= clock_timestamp() FOR SHARE"#,
        owner,
    )
    .fetch_optional(&mut *connection)
    .await?;
    if expired.is_some() {
        return Ok(true);
    }
    let exists = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM instances WHERE incarnation = $1) AS "exists!""#,
        owner,
    )
    .fetch_one(connection)
    .await?;
    Ok(!exists)
}

/// What a taker hears that has got nothing: it is itself out if its incarnation was replaced.
async fn known(
    connection: &mut PgConnection,
    incarnation: &Incarnation,
) -> Result<Option<JobLease>> {
    let known = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM instances WHERE incarnation = $1) AS "exists!""#,
        incarnation.id,
    )
    .fetch_one(connection)
    .await?;
    if known {
        Ok(None)
    } else {
        Err(StoreError::Fenced)
    }
}

/// The fence: the first statement of every protected write. Gives the owner's instance id.
///
/// An epoch is given to one owner only, so the epoch alone says who; a row without an owner was released under it.
pub(super) async fn hold_lease(connection: &mut PgConnection, lease: &JobLease) -> Result<String> {
    sqlx::query_scalar!(
        r#"SELECT owner_instance AS "owner_instance!" FROM job_leases
           WHERE job_uid = $1 AND epoch = $2 AND owner IS NOT NULL FOR SHARE"#,
        lease.job.0,
        lease.epoch.0,
    )
    .fetch_optional(connection)
    .await?
    .ok_or(StoreError::Fenced)
}

/// What a settling transaction finds.
pub(super) enum Release {
    /// The lease was held and is released with this transaction.
    Released {
        /// The owner's instance id.
        owner: String,
    },
    /// It was released under this epoch before: the transaction is a repetition, and everything in it was done.
    Already,
}

/// The fence of a transaction that settles a run and gives the lease back: the first statement, like [`hold_lease`], but
/// with the lock that the release needs. (Two settlers that both held the weaker one would deadlock.)
pub(super) async fn release_lease(
    connection: &mut PgConnection,
    lease: &JobLease,
) -> Result<Release> {
    let owner = sqlx::query_scalar!(
        "SELECT owner_instance FROM job_leases WHERE job_uid = $1 AND epoch = $2 FOR UPDATE",
        lease.job.0,
        lease.epoch.0,
    )
    .fetch_optional(&mut *connection)
    .await?
    .ok_or(StoreError::Fenced)?;
    let Some(owner) = owner else {
        return Ok(Release::Already);
    };
    sqlx::query!(
        "UPDATE job_leases SET owner = NULL, owner_instance = NULL WHERE job_uid = $1",
        lease.job.0,
    )
    .execute(connection)
    .await?;
    Ok(Release::Released { owner })
}

/// To the microsecond, which is what PostgreSQL counts in.
fn interval(ttl: Duration) -> Result<PgInterval> {
    let microseconds = i64::try_from(ttl.as_micros())
        .map_err(|_| StoreError::Refused(format!("{ttl:?} is no time to live")))?;
    Ok(PgInterval {
        months: 0,
        days: 0,
        microseconds,
    })
}
