//! The boundary to C: owned handles that free themselves, and functions that give an error code as the number it is.
//!
//! The generated bindings declare error codes as a Rust enum. A code that the enum does not list (one from a newer
//! broker) would be undefined behaviour, so every function and field that carries a code is read as an integer here.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr::{self, NonNull},
    time::{Duration, Instant},
};

use rdkafka_sys as sys;

use crate::error::{CallError, ErrorCode, KafkaError};

/// librdkafka's functions that return or take an error code, declared with the integer that C passes.
pub(crate) mod coded {
    use super::{c_char, c_int, c_void, sys};

    /// Called for a new client.
    pub(crate) type OnNew = unsafe extern "C" fn(
        rk: *mut sys::rd_kafka_t,
        conf: *const sys::rd_kafka_conf_t,
        opaque: *mut c_void,
        text: *mut c_char,
        size: usize,
    ) -> c_int;

    /// Called when a broker's connection changes its state.
    pub(crate) type OnBrokerState = unsafe extern "C" fn(
        rk: *mut sys::rd_kafka_t,
        broker_id: i32,
        protocol: *const c_char,
        name: *const c_char,
        port: c_int,
        state: *const c_char,
        opaque: *mut c_void,
    ) -> c_int;

    unsafe extern "C" {
        pub(crate) fn rd_kafka_err2name(err: c_int) -> *const c_char;
        pub(crate) fn rd_kafka_err2str(err: c_int) -> *const c_char;
        pub(crate) fn rd_kafka_error_code(error: *const sys::rd_kafka_error_t) -> c_int;
        pub(crate) fn rd_kafka_event_error(event: *mut sys::rd_kafka_event_t) -> c_int;
        pub(crate) fn rd_kafka_fatal_error(
            rk: *mut sys::rd_kafka_t,
            text: *mut c_char,
            size: usize,
        ) -> c_int;
        pub(crate) fn rd_kafka_poll_set_consumer(rk: *mut sys::rd_kafka_t) -> c_int;
        pub(crate) fn rd_kafka_conf_interceptor_add_on_new(
            conf: *mut sys::rd_kafka_conf_t,
            name: *const c_char,
            on_new: Option<OnNew>,
            opaque: *mut c_void,
        ) -> c_int;
        pub(crate) fn rd_kafka_interceptor_add_on_broker_state_change(
            rk: *mut sys::rd_kafka_t,
            name: *const c_char,
            on_state: Option<OnBrokerState>,
            opaque: *mut c_void,
        ) -> c_int;
        pub(crate) fn rd_kafka_commit_queue(
            rk: *mut sys::rd_kafka_t,
            offsets: *const sys::rd_kafka_topic_partition_list_t,
            queue: *mut sys::rd_kafka_queue_t,
            callback: Option<unsafe extern "C" fn()>,
            opaque: *mut c_void,
        ) -> c_int;
        pub(crate) fn rd_kafka_assignment(
            rk: *mut sys::rd_kafka_t,
            partitions: *mut *mut sys::rd_kafka_topic_partition_list_t,
        ) -> c_int;
        pub(crate) fn rd_kafka_message_headers(
            message: *const sys::rd_kafka_message_t,
            headers: *mut *mut sys::rd_kafka_headers_t,
        ) -> c_int;
        pub(crate) fn rd_kafka_header_get_all(
            headers: *const sys::rd_kafka_headers_t,
            index: usize,
            name: *mut *const c_char,
            value: *mut *const c_void,
            size: *mut usize,
        ) -> c_int;
        pub(crate) fn rd_kafka_AdminOptions_set_broker(
            options: *mut sys::rd_kafka_AdminOptions_t,
            broker_id: i32,
            text: *mut c_char,
            size: usize,
        ) -> c_int;
        pub(crate) fn rd_kafka_AdminOptions_set_request_timeout(
            options: *mut sys::rd_kafka_AdminOptions_t,
            timeout_ms: c_int,
            text: *mut c_char,
            size: usize,
        ) -> c_int;
        pub(crate) fn rd_kafka_metadata(
            rk: *mut sys::rd_kafka_t,
            all_topics: c_int,
            only: *mut sys::rd_kafka_topic_t,
            metadata: *mut *const sys::rd_kafka_metadata,
            timeout_ms: c_int,
        ) -> c_int;
    }
}

/// Copies a C string; null gives `None`, invalid UTF-8 is replaced.
///
/// # Safety
/// `text` is null or points to a zero-terminated string that lives during the call.
pub(crate) unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null; the caller vouches for the rest.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

