//! A pattern of topic names.
//!
//! It must match the *whole* name, as in Flink's connector (`Matcher.matches`): `orders` does not read `orders-dead`. The
//! syntax is that of the `regex` crate, whose matching takes linear time whatever the pattern, so no spec can slow the
//! server down. Look-around and back-references, which cannot be matched that way, are refused when the spec is sent.

use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The longest pattern.
const MAX_BYTES: usize = 1_000;
/// The most memory that a compiled pattern may take; a counted repetition can grow without bound.
const MAX_COMPILED: usize = 1 << 20;
/// Kafka's own topics, for brokers that do not say which ones are theirs.
const INTERNAL: [&str; 4] = [
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
];

/// A regular expression over whole topic names.
#[derive(Clone)]
pub struct TopicPattern {
    text: String,
    whole_name: Regex,
}

impl TopicPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// What is wrong with it, for whoever wrote it.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(format!("must be 1 to {MAX_BYTES} bytes"));
        }
        let compile = |pattern: &str| {
            RegexBuilder::new(pattern)
                .size_limit(MAX_COMPILED)
                .build()
                .map_err(|error| error.to_string())
        };
        // By itself first: `a)(b` is none, though it would close the group around it.
        compile(text)?;
        Ok(Self {
            text: text.to_owned(),
            whole_name: compile(&format!(r"\A(?:{text})\z"))?,
        })
    }

    /// Whether it reads a topic of this name. Kafka's own topics are never read by pattern.
    #[must_use]
    pub fn selects(&self, topic: &str) -> bool {
        !INTERNAL.contains(&topic) && self.whole_name.is_match(topic)
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PartialEq for TopicPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for TopicPattern {}

impl fmt::Debug for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TopicPattern").field(&self.text).finish()
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for TopicPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for TopicPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_matches_whole_names_and_no_internal_topics() {
        for (pattern, topic, expected) in [
            ("orders", "orders", true),
            ("orders", "orders-dead", false),
            ("orders", "my-orders", false),
            // Every alternative is tried for the whole name, not only the first that matches somewhere.
            ("a|ab", "ab", true),
            ("orders-.*", "orders-", true),
            ("^orders$", "orders", true),
            (".*", "orders", true),
            (".*", "__consumer_offsets", false),
            ("__.*", "__transaction_state", false),
            ("__.*", "__mine", true),
            ("(?i)ORDERS", "orders", true),
            ("ord.rs", "ordérs", true),
        ] {
            let pattern = TopicPattern::new(pattern).unwrap();
            assert_eq!(pattern.selects(topic), expected, "{pattern} on {topic}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let long = "a".repeat(MAX_BYTES + 1);
        for bad in ["", "(", "a)(b", "(?=a)b", r"(a)\1", "a{10000000}", &*long] {
            assert!(TopicPattern::new(bad).is_err(), "{bad}");
        }
    }

    /// A pattern that takes other engines for ever.
    #[test]
    fn no_pattern_is_slow() {
        let pattern = TopicPattern::new("(a+)+$").unwrap();
        let topic = format!("{}!", "a".repeat(200));
        assert!(!pattern.selects(&topic));
    }
}
