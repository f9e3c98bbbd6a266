//! What waits to be written: encoded rows, and how far each partition comes with them.

use std::{collections::BTreeMap, ops::Range};

use chrono::DateTime;

use super::mapping::Rows;
use crate::model::{
    Offset, PartitionOffsets, TopicPartition, job_status::FailedRecord, record::ConsumerRecord,
};

/// What is known of a row's record besides where it lies.
#[derive(Debug, Clone, Copy)]
struct About {
    timestamp_ms: Option<i64>,
    key_bytes: Option<usize>,
    value_bytes: Option<usize>,
}

/// Rows in the order of their records, and where the partitions stand behind them.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) rows: Rows,
    about: Vec<About>,
    /// The partitions that move, rows or not.
    ends: PartitionOffsets,
}

impl Chunk {
    pub(super) fn new(rows: Rows) -> Self {
        Self {
            rows,
            about: Vec::new(),
            ends: PartitionOffsets::new(),
        }
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.about.clear();
        self.ends.clear();
    }

    /// Whether there is nothing to write, not even a position.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ends.is_empty()
    }

    /// Notes the record of the row that was just encoded.
    pub(super) fn note(&mut self, record: &ConsumerRecord<'_>) {
        self.about.push(About {
            timestamp_ms: record.timestamp_ms,
            key_bytes: record.key.map(<[u8]>::len),
            value_bytes: record.value.map(<[u8]>::len),
        });
    }

    /// Moves a partition. It never goes back.
    pub(super) fn advance(&mut self, partition: &TopicPartition, to: Offset) {
        match self.ends.get_mut(partition) {
            Some(end) => *end = to.max(*end),
            None => {
                self.ends.insert(partition.clone(), to);
            }
        }
    }

    /// Where partitions stand behind some rows. Behind the last row of all that is where the chunk ends; before that, behind
    /// the records themselves.
    pub(super) fn ends_of(&self, rows: &Range<usize>) -> PartitionOffsets {
        if rows.end == self.rows.len() {
            return self.ends.clone();
        }
        let mut ends: BTreeMap<&TopicPartition, i64> = BTreeMap::new();
        for row in rows.clone() {
            let (partition, record_offset) = self.rows.origin(row);
            ends.insert(partition, record_offset);
        }
        ends.into_iter()
            .filter_map(|(partition, last)| Some((partition.clone(), Offset::after(last)?)))
            .collect()
    }

    /// Whether a row deletes.
    pub(super) fn is_deletion(&self, row: usize) -> bool {
        self.rows.slice(row..row + 1).deletions() > 0
    }

    /// Names the record of a row.
    pub(super) fn record(&self, row: usize) -> FailedRecord {
        let (partition, offset) = self.rows.origin(row);
        let about = self.about.get(row);
        FailedRecord {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset,
            timestamp: about
                .and_then(|about| about.timestamp_ms)
                .and_then(DateTime::from_timestamp_millis),
            key_bytes: about.and_then(|about| about.key_bytes),
            value_bytes: about.and_then(|about| about.value_bytes),
        }
    }
}
