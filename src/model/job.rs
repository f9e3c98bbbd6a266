//! The declarative document of a job, read to a list of faults instead of the first one.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    commit_mode::{self, Checkpointing},
    duration::HumanDuration,
    errors_spec::ErrorsSpec,
    field_error::FieldError,
    ids::JobName,
    limits::LimitsSpec,
    reader::ObjectReader,
    restart::RestartStrategy,
    sink_spec::SinkSpec,
    startup_mode::StartupMode,
    stop_at::StopAt,
    topic_pattern::TopicPattern,
    watermark::WatermarkSpec,
};

/// The largest `parallelism`: each subtask costs a Kafka client of four threads and more.
pub const MAX_PARALLELISM: u32 = 64;
/// The largest number of topics in one job.
const MAX_TOPICS: usize = 1_000;
const MAX_LABELS: usize = 32;
const MAX_LABEL_BYTES: usize = 63;
/// Kafka's own limit for topic names.
const MAX_TOPIC_BYTES: usize = 249;

/// What a job reads, where it begins, how it checkpoints and where its records go. Defaults are filled in.
///
/// Whether the job should run is not part of it: applying a document again must not restart a job that somebody stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// Free labels to filter by.
    pub labels: BTreeMap<String, String>,
    /// What to read.
    pub source: SourceSpec,
    /// Number of subtasks, each with its own Kafka client; partitions are spread by Flink's owner rule.
    #[schema(minimum = 1, maximum = 64, default = 1)]
    pub parallelism: u32,
    /// Where to begin when there is no checkpoint. Has no default: choosing it is the user's decision.
    pub startup_mode: StartupMode,
    /// When to checkpoint.
    pub checkpoint: CheckpointSpec,
    /// What happens when something would fail the same way again.
    #[serde(default)]
    pub errors: ErrorsSpec,
    /// What follows a crash.
    #[serde(default)]
    #[schema(required = true)]
    pub restart: RestartStrategy,
    /// How fast it may go.
    #[serde(default)]
    #[schema(required = true)]
    pub limits: LimitsSpec,
    /// How its watermark is made; without one it keeps no event time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watermark: Option<WatermarkSpec>,
    /// Where the records go.
    pub sink: SinkSpec,
}

/// What a job reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceSpec {
    /// Name of a Kafka connection of the server's file.
    pub connection: String,
    /// The topics, by name; empty where a pattern selects them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// Instead of `topics`: a regular expression that must match a topic's whole name. Kafka's own topics are left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub topic_pattern: Option<TopicPattern>,
    /// How new partitions and topics are found while the job runs.
    #[serde(default)]
    pub partition_discovery: PartitionDiscovery,
    /// The consumer group whose offsets are read (startup mode `group-offsets`) and committed. Default: the job's name.
    pub group_id: String,
    /// Whether another job may use the same group on the same connection; both must say so.
    #[schema(default = false)]
    pub allow_shared_group: bool,
    /// Which records are seen.
    #[schema(default = "read_committed")]
    pub isolation: Isolation,
    /// What a value must be; what becomes of a record that is not stands in `errors`.
    #[schema(default = "bytes")]
    pub format: Format,
    /// When offsets are committed to the group. Default: `on-checkpoint`, and `periodic` for a job without checkpoints.
    pub commit_to_group: CommitToGroup,
    /// Time between two commits of `commit_to_group: periodic`. Default: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_interval: Option<HumanDuration>,
    /// What a start does when a stored position lies outside the log, and a run when the log leaves its position behind.
    #[schema(default = "fail")]
    pub on_out_of_range: PositionPolicy,
    /// What a start does when a group offset is asked for and the group has none.
    #[schema(default = "fail")]
    pub on_missing_group_offset: PositionPolicy,
    /// What becomes of a partition when its topic was deleted and created again (its topic id changed), at a start and while
    /// the job runs.
    #[schema(default = "fail")]
    pub on_topic_recreated: PositionPolicy,
    /// Where the job ends: it reads each partition up to there and is then `finished`. Resolved to numbers by the start that
    /// begins the run, and kept over restarts. Without it the job runs until it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<StopAt>,
    /// Client properties of librdkafka that a job may tune, within bounds; see docs/configuration.md.
    pub properties: BTreeMap<String, String>,
}

