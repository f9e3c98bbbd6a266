//! Takes the values at several paths out of a JSON document in one pass, as the text they have there.
//!
//! Numbers stay as they were written, so that nothing is rounded on the way through a float. Where a document has a member
//! twice the last one counts, as in `jsonb`.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::model::json_path::{JsonPath, PathStep};

/// Paths as a tree; each leaf has a slot.
#[derive(Debug, Default)]
pub(super) struct Fields {
    root: Node,
    slots: usize,
}

#[derive(Debug, Default)]
struct Node {
    /// Slots that take the whole value here.
    slots: Vec<usize>,
    names: Vec<(String, Node)>,
    elements: Vec<(usize, Node)>,
}

/// What a document has at each slot: JSON text, or `None` where there is nothing.
pub(super) type Found<'a> = Vec<Option<&'a str>>;

impl Fields {
    /// Adds a path; answers its slot.
    pub(super) fn add(&mut self, path: &JsonPath) -> usize {
        let slot = self.slots;
        self.slots += 1;
        let mut node = &mut self.root;
        for step in path.steps() {
            node = node.child(step);
        }
        node.slots.push(slot);
        slot
    }

    /// Reads a document.
    ///
    /// # Errors
    /// When the text is not one JSON value.
    pub(super) fn read<'a>(&self, document: &'a str) -> Result<Found<'a>, serde_json::Error> {
        let mut found = vec![None; self.slots];
        self.root.read(document, &mut found)?;
        Ok(found)
    }
}

impl Node {
    fn child(&mut self, step: &PathStep) -> &mut Self {
        match step {
            PathStep::Name(name) => child_of(&mut self.names, name.clone()),
            PathStep::Index(index) => child_of(&mut self.elements, *index),
        }
    }

    /// The node of a member, by its name as it is written. One that is no text (half of a surrogate pair) is not looked for.
    fn member(&self, written: &str) -> Option<&Self> {
        let decoded: String;
        let name = if written.contains('\\') {
            decoded = serde_json::from_str(written).ok()?;
            &decoded
        } else {
            written.strip_prefix('"')?.strip_suffix('"')?
        };
        let child = self.names.iter().find(|(known, _)| known == name);
        child.map(|(_, node)| node)
    }

    fn is_leaf(&self) -> bool {
        self.names.is_empty() && self.elements.is_empty()
    }

    /// Reads one value, given as its text. Recursion is as deep as paths are long.
    fn read<'a>(&self, text: &'a str, found: &mut Found<'a>) -> Result<(), serde_json::Error> {
        let value = text.trim_matches(super::JSON_BLANKS);
        for slot in &self.slots {
            found[*slot] = Some(value);
        }
        let mut deserializer = serde_json::Deserializer::from_str(value);
        let inside = Inside { node: self, found };
        match value.as_bytes().first() {
            Some(b'{') if !self.names.is_empty() => deserializer.deserialize_map(inside)?,
            Some(b'[') if !self.elements.is_empty() => deserializer.deserialize_seq(inside)?,
            _ => {
                IgnoredAny::deserialize_from(&mut deserializer)?;
            }
        }
        deserializer.end()
    }

    /// Forgets what an earlier member of the same name had.
    fn forget(&self, found: &mut Found<'_>) {
        for slot in &self.slots {
            found[*slot] = None;
        }
        let names = self.names.iter().map(|(_, node)| node);
        for node in names.chain(self.elements.iter().map(|(_, node)| node)) {
            node.forget(found);
        }
    }

    /// Takes the value that comes next in an object or array.
    fn take<'a>(&self, raw: &'a RawValue, found: &mut Found<'a>) -> Result<(), serde_json::Error> {
        self.forget(found);
        if !self.is_leaf() {
            return self.read(raw.get(), found);
        }
        for slot in &self.slots {
            found[*slot] = Some(raw.get());
        }
        Ok(())
    }
}

fn child_of<K: PartialEq>(children: &mut Vec<(K, Node)>, key: K) -> &mut Node {
    let index = children.iter().position(|(known, _)| *known == key);
    let index = index.unwrap_or_else(|| {
        children.push((key, Node::default()));
        children.len() - 1
    });
    &mut children[index].1
}

