//! What callers may ask for: filters, pages, preconditions.

use std::{collections::BTreeMap, time::Duration};

use crate::model::{
    checkpoint::{CheckpointKind, CheckpointPhases, CheckpointStatus},
    code::Code,
    health::HealthStatus,
    ids::{CheckpointId, JobName},
    job_state::JobState,
    job_status::{BadRecordCounters, CommitCounters, DiscoveryStatus},
    limits::LimitsSpec,
    offset::Offset,
    operation::{Operation, OperationKind, OperationStatus},
    series::SeriesName,
    stages::StageTimes,
    topic::TopicPartition,
    views::{JobLag, PartitionLag},
    watermark::{JobWatermark, PartitionWatermark},
};

/// Who calls, and how the call is told apart from a repetition of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Who asks, as it is written into operations and events.
    pub requested_by: String,
    /// Why, from the `Handover-Reason` header; a `reason` in the body counts more.
    pub reason: Option<String>,
    /// The request's id.
    pub request_id: String,
    /// The `Idempotency-Key` header.
    pub idempotency_key: Option<String>,
}

/// Which records to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordsQuery {
    /// Where they lie.
    pub partition: TopicPartition,
    /// The offset of the first one.
    pub offset: Offset,
    /// How many at most.
    pub limit: usize,
    /// Whether bytes are shown as UTF-8; in base64 otherwise.
    pub as_text: bool,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// States to show; all when empty.
    pub states: Vec<JobState>,
    /// Verdicts to show; all when empty.
    pub health: Vec<HealthStatus>,
    /// Kafka connections to show; all when empty.
    pub connections: Vec<String>,
    /// Labels that must be there, each with the values it may have.
    pub labels: Vec<(String, Vec<String>)>,
    /// What the name contains.
    pub name_contains: Option<String>,
    /// In which order.
    pub sort: JobSort,
    /// How many at most.
    pub limit: usize,
    /// Where the page begins: a cursor of the page before.
    pub after: Option<String>,
}

/// In which order jobs are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobSort {
    /// By name.
    #[default]
    Name,
    /// The largest lag behind the checkpoint first; unknown lags last.
    CheckpointLag,
    /// The largest lag behind the group first; unknown lags last.
    GroupLag,
    /// The longest in its state first.
    Age,
}

/// What must hold for a spec to be stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecPrecondition {
    /// `If-Match`: the generation that was read.
    pub if_match: Option<i64>,
    /// `If-None-Match: *`: the job must not exist.
    pub if_none_match_any: bool,
}

/// An operation that was taken on.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// The operation as it stands.
    pub operation: Operation,
    /// Whether the idempotency key named one that was there already.
    pub replayed: bool,
}

/// Which checkpoints to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointQuery {
    /// Statuses to show; all when empty.
    pub statuses: Vec<CheckpointStatus>,
    /// Kinds to show; all when empty.
    pub kinds: Vec<CheckpointKind>,
    /// Whether to show the positions.
    pub with_offsets: bool,
    /// How many at most.
    pub limit: usize,
    /// Where the page begins: a cursor of the page before.
    pub after: Option<String>,
}

/// Which numbers of a job to show over time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesQuery {
    /// Which.
    pub names: Vec<SeriesName>,
    /// Of which partition; of the whole job if of none.
    pub partition: Option<TopicPartition>,
    /// How much time before now: whole steps.
    pub window: Duration,
    /// Between two points: a multiple of what is kept for such a window.
    pub step: Duration,
}

/// Which runs of a job to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptQuery {
    /// How many at most.
    pub limit: usize,
    /// Where the page begins: a cursor of the page before.
    pub after: Option<String>,
}

/// Which entries of a job's history to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Kinds to show; all when empty.
    pub kinds: Vec<String>,
    /// How many at most.
    pub limit: usize,
    /// Where the page begins: a cursor of the page before.
    pub after: Option<String>,
}

/// Names one checkpoint of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointRef {
    /// The newest completed one that no later start set aside.
    Latest,
    /// The one of this number.
    Id(CheckpointId),
}

/// What to show of a job's offsets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffsetsQuery {
    /// Which partitions; all if `None`. The sums are over these.
    pub partitions: Option<PartitionFilter>,
    /// Only notable ones.
    pub only: Option<Only>,
    /// Leave the partitions out and show the sums.
    pub summary: bool,
    /// Ask the brokers in any case; else facts of the last second are used again.
    pub fresh: bool,
}

/// Which partitions are notable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Only {
    /// With anything unread.
    Lagging,
    /// Where group and checkpoint differ.
    Diverged,
    /// With any flag.
    Flagged,
}

/// Partitions as they are written in a query: `orders:0,3-5,payments:1`; a topic alone means all its partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionFilter {
    topics: BTreeMap<String, Vec<(i32, i32)>>,
}

impl PartitionFilter {
    /// Reads the written form.
    ///
    /// # Errors
    /// Says what is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self::default();
        let mut current: Option<String> = None;
        for part in text.split(',') {
            let (topic, numbers) = match part.split_once(':') {
                Some((topic, numbers)) => (topic.to_owned(), numbers),
                None => match (&current, range(part)) {
                    (Some(topic), Some(_)) => (topic.clone(), part),
                    _ if !part.is_empty() => (part.to_owned(), "0-2147483647"),
                    _ => return Err(format!("'{text}' has an empty part")),
                },
            };
            let Some(range) = range(numbers).filter(|_| !topic.is_empty()) else {
                return Err(format!(
                    "'{part}' names no partitions: write for example orders:0,3-5"
                ));
            };
            filter.topics.entry(topic.clone()).or_default().push(range);
            current = Some(topic);
        }
        Ok(filter)
    }

    /// Whether a partition is meant.
    #[must_use]
    pub fn contains(&self, partition: &TopicPartition) -> bool {
        let number = partition.partition;
        self.topics.get(&*partition.topic).is_some_and(|ranges| {
            ranges
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&number))
        })
    }
}

