//! Decides what the watermarks are, who is idle and who is held back; pure but for the time that comes in.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::model::{
    duration::HumanDuration,
    offset::Offset,
    topic::TopicPartition,
    watermark::{JobWatermark, PartitionWatermark, SubtaskWatermark, WatermarkSpec},
};

/// What is seen of a subtask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct SubtaskSeen {
    /// Whether records can come to it and go on: it may take them, its brokers are there, and its sink has no trouble.
    pub open: bool,
    /// Whether it waits for its sink, or for a topic of dead letters.
    pub waits_for_sink: bool,
    /// Records that it has given to the sink.
    pub records: u64,
}

/// Whether a partition takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Standing {
    /// It is read (or held back by alignment).
    Read,
    /// It is not, for the moment: parked, or without a leader. Its records are still to come.
    Waits,
    /// Nothing more comes of it: it has come to its end, or does not exist any more.
    Left,
}

/// What is seen of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct PartitionSeen {
    /// Which subtask reads it.
    pub subtask: u32,
    /// Whether it takes part.
    pub standing: Standing,
    /// Next record to read.
    pub position: Option<Offset>,
    /// The greatest time stamp that was given to the sink.
    pub greatest: Option<i64>,
    /// Records that were given to the sink.
    pub records: u64,
    /// Of these, the late ones.
    pub late: u64,
}

/// What is kept of a partition.
#[derive(Debug)]
struct State {
    seen: PartitionSeen,
    /// Its own watermark.
    watermark: Option<i64>,
    /// For how long nothing came while something could have come.
    quiet: Duration,
    idle: bool,
    paused: bool,
    /// Whether it has left, and its last watermark was counted.
    gone: bool,
    late: u64,
}

impl State {
    fn is_active(&self) -> bool {
        !self.idle && !self.gone
    }

    /// Whether it is one of those that alignment compares.
    fn is_aligned(&self) -> bool {
        self.seen.standing == Standing::Read && !self.idle
    }
}

/// A watermark that never goes back.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Output {
    watermark: Option<i64>,
    idle: bool,
}

/// The least watermark of what is active: nothing while nothing is, and not known while one of them is not.
#[derive(Debug, Default, Clone, Copy)]
struct Least(Option<Option<i64>>);

impl Least {
    fn count(&mut self, watermark: Option<i64>) {
        // `None` is less than every watermark.
        self.0 = Some(self.0.map_or(watermark, |least| least.min(watermark)));
    }
}

impl Output {
    fn follow(&mut self, least: Least) {
        self.idle = least.0.is_none();
        self.watermark = self.watermark.max(least.0.flatten());
    }
}

/// See the module above.
#[derive(Debug)]
pub(in crate::engine) struct Watermarks {
    delay: i64,
    idle_after: Option<Duration>,
    drift: Option<i64>,
    /// The least watermark of those that alignment compares.
    least: Option<i64>,
    partitions: BTreeMap<TopicPartition, State>,
    subtasks: Vec<(Option<SubtaskSeen>, Output)>,
    job: Output,
    at: Option<Instant>,
}

impl Watermarks {
    pub(in crate::engine) fn new(spec: &WatermarkSpec, subtasks: u32) -> Self {
        let idle = Output {
            watermark: None,
            idle: true,
        };
        Self {
            delay: spec.delay_ms(),
            idle_after: spec.idle_after.map(|idle| idle.0),
            drift: spec
                .alignment
                .map(|alignment| HumanDuration::as_millis(alignment.max_drift)),
            least: None,
            partitions: BTreeMap::new(),
            subtasks: (0..subtasks).map(|_| (None, idle)).collect(),
            job: idle,
            at: None,
        }
    }

    /// Takes a look: each subtask by its number, and every partition of the run.
    pub(in crate::engine) fn see(
        &mut self,
        now: Instant,
        subtasks: &[SubtaskSeen],
        partitions: BTreeMap<TopicPartition, PartitionSeen>,
    ) {
        let elapsed = self
            .at
            .map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        let ran: Vec<bool> = self
            .subtasks
            .iter_mut()
            .zip(subtasks)
            .map(|((before, _), now)| {
                let before = before.replace(*now);
                before.is_some_and(|before| has_run(before, *now))
            })
            .collect();
        self.partitions
            .retain(|partition, _| partitions.contains_key(partition));
        for (partition, seen) in partitions {
            let has_run = ran.get(seen.subtask as usize).copied().unwrap_or(false);
            let quiet = if has_run { elapsed } else { Duration::ZERO };
            let watermark = seen
                .greatest
                .map(|greatest| greatest.saturating_sub(self.delay).saturating_sub(1));
            self.partitions
                .entry(partition)
                .and_modify(|state| state.see(seen, watermark, quiet))
                .or_insert_with(|| State {
                    seen,
                    watermark,
                    quiet: Duration::ZERO,
                    idle: false,
                    paused: false,
                    gone: false,
                    late: seen.late,
                });
        }
        self.conclude();
        for state in self.partitions.values_mut() {
            // Only now: what it came to at its very end has counted.
            state.gone = state.seen.standing == Standing::Left;
        }
    }

    /// Partitions that had nothing for so long that the brokers are to be asked whether there is anything to read.
    pub(in crate::engine) fn to_ask(&self) -> Vec<TopicPartition> {
        let quiet = self
            .partitions
            .iter()
            .filter(|(_, state)| !state.idle && self.is_quiet(state));
        quiet.map(|(partition, _)| partition.clone()).collect()
    }

