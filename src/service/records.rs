//! Looking at records at an offset, before one is mended or left out. Every look is in the history.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use chrono::DateTime;
use serde_json::json;

use super::{
    Service,
    error::{Result, ServiceError},
    queries::{Caller, RecordsQuery},
};
use crate::{
    engine::{ReadRecord, error::ConsumerError, ports::ConsumerSettings, read_records},
    model::{
        code::Code,
        event::EventKind,
        ids::JobName,
        views::{RecordView, RecordsView},
    },
};

/// Shown of a key and of a value.
const SHOWN: usize = 64 * 1024;
/// How long the brokers may take.
const DEADLINE: Duration = Duration::from_secs(10);

impl Service {
    pub(super) async fn look_at_records(
        &self,
        name: &JobName,
        query: &RecordsQuery,
        caller: &Caller,
    ) -> Result<RecordsView> {
        let core = &self.core;
        let job = core.job(name).await?;
        let source = job.row().spec.source;
        let topic = &*query.partition.topic;
        if !source.selects(topic) {
            let detail = format!("job {name} does not read topic {topic}");
            return Err(ServiceError::new(Code::UnknownTopic, detail).job(name));
        }
        let details = json!({
            "topic": topic, "partition": query.partition.partition, "offset": query.offset, "limit": query.limit,
        });
        // Values may be anything: who looked at them is known before they are shown.
        core.store
            .add_event(
                Some(job.uid),
                EventKind::RecordsRead,
                &caller.requested_by,
                &details,
            )
            .await?;
        let cluster = core.cluster(&source.connection)?;
        let settings = ConsumerSettings {
            job: name.to_string(),
            subtask: 0,
            source,
        };
        let (partition, from) = (query.partition.clone(), query.offset);
        let records = read_records(cluster, settings, partition, from, query.limit, DEADLINE)
            .await
            .map_err(|error| unread(error).job(name))?;
        let first = records.first().map(|record| record.record_offset);
        if first != Some(from.get()) {
            return Err(not_found(query, first).job(name));
        }
        let items = records.iter().map(|record| view(query, record));
        Ok(RecordsView {
            items: items.collect(),
        })
    }
}

fn unread(error: ConsumerError) -> ServiceError {
    match error {
        ConsumerError::OutOfRange { .. } => {
            ServiceError::new(Code::OffsetOutOfRange, error.to_string())
                .hint("GET /api/v1/jobs/{job}/offsets shows the ends of the log.")
        }
        ConsumerError::TopicUnknown { .. } | ConsumerError::TopicRecreated { .. } => {
            ServiceError::new(Code::UnknownTopic, error.to_string())
        }
        ConsumerError::Kafka(error) => error.into(),
    }
}

/// Compacted away, a transaction's marker, or the end of what can be read.
fn not_found(query: &RecordsQuery, next: Option<i64>) -> ServiceError {
    let place = format!("{}@{}", query.partition, query.offset);
    let error = |detail| ServiceError::new(Code::RecordNotFound, detail);
    match next {
        None => error(format!("there is no record at {place}, and none behind it")),
        Some(next) => error(format!(
            "there is no record at {place}; the next one is {next}"
        ))
        .choices(vec![json!({"offset": next})]),
    }
}

fn view(query: &RecordsQuery, record: &ReadRecord) -> RecordView {
    let is_long = |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| bytes.len() > SHOWN);
    let show = |bytes: &Vec<u8>| {
        let bytes = &bytes[..bytes.len().min(SHOWN)];
        if query.as_text {
            String::from_utf8_lossy(bytes).into_owned()
        } else {
            BASE64.encode(bytes)
        }
    };
    RecordView {
        topic: query.partition.topic.to_string(),
        partition: query.partition.partition,
        offset: record.record_offset,
        timestamp: record
            .timestamp_ms
            .and_then(DateTime::from_timestamp_millis),
        key: record.key.as_ref().map(show),
        value: record.value.as_ref().map(show),
        key_bytes: record.key.as_ref().map(Vec::len),
        value_bytes: record.value.as_ref().map(Vec::len),
        truncated: is_long(&record.key) || is_long(&record.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Offset, TopicPartition};

    #[test]
    fn long_values_are_cut_and_say_so() {
        let query = |as_text| RecordsQuery {
            partition: TopicPartition::new("orders", 3),
            offset: Offset::ZERO,
            limit: 1,
            as_text,
        };
        let record = |value: Vec<u8>| ReadRecord {
            record_offset: 0,
            timestamp_ms: Some(0),
            key: None,
            value: Some(value),
        };
        let shown = view(&query(true), &record(vec![b'x'; SHOWN + 1]));
        assert_eq!(shown.value.map(|value| value.len()), Some(SHOWN));
        assert_eq!(
            (shown.value_bytes, shown.truncated),
            (Some(SHOWN + 1), true)
        );
        let shown = view(&query(false), &record(b"{\xff".to_vec()));
        assert_eq!(
            (shown.value.as_deref(), shown.truncated),
            (Some("e/8="), false)
        );
        let shown = view(&query(true), &record(b"{\xff".to_vec()));
        assert_eq!(shown.value.as_deref(), Some("{\u{fffd}"));
    }
}
