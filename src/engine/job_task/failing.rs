//! Checkpoints that fail in a row, told in growing distances: a sink that stands still for a night must not fill the history.
//!
//! The first of a row is told at once. Later ones are counted, and told with their number when enough time has passed since the
//! last entry; what was not told is told when the row ends, with a checkpoint that completes or with the run.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::JobTask;
use crate::model::{checkpoint::FailedCheckpoint, event::EventKind, ids::CheckpointId};

/// Between the first two entries of a row; each further distance is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// The longest distance.
const LONGEST_PAUSE: Duration = Duration::from_secs(3_600);

/// A row of checkpoints that failed.
#[derive(Debug)]
struct Row {
    since: DateTime<Utc>,
    failures: u64,
    /// The newest one, if no entry tells of it.
    untold: Option<FailedCheckpoint>,
    next: Instant,
    pause: Duration,
}

/// What is told of checkpoints that fail.
#[derive(Debug, Default)]
pub(super) struct FailingLog {
    row: Option<Row>,
}

impl FailingLog {
    /// One more has failed. Answers what there is to tell now.
    fn failed(&mut self, failed: FailedCheckpoint, now: Instant) -> Option<Value> {
        let row = self.row.get_or_insert(Row {
            since: failed.started_at,
            failures: 0,
            untold: None,
            next: now,
            pause: FIRST_PAUSE,
        });
        row.failures += 1;
        row.untold = Some(failed);
        if now < row.next {
            return None;
        }
        if row.failures > 1 {
            row.pause = (row.pause * 2).min(LONGEST_PAUSE);
        }
        row.next = now + row.pause;
        row.tell()
    }

    /// The run ends. Answers what is not told yet.
    fn rest(&mut self) -> Option<Value> {
        self.row.as_mut()?.tell()
    }

    /// One has completed. Answers what there is to tell of a row that it ends; a single failure is told already.
    fn completed(&mut self, id: CheckpointId) -> Option<Value> {
        let row = self.row.take()?;
        let is_row = row.failures > 1;
        is_row
            .then(|| json!({"checkpoint": id, "failed_in_a_row": row.failures, "since": row.since}))
    }
}

impl Row {
    fn tell(&mut self) -> Option<Value> {
        let failed = self.untold.take()?;
        Some(json!({
            "checkpoint": failed.id, "failure": failed.failure, "failed_in_a_row": self.failures, "since": self.since,
        }))
    }
}

impl JobTask {
    /// Tells that a checkpoint has failed, unless that was told lately.
    pub(super) fn tell_failed(&mut self, failed: &FailedCheckpoint) {
        if self.keeps_none() {
            return;
        }
        if let Some(details) = self.failing.failed(failed.clone(), Instant::now()) {
            self.tell(EventKind::CheckpointFailed, details);
        }
    }

    /// Tells how many have failed that were not told of, at the end of the run.
    pub(super) fn tell_failed_rest(&mut self) {
        if let Some(details) = self.failing.rest() {
            self.tell(EventKind::CheckpointFailed, details);
        }
    }

    /// Tells that checkpoints complete again.
    pub(super) fn tell_completed(&mut self, id: CheckpointId) {
        if let Some(details) = self.failing.completed(id) {
            self.tell(EventKind::CheckpointsCompleteAgain, details);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        checkpoint::{CheckpointFailure, CheckpointKind, CheckpointPhases},
        ids::LeaseEpoch,
    };

    fn failed(id: i64) -> FailedCheckpoint {
        FailedCheckpoint {
            id: CheckpointId(id),
            kind: CheckpointKind::Periodic,
            epoch: LeaseEpoch(1),
            started_at: DateTime::UNIX_EPOCH,
            failed_at: DateTime::UNIX_EPOCH,
            phases: CheckpointPhases::default(),
            failure: CheckpointFailure {
                code: "checkpoint-timeout".to_owned(),
                phase: "barrier".to_owned(),
                summary: String::new(),
                slowest: Vec::new(),
            },
        }
    }

    /// A night of ten hours in which an attempt fails every three seconds.
    #[test]
    fn a_night_of_failures_is_a_few_entries_and_none_is_lost() {
        let start = Instant::now();
        let mut log = FailingLog::default();
        let mut told: Vec<(i64, i64)> = Vec::new();
        for id in 1..=12_000 {
            let now = start + Duration::from_secs(3) * u32::try_from(id).unwrap();
            let details = log.failed(failed(id), now);
            let details = details.inspect(|details| assert_eq!(details["checkpoint"], id));
            told.extend(details.map(|details| (id, details["failed_in_a_row"].as_i64().unwrap())));
        }
        assert!(told.iter().all(|(id, count)| id == count), "{told:?}");
        let first: Vec<i64> = told.iter().take(4).map(|(id, _)| *id).collect();
        // At once, and after 1, 2 and 4 minutes more.
        assert_eq!(first, [1, 21, 61, 141]);
        assert!(told.len() < 20, "{told:?}");
        assert_eq!(log.rest().unwrap()["failed_in_a_row"], 12_000);
        assert_eq!(log.rest(), None);
        let again = log.completed(CheckpointId(12_001)).unwrap();
        assert_eq!(
            (&again["checkpoint"], &again["failed_in_a_row"]),
            (&12_001.into(), &12_000.into())
        );
        // The next row begins at once, and a single one needs no end.
        let first = log.failed(failed(12_002), start).unwrap();
        assert_eq!(first["failed_in_a_row"], 1);
        assert_eq!(log.completed(CheckpointId(12_003)), None);
    }
}
