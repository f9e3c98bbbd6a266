//! Questions to a Kafka cluster, each with a deadline.
//!
//! One client serves any number of calls at a time. Answers arrive in a queue of the call's own, so a late one disturbs
//! nobody. A call returns shortly after its deadline at the latest; a caller that must not depend on that runs it on a
//! thread it can leave behind.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int},
    fmt, ptr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use rdkafka::config::ClientConfig;
use rdkafka_sys as sys;

use crate::{
    client::{LogSink, Native, Purpose, until},
    error::{CallError, ClientError, CreateError, ErrorCode, KafkaError},
    ffi::{
        self, Event, ListedPartition, PartitionList, Queue, array, c_string, code, coded, millis,
        text,
    },
};

const LIST_OFFSETS: &str = "list offsets";
const DESCRIBE_TOPICS: &str = "describe topics";
const DESCRIBE_GROUP: &str = "describe consumer group";
const LIST_GROUP_OFFSETS: &str = "list consumer group offsets";
const ALTER_GROUP_OFFSETS: &str = "alter consumer group offsets";
const DELETE_GROUP: &str = "delete consumer group";
const METADATA: &str = "cluster metadata";

/// How much longer than the request the queue is watched, so that librdkafka's own, better explained time-out comes first.
const GRACE: Duration = Duration::from_millis(250);

/// Which records a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationLevel {
    /// All of them; the end of a partition is its high watermark.
    ReadUncommitted,
    /// Those of committed transactions; the end of a partition is its last stable offset.
    ReadCommitted,
}

/// Which offset of a partition is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The first offset in the log.
    Earliest,
    /// The next offset after the last record that the isolation level shows.
    Latest,
    /// The first record at or after a point in time, in milliseconds since 1970; at least 0.
    Timestamp(i64),
}

/// The outcome of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedOffset {
    /// The offset found; for a timestamp look-up with the timestamp of the record there.
    Found {
        /// The offset.
        offset: i64,
        /// Milliseconds since 1970, if the broker gave it.
        timestamp: Option<i64>,
    },
    /// No record is as young as asked for.
    NotFound,
}

/// The answer for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Its offset or its own error.
    pub result: Result<ListedOffset, KafkaError>,
}

/// The identity of a topic: a topic that is deleted and made again under its name has another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub u128);

impl TopicId {
    /// Its sixteen bytes, as in Kafka's protocol.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

/// As Kafka's tools print it: URL-safe base64 without padding, 22 characters.
impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // 128 bits are 21 digits of 6 bits and one of 2 bits, which is shifted up.
        for position in 0..22_u32 {
            let bits = if position < 21 {
                self.0 >> (122 - 6 * position)
            } else {
                self.0 << 4
            };
            let digit = DIGITS[usize::from((bits & 0x3f) as u8)];
            write!(f, "{}", char::from(digit))?;
        }
        Ok(())
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

/// The answer for one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDescription {
    /// The topic.
    pub name: String,
    /// What it is, or its own error.
    pub result: Result<TopicInfo, KafkaError>,
}

/// What a topic is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its identity; `None` from brokers older than Kafka 2.8.
    pub id: Option<TopicId>,
    /// True for Kafka's own topics.
    pub internal: bool,
    /// Its partitions by number.
    pub partitions: Vec<PartitionInfo>,
}

/// One partition of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    /// The partition.
    pub partition: i32,
    /// The broker that leads it; `None` while nobody does.
    pub leader: Option<i32>,
}

/// The state of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// A state that librdkafka does not know.
    Unknown,
    /// Members join.
    PreparingRebalance,
    /// Members wait for their partitions.
    CompletingRebalance,
    /// Members read.
    Stable,
    /// No such group, or it is being removed.
    Dead,
    /// No members; offsets may be stored.
    Empty,
}

/// A consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// Its state.
    pub state: GroupState,
    /// Its members: consumers that subscribed. Assigned consumers are none.
    pub members: Vec<GroupMember>,
}

/// A member of a consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The `client.id` it gave.
    pub client_id: String,
    /// Where it connects from.
    pub host: String,
}

/// The answer for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// What is stored, `None` if nothing, or the partition's own error.
    pub result: Result<Option<CommittedOffset>, KafkaError>,
}

/// What a group stored for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedOffset {
    /// The next offset to read.
    pub next_offset: i64,
    /// The note stored with it: bytes, as any client may have written it.
    pub metadata: Vec<u8>,
    /// The leader epoch of the last record read, if the committer gave one.
    pub leader_epoch: Option<i32>,
}

/// The position that a group is to have in a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewGroupOffset<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition.
    pub partition: i32,
    /// The next offset to read; at least 0.
    pub next_offset: i64,
    /// A note stored with it; at most 4,096 bytes with a broker's defaults.
    pub metadata: &'a str,
}

/// The answer for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlteredGroupOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// Done, or the partition's own error.
    pub result: Result<(), KafkaError>,
}

/// The brokers and topics of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterMetadata {
    /// The cluster's id, if it came in time.
    pub cluster_id: Option<String>,
    /// The brokers that live.
    pub brokers: Vec<Broker>,
    /// All topics that the client may see.
    pub topics: Vec<TopicMetadata>,
}

