//! A consumer that is told what to read: assigned at absolute offsets, read in batches, committed with a deadline.

use std::{
    ffi::c_int,
    ptr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rdkafka::config::ClientConfig;
use rdkafka_sys as sys;

use crate::{
    batch::MessageBatch,
    client::{LogSink, Native, Purpose, until},
    error::{CallError, ClientError, CreateError, ErrorCode, KafkaError},
    ffi::{self, ListedPartition, PartitionList, Queue, coded, millis},
};

const ASSIGN: &str = "assign";
const UNASSIGN: &str = "unassign";
const COMMIT: &str = "commit";
const CLOSE: &str = "close";

/// A partition and the offset to read it from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssignedOffset<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The next offset to read, at least 0: logical offsets (beginning, end, stored) are refused.
    pub next_offset: i64,
}

/// A partition and the offset to store for the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitOffset<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The next offset to read, at least 0.
    pub next_offset: i64,
    /// A note stored with it; brokers take 4,096 bytes by default.
    pub metadata: &'a str,
}

/// What became of one committed partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitResult {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The broker's answer.
    pub result: Result<(), KafkaError>,
}

/// A consumer without a subscription.
///
/// It may be shared; all calls block. Dropping it does not block: the native client is destroyed on a thread of its own
/// once the last [`MessageBatch`] is gone. [`Self::close`] waits for that, up to a deadline.
pub struct BatchConsumer {
    /// Where the answer to a commit that ran into its deadline will come. Before `client`, which must outlive it.
    unanswered: Mutex<Option<Queue>>,
    client: Arc<Native>,
    queue: ptr::NonNull<sys::rd_kafka_queue_t>,
}

// SAFETY: librdkafka's handles may be used from any thread, and from several at a time.
unsafe impl Send for BatchConsumer {}
// SAFETY: as above.
unsafe impl Sync for BatchConsumer {}

impl BatchConsumer {
    /// Makes a consumer; it connects in the background.
    ///
    /// `group.id` is needed even for a consumer that never commits. Log lines go to `log`, up to the configuration's
    /// `log_level`.
    ///
    /// # Errors
    /// A property that librdkafka refuses, or no threads.
    pub fn create(config: &ClientConfig, log: LogSink) -> Result<Self, CreateError> {
        let client = Arc::new(Native::create(config, Purpose::Consume, log)?);
        let queue = client.consumer_queue().ok_or_else(|| {
            CreateError::Client("the client has no consumer queue; is `group.id` set?".to_owned())
        })?;
        Ok(Self {
            unanswered: Mutex::new(None),
            client,
            queue,
        })
    }

