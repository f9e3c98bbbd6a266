//! Connections to a target, and the limits under which transactions work there.
//!
//! A connection belongs to one task and is closed after any trouble instead of being used again, so a future that is
//! dropped in the middle of a statement leaves nothing behind but the end of its stream. All limits are set inside each
//! transaction (`SET LOCAL`), and no prepared statement outlives one: that works behind a pooler that changes the session
//! with every transaction.

use std::{str::FromStr, time::Duration};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection,
    postgres::{PgConnectOptions, PgRow},
};
use tokio::time::timeout;

use super::errors::{Trouble, describe};

/// How long a new connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// Begins what is said when the connection itself is what fails: a target that is away has refused nothing.
const CANNOT_BE_REACHED: &str = "the sink cannot be reached";
/// How long a connection may take to say goodbye.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);
/// The client's own limits, for a server that cannot be reached: for a whole conversation and for the statements with rows
/// (above what the server allows for one slow statement), for taking locks (above two times the server's limit), for COMMIT.
/// Giving up a COMMIT early is harmless: what became of it is read from the target, and that waits until it is decided.
pub(super) const ATTEMPT_WITHIN: Duration = Duration::from_secs(75);
pub(super) const LOCKS_WITHIN: Duration = Duration::from_secs(15);
pub(super) const COMMIT_WITHIN: Duration = Duration::from_secs(10);
/// Limits that the server enforces, in milliseconds: a statement, a lock, a session that holds locks and says nothing (its
/// process is frozen or unreachable, and a successor waits for its lock), a client that acknowledges no packets.
pub(super) const STATEMENT_MS: u64 = 60_000;
const LOCK_MS: u32 = 5_000;
const IDLE_IN_TRANSACTION_MS: u32 = 10_000;
const TCP_USER_TIMEOUT_MS: u32 = 10_000;
/// How often a server looks whether its client is still there while a statement runs. A writer that ends in the middle of
/// one closes its connection, and without this the server would finish the statement first, with the claim locked.
const CLIENT_CHECK_MS: u32 = 1_000;

/// A target database, by its connection's name in the server's file.
#[derive(Clone)]
pub struct PostgresTarget {
    options: PgConnectOptions,
    database: String,
    role: String,
}

impl std::fmt::Debug for PostgresTarget {
    /// Without its options, which may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresTarget")
            .field("database", &self.database)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

impl PostgresTarget {
    /// Reads a URL; nothing is asked of the database.
    ///
    /// # Errors
    /// When it cannot be understood. The text does not repeat it, since it may hold a password.
    pub fn new(url: &str) -> Result<Self, String> {
        let options = PgConnectOptions::from_str(url).map_err(|error| describe(&error))?;
        let role = options.get_username().to_owned();
        let database = options.get_database().unwrap_or(&role).to_owned();
        let named = options.get_application_name().is_some();
        let options = options
            .statement_cache_capacity(0)
            // Poolers refuse start-up parameters that they do not know, and no number is read as text here.
            .extra_float_digits(None)
            .disable_statement_logging();
        Ok(Self {
            options: if named {
                options
            } else {
                options.application_name("handover")
            },
            database,
            role,
        })
    }

    /// The database's name.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The role that connects.
    pub(super) fn role(&self) -> &str {
        &self.role
    }

    /// Opens a connection. Whatever keeps us from connecting may pass (a restart, a password that is being changed), and a
    /// job must not fail for it.
    pub(super) async fn connect(&self) -> Result<PgConnection, Trouble> {
        let connecting = timeout(CONNECT_WITHIN, PgConnection::connect_with(&self.options)).await;
        let outcome = connecting.map_err(|_elapsed| {
            Trouble::Away(format!(
                "{CANNOT_BE_REACHED}: connect to database {}: no answer within {} s",
                self.database,
                CONNECT_WITHIN.as_secs()
            ))
        })?;
        outcome.map_err(|error| {
            Trouble::Away(format!(
                "{CANNOT_BE_REACHED}: connect to database {}: {}",
                self.database,
                describe(&error)
            ))
        })
    }
}

/// Says goodbye, so that the server does not have to notice. The connection is gone either way.
pub(super) async fn close(connection: PgConnection) {
    let _gone_either_way = timeout(CLOSE_WITHIN, connection.close()).await;
}

/// Runs a transaction's conversation under the client's own deadline.
pub(super) async fn within_deadline<T>(
    conversation: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    answered_within(ATTEMPT_WITHIN, conversation).await
}

/// Waits for a part of a conversation.
pub(super) async fn answered_within<T>(
    limit: Duration,
    part: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    timeout(limit, part).await.unwrap_or_else(|_elapsed| {
        Err(Trouble::Away(format!(
            "the target database gave no answer within {} s",
            limit.as_secs()
        )))
    })
}

/// Sends statements as one message, waits for the last answer, and gives back all rows, as text.
pub(super) async fn send(
    connection: &mut PgConnection,
    sql: String,
) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .fetch_all(connection)
        .await
}

/// Begins a transaction and sets its limits: statements for the front of a message. Their rows have one column, or none.
///
/// `synchronous_commit` is only raised: a database that commits without waiting for its disk would forget rows that a
/// completed checkpoint counts on, and one that waits for a standby goes on to do so. Servers look after their clients from
/// version 14 on, and not on every system, where setting it would be an error. Notices are not sent, because nobody
/// reads them while rows are on their way, and both sides would wait for each other.
pub(super) fn begin() -> String {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED;
         SET LOCAL statement_timeout = {STATEMENT_MS};
         SET LOCAL lock_timeout = {LOCK_MS};
         SET LOCAL idle_in_transaction_session_timeout = {IDLE_IN_TRANSACTION_MS};
         SET LOCAL tcp_user_timeout = {TCP_USER_TIMEOUT_MS};
         SET LOCAL client_min_messages = error;
         SELECT set_config('client_connection_check_interval', '{CLIENT_CHECK_MS}', true)
           WHERE current_setting('client_connection_check_interval', true) IS NOT NULL AND version() LIKE '%linux%';
         SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';"
    )
}

/// A text as SQL, whatever `standard_conforming_strings` says.
pub(super) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// A name as SQL.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_name_holds_stays_inside_its_quotes() {
        assert_eq!(literal(r"a'b\c"), r"E'a''b\\c'");
        assert_eq!(identifier(r#"a"b"#), r#""a""b""#);
    }

    #[test]
    fn a_target_knows_its_database_and_tells_no_password() {
        let target = PostgresTarget::new("postgres://writer:geheim@h/warehouse").unwrap();
        assert_eq!((target.database(), target.role()), ("warehouse", "writer"));
        assert!(!format!("{target:?}").contains("geheim"));
        let error = PostgresTarget::new("postgres://u:geheim@h:port/d").unwrap_err();
        assert!(!error.contains("geheim"), "{error}");
    }
}
