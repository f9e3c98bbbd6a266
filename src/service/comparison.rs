//! Four sources of offsets held against each other, partition by partition.
//!
//! Pure: the running engine's positions, the newest checkpoint, the group's offsets and the ends of the logs go in, each
//! possibly unknown, and what is shown comes out. A number that cannot be worked out is `None`, never 0.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chrono::{DateTime, Utc};

use super::retention::LogStarts;
use crate::{
    engine::{FirstRecord, PERIODIC_NOTE, ports::GroupOffset},
    model::{
        checkpoint::{
            CheckpointKind, CheckpointPhases, CheckpointPosition, GroupCommit, GroupCommitStatus,
        },
        ids::{CheckpointId, JobName, OperationId},
        job::{CommitToGroup, Isolation, JobSpec},
        job_status::LivePartition,
        offset::Offset,
        resolver::{LogBounds, SinkPosition, SinkProgress},
        stop_at::RunEnd,
        subtask::owner,
        topic::{TopicId, TopicPartition},
        views::{
            Divergence, DivergenceCause, Flag, JobLag, OffsetsTotals, PartitionLag,
            PartitionOffsetsView, Retention,
        },
    },
};

/// What the brokers said of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BrokerPartition {
    pub(crate) leader: Option<i32>,
    pub(crate) topic_id: Option<TopicId>,
    /// `None` when its leader did not answer.
    pub(crate) bounds: Option<LogBounds>,
}

/// The newest completed checkpoint, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointFacts {
    pub(crate) id: CheckpointId,
    pub(crate) kind: CheckpointKind,
    pub(crate) completed_at: DateTime<Utc>,
    pub(crate) confirmed_at: DateTime<Utc>,
    pub(crate) group_commit: GroupCommit,
    pub(crate) phases: CheckpointPhases,
    pub(crate) positions: BTreeMap<TopicPartition, CheckpointPosition>,
    pub(crate) sink_identity: String,
}

/// How far the sink has come, by its own word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SinkHolds {
    /// Names the target.
    pub(crate) identity: String,
    pub(crate) progress: SinkProgress,
    /// The newest checkpoint before which records had reached a sink.
    pub(crate) newest_output: Option<CheckpointId>,
}

/// What was found when a partition's oldest unread record was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstUnread {
    /// The checkpointed position then.
    pub(crate) from: Offset,
    /// The topic that the position belongs to.
    pub(crate) topic_id: Option<TopicId>,
    pub(crate) first: FirstRecord,
}

/// Whether there is a checkpoint, if that is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CheckpointSource<'a> {
    /// The store did not say.
    Unknown,
    /// There is none.
    Absent,
    /// This one.
    Known(&'a CheckpointFacts),
}

/// Everything that is compared. `None` is a source that has nothing or did not answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison<'a> {
    pub(crate) job: &'a JobName,
    /// The first eight digits of the installation's id; `None` before the store was ever reached.
    pub(crate) install: Option<&'a str>,
    pub(crate) spec: &'a JobSpec,
    pub(crate) brokers: Option<&'a BTreeMap<TopicPartition, BrokerPartition>>,
    /// When the ends of the logs were asked for.
    pub(crate) brokers_at: Option<DateTime<Utc>>,
    pub(crate) group: Option<&'a BTreeMap<TopicPartition, GroupOffset>>,
    pub(crate) live: Option<&'a BTreeMap<TopicPartition, LivePartition>>,
    pub(crate) checkpoint: CheckpointSource<'a>,
    /// `None` also for a sink that keeps no progress, and for another target than the checkpoint's.
    pub(crate) sink: Option<&'a SinkHolds>,
    /// Where a bounded run ends; a running one says so itself.
    pub(crate) ends: Option<&'a BTreeMap<TopicPartition, RunEnd>>,
    /// What was found at the checkpointed positions, now or earlier. `None` where nobody looked.
    pub(crate) unread: Option<&'a BTreeMap<TopicPartition, FirstUnread>>,
    /// What was seen of the beginnings of the logs. `None` where nobody asks how soon they come.
    pub(crate) log_starts: Option<&'a LogStarts>,
    /// The interval of the job's checkpoints; `None` while it does not run.
    pub(crate) checkpoint_every: Option<Duration>,
    /// Until when a record's age is counted.
    pub(crate) now: DateTime<Utc>,
}

/// Who wrote the note beside a group's offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// This job, for this checkpoint.
    Ours(CheckpointId),
    /// An operator, by a reset of this job's group.
    Reset,
    /// This job, at a time when it took no checkpoints.
    WithoutCheckpoint,
    /// Something else, or nobody.
    Foreign,
}

/// Reads a note: `handover:<install 8 hex>:<job>:<checkpoint id>`, or with the id of the operation that moved the group.
pub(crate) fn read_note(note: Option<&str>, install: Option<&str>, job: &JobName) -> Note {
    let parts: Vec<&str> = note.unwrap_or_default().split(':').collect();
    let [program, by, of, id] = parts.as_slice() else {
        return Note::Foreign;
    };
    let ours =
        *program == "handover" && install.is_none_or(|ours| ours == *by) && *of == job.as_str();
    match id.parse() {
        Ok(id) if ours => Note::Ours(CheckpointId(id)),
        Err(_) if ours && id.starts_with(OperationId::PREFIX) => Note::Reset,
        Err(_) if ours && *id == PERIODIC_NOTE => Note::WithoutCheckpoint,
        _ => Note::Foreign,
    }
}