/// How partitions and topics are found that appear after the start (Flink's partition discovery).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartitionDiscovery {
    /// Time between two looks at the brokers' metadata. A change counts at once, also while the job runs.
    #[schema(default = "30s")]
    pub interval: HumanDuration,
    /// Where partitions begin that appear while the job runs. A change counts at once.
    #[schema(default = "earliest")]
    pub new_partitions: NewPartitions,
}

/// Where partitions begin that are found after the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum NewPartitions {
    /// At their first record, whatever the startup mode: records may have been written before the partition was noticed
    /// (FLIP-288).
    Earliest,
    /// By the startup mode, evaluated when the partition is found. With `latest` and `timestamp` records that were written
    /// before may be passed over.
    StartupMode,
}

impl Default for PartitionDiscovery {
    fn default() -> Self {
        Self {
            interval: HumanDuration::from_secs(30),
            new_partitions: NewPartitions::Earliest,
        }
    }
}

/// Which records a consumer sees (Kafka's `isolation.level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Only records of committed transactions, and records outside of transactions.
    ReadCommitted,
    /// All records.
    ReadUncommitted,
}

/// What a record's value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Anything.
    Bytes,
    /// Valid UTF-8 text.
    #[serde(rename = "utf-8")]
    Utf8,
    /// One JSON value (RFC 8259).
    Json,
}

/// When offsets are committed to the consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CommitToGroup {
    /// After each completed checkpoint (Flink's `ON_CHECKPOINTS`). Only with checkpoints.
    OnCheckpoint,
    /// Every `commit_interval`, once the sink has everything before the positions (Flink's `KAFKA_PERIODIC`). Only without
    /// checkpoints.
    Periodic,
    /// Never (Flink's `DISABLED`).
    Off,
}

/// What to do with a partition whose position cannot be taken as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PositionPolicy {
    /// Refuse the start and say why.
    Fail,
    /// Begin at the first offset the log still holds.
    Earliest,
    /// Begin at the end of the log.
    Latest,
}

/// When to checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointSpec {
    /// Time between the triggers of periodic checkpoints. `null` turns checkpoints off: the job then has no state, and each
    /// start begins by the startup mode.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(default = "10s", required = true)]
    pub interval: Option<HumanDuration>,
    /// How long an attempt may take until the sink has said yes. Without checkpoints: how long the sink may take before a
    /// commit to the group is given up.
    #[schema(default = "60s")]
    pub timeout: HumanDuration,
    /// Least time between the end of an attempt, whatever its outcome, and the next periodic trigger.
    #[schema(default = "0s")]
    pub min_pause: HumanDuration,
    /// What becomes of the checkpoints when somebody stops the job (Flink's retention on cancel).
    #[serde(default)]
    #[schema(default = "retain")]
    pub on_cancel: OnCancel,
}

/// What becomes of a job's checkpoints when somebody stops it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnCancel {
    /// They are kept, and the next start goes on from the newest one.
    #[default]
    Retain,
    /// They are deleted, and the next start begins by the startup mode. A restart, a failure, a bounded run that ends and a
    /// shutdown of the server delete nothing.
    Delete,
}

impl JobSpec {
    /// Reads a document and fills in the defaults.
    ///
    /// # Errors
    /// All faults at once, each with its JSON pointer.
    pub fn read(job: &JobName, value: &Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = Self::read_into(job, value, &mut errors);
        match spec {
            Some(spec) if errors.is_empty() => Ok(spec),
            _ => Err(errors),
        }
    }