pub(crate) fn error_name(code: i32) -> String {
    // SAFETY: takes any integer; the string is static or thread-local and copied before the next call.
    unsafe { text(coded::rd_kafka_err2name(code)) }.unwrap_or_default()
}

pub(crate) fn error_text(code: i32) -> String {
    // SAFETY: as in `error_name`.
    unsafe { text(coded::rd_kafka_err2str(code)) }.unwrap_or_default()
}

/// Reads a field declared as the error enum without ever making a value of that enum.
///
/// # Safety
/// `field` points to a readable `rd_kafka_resp_err_t`.
pub(crate) unsafe fn code(field: *const sys::rd_kafka_resp_err_t) -> ErrorCode {
    // SAFETY: C represents the enum as an int (it has negative members); the caller vouches for the pointer.
    ErrorCode(unsafe { field.cast::<c_int>().read() })
}

/// Copies an error object that someone else owns; null is success.
///
/// # Safety
/// `error` is null or a live error object.
pub(crate) unsafe fn borrowed_error(error: *const sys::rd_kafka_error_t) -> Result<(), KafkaError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: a live error object.
    let code = ErrorCode(unsafe { coded::rd_kafka_error_code(error) });
    // SAFETY: a live error object owns the string.
    code.check(|| unsafe { text(sys::rd_kafka_error_string(error)) })
}

/// Takes over an error object returned by a call; null is success.
///
/// # Safety
/// `error` is null or an error object that the caller owns.
pub(crate) unsafe fn owned_error(error: *mut sys::rd_kafka_error_t) -> Result<(), KafkaError> {
    // SAFETY: live until destroyed below.
    let result = unsafe { borrowed_error(error) };
    if !error.is_null() {
        // SAFETY: owned by us and not used any more.
        unsafe { sys::rd_kafka_error_destroy(error) };
    }
    result
}

/// A slice over an array that C returned with its length; null gives an empty slice.
///
/// # Safety
/// `array` is null or points to `len` readable elements that live for `'a`.
pub(crate) unsafe fn array<'a, T>(array: *const T, len: usize) -> &'a [T] {
    if array.is_null() {
        return &[];
    }
    // SAFETY: as vouched for by the caller.
    unsafe { std::slice::from_raw_parts(array, len) }
}

/// A string argument for C.
pub(crate) fn c_string(
    operation: &'static str,
    what: &str,
    value: &str,
) -> Result<CString, CallError> {
    CString::new(value).map_err(|_| CallError::Argument {
        operation,
        problem: format!("{what} contains a NUL character"),
    })
}

/// A time-out in C's milliseconds, rounded up so that a short wait does not become a busy loop, never infinite.
pub(crate) fn millis(wait: Duration) -> c_int {
    c_int::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// One partition as librdkafka lists it.
pub(crate) struct ListedPartition {
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) metadata: Vec<u8>,
    pub(crate) leader_epoch: Option<i32>,
    pub(crate) code: ErrorCode,
}

/// An owned list of partitions.
pub(crate) struct PartitionList(NonNull<sys::rd_kafka_topic_partition_list_t>);

impl PartitionList {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let size = c_int::try_from(capacity).unwrap_or(0);
        // SAFETY: no precondition; librdkafka aborts rather than return null.
        let list = unsafe { sys::rd_kafka_topic_partition_list_new(size) };
        // SAFETY: never null, see above.
        Self(unsafe { NonNull::new_unchecked(list) })
    }

    /// Takes over a list that a call returned.
    ///
    /// # Safety
    /// `list` is null or a list that the caller owns.
    pub(crate) unsafe fn from_raw(list: *mut sys::rd_kafka_topic_partition_list_t) -> Option<Self> {
        NonNull::new(list).map(Self)
    }

    pub(crate) fn push(
        &mut self,
        operation: &'static str,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<(), CallError> {
        self.push_with_metadata(operation, topic, partition, offset, "")
    }

    pub(crate) fn push_with_metadata(
        &mut self,
        operation: &'static str,
        topic: &str,
        partition: i32,
        offset: i64,
        metadata: &str,
    ) -> Result<(), CallError> {
        let topic = c_string(operation, "the topic name", topic)?;
        // SAFETY: a live list and a C string, which is copied; the element is valid until the list grows again.
        let element = unsafe {
            &mut *sys::rd_kafka_topic_partition_list_add(self.as_ptr(), topic.as_ptr(), partition)
        };
        element.offset = offset;
        if !metadata.is_empty() {
            // SAFETY: librdkafka's own allocator, as the list frees the pointer with it; it aborts rather than return null.
            element.metadata = unsafe { sys::rd_kafka_mem_malloc(ptr::null_mut(), metadata.len()) };
            // SAFETY: the new block has just this size and overlaps nothing.
            unsafe {
                ptr::copy_nonoverlapping(
                    metadata.as_ptr(),
                    element.metadata.cast::<u8>(),
                    metadata.len(),
                );
            };
            element.metadata_size = metadata.len();
        }
        Ok(())
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rd_kafka_topic_partition_list_t {
        self.0.as_ptr()
    }

    /// Copies what the list says.
    pub(crate) fn read(&self) -> Vec<ListedPartition> {
        // SAFETY: a live list.
        unsafe { read_partitions(self.as_ptr()) }
    }
}