/// Compares every partition that any source knows, in order.
pub(crate) fn compare(comparison: &Comparison<'_>) -> Vec<PartitionOffsetsView> {
    let mut partitions: BTreeSet<&TopicPartition> = BTreeSet::new();
    partitions.extend(comparison.brokers.into_iter().flat_map(BTreeMap::keys));
    partitions.extend(comparison.live.into_iter().flat_map(BTreeMap::keys));
    if let CheckpointSource::Known(checkpoint) = comparison.checkpoint {
        partitions.extend(checkpoint.positions.keys());
    }
    partitions
        .into_iter()
        .map(|partition| comparison.partition(partition))
        .collect()
}

impl Comparison<'_> {
    fn partition(&self, partition: &TopicPartition) -> PartitionOffsetsView {
        let broker = self.brokers.and_then(|brokers| brokers.get(partition));
        let bounds = broker.and_then(|broker| broker.bounds);
        let readable_end = bounds.map(|bounds| bounds.readable_end(self.spec.source.isolation));
        let live = self.live.and_then(|live| live.get(partition));
        let position = live.and_then(|live| live.position);
        let stored = match self.checkpoint {
            CheckpointSource::Known(checkpoint) => checkpoint.positions.get(partition),
            CheckpointSource::Unknown | CheckpointSource::Absent => None,
        };
        let checkpointed = stored.and_then(|stored| stored.next_offset);
        let group = self.group.and_then(|group| group.get(partition));
        let group_committed = group.map(|group| group.offset);
        let divergence = self.divergence(stored, group);
        let mut flags = self.flags(partition, broker, stored);
        let held = self.sink.and_then(|sink| sink.progress.get(partition));
        flags.extend(self.disagreement_with_sink(partition, stored, held));
        if divergence
            .group_behind_checkpoint
            .is_some_and(|behind| behind < 0)
        {
            flags.push(Flag::GroupAhead);
        }
        let stop_offset = match live {
            Some(live) => live.stop_offset,
            None => self
                .ends
                .and_then(|ends| Some(ends.get(partition)?.stop_offset)),
        };
        let mut skewed = false;
        let mut lag = |from: Option<Offset>| {
            let distance = readable_end?.distance_from(from?);
            skewed |= distance < 0;
            // What lies behind the end of a bounded run is not unread.
            let left = stop_offset.map_or(Some(distance), |end| Some(end.distance_from(from?)));
            let distance = distance.min(left?);
            Some(distance.max(0))
        };
        // An offset of another creation of the topic means another record in this log: how far it is from its end says nothing.
        let of_this_log = |topic_id: Option<&TopicId>| !is_of_another(topic_id, broker);
        let stored_is_of_this_log = of_this_log(stored.and_then(|stored| stored.topic_id.as_ref()));
        let live_is_of_this_log = of_this_log(live.and_then(|live| live.topic_id.as_ref()));
        // Kafka drops a group's offsets with the topic: what stands there since is of the new one, unless this job wrote it.
        let group_is_of_this_log = stored_is_of_this_log || !is_ours(&divergence);
        let lag = PartitionLag {
            position: lag(position.filter(|_| live_is_of_this_log)),
            checkpoint: lag(checkpointed.filter(|_| stored_is_of_this_log)),
            group: lag(group_committed.filter(|_| group_is_of_this_log)),
            sink: lag(held
                .filter(|_| stored_is_of_this_log)
                .map(|held| held.next_offset)),
        };
        if skewed && !flags.contains(&Flag::BeyondLatest) {
            flags.push(Flag::Skewed);
        }
        PartitionOffsetsView {
            topic: partition.topic.to_string(),
            partition: partition.partition,
            leader: broker.and_then(|broker| broker.leader),
            subtask: live.map_or_else(
                || owner(&partition.topic, partition.partition, self.spec.parallelism),
                |live| live.subtask,
            ),
            earliest: bounds.map(|bounds| bounds.earliest),
            last_stable: bounds.map(|bounds| bounds.last_stable),
            latest: bounds.map(|bounds| bounds.latest),
            readable_end,
            stop_offset,
            position,
            start_reason: live.and_then(|live| live.reason),
            checkpointed,
            position_id: stored.map(|stored| stored.position_id),
            group_committed,
            sink_committed: held.map(|held| held.next_offset),
            lag,
            divergence,
            sink_ahead_of_checkpoint: held
                .filter(|held| stored.is_some_and(|stored| stored.position_id == held.position_id))
                .map(|held| held.next_offset)
                .zip(checkpointed)
                .map(|(held, checkpointed)| held.distance_from(checkpointed)),
            oldest_unread_age_ms: self.oldest_unread_age_ms(
                partition,
                stored,
                bounds,
                stop_offset,
                &flags,
            ),
            retention: self.retention(partition, checkpointed.zip(bounds), lag, &flags),
            watermark: live.and_then(|live| live.watermark.clone()),
            parked: None,
            flags,
        }
    }

    fn retention(
        &self,
        partition: &TopicPartition,
        place: Option<(Offset, LogBounds)>,
        lag: PartitionLag,
        flags: &[Flag],
    ) -> Retention {
        // The numbers of a log that is gone say nothing about the one in its place.
        let place = place.filter(|_| !flags.contains(&Flag::TopicRecreated));
        // Where nothing is unread, nothing is lost when the log's beginning arrives.
        let is_unread = lag.checkpoint.is_some_and(|lag| lag > 0);
        let log_starts = self.log_starts.filter(|_| place.is_some() && is_unread);
        Retention {
            offsets_left: place
                .map(|(checkpointed, bounds)| checkpointed.distance_from(bounds.earliest)),
            estimated_ms: log_starts
                .and_then(|starts| starts.estimate(partition, self.checkpoint_every)),
        }
    }

    /// What was found once stays true for as long as the position stands at or before the record, even when the brokers do
    /// not answer any more.
    fn oldest_unread_age_ms(
        &self,
        partition: &TopicPartition,
        stored: Option<&CheckpointPosition>,
        bounds: Option<LogBounds>,
        stop_offset: Option<Offset>,
        flags: &[Flag],
    ) -> Option<i64> {
        let is_elsewhere = |flag: &Flag| {
            matches!(
                flag,
                Flag::TopicRecreated | Flag::BeyondLatest | Flag::Detached
            )
        };
        if flags.iter().any(is_elsewhere) {
            return None;
        }
        let stored = stored?;
        let checkpointed = stored.next_offset?;
        let end = bounds.map(|bounds| bounds.readable_end(self.spec.source.isolation));
        let end = end.map(|end| stop_offset.map_or(end, |stop| end.min(stop)));
        if end.is_some_and(|end| end <= checkpointed) {
            return Some(0);
        }
        let found = self.unread?.get(partition)?;
        if found.from > checkpointed || found.topic_id != stored.topic_id {
            return None;
        }
        match found.first {
            FirstRecord::At {
                record_offset,
                timestamp_ms,
            } => {
                let is_there = record_offset >= checkpointed.get()
                    && bounds.is_none_or(|bounds| record_offset >= bounds.earliest.get());
                let age = self.now.timestamp_millis() - timestamp_ms.filter(|_| is_there)?;
                // A producer's clock may go ahead.
                Some(age.max(0))
            }
            // Markers of transactions, aborted records, compacted offsets: the lag counts them, nobody will read them.
            FirstRecord::NoneBefore(seen) => end.filter(|end| *end <= seen).map(|_| 0),
        }
    }

    fn flags(
        &self,
        partition: &TopicPartition,
        broker: Option<&BrokerPartition>,
        stored: Option<&CheckpointPosition>,
    ) -> Vec<Flag> {
        let mut flags = Vec::new();
        let subscribed = self.spec.source.selects(&partition.topic);
        if !subscribed {
            return vec![Flag::Detached];
        }
        let Some(broker) = broker else {
            if self.brokers.is_some() {
                flags.push(Flag::PartitionGone);
            }
            return flags;
        };
        let topic_id = stored.and_then(|stored| stored.topic_id.as_ref());
        let is_recreated = is_of_another(topic_id, Some(broker));
        match broker.bounds {
            Some(bounds) => {
                if self.spec.source.isolation == Isolation::ReadCommitted
                    && bounds.latest > bounds.last_stable
                {
                    flags.push(Flag::HeldByTransaction);
                }
                let position = stored.and_then(|stored| stored.next_offset);
                // Where the log is another one, its bounds say nothing about the position.
                if let Some(position) = position.filter(|_| !is_recreated) {
                    if position < bounds.earliest {
                        flags.push(Flag::BelowEarliest);
                    }
                    if position > bounds.latest && self.log_was_asked_after_the_checkpoint() {
                        flags.push(Flag::BeyondLatest);
                    }
                }
            }
            None => flags.push(Flag::NoLeader),
        }
        match (stored, self.checkpoint) {
            (Some(_), _) if is_recreated => flags.push(Flag::TopicRecreated),
            (Some(_), _) => {}
            (None, CheckpointSource::Known(_)) => flags.push(Flag::NewSinceCheckpoint),
            (None, CheckpointSource::Unknown | CheckpointSource::Absent) => {}
        }
        flags
    }

    /// What a start would find, by the rules of the resolver, as far as one checkpoint and one answer of the sink tell it.
    fn disagreement_with_sink(
        &self,
        partition: &TopicPartition,
        stored: Option<&CheckpointPosition>,
        held: Option<&SinkPosition>,
    ) -> Option<Flag> {
        let sink = self.sink?;
        let stored = stored?;
        let offset = stored.next_offset?;
        let is_read = self.spec.source.selects(&partition.topic);
        if !is_read {
            return None;
        }
        let Some(held) = held else {
            let had_output = sink
                .newest_output
                .is_some_and(|newest| newest > stored.position_id);
            return had_output.then_some(Flag::ProgressLost);
        };
        if held.position_id > stored.position_id {
            return Some(Flag::StoreBehindSink);
        }
        let is_behind = held.position_id == stored.position_id && held.next_offset < offset;
        is_behind.then_some(Flag::SinkBehindStore)
    }

    /// A checkpoint taken after the log's end was asked for may lie beyond it without meaning anything.
    fn log_was_asked_after_the_checkpoint(&self) -> bool {
        match (self.checkpoint, self.brokers_at) {
            (CheckpointSource::Known(checkpoint), Some(asked)) => asked > checkpoint.completed_at,
            _ => false,
        }
    }

    fn divergence(
        &self,
        stored: Option<&CheckpointPosition>,
        group: Option<&GroupOffset>,
    ) -> Divergence {
        let note = group
            .and_then(|group| group.note.clone())
            .filter(|note| !note.is_empty());
        let written_by = read_note(note.as_deref(), self.install, self.job);
        let checkpointed = stored.and_then(|stored| stored.next_offset);
        let behind = checkpointed
            .zip(group.map(|group| group.offset))
            .map(|(checkpointed, group)| checkpointed.distance_from(group));
        Divergence {
            group_behind_checkpoint: behind,
            cause: self.cause(stored, group, behind, written_by),
            group_note: note,
            group_checkpoint: match written_by {
                Note::Ours(id) if group.is_some() => Some(id),
                Note::Ours(_) | Note::Reset | Note::WithoutCheckpoint | Note::Foreign => None,
            },
        }
    }

    fn cause(
        &self,
        stored: Option<&CheckpointPosition>,
        group: Option<&GroupOffset>,
        behind: Option<i64>,
        written_by: Note,
    ) -> DivergenceCause {
        let commits = self.spec.source.commit_to_group == CommitToGroup::OnCheckpoint;
        let checkpoint = match self.checkpoint {
            CheckpointSource::Unknown => return DivergenceCause::Unknown,
            CheckpointSource::Absent => return DivergenceCause::NoCheckpoint,
            CheckpointSource::Known(checkpoint) => checkpoint,
        };
        if self.group.is_none() {
            return DivergenceCause::Unknown;
        }
        if group.is_none() {
            return match checkpoint.group_commit.status {
                _ if !commits => DivergenceCause::CommitOff,
                GroupCommitStatus::Pending => DivergenceCause::CommitPending,
                GroupCommitStatus::Failed => DivergenceCause::CommitFailed,
                GroupCommitStatus::Ok | GroupCommitStatus::Displaced | GroupCommitStatus::Off => {
                    DivergenceCause::GroupMissing
                }
            };
        }
        let (Some(stored), Some(behind)) = (stored, behind) else {
            return DivergenceCause::NoCheckpoint;
        };
        if behind == 0 {
            return DivergenceCause::None;
        }
        let committed = match written_by {
            Note::Ours(committed) => committed,
            // The start that takes checkpoints again has decided the position anew.
            Note::Reset | Note::WithoutCheckpoint => return DivergenceCause::AfterReset,
            Note::Foreign => return DivergenceCause::ExternalCommit,
        };
        if committed > checkpoint.id || (committed == checkpoint.id && behind != 0) {
            // This store's checkpoint of that number says something else: the note was copied, or the store restored.
            return DivergenceCause::ExternalCommit;
        }
        if stored.position_id > committed {
            return DivergenceCause::AfterReset;
        }
        match checkpoint.group_commit.status {
            _ if !commits => DivergenceCause::CommitOff,
            GroupCommitStatus::Failed => DivergenceCause::CommitFailed,
            // `ok`, but the group still shows an older one: it was asked before the commit.
            GroupCommitStatus::Pending
            | GroupCommitStatus::Displaced
            | GroupCommitStatus::Ok
            | GroupCommitStatus::Off => DivergenceCause::CommitPending,
        }
    }
}

