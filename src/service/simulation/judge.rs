//! What must hold at each step: the rules by name, held against everything that the models keep.
//!
//! | rule | what it says |
//! |---|---|
//! | I1 | a checkpoint covers only records that the sink has; a sink gets exactly the records of the log, in order |
//! | I2 | checkpoints go on: numbers grow, positions do not go back, a position is decided anew only by whom it belongs to |
//! | I3 | the group gets the offsets of completed checkpoints, and does not go back |
//! | I4 | who is no longer the owner changes nothing, and is quiet once it knows |
//! | I5 | the job's watermark never goes back in a run, and is never beyond the greatest of its partitions |
//! | I6 | between the log and the sink nothing is lost, doubled or reordered (the hand-over) |
//! | I7 | a stop returns in its time and tells what is left |
//! | I8 | a commit to the group fails no checkpoint and ends no run |
//! | I9 | when faults end the job is where it was asked to be, and has read everything |
//!
//! A third of the worlds keep event time, with alignment. (That a watermark moves only to the least of the active ones is a law of
//! its own, in the engine: here not every status is seen.) What a plan says is what a start stores and a consumer reads from.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::{broker::Entry, world::State};
use crate::model::{
    checkpoint::{Checkpoint, CheckpointKind, FailedCheckpoint},
    code::Code,
    ids::CheckpointId,
    job_status::JobStatus,
    offset::{Offset, PartitionOffsets},
    resolver::{SinkPosition, StartReason},
};

/// What a start may do that nobody else may.
#[derive(Debug, Clone, Default)]
pub(super) struct Licence {
    /// Partitions that an operator moves.
    pub(super) moves: BTreeSet<i32>,
    /// What the plan says of each partition.
    pub(super) planned: BTreeMap<i32, (Option<i64>, StartReason)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Judge {
    pub(super) violations: Vec<String>,
    /// Whether the sink keeps progress.
    pub(super) once: bool,
    /// Where each decision begins.
    pub(super) decisions: BTreeMap<(i32, CheckpointId), i64>,
    /// By the number of the start's checkpoint.
    pub(super) licences: BTreeMap<(i64, CheckpointId), Licence>,
    /// Partitions that the run does not read for the moment, as the server shows it: code and position.
    pub(super) parked: BTreeMap<i32, (Code, Option<i64>)>,
    /// The watermark that a run showed last, with its epoch.
    event_time: Option<(i64, Option<DateTime<Utc>>)>,
    /// Record offsets that the sink has, by partition.
    pub(super) has: BTreeSet<(i32, i64)>,
    assigned: BTreeSet<(i64, i32, CheckpointId)>,
    /// Whether partitions are held back that are ahead of the others.
    pub(super) aligns: bool,
    /// Partitions that a consumer has left, and up to where it had fetched them.
    left: BTreeMap<(i64, i32), i64>,
    committed: Option<(i64, CheckpointId)>,
    /// Records that an at-least-once sink got again.
    pub(super) repeats: u64,
    pub(super) checkpoints: u64,
    pub(super) failed_checkpoints: u64,
    pub(super) starts: u64,
    pub(super) moved: u64,
    pub(super) rolled_forward: u64,
    pub(super) skips: u64,
    pub(super) commits: u64,
    pub(super) deaths: u64,
    pub(super) seconds: u64,
}

impl State {
    /// A completed checkpoint is about to be stored; `begins` where no run stands behind it that moves positions.
    pub(super) fn judge_checkpoint(&mut self, checkpoint: &Checkpoint, begins: bool) {
        let (id, kind) = (checkpoint.id, checkpoint.kind);
        self.judge.checkpoints += 1;
        self.judge.starts += u64::from(kind == CheckpointKind::Start);
        self.judge.skips += u64::from(kind == CheckpointKind::Skip);
        let last = self.store.completed.keys().next_back().copied();
        if last.is_some_and(|last| last >= id) {
            self.violation(format_args!("I2: checkpoint {id} is stored after {last:?}"));
        }
        let newest = self.store.newest().cloned();
        let key = (checkpoint.epoch.0, id);
        let licence = self.judge.licences.get(&key).cloned();
        let numbers: Vec<i32> = self.broker.logs.keys().copied().collect();
        for number in numbers {
            let at = super::broker::partition(number);
            let Some(now) = checkpoint.positions.get(&at) else {
                self.violation(format_args!("I2: checkpoint {id} forgets {at}"));
                continue;
            };
            let next = now.next_offset.map(Offset::get);
            if let Some(licence) = &licence
                && licence.planned.get(&number).map(|planned| planned.0) != Some(next)
            {
                self.violation(format_args!(
                    "plan: {at} is stored at {next:?}: {licence:?}"
                ));
            }
            let before = newest
                .as_ref()
                .and_then(|newest| newest.positions.get(&at))
                .map(|before| (before.next_offset.map(Offset::get), before.position_id));
            match before {
                Some((stood, position_id)) if position_id == now.position_id => match (stood, next) {
                    (Some(stood), Some(next)) => {
                        self.judge_advance(begins, id, number, position_id, (stood, next));
                    }
                    (None, None) => {}
                    _ => self.violation(format_args!(
                        "I2: {at} went from {stood:?} to {next:?} in checkpoint {id} without a decision"
                    )),
                },
                Some((None, _)) if next.is_none() => {}
                _ => {
                    if now.position_id != id {
                        let by = now.position_id;
                        self.violation(format_args!("I2: {at} in checkpoint {id} is decided by {by}"));
                    }
                    if let Some(next) = next {
                        let stood = before.and_then(|before| before.0);
                        self.judge_decision(checkpoint, licence.as_ref(), number, stood, next);
                    }
                }
            }
        }
    }