    fn read_into(job: &JobName, value: &Value, errors: &mut Vec<FieldError>) -> Option<Self> {
        let mut reader = ObjectReader::open(value, "", errors);
        let labels = read_labels(&mut reader);
        // Before the source: what is committed by default depends on it.
        let checkpoint = match reader.object("checkpoint") {
            Some(checkpoint) => CheckpointSpec::read(checkpoint),
            None => CheckpointSpec::default(),
        };
        let source = match reader.object("source") {
            Some(source) => SourceSpec::read(job, checkpoint.checkpointing(), source),
            None => missing(
                &mut reader,
                "source",
                "at least {\"connection\": ..., \"topics\": [...]}",
            ),
        };
        let parallelism = reader.or("parallelism", 1_u32);
        if !(1..=MAX_PARALLELISM).contains(&parallelism) {
            reader.fault(
                "parallelism",
                format!("must lie between 1 and {MAX_PARALLELISM}"),
            );
        }
        let startup_mode = match reader.raw("startup_mode") {
            Some(mode) => StartupMode::from_json(mode, "/startup_mode", reader.errors()),
            None => missing(
                &mut reader,
                "startup_mode",
                "it has no default; for example {\"mode\": \"earliest\"}",
            ),
        };
        let errors = match reader.object("errors") {
            Some(errors) => ErrorsSpec::read(errors),
            None => ErrorsSpec::default(),
        };
        let restart = reader
            .object("restart")
            .map_or_else(RestartStrategy::default, RestartStrategy::read);
        let limits = reader
            .object("limits")
            .map_or_else(LimitsSpec::default, LimitsSpec::read);
        let format = source.as_ref().map(|source| source.format);
        let watermark = reader
            .object("watermark")
            .and_then(|watermark| WatermarkSpec::read(watermark, format));
        let sink = match reader.object("sink") {
            Some(sink) => SinkSpec::read(sink),
            None => missing(
                &mut reader,
                "sink",
                "for example {\"type\": \"blackhole\"} or {\"type\": \"log\"}",
            ),
        };
        if let Some(sink) = sink.as_ref().filter(|sink| sink.keeps_progress())
            && checkpoint.on_cancel == OnCancel::Delete
        {
            reader.errors().push(FieldError::new(
                "/checkpoint/on_cancel",
                format!(
                    "delete is not for a sink of type {}: it keeps progress of its own, which means nothing without the checkpoints; use retain",
                    sink.kind()
                ),
            ));
        }
        if let Some(source) = &source {
            let faults = commit_mode::faults(&checkpoint, source, sink.as_ref());
            reader.errors().extend(faults);
        }
        reader.finish();
        Some(Self {
            labels,
            source: source?,
            parallelism,
            startup_mode: startup_mode?,
            checkpoint,
            errors,
            restart,
            limits,
            watermark,
            sink: sink?,
        })
    }
}

fn missing<T>(reader: &mut ObjectReader<'_>, name: &'static str, remedy: &str) -> Option<T> {
    // A member of the wrong kind was reported when it was opened.
    if reader.raw(name).is_none() {
        reader.fault(name, format!("is required: {remedy}"));
    }
    None
}

fn read_labels(reader: &mut ObjectReader<'_>) -> BTreeMap<String, String> {
    let labels: BTreeMap<String, String> = reader.or("labels", BTreeMap::new());
    let fits = |text: &str| text.len() <= MAX_LABEL_BYTES && !text.chars().any(char::is_control);
    let all_fit = labels
        .iter()
        .all(|(key, value)| !key.is_empty() && fits(key) && fits(value));
    if labels.len() > MAX_LABELS || !all_fit {
        reader.fault("labels", format!("at most {MAX_LABELS} labels, each key and value at most {MAX_LABEL_BYTES} bytes of printable text"));
    }
    labels
}

