//! What a run left behind: the four testimonies, and their form as files.
//!
//! A folder holds `plan.json` (one [`Plan`]) and three files with one JSON document a line: `journal.jsonl` ([`Written`]),
//! `reading.jsonl` ([`Reading`]: `{"row": {...}}` or `{"look": {...}}`) and `history.jsonl` ([`Event`]: `{"store": {...}}`,
//! `{"group": {...}}` and so on). Members that are `null` or empty may be left out. Lines may stand in any order.
//!
//! A run is one job that reads one topic. All times are microseconds of one monotonic clock. Whatever takes time carries two
//! of them: `began` before the question was sent and `at` after the answer was there; the state that was seen lies between.
//! Every offset is the *next* offset to read, except that a record's `offset` is its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{CheckId, Ranges};

/// Microseconds of the run's monotonic clock.
pub type Micros = u64;

/// Offsets by partition.
pub type Vector = BTreeMap<i32, i64>;

/// All that is known of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Run {
    /// What the run promised to be.
    pub plan: Plan,
    /// What the writer wrote.
    pub journal: Vec<Written>,
    /// The rows of the sink at the end.
    pub rows: Vec<Row>,
    /// What a concurrent reader saw in the sink.
    pub looks: Vec<Look>,
    /// What happened, and what everybody said meanwhile.
    pub history: Vec<Event>,
}

/// What the run promised to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the run: every record carries it.
    pub run: String,
    /// The seed of everything that was random.
    pub seed: u64,
    /// The sink's guarantee, which decides what is a fault of it.
    pub guarantee: Guarantee,
    /// Versions of what took part, for the report.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// How many faults of each kind must have taken effect.
    pub faults: BTreeMap<String, u64>,
    /// How long after the last fault the job may take until nothing is left to read, in milliseconds.
    pub liveness_ms: u64,
    /// Whether the job commits its offsets to the consumer group.
    pub group_commits: bool,
    /// Whether every partition is to be read from its first record on, whenever it appeared.
    #[serde(default)]
    pub from_the_first: bool,
    /// Where a bounded run is to end, by partition; empty for a run without an end.
    #[serde(default)]
    pub ends: Vector,
    /// Checks that cannot be made on this run, each with the reason.
    #[serde(default)]
    pub left_out: BTreeMap<CheckId, String>,
}

/// What a sink promises.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// Every record is there once.
    #[default]
    ExactlyOnce,
    /// Every record is there; what follows the last completed checkpoint may come again after a crash.
    AtLeastOnce,
    /// Nothing is kept, so only the counters can be checked (the blackhole).
    Counted,
}

/// One record as its writer knows it.
///
/// The value carries run, partition and seq. `seq` counts the records of a partition without a gap, those of aborted
/// transactions included; offsets have gaps where transactions end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Partition.
    pub p: i32,
    /// Number within the partition.
    pub seq: u64,
    /// Offset that the broker gave; `null` when its answer never came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// [`crate::fingerprint`] of the value.
    pub hash: String,
    /// What became of it.
    #[serde(default)]
    pub fate: Fate,
}

/// What became of a record that was sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// In the log and, if it belonged to a transaction, committed.
    #[default]
    Acked,
    /// Nobody knows: it may be in the log.
    Info,
    /// Its transaction was aborted: nobody may ever see it.
    Aborted,
    /// In the log, and nobody can process it: no sink may have it.
    Bad,
}

/// A line of `reading.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading {
    /// A row at the end of the run.
    Row(Row),
    /// A look during the run.
    Look(Look),
}

/// One record in the sink at the end of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The run named by the value.
    pub run: String,
    /// The partition named by the value.
    pub p: i32,
    /// The number named by the value.
    pub seq: u64,
    /// Offset in the source as the sink has it.
    pub offset: i64,
    /// [`crate::fingerprint`] of the value as the sink has it.
    pub hash: String,
    /// Its place among all rows of the partition, by the sink's own order; `null` when the sink has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<u64>,
    /// Whose it is, where somebody noted what was in the sink when a server died; `null` where nobody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<Life>,
    /// Where it stands in the sink, for whoever looks for it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub place: String,
}

/// The life of a server that wrote a row, by the epochs of the job's lease in it: one, unless it lost the lease and took it
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Life {
    /// The epoch that the server before it left.
    pub after: i64,
    /// The epoch that it left itself; `null` of the last one.
    pub upto: Option<i64>,
}

impl Life {
    /// Whether the epoch was taken in this life.
    #[must_use]
    pub fn holds(&self, epoch: i64) -> bool {
        epoch > self.after && self.upto.is_none_or(|upto| epoch <= upto)
    }
}

/// What was in the sink at one moment of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// Before the sink was asked.
    pub began: Micros,
    /// After it had answered.
    pub at: Micros,
    /// The seqs that were there, by partition, as ranges with both ends: `[[0, 19], [30, 41]]`.
    pub seen: BTreeMap<i32, Ranges>,
}