    /// The same run of positions goes on.
    fn judge_advance(
        &mut self,
        begins: bool,
        id: CheckpointId,
        number: i32,
        position_id: CheckpointId,
        (stood, next): (i64, i64),
    ) {
        if next < stood {
            self.violation(format_args!(
                "I2: orders/{number} went back from {stood} to {next} in checkpoint {id}"
            ));
        }
        let at = super::broker::partition(number);
        let sink = self.target.progress.get(&at).copied();
        let sink = sink.filter(|sink| sink.position_id == position_id);
        if self.judge.once && begins {
            let expected = sink.map_or(stood, |sink| sink.next_offset.get());
            self.judge.rolled_forward += u64::from(expected > stood);
            if next != expected {
                self.violation(format_args!(
                    "I1: orders/{number} begins at {next} in checkpoint {id}, the sink stands at {expected}"
                ));
            }
        } else if begins && next != stood {
            self.violation(format_args!(
                "I2: orders/{number} begins at {next} in checkpoint {id}, the one before says {stood}"
            ));
        }
        self.judge_covered(id, number, position_id, stood, next);
    }

    /// Everything before a checkpoint's position is in the sink.
    fn judge_covered(
        &mut self,
        id: CheckpointId,
        number: i32,
        position_id: CheckpointId,
        from: i64,
        to: i64,
    ) {
        let log = &self.broker.logs[&number];
        let missing: Vec<i64> = log
            .records(from, to)
            .into_iter()
            .filter(|at| !self.judge.has.contains(&(number, *at)))
            .collect();
        if !missing.is_empty() || to > log.end().max(from) {
            self.violation(format_args!(
                "I1: checkpoint {id} says orders/{number}:{to}, and the sink does not have {missing:?}"
            ));
        }
        if self.judge.once {
            let at = super::broker::partition(number);
            let sink = self.target.progress.get(&at).copied();
            let is_behind = sink
                .is_some_and(|sink| sink.position_id == position_id && sink.next_offset.get() < to);
            if is_behind {
                self.violation(format_args!(
                    "I1: checkpoint {id} says orders/{number}:{to}, the sink stands at {sink:?}"
                ));
            }
        }
    }

    /// A position is decided from outside.
    fn judge_decision(
        &mut self,
        checkpoint: &Checkpoint,
        licence: Option<&Licence>,
        number: i32,
        stood: Option<i64>,
        next: i64,
    ) {
        let (id, kind) = (checkpoint.id, checkpoint.kind);
        self.judge.decisions.insert((number, id), next);
        let log = &self.broker.logs[&number];
        let (start, end) = (log.start, log.end());
        let is_bad = |at: i64| log.entry(at) == Some(Entry::Bad);
        let by_operator = licence.is_some_and(|licence| licence.moves.contains(&number));
        let allowed = match (kind, stood) {
            // For the first time.
            (_, None) => true,
            (CheckpointKind::Start, Some(stood)) => by_operator || stood < start || stood > end,
            // Exactly one record, and one that nobody can process; what lies before it is in the sink.
            (_, Some(stood)) => {
                let before = log.records(stood, next - 1);
                next > stood
                    && is_bad(next - 1)
                    && before
                        .iter()
                        .all(|at| self.judge.has.contains(&(number, *at)))
            }
        };
        // A number that an operator names is held against the log only where a leader tells its end.
        if !allowed || (next > end && !by_operator) {
            self.violation(format_args!(
                "I2: {kind:?} {id} moves orders/{number} from {stood:?} to {next}, the log is {start}..{end}"
            ));
        }
        self.judge.moved += u64::from(stood.is_some());
    }

