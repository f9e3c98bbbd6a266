//! The history of a job: what happened to it, when, and by whom.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

macro_rules! event_kinds {
    ($($variant:ident = $text:literal, $doc:literal;)*) => {
        /// What an entry of the history tells.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $(#[doc = $doc] $variant,)*
        }

        impl EventKind {
            /// Every kind, in the order of their words.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
            /// The words of all kinds, for whoever filters by one.
            pub const WORDS: &'static [&'static str] = &[$($text,)*];

            /// The word under which it stands in the history.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

event_kinds! {
    CheckpointFailed = "checkpoint-failed", "Attempts at checkpoints failed: the first of a row is told at once, later ones in growing distances, with their number.";
    CheckpointsCompleteAgain = "checkpoints-complete-again", "A checkpoint completed after several in a row had failed.";
    GroupMoved = "group-moved", "The consumer group was moved to a position.";
    JobCrashed = "job-crashed", "A run ended for a reason that nobody can judge.";
    JobCreated = "job-created", "The job was created.";
    JobDeleted = "job-deleted", "The job was deleted.";
    JobFailed = "job-failed", "The job failed and waits for somebody.";
    JobFinished = "job-finished", "A bounded run came to its ends.";
    JobStarted = "job-started", "A run began.";
    JobStopped = "job-stopped", "A run was stopped.";
    NextStartCancelled = "next-start-cancelled", "Where the next start begins was called off.";
    NextStartSet = "next-start-set", "Where the next start begins was decided.";
    OperationCreated = "operation-created", "Somebody asked for an operation.";
    OperationFinished = "operation-finished", "An operation ended.";
    OperationSuperseded = "operation-superseded", "An operation was called off by another.";
    PartitionGoesOn = "partition-goes-on", "A parked partition is read again.";
    PartitionGone = "partition-gone", "Partitions do not exist any more.";
    PartitionParked = "partition-parked", "A partition is not read any further.";
    PartitionReturned = "partition-returned", "Partitions are there again.";
    PositionForgotten = "position-forgotten", "The position of a partition that does not exist was dropped, as a start asked.";
    PositionMoved = "position-moved", "A start or a run moved a position: its log does not hold it or its topic was created again, and the spec says where to; or the target written to before holds more than the checkpoint.";
    PositionsDecided = "positions-decided", "A checkpoint decided positions.";
    RecordSkipped = "record-skipped", "An operator left out a record.";
    RecordsDeadLettered = "records-dead-lettered", "Records went to the topic for dead letters.";
    RecordsRead = "records-read", "Somebody looked at records.";
    RecordsSkipped = "records-skipped", "Records that cannot be processed were left out.";
    SpecReplaced = "spec-replaced", "The job was given another spec.";
    StartRefused = "start-refused", "A start was refused.";
    TopicRecreated = "topic-recreated", "Another topic has the name of one that is read.";
}

impl EventKind {
    /// The kind of this word.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == word)
    }
}

/// What there is to add to the history.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryEntry {
    /// What it tells.
    pub kind: EventKind,
    /// What else is known of it.
    pub details: Value,
}

/// One entry of the history.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Event {
    /// Its number: later entries have greater ones.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// What happened.
    #[schema(example = "job-started")]
    pub kind: String,
    /// Who did it: a caller, or `handover` and `instance:...` where the server did by itself.
    pub actor: String,
    /// What else is known of it; the members depend on the kind.
    #[schema(value_type = Object)]
    pub details: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A filter finds what is written, and no two kinds are one to it.
    #[test]
    fn every_kind_is_found_by_its_word() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::of_word(kind.as_str()), Some(*kind));
        }
        assert!(EventKind::WORDS.is_sorted());
        assert_eq!(EventKind::of_word("job-startd"), None);
    }
}
