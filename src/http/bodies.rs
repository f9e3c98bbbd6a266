//! The bodies that callers send, as the document describes them.
//!
//! Bodies are read by the model, which reports every fault at once; serde would stop at the first. These types only
//! describe them for the OpenAPI document: what may be left out, which is nearly everything. Tests compare their members
//! with what the model reads.

use std::collections::BTreeMap;

use utoipa::ToSchema;

use crate::model::{
    duration::HumanDuration,
    errors_spec::{Block, OnBadRecord},
    job::{CommitToGroup, Format, Isolation, NewPartitions, OnCancel, PositionPolicy},
    sink_spec::{LogFormat, MappingMode, OnTombstone, PostgresDelivery, WriteMode},
    start::{PartitionGonePolicy, StopCheckpoint},
    startup_mode::StartupMode,
    stop_at::StopAt,
    watermark::{WatermarkAlignment, WatermarkStrategy},
};

macro_rules! described {
    ($($item:item)*) => {
        $(
            #[derive(ToSchema)]
            #[expect(dead_code, reason = "only describes a body in the document")]
            $item
        )*
    };
}

described! {
    /// A job's spec as callers send it; what is left out has its default.
    #[serde(deny_unknown_fields)]
    #[schema(example = json!({
        "labels": {"team": "payments"},
        "source": {"connection": "main", "topics": ["orders"]},
        "startup_mode": {"mode": "earliest"},
        "checkpoint": {"interval": "10s"},
        "sink": {"type": "blackhole"}
    }))]
    pub(super) struct JobSpecDocument {
        /// Free labels to filter by.
        labels: Option<BTreeMap<String, String>>,
        /// What to read.
        source: SourceDocument,
        /// Number of subtasks, each with its own Kafka client; partitions are spread by Flink's owner rule.
        #[schema(minimum = 1, maximum = 64, default = 1)]
        parallelism: Option<u32>,
        /// Where to begin when there is no checkpoint. Has no default: choosing it is the user's decision.
        startup_mode: StartupMode,
        /// When to checkpoint.
        checkpoint: Option<CheckpointTimesDocument>,
        /// What happens when something would fail the same way again; see docs/bad-records.md.
        errors: Option<ErrorsDocument>,
        /// What follows a crash. Default: `exponential` with its defaults.
        restart: Option<RestartDocument>,
        /// How fast it may go. Default: as fast as it can.
        limits: Option<LimitsDocument>,
        /// How its watermark is made; without one it keeps no event time. Changes count from the next start on. See
        /// docs/event-time.md.
        watermark: Option<WatermarkDocument>,
        /// Where the records go.
        sink: SinkDocument,
    }

    /// What a job reads.
    #[serde(deny_unknown_fields)]
    pub(super) struct SourceDocument {
        /// Name of a Kafka connection of the server's file.
        connection: String,
        /// The topics, by name. Give these or a pattern.
        #[schema(min_items = 1, max_items = 1000)]
        topics: Option<Vec<String>>,
        /// A regular expression (syntax of Rust's `regex` crate) that must match a topic's whole name. Kafka's own topics are
        /// left out; it may match nothing yet.
        #[schema(min_length = 1, max_length = 1000)]
        topic_pattern: Option<String>,
        /// How partitions and topics are found that appear while the job runs. Changes count at once.
        partition_discovery: Option<PartitionDiscoveryDocument>,
        /// The consumer group whose offsets are read (startup mode `group-offsets`) and committed. Default: the job's name.
        group_id: Option<String>,
        /// Whether another job may use the same group on the same connection.
        #[schema(default = false)]
        allow_shared_group: Option<bool>,
        /// Which records are seen.
        #[schema(default = "read_committed", inline)]
        isolation: Option<Isolation>,
        /// What a value must be; what becomes of a record that is not stands in `errors`.
        #[schema(default = "bytes", inline)]
        format: Option<Format>,
        /// When offsets are committed to the group. Default: `on-checkpoint`, and `periodic` for a job without checkpoints.
        #[schema(inline)]
        commit_to_group: Option<CommitToGroup>,
        /// Time between two commits of `commit_to_group: periodic`, 100ms to 1d. Default: 5s.
        #[schema(inline)]
        commit_interval: Option<HumanDuration>,
        /// What a start does when a stored position lies outside the log, and a run when the log leaves its position behind.
        #[schema(default = "fail", inline)]
        on_out_of_range: Option<PositionPolicy>,
        /// What a start does when a group offset is asked for and the group has none.
        #[schema(default = "fail", inline)]
        on_missing_group_offset: Option<PositionPolicy>,
        /// What becomes of a partition when its topic was deleted and created again (its topic id changed), at a start and
        /// while the job runs.
        #[schema(default = "fail", inline)]
        on_topic_recreated: Option<PositionPolicy>,
        /// Where the job ends: it reads each partition up to there and is then `finished`. Resolved to numbers by the start
        /// that begins the run, and kept over restarts. Without it the job runs until it is stopped.
        #[schema(inline)]
        stop_at: Option<StopAt>,
        /// Client properties of librdkafka that a job may tune, within bounds; see docs/configuration.md.
        properties: Option<BTreeMap<String, String>>,
    }

    /// How the watermark of a job is made.
    #[serde(deny_unknown_fields)]
    pub(super) struct WatermarkDocument {
        /// How a partition's watermark follows from its time stamps.
        #[schema(inline)]
        strategy: WatermarkStrategy,
        /// With `bounded-out-of-orderness`, which needs it: how far a time stamp may lie behind the greatest one that was seen
        /// of its partition without being late; at most 365d.
        #[schema(inline)]
        max_delay: Option<HumanDuration>,
        /// After how long without a record, while there is none to read, a partition is idle and the others go on without it;
        /// 1s to 1d. Default: never, a quiet partition then holds the watermark. Required with `alignment`.
        #[schema(inline)]
        idle_after: Option<HumanDuration>,
        /// Where a record's time stamp is: `record`, or the path of a field of its value (one value of RFC 9535, as in
        /// `$.created_at`), a whole number of milliseconds since 1970 or a text of RFC 3339; needs `source.format: json`.
        #[schema(default = "record")]
        timestamp: Option<String>,
        /// Holds partitions back whose event time is ahead of the others'.
        #[schema(inline)]
        alignment: Option<WatermarkAlignment>,
    }

    /// What happens when something would fail the same way again.
    #[serde(deny_unknown_fields)]
    pub(super) struct ErrorsDocument {
        /// What a failure of one record, or of one partition, stops.
        #[schema(default = "partition", inline)]
        block: Option<Block>,
        /// What becomes of a record that cannot be processed; `stop` if it is not said.
        on_bad_record: Option<OnBadRecord>,
    }

    /// How partitions and topics are found that appear while the job runs.
    #[serde(deny_unknown_fields)]
    pub(super) struct PartitionDiscoveryDocument {
        /// Time between two looks at the brokers' metadata, 1s to 1d.
        #[schema(default = "30s", inline)]
        interval: Option<HumanDuration>,
        /// Where such partitions begin: at their first record, or by the startup mode, which may pass over what was written
        /// before they were found.
        #[schema(default = "earliest", inline)]
        new_partitions: Option<NewPartitions>,
    }

    /// When to checkpoint.
    #[serde(deny_unknown_fields)]
    pub(super) struct CheckpointTimesDocument {
        /// Time between the triggers of periodic checkpoints. `null` turns checkpoints off (also in a merge patch): the job
        /// then has no state, and each start begins by the startup mode. See docs/guarantees.md.
        #[schema(default = "10s", inline)]
        interval: Option<HumanDuration>,
        /// How long an attempt may take until the sink has said yes.
        #[schema(default = "60s", inline)]
        timeout: Option<HumanDuration>,
        /// Least time between the end of an attempt, whatever its outcome, and the next periodic trigger.
        #[schema(default = "0s", inline)]
        min_pause: Option<HumanDuration>,
        /// What becomes of the checkpoints when somebody stops the job. `delete` is refused for a sink that keeps progress.
        #[schema(default = "retain", inline)]
        on_cancel: Option<OnCancel>,
    }

    /// What follows a crash; see docs/restarts.md.
    #[serde(tag = "strategy", rename_all = "kebab-case", deny_unknown_fields)]
    pub(super) enum RestartDocument {
        /// The job fails at the first crash.
        None,
        /// A number of restarts, each after the same pause.
        FixedDelay {
            /// Restarts in a loop until the job fails.
            #[schema(minimum = 1, maximum = 1_000_000)]
            attempts: u32,
            /// The pause before each.
            #[schema(default = "1s", inline)]
            delay: Option<HumanDuration>,
        },
        /// As many restarts as it takes, unless crashes come too often.
        FailureRate {
            /// Crashes within `interval` that are followed by a restart; one more fails the job.
            #[schema(minimum = 1, maximum = 100)]
            max_failures: u32,
            /// In which time they are counted.
            #[schema(default = "1m", inline)]
            interval: Option<HumanDuration>,
            /// The pause before each restart.
            #[schema(default = "1s", inline)]
            delay: Option<HumanDuration>,
        },
        /// As many restarts as it takes, each after a longer pause.
        Exponential {
            /// The first pause.
            #[schema(default = "1s", inline)]
            initial: Option<HumanDuration>,
            /// The longest pause.
            #[schema(default = "1m", inline)]
            max: Option<HumanDuration>,
            /// How much longer each pause is than the one before.
            #[schema(default = 1.5, minimum = 1, maximum = 100)]
            multiplier: Option<f64>,
            /// By which part of itself a pause is made longer or shorter at random.
            #[schema(default = 0.1, minimum = 0, maximum = 1)]
            jitter: Option<f64>,
            /// How long a run must last for the pauses to begin with the first one again.
            #[schema(default = "1h", inline)]
            reset_after: Option<HumanDuration>,
        },
    }

    /// How much a job may give to its sink in a second, all its subtasks together.
    #[serde(deny_unknown_fields)]
    pub(super) struct LimitsDocument {
        /// Records in a second; no limit if it is left out.
        #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
        records_per_s: Option<u64>,
        /// Bytes of keys and values in a second; no limit if it is left out.
        #[schema(minimum = 1, maximum = 1_000_000_000_000_i64)]
        bytes_per_s: Option<u64>,
    }

    /// Where the records go.
    #[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
    pub(super) enum SinkDocument {
        /// Counts records and drops them.
        Blackhole,
        /// Prints each record as a line on the server's standard output.
        Log {
            /// How a line looks.
            #[schema(default = "json", inline)]
            format: Option<LogFormat>,
            /// Bytes of a value (and of a key) that are printed; longer ones are cut and marked.
            #[schema(default = 1024, maximum = 1_048_576)]
            max_value_bytes: Option<u32>,
        },
        /// Writes rows to a table of PostgreSQL, in one transaction with the progress they stand for; see docs/sinks/postgres.md.
        Postgres {
            /// Name of a PostgreSQL connection of the server's file.
            connection: String,
            /// What the sink guarantees; there is one answer only.
            #[schema(default = "exactly-once", inline)]
            delivery: Option<PostgresDelivery>,
            /// `schema.table`; names with other characters than `a-z 0-9 _ $` in double quotes.
            #[schema(examples("public.orders"))]
            table: String,
            /// Which part of a record goes to which column.
            #[schema(inline)]
            mapping: MappingDocument,
            /// How rows are written. Default: they are appended.
            #[schema(inline)]
            write: Option<WriteDocument>,
            /// How many rows go together.
            #[schema(inline)]
            batch: Option<BatchDocument>,
        },
    }

    /// Which part of a record goes to which column.
    #[serde(deny_unknown_fields)]
    pub(super) struct MappingDocument {
        /// What a record's value is taken for.
        #[schema(inline)]
        mode: MappingMode,
        /// Column to source: `@topic`, `@partition`, `@offset`, `@timestamp`, `@key`, `@value`, or a path like `$.order.id`.
        /// Required for `json-fields`; otherwise one column for each part of a record by default.
        columns: Option<BTreeMap<String, String>>,
    }

    /// How rows are written.
    #[serde(deny_unknown_fields)]
    pub(super) struct WriteDocument {
        /// Insert only, or replace the row of the same key.
        #[schema(default = "append", inline)]
        mode: Option<WriteMode>,
        /// With `upsert`: the columns that tell rows apart; the table has a unique index on just these.
        key: Option<Vec<String>>,
        /// What a record without a value does. To be said for `upsert`; `fail` by default where JSON is appended; not to
        /// be said where raw records are appended, since a tombstone is a row there like any other.
        #[schema(inline)]
        on_tombstone: Option<OnTombstone>,
    }

    /// How many rows go together.
    #[serde(deny_unknown_fields)]
    pub(super) struct BatchDocument {
        /// The most rows of one transaction.
        #[schema(minimum = 1, maximum = 100_000, default = 20_000)]
        max_rows: Option<u32>,
        /// How long rows wait for more before they are written, `0s` to `10s`.
        #[schema(default = "50ms", inline)]
        linger: Option<HumanDuration>,
    }

    /// How to start.
    #[serde(deny_unknown_fields)]
    pub(super) struct StartBody {
        /// From where: a pending one-shot start, the newest checkpoint or the startup mode (`auto`), or as said.
        #[schema(default = "auto", inline)]
        from: Option<StartWord>,
        /// With `from: checkpoint`: its number; the newest completed one if it is left out.
        checkpoint: Option<i64>,
        /// With `from: timestamp`: the instant, RFC 3339 with an explicit offset.
        #[schema(value_type = Option<String>, format = DateTime, examples("2026-11-28T02:00:00+01:00"))]
        timestamp: Option<String>,
        /// With `from: ago`: how long ago.
        #[schema(inline)]
        duration: Option<HumanDuration>,
        /// With `from: specific-offsets`: topic to partition to next offset to read.
        offsets: Option<BTreeMap<String, BTreeMap<String, i64>>>,
        /// With `from: shift`: by how many offsets; negative reads again.
        by: Option<i64>,
        /// Which partitions `from` moves: topic to partition numbers. The others keep their checkpointed positions.
        partitions: Option<BTreeMap<String, Vec<i32>>>,
        /// A plan that was looked at: the start uses exactly its numbers or fails with `plan-stale`.
        plan: Option<String>,
        /// Overrides the spec's `on_out_of_range` for this start.
        #[schema(inline)]
        on_out_of_range: Option<PositionPolicy>,
        /// Overrides the spec's `on_missing_group_offset` for this start.
        #[schema(inline)]
        on_missing_group_offset: Option<PositionPolicy>,
        /// Overrides the spec's `on_topic_recreated` for this start.
        #[schema(inline)]
        on_topic_recreated: Option<PositionPolicy>,
        /// What becomes of the positions of partitions that do not exist any more; `keep` if nothing is said.
        #[schema(inline)]
        on_partition_gone: Option<PartitionGonePolicy>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// From where a start begins.
    #[serde(rename_all = "kebab-case")]
    pub(super) enum StartWord {
        Auto,
        Checkpoint,
        Earliest,
        Latest,
        Timestamp,
        Ago,
        SpecificOffsets,
        GroupOffsets,
        Shift,
    }

    /// How to stop.
    #[serde(deny_unknown_fields)]
    pub(super) struct StopBody {
        /// How the last checkpoint is treated.
        #[schema(default = "best-effort", inline)]
        checkpoint: Option<StopCheckpoint>,
        /// How long the checkpoint may take, up to `10m`.
        #[schema(default = "30s", inline)]
        timeout: Option<HumanDuration>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// How to restart: where to begin again, as in a start, and how to stop before.
    #[serde(deny_unknown_fields)]
    pub(super) struct RestartBody {
        /// From where: a pending one-shot start, the newest checkpoint or the startup mode (`auto`), or as said.
        #[schema(default = "auto", inline)]
        from: Option<StartWord>,
        /// With `from: checkpoint`: its number; the newest completed one if it is left out.
        checkpoint: Option<i64>,
        /// With `from: timestamp`: the instant, RFC 3339 with an explicit offset.
        #[schema(value_type = Option<String>, format = DateTime, examples("2026-11-28T02:00:00+01:00"))]
        timestamp: Option<String>,
        /// With `from: ago`: how long ago.
        #[schema(inline)]
        duration: Option<HumanDuration>,
        /// With `from: specific-offsets`: topic to partition to next offset to read.
        offsets: Option<BTreeMap<String, BTreeMap<String, i64>>>,
        /// With `from: shift`: by how many offsets; negative reads again.
        by: Option<i64>,
        /// Which partitions `from` moves: topic to partition numbers. The others keep their checkpointed positions.
        partitions: Option<BTreeMap<String, Vec<i32>>>,
        /// A plan that was looked at: the start uses exactly its numbers. While the job runs only a plan of `from` for all
        /// partitions can hold, because the stop takes another checkpoint.
        plan: Option<String>,
        /// Overrides the spec's `on_out_of_range` for this start.
        #[schema(inline)]
        on_out_of_range: Option<PositionPolicy>,
        /// Overrides the spec's `on_missing_group_offset` for this start.
        #[schema(inline)]
        on_missing_group_offset: Option<PositionPolicy>,
        /// Overrides the spec's `on_topic_recreated` for this start.
        #[schema(inline)]
        on_topic_recreated: Option<PositionPolicy>,
        /// What becomes of the positions of partitions that do not exist any more; `keep` if nothing is said.
        #[schema(inline)]
        on_partition_gone: Option<PartitionGonePolicy>,
        /// How to stop before; as the body of a stop.
        stop: Option<RestartStop>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// How a restart stops.
    #[serde(deny_unknown_fields)]
    pub(super) struct RestartStop {
        /// How the last checkpoint is treated.
        #[schema(default = "best-effort", inline)]
        checkpoint: Option<StopCheckpoint>,
        /// How long the checkpoint may take, up to `10m`.
        #[schema(default = "30s", inline)]
        timeout: Option<HumanDuration>,
    }

    /// Which record to step over.
    #[serde(deny_unknown_fields)]
    pub(super) struct SkipBody {
        /// The record's topic.
        topic: String,
        /// Its partition.
        partition: i32,
        /// Its own offset, as the job's failure names it.
        #[schema(minimum = 0)]
        offset: i64,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// How to take a checkpoint.
    #[serde(deny_unknown_fields)]
    pub(super) struct CheckpointBody {
        /// How long the attempt may take; the spec's `checkpoint.timeout` if nothing is said.
        #[schema(inline)]
        timeout: Option<HumanDuration>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// Where a consumer group goes.
    #[serde(deny_unknown_fields)]
    pub(super) struct ResetBody {
        /// Where to.
        to: ResetTarget,
        /// Which partitions: topic to partition numbers; all that the job reads if it is left out. Not with
        /// `specific-offsets`, which names its partitions itself.
        partitions: Option<BTreeMap<String, Vec<i32>>>,
        /// Whether a position outside of its log is taken to the nearest end instead of being refused.
        #[schema(default = false)]
        clamp: Option<bool>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// A position in each log.
    #[serde(deny_unknown_fields)]
    pub(super) struct ResetTarget {
        /// Which position: the first offset that the log holds, the end of what the job reads, by time, the group's own offset
        /// moved, given offsets, or those of a checkpoint.
        #[schema(inline)]
        mode: ResetWord,
        /// With mode `timestamp`: the instant, RFC 3339 with an explicit offset.
        #[schema(value_type = Option<String>, format = DateTime, examples("2026-11-28T02:00:00+01:00"))]
        timestamp: Option<String>,
        /// With mode `ago`: how long ago.
        #[schema(inline)]
        duration: Option<HumanDuration>,
        /// With mode `shift`: by how many offsets; negative goes back.
        by: Option<i64>,
        /// With mode `specific-offsets`: topic to partition to next offset to read. Partitions not named stay.
        offsets: Option<BTreeMap<String, BTreeMap<String, i64>>>,
        /// With mode `checkpoint`: its number; the newest completed one if it is left out.
        id: Option<i64>,
    }

    /// Where a group can go.
    #[serde(rename_all = "kebab-case")]
    pub(super) enum ResetWord {
        Earliest,
        Latest,
        Timestamp,
        Ago,
        Shift,
        SpecificOffsets,
        Checkpoint,
    }

    /// A startup mode, and what is meant by it.
    #[serde(deny_unknown_fields)]
    pub(super) struct StartupModeBody {
        /// The mode.
        mode: ModeWord,
        /// With mode `timestamp`: the instant, RFC 3339 with an explicit offset.
        #[schema(value_type = Option<String>, format = DateTime, examples("2026-11-28T02:00:00+01:00"))]
        timestamp: Option<String>,
        /// With mode `specific-offsets`: topic to partition to next offset to read.
        offsets: Option<BTreeMap<String, BTreeMap<String, i64>>>,
        /// What is meant. May be left out as long as the job has no checkpoint.
        #[schema(inline)]
        apply: Option<Apply>,
        /// Why, for the history.
        reason: Option<String>,
    }

    /// The startup modes.
    #[serde(rename_all = "kebab-case")]
    pub(super) enum ModeWord {
        GroupOffsets,
        Earliest,
        Latest,
        Timestamp,
        SpecificOffsets,
    }

    /// What a change of the startup mode means.
    #[serde(rename_all = "kebab-case")]
    pub(super) enum Apply {
        /// Stored for a job without state.
        IfNoState,
        /// The next start by an operator uses it, once.
        NextStart,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};
    use utoipa::PartialSchema;

    use super::*;
    use crate::model::{
        errors_spec::ErrorsSpec,
        field_error::FieldError,
        group_reset::ResetRequest,
        ids::JobName,
        job::{CheckpointSpec, JobSpec, PartitionDiscovery, SourceSpec},
        limits::LimitsSpec,
        restart::RestartStrategy,
        sink_spec::{BatchSpec, MappingSpec, WriteSpec},
        skip::SkipRequest,
        start::{CheckpointRequest, RestartRequest, StartRequest, StopRequest},
        watermark::WatermarkSpec,
    };

    /// The members of each variant, by its tag.
    fn variants<T: PartialSchema>() -> Vec<(Value, BTreeSet<String>)> {
        let schema = serde_json::to_value(T::schema()).unwrap();
        let variants = schema["oneOf"].as_array().unwrap().iter();
        variants
            .map(|variant| {
                let members = variant["properties"].as_object().unwrap();
                let tag = members["strategy"]["enum"].clone();
                (tag, members.keys().cloned().collect())
            })
            .collect()
    }

    fn members<T: PartialSchema>() -> BTreeSet<String> {
        let schema = serde_json::to_value(T::schema()).unwrap();
        schema["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    }

    /// What a reader says it knows when it meets a member that is like no other.
    fn known(errors: Vec<FieldError>) -> BTreeSet<String> {
        let text = errors
            .into_iter()
            .find(|error| error.unknown_member)
            .unwrap()
            .message;
        let (_, names) = text.split_once("known here: ").unwrap();
        names.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn described_bodies_have_the_members_that_are_read() {
        let odd: Value = json!({"zzzzzzzzzzzzzzzzzzzz": 1});
        assert_eq!(
            members::<StartBody>(),
            known(StartRequest::read(&odd).unwrap_err())
        );
        assert_eq!(
            members::<StopBody>(),
            known(StopRequest::read(&odd).unwrap_err())
        );
        assert_eq!(
            members::<ResetBody>(),
            known(
                ResetRequest::read(&json!({"to": {"mode": "latest"}, "zzzzzzzzzzzzzzzzzzzz": 1}))
                    .unwrap_err()
            )
        );
        let odd_target = json!({"to": {"mode": "latest", "zzzzzzzzzzzzzzzzzzzz": 1}});
        assert_eq!(
            members::<ResetTarget>(),
            known(ResetRequest::read(&odd_target).unwrap_err())
        );
        assert_eq!(
            members::<RestartBody>(),
            known(RestartRequest::read(&odd).unwrap_err())
        );
        assert_eq!(
            members::<RestartStop>(),
            known(RestartRequest::read(&json!({"stop": odd})).unwrap_err())
        );
        assert_eq!(
            members::<SkipBody>(),
            known(SkipRequest::read(&odd).unwrap_err())
        );
        assert_eq!(
            members::<CheckpointBody>(),
            known(CheckpointRequest::read(&odd).unwrap_err())
        );
        let job = JobName::new("orders").unwrap();
        assert_eq!(
            members::<JobSpecDocument>(),
            known(JobSpec::read(&job, &odd).unwrap_err())
        );
    }

    #[test]
    fn the_spec_that_is_sent_has_the_members_of_the_spec_that_is_shown() {
        assert_eq!(members::<JobSpecDocument>(), members::<JobSpec>());
        assert_eq!(members::<SourceDocument>(), members::<SourceSpec>());
        assert_eq!(
            members::<CheckpointTimesDocument>(),
            members::<CheckpointSpec>()
        );
        assert_eq!(members::<ErrorsDocument>(), members::<ErrorsSpec>());
        assert_eq!(
            members::<PartitionDiscoveryDocument>(),
            members::<PartitionDiscovery>()
        );
        assert_eq!(members::<LimitsDocument>(), members::<LimitsSpec>());
        assert_eq!(members::<WatermarkDocument>(), members::<WatermarkSpec>());
        assert_eq!(variants::<RestartDocument>(), variants::<RestartStrategy>());
        assert_eq!(members::<MappingDocument>(), members::<MappingSpec>());
        assert_eq!(members::<WriteDocument>(), members::<WriteSpec>());
        assert_eq!(members::<BatchDocument>(), members::<BatchSpec>());
    }

    #[test]
    fn the_example_of_a_spec_is_one() {
        let schema = serde_json::to_value(JobSpecDocument::schema()).unwrap();
        let example = &schema["example"];
        JobSpec::read(&JobName::new("orders").unwrap(), example).unwrap();
    }
}