impl Drop for PartitionList {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_topic_partition_list_destroy(self.as_ptr()) };
    }
}

/// Copies what a list says; null gives nothing.
///
/// # Safety
/// `list` is null or a live list.
pub(crate) unsafe fn read_partitions(
    list: *const sys::rd_kafka_topic_partition_list_t,
) -> Vec<ListedPartition> {
    if list.is_null() {
        return Vec::new();
    }
    // SAFETY: a live list.
    let list = unsafe { &*list };
    // SAFETY: the list's own array with its own count.
    let len = usize::try_from(list.cnt).unwrap_or(0);
    (0..len)
        .map(|index| {
            // SAFETY: within the list's array. A raw pointer, as the error field may hold a number the enum lacks.
            let element = unsafe { list.elems.add(index) };
            // SAFETY: an element of a live list.
            unsafe { read_partition(element) }
        })
        .collect()
}

/// Copies one element.
///
/// # Safety
/// `element` points to a live partition element.
pub(crate) unsafe fn read_partition(
    element: *const sys::rd_kafka_topic_partition_t,
) -> ListedPartition {
    // SAFETY: whole block: fields of a live element are read one by one, the error only as an integer; its metadata
    // pointer is null or has the size beside it.
    unsafe {
        let metadata: *mut c_void = (*element).metadata;
        let epoch = sys::rd_kafka_topic_partition_get_leader_epoch(element);
        ListedPartition {
            topic: text((*element).topic).unwrap_or_default(),
            partition: (*element).partition,
            offset: (*element).offset,
            metadata: array(metadata.cast::<u8>().cast_const(), (*element).metadata_size).to_vec(),
            leader_epoch: (epoch >= 0).then_some(epoch),
            code: code(&raw const (*element).err),
        }
    }
}

/// A private queue for the answers to one call.
///
/// An answer that comes after the queue was dropped is thrown away by librdkafka, which keeps a disabled queue alive for
/// as long as an operation refers to it.
pub(crate) struct Queue(NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka's queues may be used from any thread.
unsafe impl Send for Queue {}

impl Queue {
    /// A new queue of a client.
    ///
    /// # Safety
    /// `rk` is a live client that outlives the queue.
    pub(crate) unsafe fn new(rk: *mut sys::rd_kafka_t) -> Self {
        // SAFETY: a live client; librdkafka aborts rather than return null.
        let queue = unsafe { sys::rd_kafka_queue_new(rk) };
        // SAFETY: never null, see above.
        Self(unsafe { NonNull::new_unchecked(queue) })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.0.as_ptr()
    }

    /// Waits for an event of a type, ignoring others, until the deadline.
    pub(crate) fn wait(&self, event_type: c_int, until: Instant) -> Option<Event> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // SAFETY: a live queue; the event, if any, is ours.
            let event = unsafe { sys::rd_kafka_queue_poll(self.as_ptr(), millis(left)) };
            if let Some(event) = NonNull::new(event).map(Event) {
                // SAFETY: a live event.
                if unsafe { sys::rd_kafka_event_type(event.as_ptr()) } == event_type {
                    return Some(event);
                }
            }
            if left.is_zero() {
                return None;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: owned, and its client is still alive (see `new`).
        unsafe { sys::rd_kafka_queue_destroy(self.as_ptr()) };
    }
}

/// An owned event: the answer to a call.
pub(crate) struct Event(NonNull<sys::rd_kafka_event_t>);

impl Event {
    pub(crate) fn as_ptr(&self) -> *mut sys::rd_kafka_event_t {
        self.0.as_ptr()
    }

    /// The error of the answer as a whole.
    pub(crate) fn check(&self) -> Result<(), KafkaError> {
        // SAFETY: a live event.
        let code = ErrorCode(unsafe { coded::rd_kafka_event_error(self.as_ptr()) });
        // SAFETY: a live event owns its string.
        code.check(|| unsafe { text(sys::rd_kafka_event_error_string(self.as_ptr())) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_event_destroy(self.as_ptr()) };
    }
}
