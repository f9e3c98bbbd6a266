//! Rows as they go to the database, beside the records they come from.

use std::{ops::Range, sync::Arc};

use chrono::{DateTime, Datelike, Timelike};

use crate::model::{record::BatchRun, topic::TopicPartition};

/// The first year of PostgreSQL's `timestamptz` that is there from its first day on.
const FIRST_YEAR: i32 = -4_711;

/// One value of a row, not yet in the form of its way to the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cell<'a> {
    Null,
    /// Text without NUL.
    Text(&'a str),
    /// Text that had to be made.
    Made(String),
    /// Bytes, for a `bytea`.
    Bytes(&'a [u8]),
    Integer(i64),
    /// Milliseconds since 1970, for a `timestamptz`; in the range that [`timestamp`] accepts.
    Timestamp(DateTime<chrono::Utc>),
}

/// The instant, if PostgreSQL can hold it.
pub(super) fn timestamp(millis: i64) -> Option<DateTime<chrono::Utc>> {
    DateTime::from_timestamp_millis(millis).filter(|instant| instant.year() >= FIRST_YEAR)
}

/// Encoded rows of one transaction, in the order of their records.
///
/// Rows that are appended lie in one buffer of COPY's text format. Rows that replace others lie in one list of texts for
/// each column, and a row can be a deletion; which row of a key is the last one is settled by the statements, because only
/// the database knows which keys are equal (`1` and `01` are, for an integer).
#[derive(Debug, Clone)]
pub struct Rows {
    layout: Layout,
    /// The partitions that rows come from.
    partitions: Vec<Arc<TopicPartition>>,
    /// For each row its partition, as an index of `partitions`, and its record's own offset.
    origins: Vec<(usize, i64)>,
}

#[derive(Debug, Clone)]
enum Layout {
    Copy {
        text: Vec<u8>,
        /// Where each row ends in `text`.
        ends: Vec<usize>,
    },
    Arrays {
        columns: Vec<TextColumn>,
        /// For each row whether it deletes.
        gone: Vec<bool>,
    },
}

/// The values of one column, one behind the other.
#[derive(Debug, Clone, Default)]
struct TextColumn {
    text: String,
    /// Where each value ends in `text`, and whether it is there at all.
    ends: Vec<(usize, bool)>,
}

impl Rows {
    pub(super) fn to_copy() -> Self {
        Self::new(Layout::Copy {
            text: Vec::new(),
            ends: Vec::new(),
        })
    }

    pub(super) fn to_arrays(columns: usize) -> Self {
        Self::new(Layout::Arrays {
            columns: vec![TextColumn::default(); columns],
            gone: Vec::new(),
        })
    }

    fn new(layout: Layout) -> Self {
        Self {
            layout,
            partitions: Vec::new(),
            origins: Vec::new(),
        }
    }

    /// How many rows there are, deletions included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.origins.len()
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty()
    }

    /// Bytes of all encoded values: what the rows take in memory, nearly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.layout {
            Layout::Copy { text, .. } => text.len(),
            Layout::Arrays { columns, .. } => columns.iter().map(|column| column.text.len()).sum(),
        }
    }

    /// Forgets all rows and keeps the memory.
    pub fn clear(&mut self) {
        match &mut self.layout {
            Layout::Copy { text, ends } => {
                text.clear();
                ends.clear();
            }
            Layout::Arrays { columns, gone } => {
                for column in columns {
                    column.text.clear();
                    column.ends.clear();
                }
                gone.clear();
            }
        }
        self.partitions.clear();
        self.origins.clear();
    }

    /// All rows.
    #[must_use]
    pub fn all(&self) -> RowsSlice<'_> {
        self.slice(0..self.len())
    }

    /// Some rows that follow each other, to be written by themselves.
    ///
    /// # Panics
    /// When the range does not lie within `0..len()`.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> RowsSlice<'_> {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "rows {range:?} of {}",
            self.len()
        );
        RowsSlice { rows: self, range }
    }

    /// Which record a row comes from: its partition, and where it lies in that partition's log.
    ///
    /// # Panics
    /// When there is no such row.
    #[must_use]
    pub fn origin(&self, row: usize) -> (&TopicPartition, i64) {
        let (partition, record_offset) = self.origins[row];
        (&self.partitions[partition], record_offset)
    }

    /// Puts a value behind the ones of the row that is under way. `column` counts over the columns of the statement.
    pub(super) fn push(&mut self, column: usize, cell: &Cell<'_>) {
        match &mut self.layout {
            Layout::Copy { text, .. } => {
                if column > 0 {
                    text.push(b'\t');
                }
                push_copy(text, cell);
            }
            Layout::Arrays { columns, .. } => columns[column].push(cell),
        }
    }

    /// Ends the row that is under way.
    pub(super) fn end_row(&mut self, run: &BatchRun, record_offset: i64, is_gone: bool) {
        match &mut self.layout {
            Layout::Copy { text, ends } => {
                text.push(b'\n');
                ends.push(text.len());
            }
            Layout::Arrays { gone, .. } => gone.push(is_gone),
        }
        let is_last = |partition: &Arc<TopicPartition>| {
            Arc::ptr_eq(partition, &run.partition) || **partition == *run.partition
        };
        // Rows come in runs of a partition, so the one looked for is nearly always the last.
        let index = self.partitions.iter().rposition(is_last);
        let index = index.unwrap_or_else(|| {
            self.partitions.push(Arc::clone(&run.partition));
            self.partitions.len() - 1
        });
        self.origins.push((index, record_offset));
    }

    /// Takes back what was pushed of a row that is under way.
    pub(super) fn drop_row(&mut self) {
        let rows = self.origins.len();
        match &mut self.layout {
            Layout::Copy { text, ends } => text.truncate(ends.last().copied().unwrap_or(0)),
            Layout::Arrays { columns, .. } => {
                for column in columns {
                    column.ends.truncate(rows);
                    let end = column.ends.last().map_or(0, |(end, _)| *end);
                    column.text.truncate(end);
                }
            }
        }
    }
}

