//! One fault in a request, tied to the place it stands in.

use serde::Serialize;
use utoipa::ToSchema;

/// What is wrong with one member of a document, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{pointer}: {message}{}", as_owner(.statement.as_deref()))]
pub struct FieldError {
    /// JSON pointer (RFC 6901) to the member, as the caller sent it.
    #[schema(examples("/source/topics"))]
    pub pointer: String,
    /// The fault and its remedy.
    pub message: String,
    /// The SQL that mends it, to be run by the owner of the table; left out where no statement does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(examples("ALTER TABLE \"public\".\"orders\" ADD COLUMN \"total\" jsonb;"))]
    pub statement: Option<String>,
    /// Whether the fault is a member that the document does not have (code `unknown-member`).
    #[serde(skip)]
    pub unknown_member: bool,
}

impl FieldError {
    /// A fault of a known member.
    #[must_use]
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
            statement: None,
            unknown_member: false,
        }
    }

    /// Adds the SQL that mends it.
    #[must_use]
    pub fn mended_by(mut self, statement: impl Into<String>) -> Self {
        self.statement = Some(statement.into());
        self
    }

    /// A member that does not exist in this document.
    #[must_use]
    pub fn unknown(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
            statement: None,
            unknown_member: true,
        }
    }
}

/// The end of a fault that is told in one line.
fn as_owner(statement: Option<&str>) -> String {
    statement.map_or_else(String::new, |statement| {
        format!("; as the owner run: {statement}")
    })
}