/// A broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// Its id.
    pub id: i32,
    /// The host it advertises.
    pub host: String,
    /// The port it advertises.
    pub port: i32,
}

/// A topic in the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMetadata {
    /// The topic.
    pub name: String,
    /// Its partitions, or its own error.
    pub result: Result<Vec<PartitionInfo>, KafkaError>,
}

/// A client that asks and does not consume. It may be shared.
///
/// Dropping it does not block: the native client is destroyed on a thread of its own.
pub struct AdminClient {
    client: Native,
    /// The broker that last answered for a group.
    coordinators: Mutex<HashMap<String, i32>>,
}

impl AdminClient {
    /// Makes a client; it connects in the background. Log lines go to `log`.
    ///
    /// # Errors
    /// A property that librdkafka refuses, or no threads.
    pub fn create(config: &ClientConfig, log: LogSink) -> Result<Self, CreateError> {
        Ok(Self {
            client: Native::create(config, Purpose::Ask, log)?,
            coordinators: Mutex::default(),
        })
    }

    /// The newest error of the client as a whole since a broker was last connected, such as a refused login; the reason
    /// behind a missed deadline.
    #[must_use]
    pub fn last_error(&self) -> Option<ClientError> {
        self.client.last_error()
    }

    /// Looks up one offset for each partition, in one request per leader. Answers come in the order asked.
    ///
    /// # Errors
    /// No answer in time, a negative timestamp, the same partition twice. Errors of single partitions are in the answer.
    pub fn list_offsets(
        &self,
        specs: &[(&str, i32, OffsetSpec)],
        isolation: IsolationLevel,
        deadline: Duration,
    ) -> Result<Vec<PartitionOffset>, CallError> {
        if specs.is_empty() {
            return Ok(Vec::new());
        }
        let list = offset_requests(specs)?;
        let options = self.options(
            sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTOFFSETS,
            LIST_OFFSETS,
            deadline,
        )?;
        options.set_isolation(LIST_OFFSETS, isolation)?;
        let event = self.ask(
            LIST_OFFSETS,
            sys::RD_KAFKA_EVENT_LISTOFFSETS_RESULT,
            deadline,
            |queue| {
                // SAFETY: a live client, list (copied by the call), options and queue.
                unsafe {
                    sys::rd_kafka_ListOffsets(
                        self.client.rk(),
                        list.as_ptr(),
                        options.as_ptr(),
                        queue.as_ptr(),
                    );
                };
            },
        )?;
        let mut found: HashMap<(String, i32), Result<ListedOffset, KafkaError>> =
            listed_offsets(&event)
                .into_iter()
                .map(|(entry, timestamp)| {
                    let outcome = entry
                        .code
                        .check(|| None)
                        .map(|()| listed(entry.offset, timestamp));
                    ((entry.topic, entry.partition), outcome)
                })
                .collect();
        let answers = specs.iter().map(|(topic, partition, _)| {
            let key = ((*topic).to_owned(), *partition);
            let result = found
                .remove(&key)
                .unwrap_or_else(|| Err(KafkaError::of(ErrorCode::PARTIAL)));
            PartitionOffset {
                topic: key.0,
                partition: key.1,
                result,
            }
        });
        Ok(answers.collect())
    }

