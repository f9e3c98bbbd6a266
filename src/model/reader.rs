//! Reads a JSON object member by member and collects every fault, where serde would stop at the first.
//!
//! A caller at three in the morning should not have to send a document five times to learn five faults. The reader is
//! asked for the members one by one, remembers which ones it was asked for, and at the end reports the others as unknown,
//! with the nearest known name.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::field_error::FieldError;

/// One JSON object being read. Faults go to the list it was opened with.
#[derive(Debug)]
pub struct ObjectReader<'a> {
    pointer: String,
    members: Option<&'a Map<String, Value>>,
    known: Vec<&'static str>,
    errors: &'a mut Vec<FieldError>,
}

impl<'a> ObjectReader<'a> {
    /// Opens `value`, which stands at `pointer`. Anything but an object is a fault, and then reads as an empty one.
    pub fn open(value: &'a Value, pointer: &str, errors: &'a mut Vec<FieldError>) -> Self {
        let members = value.as_object();
        if members.is_none() {
            errors.push(FieldError::new(
                pointer,
                format!("must be an object, not {}", kind_of(value)),
            ));
        }
        Self {
            pointer: pointer.to_owned(),
            members,
            known: Vec::new(),
            errors,
        }
    }

    /// The pointer of a member.
    #[must_use]
    pub fn pointer_to(&self, name: &str) -> String {
        format!(
            "{}/{}",
            self.pointer,
            name.replace('~', "~0").replace('/', "~1")
        )
    }

    fn ask_for(&mut self, name: &'static str) {
        if !self.known.contains(&name) {
            self.known.push(name);
        }
    }

    /// The raw value of a member; `None` when absent or null.
    pub fn raw(&mut self, name: &'static str) -> Option<&'a Value> {
        self.ask_for(name);
        self.members?.get(name).filter(|value| !value.is_null())
    }

    /// The raw value of a member, null included: for members where null means something.
    pub fn raw_or_null(&mut self, name: &'static str) -> Option<&'a Value> {
        self.ask_for(name);
        self.members?.get(name)
    }

    /// A member that may be absent; a value of the wrong form is a fault.
    pub fn optional<T: DeserializeOwned>(&mut self, name: &'static str) -> Option<T> {
        let value = self.raw(name)?;
        match T::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                self.fault(name, error.to_string());
                None
            }
        }
    }

    /// A member with a default.
    pub fn or<T: DeserializeOwned>(&mut self, name: &'static str, default: T) -> T {
        self.optional(name).unwrap_or(default)
    }

    /// A member that must be there; `remedy` says what to write.
    pub fn required<T: DeserializeOwned>(&mut self, name: &'static str, remedy: &str) -> Option<T> {
        if self.raw(name).is_none() {
            // What is no object was reported already, and has no member to ask for.
            if self.members.is_some() {
                self.fault(name, format!("is required: {remedy}"));
            }
            return None;
        }
        self.optional(name)
    }

    /// Reports a fault of a member.
    pub fn fault(&mut self, name: &str, message: impl Into<String>) {
        self.errors
            .push(FieldError::new(self.pointer_to(name), message));
    }

    /// Opens a member that is itself an object.
    pub fn object(&mut self, name: &'static str) -> Option<ObjectReader<'_>> {
        let value = self.raw(name)?;
        let pointer = self.pointer_to(name);
        Some(ObjectReader::open(value, &pointer, self.errors))
    }

    /// Lends the list of faults, for a part that is read elsewhere.
    pub fn errors(&mut self) -> &mut Vec<FieldError> {
        self.errors
    }

    /// Reports every member that nobody asked for.
    pub fn finish(self) {
        for name in self.members.into_iter().flat_map(Map::keys) {
            if self.known.contains(&name.as_str()) {
                continue;
            }
            let message = match nearest(name, &self.known) {
                Some(near) => format!("no such member; did you mean '{near}'?"),
                None => format!("no such member; known here: {}", self.known.join(", ")),
            };
            self.errors
                .push(FieldError::unknown(self.pointer_to(name), message));
        }
    }
}

/// The known name nearest to a misspelt one, if one is near enough to be meant.
#[must_use]
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let flat = |text: &str| text.replace(['-', '_', '.'], "").to_ascii_lowercase();
    let name = flat(name);
    known
        .iter()
        .map(|candidate| (edit_distance(&name, &flat(candidate)), *candidate))
        .filter(|(distance, candidate)| *distance <= 1 + candidate.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance over characters, one row at a time.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, left_char) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, right_char) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(left_char != *right_char);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_fault_is_reported_at_once_with_its_pointer() {
        let value = json!({"topics": 5, "isolaton": "read_committed", "deep": {"x": 1, "a/b": 2}});
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(&value, "/source", &mut errors);
        assert_eq!(reader.optional::<Vec<String>>("topics"), None);
        assert_eq!(reader.required::<String>("connection", "name one"), None);
        let _isolation: Option<String> = reader.optional("isolation");
        if let Some(mut deep) = reader.object("deep") {
            assert_eq!(deep.optional("x"), Some(1));
            deep.finish();
        }
        reader.finish();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/source/topics",
                "/source/connection",
                "/source/deep/a~1b",
                "/source/isolaton"
            ]
        );
        assert!(
            errors[3].message.contains("'isolation'"),
            "{}",
            errors[3].message
        );
        assert!(errors[3].unknown_member);
    }

    #[test]
    fn what_is_no_object_is_one_fault() {
        let value = json!(5);
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(&value, "/watermark", &mut errors);
        assert_eq!(reader.required::<String>("strategy", "name one"), None);
        reader.finish();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].message, "must be an object, not a number");
    }
}
