//! A partition that a running job does not read for the moment.
//!
//! It stands at a position that stays in every checkpoint; the others go on. Why it stands there is a code of the
//! vocabulary: `blocked-on-record`, `offset-out-of-range`, `topic-recreated` ... Somebody has to decide, or the cause has to
//! go away.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    code::Code,
    job_status::{FailedRecord, JobFailure},
    offset::Offset,
    resolver::LogBounds,
    topic::TopicPartition,
};

/// A partition that is not read, where it stands and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ParkedPartition {
    /// Its topic.
    pub topic: String,
    /// Its number.
    pub partition: i32,
    /// Next record to read once it goes on: a record that cannot be processed itself. `null` if it never had a position.
    #[schema(value_type = Option<i64>)]
    pub offset: Option<Offset>,
    /// Why, as a code.
    pub code: Code,
    /// What was done to the record: `decode` or `write`; `null` if no record is to blame.
    pub phase: Option<String>,
    /// Why, in the words of whoever noticed.
    pub detail: String,
    /// The record, if one is to blame.
    pub record: Option<FailedRecord>,
    /// The offsets between the position and the log, if it lies outside.
    pub lost: Option<LostRange>,
    /// Since when.
    pub since: DateTime<Utc>,
}

impl ParkedPartition {
    /// A partition that is parked for what would otherwise have ended the job.
    #[must_use]
    pub fn at(partition: &TopicPartition, offset: Option<Offset>, failure: JobFailure) -> Self {
        Self {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            offset,
            code: failure.code,
            phase: failure.phase,
            detail: failure.summary,
            record: failure.record,
            lost: None,
            since: failure.first_seen,
        }
    }

    /// Whether it stands at a record that is to blame, at this offset: then that may be left out.
    #[must_use]
    pub fn stands_at_record(&self, at: Offset) -> bool {
        let record = self.record.as_ref();
        self.offset == Some(at) && record.is_some_and(|record| record.offset == at.get())
    }

    /// Which partition.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), self.partition)
    }
}

/// On which side of the log a position lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LostSide {
    /// Before its first record: retention (or somebody) deleted what was not read yet.
    BelowEarliest,
    /// Behind its end: the log was cut, and what is written there now has offsets that were read already.
    BeyondLatest,
}

/// The offsets between a position and the log that does not hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// On which side.
    pub side: LostSide,
    /// The first offset of the range.
    #[schema(value_type = i64)]
    pub from: Offset,
    /// The first offset behind the range.
    #[schema(value_type = i64)]
    pub to: Offset,
    /// How many offsets: records, transaction markers and compacted ones.
    pub offsets: i64,
}

impl LostRange {
    /// The range between a position and a log; `None` if the log holds the position (its end included).
    #[must_use]
    pub fn between(position: Offset, bounds: &LogBounds) -> Option<Self> {
        let (side, from, to) = if position < bounds.earliest {
            (LostSide::BelowEarliest, position, bounds.earliest)
        } else if position > bounds.latest {
            (LostSide::BeyondLatest, bounds.latest, position)
        } else {
            return None;
        };
        Some(Self {
            side,
            from,
            to,
            offsets: to.distance_from(from),
        })
    }
}

impl LostRange {
    /// The part that lies before the end of a bounded run.
    #[must_use]
    pub fn up_to(self, end: Offset) -> Self {
        let to = self.to.min(end).max(self.from);
        Self {
            to,
            offsets: to.distance_from(self.from),
            ..self
        }
    }
}

impl std::fmt::Display for LostRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (from, to, offsets) = (self.from, self.to, self.offsets);
        match self.side {
            LostSide::BelowEarliest => write!(
                f,
                "offsets {from} to {to} ({offsets}) are gone: the log begins at {to}"
            ),
            LostSide::BeyondLatest => write!(
                f,
                "offsets {from} to {to} ({offsets}) were read and are gone: the log ends at {from}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_range_is_what_lies_between_the_position_and_the_log() {
        let offset = |number| Offset::new(number).unwrap();
        let bounds = LogBounds {
            earliest: offset(10),
            last_stable: offset(18),
            latest: offset(20),
        };
        let rows = [
            (9, Some((LostSide::BelowEarliest, 9, 10, 1))),
            (10, None),
            (20, None),
            (25, Some((LostSide::BeyondLatest, 20, 25, 5))),
        ];
        for (position, expected) in rows {
            let lost = LostRange::between(offset(position), &bounds);
            let lost = lost.map(|lost| (lost.side, lost.from.get(), lost.to.get(), lost.offsets));
            assert_eq!(lost, expected, "position {position}");
        }
        for (end, to) in [(4, 5), (7, 7), (30, 10)] {
            let lost = LostRange::between(offset(5), &bounds).unwrap();
            let lost = lost.up_to(offset(end));
            assert_eq!((lost.to.get(), lost.offsets), (to, to - 5), "end {end}");
        }
    }
}