    /// Describes topics by name, in the order asked.
    ///
    /// # Errors
    /// No answer in time, the same topic twice. Errors of single topics are in the answer.
    pub fn describe_topics(
        &self,
        names: &[&str],
        deadline: Duration,
    ) -> Result<Vec<TopicDescription>, CallError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let c_names = names
            .iter()
            .map(|name| c_string(DESCRIBE_TOPICS, "the topic name", name))
            .collect::<Result<Vec<_>, _>>()?;
        let topics = TopicCollection::new(&c_names);
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = self.options(operation, DESCRIBE_TOPICS, deadline)?;
        if let Some(broker) = self.any_broker(deadline)? {
            options.set_broker(DESCRIBE_TOPICS, broker)?;
        }
        let event = self.ask(
            DESCRIBE_TOPICS,
            sys::RD_KAFKA_EVENT_DESCRIBETOPICS_RESULT,
            deadline,
            |queue| {
                // SAFETY: a live client, collection (copied by the call), options and queue.
                unsafe {
                    sys::rd_kafka_DescribeTopics(
                        self.client.rk(),
                        topics.0,
                        options.as_ptr(),
                        queue.as_ptr(),
                    );
                };
            },
        )?;
        let mut found: HashMap<String, Result<TopicInfo, KafkaError>> =
            described_topics(&event).into_iter().collect();
        let answers = names.iter().map(|name| {
            let result = found
                .remove(*name)
                .unwrap_or_else(|| Err(KafkaError::of(ErrorCode::PARTIAL)));
            TopicDescription {
                name: (*name).to_owned(),
                result,
            }
        });
        Ok(answers.collect())
    }

    /// Describes one consumer group. A group that does not exist is `Dead`, or an error from newer brokers.
    ///
    /// # Errors
    /// No answer in time; the group's own error, such as [`ErrorCode::GROUP_AUTHORIZATION_FAILED`].
    pub fn describe_group(
        &self,
        group: &str,
        deadline: Duration,
    ) -> Result<GroupDescription, CallError> {
        self.ask_coordinator(DESCRIBE_GROUP, group, deadline, |coordinator, deadline| {
            self.describe_group_at(coordinator, group, deadline)
        })
    }

    fn describe_group_at(
        &self,
        coordinator: i32,
        group: &str,
        deadline: Duration,
    ) -> Result<GroupDescription, CallError> {
        let group = c_string(DESCRIBE_GROUP, "the group id", group)?;
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS;
        let options = self.options(operation, DESCRIBE_GROUP, deadline)?;
        options.set_broker(DESCRIBE_GROUP, coordinator)?;
        let mut groups = [group.as_ptr()];
        let event = self.ask(
            DESCRIBE_GROUP,
            sys::RD_KAFKA_EVENT_DESCRIBECONSUMERGROUPS_RESULT,
            deadline,
            |queue| {
                // SAFETY: a live client, array of one name (copied by the call), options and queue.
                unsafe {
                    sys::rd_kafka_DescribeConsumerGroups(
                        self.client.rk(),
                        groups.as_mut_ptr(),
                        groups.len(),
                        options.as_ptr(),
                        queue.as_ptr(),
                    );
                }
            },
        )?;
        described_group(&event).map_err(|error| CallError::Failed {
            operation: DESCRIBE_GROUP,
            error,
        })
    }

    /// Reads what a group has stored for some partitions, or for all it has any for.
    ///
    /// With `require_stable` a partition with offsets in an open transaction is an error of its own.
    ///
    /// # Errors
    /// No answer in time; an error of the group as a whole. Errors of single partitions are in the answer.
    pub fn list_group_offsets(
        &self,
        group: &str,
        partitions: Option<&[(&str, i32)]>,
        require_stable: bool,
        deadline: Duration,
    ) -> Result<Vec<GroupOffset>, CallError> {
        if partitions.is_some_and(<[_]>::is_empty) {
            return Ok(Vec::new());
        }
        self.ask_coordinator(
            LIST_GROUP_OFFSETS,
            group,
            deadline,
            |coordinator, deadline| {
                self.list_group_offsets_at(coordinator, group, partitions, require_stable, deadline)
            },
        )
    }

    fn list_group_offsets_at(
        &self,
        coordinator: i32,
        group: &str,
        partitions: Option<&[(&str, i32)]>,
        require_stable: bool,
        deadline: Duration,
    ) -> Result<Vec<GroupOffset>, CallError> {
        let group = c_string(LIST_GROUP_OFFSETS, "the group id", group)?;
        let list = partitions.map(requested_partitions).transpose()?;
        let request = GroupOffsetsRequest::new(&group, list.as_ref());
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS;
        let options = self.options(operation, LIST_GROUP_OFFSETS, deadline)?;
        options.set_require_stable(LIST_GROUP_OFFSETS, require_stable)?;
        options.set_broker(LIST_GROUP_OFFSETS, coordinator)?;
        let event_type = sys::RD_KAFKA_EVENT_LISTCONSUMERGROUPOFFSETS_RESULT;
        let mut requests = [request.0];
        let event = self.ask(LIST_GROUP_OFFSETS, event_type, deadline, |queue| {
            // SAFETY: a live client, array of one request (copied by the call), options and queue.
            unsafe {
                sys::rd_kafka_ListConsumerGroupOffsets(
                    self.client.rk(),
                    requests.as_mut_ptr(),
                    requests.len(),
                    options.as_ptr(),
                    queue.as_ptr(),
                );
            }
        })?;
        let listed = group_offsets(&event).map_err(|error| CallError::Failed {
            operation: LIST_GROUP_OFFSETS,
            error,
        })?;
        Ok(listed.into_iter().map(group_offset).collect())
    }

    /// Moves a group: one request (KIP-396) for all partitions, which the coordinator stores in one write.
    ///
    /// The coordinator leaves partitions out that it refuses (a topic that does not exist or may not be read) and stores the
    /// others; each such partition has its error in the answer. It refuses all of them while the group has members that
    /// subscribed ([`ErrorCode::UNKNOWN_MEMBER_ID`]).
    ///
    /// A deadline that passes before the coordinator is connected ends the request: it is not sent later. One that passes
    /// after it was sent leaves the outcome open, for it may still be carried out.
    ///
    /// # Errors
    /// No answer in time, a negative offset, the same partition twice; all partitions refused for want of the coordinator.
    pub fn alter_group_offsets(
        &self,
        group: &str,
        offsets: &[NewGroupOffset<'_>],
        deadline: Duration,
    ) -> Result<Vec<AlteredGroupOffset>, CallError> {
        if offsets.is_empty() {
            return Ok(Vec::new());
        }
        self.ask_coordinator(
            ALTER_GROUP_OFFSETS,
            group,
            deadline,
            |coordinator, deadline| {
                self.alter_group_offsets_at(coordinator, group, offsets, deadline)
            },
        )
    }

    fn alter_group_offsets_at(
        &self,
        coordinator: i32,
        group: &str,
        offsets: &[NewGroupOffset<'_>],
        deadline: Duration,
    ) -> Result<Vec<AlteredGroupOffset>, CallError> {
        let group = c_string(ALTER_GROUP_OFFSETS, "the group id", group)?;
        let mut list = PartitionList::with_capacity(offsets.len());
        for offset in offsets {
            let NewGroupOffset {
                topic,
                partition,
                next_offset,
                metadata,
            } = *offset;
            list.push_with_metadata(ALTER_GROUP_OFFSETS, topic, partition, next_offset, metadata)?;
        }
        let request = AlterGroupOffsetsRequest::new(&group, &list);
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS;
        let options = self.options(operation, ALTER_GROUP_OFFSETS, deadline)?;
        options.set_broker(ALTER_GROUP_OFFSETS, coordinator)?;
        let event_type = sys::RD_KAFKA_EVENT_ALTERCONSUMERGROUPOFFSETS_RESULT;
        let mut requests = [request.0];
        let event = self.ask(ALTER_GROUP_OFFSETS, event_type, deadline, |queue| {
            // SAFETY: a live client, array of one request (copied by the call), options and queue.
            unsafe {
                sys::rd_kafka_AlterConsumerGroupOffsets(
                    self.client.rk(),
                    requests.as_mut_ptr(),
                    requests.len(),
                    options.as_ptr(),
                    queue.as_ptr(),
                );
            }
        })?;
        let altered = altered_group_offsets(&event).map_err(|error| CallError::Failed {
            operation: ALTER_GROUP_OFFSETS,
            error,
        })?;
        // A broker that is not the coordinator refuses each partition and has no error for the request as a whole.
        if let Some(elsewhere) = altered
            .iter()
            .find(|entry| ELSEWHERE.contains(&entry.code))
            .map(|entry| entry.code)
        {
            return Err(CallError::Failed {
                operation: ALTER_GROUP_OFFSETS,
                error: KafkaError::of(elsewhere),
            });
        }
        let answers = altered.into_iter().map(|entry| AlteredGroupOffset {
            topic: entry.topic,
            partition: entry.partition,
            result: entry.code.check(|| None),
        });
        Ok(answers.collect())
    }

    /// Deletes a group with its offsets.
    ///
    /// # Errors
    /// No answer in time; [`ErrorCode::NON_EMPTY_GROUP`] while it has members that subscribed,
    /// [`ErrorCode::GROUP_ID_NOT_FOUND`] where there is none.
    pub fn delete_group(&self, group: &str, deadline: Duration) -> Result<(), CallError> {
        self.ask_coordinator(DELETE_GROUP, group, deadline, |coordinator, deadline| {
            self.delete_group_at(coordinator, group, deadline)
        })
    }

    fn delete_group_at(
        &self,
        coordinator: i32,
        group: &str,
        deadline: Duration,
    ) -> Result<(), CallError> {
        let group = c_string(DELETE_GROUP, "the group id", group)?;
        let request = DeleteGroupRequest::new(&group);
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DELETEGROUPS;
        let options = self.options(operation, DELETE_GROUP, deadline)?;
        options.set_broker(DELETE_GROUP, coordinator)?;
        let event_type = sys::RD_KAFKA_EVENT_DELETEGROUPS_RESULT;
        let mut requests = [request.0];
        let event = self.ask(DELETE_GROUP, event_type, deadline, |queue| {
            // SAFETY: a live client, array of one request (copied by the call), options and queue.
            unsafe {
                sys::rd_kafka_DeleteGroups(
                    self.client.rk(),
                    requests.as_mut_ptr(),
                    requests.len(),
                    options.as_ptr(),
                    queue.as_ptr(),
                );
            }
        })?;
        deleted_group(&event).map_err(|error| self.failed(DELETE_GROUP, deadline, error))
    }

    /// Brokers and all topics. Also the plainest proof that the cluster answers.
    ///
    /// # Errors
    /// No answer in time.
    pub fn metadata(&self, deadline: Duration) -> Result<ClusterMetadata, CallError> {
        self.ask_metadata(true, deadline)
    }

    /// Asks a group's coordinator, which is found by asking: another broker says that it is not the one.
    ///
    /// librdkafka would look for it by itself. But there a request whose time runs out while no broker is connected is freed,
    /// and once one is connected again, the look-up answers the freed request: an assertion ends the process (2.12.1,
    /// `rd_kafka_admin_coord_request`). A request to a named broker takes another way.
    fn ask_coordinator<T>(
        &self,
        operation: &'static str,
        group: &str,
        deadline: Duration,
        ask: impl Fn(i32, Duration) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let until = until(deadline);
        let left = || until.saturating_duration_since(Instant::now());
        let known = self.coordinators().get(group).copied();
        if let Some(broker) = known {
            let answer = ask(broker, left());
            if answer.is_ok() {
                return answer;
            }
            // Whatever the error, the next question looks anew.
            self.coordinators().remove(group);
            if !answer.as_ref().is_err_and(is_elsewhere) {
                return answer;
            }
        }
        let brokers = self.ask_metadata(false, left())?.brokers;
        let mut nobody = CallError::Failed {
            operation,
            error: KafkaError::of(ErrorCode::COORDINATOR_NOT_AVAILABLE),
        };
        for broker in brokers.iter().map(|broker| broker.id) {
            match ask(broker, left()) {
                Err(error) if is_elsewhere(&error) => nobody = error,
                Err(error) => return Err(error),
                Ok(answer) => {
                    self.coordinators().insert(group.to_owned(), broker);
                    return Ok(answer);
                }
            }
        }
        Err(nobody)
    }

    fn coordinators(&self) -> std::sync::MutexGuard<'_, HashMap<String, i32>> {
        self.coordinators
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A broker for questions that any broker answers: one that is connected, else one that the cluster names.
    ///
    /// librdkafka would ask the controller, and wait for it where it is away or, as in the mock cluster, does not exist.
    fn any_broker(&self, deadline: Duration) -> Result<Option<i32>, CallError> {
        if let Some(connected) = self.client.lowest_connected_broker() {
            return Ok(Some(connected));
        }
        let metadata = self.ask_metadata(false, deadline)?;
        Ok(metadata.brokers.iter().map(|broker| broker.id).min())
    }

    fn ask_metadata(
        &self,
        all_topics: bool,
        deadline: Duration,
    ) -> Result<ClusterMetadata, CallError> {
        let until = until(deadline);
        let mut metadata = ptr::null();
        // SAFETY: a live client; the metadata, if any, is ours.
        let code = ErrorCode(unsafe {
            coded::rd_kafka_metadata(
                self.client.rk(),
                c_int::from(all_topics),
                ptr::null_mut(),
                &raw mut metadata,
                millis(deadline),
            )
        });
        code.check(|| None).map_err(|error| {
            // How librdkafka says that it has waited to the end for a broker to ask.
            let is_alone = error.code == ErrorCode::TRANSPORT && Instant::now() >= until;
            if is_alone {
                self.client.deadline(METADATA, deadline)
            } else {
                self.failed(METADATA, deadline, error)
            }
        })?;
        // SAFETY: set by the successful call; read, and destroyed once.
        let (brokers, topics) = unsafe {
            let read = read_metadata(metadata);
            sys::rd_kafka_metadata_destroy(metadata);
            read
        };
        Ok(ClusterMetadata {
            cluster_id: self.cluster_id(until),
            brokers,
            topics,
        })
    }

    fn cluster_id(&self, until: Instant) -> Option<String> {
        let left = until.saturating_duration_since(Instant::now());
        // SAFETY: a live client; the string, if any, is ours, copied and freed once with librdkafka's allocator.
        unsafe {
            let id = sys::rd_kafka_clusterid(self.client.rk(), millis(left));
            let copy = text(id);
            if !id.is_null() {
                sys::rd_kafka_mem_free(self.client.rk(), id.cast());
            }
            copy
        }
    }

    fn options(
        &self,
        operation: sys::rd_kafka_admin_op_t,
        name: &'static str,
        deadline: Duration,
    ) -> Result<Options, CallError> {
        // SAFETY: a live client; never null for a valid operation.
        let options =
            Options(unsafe { sys::rd_kafka_AdminOptions_new(self.client.rk(), operation) });
        // librdkafka takes time-outs of up to an hour.
        let timeout_ms = millis(deadline).clamp(1, 3_600_000);
        let mut reason: [c_char; 256] = [0; 256];
        // SAFETY: live options and a buffer with its size.
        let code = ErrorCode(unsafe {
            coded::rd_kafka_AdminOptions_set_request_timeout(
                options.as_ptr(),
                timeout_ms,
                reason.as_mut_ptr(),
                reason.len(),
            )
        });
        // SAFETY: a terminated string in a zeroed buffer.
        code.check(|| unsafe { text(reason.as_ptr()) })
            .map_err(|error| CallError::Failed {
                operation: name,
                error,
            })?;
        Ok(options)
    }

    /// Sends a request and waits for its answer.
    fn ask(
        &self,
        operation: &'static str,
        event_type: c_int,
        deadline: Duration,
        send: impl FnOnce(&Queue),
    ) -> Result<Event, CallError> {
        let until = until(deadline.saturating_add(GRACE));
        // SAFETY: our client outlives the queue, a local.
        let queue = unsafe { Queue::new(self.client.rk()) };
        send(&queue);
        let event = queue
            .wait(event_type, until)
            .ok_or_else(|| self.client.deadline(operation, deadline))?;
        event
            .check()
            .map_err(|error| self.failed(operation, deadline, error))?;
        Ok(event)
    }

    /// librdkafka's own time-out is the deadline, whichever clock was first.
    fn failed(&self, operation: &'static str, deadline: Duration, error: KafkaError) -> CallError {
        if error.code == ErrorCode::TIMED_OUT {
            return self.client.deadline(operation, deadline);
        }
        // A client that knows no broker may fail in other ways than by its silence.
        self.client.recall_brokers();
        CallError::Failed { operation, error }
    }
}

/// Whether a broker says that another one may be the coordinator.
fn is_elsewhere(error: &CallError) -> bool {
    matches!(error, CallError::Failed { error, .. } if ELSEWHERE.contains(&error.code))
}

/// How a broker says that another one may be the coordinator.
const ELSEWHERE: [ErrorCode; 2] = [
    ErrorCode::NOT_COORDINATOR,
    ErrorCode::COORDINATOR_NOT_AVAILABLE,
];

impl fmt::Debug for AdminClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminClient").finish_non_exhaustive()
    }
}

