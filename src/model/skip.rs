//! Stepping over one record that a job failed at: what a caller may say, and whether it may be done.
//!
//! A skip is a compare-and-set. It moves a partition by exactly one record, and only from the record that the caller names,
//! and only where the job is known to have failed at it; so it can be repeated, and nobody can jump over healthy records.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    field_error::FieldError, job_status::FailedRecord, offset::Offset, reader::ObjectReader,
    topic::TopicPartition,
};

/// The body of a skip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkipRequest {
    /// The record's topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its own offset, as the failure names it.
    #[schema(value_type = i64)]
    pub offset: Offset,
    /// Why, for the history.
    pub reason: Option<String>,
}

impl SkipRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// All faults at once.
    pub fn read(value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(value, "", &mut errors);
        let remedy = "the job's failure names the record";
        let topic = reader.required("topic", remedy);
        let partition = reader.required("partition", remedy);
        let offset: Option<Offset> = reader.required("offset", remedy);
        if offset.is_some_and(|offset| Offset::after(offset.get()).is_none()) {
            reader.fault("offset", "there is no position behind it");
        }
        let reason = reader.optional("reason");
        reader.finish();
        match (topic, partition, offset) {
            (Some(topic), Some(partition), Some(offset)) if errors.is_empty() => Ok(Self {
                topic,
                partition,
                offset,
                reason,
            }),
            _ => Err(errors),
        }
    }

    /// The record's partition.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), self.partition)
    }

    fn is_of(&self, record: &FailedRecord) -> bool {
        record.topic == self.topic
            && record.partition == self.partition
            && record.offset == self.offset.get()
    }
}

/// Whether a record may be stepped over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkipVerdict {
    /// It is where the job stands and what it failed at: the position behind it.
    Skip(Offset),
    /// The job stands behind it already.
    Passed,
    /// It is not; in words.
    NotThere(String),
}

/// Decides whether a record may be stepped over.
///
/// `stands_at` is where a bare start would begin in the record's partition, `None` if that is open; `failed_at` is the
/// record of the job's last failure, and each one at which a partition is parked.
#[must_use]
pub fn judge(
    request: &SkipRequest,
    stands_at: Option<Offset>,
    failed_at: &[&FailedRecord],
) -> SkipVerdict {
    let partition = request.topic_partition();
    let Some(stands_at) = stands_at else {
        return SkipVerdict::NotThere(format!("{partition} has no position yet"));
    };
    if stands_at > request.offset {
        return SkipVerdict::Passed;
    }
    if !failed_at.iter().any(|record| request.is_of(record)) {
        let failed = failed_at.first().map_or_else(
            || "it has not failed at a record".to_owned(),
            |record| {
                format!(
                    "the record it failed at last is {}/{}@{}",
                    record.topic, record.partition, record.offset
                )
            },
        );
        return SkipVerdict::NotThere(format!("{partition} stands at {stands_at}, and {failed}"));
    }
    if stands_at < request.offset {
        return SkipVerdict::NotThere(format!(
            "{partition} stands at {stands_at}: what lies before the record was not stored when the job failed; start the job, it comes to the record again"
        ));
    }
    Offset::after(request.offset.get()).map_or_else(
        || SkipVerdict::NotThere(format!("there is no position behind {}", request.offset)),
        SkipVerdict::Skip,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(partition: i32, offset: i64) -> FailedRecord {
        FailedRecord {
            topic: "orders".to_owned(),
            partition,
            offset,
            timestamp: None,
            key_bytes: None,
            value_bytes: None,
        }
    }

    #[test]
    fn exactly_the_record_that_the_job_failed_at_is_skipped() {
        let body = json!({"topic": "orders", "partition": 3, "offset": 70, "reason": "bad JSON"});
        let request = SkipRequest::read(&body).unwrap();
        let at = |offset| Offset::new(offset);
        let failed = record(3, 70);
        assert_eq!(
            judge(&request, at(70), &[&record(2, 7), &failed]),
            SkipVerdict::Skip(Offset::new(71).unwrap())
        );
        for failed in [&[&failed][..], &[]] {
            assert_eq!(judge(&request, at(71), failed), SkipVerdict::Passed);
        }
        for (stands_at, failed, part) in [
            (at(70), None, "has not failed at a record"),
            (at(70), Some(record(3, 71)), "is orders/3@71"),
            (at(70), Some(record(2, 70)), "is orders/2@70"),
            (at(69), Some(record(3, 70)), "start the job"),
            (at(60), None, "stands at 60"),
            (None, Some(record(3, 70)), "no position"),
        ] {
            let verdict = judge(&request, stands_at, &failed.iter().collect::<Vec<_>>());
            assert!(
                matches!(&verdict, SkipVerdict::NotThere(why) if why.contains(part)),
                "{verdict:?}"
            );
        }
    }

    #[test]
    fn a_body_that_does_not_name_a_record_is_refused() {
        for (value, pointer) in [
            (json!({}), "/topic"),
            (json!({"topic": "o", "partition": 0}), "/offset"),
            (
                json!({"topic": "o", "partition": 0, "offset": -1}),
                "/offset",
            ),
            (
                json!({"topic": "o", "partition": 0, "offset": Offset::MAX}),
                "/offset",
            ),
            (
                json!({"topic": "o", "partition": 0, "offset": 1, "ofset": 1}),
                "/ofset",
            ),
        ] {
            let errors = SkipRequest::read(&value).unwrap_err();
            assert!(
                errors.iter().any(|error| error.pointer == pointer),
                "{value}: {errors:?}"
            );
        }
    }
}