trait DeserializeFrom {
    fn deserialize_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error>;
}

impl DeserializeFrom for IgnoredAny {
    fn deserialize_from<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_ignored_any(Self).map(drop)
    }
}

struct Inside<'n, 'f, 'de> {
    node: &'n Node,
    found: &'f mut Found<'de>,
}

impl<'de> Visitor<'de> for Inside<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<&'de RawValue>()? {
            match self.node.member(name.get()) {
                Some(child) => {
                    let raw: &'de RawValue = map.next_value()?;
                    child
                        .take(raw, self.found)
                        .map_err(serde::de::Error::custom)?;
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut place = 0;
        loop {
            let child = self.node.elements.iter().find(|(index, _)| *index == place);
            let is_there = match child {
                Some((_, child)) => match seq.next_element::<&'de RawValue>()? {
                    Some(raw) => {
                        child
                            .take(raw, self.found)
                            .map_err(serde::de::Error::custom)?;
                        true
                    }
                    None => false,
                },
                None => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !is_there {
                return Ok(());
            }
            place += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'a>(paths: &[&str], document: &'a str) -> Result<Found<'a>, String> {
        let mut fields = Fields::default();
        for path in paths {
            fields.add(&JsonPath::parse(path).unwrap());
        }
        fields.read(document).map_err(|error| error.to_string())
    }

    #[test]
    fn values_are_found_as_they_are_written() {
        for (path, document, expected) in [
            ("$", " [1, 2]\n", Some("[1, 2]")),
            (
                "$.a",
                r#"{"a": 12345678901234567890.1234567890}"#,
                Some("12345678901234567890.1234567890"),
            ),
            ("$.a", r#"{"a": 1e999}"#, Some("1e999")),
            ("$.a.b", r#"{"a": 1e999}"#, None),
            ("$.a", r#"{"b": 1}"#, None),
            ("$.a", "[1]", None),
            ("$[0]", r#"{"0": 1}"#, None),
            (
                "$.a[1].c",
                r#"{"a": [0, {"c": "x\ty"}]}"#.trim(),
                Some(r#""x\ty""#),
            ),
            ("$.a[2]", r#"{"a": [0, 1]}"#, None),
            ("$.a", r#"{"\ud83d": 0, "a": 1, "\ude00\"": 2}"#, Some("1")),
            ("$['\"']", r#"{"\"": 1}"#, Some("1")),
            ("$['x y']", r#"{"x\u0020y": true}"#, Some("true")),
            ("$.a", r#"{"a": 1, "a": 2}"#, Some("2")),
            ("$.a.b", r#"{"a": {"b": 1}, "a": {}}"#, None),
            ("$.a", r#"{"a": null}"#, Some("null")),
        ] {
            assert_eq!(
                read(&[path], document).unwrap(),
                [expected],
                "{path} {document}"
            );
        }
    }

    #[test]
    fn several_paths_may_lie_within_each_other() {
        let document = r#"{"a": {"b": [1, 2]}, "c": 3}"#;
        assert_eq!(
            read(&["$", "$.a", "$.a.b", "$.a.b[1]", "$.a", "$.c"], document).unwrap(),
            [
                Some(document),
                Some(r#"{"b": [1, 2]}"#),
                Some("[1, 2]"),
                Some("2"),
                Some(r#"{"b": [1, 2]}"#),
                Some("3"),
            ]
        );
    }

    #[test]
    fn what_is_no_json_is_refused_wherever_it_is() {
        for document in [
            "",
            "{",
            r#"{"a": 1} x"#,
            r#"{"a": 01}"#,
            r#"{"b": tru, "a": 1}"#,
            "nul",
            r#"{"a": {"b": }}"#,
            r#"{"c\q": 0, "a": 1}"#,
            "{\"c\n\": 0, \"a\": 1}",
            r#"{1: 0, "a": 1}"#,
        ] {
            assert!(read(&["$.a.b"], document).is_err(), "{document}");
        }
        // Deeper than serde_json follows by recursion.
        let deep = format!(r#"{{"a": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&["$.a"], &deep).unwrap()[0].is_some());
    }
}