/// Rows that follow each other.
#[derive(Debug, Clone)]
pub struct RowsSlice<'a> {
    rows: &'a Rows,
    range: Range<usize>,
}

impl<'a> RowsSlice<'a> {
    /// How many rows it has, deletions included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The rows in COPY's text format; empty if they are not appended.
    #[must_use]
    pub fn copy_text(&self) -> &'a [u8] {
        let Layout::Copy { text, ends } = &self.rows.layout else {
            return &[];
        };
        let end_before = |row: usize| row.checked_sub(1).map_or(0, |before| ends[before]);
        &text[end_before(self.range.start)..end_before(self.range.end)]
    }

    /// The values of each column, in the order of the statement's parameters; empty if the rows are appended.
    #[must_use]
    pub fn columns(&self) -> Vec<Vec<Option<&'a str>>> {
        let Layout::Arrays { columns, .. } = &self.rows.layout else {
            return Vec::new();
        };
        columns
            .iter()
            .map(|column| column.values(self.range.clone()))
            .collect()
    }

    /// For each row whether it deletes; the statement's last parameter. Empty if the rows are appended.
    #[must_use]
    pub fn gone(&self) -> &'a [bool] {
        match &self.rows.layout {
            Layout::Copy { .. } => &[],
            Layout::Arrays { gone, .. } => &gone[self.range.clone()],
        }
    }

    /// How many rows delete.
    #[must_use]
    pub fn deletions(&self) -> usize {
        self.gone().iter().filter(|gone| **gone).count()
    }
}

