//! What the safe librdkafka wrapper lacks, and all the unsafe code of the program.
//!
//! The wrapper hands out one record at a time, commits without a deadline and looks up the offset of one partition per
//! request. An engine that runs many consumers needs the calls underneath: the batch queue call (a record costs a
//! fraction of a poll), a commit that gives up in time, one look-up for all partitions of a cluster, topic ids.
//! They are here, as safe types, and nothing else is: which error is fatal, how often to retry and what to tell a user is
//! decided by the caller.
//!
//! - [`BatchConsumer`]: assign at absolute offsets, consume in batches, commit with a deadline.
//! - [`AdminClient`]: questions to a cluster, each with a deadline.
//! - [`known_properties`]: the property table of the linked library.
//!
//! Every call of this crate blocks its thread. None may be made on a thread that runs asynchronous tasks.
#![warn(clippy::undocumented_unsafe_blocks)]

mod admin;
mod allocator;
mod batch;
mod client;
mod consumer;
mod error;
mod ffi;
mod process;
mod properties;

pub use admin::{
    AdminClient, AlteredGroupOffset, Broker, ClusterMetadata, CommittedOffset, GroupDescription,
    GroupMember, GroupOffset, GroupState, IsolationLevel, ListedOffset, NewGroupOffset, OffsetSpec,
    PartitionInfo, PartitionOffset, TopicDescription, TopicId, TopicInfo, TopicMetadata,
};
pub use allocator::librdkafka_allocates_with_mimalloc;
pub use batch::{
    EntryError, Header, MessageBatch, RecordRun, RecordView, Run, Timestamp, TimestampType,
};
pub use client::{LogLevel, LogLine, LogSink};
pub use consumer::{AssignedOffset, BatchConsumer, CommitOffset, CommitResult};
pub use error::{CallError, ClientError, CreateError, ErrorCode, KafkaError};
pub use process::kill_this_process;
pub use properties::known_properties;
