//! What the target's errors mean: whether waiting helps, whether one record can be to blame, and what to do.

use std::error::Error as _;

use crate::{engine::error::SinkError, model::Code};

/// SQLSTATEs, and prefixes of them, after which trying again can help (PostgreSQL manual, appendix A).
const PASSING: [&str; 11] = [
    "08",    // connection exceptions
    "25006", // the database is read-only: a standby, or a full disk at many a provider
    "25P03", // idle in transaction for too long
    "25P04", // a transaction for too long
    "40001", // serialization failure
    "40P01", // deadlock
    "53",    // out of connections, memory or disk
    "55P03", // a lock was not available in time
    "57014", // the statement was cancelled, by its time-out or by somebody
    "57P0",  // the server ends, has crashed, starts up, or ended an idle session
    "58",    // the server's own input and output
];
/// The statement was cancelled, by its time-out or by somebody.
const CANCELLED: &str = "57014";
/// The database was dropped: inside `57P0`, and it will not come back by waiting.
const DATABASE_DROPPED: &str = "57P04";
/// SQLSTATEs, and prefixes, that a whole statement mostly gets whatever its rows are. Some types' input functions raise them
/// for one value (`tsvector` 42601, `regclass` 42P01), and a trigger may raise any of them, so the code alone settles nothing.
const OF_THE_STATEMENT: [&str; 4] = [
    "0A", // not supported
    "3F", // no such schema
    "42", // syntax, access, missing tables and columns, types that do not fit
    "55", // the table is not in the state for it
];
/// Insufficient privilege.
const LACKS_A_RIGHT: &str = "42501";
/// Bytes of the target's own detail that are repeated.
const DETAIL_BYTES: usize = 300;

/// Why a conversation with the target did not come to its end.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It is away or busy: the same is tried again.
    Away(String),
    /// It did not get through with the rows in time: fewer of them are tried.
    TooSlow(String),
    /// It refused a statement with rows: one of them may be to blame.
    Rows(Refusal),
    /// It would refuse the same again.
    Refused(SinkError),
}

/// What the target said of a statement with rows.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Its words, with the SQLSTATE.
    pub(super) text: String,
    sqlstate: String,
}

impl Refusal {
    /// Whether the code is one that a fault of the table has, too.
    pub(super) fn may_be_of_the_table(&self) -> bool {
        OF_THE_STATEMENT
            .iter()
            .any(|prefix| self.sqlstate.starts_with(prefix))
    }

    /// Whether a right is missing. No type says so of a value, and hardly a trigger.
    pub(super) fn is_of_rights(&self) -> bool {
        self.sqlstate == LACKS_A_RIGHT
    }

    /// As a fault of the table `target`, with what mends it.
    pub(super) fn of_the_table(&self, target: &str, role: &str) -> SinkError {
        let remedy = match self.sqlstate.as_str() {
            LACKS_A_RIGHT => {
                format!("; as an owner of the table: GRANT SELECT, INSERT, UPDATE, DELETE ON {target} TO {role};")
            }
            "42P01" | "3F000" => {
                "; create the table again, then start the job. A plain start goes on behind what was written before, and does not write those rows again: to have them in the new table, start it with from=earliest, or with from=timestamp and an instant".to_owned()
            }
            _ if self.may_be_of_the_table() => {
                "; the table is no longer what the spec was checked against".to_owned()
            }
            _ => String::new(),
        };
        SinkError::refused(format!("write to {target}: {}{remedy}", self.text))
    }
}

impl Trouble {
    /// Classifies the error of a statement that holds no rows of ours.
    pub(super) fn of_statement(doing: &str, error: &sqlx::Error) -> Self {
        let text = format!("{doing}: {}", describe(error));
        if passes(error) {
            Self::Away(text)
        } else {
            Self::Refused(SinkError::refused(text))
        }
    }

    /// Classifies the error of a statement that writes rows into the table `target`.
    pub(super) fn of_rows(target: &str, error: &sqlx::Error) -> Self {
        let text = describe(error);
        if sqlstate(error).as_deref() == Some(CANCELLED) {
            return Self::TooSlow(format!("write to {target}: {text}"));
        }
        if passes(error) {
            return Self::Away(format!("write to {target}: {text}"));
        }
        match sqlstate(error) {
            Some(sqlstate) => Self::Rows(Refusal { text, sqlstate }),
            None => Self::Refused(SinkError::refused(format!("write to {target}: {text}"))),
        }
    }

    /// As the callers of a sink hear it.
    pub(super) fn into_error(self) -> SinkError {
        match self {
            Self::Away(text) | Self::TooSlow(text) => SinkError::away(text),
            Self::Rows(refusal) => SinkError::refused(refusal.text),
            Self::Refused(error) => error,
        }
    }
}

/// Progress in the target that is not what this job left there.
pub(super) fn mismatch(detail: impl Into<String>) -> Trouble {
    Trouble::Refused(SinkError {
        code: Code::ProgressMismatch,
        ..SinkError::refused(detail)
    })
}

/// The SQLSTATE, if PostgreSQL has answered.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<String> {
    let database = error.as_database_error()?;
    database.code().map(std::borrow::Cow::into_owned)
}

/// Whether trying the same again can help.
pub(super) fn passes(error: &sqlx::Error) -> bool {
    match sqlstate(error) {
        Some(code) => {
            code != DATABASE_DROPPED && PASSING.iter().any(|prefix| code.starts_with(prefix))
        }
        // `Protocol` is a broken conversation: the connection is thrown away and the next one works.
        None => matches!(
            error,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::WorkerCrashed
                | sqlx::Error::BeginFailed
        ),
    }
}

/// The error with its causes, its SQLSTATE and the target's detail, in one line.
pub(super) fn describe(error: &sqlx::Error) -> String {
    if let Some(database) = error.as_database_error() {
        let code = database.code().unwrap_or_default();
        let mut text = format!("{} (SQLSTATE {code})", database.message());
        if code == "25006" {
            text.push_str(": the database is read-only or a standby; the connection's url must lead to the primary");
        }
        let detail = database
            .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
            .and_then(sqlx::postgres::PgDatabaseError::detail);
        if let Some(detail) = detail {
            let end = (0..=DETAIL_BYTES.min(detail.len()))
                .rev()
                .find(|end| detail.is_char_boundary(*end))
                .unwrap_or(0);
            let shown = detail.get(..end).unwrap_or_default();
            let mark = if end < detail.len() { "..." } else { "" };
            text = format!("{text}: {shown}{mark}");
        }
        return text;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_gone_names_the_way_to_its_earlier_rows() {
        let refusal = Refusal {
            text: "relation \"orders\" does not exist (SQLSTATE 42P01)".to_owned(),
            sqlstate: "42P01".to_owned(),
        };
        let said = refusal.of_the_table("public.orders", "writer").to_string();
        for part in [
            "does not write those rows again",
            "from=earliest",
            "from=timestamp",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
}
