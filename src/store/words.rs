//! The model's words as they stand in columns: the same ones as in JSON, from the same place.

use serde::{
    Serialize,
    de::{DeserializeOwned, IntoDeserializer, value::Error},
};
use serde_json::Value;

use super::Result;
use crate::engine::error::StoreError;

/// The word of a value that JSON writes as a string.
pub(super) fn word<T: Serialize>(value: &T) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => Ok(word),
        Ok(other) => Err(StoreError::Refused(format!("{other} is no word"))),
        Err(error) => Err(StoreError::Refused(error.to_string())),
    }
}

/// The words of several values.
pub(super) fn words<T: Serialize>(values: &[T]) -> Result<Vec<String>> {
    values.iter().map(word).collect()
}

/// The value of a word that stands in a column.
pub(super) fn read_word<T: DeserializeOwned>(word: &str) -> Result<T> {
    T::deserialize(word.into_deserializer())
        .map_err(|error: Error| StoreError::Refused(format!("read a stored word: {error}")))
}

/// A document for a column of type json, to be bound as `$n::text::json`.
///
/// sqlx binds its own `Json` as jsonb, which sorts the members and refuses U+0000 before the column is reached.
pub(super) fn document<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| StoreError::Refused(error.to_string()))
}

/// Text that a column can hold: PostgreSQL has no U+0000 in text, and callers and brokers can send one.
pub(super) fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        checkpoint::{CheckpointKind, GroupCommitStatus},
        job_state::{DesiredState, JobState},
    };

    #[test]
    fn words_are_those_of_the_model() {
        assert_eq!(
            word(&JobState::Stopping).unwrap(),
            JobState::Stopping.name()
        );
        assert_eq!(
            word(&CheckpointKind::Manual).unwrap(),
            CheckpointKind::Manual.name()
        );
        assert_eq!(
            read_word::<GroupCommitStatus>("displaced").unwrap(),
            GroupCommitStatus::Displaced
        );
        assert!(read_word::<DesiredState>("perhaps").is_err());
        assert!(word(&7).is_err());
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
    }
}