impl TextColumn {
    fn push(&mut self, cell: &Cell<'_>) {
        match cell {
            Cell::Null => {}
            Cell::Text(text) => self.text.push_str(text),
            Cell::Made(text) => self.text.push_str(text),
            Cell::Bytes(bytes) => {
                self.text.push_str("\\x");
                let mut digits = [b'0'; 128];
                for piece in bytes.chunks(digits.len() / 2) {
                    let digits = &mut digits[..piece.len() * 2];
                    write_hex(digits, piece);
                    self.push_ascii(digits);
                }
            }
            Cell::Integer(number) => self.text.push_str(Digits::of(*number).as_str()),
            Cell::Timestamp(instant) => {
                let mut bytes = Vec::with_capacity(32);
                push_timestamp(&mut bytes, instant);
                self.push_ascii(&bytes);
            }
        }
        let is_there = *cell != Cell::Null;
        self.ends.push((self.text.len(), is_there));
    }

    fn push_ascii(&mut self, digits: &[u8]) {
        self.text
            .push_str(std::str::from_utf8(digits).unwrap_or_default());
    }

    fn values(&self, range: Range<usize>) -> Vec<Option<&str>> {
        let mut begin = range
            .start
            .checked_sub(1)
            .map_or(0, |before| self.ends[before].0);
        self.ends[range]
            .iter()
            .map(|(end, is_there)| {
                let value = &self.text[begin..*end];
                begin = *end;
                is_there.then_some(value)
            })
            .collect()
    }
}

fn push_copy(text: &mut Vec<u8>, cell: &Cell<'_>) {
    match cell {
        Cell::Null => text.extend_from_slice(b"\\N"),
        Cell::Text(plain) => push_escaped(text, plain.as_bytes()),
        Cell::Made(plain) => push_escaped(text, plain.as_bytes()),
        Cell::Bytes(bytes) => {
            // The backslash of bytea's own form is escaped once more.
            text.extend_from_slice(b"\\\\x");
            push_hex(text, bytes);
        }
        Cell::Integer(number) => text.extend_from_slice(Digits::of(*number).as_str().as_bytes()),
        Cell::Timestamp(instant) => push_timestamp(text, instant),
    }
}

/// Escapes what ends values and rows in COPY's text format, and the backslash itself.
fn push_escaped(text: &mut Vec<u8>, plain: &[u8]) {
    // Most texts have nothing to escape. A loop over a fixed length without an exit is one of vector instructions.
    let mut pieces = plain.chunks_exact(32);
    for piece in &mut pieces {
        if piece
            .iter()
            .fold(false, |any, byte| any | is_special(*byte))
        {
            push_escaped_bytes(text, piece);
        } else {
            text.extend_from_slice(piece);
        }
    }
    push_escaped_bytes(text, pieces.remainder());
}

fn push_escaped_bytes(text: &mut Vec<u8>, mut plain: &[u8]) {
    while let Some(at) = plain.iter().position(|byte| is_special(*byte)) {
        text.extend_from_slice(&plain[..at]);
        let letter = match plain[at] {
            b'\t' => b't',
            b'\n' => b'n',
            b'\r' => b'r',
            other => other,
        };
        text.extend_from_slice(&[b'\\', letter]);
        plain = &plain[at + 1..];
    }
    text.extend_from_slice(plain);
}

fn is_special(byte: u8) -> bool {
    (byte == b'\\') | (byte == b'\t') | (byte == b'\n') | (byte == b'\r')
}

const HEX: [u8; 16] = *b"0123456789abcdef";

/// Writes bytes as hexadecimal digits, two for each.
fn write_hex(digits: &mut [u8], bytes: &[u8]) {
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = HEX[usize::from(byte >> 4)];
        pair[1] = HEX[usize::from(byte & 15)];
    }
}

fn push_hex(text: &mut Vec<u8>, bytes: &[u8]) {
    let begin = text.len();
    text.resize(begin + bytes.len() * 2, b'0');
    write_hex(&mut text[begin..], bytes);
}

/// A whole number in decimal, without an allocation.
struct Digits {
    bytes: [u8; 20],
    begin: usize,
}

