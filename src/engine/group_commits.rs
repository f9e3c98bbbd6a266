//! Commits to the consumer group: one in flight, the newest waits, an older one that waited is displaced.
//!
//! Displacing is harmless: checkpoints carry correctness, the group's offset is a report to other tools. Commits are sent
//! over the consumer's own client from a blocking thread and not through the consumer thread, so they go out while a slow
//! sink holds that thread.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    error::{ErrorClass, KafkaError},
    ports::OffsetCommitter,
};
use crate::model::{
    checkpoint::{GroupCommit, GroupCommitStatus},
    code::Code,
    ids::{CheckpointId, InstallId, JobName},
    job_status::CommitCounters,
    offset::PartitionOffsets,
};

/// How long a commit may take. The first one of a client also looks for the coordinator.
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);

/// Stands in the place of the checkpoint's number in the note of a periodic commit.
pub const PERIODIC_NOTE: &str = "periodic";

/// A commit to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingCommit {
    /// The checkpoint.
    pub id: CheckpointId,
    /// Its positions.
    pub offsets: PartitionOffsets,
}

/// The slot and what became of the commits.
#[derive(Debug, Default)]
pub(super) struct GroupCommits {
    in_flight: Option<CheckpointId>,
    pending: Option<PendingCommit>,
    /// What became of them.
    pub counters: CommitCounters,
}

/// What came of offering a commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offered {
    /// The commit to send now, if none is in flight.
    pub send: Option<PendingCommit>,
    /// An older one that will not be sent.
    pub displaced: Option<CheckpointId>,
}

impl GroupCommits {
    /// Offers a checkpoint's offsets.
    pub(super) fn offer(&mut self, commit: PendingCommit) -> Offered {
        if self.in_flight.is_none() {
            self.in_flight = Some(commit.id);
            return Offered {
                send: Some(commit),
                displaced: None,
            };
        }
        let displaced = self.pending.replace(commit).map(|older| older.id);
        if displaced.is_some() {
            self.counters.displaced += 1;
        }
        Offered {
            send: None,
            displaced,
        }
    }

    /// The commit in flight has ended; gives the one to send next.
    pub(super) fn ended(
        &mut self,
        id: CheckpointId,
        outcome: &Result<(), KafkaError>,
        now: DateTime<Utc>,
    ) -> (GroupCommit, Option<PendingCommit>) {
        self.in_flight = None;
        let report = match outcome {
            Ok(()) => {
                self.counters.succeeded += 1;
                self.counters.last_success_at = Some(now);
                self.counters.last_committed = Some(id);
                self.counters.last_error = None;
                GroupCommit {
                    status: GroupCommitStatus::Ok,
                    error: None,
                }
            }
            Err(error) => {
                self.counters.failed += 1;
                self.counters.last_error = Some(error.to_string());
                GroupCommit {
                    status: GroupCommitStatus::Failed,
                    error: Some(error.to_string()),
                }
            }
        };
        let next = self.pending.take();
        self.in_flight = next.as_ref().map(|commit| commit.id);
        (report, next)
    }

    /// A commit that was due could not be made: the sink did not get everything durable.
    pub(super) fn gave_up(&mut self, why: &str) {
        self.counters.failed += 1;
        self.counters.last_error = Some(format!("nothing was sent: {why}"));
    }

    /// Whether a commit is in flight or waits.
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The commit that was sent and is not answered.
    pub(super) fn in_flight(&self) -> Option<CheckpointId> {
        self.in_flight
    }
}

/// The note beside each committed offset: by it the offsets view tells this job's commits from others'.
pub(super) fn note(install: InstallId, job: &JobName, id: CheckpointId) -> String {
    format!("handover:{}:{job}:{id}", install.short())
}

/// The same of a job without checkpoints, whose commits have no number.
pub(super) fn periodic_note(install: InstallId, job: &JobName) -> String {
    format!("handover:{}:{job}:{PERIODIC_NOTE}", install.short())
}