/// `4` or `3-5`.
fn range(text: &str) -> Option<(i32, i32)> {
    let number = |text: &str| text.parse::<i32>().ok().filter(|number| *number >= 0);
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(text)?, number(text)?),
    };
    (first <= last).then_some((first, last))
}

/// Which operations to list, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationQuery {
    /// Of which job; of all if `None`.
    pub job: Option<JobName>,
    /// Kinds to show; all when empty.
    pub kinds: Vec<OperationKind>,
    /// Statuses to show; all when empty.
    pub statuses: Vec<OperationStatus>,
    /// How many at most.
    pub limit: usize,
    /// Where the page begins: a cursor of the page before.
    pub after: Option<String>,
}

/// Whether this server can take requests. Kafka and the health of jobs do not enter: one broken topic must not take the
/// whole API out of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Readiness {
    /// Whether every check holds.
    pub ready: bool,
    /// The checks.
    pub checks: Vec<ReadinessCheck>,
}

/// One condition of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessCheck {
    /// `store`, `migrations`, `instance` or `shutdown`.
    pub name: &'static str,
    /// Whether it holds.
    pub ok: bool,
    /// One sentence.
    pub detail: String,
}

/// A job's numbers for `/metrics`; what is `None` has no series.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMetrics {
    /// The job.
    pub job: JobName,
    /// What it does.
    pub state: JobState,
    /// The verdict.
    pub health: HealthStatus,
    /// The codes the verdict rests on.
    pub health_reasons: Vec<Code>,
    /// The lags, summed over the partitions where they are known.
    pub lag: JobLag,
    /// From the group's offsets to the checkpointed positions, summed over the partitions where the group is behind.
    pub group_behind_checkpoint: Option<i64>,
    /// From the checkpointed positions to the group's offsets, summed over the partitions where the group is ahead.
    pub group_ahead_of_checkpoint: Option<i64>,
    /// Each partition.
    pub partitions: Vec<PartitionMetrics>,
    /// Seconds since 1970 at which the newest checkpoint completed.
    pub last_checkpoint_at: Option<f64>,
    /// What the phases of the newest completed checkpoint took.
    pub last_checkpoint_phases: Option<CheckpointPhases>,
    /// Checkpoints completed since this server started; `None` for a job that takes none.
    pub checkpoints_completed: Option<u64>,
    /// Attempts that failed since this server started, by code.
    pub checkpoint_failures: BTreeMap<String, u64>,
    /// Commits to the group in this run; `None` when it does not run.
    pub commits: Option<CommitCounters>,
    /// Records given to the sink in this run; `None` when it does not run.
    pub records: Option<u64>,
    /// Bytes given to the sink in this run; `None` when it does not run.
    pub bytes: Option<u64>,
    /// Records dropped in this run because the client delivered them twice; `None` when it does not run.
    pub redelivered: Option<u64>,
    /// Partitions that the run does not read; `None` when it does not run.
    pub parked_partitions: Option<usize>,
    /// Records that were left out in this run; `None` when it does not run.
    pub bad_records: Option<BadRecordCounters>,
    /// Positions that were moved because the log did not hold them; `None` when it does not run.
    pub positions_moved: Option<u64>,
    /// How the run looks for new partitions; `None` when it does not run.
    pub discovery: Option<DiscoveryStatus>,
    /// Runs that crashed since this server started.
    pub crashes: u64,
    /// Restarts in the crash loop that the job is in; 0 outside of one.
    pub restarts_in_loop: u32,
    /// The limits of the run; `None` when it does not run.
    pub limits: Option<LimitsSpec>,
    /// How long the limits have held subtasks back in this run; `None` when it does not run.
    pub throttled_for: Option<Duration>,
    /// How far event time has come; `None` for a job that keeps none or does not run.
    pub watermark: Option<JobWatermark>,
    /// What the subtasks spent their time on in this run, all together; `None` when it does not run.
    pub stages: Option<StageTimes>,
}

/// A partition's numbers for `/metrics`; what is `None` has no series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionMetrics {
    /// The partition.
    pub partition: TopicPartition,
    /// First offset of the log.
    pub earliest: Option<Offset>,
    /// End of what `read_committed` may see.
    pub last_stable: Option<Offset>,
    /// End of the log.
    pub latest: Option<Offset>,
    /// The live position.
    pub position: Option<Offset>,
    /// The position in the newest completed checkpoint.
    pub checkpointed: Option<Offset>,
    /// The group's committed offset.
    pub group_committed: Option<Offset>,
    /// The lags.
    pub lag: PartitionLag,
    /// How far its event time has come; `None` for a job that keeps none or does not run.
    pub watermark: Option<PartitionWatermark>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_written_as_topics_with_numbers_and_ranges() {
        let filter = PartitionFilter::parse("orders:0,3-5,payments:1").unwrap();
        for (topic, partition, meant) in [
            ("orders", 0, true),
            ("orders", 1, false),
            ("orders", 4, true),
            ("payments", 1, true),
            ("payments", 0, false),
            ("other", 0, false),
        ] {
            let partition = TopicPartition::new(topic, partition);
            assert_eq!(filter.contains(&partition), meant, "{partition}");
        }
        let whole = PartitionFilter::parse("orders").unwrap();
        assert!(whole.contains(&TopicPartition::new("orders", 99)));
        for bad in [
            "",
            "orders:",
            ":1",
            "orders:5-3",
            "orders:x",
            "orders:-1",
            "orders:0,,2",
        ] {
            assert!(PartitionFilter::parse(bad).is_err(), "{bad}");
        }
    }
}
