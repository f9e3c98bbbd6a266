//! Connections: with which limits they work, and which databases they refuse.
//!
//! A standby would answer reads that are old, and a database that commits without waiting for its disk
//! (`synchronous_commit = off`) would forget checkpoints it has confirmed. Neither is used; the callers wait, and the
//! error says why.

use std::{
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sqlx::{
    PgConnection, PgPool,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgPoolOptions, Postgres},
};

use super::{Result, errors::describe};
use crate::engine::error::StoreError;

/// How long things may take, in milliseconds where the server enforces it.
pub(super) struct Limits {
    /// How long to wait for a connection of the pool, or for a new one, and for the pool to take one back.
    pub(super) acquire: Duration,
    /// The client's own limit for a whole transaction: the server cannot enforce its limits when it is not reachable.
    /// Above the sum of what the server allows for one slow statement and a lock.
    pub(super) transaction: Duration,
    statement_ms: u32,
    lock_ms: u32,
}

/// For everything but renewals and migrations. The lock limit is shorter than the statement's, so that the error says
/// which of the two it was.
pub(super) const WORK: Limits = Limits {
    acquire: Duration::from_secs(5),
    transaction: Duration::from_secs(25),
    statement_ms: 15_000,
    lock_ms: 5_000,
};

/// For signs of life. A lease lives 3 s at least, and its owner has to know before two thirds of that are over: 2 s for a
/// connection and an answer together.
pub(super) const RENEWALS: Limits = Limits {
    acquire: Duration::from_secs(1),
    transaction: Duration::from_secs(1),
    statement_ms: 900,
    lock_ms: 900,
};

/// For migrations, which may rewrite a table. They wait for locks only so long, because whoever comes after a waiting
/// ALTER TABLE waits too.
pub(super) const MIGRATIONS: Limits = Limits {
    acquire: Duration::from_secs(10),
    transaction: Duration::from_secs(3_600),
    statement_ms: 0,
    lock_ms: 30_000,
};

/// A session that holds locks and says nothing is ended by the server after this: its process is frozen or unreachable,
/// and a taker waits for its lock. No transaction of ours waits for anything but the database.
const IDLE_IN_TRANSACTION_MS: u32 = 5_000;
/// After this the server takes a client that does not acknowledge its packets for dead.
const TCP_USER_TIMEOUT_MS: u32 = 10_000;

/// Reads the URL. Names the program in `pg_stat_activity` unless the URL does.
pub(super) fn connect_options(url: &str) -> Result<PgConnectOptions> {
    let options = PgConnectOptions::from_str(url).map_err(|error| {
        StoreError::Refused(format!("read the database URL: {}", describe(&error)))
    })?;
    if options.get_application_name().is_some() {
        return Ok(options);
    }
    Ok(options.application_name("handover"))
}

/// Connections with common limits.
#[derive(Clone)]
pub(super) struct Sessions {
    pool: PgPool,
    /// Why the database was refused when it was last connected to. The pool tries again until its time-out and then only
    /// tells of that.
    refusal: Arc<Mutex<Option<String>>>,
    pub(super) acquire: Duration,
    pub(super) transaction: Duration,
}

impl Sessions {
    pub(super) fn new(
        options: &PgConnectOptions,
        limits: &'static Limits,
        max_connections: u32,
    ) -> Self {
        let refusal = Arc::new(Mutex::new(None));
        let noted = Arc::clone(&refusal);
        let pool = PgPoolOptions::new()
            .max_connections(max_connections.max(1))
            .acquire_timeout(limits.acquire)
            .after_connect(move |connection, _| {
                let noted = Arc::clone(&noted);
                Box::pin(async move {
                    let outcome = open(connection, limits).await;
                    *noted.lock().unwrap_or_else(PoisonError::into_inner) =
                        outcome.as_ref().err().map(describe);
                    outcome
                })
            })
            .connect_lazy_with(options.clone());
        Self {
            pool,
            refusal,
            acquire: limits.acquire,
            transaction: limits.transaction,
        }
    }

