//! How one job runs.
//!
//! ```text
//!                     one plain thread per subtask         tasks of the runtime
//!                    ┌────────────────────────────┐   ┌──────────────────────────────┐
//!  librdkafka ─────► │ consumer thread            │   │ subtask task                 │
//!  (own threads,     │   owns the client          │──►│   takes a batch, checks it,  │──► sink
//!   prefetching)     │   polls, hands over        │ 1 │   gives it to the sink,      │
//!                    │   blocks while slot full   │◄──│   then moves its positions   │
//!                    └────────────────────────────┘ 2 └──────────────┬───────────────┘
//!                                                         barrier 3 ▲ │ 4 snapshot
//!                                                     ┌─────────────┴─▼──────────────┐
//!  REST ──► services ──► JobHandle ──────────────────►│ job task                     │──► checkpoint store
//!                                                     │   coordinator, commits,      │──► consumer group
//!                        watch<JobStatus> ◄───────────│   status, the end            │
//!                                                     └──────────────────────────────┘
//! ```
//!
//! 1. The hand-over (crate `handover-slot`): one slot, one batch. A full slot blocks the thread: that is the back-pressure.
//! 2. Control requests (assign, stop); a request interrupts a thread that is blocked on the full slot.
//! 3. The newest checkpoint barrier, a value and not a queue.
//! 4. Positions as they stand between two batches, after the sink said that everything before them is safe with it.
//!
//! *One record.* The thread takes a batch from librdkafka without copying it. The subtask drops what lies below the expected
//! position, checks values against the format, gives the batch to the sink, and only then moves the position to one past the
//! last record. Positions are atomics that the job task reads for the status; nothing is locked per record.
//!
//! *One checkpoint.* The coordinator (pure) says when. The barrier goes to every subtask, each lets its sink make everything
//! durable and answers with its positions. All answers together are one row set in the store, written under the lease's
//! fence. Then the checkpoint is complete, and only then the offsets go to the consumer group, as a report that nothing
//! depends on.
//!
//! *With one subtask* the same two tasks run; there is no second, shorter path to keep right.
//!
//! *What is away is waited for; what is wrong stops at once,* the partition that it is about or the job. See [`error`] and
//! `parked`.

pub mod backoff;
mod bad_records;
mod checkpoint_coordinator;
mod consumer_thread;
mod deserialization;
mod discovery;
pub mod error;
mod fetcher;
mod group_commits;
mod job_handle;
mod job_task;
mod parked;
mod pending_positions;
pub mod ports;
mod rate_limit;
mod record_reader;
mod stages;
mod subtask;
#[cfg(test)]
mod tests;
mod threads;
pub mod topics;
mod watermarks;
mod without_checkpoints;

pub(crate) use consumer_thread::panic_text;
pub use group_commits::PERIODIC_NOTE;
pub use job_handle::{JobEnd, JobHandle, JobRun, StopOutcome, StopRefused};
pub use parked::SkipOutcome;
pub use record_reader::{FirstRecord, ReadRecord, first_records, read_records};
