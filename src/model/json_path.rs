//! Paths to one value inside a JSON document: the singular queries of RFC 9535, with name and index selectors only.
//!
//! `$.order.lines[0]['unit price']` names at most one value of a document. Everything of the RFC that could name several
//! (`*`, `..`, slices, filters, unions) is refused, because one value is wanted; so are negative indices, which
//! cannot be answered before the end of an array was seen.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The most steps of a path.
const MAX_STEPS: usize = 64;

/// A parsed path and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    text: String,
    steps: Vec<PathStep>,
}

/// One selector of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PathStep {
    /// The member of this name of an object.
    Name(String),
    /// The element of an array, counted from 0.
    Index(usize),
}

/// Why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct PathFault {
    /// Where, counted in characters from 1.
    pub position: usize,
    /// What is wrong there.
    pub message: String,
}

impl JsonPath {
    /// Parses a path.
    ///
    /// # Errors
    /// The first place that is not understood.
    pub fn parse(text: &str) -> Result<Self, PathFault> {
        let mut parser = Parser {
            characters: text.chars().collect(),
            at: 0,
        };
        let steps = parser.path()?;
        Ok(Self {
            text: text.to_owned(),
            steps,
        })
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its selectors, from the root on; none for `$`.
    #[must_use]
    pub fn steps(&self) -> &[PathStep] {
        &self.steps
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for JsonPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for JsonPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

struct Parser {
    characters: Vec<char>,
    at: usize,
}

impl Parser {
    fn path(&mut self) -> Result<Vec<PathStep>, PathFault> {
        if self.next() != Some('$') {
            self.at = 0;
            return Err(self.fault("a path begins with $"));
        }
        let mut steps = Vec::new();
        while self.at < self.characters.len() {
            let before = self.at;
            self.skip_blanks();
            let step = match self.peek() {
                Some('.') => self.shorthand()?,
                Some('[') => self.bracketed()?,
                // The RFC allows blanks before a segment, not behind the last one.
                None => {
                    self.at = before;
                    return Err(self.fault("no blank may follow the path"));
                }
                Some(other) => {
                    return Err(self.fault(format!("'{other}' where .name or [...] goes on")));
                }
            };
            steps.push(step);
            if steps.len() > MAX_STEPS {
                return Err(self.fault(format!("a path has at most {MAX_STEPS} steps")));
            }
        }
        Ok(steps)
    }

    fn shorthand(&mut self) -> Result<PathStep, PathFault> {
        self.at += 1;
        match self.peek() {
            Some('.') => {
                return Err(self.fault("'..' may name several values, and one is wanted"));
            }
            Some('*') => {
                return Err(self.fault("'*' may name several values, and one is wanted"));
            }
            Some(first) if is_name_first(first) => {}
            Some(other) => {
                return Err(self.fault(format!(
                    "'{other}' begins no plain name; write ['...'] for names with other characters"
                )));
            }
            None => return Err(self.fault("a name is missing behind the dot")),
        }
        let mut name = String::new();
        while let Some(character) = self
            .peek()
            .filter(|character| is_name_first(*character) || character.is_ascii_digit())
        {
            name.push(character);
            self.at += 1;
        }
        Ok(PathStep::Name(name))
    }

    fn bracketed(&mut self) -> Result<PathStep, PathFault> {
        self.at += 1;
        self.skip_blanks();
        let step = match self.peek() {
            Some(quote @ ('\'' | '"')) => PathStep::Name(self.quoted(quote)?),
            Some('0'..='9') => self.index()?,
            Some('-') => {
                return Err(self.fault("indices count from 0; negative ones are not supported"));
            }
            Some('*' | '?' | ':') => {
                return Err(self.fault(
                    "wildcards, filters and slices may name several values, and one is wanted",
                ));
            }
            Some(_) => return Err(self.fault("a quoted name or an index belongs in brackets")),
            None => return Err(self.fault("the bracket is not closed")),
        };
        self.skip_blanks();
        match self.peek() {
            Some(']') => {
                self.at += 1;
                Ok(step)
            }
            Some(',' | ':') => {
                Err(self.fault("unions and slices may name several values, and one is wanted"))
            }
            _ => Err(self.fault("']' is missing")),
        }
    }

    fn index(&mut self) -> Result<PathStep, PathFault> {
        let begin = self.at;
        while self.peek().is_some_and(|digit| digit.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.characters[begin..self.at].iter().collect();
        let has_leading_zero = digits.len() > 1 && digits.starts_with('0');
        // The RFC bounds indices by I-JSON's exact integers.
        let index = digits
            .parse::<u64>()
            .ok()
            .filter(|index| *index < 1 << 53)
            .and_then(|index| usize::try_from(index).ok());
        match index {
            Some(index) if !has_leading_zero => Ok(PathStep::Index(index)),
            _ => {
                self.at = begin;
                Err(self.fault("is no index: a number below 2^53 without leading zeros"))
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, PathFault> {
        self.at += 1;
        let mut name = String::new();
        loop {
            match self.peek() {
                None => return Err(self.fault(format!("the closing {quote} is missing"))),
                Some(character) if character == quote => {
                    self.at += 1;
                    return Ok(name);
                }
                Some('\\') => name.push(self.escape(quote)?),
                Some(character) if character < ' ' => {
                    return Err(self.fault("control characters are written \\u00XX"));
                }
                Some(character) => {
                    name.push(character);
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self, quote: char) -> Result<char, PathFault> {
        let begin = self.at;
        self.at += 1;
        let escaped = match self.next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(plain @ ('/' | '\\')) => plain,
            Some(other) if other == quote => other,
            Some('u') => return self.unicode(begin),
            _ => {
                self.at = begin;
                return Err(self.fault("is no escape of RFC 9535"));
            }
        };
        Ok(escaped)
    }

    fn unicode(&mut self, begin: usize) -> Result<char, PathFault> {
        let mut units = vec![self.hex_unit(begin)?];
        if (0xd800..0xdc00).contains(&units[0])
            && self.peek() == Some('\\')
            && self.characters.get(self.at + 1) == Some(&'u')
        {
            self.at += 2;
            units.push(self.hex_unit(begin)?);
        }
        let mut decoded = char::decode_utf16(units);
        match (decoded.next(), decoded.next()) {
            (Some(Ok(character)), None) => Ok(character),
            _ => {
                self.at = begin;
                Err(self.fault("is half of a surrogate pair"))
            }
        }
    }

    fn hex_unit(&mut self, begin: usize) -> Result<u16, PathFault> {
        let end = self.at + 4;
        let digits: Option<String> = self
            .characters
            .get(self.at..end)
            .map(|digits| digits.iter().collect());
        let unit = digits
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|digits| u16::from_str_radix(&digits, 16).ok());
        let Some(unit) = unit else {
            self.at = begin;
            return Err(self.fault("\\u needs four hexadecimal digits"));
        };
        self.at = end;
        Ok(unit)
    }

    fn peek(&self) -> Option<char> {
        self.characters.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += 1;
        next
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(' ' | '\t' | '\n' | '\r')) {
            self.at += 1;
        }
    }

    fn fault(&self, message: impl Into<String>) -> PathFault {
        PathFault {
            position: self.at + 1,
            message: message.into(),
        }
    }
}

fn is_name_first(character: char) -> bool {
    character.is_ascii_alphabetic() || character == '_' || character >= '\u{80}'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> PathStep {
        PathStep::Name(text.to_owned())
    }

    #[test]
    fn single_paths_are_parsed() {
        for (text, steps) in [
            ("$", vec![]),
            ("$.a", vec![name("a")]),
            ("$._a1.größe", vec![name("_a1"), name("größe")]),
            (
                "$.a.b[0]['x y']",
                vec![name("a"), name("b"), PathStep::Index(0), name("x y")],
            ),
            (r#"$["it's"]['a"b']"#, vec![name("it's"), name("a\"b")]),
            (
                r"$['it\'s\n\u0041\uD83D\uDE00\/']",
                vec![name("it's\nA😀/")],
            ),
            ("$ [ 12 ] .a", vec![PathStep::Index(12), name("a")]),
            ("$['']", vec![name("")]),
        ] {
            assert_eq!(JsonPath::parse(text).unwrap().steps(), steps, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_at_its_place() {
        for (text, position, word) in [
            ("", 1, "begins with $"),
            ("a.b", 1, "begins with $"),
            ("$a", 2, "'a'"),
            ("$.", 3, "missing"),
            ("$..a", 3, "several"),
            ("$.*", 3, "several"),
            ("$.a[*]", 5, "several"),
            ("$.a[?@.b]", 5, "several"),
            ("$.a[1:2]", 6, "several"),
            ("$.a[0,1]", 6, "several"),
            ("$['a','b']", 6, "several"),
            ("$.a[-1]", 5, "negative"),
            ("$.a[01]", 5, "index"),
            ("$.a[9007199254740992]", 5, "2^53"),
            ("$.a[b]", 5, "quoted"),
            ("$.a['b]", 8, "closing"),
            ("$.a['b'", 8, "']'"),
            ("$.a[", 5, "not closed"),
            ("$.1a", 3, "plain name"),
            ("$.a-b", 4, "'-'"),
            (r"$['\x']", 4, "escape"),
            (r"$['\uD83D']", 4, "surrogate"),
            (r"$['\u12']", 4, "hexadecimal"),
            ("$.a ", 4, "blank"),
            ("$.a; drop table b", 4, "';'"),
        ] {
            let fault = JsonPath::parse(text).unwrap_err();
            assert_eq!(fault.position, position, "{text}: {fault}");
            assert!(fault.message.contains(word), "{text}: {fault}");
        }
        assert!(JsonPath::parse(&format!("${}", ".a".repeat(65))).is_err());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in r"\$?[.\[\]'\\u0-9a-f$ *-]{0,24}|\PC{0,24}") {
            // Answering at all is the property; what parses also reads back.
            if let Ok(path) = JsonPath::parse(&text) {
                prop_assert_eq!(JsonPath::parse(path.as_str()), Ok(path));
            }
        }
    }
}