/// Whether the topic was created again since: the brokers know it by another id.
fn is_of_another(topic_id: Option<&TopicId>, broker: Option<&BrokerPartition>) -> bool {
    let now = broker.and_then(|broker| broker.topic_id.as_ref());
    TopicId::differ(topic_id, now)
}

/// Whether this job committed the group's offset, for a checkpoint.
fn is_ours(divergence: &Divergence) -> bool {
    divergence.group_checkpoint.is_some()
}

/// Sums over partitions; `running` decides which number makes a partition a known one.
pub(crate) fn totals(partitions: &[PartitionOffsetsView], running: bool) -> OffsetsTotals {
    let mut totals = OffsetsTotals {
        partitions: partitions.len(),
        ..OffsetsTotals::default()
    };
    let mut ages_missing = false;
    for partition in partitions {
        if partition.flags.contains(&Flag::Detached) {
            continue;
        }
        ages_missing |= partition.oldest_unread_age_ms.is_none();
        totals.oldest_unread_age_ms = totals
            .oldest_unread_age_ms
            .max(partition.oldest_unread_age_ms);
        let decisive = if running {
            partition.lag.position
        } else {
            partition.lag.checkpoint
        };
        totals.unknown_partitions += usize::from(decisive.is_none());
        add(&mut totals.position_lag, partition.lag.position);
        add(&mut totals.checkpoint_lag, partition.lag.checkpoint);
        add(&mut totals.group_lag, partition.lag.group);
        add(&mut totals.sink_lag, partition.lag.sink);
        // What is ahead in one partition would hide what is behind in another.
        let behind = partition.divergence.group_behind_checkpoint;
        add(
            &mut totals.group_behind_checkpoint,
            behind.map(|behind| behind.max(0)),
        );
        add(
            &mut totals.group_ahead_of_checkpoint,
            behind.map(|behind| (-behind).max(0)),
        );
    }
    if ages_missing && totals.oldest_unread_age_ms == Some(0) {
        // That nothing is unread can be said only of all of them.
        totals.oldest_unread_age_ms = None;
    }
    totals
}

