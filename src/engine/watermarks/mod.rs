//! Event time: how far the time that the records tell has come.
//!
//! ```text
//!   subtask task                          job task, four times a second
//!   ┌──────────────────────────────┐      ┌───────────────────────────────────────────────┐
//!   │ per batch: the greatest time │─────►│ a watermark for each partition                │
//!   │ stamp of each partition,     │atomic│ who is idle (the brokers say: nothing to read)│
//!   │ what was late                │◄─────│ the least of the active ones: the job's       │
//!   │                              │      │ who is too far ahead                          │
//!   │ leaves those partitions,     │◄─────│                                               │
//!   │ reads them again             │ watch└───────────────────────────────────────────────┘
//!   └──────────────────────────────┘
//! ```
//!
//! What decides is a pure value, [`Watermarks`]: what is seen and a time go in, watermarks and partitions to hold back come
//! out. It follows Flink's `WatermarkOutputMultiplexer` and source alignment (FLIP-182), with these rules:
//!
//! * A partition's watermark is its greatest time stamp less `max_delay` and a millisecond, and never goes back.
//! * The job's is the least over the *active* partitions of all subtasks. It never goes back either; a partition that comes
//!   back with older records finds them late. While an active partition has shown no record there is no least one, and where
//!   nobody is active it stays where it is: never the greatest number there is (FLINK-8001).
//! * A partition is **idle** when there is nothing to read of it, and not when nothing came (FLINK-5479). Its clock stands
//!   while its subtask cannot take records: held back, frozen, cut off from the brokers, or waiting for a sink that takes
//!   nothing. When the time is over the brokers are asked, and only a partition whose readable end is at our position is idle:
//!   so no record of it lies anywhere between the broker and the sink.
//! * A partition that cannot be read at the moment (parked, without a leader) stays active: its records are still to come. One
//!   that has come to the end of a bounded run, or that does not exist any more, leaves.
//! * **Alignment** holds back who is further than `max_drift` ahead of the least one of all that are being read, and lets go
//!   within half of that: a partition that is left loses what the client has fetched ahead (as librdkafka's own `pause` does,
//!   its issue 1775), so it must not go to and fro. The least one is never held back, so somebody always reads; who is held back
//!   is not idle and counts in the least one, who is idle or parked does not (FLINK-25982, FLINK-31632, FLINK-32496). A subtask
//!   that has given too much of a partition to its sink takes nothing more until the job task has looked, which is then due at
//!   once: how far somebody comes too far is a matter of batches, not of time.
//!
//! Nothing of it is part of a checkpoint: after a start nothing is known of any partition, as in Flink. A job without
//! `watermark` in its spec has none of these parts.

mod event_times;
mod pausing;
mod timestamps;
mod tracker;

pub(super) use event_times::{EventTime, EventTimes, SharedWatermark};
pub(super) use pausing::Pausing;
pub(super) use tracker::{PartitionSeen, Standing, SubtaskSeen, Watermarks};
