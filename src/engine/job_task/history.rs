//! What a run tells for the job's history.
//!
//! Entries go to the store in their order, under the lease, and stay here until it has them. While one write is under way
//! the entries behind it gather, and the next write takes them together: however many partitions are parked at once, none
//! is missing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::{Value, json};

use super::{Background, JobTask, checkpoints::store_failure};
use crate::{
    engine::error::StoreError,
    model::event::{EventKind, HistoryEntry},
};

/// Entries of one write.
const AT_ONCE: usize = 256;
/// Entries that wait for a store that is away, beside those of partitions.
const WAITING: usize = 1_024;
/// What a partition can come to while nothing is stored: it is gone, parked and moved. What follows needs the store.
const WAITING_PER_PARTITION: usize = 4;

/// Entries that the store does not have yet, in order.
#[derive(Debug, Default)]
pub(super) struct History {
    waiting: VecDeque<HistoryEntry>,
    /// How many of them are in the write under way.
    in_write: usize,
    /// Entries there was no room for.
    left_out: BTreeMap<EventKind, u64>,
}

impl History {
    /// Whether the store has everything.
    pub(super) fn is_written(&self) -> bool {
        self.waiting.is_empty()
    }

    fn add(&mut self, entry: HistoryEntry, most: usize) {
        if self.waiting.len() >= most {
            *self.left_out.entry(entry.kind).or_default() += 1;
            return;
        }
        self.waiting.push_back(entry);
    }

    /// What the next write takes, unless one is under way.
    fn begin(&mut self) -> Option<Arc<[HistoryEntry]>> {
        if self.in_write > 0 || self.waiting.is_empty() {
            return None;
        }
        self.in_write = self.waiting.len().min(AT_ONCE);
        Some(self.waiting.iter().take(self.in_write).cloned().collect())
    }

    fn written(&mut self) {
        self.waiting.drain(..self.in_write);
        self.in_write = 0;
        // Behind what they came after.
        let left_out = std::mem::take(&mut self.left_out);
        self.waiting
            .extend(left_out.into_iter().map(|(kind, entries)| HistoryEntry {
                kind,
                details: json!({"entries_left_out": entries}),
            }));
    }
}

impl JobTask {
    /// Tells something for the history.
    pub(super) fn tell(&mut self, kind: EventKind, details: Value) {
        let most = WAITING + WAITING_PER_PARTITION * self.partitions.len();
        self.history.add(HistoryEntry { kind, details }, most);
        self.write_history();
    }

    fn write_history(&mut self) {
        if self.is_fenced {
            return;
        }
        let Some(entries) = self.history.begin() else {
            return;
        };
        let (store, lease, write) = (
            Arc::clone(&self.run.store),
            self.run.lease,
            self.store_writes.begin(),
        );
        self.background.spawn(async move {
            let told = write.until_known(move || {
                let (store, entries) = (Arc::clone(&store), Arc::clone(&entries));
                async move { store.note_events(&lease, &entries).await }
            });
            Background::Told(told.await)
        });
    }

    pub(super) fn on_told(&mut self, outcome: Result<(), StoreError>) {
        match outcome {
            Ok(()) => {
                self.history.written();
                self.write_history();
            }
            Err(error) => self.fail(store_failure(error)),
        }
    }

    /// At the end of the run: what the store did not take in time is at least in the log.
    pub(super) fn log_untold(&self) {
        for HistoryEntry { kind, details } in &self.history.waiting {
            tracing::warn!(kind = kind.as_str(), %details, "the run ended before the store answered: the history may miss this entry");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> HistoryEntry {
        HistoryEntry {
            kind: EventKind::PartitionParked,
            details: json!(number),
        }
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let mut history = History::default();
        for number in 0..5 {
            history.add(entry(number), 3);
        }
        let first = history.begin().unwrap();
        assert_eq!(*first, [entry(0), entry(1), entry(2)]);
        assert_eq!(history.begin(), None, "one write at a time keeps the order");
        history.written();
        history.add(entry(5), 3);
        let counted = HistoryEntry {
            details: json!({"entries_left_out": 2}),
            ..entry(0)
        };
        assert_eq!(*history.begin().unwrap(), [counted, entry(5)]);
        assert!(!history.is_written());
        history.written();
        assert!(history.is_written());
    }
}