    pub(super) fn judge_failed_checkpoint(&mut self, attempt: &FailedCheckpoint) {
        self.judge.failed_checkpoints += 1;
        let code = attempt.failure.code.as_str();
        if ![Code::CheckpointTimeout.as_str(), Code::SinkError.as_str()].contains(&code) {
            self.violation(format_args!("I8: a checkpoint failed with {code}"));
        }
    }

    /// A consumer begins with a partition.
    pub(super) fn judge_assignment(&mut self, epoch: i64, number: i32, next: i64) {
        let at = super::broker::partition(number);
        let of_epoch = self.store.completed.values().rev();
        let stored = of_epoch
            .filter(|checkpoint| checkpoint.epoch.0 == epoch)
            .find_map(|checkpoint| {
                let stored = checkpoint.positions.get(&at)?;
                Some((stored.next_offset?, stored.position_id))
            });
        let before = self.judge.left.remove(&(epoch, number));
        if let (true, Some(fetched), Some((stored, id))) = (self.judge.aligns, before, stored)
            && self.judge.assigned.contains(&(epoch, number, id))
            && (stored.get()..=fetched).contains(&next)
        {
            // It was held back, and goes on where its sink has it: that nothing is passed over tells I6.
            return;
        }
        if stored.map(|(stored, _)| stored.get()) != Some(next) {
            self.violation(format_args!(
                "plan: e{epoch} reads {at} from {next}, stored is {stored:?}"
            ));
        }
        let Some((_, position_id)) = stored else {
            return;
        };
        if !self.judge.assigned.insert((epoch, number, position_id)) {
            self.violation(format_args!("plan: e{epoch} is given {at} twice"));
        }
    }

    /// A consumer leaves a partition.
    pub(super) fn judge_leaving(&mut self, epoch: i64, number: i32, fetched: i64) {
        self.judge.left.insert((epoch, number), fetched);
    }

    /// A record reaches the sink.
    pub(super) fn judge_record(&mut self, epoch: i64, number: i32, at: i64, next: Option<Offset>) {
        let Some(next) = next.map(Offset::get) else {
            return self.violation(format_args!(
                "I6: e{epoch} gives orders/{number}@{at} to a sink that has not heard where it begins"
            ));
        };
        let log = &self.broker.logs[&number];
        let passed = log.records(next, at);
        let entry = log.entry(at);
        if at < next || !passed.is_empty() || entry != Some(Entry::Record) {
            self.violation(format_args!(
                "I6: e{epoch} gives orders/{number}@{at} ({entry:?}) to the sink, which expects {next}; passed over: {passed:?}"
            ));
        }
    }

    /// A barrier reaches the sink: positions stand behind what was given, and pass over no record.
    pub(super) fn judge_barrier(
        &mut self,
        id: CheckpointId,
        number: i32,
        to: Offset,
        read: Option<Offset>,
    ) {
        let Some(read) = read else {
            return self.violation(format_args!(
                "I6: checkpoint {id} has orders/{number}, of which the sink has not heard"
            ));
        };
        let log = &self.broker.logs[&number];
        let passed = log.records(read.get(), to.get());
        if to < read || !passed.is_empty() || to.get() > log.end().max(read.get()) {
            let end = log.end();
            self.violation(format_args!(
                "I6: checkpoint {id} has orders/{number}:{to}, the sink was given everything before {read}; passed over: {passed:?}, the log ends at {end}"
            ));
        }
    }

    /// Records become durable in a sink that keeps progress.
    pub(super) fn judge_step(&mut self, number: i32, from: SinkPosition, to: Offset, rows: &[i64]) {
        let log = &self.broker.logs[&number];
        let expected = log.records(from.next_offset.get(), to.get());
        if expected != rows {
            self.violation(format_args!(
                "I1: orders/{number} from {} to {to} are {expected:?}, the sink gets {rows:?}",
                from.next_offset
            ));
        }
        let held = self.target.progress.get(&super::broker::partition(number));
        if held != Some(&from) {
            let held = held.copied();
            self.violation(format_args!(
                "I4: orders/{number} stands at {held:?} in the sink, a writer moves it from {from:?}"
            ));
        }
        self.judge.has.extend(rows.iter().map(|row| (number, *row)));
    }