/// Owned options of a request.
struct Options(*mut sys::rd_kafka_AdminOptions_t);

impl Options {
    fn as_ptr(&self) -> *mut sys::rd_kafka_AdminOptions_t {
        self.0
    }

    fn set_isolation(
        &self,
        operation: &'static str,
        isolation: IsolationLevel,
    ) -> Result<(), CallError> {
        let level = match isolation {
            IsolationLevel::ReadUncommitted => {
                sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_UNCOMMITTED
            }
            IsolationLevel::ReadCommitted => {
                sys::rd_kafka_IsolationLevel_t::RD_KAFKA_ISOLATION_LEVEL_READ_COMMITTED
            }
        };
        // SAFETY: live options; the error, if any, is ours.
        unsafe {
            ffi::owned_error(sys::rd_kafka_AdminOptions_set_isolation_level(
                self.0, level,
            ))
        }
        .map_err(|error| CallError::Failed { operation, error })
    }

    /// Sends the request to this broker instead of the controller.
    fn set_broker(&self, operation: &'static str, broker: i32) -> Result<(), CallError> {
        // SAFETY: live options; without a buffer no text is written.
        ErrorCode(unsafe {
            coded::rd_kafka_AdminOptions_set_broker(self.0, broker, ptr::null_mut(), 0)
        })
        .check(|| None)
        .map_err(|error| CallError::Failed { operation, error })
    }

