//! Records that were left out, told of now and then: a topic full of them must not fill the history.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::JobTask;
use crate::{
    engine::bad_records::{BadRecords, LeftOutRecord},
    model::{errors_spec::OnBadRecord, event::EventKind},
};

/// Between two entries of the history.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Records that one entry names.
const NAMED: usize = 20;

/// What was left out since it was told last.
#[derive(Debug, Default)]
pub(super) struct LeftOutLog {
    records: usize,
    named: Vec<LeftOutRecord>,
    told: Option<Instant>,
}

impl LeftOutLog {
    pub(super) fn add(&mut self, records: Vec<LeftOutRecord>) {
        self.records += records.len();
        let room = NAMED.saturating_sub(self.named.len());
        self.named.extend(records.into_iter().take(room));
    }

    /// Whether the last entry was long enough ago.
    fn is_due(&self, now: Instant) -> bool {
        self.told.is_none_or(|told| now - told >= TELL_EVERY)
    }

    /// What there is to tell.
    fn take(&mut self, now: Instant) -> Option<Value> {
        if self.records == 0 {
            return None;
        }
        self.told = Some(now);
        let named = std::mem::take(&mut self.named);
        let named: Vec<Value> = named
            .iter()
            .map(|left_out| {
                json!({"record": left_out.record, "phase": left_out.phase, "detail": left_out.detail})
            })
            .collect();
        Some(json!({"records": std::mem::take(&mut self.records), "first": named}))
    }
}

impl JobTask {
    /// What the subtasks do with records that cannot be processed.
    pub(super) fn bad_records(&self) -> BadRecords {
        match (&self.run.spec.errors.on_bad_record, &self.run.dead_letters) {
            (OnBadRecord::Skip, _) => BadRecords::Skip,
            (OnBadRecord::DeadLetter { .. }, Some(topic)) => {
                BadRecords::DeadLetter(std::sync::Arc::clone(topic))
            }
            (OnBadRecord::Stop | OnBadRecord::DeadLetter { .. }, _) => BadRecords::Stop,
        }
    }

    /// Tells what was left out, if the last entry was long enough ago. While the store is away one entry gathers it all.
    pub(super) fn tell_left_out(&mut self) {
        if self.left_out.is_due(Instant::now()) && self.history.is_written() {
            self.tell_left_out_rest();
        }
    }

    /// Tells what was left out since the last entry.
    pub(super) fn tell_left_out_rest(&mut self) {
        let Some(mut details) = self.left_out.take(Instant::now()) else {
            return;
        };
        let (kind, topic) = match &self.run.spec.errors.on_bad_record {
            OnBadRecord::DeadLetter { topic, .. } => (EventKind::RecordsDeadLettered, Some(topic)),
            OnBadRecord::Stop | OnBadRecord::Skip => (EventKind::RecordsSkipped, None),
        };
        if let Some(topic) = topic {
            details["topic"] = json!(topic);
        }
        tracing::warn!(records = %details["records"], kind = kind.as_str(), first = %details["first"][0], "records that cannot be processed were left out");
        self.tell(kind, details);
    }
}