    fn is_quiet(&self, state: &State) -> bool {
        let long = self.idle_after.is_some_and(|idle| state.quiet >= idle);
        long && !state.paused && state.seen.standing == Standing::Read
    }

    /// The brokers have said up to where partitions can be read. Comes right after a look: of one that is still quiet nothing
    /// was read since the question, so if its position is there, nothing of it is on its way.
    pub(in crate::engine) fn hear_ends(&mut self, ends: &BTreeMap<TopicPartition, Offset>) {
        for (partition, end) in ends {
            let is_quiet = self
                .partitions
                .get(partition)
                .is_some_and(|state| self.is_quiet(state));
            let Some(state) = self.partitions.get_mut(partition).filter(|_| is_quiet) else {
                continue;
            };
            let has_read_all = state.seen.position.is_some_and(|position| position >= *end);
            if has_read_all && !state.idle {
                state.idle = true;
                tracing::debug!(%partition, "the partition is idle");
            }
        }
        self.conclude();
    }

    fn conclude(&mut self) {
        let mut of_job = Least::default();
        let mut of_subtasks = vec![Least::default(); self.subtasks.len()];
        for state in self.partitions.values().filter(|state| state.is_active()) {
            of_job.count(state.watermark);
            if let Some(own) = of_subtasks.get_mut(state.seen.subtask as usize) {
                own.count(state.watermark);
            }
        }
        self.job.follow(of_job);
        for ((_, output), least) in self.subtasks.iter_mut().zip(of_subtasks) {
            output.follow(least);
        }
        if let Some(drift) = self.drift {
            self.align(drift);
        }
    }

    /// Holds back who is too far ahead of the least one. That one is never held back.
    fn align(&mut self, drift: i64) {
        let aligned = self.partitions.values().filter(|state| state.is_aligned());
        let least = aligned.filter_map(|state| state.watermark).min();
        self.least = least;
        for state in self.partitions.values_mut() {
            let ahead = match (state.watermark, least) {
                (Some(watermark), Some(least)) if state.is_aligned() => {
                    watermark.saturating_sub(least)
                }
                _ => 0,
            };
            let allowed = if state.paused { drift / 2 } else { drift };
            let was = std::mem::replace(&mut state.paused, ahead > allowed);
            if was || state.paused {
                state.quiet = Duration::ZERO;
            }
        }
    }

    /// The job's watermark.
    pub(in crate::engine) fn watermark(&self) -> Option<i64> {
        self.job.watermark
    }

    /// The greatest time stamp of a partition that is not too far ahead; `None` where nobody is compared.
    pub(in crate::engine) fn allowed(&self) -> Option<i64> {
        let ahead = self.least?.saturating_add(self.drift?);
        Some(ahead.saturating_add(self.delay).saturating_add(1))
    }

    /// Partitions that are to be held back.
    pub(in crate::engine) fn paused(&self) -> BTreeSet<TopicPartition> {
        let paused = self.partitions.iter().filter(|(_, state)| state.paused);
        paused.map(|(partition, _)| partition.clone()).collect()
    }

    /// Whether a partition is to be held back.
    pub(in crate::engine) fn is_paused(&self, partition: &TopicPartition) -> bool {
        let state = self.partitions.get(partition);
        state.is_some_and(|state| state.paused)
    }

    /// What is shown of a partition.
    pub(in crate::engine) fn of_partition(
        &self,
        partition: &TopicPartition,
    ) -> Option<PartitionWatermark> {
        let state = self.partitions.get(partition)?;
        Some(PartitionWatermark {
            timestamp: state.watermark.and_then(instant),
            idle: state.idle,
            paused: state.paused,
            late_records: state.late,
        })
    }

    /// What is shown of the job.
    pub(in crate::engine) fn of_job(&self) -> JobWatermark {
        let active = self
            .partitions
            .iter()
            .filter(|(_, state)| state.is_active());
        let held_by = active.min_by_key(|(_, state)| state.watermark);
        JobWatermark {
            timestamp: self.job.watermark.and_then(instant),
            idle: self.job.idle,
            held_by: held_by.map(|(partition, _)| partition.clone()),
            idle_partitions: self.partitions.values().filter(|state| state.idle).count(),
            paused_partitions: self.paused().into_iter().collect(),
            late_records: self.partitions.values().map(|state| state.late).sum(),
            subtasks: (0..)
                .zip(&self.subtasks)
                .map(|(subtask, (_, output))| SubtaskWatermark {
                    subtask,
                    timestamp: output.watermark.and_then(instant),
                    idle: output.idle,
                })
                .collect(),
        }
    }
}

impl State {
    fn see(&mut self, seen: PartitionSeen, watermark: Option<i64>, quiet: Duration) {
        let before = std::mem::replace(&mut self.seen, seen);
        self.watermark = self.watermark.max(watermark);
        // A partition that was given anew counts from the beginning.
        self.late += seen.late.checked_sub(before.late).unwrap_or(seen.late);
        let is_quiet = seen.standing == Standing::Read && seen.records == before.records;
        if is_quiet {
            self.quiet += quiet;
        } else {
            self.quiet = Duration::ZERO;
            self.idle = false;
        }
        self.gone &= seen.standing == Standing::Left;
    }
}

/// Whether records could come between two looks: that it waited for its sink at both and nothing went through meanwhile is a
/// sink that is stuck, and not a quiet topic.
fn has_run(before: SubtaskSeen, now: SubtaskSeen) -> bool {
    let is_stuck = before.waits_for_sink && now.waits_for_sink && before.records == now.records;
    before.open && now.open && !is_stuck
}

fn instant(milliseconds: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(milliseconds)
}

#[cfg(test)]
mod tests;