impl SourceSpec {
    fn read(
        job: &JobName,
        checkpointing: Checkpointing,
        mut reader: ObjectReader<'_>,
    ) -> Option<Self> {
        let connection = reader.required(
            "connection",
            "the name of a Kafka connection of the server's file",
        );
        let (topics, topic_pattern) = read_topics(&mut reader);
        let partition_discovery = match reader.object("partition_discovery") {
            Some(discovery) => PartitionDiscovery::read(discovery),
            None => PartitionDiscovery::default(),
        };
        let group_id: String = reader.or("group_id", job.as_str().to_owned());
        if group_id.is_empty() || group_id.len() > 255 || group_id.chars().any(char::is_control) {
            reader.fault("group_id", "must be 1 to 255 bytes of printable text");
        }
        let source = Self {
            connection: connection.unwrap_or_default(),
            topics,
            topic_pattern,
            partition_discovery,
            group_id,
            allow_shared_group: reader.or("allow_shared_group", false),
            isolation: reader.or("isolation", Isolation::ReadCommitted),
            format: reader.or("format", Format::Bytes),
            commit_to_group: reader.or(
                "commit_to_group",
                commit_mode::default_commit(checkpointing),
            ),
            commit_interval: read_commit_interval(&mut reader),
            on_out_of_range: reader.or("on_out_of_range", PositionPolicy::Fail),
            on_missing_group_offset: reader.or("on_missing_group_offset", PositionPolicy::Fail),
            on_topic_recreated: reader.or("on_topic_recreated", PositionPolicy::Fail),
            stop_at: read_stop_at(&mut reader),
            properties: reader.or("properties", BTreeMap::new()),
        };
        reader.finish();
        Some(source)
    }
}

fn read_commit_interval(reader: &mut ObjectReader<'_>) -> Option<HumanDuration> {
    let interval: HumanDuration = reader.optional("commit_interval")?;
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(86_400));
    if !(least..=most).contains(&interval.0) {
        reader.fault("commit_interval", "must lie between 100ms and 1d");
    }
    Some(interval)
}

/// What is wrong with a topic's name.
pub(super) fn check_topic(topic: &str) -> Option<String> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let well_formed =
        !topic.is_empty() && topic.len() <= MAX_TOPIC_BYTES && topic.bytes().all(legal);
    if well_formed && topic != "." && topic != ".." {
        return None;
    }
    Some(format!(
        "'{topic}' is no topic name: up to {MAX_TOPIC_BYTES} letters, digits, '.', '_' and '-'"
    ))
}

/// `null` is the same as nothing: the job is not bounded.
fn read_stop_at(reader: &mut ObjectReader<'_>) -> Option<StopAt> {
    let pointer = reader.pointer_to("stop_at");
    let value = reader.raw("stop_at")?;
    StopAt::from_json(value, &pointer, reader.errors())
}

/// A list or a pattern, and never both: a name that the pattern does not match would be a riddle.
fn read_topics(reader: &mut ObjectReader<'_>) -> (Vec<String>, Option<TopicPattern>) {
    let topics: Option<Vec<String>> = reader.optional("topics");
    let pattern: Option<String> = reader.optional("topic_pattern");
    let has_both = reader.raw("topics").is_some() && reader.raw("topic_pattern").is_some();
    let has_none = reader.raw("topics").is_none() && reader.raw("topic_pattern").is_none();
    if has_both {
        reader.fault("topic_pattern", "give either topics or a topic_pattern");
    }
    if has_none {
        reader.fault(
            "topics",
            "is required: a list of topic names, or a topic_pattern",
        );
    }
    if let Some(topics) = &topics {
        check_topics(topics, reader);
    }
    let pattern = pattern.and_then(|pattern| match TopicPattern::new(&pattern) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            reader.fault("topic_pattern", why);
            None
        }
    });
    (topics.unwrap_or_default(), pattern)
}

impl SourceSpec {
    /// Whether the spec reads a topic of this name, if there is one.
    #[must_use]
    pub fn selects(&self, topic: &str) -> bool {
        match &self.topic_pattern {
            Some(pattern) => pattern.selects(topic),
            None => self.topics.iter().any(|listed| listed == topic),
        }
    }
}

impl PartitionDiscovery {
    fn read(mut reader: ObjectReader<'_>) -> Self {
        let default = Self::default();
        let discovery = Self {
            interval: reader.or("interval", default.interval),
            new_partitions: reader.or("new_partitions", default.new_partitions),
        };
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(86_400));
        if !(least..=most).contains(&discovery.interval.0) {
            reader.fault("interval", "must lie between 1s and 1d");
        }
        reader.finish();
        discovery
    }
}