    /// A connection that answers.
    pub(super) async fn connection(&self) -> Result<PoolConnection<Postgres>> {
        self.pool.acquire().await.map_err(|error| {
            // Whatever keeps us from connecting may pass (a restart, a password that is being changed), and a job must not
            // fail for it.
            StoreError::Unavailable(if matches!(error, sqlx::Error::PoolTimedOut) {
                self.timed_out()
            } else {
                describe(&error)
            })
        })
    }

    fn timed_out(&self) -> String {
        let refusal = self
            .refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        refusal.unwrap_or_else(|| format!("no connection within {} s", self.acquire.as_secs()))
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// Sets a new session's limits and judges the database.
pub(super) async fn open(
    connection: &mut PgConnection,
    limits: &Limits,
) -> std::result::Result<(), sqlx::Error> {
    let text = |ms: u32| ms.to_string();
    // As a statement and not as start-up options, which the `options` of a URL could override.
    sqlx::query!(
        r#"SELECT set_config('statement_timeout', $1, false) AS a,
                  set_config('lock_timeout', $2, false) AS b,
                  set_config('idle_in_transaction_session_timeout', $3, false) AS c,
                  set_config('tcp_user_timeout', $4, false) AS d,
                  -- Row locks and rechecks are written for this level, whatever the database's default is.
                  set_config('default_transaction_isolation', 'read committed', false) AS e"#,
        text(limits.statement_ms),
        text(limits.lock_ms),
        text(IDLE_IN_TRANSACTION_MS),
        text(TCP_USER_TIMEOUT_MS),
    )
    .fetch_one(&mut *connection)
    .await?;
    standing(connection)
        .await?
        .check()
        .map_err(|reason| sqlx::Error::Configuration(reason.into()))
}

/// What decides whether a database can be used.
#[derive(Debug)]
pub(super) struct Standing {
    standby: bool,
    synchronous_commit: String,
}

pub(super) async fn standing(
    connection: &mut PgConnection,
) -> std::result::Result<Standing, sqlx::Error> {
    sqlx::query_as!(
        Standing,
        r#"SELECT pg_is_in_recovery() AS "standby!", current_setting('synchronous_commit') AS "synchronous_commit!""#
    )
    .fetch_one(connection)
    .await
}

impl Standing {
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        if self.standby {
            return Err(
                "the database is a standby (pg_is_in_recovery): the URL must lead to the primary"
                    .to_owned(),
            );
        }
        if self.synchronous_commit == "off" {
            return Err("synchronous_commit is off: PostgreSQL would forget checkpoints that it has confirmed; set it to on".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_and_commits_without_the_disk_are_refused() {
        let check = |standby, synchronous_commit: &str| {
            Standing {
                standby,
                synchronous_commit: synchronous_commit.to_owned(),
            }
            .check()
        };
        assert_eq!(check(false, "on"), Ok(()));
        assert_eq!(check(false, "remote_apply"), Ok(()));
        assert!(check(true, "on").unwrap_err().contains("standby"));
        assert!(
            check(false, "off")
                .unwrap_err()
                .contains("synchronous_commit")
        );
    }

    #[test]
    fn a_url_that_is_none_is_refused_without_its_password() {
        for url in [
            "",
            "postgres://u:geheim@host:port/db",
            "postgres://u:geheim@host/db?sslmode=perhaps",
            "mysql://u:geheim@host/db?port=geheim",
        ] {
            let error = connect_options(url).unwrap_err().to_string();
            assert!(!error.contains("geheim"), "{error}");
        }
    }

    #[test]
    fn the_program_names_itself_unless_the_url_does() {
        let name = |url| {
            connect_options(url)
                .unwrap()
                .get_application_name()
                .map(str::to_owned)
        };
        assert_eq!(name("postgres://h/db").as_deref(), Some("handover"));
        assert_eq!(
            name("postgres://h/db?application_name=blue").as_deref(),
            Some("blue")
        );
    }
}