    fn set_require_stable(&self, operation: &'static str, require: bool) -> Result<(), CallError> {
        // SAFETY: live options; the error, if any, is ours.
        unsafe {
            ffi::owned_error(sys::rd_kafka_AdminOptions_set_require_stable_offsets(
                self.0,
                c_int::from(require),
            ))
        }
        .map_err(|error| CallError::Failed { operation, error })
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_AdminOptions_destroy(self.0) };
    }
}

/// An owned list of topic names.
struct TopicCollection(*mut sys::rd_kafka_TopicCollection_t);

impl TopicCollection {
    fn new(names: &[std::ffi::CString]) -> Self {
        let mut pointers: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: an array of C strings with its length; both are copied.
        Self(unsafe {
            sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len())
        })
    }
}

impl Drop for TopicCollection {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_TopicCollection_destroy(self.0) };
    }
}

/// An owned request for a group's offsets.
struct GroupOffsetsRequest(*mut sys::rd_kafka_ListConsumerGroupOffsets_t);

impl GroupOffsetsRequest {
    fn new(group: &CStr, partitions: Option<&PartitionList>) -> Self {
        let partitions = partitions.map_or(ptr::null_mut(), PartitionList::as_ptr);
        // SAFETY: a C string and a live list or null; both are copied.
        Self(unsafe { sys::rd_kafka_ListConsumerGroupOffsets_new(group.as_ptr(), partitions) })
    }
}