impl Digits {
    fn of(number: i64) -> Self {
        let mut digits = Self {
            bytes: [b'0'; 20],
            begin: 20,
        };
        let mut rest = number.unsigned_abs();
        loop {
            digits.begin -= 1;
            digits.bytes[digits.begin] = digit(rest);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if number < 0 {
            digits.begin -= 1;
            digits.bytes[digits.begin] = b'-';
        }
        digits
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.begin..]).unwrap_or_default()
    }
}

/// The last decimal digit.
fn digit(number: u64) -> u8 {
    b"0123456789"[usize::try_from(number % 10).unwrap_or_default()]
}

/// `2026-11-29 17:19:36.123+00`, and years before the first as PostgreSQL writes them.
fn push_timestamp(text: &mut Vec<u8>, instant: &DateTime<chrono::Utc>) {
    let (date, time) = (instant.date_naive(), instant.time());
    let is_before_christ = date.year() < 1;
    let year = if is_before_christ {
        1 - date.year()
    } else {
        date.year()
    };
    push_number(text, year.unsigned_abs(), 4);
    for (before, number, width) in [
        (b'-', date.month(), 2),
        (b'-', date.day(), 2),
        (b' ', time.hour(), 2),
        (b':', time.minute(), 2),
        (b':', time.second(), 2),
        (b'.', instant.timestamp_subsec_millis(), 3),
    ] {
        text.push(before);
        push_number(text, number, width);
    }
    text.extend_from_slice(b"+00");
    if is_before_christ {
        text.extend_from_slice(b" BC");
    }
}

/// A number with zeros in front up to a width.
fn push_number(text: &mut Vec<u8>, number: u32, width: usize) {
    let digits = Digits::of(i64::from(number));
    let begin = digits.begin.min(digits.bytes.len() - width);
    // In front of the digits there are zeros.
    text.extend_from_slice(&digits.bytes[begin..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(cell: &Cell<'_>) -> String {
        let mut text = Vec::new();
        push_copy(&mut text, cell);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn values_are_escaped_for_copy() {
        for (cell, expected) in [
            (Cell::Null, r"\N"),
            (Cell::Text(""), ""),
            (Cell::Text(r"\N"), r"\\N"),
            (Cell::Text(r"\."), r"\\."),
            (Cell::Text("a\tb\nc\rd\\e"), r"a\tb\nc\rd\\e"),
            (Cell::Text("größe"), "größe"),
            (
                Cell::Text("a long text without anything, and a tab\t, and more of it"),
                r"a long text without anything, and a tab\t, and more of it",
            ),
            (Cell::Bytes(&[]), r"\\x"),
            (Cell::Bytes(&[0, 0x0a, 0xff]), r"\\x000aff"),
            (Cell::Integer(0), "0"),
            (Cell::Integer(i64::MIN), "-9223372036854775808"),
            (Cell::Integer(i64::MAX), "9223372036854775807"),
        ] {
            assert_eq!(copied(&cell), expected);
        }
    }

    #[test]
    fn instants_are_written_as_postgres_reads_them() {
        for (millis, expected) in [
            (0, "1970-01-01 00:00:00.000+00"),
            (1_796_145_576_123, "2026-12-01 17:19:36.123+00"),
            (-1, "1969-12-31 23:59:59.999+00"),
            (253_402_300_800_000, "10000-01-01 00:00:00.000+00"),
            (-62_135_596_800_001, "0001-12-31 23:59:59.999+00 BC"),
        ] {
            assert_eq!(
                copied(&Cell::Timestamp(timestamp(millis).unwrap())),
                expected
            );
        }
        assert_eq!(timestamp(i64::MIN), None);
        assert_eq!(timestamp(i64::MAX), None);
        // 4713 BC, before the first day that PostgreSQL knows.
        assert_eq!(timestamp(-210_900_000_000_000), None);
    }
}