    /// Adds partitions to those that are read, each from its absolute offset. Others are not disturbed.
    ///
    /// Whether an offset is in the log shows only when it is fetched: with `auto.offset.reset=error` as an error in a
    /// batch.
    ///
    /// # Errors
    /// A negative offset, a partition that is already assigned, a closing client. Then nothing is assigned.
    pub fn assign(&self, offsets: &[AssignedOffset<'_>]) -> Result<(), CallError> {
        if offsets.is_empty() {
            return Ok(());
        }
        let mut list = PartitionList::with_capacity(offsets.len());
        for offset in offsets {
            check_absolute(ASSIGN, offset.topic, offset.partition, offset.next_offset)?;
            list.push(ASSIGN, offset.topic, offset.partition, offset.next_offset)?;
        }
        // SAFETY: a live client and list; the error, if any, is ours.
        let result = unsafe {
            ffi::owned_error(sys::rd_kafka_incremental_assign(
                self.client.rk(),
                list.as_ptr(),
            ))
        };
        result.map_err(|error| CallError::Failed {
            operation: ASSIGN,
            error,
        })
    }

    /// Stops reading some partitions. Records of theirs that wait in the client are thrown away.
    ///
    /// # Errors
    /// A partition that is not assigned. Then nothing is changed.
    pub fn unassign(&self, partitions: &[(&str, i32)]) -> Result<(), CallError> {
        let mut list = PartitionList::with_capacity(partitions.len());
        for (topic, partition) in partitions {
            list.push(UNASSIGN, topic, *partition, 0)?;
        }
        self.unassign_list(&list, partitions.len())
    }

    /// Stops reading all partitions.
    ///
    /// # Errors
    /// A closing client.
    pub fn unassign_all(&self) -> Result<(), CallError> {
        let list = self.assignment_list(UNASSIGN)?;
        let count = list.read().len();
        self.unassign_list(&list, count)
    }

    fn unassign_list(&self, list: &PartitionList, count: usize) -> Result<(), CallError> {
        if count == 0 {
            return Ok(());
        }
        // SAFETY: a live client and list; the error, if any, is ours.
        let result = unsafe {
            ffi::owned_error(sys::rd_kafka_incremental_unassign(
                self.client.rk(),
                list.as_ptr(),
            ))
        };
        result.map_err(|error| CallError::Failed {
            operation: UNASSIGN,
            error,
        })
    }

    /// The partitions that are being read.
    ///
    /// # Errors
    /// A closing client.
    pub fn assignment(&self) -> Result<Vec<(String, i32)>, CallError> {
        let listed = self.assignment_list("assignment")?.read();
        Ok(listed
            .into_iter()
            .map(|entry| (entry.topic, entry.partition))
            .collect())
    }

    fn assignment_list(&self, operation: &'static str) -> Result<PartitionList, CallError> {
        let mut list = ptr::null_mut();
        // SAFETY: a live client; the list, if any, is ours.
        let code =
            ErrorCode(unsafe { coded::rd_kafka_assignment(self.client.rk(), &raw mut list) });
        // SAFETY: set by the call to an owned list, or still null.
        let list = unsafe { PartitionList::from_raw(list) };
        code.check(|| None)
            .map_err(|error| CallError::Failed { operation, error })?;
        Ok(list.unwrap_or_else(|| PartitionList::with_capacity(0)))
    }

    /// Waits up to `wait` for one entry, then takes what else is there, at most `max` entries in all (at least 1).
    ///
    /// An empty batch means that nothing came in time; it may carry client errors. The wait is that long even if the
    /// brokers are away. librdkafka's own call holds records back until the batch is full or the time is over, which is
    /// why it is made twice.
    #[must_use]
    pub fn consume_batch(&self, max: usize, wait: Duration) -> MessageBatch {
        let max = max.max(1);
        let mut messages = self.client.shared().take_vector();
        messages.reserve(max);
        if self.fill(&mut messages, 1, millis(wait)) == 1 && max > 1 {
            self.fill(&mut messages, max - 1, 0);
        }
        MessageBatch::new(
            messages,
            self.client.take_errors(),
            Arc::clone(&self.client),
        )
    }

    /// Appends up to `count` messages; returns how many came. The vector has room for them.
    fn fill(
        &self,
        messages: &mut Vec<*mut sys::rd_kafka_message_t>,
        count: usize,
        timeout_ms: c_int,
    ) -> usize {
        let room = messages.spare_capacity_mut();
        let count = count.min(room.len());
        let start = room.as_mut_ptr().cast::<*mut sys::rd_kafka_message_t>();
        // SAFETY: a live queue, and room for `count` pointers; librdkafka writes as many as it returns.
        let got = unsafe {
            sys::rd_kafka_consume_batch_queue(self.queue.as_ptr(), timeout_ms, start, count)
        };
        let got = usize::try_from(got).unwrap_or(0);
        // SAFETY: `got` more elements were just written within the capacity.
        unsafe { messages.set_len(messages.len() + got) };
        got
    }

    /// Makes a [`Self::consume_batch`] that waits in another thread return now; without one, the next call returns at
    /// once when nothing is there.
    pub fn wake(&self) {
        // SAFETY: a live queue.
        unsafe { sys::rd_kafka_queue_yield(self.queue.as_ptr()) };
    }

    /// How many brokers are connected at the moment.
    ///
    /// A consumer that reads keeps a connection to each leader, so none for longer than a connection takes to make means
    /// that the cluster cannot be reached. librdkafka's own error for that, [`ErrorCode::ALL_BROKERS_DOWN`], is not raised
    /// in every such case.
    #[must_use]
    pub fn connected_brokers(&self) -> usize {
        self.client.connected_brokers()
    }

    /// For a consumer without a connected broker, now and then: names the bootstrap servers again to a client that has
    /// forgotten all brokers (librdkafka issue 5301), which would never read again. Does nothing to one that is still trying.
    pub fn recall_brokers(&self) {
        self.client.recall_brokers();
    }

    /// Has the client ask for the partitions and leaders of its topics, and waits for that up to `deadline`.
    ///
    /// A partition that was assigned and that the client does not know yet is otherwise read from the client's next look on,
    /// which it takes once a second.
    ///
    /// # Errors
    /// No answer in time; the client asks again by itself.
    pub fn refresh_topics(&self, deadline: Duration) -> Result<(), CallError> {
        let mut metadata = ptr::null();
        // SAFETY: a live client; the metadata, if any, is ours, and destroyed once.
        let code = ErrorCode(unsafe {
            let code = coded::rd_kafka_metadata(
                self.client.rk(),
                0,
                ptr::null_mut(),
                &raw mut metadata,
                millis(deadline),
            );
            if !metadata.is_null() {
                sys::rd_kafka_metadata_destroy(metadata);
            }
            code
        });
        code.check(|| None).map_err(|error| CallError::Failed {
            operation: "refresh topics",
            error,
        })
    }

    /// The newest error of the client as a whole since a broker was last connected.
    #[must_use]
    pub fn last_error(&self) -> Option<ClientError> {
        self.client.last_error()
    }

    /// Stores offsets for the group and waits for the answer up to `deadline`.
    ///
    /// One answer per partition, in the order asked. After a missed deadline the outcome is unknown: librdkafka keeps a
    /// commit for as long as the coordinator is away and sends it when it is back. Such a commit is waited for before the
    /// next is sent, so there is never more than one under way; while there is one, new assignments are held up and
    /// closing takes as long as the coordinator is away.
    ///
    /// # Errors
    /// A negative offset; no answer in time; an error of the whole commit.
    pub fn commit(
        &self,
        offsets: &[CommitOffset<'_>],
        deadline: Duration,
    ) -> Result<Vec<CommitResult>, CallError> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        let until = until(deadline);
        let mut list = PartitionList::with_capacity(offsets.len());
        for offset in offsets {
            check_absolute(COMMIT, offset.topic, offset.partition, offset.next_offset)?;
            list.push_with_metadata(
                COMMIT,
                offset.topic,
                offset.partition,
                offset.next_offset,
                offset.metadata,
            )?;
        }
        let mut unanswered = self
            .unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = unanswered.take()
            && earlier
                .wait(sys::RD_KAFKA_EVENT_OFFSET_COMMIT, until)
                .is_none()
        {
            *unanswered = Some(earlier);
            return Err(self.client.deadline(COMMIT, deadline));
        }
        // SAFETY: our client outlives the queue: a local, or a field that is dropped before the client.
        let queue = unsafe { Queue::new(self.client.rk()) };
        // SAFETY: a live client, list (copied by the call) and queue. No callback and no opaque: nothing of ours can be
        // touched by a late answer.
        let code = ErrorCode(unsafe {
            coded::rd_kafka_commit_queue(
                self.client.rk(),
                list.as_ptr(),
                queue.as_ptr(),
                None,
                ptr::null_mut(),
            )
        });
        code.check(|| None).map_err(|error| CallError::Failed {
            operation: COMMIT,
            error,
        })?;
        let Some(event) = queue.wait(sys::RD_KAFKA_EVENT_OFFSET_COMMIT, until) else {
            *unanswered = Some(queue);
            return Err(self.client.deadline(COMMIT, deadline));
        };
        drop(unanswered);
        // SAFETY: a live commit event owns the list that is copied here.
        let answered = unsafe {
            ffi::read_partitions(sys::rd_kafka_event_topic_partition_list(event.as_ptr()))
        };
        commit_results(answered, event.check())
    }

    /// Closes the client and waits for its end up to `deadline`.
    ///
    /// # Errors
    /// At the deadline: the closing goes on in the background. Batches that are still held keep the client open, so drop
    /// them first.
    pub fn close(self, deadline: Duration) -> Result<(), CallError> {
        let last_error = self.client.last_error();
        let shared = Arc::clone(self.client.shared());
        drop(self);
        if shared.wait_destroyed(deadline) {
            return Ok(());
        }
        Err(CallError::Deadline {
            operation: CLOSE,
            waited: deadline,
            last_error,
        })
    }
}

impl std::fmt::Debug for BatchConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchConsumer").finish_non_exhaustive()
    }
}

/// An error of the whole is an error of each partition only if partitions have answers of their own.
fn commit_results(
    answered: Vec<ListedPartition>,
    whole: Result<(), KafkaError>,
) -> Result<Vec<CommitResult>, CallError> {
    let any_own = answered
        .iter()
        .any(|entry| entry.code != ErrorCode::NO_ERROR);
    if let (Err(error), false) = (whole, any_own) {
        return Err(CallError::Failed {
            operation: COMMIT,
            error,
        });
    }
    let results = answered.into_iter().map(|entry| CommitResult {
        topic: entry.topic,
        partition: entry.partition,
        result: entry.code.check(|| None),
    });
    Ok(results.collect())
}

/// Refuses librdkafka's logical offsets, which are negative: they would be resolved behind the caller's back.
fn check_absolute(
    operation: &'static str,
    topic: &str,
    partition: i32,
    offset: i64,
) -> Result<(), CallError> {
    if offset >= 0 {
        return Ok(());
    }
    Err(CallError::Argument {
        operation,
        problem: format!("{topic} partition {partition}: {offset} is not an absolute offset"),
    })
}