impl Drop for GroupOffsetsRequest {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_ListConsumerGroupOffsets_destroy(self.0) };
    }
}

/// An owned request to move a group.
struct AlterGroupOffsetsRequest(*mut sys::rd_kafka_AlterConsumerGroupOffsets_t);

impl AlterGroupOffsetsRequest {
    fn new(group: &CStr, offsets: &PartitionList) -> Self {
        // SAFETY: a C string and a live list; both are copied.
        Self(unsafe {
            sys::rd_kafka_AlterConsumerGroupOffsets_new(group.as_ptr(), offsets.as_ptr())
        })
    }
}

impl Drop for AlterGroupOffsetsRequest {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_AlterConsumerGroupOffsets_destroy(self.0) };
    }
}

/// An owned request to delete a group.
struct DeleteGroupRequest(*mut sys::rd_kafka_DeleteGroup_t);

impl DeleteGroupRequest {
    fn new(group: &CStr) -> Self {
        // SAFETY: a C string, which is copied.
        Self(unsafe { sys::rd_kafka_DeleteGroup_new(group.as_ptr()) })
    }
}

impl Drop for DeleteGroupRequest {
    fn drop(&mut self) {
        // SAFETY: owned, and not used after.
        unsafe { sys::rd_kafka_DeleteGroup_destroy(self.0) };
    }
}

fn offset_requests(specs: &[(&str, i32, OffsetSpec)]) -> Result<PartitionList, CallError> {
    let mut list = PartitionList::with_capacity(specs.len());
    for (topic, partition, spec) in specs {
        let wire = match spec {
            OffsetSpec::Earliest => -2,
            OffsetSpec::Latest => -1,
            OffsetSpec::Timestamp(millis) if *millis >= 0 => *millis,
            OffsetSpec::Timestamp(millis) => {
                let problem = format!("{topic} partition {partition}: {millis} is not a timestamp");
                return Err(CallError::Argument {
                    operation: LIST_OFFSETS,
                    problem,
                });
            }
        };
        list.push(LIST_OFFSETS, topic, *partition, wire)?;
    }
    Ok(list)
}

