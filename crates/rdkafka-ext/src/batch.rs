//! A batch of what librdkafka's queue held: records, ends of partitions and errors, in the order they came in.
//!
//! The batch owns librdkafka's messages; records are views into them, so nothing is copied. [`MessageBatch::runs`] groups
//! consecutive records of one partition by comparing a pointer, so the topic's name is read once a run.

use std::{
    ffi::{CStr, c_void},
    ops::Range,
    ptr,
    sync::{Arc, Mutex, PoisonError},
};

use rdkafka_sys as sys;

use crate::{
    client::Native,
    error::{ClientError, ErrorCode, KafkaError},
    ffi::{array, code, coded, text},
};

/// Messages taken from a consumer at once.
///
/// Dropping it frees the messages and gives the vector back to the consumer. A batch holds the client alive: the native
/// client is destroyed (on a thread of its own) when the consumer and all its batches are gone.
pub struct MessageBatch {
    messages: Vec<*mut sys::rd_kafka_message_t>,
    /// Headers are parsed on first sight, inside the message: one thread at a time.
    parsing: Mutex<()>,
    client_errors: Vec<ClientError>,
    client: Arc<Native>,
}

// SAFETY: messages may be read and destroyed on any thread; they are owned by this batch alone.
unsafe impl Send for MessageBatch {}
// SAFETY: all reading is free of side effects but the parsing of headers, which a lock guards.
unsafe impl Sync for MessageBatch {}

impl MessageBatch {
    pub(crate) fn new(
        messages: Vec<*mut sys::rd_kafka_message_t>,
        client_errors: Vec<ClientError>,
        client: Arc<Native>,
    ) -> Self {
        Self {
            messages,
            parsing: Mutex::new(()),
            client_errors,
            client,
        }
    }

    /// How many entries there are: records, ends of partitions and errors, but no client errors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// True without any entry; there may still be client errors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Errors of the client as a whole that came up since the batch before, oldest first; at most 64.
    #[must_use]
    pub fn client_errors(&self) -> &[ClientError] {
        &self.client_errors
    }

    /// The batch as runs, in order: consecutive records of one partition, or one event.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let run = self.run_at(next)?;
            next += match &run {
                Run::Records(records) => records.len(),
                Run::EndOfPartition { .. } | Run::Error(_) => 1,
            };
            Some(run)
        })
    }

    /// The run that begins at an entry; `None` behind the last one.
    fn run_at(&self, start: usize) -> Option<Run<'_>> {
        let first = Entry::read(*self.messages.get(start)?);
        if first.code != ErrorCode::NO_ERROR {
            return Some(self.event(start, &first));
        }
        let mut previous = -1;
        let same = self.messages[start..].iter().take_while(|message| {
            let entry = Entry::read(**message);
            // Records that are delivered again stand behind later ones: the run ends where offsets go back.
            let ascends = entry.offset > previous;
            previous = entry.offset;
            ascends
                && entry.topic == first.topic
                && entry.partition == first.partition
                && entry.code == ErrorCode::NO_ERROR
        });
        let range = start..start + same.count();
        Some(Run::Records(RecordRun {
            batch: self,
            range,
            topic: self.topic(start),
            partition: first.partition,
        }))
    }

    fn event(&self, index: usize, entry: &Entry) -> Run<'_> {
        // SAFETY: a live message of this batch.
        let offset = unsafe { (*self.messages[index]).offset };
        if entry.code == ErrorCode::PARTITION_EOF {
            return Run::EndOfPartition {
                topic: self.topic(index),
                partition: entry.partition,
                next_offset: offset,
            };
        }
        // SAFETY: a live message; for an error the text is in it or static, and copied here.
        let text = unsafe { text(sys::rd_kafka_message_errstr(self.messages[index])) };
        let of_partition = !entry.topic.is_null();
        Run::Error(EntryError {
            error: KafkaError {
                code: entry.code,
                text: text.unwrap_or_else(|| entry.code.text()),
            },
            topic: of_partition.then(|| self.topic(index)),
            partition: (of_partition && entry.partition >= 0).then_some(entry.partition),
            offset: (of_partition && offset >= 0).then_some(offset),
        })
    }

    /// The name of an entry's topic; empty for an entry without one.
    fn topic(&self, index: usize) -> &str {
        let topic = Entry::read(self.messages[index]).topic;
        if topic.is_null() {
            return "";
        }
        // SAFETY: the message holds its topic, and with it the name, alive.
        let name = unsafe { CStr::from_ptr(sys::rd_kafka_topic_name(topic)) };
        // Kafka allows only ASCII in topic names.
        name.to_str().unwrap_or_default()
    }

    fn record(&self, index: usize) -> RecordView<'_> {
        RecordView {
            message: self.messages[index],
            batch: self,
        }
    }
}