/// A line of `history.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// The store, read in one transaction.
    Store(Snapshot),
    /// The consumer group's offsets, asked of the broker.
    Group(GroupSample),
    /// An answer of the API.
    Api(ApiAnswer),
    /// A fault.
    Fault(Fault),
    /// An operator moved positions on purpose.
    Move(Move),
    /// An operator asked to leave out the one record at which a partition stands.
    Skip(Skip),
    /// The writer was done, and everything it wrote is in the log.
    WriterEnded {
        /// When.
        at: Micros,
    },
    /// Somebody looked for what should not be left over.
    Residue {
        /// When.
        at: Micros,
        /// What is left over.
        #[serde(default)]
        found: Vec<String>,
    },
    /// The job's counters.
    Counters(Counters),
}

/// The job's rows in the store at one moment: one transaction sees all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Before the store was asked.
    pub began: Micros,
    /// After it had answered.
    pub at: Micros,
    /// Who owns the job, if there is a lease row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// The stored state of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<StoredState>,
    /// The checkpoints that are new or have changed since the snapshot before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Checkpoint>,
}

/// A row of the leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lease {
    /// The process that owns the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The fencing number.
    pub epoch: i64,
}

/// The stored state of a job, and the store's own time of its last change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredState {
    /// For example `running`.
    pub state: String,
    /// What was asked for: `running` or `stopped`.
    pub desired: String,
    /// The operation under way that changes what the job does, for example `stop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Since when, as the store writes it: compared, never read.
    pub since: String,
}

/// A row of the checkpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// Its number.
    pub id: i64,
    /// `start`, `periodic`, `manual`, `stop`.
    pub kind: String,
    /// How far it has come.
    pub status: Status,
    /// The lease under which it was taken.
    pub epoch: i64,
    /// The positions, by partition.
    #[serde(default)]
    pub vector: BTreeMap<i32, Position>,
}

/// How far a checkpoint has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The sink holds everything, invisible yet.
    Prepared,
    /// Nobody knows whether it was stored.
    Uncertain,
    /// It counts.
    Completed,
    /// It was given up.
    Failed,
    /// It was withdrawn.
    Aborted,
}

/// A partition's position in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// The topic's id when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_id: Option<String>,
    /// Next offset to read; `null` while it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<i64>,
    /// The checkpoint that last decided it from outside.
    pub position_id: i64,
}

/// The group's offsets at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSample {
    /// Before the broker was asked.
    pub began: Micros,
    /// After it had answered.
    pub at: Micros,
    /// Next offsets; a partition without one is left out.
    pub offsets: Vector,
}

/// An answer of the API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiAnswer {
    /// Before the request was sent.
    pub began: Micros,
    /// After the answer was there.
    pub at: Micros,
    /// What it said.
    pub said: Said,
}

/// What the API said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// `/checkpoints`, newest first: at least the newest completed one.
    Checkpoints(Vec<Checkpoint>),
    /// `/offsets`.
    Offsets {
        /// The age that the answer gave for its checkpoint, when it said that it is an old one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpoint_as_of: Option<Micros>,
        /// The same for the group's offsets.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group_as_of: Option<Micros>,
        /// Positions of the newest completed checkpoint, empty when it said that there is none; `null` when it said that it
        /// does not know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkpointed: Option<Vector>,
        /// Offsets of the group; `null` when it said that it does not know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Vector>,
    },
    /// The job's view.
    Job {
        /// The state that it showed.
        state: String,
        /// The newest completed checkpoint that it showed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_checkpoint: Option<i64>,
        /// The checkpoint under way that it showed: it may be stored, and the server may not know yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        under_way: Option<i64>,
    },
}

/// A fault that struck, or was meant to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// When nothing had happened yet; `null` if `at` is the moment itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Micros>,
    /// When it had happened.
    pub at: Micros,
    /// When what it broke worked again (a killed server: ready again); `null` if it never did or needs no healing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healed: Option<Micros>,
    /// For example `kill`.
    pub kind: String,
    /// Whether it struck something that was busy: records were under way that no checkpoint covered.
    pub effective: bool,
}

/// An operator's move, with the numbers that were announced before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    /// When it was ordered.
    pub at: Micros,
    /// The positions that the plan announced.
    pub to: Vector,
    /// How far the sink had come, if further than the newest completed checkpoint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: Vector,
}

/// An operator's wish to leave out one record. Whether it took effect the checkpoints tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// When it was asked for.
    pub at: Micros,
    /// The record's partition.
    pub partition: i32,
    /// The record's offset.
    pub offset: i64,
}

/// Counters of a whole job or of one partition, over a span of positions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// When they were read; nothing moved meanwhile.
    pub at: Micros,
    /// Positions at which counting began.
    pub from: Vector,
    /// Positions when the counters were read.
    pub to: Vector,
    /// Records read.
    pub records_in: u64,
    /// Records given to the sink.
    pub out: u64,
    /// Records skipped by name.
    #[serde(default)]
    pub skipped: u64,
    /// Records put elsewhere.
    #[serde(default)]
    pub dead_lettered: u64,
    /// Records read and not given to the sink yet.
    #[serde(default)]
    pub in_flight: u64,
}