fn check_topics(topics: &[String], reader: &mut ObjectReader<'_>) {
    if topics.is_empty() || topics.len() > MAX_TOPICS {
        reader.fault(
            "topics",
            format!("must name between 1 and {MAX_TOPICS} topics"),
        );
    }
    for (index, topic) in topics.iter().enumerate() {
        if let Some(fault) = check_topic(topic) {
            let pointer = format!("{}/{index}", reader.pointer_to("topics"));
            reader.errors().push(FieldError::new(pointer, fault));
        } else if topics[..index].contains(topic) {
            let pointer = format!("{}/{index}", reader.pointer_to("topics"));
            reader.errors().push(FieldError::new(
                pointer,
                format!("'{topic}' is named twice"),
            ));
        }
    }
}

impl Default for CheckpointSpec {
    fn default() -> Self {
        Self {
            interval: Some(HumanDuration::from_secs(10)),
            timeout: HumanDuration::from_secs(60),
            min_pause: HumanDuration::from_secs(0),
            on_cancel: OnCancel::Retain,
        }
    }
}

impl CheckpointSpec {
    fn read(mut reader: ObjectReader<'_>) -> Self {
        let default = Self::default();
        let spec = Self {
            interval: match reader.raw_or_null("interval") {
                Some(Value::Null) => None,
                Some(_) => reader.optional("interval").or(default.interval),
                None => default.interval,
            },
            timeout: reader.or("timeout", default.timeout),
            min_pause: reader.or("min_pause", default.min_pause),
            on_cancel: reader.or("on_cancel", default.on_cancel),
        };
        let day = Duration::from_secs(86_400);
        let mut between = |name: &'static str, value: HumanDuration, least: Duration| {
            if value.0 < least || value.0 > day {
                reader.fault(
                    name,
                    format!("must lie between {} and 1d", HumanDuration(least)),
                );
            }
        };
        if let Some(interval) = spec.interval {
            between("interval", interval, Duration::from_millis(100));
        }
        between("timeout", spec.timeout, Duration::from_millis(100));
        between("min_pause", spec.min_pause, Duration::ZERO);
        reader.finish();
        spec
    }
}

/// What a change of the spec means for a running job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecChange {
    /// Pointers of the members that only count from the next start on.
    pub pending_fields: Vec<String>,
}