impl Drop for MessageBatch {
    fn drop(&mut self) {
        let mut messages = std::mem::take(&mut self.messages);
        for message in messages.drain(..) {
            // SAFETY: owned by this batch, destroyed once; the client is still alive.
            unsafe { sys::rd_kafka_message_destroy(message) };
        }
        self.client.shared().give_vector(messages);
    }
}

impl std::fmt::Debug for MessageBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageBatch")
            .field("len", &self.len())
            .field("client_errors", &self.client_errors)
            .finish_non_exhaustive()
    }
}

/// The fields that tell entries apart.
struct Entry {
    topic: *mut sys::rd_kafka_topic_t,
    partition: i32,
    offset: i64,
    code: ErrorCode,
}

impl Entry {
    /// Reads a message of a live batch.
    fn read(message: *mut sys::rd_kafka_message_t) -> Self {
        // SAFETY: only called with messages of a live batch; the error is read as an integer.
        unsafe {
            Self {
                topic: (*message).rkt,
                partition: (*message).partition,
                offset: (*message).offset,
                code: code(&raw const (*message).err),
            }
        }
    }
}

/// A stretch of a batch.
#[derive(Debug)]
pub enum Run<'a> {
    /// Consecutive records of one partition, offsets strictly ascending.
    Records(RecordRun<'a>),
    /// The end of a partition was reached. Comes again each time the end is reached anew.
    EndOfPartition {
        /// The topic.
        topic: &'a str,
        /// The partition.
        partition: i32,
        /// The next offset to read: behind everything that exists for this reader, control records included.
        next_offset: i64,
    },
    /// An error in place of records.
    Error(EntryError<'a>),
}

/// An error that stands in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryError<'a> {
    /// Code and text.
    pub error: KafkaError,
    /// The topic, if it concerns one.
    pub topic: Option<&'a str>,
    /// The partition, if it concerns one.
    pub partition: Option<i32>,
    /// The offset, if it concerns one.
    pub offset: Option<i64>,
}

/// Consecutive records of one partition.
#[derive(Debug, Clone)]
pub struct RecordRun<'a> {
    batch: &'a MessageBatch,
    range: Range<usize>,
    topic: &'a str,
    partition: i32,
}

impl<'a> RecordRun<'a> {
    /// The topic of all of them.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The partition of all of them.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.partition
    }

    /// How many there are; at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Where they stand in the batch, for [`MessageBatch::record_at`] when the run itself cannot be kept.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The records in order.
    pub fn records(&self) -> impl ExactSizeIterator<Item = RecordView<'a>> + use<'a> {
        let batch = self.batch;
        self.range.clone().map(move |index| batch.record(index))
    }
}

impl MessageBatch {
    /// The record at an entry; `None` behind the last entry and where an event stands.
    #[must_use]
    pub fn record_at(&self, index: usize) -> Option<RecordView<'_>> {
        let entry = Entry::read(*self.messages.get(index)?);
        (entry.code == ErrorCode::NO_ERROR).then(|| self.record(index))
    }
}

/// One record, borrowed from its batch.
#[derive(Clone, Copy)]
pub struct RecordView<'a> {
    /// Always a live message of `batch`, without an error.
    message: *mut sys::rd_kafka_message_t,
    batch: &'a MessageBatch,
}

// SAFETY: a shared reference to a batch, which is `Sync`, and a pointer into it.
unsafe impl Send for RecordView<'_> {}
// SAFETY: as above.
unsafe impl Sync for RecordView<'_> {}

impl<'a> RecordView<'a> {
    /// Its offset.
    #[must_use]
    pub fn offset(self) -> i64 {
        // SAFETY: a live message.
        unsafe { (*self.message).offset }
    }