fn requested_partitions(partitions: &[(&str, i32)]) -> Result<PartitionList, CallError> {
    let mut list = PartitionList::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        list.push(LIST_GROUP_OFFSETS, topic, *partition, 0)?;
    }
    Ok(list)
}

/// A negative offset is Kafka's way to say that no record is that young.
fn listed(offset: i64, timestamp: i64) -> ListedOffset {
    if offset < 0 {
        return ListedOffset::NotFound;
    }
    ListedOffset::Found {
        offset,
        timestamp: (timestamp >= 0).then_some(timestamp),
    }
}

fn group_offset(entry: ListedPartition) -> GroupOffset {
    let committed = (entry.offset >= 0).then_some(CommittedOffset {
        next_offset: entry.offset,
        metadata: entry.metadata,
        leader_epoch: entry.leader_epoch,
    });
    GroupOffset {
        topic: entry.topic,
        partition: entry.partition,
        result: entry.code.check(|| None).map(|()| committed),
    }
}

/// Each partition of the answer with the timestamp beside it.
fn listed_offsets(event: &Event) -> Vec<(ListedPartition, i64)> {
    let mut count = 0;
    // SAFETY: whole block: the event is a list-offsets answer, as its type was awaited, and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_ListOffsets_result(event.as_ptr());
        let infos = sys::rd_kafka_ListOffsets_result_infos(result, &raw mut count);
        array(infos.cast_const(), count)
            .iter()
            .map(|info| {
                let partition = sys::rd_kafka_ListOffsetsResultInfo_topic_partition(*info);
                (
                    ffi::read_partition(partition),
                    sys::rd_kafka_ListOffsetsResultInfo_timestamp(*info),
                )
            })
            .collect()
    }
}

fn described_topics(event: &Event) -> Vec<(String, Result<TopicInfo, KafkaError>)> {
    let mut count = 0;
    // SAFETY: whole block: the event is a describe-topics answer and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event.as_ptr());
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        array(topics.cast_const(), count)
            .iter()
            .map(|topic| {
                let name = text(sys::rd_kafka_TopicDescription_name(*topic)).unwrap_or_default();
                let error = ffi::borrowed_error(sys::rd_kafka_TopicDescription_error(*topic));
                (name, error.map(|()| topic_info(*topic)))
            })
            .collect()
    }
}

/// # Safety
/// `topic` is a live description.
unsafe fn topic_info(topic: *const sys::rd_kafka_TopicDescription_t) -> TopicInfo {
    let mut count = 0;
    // SAFETY: whole block: the description owns all that is read here.
    unsafe {
        let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &raw mut count);
        let mut partitions: Vec<PartitionInfo> = array(partitions.cast_const(), count)
            .iter()
            .map(|partition| PartitionInfo {
                partition: sys::rd_kafka_TopicPartitionInfo_partition(*partition),
                leader: node_id(sys::rd_kafka_TopicPartitionInfo_leader(*partition)),
            })
            .collect();
        partitions.sort_by_key(|partition| partition.partition);
        TopicInfo {
            id: topic_id(sys::rd_kafka_TopicDescription_topic_id(topic)),
            internal: sys::rd_kafka_TopicDescription_is_internal(topic) != 0,
            partitions,
        }
    }
}

/// # Safety
/// `node` is null or a live node.
unsafe fn node_id(node: *const sys::rd_kafka_Node_t) -> Option<i32> {
    if node.is_null() {
        return None;
    }
    // SAFETY: a live node.
    let id = unsafe { sys::rd_kafka_Node_id(node) };
    (id >= 0).then_some(id)
}

/// # Safety
/// `id` is null or a live id.
unsafe fn topic_id(id: *const sys::rd_kafka_Uuid_t) -> Option<TopicId> {
    if id.is_null() {
        return None;
    }
    // SAFETY: a live id.
    let halves = unsafe {
        [
            sys::rd_kafka_Uuid_most_significant_bits(id),
            sys::rd_kafka_Uuid_least_significant_bits(id),
        ]
    };
    let [high, low] = halves.map(|half| u128::from(half.cast_unsigned()));
    let id = TopicId(high << 64 | low);
    // The zero id is what brokers without topic ids send.
    (id.0 != 0).then_some(id)
}

fn described_group(event: &Event) -> Result<GroupDescription, KafkaError> {
    let mut count = 0;
    // SAFETY: whole block: the event is a describe-groups answer and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_DescribeConsumerGroups_result(event.as_ptr());
        let groups = sys::rd_kafka_DescribeConsumerGroups_result_groups(result, &raw mut count);
        let group = *array(groups.cast_const(), count)
            .first()
            .ok_or_else(|| KafkaError::of(ErrorCode::PARTIAL))?;
        ffi::borrowed_error(sys::rd_kafka_ConsumerGroupDescription_error(group))?;
        let members =
            (0..sys::rd_kafka_ConsumerGroupDescription_member_count(group)).map(|index| {
                let member = sys::rd_kafka_ConsumerGroupDescription_member(group, index);
                GroupMember {
                    client_id: text(sys::rd_kafka_MemberDescription_client_id(member))
                        .unwrap_or_default(),
                    host: text(sys::rd_kafka_MemberDescription_host(member)).unwrap_or_default(),
                }
            });
        let state = group_state(sys::rd_kafka_ConsumerGroupDescription_state(group));
        Ok(GroupDescription {
            state,
            members: members.collect(),
        })
    }
}