impl JobSpec {
    /// Compares with the spec a job runs under: labels, checkpoint timing, restart strategy, limits, partition discovery and
    /// the policies for positions change while running, the rest at the next start. (What only a start reads is not compared:
    /// the run does not differ.)
    #[must_use]
    pub fn change_from(&self, running: &Self) -> SpecChange {
        let mut pending_fields = Vec::new();
        let mut compare = |name: &str, differs: bool| {
            if differs {
                pending_fields.push(name.to_owned());
            }
        };
        let (new, old) = (&self.source, &running.source);
        compare("source.connection", new.connection != old.connection);
        compare("source.topics", new.topics != old.topics);
        compare(
            "source.topic_pattern",
            new.topic_pattern != old.topic_pattern,
        );
        compare("source.group_id", new.group_id != old.group_id);
        compare("source.isolation", new.isolation != old.isolation);
        compare("source.format", new.format != old.format);
        compare(
            "source.commit_to_group",
            new.commit_to_group != old.commit_to_group,
        );
        compare(
            "source.commit_interval",
            new.commit_interval != old.commit_interval,
        );
        compare("source.stop_at", new.stop_at != old.stop_at);
        compare("source.properties", new.properties != old.properties);
        // Its length counts at once; whether there are checkpoints at all is decided by a start.
        compare(
            "checkpoint.interval",
            self.checkpointing() != running.checkpointing(),
        );
        // Where the partitions begin that are found by the mode; all others have begun.
        let mode_counts = old.partition_discovery.new_partitions == NewPartitions::StartupMode;
        compare(
            "startup_mode",
            mode_counts && self.startup_mode != running.startup_mode,
        );
        compare("parallelism", self.parallelism != running.parallelism);
        compare("errors", self.errors != running.errors);
        compare("watermark", self.watermark != running.watermark);
        compare("sink", self.sink != running.sink);
        SpecChange { pending_fields }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::watermark::{TimestampSource, WatermarkStrategy};

    fn job() -> JobName {
        JobName::new("orders").unwrap()
    }

    #[test]
    fn the_smallest_spec_gets_its_defaults() {
        let value = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"}
        });
        let spec = JobSpec::read(&job(), &value).unwrap();
        assert_eq!(spec.source.group_id, "orders");
        assert_eq!(spec.source.isolation, Isolation::ReadCommitted);
        assert_eq!(
            spec.checkpoint
                .interval
                .map(|interval| interval.to_string()),
            Some("10s".to_owned())
        );
        // What is shown can be sent again and means the same.
        assert_eq!(
            JobSpec::read(&job(), &serde_json::to_value(&spec).unwrap()),
            Ok(spec)
        );
    }

    #[test]
    fn all_faults_come_at_once() {
        let value = json!({
            "source": {"topics": ["orders", "no/slash", "orders"], "isolatoin": 1, "format": "yaml"},
            "parallelism": 0,
            "checkpoint": {"interval": "soon", "timeout": "1ms"},
            "sink": {"type": "log", "format": "xml"},
            "watermark": {}
        });
        let errors = JobSpec::read(&job(), &value).unwrap_err();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        for expected in [
            "/source/connection",
            "/source/topics/1",
            "/source/topics/2",
            "/source/isolatoin",
            "/source/format",
            "/parallelism",
            "/startup_mode",
            "/checkpoint/interval",
            "/checkpoint/timeout",
            "/sink/format",
            "/watermark/strategy",
        ] {
            assert!(
                pointers.contains(&expected),
                "{expected} is missing in {pointers:?}"
            );
        }
    }

    #[test]
    fn checkpoints_that_a_sink_rests_on_are_not_deleted_by_a_stop() {
        let mut value = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"on_cancel": "delete"},
            "sink": {"type": "log"}
        });
        let spec = JobSpec::read(&job(), &value).unwrap();
        assert_eq!(spec.checkpoint.on_cancel, OnCancel::Delete);
        value["sink"] = json!({
            "type": "postgres", "connection": "warehouse", "table": "public.orders",
            "mapping": {"mode": "raw", "columns": {"value": "@value"}},
        });
        let errors = JobSpec::read(&job(), &value).unwrap_err();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/checkpoint/on_cancel"]);
    }

    #[test]
    fn a_misspelt_type_of_a_sink_is_named() {
        let value = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "sink": {"typ": "log", "format": "json"}
        });
        let errors = JobSpec::read(&job(), &value).unwrap_err();
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/sink/type", "/sink/typ"]);
    }

    #[test]
    fn a_running_job_takes_labels_timing_strategy_limits_and_policies_at_once() {
        let value = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"}
        });
        let running = JobSpec::read(&job(), &value).unwrap();
        let mut changed = running.clone();
        changed.labels.insert("team".into(), "payments".into());
        changed.checkpoint.interval = Some(HumanDuration::from_secs(5));
        changed.restart = RestartStrategy::None;
        changed.limits.records_per_s = Some(5);
        changed.source.on_out_of_range = PositionPolicy::Earliest;
        changed.source.on_topic_recreated = PositionPolicy::Latest;
        assert!(changed.change_from(&running).pending_fields.is_empty());
        changed.checkpoint.interval = None;
        assert_eq!(
            changed.change_from(&running).pending_fields,
            ["checkpoint.interval"]
        );
        changed.checkpoint.interval = Some(HumanDuration::from_secs(5));
        changed.parallelism = 2;
        changed.source.topics.push("more".into());
        changed.watermark = Some(WatermarkSpec {
            strategy: WatermarkStrategy::Monotonous,
            max_delay: None,
            idle_after: None,
            timestamp: TimestampSource::Record,
            alignment: None,
        });
        assert_eq!(
            changed.change_from(&running).pending_fields,
            ["source.topics", "parallelism", "watermark"]
        );
    }
}
