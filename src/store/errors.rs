//! What PostgreSQL's errors mean for us: whether trying again can help.

use std::error::Error as _;

use crate::engine::error::StoreError;

/// SQLSTATEs, and prefixes of them, after which trying again can help (PostgreSQL manual, appendix A).
const PASSING: [&str; 10] = [
    "08",    // connection exceptions
    "25006", // the database is read-only: a standby, or a full disk at many a provider
    "25P03", // idle in transaction for too long
    "40001", // serialization failure
    "40P01", // deadlock
    "53",    // out of connections, memory or disk
    "55P03", // a lock was not available in time
    "57014", // the statement was cancelled, by its time-out or by somebody
    "57P0",  // the server ends, has crashed, starts up, or ended an idle session
    "58",    // the server's own input and output
];
/// The database was dropped: inside `57P0`, and it will not come back by waiting.
const DATABASE_DROPPED: &str = "57P04";

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let text = describe(&error);
        let may_pass = match error.as_database_error() {
            Some(database) => database.code().is_some_and(|code| passes(&code)),
            // `Protocol` is a broken conversation: the connection is thrown away and the next one works.
            None => matches!(
                error,
                sqlx::Error::Io(_)
                    | sqlx::Error::Tls(_)
                    | sqlx::Error::Protocol(_)
                    | sqlx::Error::PoolTimedOut
                    | sqlx::Error::PoolClosed
                    | sqlx::Error::WorkerCrashed
                    | sqlx::Error::BeginFailed
            ),
        };
        if may_pass {
            Self::Unavailable(text)
        } else {
            Self::Refused(text)
        }
    }
}

fn passes(code: &str) -> bool {
    code != DATABASE_DROPPED && PASSING.iter().any(|prefix| code.starts_with(prefix))
}

/// Whether an error is the violation of this constraint or unique index.
pub(super) fn violates(error: &sqlx::Error, constraint: &str) -> bool {
    error
        .as_database_error()
        .is_some_and(|database| database.constraint() == Some(constraint))
}

/// The error with its causes and its SQLSTATE, in one line.
pub(super) fn describe(error: &sqlx::Error) -> String {
    if let Some(database) = error.as_database_error() {
        let code = database.code().unwrap_or_default();
        return format!("{} (SQLSTATE {code})", database.message());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

/// Puts before an error what was tried.
pub(super) fn during(operation: &str, error: StoreError) -> StoreError {
    match error {
        StoreError::Fenced => StoreError::Fenced,
        StoreError::NoSuchJob => StoreError::NoSuchJob,
        StoreError::Unavailable(text) => StoreError::Unavailable(format!("{operation}: {text}")),
        StoreError::Refused(text) => StoreError::Refused(format!("{operation}: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_waiting() {
        for code in [
            "08006", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P02",
            "57P03", "57P05", "25006", "58030",
        ] {
            assert!(passes(code), "{code}");
        }
        for code in [
            "23505", "23514", "42P01", "42501", "57P04", "22P05", "XX001",
        ] {
            assert!(!passes(code), "{code}");
        }
    }

    #[test]
    fn io_is_away_and_damage_is_refused() {
        let io = sqlx::Error::Io(std::io::Error::other("broken pipe"));
        assert!(
            matches!(StoreError::from(io), StoreError::Unavailable(text) if text.contains("broken pipe"))
        );
        let missing = StoreError::from(sqlx::Error::RowNotFound);
        assert!(matches!(missing, StoreError::Refused(_)));
        assert_eq!(
            during("read x", StoreError::Refused("why".to_owned())).to_string(),
            "the store refused: read x: why"
        );
    }
}
