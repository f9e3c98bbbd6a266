//! Parked partitions: what would fail the same way again stops one partition and not the job.
//!
//! The subtask parks: it lets nothing of the partition count any more, takes it out of its consumer's assignment, and keeps
//! its position, which therefore stays in every checkpoint and with the sink. The job task knows why and shows it. A
//! partition goes on by one road only, whoever sends it there: a position is *decided*, stored with the next checkpoint as
//! that checkpoint's decision, and only then given to the subtask, like a partition that is read for the first time. So a
//! crash at any moment finds it either parked where it was (it comes to the same record and parks again) or behind.

use tokio::sync::oneshot;

use super::error::JobError;
use crate::model::{
    CheckpointId,
    offset::Offset,
    resolver::StartReason,
    topic::{TopicId, TopicPartition},
};

/// A partition that cannot go on.
#[derive(Debug)]
pub(super) struct Parking {
    /// Which.
    pub partition: TopicPartition,
    /// What the job would end with.
    pub cause: JobError,
}

/// A record of a batch that is left out.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// Its partition.
    pub partition: TopicPartition,
    /// Its place in the batch.
    pub index: usize,
    /// What the job would end with.
    pub cause: JobError,
}

/// Where a parked partition is to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decided {
    /// Next record to read.
    pub offset: Offset,
    /// The topic's id; another one than before if the topic was made again.
    pub topic_id: Option<TopicId>,
    /// Why there, where that is another reason than before.
    pub reason: Option<StartReason>,
    /// The checkpoint that decided the position, if nothing is decided now: the partition goes on where it stood.
    pub position_id: Option<CheckpointId>,
}

/// What became of a request to leave out the record at which a partition is parked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipOutcome {
    /// The position behind it is stored with this checkpoint, and the partition goes on there.
    Skipped {
        /// The checkpoint; `None` in a job without checkpoints.
        checkpoint: Option<CheckpointId>,
        /// The position.
        next_offset: Offset,
    },
    /// No partition is parked at this record.
    NotParkedThere,
}

/// Somebody who waits for a decision to be stored.
#[derive(Debug)]
pub(super) struct SkipWaiter {
    /// Which partition.
    pub partition: TopicPartition,
    /// The position that was decided.
    pub next_offset: Offset,
    /// Whom to tell.
    pub reply: oneshot::Sender<SkipOutcome>,
}