/// The state is librdkafka's own look-up by name, so it is always one of its constants.
fn group_state(state: sys::rd_kafka_consumer_group_state_t) -> GroupState {
    use sys::rd_kafka_consumer_group_state_t as State;
    match state {
        State::RD_KAFKA_CONSUMER_GROUP_STATE_UNKNOWN
        | State::RD_KAFKA_CONSUMER_GROUP_STATE__CNT => GroupState::Unknown,
        State::RD_KAFKA_CONSUMER_GROUP_STATE_PREPARING_REBALANCE => GroupState::PreparingRebalance,
        State::RD_KAFKA_CONSUMER_GROUP_STATE_COMPLETING_REBALANCE => {
            GroupState::CompletingRebalance
        }
        State::RD_KAFKA_CONSUMER_GROUP_STATE_STABLE => GroupState::Stable,
        State::RD_KAFKA_CONSUMER_GROUP_STATE_DEAD => GroupState::Dead,
        State::RD_KAFKA_CONSUMER_GROUP_STATE_EMPTY => GroupState::Empty,
    }
}

fn group_offsets(event: &Event) -> Result<Vec<ListedPartition>, KafkaError> {
    let mut count = 0;
    // SAFETY: whole block: the event is a group-offsets answer and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_ListConsumerGroupOffsets_result(event.as_ptr());
        let groups = sys::rd_kafka_ListConsumerGroupOffsets_result_groups(result, &raw mut count);
        let group = *array(groups.cast_const(), count)
            .first()
            .ok_or_else(|| KafkaError::of(ErrorCode::PARTIAL))?;
        ffi::borrowed_error(sys::rd_kafka_group_result_error(group))?;
        Ok(ffi::read_partitions(sys::rd_kafka_group_result_partitions(
            group,
        )))
    }
}

fn altered_group_offsets(event: &Event) -> Result<Vec<ListedPartition>, KafkaError> {
    let mut count = 0;
    // SAFETY: whole block: the event is an alter-group-offsets answer and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_AlterConsumerGroupOffsets_result(event.as_ptr());
        let groups = sys::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &raw mut count);
        let group = *array(groups.cast_const(), count)
            .first()
            .ok_or_else(|| KafkaError::of(ErrorCode::PARTIAL))?;
        ffi::borrowed_error(sys::rd_kafka_group_result_error(group))?;
        Ok(ffi::read_partitions(sys::rd_kafka_group_result_partitions(
            group,
        )))
    }
}

fn deleted_group(event: &Event) -> Result<(), KafkaError> {
    let mut count = 0;
    // SAFETY: whole block: the event is a delete-groups answer and owns all that is read here.
    unsafe {
        let result = sys::rd_kafka_event_DeleteGroups_result(event.as_ptr());
        let groups = sys::rd_kafka_DeleteGroups_result_groups(result, &raw mut count);
        let group = *array(groups.cast_const(), count)
            .first()
            .ok_or_else(|| KafkaError::of(ErrorCode::PARTIAL))?;
        ffi::borrowed_error(sys::rd_kafka_group_result_error(group))
    }
}

/// # Safety
/// `metadata` is live.
unsafe fn read_metadata(
    metadata: *const sys::rd_kafka_metadata,
) -> (Vec<Broker>, Vec<TopicMetadata>) {
    // SAFETY: whole block: the metadata owns all that is read here. Elements are reached by pointer, as their error
    // fields may hold numbers that the bindings' enum lacks.
    unsafe {
        let brokers = (0..count_of((*metadata).broker_cnt)).map(|index| {
            let broker = (*metadata).brokers.add(index);
            Broker {
                id: (*broker).id,
                host: text((*broker).host).unwrap_or_default(),
                port: (*broker).port,
            }
        });
        let topics = (0..count_of((*metadata).topic_cnt)).map(|index| {
            let topic = (*metadata).topics.add(index);
            let partitions = (0..count_of((*topic).partition_cnt)).map(|index| {
                let partition = (*topic).partitions.add(index);
                let leader = (*partition).leader;
                PartitionInfo {
                    partition: (*partition).id,
                    leader: (leader >= 0).then_some(leader),
                }
            });
            TopicMetadata {
                name: text((*topic).topic).unwrap_or_default(),
                result: code(&raw const (*topic).err)
                    .check(|| None)
                    .map(|()| partitions.collect()),
            }
        });
        (brokers.collect(), topics.collect())
    }
}

fn count_of(count: c_int) -> usize {
    usize::try_from(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_id_prints_as_kafka_prints_it() {
        assert_eq!(TopicId(0).to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(TopicId(1).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!(TopicId(u128::MAX).to_string(), "_____________________w");
        assert_eq!(
            TopicId(0xfb_ef_be << 104).to_string(),
            "----AAAAAAAAAAAAAAAAAA"
        );
    }
}