    /// The key; `None` if the record has none, which differs from an empty one.
    #[must_use]
    pub fn key(self) -> Option<&'a [u8]> {
        // SAFETY: a live message; pointer and length belong together and live as long as the batch.
        unsafe { bytes((*self.message).key, (*self.message).key_len) }
    }

    /// The value; `None` for a tombstone, which differs from an empty one.
    #[must_use]
    pub fn value(self) -> Option<&'a [u8]> {
        // SAFETY: as for the key.
        unsafe { bytes((*self.message).payload, (*self.message).len) }
    }

    /// The timestamp, if the record has one.
    #[must_use]
    pub fn timestamp(self) -> Option<Timestamp> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: a live message; the type is one of three constants of librdkafka.
        let millis = unsafe { sys::rd_kafka_message_timestamp(self.message, &raw mut kind) };
        let timestamp_type = match kind {
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE => return None,
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_CREATE_TIME => {
                TimestampType::CreateTime
            }
            sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_LOG_APPEND_TIME => {
                TimestampType::LogAppendTime
            }
        };
        (millis >= 0).then_some(Timestamp {
            millis,
            timestamp_type,
        })
    }

    /// The leader epoch the record was written in, if the broker says so.
    #[must_use]
    pub fn leader_epoch(self) -> Option<i32> {
        // SAFETY: a live message.
        let epoch = unsafe { sys::rd_kafka_message_leader_epoch(self.message) };
        (epoch >= 0).then_some(epoch)
    }

    /// The headers in order, names may repeat. They are parsed at the first call.
    ///
    /// Headers that cannot be parsed give none: the broker checks them when it takes a record in.
    #[must_use]
    pub fn headers(self) -> Vec<Header<'a>> {
        let parsed = self.parsed_headers();
        if parsed.is_null() {
            return Vec::new();
        }
        // SAFETY: parsed headers of a live message.
        let count = unsafe { sys::rd_kafka_header_cnt(parsed) };
        // SAFETY: as above, and the index is in range.
        (0..count)
            .filter_map(|index| unsafe { header(parsed, index) })
            .collect()
    }

    fn parsed_headers(self) -> *const sys::rd_kafka_headers_t {
        let _one_at_a_time = self
            .batch
            .parsing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut headers = ptr::null_mut();
        // SAFETY: a live message; the call may parse inside it, which the lock makes exclusive.
        let code = unsafe { coded::rd_kafka_message_headers(self.message, &raw mut headers) };
        if code == 0 { headers } else { ptr::null() }
    }
}

impl std::fmt::Debug for RecordView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordView")
            .field("offset", &self.offset())
            .field("key_bytes", &self.key().map(<[u8]>::len))
            .field("value_bytes", &self.value().map(<[u8]>::len))
            .finish_non_exhaustive()
    }
}

/// The time of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    /// Milliseconds since 1970, UTC.
    pub millis: i64,
    /// Who set it.
    pub timestamp_type: TimestampType,
}

/// Who set a record's timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer.
    CreateTime,
    /// The broker, when it appended the record.
    LogAppendTime,
}

/// One header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name, as bytes: Kafka asks for UTF-8 but does not check it.
    pub name: &'a [u8],
    /// Its value; `None` is null.
    pub value: Option<&'a [u8]>,
}

/// # Safety
/// `headers` are live for `'a` and `index` is below their count.
unsafe fn header<'a>(headers: *const sys::rd_kafka_headers_t, index: usize) -> Option<Header<'a>> {
    let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
    // SAFETY: live headers; librdkafka sets the three variables if it returns 0.
    let code = unsafe {
        coded::rd_kafka_header_get_all(headers, index, &raw mut name, &raw mut value, &raw mut size)
    };
    if code != 0 || name.is_null() {
        return None;
    }
    // SAFETY: a terminated string, and a value with its size, that live as long as the headers.
    unsafe {
        Some(Header {
            name: CStr::from_ptr(name).to_bytes(),
            value: bytes(value.cast_mut(), size),
        })
    }
}

/// # Safety
/// `start` is null or points to `len` bytes that live for `'a`.
unsafe fn bytes<'a>(start: *mut c_void, len: usize) -> Option<&'a [u8]> {
    // SAFETY: as vouched for by the caller.
    (!start.is_null()).then(|| unsafe { array(start.cast::<u8>().cast_const(), len) })
}