/// An unknown number leaves the sum as it is; a sum of nothing but unknown numbers is unknown.
fn add(sum: &mut Option<i64>, number: Option<i64>) {
    if let Some(number) = number {
        *sum = Some(sum.unwrap_or(0) + number);
    }
}

/// The sums as a job shows them.
pub(crate) fn job_lag(totals: &OffsetsTotals) -> JobLag {
    JobLag {
        position: totals.position_lag,
        checkpoint: totals.checkpoint_lag,
        checkpoint_because: totals.checkpoint_because,
        group: totals.group_lag,
        unknown_partitions: totals.unknown_partitions,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::checkpoint::CheckpointKind;

    fn spec(change: impl FnOnce(&mut JobSpec)) -> JobSpec {
        let job = JobName::new("orders").unwrap();
        let mut spec = JobSpec::read(
            &job,
            &json!({
                "source": {"connection": "main", "topics": ["orders"]},
                "startup_mode": {"mode": "earliest"},
                "sink": {"type": "blackhole"}
            }),
        )
        .unwrap();
        change(&mut spec);
        spec
    }

    fn partition() -> TopicPartition {
        TopicPartition::new("orders", 0)
    }

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn checkpoint(id: i64, next: i64, decided: i64, commit: GroupCommitStatus) -> CheckpointFacts {
        CheckpointFacts {
            id: CheckpointId(id),
            kind: CheckpointKind::Periodic,
            completed_at: at(0),
            confirmed_at: at(0),
            group_commit: GroupCommit {
                status: commit,
                error: None,
            },
            phases: CheckpointPhases::default(),
            sink_identity: "orders-db".to_owned(),
            positions: BTreeMap::from([(
                partition(),
                CheckpointPosition {
                    next_offset: Some(offset(next)),
                    position_id: CheckpointId(decided),
                    topic_id: Some(TopicId("a".into())),
                },
            )]),
        }
    }

    fn group(next: i64, note: &str) -> BTreeMap<TopicPartition, GroupOffset> {
        let committed = GroupOffset {
            offset: offset(next),
            note: Some(note.to_owned()),
        };
        BTreeMap::from([(partition(), committed)])
    }

    fn brokers(
        earliest: i64,
        stable: i64,
        latest: i64,
    ) -> BTreeMap<TopicPartition, BrokerPartition> {
        let broker = BrokerPartition {
            leader: Some(1),
            topic_id: Some(TopicId("a".into())),
            bounds: Some(LogBounds {
                earliest: offset(earliest),
                last_stable: offset(stable),
                latest: offset(latest),
            }),
        };
        BTreeMap::from([(partition(), broker)])
    }

    fn comparison<'a>(job: &'a JobName, spec: &'a JobSpec) -> Comparison<'a> {
        Comparison {
            job,
            install: Some("0123abcd"),
            spec,
            brokers: None,
            brokers_at: Some(at(10)),
            group: None,
            live: None,
            checkpoint: CheckpointSource::Absent,
            sink: None,
            ends: None,
            unread: None,
            log_starts: None,
            checkpoint_every: None,
            now: at(10),
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one table")]
    fn where_a_difference_comes_from() {
        use DivergenceCause as D;
        use GroupCommitStatus as S;
        let job = JobName::new("orders").unwrap();
        let ours = |id: i64| format!("handover:0123abcd:orders:{id}");
        let on = spec(|_| {});
        let off = spec(|spec| spec.source.commit_to_group = CommitToGroup::Off);
        type Row<'a> = (
            &'a str,
            &'a JobSpec,
            Option<CheckpointFacts>,
            Option<(i64, String)>,
            D,
        );
        let table: Vec<Row<'_>> = vec![
            (
                "equal",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((50, ours(9))),
                D::None,
            ),
            (
                "equal by somebody else",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((50, String::new())),
                D::None,
            ),
            (
                "no checkpoint",
                &on,
                None,
                Some((50, String::new())),
                D::NoCheckpoint,
            ),
            (
                "no group offset",
                &on,
                Some(checkpoint(9, 50, 1, S::Off)),
                None,
                D::GroupMissing,
            ),
            (
                "first commit under way",
                &on,
                Some(checkpoint(9, 50, 1, S::Pending)),
                None,
                D::CommitPending,
            ),
            (
                "first commit failed",
                &on,
                Some(checkpoint(9, 50, 1, S::Failed)),
                None,
                D::CommitFailed,
            ),
            (
                "never commits",
                &off,
                Some(checkpoint(9, 50, 1, S::Off)),
                None,
                D::CommitOff,
            ),
            (
                "used to commit",
                &off,
                Some(checkpoint(9, 50, 1, S::Off)),
                Some((40, ours(3))),
                D::CommitOff,
            ),
            (
                "under way",
                &on,
                Some(checkpoint(9, 50, 1, S::Pending)),
                Some((40, ours(8))),
                D::CommitPending,
            ),
            (
                "asked too early",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((40, ours(8))),
                D::CommitPending,
            ),
            (
                "failed",
                &on,
                Some(checkpoint(9, 50, 1, S::Failed)),
                Some((40, ours(8))),
                D::CommitFailed,
            ),
            (
                "moved by a start",
                &on,
                Some(checkpoint(9, 10, 9, S::Off)),
                Some((40, ours(8))),
                D::AfterReset,
            ),
            (
                "moved back by a reset of the group",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((
                    10,
                    "handover:0123abcd:orders:op_01kbe7q2m8h4w1v5x9c3n6t0rz".to_owned(),
                )),
                D::AfterReset,
            ),
            (
                "moved ahead by a reset of the group",
                &off,
                Some(checkpoint(9, 50, 1, S::Off)),
                Some((
                    70,
                    "handover:0123abcd:orders:op_01kbe7q2m8h4w1v5x9c3n6t0rz".to_owned(),
                )),
                D::AfterReset,
            ),
            (
                "committed while checkpoints were off",
                &on,
                Some(checkpoint(9, 50, 9, S::Off)),
                Some((40, "handover:0123abcd:orders:periodic".to_owned())),
                D::AfterReset,
            ),
            (
                "a reset by another installation",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((
                    10,
                    "handover:ffffffff:orders:op_01kbe7q2m8h4w1v5x9c3n6t0rz".to_owned(),
                )),
                D::ExternalCommit,
            ),
            (
                "moved by an earlier start, failed since",
                &on,
                Some(checkpoint(11, 50, 9, S::Failed)),
                Some((40, ours(10))),
                D::CommitFailed,
            ),
            (
                "foreign note",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((40, "x".to_owned())),
                D::ExternalCommit,
            ),
            (
                "no note",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((60, String::new())),
                D::ExternalCommit,
            ),
            (
                "another job's note",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((40, "handover:0123abcd:others:8".to_owned())),
                D::ExternalCommit,
            ),
            (
                "another installation's note",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((40, "handover:ffffffff:orders:8".to_owned())),
                D::ExternalCommit,
            ),
            (
                "our note, moved by hand",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((40, ours(9))),
                D::ExternalCommit,
            ),
            (
                "a checkpoint that we do not have",
                &on,
                Some(checkpoint(9, 50, 1, S::Ok)),
                Some((90, ours(12))),
                D::ExternalCommit,
            ),
        ];
        for (name, spec, checkpoint, committed, expected) in table {
            let group = committed.map_or_else(BTreeMap::new, |(next, note)| group(next, &note));
            let brokers = brokers(0, 100, 100);
            let view = compare(&Comparison {
                brokers: Some(&brokers),
                group: Some(&group),
                checkpoint: checkpoint
                    .as_ref()
                    .map_or(CheckpointSource::Absent, CheckpointSource::Known),
                ..comparison(&job, spec)
            });
            assert_eq!(view[0].divergence.cause, expected, "{name}: {view:?}");
            let ahead = view[0]
                .divergence
                .group_behind_checkpoint
                .is_some_and(|behind| behind < 0);
            assert_eq!(view[0].flags.contains(&Flag::GroupAhead), ahead, "{name}");
        }
    }

    #[test]
    fn a_source_that_is_away_leaves_nulls_and_no_zeros() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let view = compare(&Comparison {
            checkpoint: CheckpointSource::Known(&facts),
            ..comparison(&job, &spec)
        });
        assert_eq!(view[0].checkpointed, Offset::new(50));
        assert_eq!(view[0].lag, PartitionLag::default());
        assert_eq!(view[0].divergence.cause, DivergenceCause::Unknown);
        let sums = totals(&view, false);
        assert_eq!((sums.checkpoint_lag, sums.unknown_partitions), (None, 1));

        let brokers = brokers(0, 100, 100);
        let group = group(50, "");
        let view = compare(&Comparison {
            brokers: Some(&brokers),
            group: Some(&group),
            checkpoint: CheckpointSource::Unknown,
            ..comparison(&job, &spec)
        });
        assert_eq!(view[0].divergence.cause, DivergenceCause::Unknown);
        assert_eq!(view[0].flags, []);
        assert_eq!(view[0].lag.group, Some(50));
    }

    #[test]
    fn lags_are_measured_to_what_the_job_can_read_and_never_negative() {
        let job = JobName::new("orders").unwrap();
        let brokers = brokers(20, 90, 100);
        let live = |position: i64| {
            let partition_view = LivePartition {
                subtask: 2,
                position: Offset::new(position),
                topic_id: None,
                stop_offset: None,
                reason: None,
                watermark: None,
            };
            BTreeMap::from([(partition(), partition_view)])
        };
        let facts = checkpoint(9, 10, 1, GroupCommitStatus::Ok);
        for (isolation, position, lag, flags) in [
            (
                Isolation::ReadCommitted,
                85,
                5,
                vec![Flag::HeldByTransaction, Flag::BelowEarliest],
            ),
            (
                Isolation::ReadUncommitted,
                85,
                15,
                vec![Flag::BelowEarliest],
            ),
            (
                Isolation::ReadUncommitted,
                120,
                0,
                vec![Flag::BelowEarliest, Flag::Skewed],
            ),
        ] {
            let spec = spec(|spec| spec.source.isolation = isolation);
            let live = live(position);
            let view = compare(&Comparison {
                brokers: Some(&brokers),
                live: Some(&live),
                checkpoint: CheckpointSource::Known(&facts),
                ..comparison(&job, &spec)
            });
            assert_eq!(view[0].lag.position, Some(lag));
            assert_eq!(view[0].flags, flags);
            assert_eq!(view[0].subtask, 2);
        }
    }

    #[test]
    fn what_is_notable_of_a_stored_position() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let mut recreated = brokers(0, 100, 100);
        recreated.get_mut(&partition()).unwrap().topic_id = Some(TopicId("b".into()));
        let mut leaderless = brokers(0, 100, 100);
        leaderless.get_mut(&partition()).unwrap().bounds = None;
        for (brokers, next, expected) in [
            (brokers(0, 100, 100), 50, vec![]),
            (brokers(60, 100, 100), 50, vec![Flag::BelowEarliest]),
            (brokers(0, 100, 100), 101, vec![Flag::BeyondLatest]),
            (recreated, 50, vec![Flag::TopicRecreated]),
            (leaderless, 50, vec![Flag::NoLeader]),
        ] {
            let facts = checkpoint(9, next, 1, GroupCommitStatus::Ok);
            let view = compare(&Comparison {
                brokers: Some(&brokers),
                checkpoint: CheckpointSource::Known(&facts),
                ..comparison(&job, &spec)
            });
            assert_eq!(view[0].flags, expected);
        }
        // A checkpoint newer than the answer of the brokers is no sign of a cut log.
        let facts = checkpoint(9, 101, 1, GroupCommitStatus::Ok);
        let brokers = brokers(0, 100, 100);
        let view = compare(&Comparison {
            brokers: Some(&brokers),
            brokers_at: Some(at(-1)),
            checkpoint: CheckpointSource::Known(&facts),
            ..comparison(&job, &spec)
        });
        assert_eq!(view[0].flags, [Flag::Skewed]);
    }

    /// Whose numbers they are decides, and not whether they look as if they fitted.
    #[test]
    fn offsets_of_another_creation_of_the_topic_are_no_distance_from_its_end() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let facts = checkpoint(9, 50, 3, GroupCommitStatus::Ok);
        let sink = SinkHolds {
            identity: "orders-db".to_owned(),
            progress: BTreeMap::from([(
                partition(),
                SinkPosition {
                    next_offset: offset(50),
                    position_id: CheckpointId(3),
                },
            )]),
            newest_output: None,
        };
        let live = |topic: &str| {
            let live = LivePartition {
                subtask: 0,
                position: Offset::new(50),
                topic_id: Some(TopicId(topic.into())),
                stop_offset: None,
                reason: None,
                watermark: None,
            };
            BTreeMap::from([(partition(), live)])
        };
        let ours = "handover:0123abcd:orders:9";
        // Shorter than the old one, as long, and longer: of the old one is known nothing of all that.
        for end in [20, 50, 100] {
            let mut brokers = brokers(0, end, end);
            brokers.get_mut(&partition()).unwrap().topic_id = Some(TopicId("b".into()));
            let look = |live: Option<&BTreeMap<TopicPartition, LivePartition>>, note: &str| {
                let group = group(5, note);
                let view = compare(&Comparison {
                    brokers: Some(&brokers),
                    group: Some(&group),
                    live,
                    checkpoint: CheckpointSource::Known(&facts),
                    sink: Some(&sink),
                    ..comparison(&job, &spec)
                });
                let sums = totals(&view, live.is_some());
                assert_eq!(view[0].flags[0], Flag::TopicRecreated, "{view:?}");
                for flag in [Flag::BeyondLatest, Flag::BelowEarliest] {
                    assert!(!view[0].flags.contains(&flag), "{view:?}");
                }
                (view[0].lag, sums)
            };
            let (lag, sums) = look(None, ours);
            assert_eq!(lag, PartitionLag::default(), "{end}");
            assert_eq!((sums.checkpoint_lag, sums.unknown_partitions), (None, 1));
            // Somebody else's offset was committed since: Kafka drops those of a topic that is deleted.
            let (lag, _) = look(None, "");
            assert_eq!((lag.group, lag.checkpoint), (Some(end - 5), None));
            // Parked at the old topic's position; and reading the new one, which the checkpoint does not hold yet.
            let (lag, sums) = look(Some(&live("a")), ours);
            assert_eq!(lag.position, None);
            assert_eq!((sums.position_lag, sums.unknown_partitions), (None, 1));
            let (lag, sums) = look(Some(&live("b")), ours);
            assert_eq!(lag.position, Some((end - 50).max(0)));
            assert_eq!(
                (sums.position_lag, sums.unknown_partitions),
                (lag.position, 0)
            );
        }
    }

    #[test]
    fn what_the_group_is_ahead_hides_nothing_that_it_is_behind() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let view = compare(&Comparison {
            checkpoint: CheckpointSource::Known(&facts),
            ..comparison(&job, &spec)
        });
        let sums = |differences: &[Option<i64>]| {
            let rows: Vec<PartitionOffsetsView> = differences
                .iter()
                .map(|behind| {
                    let mut row = view[0].clone();
                    row.divergence.group_behind_checkpoint = *behind;
                    row
                })
                .collect();
            let totals = totals(&rows, false);
            (
                totals.group_behind_checkpoint,
                totals.group_ahead_of_checkpoint,
            )
        };
        assert_eq!(sums(&[Some(100), Some(-100)]), (Some(100), Some(100)));
        assert_eq!(sums(&[Some(3), Some(4), None]), (Some(7), Some(0)));
        assert_eq!(sums(&[Some(-2), Some(0)]), (Some(0), Some(2)));
        assert_eq!(sums(&[None]), (None, None));
    }

    #[test]
    fn where_the_sink_stands_beside_the_checkpoint() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        // Checkpoint 9 says 50, decided by checkpoint 3.
        let facts = checkpoint(9, 50, 3, GroupCommitStatus::Ok);
        let brokers = brokers(0, 100, 100);
        type Row = (
            Option<(i64, i64)>,
            Option<i64>,
            Option<i64>,
            Option<i64>,
            Vec<Flag>,
        );
        let rows: Vec<Row> = vec![
            (Some((50, 3)), None, Some(0), Some(50), vec![]),
            (Some((60, 3)), Some(9), Some(10), Some(40), vec![]),
            (
                Some((40, 3)),
                None,
                Some(-10),
                Some(60),
                vec![Flag::SinkBehindStore],
            ),
            // It has not heard of the newer decision yet.
            (Some((90, 2)), None, None, Some(10), vec![]),
            (
                Some((20, 4)),
                None,
                None,
                Some(80),
                vec![Flag::StoreBehindSink],
            ),
            (None, Some(3), None, None, vec![]),
            (None, Some(4), None, None, vec![Flag::ProgressLost]),
        ];
        for (held, newest_output, ahead, lag, flags) in rows {
            let row = format!("{held:?} {newest_output:?}");
            let held = held.map(|(next_offset, position_id)| {
                let position = SinkPosition {
                    next_offset: offset(next_offset),
                    position_id: CheckpointId(position_id),
                };
                (partition(), position)
            });
            let sink = SinkHolds {
                identity: "orders-db".to_owned(),
                progress: held.into_iter().collect(),
                newest_output: newest_output.map(CheckpointId),
            };
            let view = compare(&Comparison {
                brokers: Some(&brokers),
                checkpoint: CheckpointSource::Known(&facts),
                sink: Some(&sink),
                ..comparison(&job, &spec)
            });
            let seen = &view[0];
            assert_eq!(seen.sink_ahead_of_checkpoint, ahead, "{row}");
            assert_eq!(
                (seen.lag.sink, totals(&view, false).sink_lag),
                (lag, lag),
                "{row}"
            );
            assert_eq!(seen.flags, flags, "{row}");
        }
    }

    #[test]
    fn partitions_that_only_one_side_knows() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|spec| spec.source.topics = vec!["fresh".to_owned()]);
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let broker = brokers(0, 100, 100).remove(&partition()).unwrap();
        let brokers = BTreeMap::from([(TopicPartition::new("fresh", 0), broker)]);
        let view = compare(&Comparison {
            brokers: Some(&brokers),
            checkpoint: CheckpointSource::Known(&facts),
            ..comparison(&job, &spec)
        });
        assert_eq!(view[0].flags, [Flag::NewSinceCheckpoint]);
        assert_eq!(view[1].flags, [Flag::Detached]);
        assert_eq!(totals(&view, false).unknown_partitions, 1);
    }

    #[expect(clippy::too_many_lines, reason = "one table")]
    #[test]
    fn how_old_the_oldest_unread_record_is() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        // Checkpoint 9 says 50; the records end at 100; it is second 10.
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let record = |record_offset: i64, timestamp_ms: Option<i64>| FirstRecord::At {
            record_offset,
            timestamp_ms,
        };
        let second = |second: i64| Some(at(second).timestamp_millis());
        let there = || Some(brokers(0, 100, 100));
        type Row<'a> = (
            &'a str,
            Option<BTreeMap<TopicPartition, BrokerPartition>>,
            Option<(i64, FirstRecord)>,
            Option<i64>,
        );
        let table: Vec<Row<'_>> = vec![
            ("not read yet", there(), None, None),
            (
                "at the position",
                there(),
                Some((50, record(50, second(3)))),
                Some(7_000),
            ),
            (
                "behind markers",
                there(),
                Some((50, record(53, second(3)))),
                Some(7_000),
            ),
            (
                "read when it stood earlier",
                there(),
                Some((40, record(50, second(3)))),
                Some(7_000),
            ),
            (
                "passed since",
                there(),
                Some((40, record(49, second(3)))),
                None,
            ),
            (
                "read when it stood later",
                there(),
                Some((51, record(53, second(3)))),
                None,
            ),
            (
                "without a time stamp",
                there(),
                Some((50, record(50, None))),
                None,
            ),
            (
                "from a clock ahead",
                there(),
                Some((50, record(50, second(13)))),
                Some(0),
            ),
            (
                "brokers away",
                None,
                Some((50, record(50, second(3)))),
                Some(7_000),
            ),
            ("brokers away, not read", None, None, None),
            ("all is read", Some(brokers(0, 50, 50)), None, Some(0)),
            (
                "held back by a transaction",
                Some(brokers(0, 50, 60)),
                None,
                Some(0),
            ),
            (
                "deleted since",
                Some(brokers(60, 100, 100)),
                Some((50, record(50, second(3)))),
                None,
            ),
            (
                "nothing but markers",
                there(),
                Some((50, FirstRecord::NoneBefore(offset(100)))),
                Some(0),
            ),
            (
                "markers, more since",
                there(),
                Some((50, FirstRecord::NoneBefore(offset(90)))),
                None,
            ),
            (
                "beyond the end",
                Some(brokers(0, 40, 40)),
                Some((50, record(50, second(3)))),
                None,
            ),
        ];
        for (name, brokers, found, expected) in table {
            let unread: BTreeMap<_, _> = found
                .map(|(from, first)| {
                    let found = FirstUnread {
                        from: offset(from),
                        topic_id: Some(TopicId("a".into())),
                        first,
                    };
                    (partition(), found)
                })
                .into_iter()
                .collect();
            let view = compare(&Comparison {
                brokers: brokers.as_ref(),
                checkpoint: CheckpointSource::Known(&facts),
                unread: Some(&unread),
                ..comparison(&job, &spec)
            });
            assert_eq!(view[0].oldest_unread_age_ms, expected, "{name}");
            let total = totals(&view, false).oldest_unread_age_ms;
            assert_eq!(total, expected, "{name}");
        }
    }

    #[test]
    fn the_greatest_age_counts_and_zero_needs_all_of_them() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let brokers = brokers(0, 100, 100);
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let view = compare(&Comparison {
            brokers: Some(&brokers),
            checkpoint: CheckpointSource::Known(&facts),
            ..comparison(&job, &spec)
        });
        let total = |ages: [Option<i64>; 2]| {
            let partitions = ages.map(|age| PartitionOffsetsView {
                oldest_unread_age_ms: age,
                ..view[0].clone()
            });
            totals(&partitions, false).oldest_unread_age_ms
        };
        assert_eq!(total([Some(0), Some(0)]), Some(0));
        assert_eq!(total([Some(4), Some(9)]), Some(9));
        assert_eq!(total([Some(4), None]), Some(4));
        assert_eq!(total([None, Some(0)]), None);
        assert_eq!(total([None, None]), None);
    }

    #[test]
    fn how_far_the_log_may_move_before_records_are_lost() {
        let job = JobName::new("orders").unwrap();
        let spec = spec(|_| {});
        let facts = checkpoint(9, 50, 1, GroupCommitStatus::Ok);
        let mut recreated = brokers(0, 100, 100);
        recreated.get_mut(&partition()).unwrap().topic_id = Some(TopicId("b".into()));
        for (brokers, left) in [
            (Some(brokers(20, 100, 100)), Some(30)),
            (Some(brokers(60, 100, 100)), Some(-10)),
            (Some(recreated), None),
            (None, None),
        ] {
            let view = compare(&Comparison {
                brokers: brokers.as_ref(),
                checkpoint: CheckpointSource::Known(&facts),
                ..comparison(&job, &spec)
            });
            assert_eq!(view[0].retention.offsets_left, left);
        }
    }
}
