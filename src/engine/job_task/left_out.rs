//! Records that were left out, told of now and then: a topic full of them must not fill the history.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::JobTask;
use crate::{
    engine::bad_records::{BadRecords, LeftOutRecord},
    model::errors_spec::OnBadRecord,
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

    /// What there is to tell now.
    fn due(&mut self, now: Instant) -> Option<Value> {
        let is_early = self.told.is_some_and(|told| now - told < TELL_EVERY);
        if self.records == 0 || is_early {
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

    pub(super) fn tell_left_out(&mut self) {
        let Some(mut details) = self.left_out.due(Instant::now()) else {
            return;
        };
        let (kind, topic) = match &self.run.spec.errors.on_bad_record {
            OnBadRecord::DeadLetter { topic, .. } => ("records-dead-lettered", Some(topic)),
            OnBadRecord::Stop | OnBadRecord::Skip => ("records-skipped", None),
        };
        if let Some(topic) = topic {
            details["topic"] = json!(topic);
        }
        tracing::warn!(records = %details["records"], kind, first = %details["first"][0], "records that cannot be processed were left out");
        self.notes.tell(kind, details);
    }
}
