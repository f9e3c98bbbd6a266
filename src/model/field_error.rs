//! One fault in a request, tied to the place it stands in.

use serde::Serialize;
use utoipa::ToSchema;

/// What is wrong with one member of a document, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{pointer}: {message}")]
pub struct FieldError {
    /// JSON pointer (RFC 6901) to the member, as the caller sent it.
    #[schema(examples("/source/topics"))]
    pub pointer: String,
    /// The fault and its remedy.
    pub message: String,
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
            unknown_member: false,
        }
    }

    /// A member that does not exist in this document.
    #[must_use]
    pub fn unknown(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
            unknown_member: true,
        }
    }
}
