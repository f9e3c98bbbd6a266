//! What becomes of records that cannot be processed.
//!
//! A dead letter is delivered before anything behind its record is given to the sink. That is stronger than "before the
//! checkpoint that covers the record": a sink that keeps its own progress goes on from there after a crash, whatever the
//! checkpoint says.

use std::sync::Arc;

use chrono::{DateTime, SecondsFormat, Utc};

use super::{
    error::JobError,
    ports::{DeadLetter, DeadLetterTopic},
};
use crate::model::{
    ids::JobName,
    job_status::FailedRecord,
    record::{RecordBatch, RecordHeader},
};

/// What a subtask does with a record that cannot be processed.
#[derive(Clone)]
pub(super) enum BadRecords {
    /// Its partition is parked.
    Stop,
    /// It is left out.
    Skip,
    /// It is written elsewhere.
    DeadLetter(Arc<dyn DeadLetterTopic>),
}

impl BadRecords {
    pub(super) fn leaves_out(&self) -> bool {
        match self {
            Self::Stop => false,
            Self::Skip | Self::DeadLetter(_) => true,
        }
    }
}

/// A record that was left out, for the history.
#[derive(Debug, Clone)]
pub(super) struct LeftOutRecord {
    /// The record.
    pub record: FailedRecord,
    /// What was done to it.
    pub phase: String,
    /// What is wrong with it.
    pub detail: String,
}

/// The letter of a record of a batch: as it is, and behind its own headers why.
pub(super) fn letter(
    batch: &RecordBatch,
    index: usize,
    cause: &JobError,
    job: &JobName,
    now: DateTime<Utc>,
) -> DeadLetter {
    let record = batch.record(index);
    let failure = cause.failure(now);
    let mut headers = batch.headers(index);
    let mut say = |name: &str, value: String| {
        headers.push(RecordHeader {
            name: format!("handover.error.{name}").into_bytes(),
            value: Some(value.into_bytes()),
        });
    };
    say("job", job.to_string());
    if let Some(failed) = &failure.record {
        say("topic", failed.topic.clone());
        say("partition", failed.partition.to_string());
        say("offset", failed.offset.to_string());
    }
    if let Some(timestamp_ms) = record.timestamp_ms {
        say("timestamp", timestamp_ms.to_string());
    }
    say("code", failure.code.to_string());
    if let Some(phase) = failure.phase {
        say("phase", phase);
    }
    say("detail", failure.summary);
    say("at", now.to_rfc3339_opts(SecondsFormat::Millis, true));
    DeadLetter {
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers,
    }
}
