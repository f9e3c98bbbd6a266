//! Names and numbers that identify things. Users type [`JobName`]; the store is keyed by [`JobUid`], so that a
//! deleted and recreated job of the same name never inherits old state.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::field_error::FieldError;

/// The name a user gives a job: `^[a-z][a-z0-9-]{0,62}$`, usable in a URL and as a Kafka group id as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[schema(value_type = String, pattern = "^[a-z][a-z0-9-]{0,62}$", examples("orders"))]
#[serde(transparent)]
pub struct JobName(String);

impl JobName {
    /// Checks the form.
    ///
    /// # Errors
    /// Says what a name may consist of.
    pub fn new(name: &str) -> Result<Self, FieldError> {
        let mut bytes = name.bytes();
        let first_is_letter = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase());
        let rest_fits =
            bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if first_is_letter && rest_fits && name.len() <= 63 {
            return Ok(Self(name.to_owned()));
        }
        Err(FieldError::new(
            "/job",
            "a job name starts with a lower-case letter and holds up to 63 lower-case letters, digits and hyphens",
        ))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobName {
    type Err = FieldError;

    fn from_str(name: &str) -> Result<Self, FieldError> {
        Self::new(name)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

uuid_id! {
    /// The identity of one incarnation of a job; a recreated job has another.
    JobUid
}
uuid_id! {
    /// The identity of one installation (one store database), made by the first migration.
    InstallId
}

impl InstallId {
    /// The first eight hexadecimal digits, as they stand in group commit notes.
    #[must_use]
    pub fn short(&self) -> String {
        let mut text = self.0.simple().to_string();
        text.truncate(8);
        text
    }
}

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        #[schema(value_type = i64)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id! {
    /// Number of a checkpoint; grows strictly within a job over all kinds, failed ones included.
    CheckpointId
}
number_id! {
    /// Fencing number of a job's lease; grows with every change of owner and every restart of the same owner.
    LeaseEpoch
}

impl CheckpointId {
    /// The id that follows.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(transparent)]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            /// What every id of this kind begins with.
            pub const PREFIX: &'static str = $prefix;

            /// Makes the id from the 26 characters of a ULID.
            #[must_use]
            pub fn from_ulid(ulid: &str) -> Self {
                Self(format!("{}{}", $prefix, ulid.to_ascii_lowercase()))
            }

            /// Takes an id as a caller gave it; one of another form simply names nothing.
            #[must_use]
            pub fn from_text(text: &str) -> Self {
                Self(text.to_owned())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// Identity of a stored operation: `op_` and a lower-case ULID.
    OperationId, "op_"
}
text_id! {
    /// Identity of a stored start plan: `pl_` and a lower-case ULID.
    PlanId, "pl_"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_name_is_short_lower_case_and_starts_with_a_letter() {
        for good in ["a", "orders", "orders-2-postgres", &"a".repeat(63)] {
            assert!(JobName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "Orders",
            "1orders",
            "-orders",
            "orders_2",
            "orders/2",
            "ордерс",
            &"a".repeat(64),
        ] {
            assert!(JobName::new(bad).is_err(), "{bad}");
        }
    }
}
