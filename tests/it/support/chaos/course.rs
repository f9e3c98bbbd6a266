//! What a run is about, besides deaths.

use std::time::Duration;

use serde_json::{Value, json};

/// What happens to the job and to its topic while its servers die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// Nothing else.
    Plain,
    /// The topic gets more partitions, and the job another number of subtasks.
    Growing,
    /// The job is bounded: it has to end at the same place, however often it dies on its way.
    Bounded,
    /// Some records cannot be processed: their partitions are parked until an operator leaves them out.
    Parked,
}

/// A partition appeared in the topic while a server was up, or while none was.
pub(crate) const GROWN: &str = "partition-added";
/// A server has accepted another number of subtasks for the lives after it.
pub(crate) const RESCALED: &str = "rescaled";
/// An operator left out a record.
pub(crate) const SKIPPED: &str = "record-skipped";

/// Partitions of a topic that grows, in the end.
const GROWN_TO: i32 = 8;
/// What a bounded job may read in a second until its last life. Without a limit it would be at its end before it has died.
const BOUNDED_RATE: u64 = 300;
/// Offsets of each partition for each death: more than a life can read.
const BOUNDED_LIFE: u64 = 300;

impl Course {
    /// Partitions at the beginning.
    pub(crate) fn partitions(self) -> i32 {
        match self {
            Self::Growing => 3,
            Self::Plain | Self::Bounded | Self::Parked => 4,
        }
    }

    /// Partitions at the end.
    pub(crate) fn most_partitions(self) -> i32 {
        match self {
            Self::Growing => GROWN_TO,
            Self::Plain | Self::Bounded | Self::Parked => self.partitions(),
        }
    }

    /// Where the partitions end, for that many deaths.
    pub(crate) fn end(self, kills: u64) -> Option<i64> {
        let end = i64::try_from((kills + 2) * BOUNDED_LIFE).expect("a number of deaths");
        (self == Self::Bounded).then_some(end)
    }

    /// One record in so many cannot be processed.
    pub(crate) fn bad_records(self) -> Option<u32> {
        (self == Self::Parked).then_some(500)
    }

    /// Between two transactions of a writer, at most.
    pub(crate) fn pause(self) -> Duration {
        match self {
            Self::Plain | Self::Bounded => Duration::from_millis(20),
            // One record after the other is decided by hand, and more partitions are written.
            Self::Growing | Self::Parked => Duration::from_millis(120),
        }
    }

    /// Says in the job's document what the course needs.
    pub(crate) fn shape(self, spec: &mut Value, topic: &str, kills: u64) {
        let source = &mut spec["source"];
        match self {
            Self::Plain => {}
            Self::Growing => source["partition_discovery"] = json!({"interval": "1s"}),
            Self::Bounded => {
                let end = self.end(kills);
                let ends = (0..self.partitions()).map(|number| (number.to_string(), json!(end)));
                let ends: serde_json::Map<_, _> = ends.collect();
                source["stop_at"] = json!({"mode": "specific-offsets", "offsets": {topic: ends}});
                spec["limits"] = json!({"records_per_s": BOUNDED_RATE});
            }
            Self::Parked => source["format"] = json!("json"),
        }
    }
}