/// Sends a commit, unless the lease may have run out by now: the group has no fence, and the next owner may have told it a
/// newer position already. Blocks.
pub(super) fn send(
    committer: &Arc<dyn OffsetCommitter>,
    commit: &PendingCommit,
    note: &str,
    until: Instant,
) -> Result<(), KafkaError> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(KafkaError {
            operation: "commit to the group".to_owned(),
            detail: "the lease was not renewed in time; the next commit has the positions"
                .to_owned(),
            code: Code::LeaseLost,
            class: ErrorClass::Infrastructure,
        });
    }
    committer.commit(&commit.offsets, note, COMMIT_DEADLINE.min(left))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{engine::error::ErrorClass, model::Code};

    fn commit(id: i64) -> PendingCommit {
        PendingCommit {
            id: CheckpointId(id),
            offsets: PartitionOffsets::new(),
        }
    }

    #[test]
    fn one_is_in_flight_and_the_newest_waits() {
        let mut commits = GroupCommits::default();
        assert_eq!(
            commits.offer(commit(1)),
            Offered {
                send: Some(commit(1)),
                displaced: None
            }
        );
        assert_eq!(
            commits.offer(commit(2)),
            Offered {
                send: None,
                displaced: None
            }
        );
        assert_eq!(
            commits.offer(commit(3)),
            Offered {
                send: None,
                displaced: Some(CheckpointId(2))
            }
        );
        let (report, next) = commits.ended(CheckpointId(1), &Ok(()), DateTime::UNIX_EPOCH);
        assert_eq!(
            (report.status, next),
            (GroupCommitStatus::Ok, Some(commit(3)))
        );
        assert!(commits.is_busy());
        let refused = KafkaError {
            operation: "commit".into(),
            detail: "unknown member".into(),
            code: Code::KafkaError,
            class: ErrorClass::Infrastructure,
        };
        let (report, next) = commits.ended(CheckpointId(3), &Err(refused), DateTime::UNIX_EPOCH);
        assert_eq!((report.status, next), (GroupCommitStatus::Failed, None));
        assert!(!commits.is_busy());
        assert_eq!(
            (
                commits.counters.succeeded,
                commits.counters.failed,
                commits.counters.displaced
            ),
            (1, 1, 1)
        );
    }

    proptest! {
        /// In any order of offers and ends: one is in flight, they are sent in the order in which they were offered, each is
        /// sent or displaced and never both, and the newest is never displaced.
        #[test]
        fn one_is_in_flight_and_none_is_forgotten(steps in prop::collection::vec((any::<bool>(), any::<bool>()), 1..60)) {
            let refused = || KafkaError {
                operation: "commit".into(),
                detail: "no".into(),
                code: Code::KafkaError,
                class: ErrorClass::Infrastructure,
            };
            let mut commits = GroupCommits::default();
            let (mut offered, mut sent, mut displaced) = (0, Vec::new(), BTreeSet::new());
            let mut in_flight: Option<CheckpointId> = None;
            for (offers, succeeds) in steps {
                if offers {
                    offered += 1;
                    let answer = commits.offer(commit(offered));
                    prop_assert_eq!(answer.send.is_some(), in_flight.is_none());
                    if let Some(commit) = answer.send {
                        in_flight = Some(commit.id);
                        sent.push(commit.id.0);
                    }
                    if let Some(older) = answer.displaced {
                        prop_assert!(older.0 < offered && displaced.insert(older.0));
                    }
                } else if let Some(id) = in_flight.take() {
                    let outcome = if succeeds { Ok(()) } else { Err(refused()) };
                    let (_, next) = commits.ended(id, &outcome, DateTime::UNIX_EPOCH);
                    if let Some(commit) = next {
                        in_flight = Some(commit.id);
                        sent.push(commit.id.0);
                    }
                }
                prop_assert_eq!(commits.in_flight(), in_flight);
            }
            while let Some(id) = in_flight {
                let (_, next) = commits.ended(id, &Ok(()), DateTime::UNIX_EPOCH);
                in_flight = next.as_ref().map(|commit| commit.id);
                sent.extend(next.map(|commit| commit.id.0));
            }
            prop_assert!(sent.is_sorted());
            prop_assert_eq!(sent.last().copied().unwrap_or(0), offered);
            let mut all: Vec<i64> = sent.into_iter().chain(displaced).collect();
            all.sort_unstable();
            prop_assert_eq!(all, (1..=offered).collect::<Vec<_>>());
        }
    }
}