    /// Records are sent to a sink that does not know what it has: again only what no checkpoint covers.
    pub(super) fn judge_repeats(&mut self, epoch: i64, rows: &[(i32, i64)]) {
        let newest = self.store.completed.values().rev();
        let newest = newest
            .filter(|known| known.epoch.0 <= epoch)
            .map(|known| (known.id, known.offsets()))
            .next();
        for (number, at) in rows {
            let Some((id, offsets)) = &newest else {
                continue;
            };
            let covered = offsets.get(&super::broker::partition(*number));
            if covered.is_some_and(|covered| *at < covered.get()) {
                self.violation(format_args!(
                    "I1: e{epoch} sends orders/{number}@{at}, which checkpoint {id} covers"
                ));
            }
        }
    }

    /// Offsets reach the group.
    pub(super) fn judge_commit(&mut self, epoch: i64, offsets: &PartitionOffsets, note: &str) {
        self.judge.commits += 1;
        let id = note.rsplit(':').next().and_then(|id| id.parse().ok());
        let id = CheckpointId(id.unwrap_or(0));
        let stored = self.store.completed.get(&id).map(Checkpoint::offsets);
        if stored.as_ref() != Some(offsets) {
            self.violation(format_args!(
                "I3: e{epoch} commits {offsets:?} as checkpoint {id}, stored is {stored:?}"
            ));
        }
        if let Some((by, last)) = self.judge.committed
            && id < last
        {
            self.violation(format_args!(
                "I3: e{epoch} takes the group back to checkpoint {id}, e{by} had brought it to {last}"
            ));
        }
        self.judge.committed = Some((epoch, id));
    }

    /// Nothing is left to do: the checkpoint, the sink and the group say so.
    pub(super) fn unfinished(&self) -> Option<String> {
        let Some(newest) = self.store.newest() else {
            return Some("there is no checkpoint".to_owned());
        };
        for (number, log) in &self.broker.logs {
            let at = super::broker::partition(*number);
            let next = newest.positions.get(&at).and_then(|at| at.next_offset);
            // Trailing markers may stay untold for ever.
            let unread = |next: i64| log.records(next, log.end());
            if next.is_none_or(|next| !unread(next.get()).is_empty()) {
                return Some(format!(
                    "{at} stands at {next:?}, the log ends at {}",
                    log.end()
                ));
            }
            let committed = self.broker.group.get(number).map(|(next, _)| *next);
            if committed != next.map(Offset::get) {
                return Some(format!(
                    "{at}: the group has {committed:?}, stored is {next:?}"
                ));
            }
        }
        None
    }

    /// The whole of it at the end: each decision's records, once each or at least once.
    pub(super) fn judge_end(&mut self) {
        let decisions = self.judge.decisions.clone();
        let newest: BTreeMap<i32, (CheckpointId, Option<Offset>)> = self
            .store
            .newest()
            .into_iter()
            .flat_map(|newest| &newest.positions)
            .map(|(at, now)| (at.partition, (now.position_id, now.next_offset)))
            .collect();
        for (number, (position_id, next)) in newest {
            let (Some(begin), Some(next)) = (decisions.get(&(number, position_id)), next) else {
                self.violation(format_args!("I2: nobody decided orders/{number}"));
                continue;
            };
            let expected = self.broker.logs[&number].records(*begin, next.get());
            let rows = self.target.rows.get(&number);
            let rows: Vec<i64> = rows
                .into_iter()
                .flatten()
                .filter(|(_, id)| *id == position_id)
                .map(|(at, _)| *at)
                .collect();
            let mut once = rows.clone();
            if !self.judge.once {
                // First occurrences in the order of the log; what came again came after.
                let mut seen = BTreeSet::new();
                once.retain(|at| seen.insert(*at));
                once.sort_unstable();
            }
            let has_all = if self.judge.once {
                once == expected
            } else {
                expected.iter().all(|at| once.binary_search(at).is_ok())
            };
            if !has_all {
                self.violation(format_args!(
                    "I1: at the end orders/{number} from {begin} to {next} are {expected:?}, the sink has {rows:?}"
                ));
            }
        }
    }
}

impl State {
    /// What a run shows of its event time.
    pub(super) fn judge_event_time(&mut self, status: &JobStatus) {
        let Some(shown) = &status.watermark else {
            return;
        };
        let (epoch, now) = (status.epoch.0, shown.timestamp);
        let before = self.judge.event_time.replace((epoch, now));
        let before = before.filter(|(of, _)| *of == epoch);
        let before = before.and_then(|(_, watermark)| watermark);
        if now < before {
            self.violation(format_args!(
                "I5: the watermark went back from {before:?} to {now:?}"
            ));
        }
        let own = status
            .partitions
            .values()
            .filter_map(|live| live.watermark.as_ref());
        let greatest = own.filter_map(|own| own.timestamp).max();
        if now > greatest {
            self.violation(format_args!(
                "I5: the watermark is {now:?}, and no partition is beyond {greatest:?}"
            ));
        }
    }
}
