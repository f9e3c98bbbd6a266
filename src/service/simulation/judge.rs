//! What must hold at each step: the rules by name, held against everything that the models keep.
//!
//! | rule | what it says |
//! |---|---|
//! | I1 | a checkpoint covers only records that the sink has; a sink gets exactly the records of the log, in order |
//! | I2 | checkpoints go on: numbers grow, positions do not go back, none is forgotten, a position is decided anew only by whom it belongs to |
//! | I3 | the group gets the offsets of completed checkpoints, and does not go back |
//! | I4 | who is no longer the owner changes nothing, and is quiet once it knows |
//! | I5 | a watermark does not go back, passes no active partition's, and no record's time |
//! | I6 | between the log and the sink nothing is lost, doubled or reordered (the hand-over) |
//! | I7 | a stop returns in its time and tells what is left |
//! | I8 | a commit to the group fails no checkpoint and ends no run |
//! | I9 | when faults end the job is where it was asked to be, and has read everything |
//! | new partition | one that appears in a job with a checkpoint is read from its first record |
//! | recreated | a position means nothing in another topic of the same name |
//! | end | a bounded run keeps the ends that it began with, reads nothing behind them, and finishes there |
//! | letter | a dead letter is delivered before anything behind its record counts |
//! | limit | a run gives its sink no more in a time than its limits say |
//!
//! What a plan says is what a start stores and a consumer reads from.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    broker::{Entry, Log, creation_of, partition, topic_id},
    world::State,
};
use crate::model::{
    checkpoint::{Checkpoint, CheckpointKind, CheckpointPosition, FailedCheckpoint},
    code::Code,
    ids::CheckpointId,
    job_status::JobStatus,
    offset::{Offset, PartitionOffsets},
    resolver::{SinkPosition, StartReason},
    stop_at::BoundedRun,
};

/// As many subtasks as a job of a scenario may have.
const MOST_SUBTASKS: f64 = 3.0;
/// The least time after which a partition is idle.
const IDLE_AFTER: Duration = Duration::from_millis(1_900);

/// What a start may do that nobody else may.
#[derive(Debug, Clone, Default)]
pub(super) struct Licence {
    /// Partitions that an operator moves.
    pub(super) moves: BTreeSet<i32>,
    /// What the plan says of each partition.
    pub(super) planned: BTreeMap<i32, (Option<i64>, StartReason)>,
}

/// What becomes of a record that cannot be processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum OnBad {
    #[default]
    Stop,
    Skip,
    Letter,
}

/// A position that was decided.
#[derive(Debug, Clone, Copy)]
struct Decision {
    begin: i64,
    creation: u32,
}

/// Records that a run gave to its sink, for its limit.
#[derive(Debug, Clone, Copy)]
struct Given {
    since: Instant,
    records: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Judge {
    pub(super) violations: Vec<String>,
    /// Whether the sink keeps progress.
    pub(super) once: bool,
    pub(super) on_bad: OnBad,
    /// Whether the spec moves a position that its log does not hold, also while the job runs.
    pub(super) moves_outside: bool,
    /// Records in a second, where the spec limits them.
    pub(super) limit: Option<u64>,
    /// Where each decision begins.
    decisions: BTreeMap<(i32, CheckpointId), Decision>,
    /// By the number of the start's checkpoint.
    pub(super) licences: BTreeMap<(i64, CheckpointId), Licence>,
    /// Partitions that the run does not read for the moment, as the server shows it: code and position.
    pub(super) parked: BTreeMap<i32, (Code, Option<i64>)>,
    /// Record offsets that the sink has, by creation of the topic and partition.
    pub(super) has: BTreeSet<(u32, i32, i64)>,
    /// Letters that were delivered, the same way.
    letters: BTreeSet<(u32, i32, i64)>,
    /// Where the bounded run of each epoch ends.
    ends: BTreeMap<i64, BTreeMap<i32, i64>>,
    given: BTreeMap<i64, Given>,
    /// The greatest watermarks that were shown, by epoch: of partitions, and of the job.
    watermarks: BTreeMap<(i64, Option<i32>), i64>,
    /// When an epoch's event time was looked at last, and which partitions were active with a watermark then.
    looked: Option<(i64, Instant, BTreeSet<i32>)>,
    assigned: BTreeSet<(i64, i32, CheckpointId)>,
    /// Partitions that a consumer of an epoch has left: it is given them again where it stood, which no checkpoint need have.
    left: BTreeSet<(i64, i32)>,
    committed: Option<(i64, CheckpointId)>,
    /// Records that an at-least-once sink got again.
    pub(super) repeats: u64,
    pub(super) checkpoints: u64,
    pub(super) failed_checkpoints: u64,
    pub(super) starts: u64,
    pub(super) moved: u64,
    /// Of these: by the spec, while the job ran.
    pub(super) moved_in_runs: u64,
    pub(super) rolled_forward: u64,
    pub(super) skips: u64,
    pub(super) commits: u64,
    pub(super) deaths: u64,
    pub(super) seconds: u64,
    /// Partitions that appeared in a job with a checkpoint.
    pub(super) appeared: u64,
    pub(super) recreated: u64,
    pub(super) finished: u64,
    pub(super) lettered: u64,
}

impl State {
    /// The creation of the topic and the log that a decision speaks of; the log as it is where nobody knows the decision.
    fn log_of(&self, number: i32, id: CheckpointId) -> (u32, Option<&Log>) {
        let decision = self.judge.decisions.get(&(number, id));
        let creation = decision.map_or(self.broker.creation, |decision| decision.creation);
        (creation, self.broker.log(creation, number))
    }

    /// What of a range nobody has dealt with: the sink does not have it, and it was not left out as the spec says.
    fn not_dealt_with(&self, number: i32, id: CheckpointId, from: i64, to: i64) -> Vec<i64> {
        let (creation, log) = self.log_of(number, id);
        let Some(log) = log else {
            return Vec::new();
        };
        let open = log.records(from, to).into_iter().filter(|at| {
            let at = (creation, number, *at);
            match (log.entry(at.2), self.judge.on_bad) {
                (Some(Entry::Bad), OnBad::Skip) => false,
                (Some(Entry::Bad), OnBad::Letter) => !self.judge.letters.contains(&at),
                _ => !self.judge.has.contains(&at),
            }
        });
        open.collect()
    }

    /// What of a range was passed over on the way to the sink.
    fn passed_over(&self, number: i32, id: CheckpointId, from: i64, to: i64) -> Vec<i64> {
        let (creation, log) = self.log_of(number, id);
        let Some(log) = log else {
            return Vec::new();
        };
        let passed = log.records(from, to).into_iter().filter(|at| {
            let is_bad = log.entry(*at) == Some(Entry::Bad);
            match self.judge.on_bad {
                OnBad::Skip => !is_bad,
                OnBad::Letter => !is_bad || !self.judge.letters.contains(&(creation, number, *at)),
                OnBad::Stop => true,
            }
        });
        passed.collect()
    }

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
        self.judge_forgotten(checkpoint, newest.as_ref());
        for (at, now) in &checkpoint.positions {
            let number = at.partition;
            let next = now.next_offset.map(Offset::get);
            if let Some(licence) = &licence
                && licence.planned.get(&number).map(|planned| planned.0) != Some(next)
            {
                self.violation(format_args!(
                    "plan: {at} is stored at {next:?}: {licence:?}"
                ));
            }
            let before = newest.as_ref().and_then(|newest| newest.positions.get(at));
            self.judge_position(
                checkpoint,
                licence.as_ref(),
                newest.is_some(),
                number,
                before,
                now,
                begins,
            );
        }
    }

    /// Positions stay in the checkpoints, unless a start drops those of a topic that was created again without the partition.
    fn judge_forgotten(&mut self, checkpoint: &Checkpoint, newest: Option<&Checkpoint>) {
        let before = newest.into_iter().flat_map(|newest| &newest.positions);
        for (at, position) in before {
            if checkpoint.positions.contains_key(at) {
                continue;
            }
            let is_of_another = position
                .topic_id
                .as_ref()
                .is_some_and(|id| *id != topic_id(self.broker.creation));
            // While the topic is gone, one that never had a position is as good as one that was never seen.
            let is_nothing = position.next_offset.is_none() && self.broker.was_unsettled;
            if checkpoint.kind != CheckpointKind::Start || !(is_of_another || is_nothing) {
                let id = checkpoint.id;
                self.violation(format_args!("I2: checkpoint {id} forgets {at}"));
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one partition of two checkpoints, and who is behind the second"
    )]
    fn judge_position(
        &mut self,
        checkpoint: &Checkpoint,
        licence: Option<&Licence>,
        has_state: bool,
        number: i32,
        before: Option<&CheckpointPosition>,
        now: &CheckpointPosition,
        begins: bool,
    ) {
        let id = checkpoint.id;
        let next = now.next_offset.map(Offset::get);
        let at = partition(number);
        let stood = before.and_then(|before| before.next_offset.map(Offset::get));
        match before {
            Some(before) if before.position_id == now.position_id => {
                if before.topic_id != now.topic_id && before.topic_id.is_some() {
                    let (then, now) = (&before.topic_id, &now.topic_id);
                    self.violation(format_args!(
                        "recreated: {at} goes on in checkpoint {id} in another topic: {then:?} then, {now:?} now"
                    ));
                }
                match (stood, next) {
                    (Some(stood), Some(next)) => {
                        self.judge_advance(begins, id, number, now.position_id, (stood, next));
                    }
                    (None, None) => {}
                    _ => self.violation(format_args!(
                        "I2: {at} went from {stood:?} to {next:?} in checkpoint {id} without a decision"
                    )),
                }
            }
            Some(_) if stood.is_none() && next.is_none() => {}
            _ => {
                if now.position_id != id {
                    let by = now.position_id;
                    self.violation(format_args!(
                        "I2: {at} in checkpoint {id} is decided by {by}"
                    ));
                }
                if let Some(next) = next {
                    let is_new = has_state && before.is_none();
                    self.judge_decision(checkpoint, licence, number, is_new, before, (now, next));
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
        let at = partition(number);
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
        let missing = self.not_dealt_with(number, position_id, from, to);
        let (_, log) = self.log_of(number, position_id);
        let end = log.map_or(i64::MAX, Log::end);
        if !missing.is_empty() || to > end.max(from) {
            self.violation(format_args!(
                "I1: checkpoint {id} says orders/{number}:{to}, and the sink does not have {missing:?}"
            ));
        }
        if self.judge.once {
            let sink = self.target.progress.get(&partition(number)).copied();
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
        is_new: bool,
        before: Option<&CheckpointPosition>,
        (now, next): (&CheckpointPosition, i64),
    ) {
        let (id, kind) = (checkpoint.id, checkpoint.kind);
        let creation = now.topic_id.as_ref().map(creation_of);
        let creation = creation.unwrap_or(self.broker.creation);
        let decision = Decision {
            begin: next,
            creation,
        };
        let stood = before.and_then(|before| before.next_offset.map(Offset::get));
        let stood_in = before.and_then(|before| before.topic_id.as_ref().map(creation_of));
        let moved_on = stood.zip(before.map(|before| before.position_id));
        let not_dealt_with = moved_on
            .filter(|(stood, _)| next > *stood)
            .map(|(stood, by)| self.not_dealt_with(number, by, stood, next - 1));
        self.judge.decisions.insert((number, id), decision);
        let Some(log) = self.broker.log(creation, number) else {
            return;
        };
        let (start, end) = (log.start, log.end());
        let by_operator = licence.is_some_and(|licence| licence.moves.contains(&number));
        let is_recreated = stood_in.is_some_and(|then| then != creation);
        let at_an_end = log.began_at(next) || next <= end;
        let is_bad = log.entry(next - 1) == Some(Entry::Bad);
        let is_outside = stood.is_some_and(|stood| stood < start || stood > end);
        let by_spec = self.judge.moves_outside && is_outside && at_an_end;
        if is_new {
            let from_the_first = by_operator || log.began_at(next);
            self.judge.appeared += 1;
            if !from_the_first {
                self.violation(format_args!(
                    "new partition: {kind:?} {id} begins orders/{number} at {next}, the log is {start}..{end}"
                ));
            }
        }
        let allowed = match (kind, stood) {
            // For the first time.
            (_, None) => true,
            // What a spec or an operator decides of another topic: its beginning or its end.
            _ if is_recreated => at_an_end,
            (CheckpointKind::Start, Some(_)) => by_operator || is_outside,
            _ if by_spec => true,
            // Exactly one record, and one that nobody can process; what lies before it is in the sink.
            (_, Some(stood)) => {
                next > stood && is_bad && not_dealt_with.is_some_and(|open| open.is_empty())
            }
        };
        self.judge.recreated += u64::from(is_recreated);
        // A number that an operator names is held against the log only where a leader tells its end.
        if !allowed || (next > end && !by_operator) {
            self.violation(format_args!(
                "I2: {kind:?} {id} moves orders/{number} from {stood:?} to {next}, the log is {start}..{end}"
            ));
        }
        self.judge.moved += u64::from(stood.is_some());
        self.judge.moved_in_runs += u64::from(by_spec && kind != CheckpointKind::Start);
    }

    pub(super) fn judge_failed_checkpoint(&mut self, attempt: &FailedCheckpoint) {
        self.judge.failed_checkpoints += 1;
        let code = attempt.failure.code.as_str();
        if ![Code::CheckpointTimeout.as_str(), Code::SinkError.as_str()].contains(&code) {
            self.violation(format_args!("I8: a checkpoint failed with {code}"));
        }
    }

    /// A consumer begins with a partition. Answers in which creation of the topic its position lies.
    pub(super) fn judge_assignment(&mut self, epoch: i64, number: i32, next: i64) -> u32 {
        let at = partition(number);
        let of_epoch = self.store.completed.values().rev();
        let stored = of_epoch
            .filter(|checkpoint| checkpoint.epoch.0 == epoch)
            .find_map(|checkpoint| {
                let stored = checkpoint.positions.get(&at)?;
                Some((stored.next_offset?, stored.position_id))
            });
        let stands = stored.map(|(stored, _)| stored.get());
        let goes_on = self.judge.left.contains(&(epoch, number)) && Some(next) >= stands;
        if stands.is_none() || (stands != Some(next) && !goes_on) {
            self.violation(format_args!(
                "plan: e{epoch} reads {at} from {next}, stored is {stored:?}"
            ));
        }
        let Some((_, position_id)) = stored else {
            return self.broker.creation;
        };
        if !self.judge.assigned.insert((epoch, number, position_id)) {
            self.violation(format_args!("plan: e{epoch} is given {at} twice"));
        }
        self.log_of(number, position_id).0
    }

    /// A consumer leaves a partition, and may be given it again.
    pub(super) fn judge_leave(&mut self, epoch: i64, number: i32) {
        self.judge.left.insert((epoch, number));
        self.judge
            .assigned
            .retain(|(by, left, _)| (*by, *left) != (epoch, number));
    }

    /// A record reaches the sink.
    pub(super) fn judge_record(
        &mut self,
        epoch: i64,
        number: i32,
        at: i64,
        read: Option<SinkPosition>,
    ) {
        let Some(read) = read else {
            return self.violation(format_args!(
                "I6: e{epoch} gives orders/{number}@{at} to a sink that has not heard where it begins"
            ));
        };
        let (next, id) = (read.next_offset.get(), read.position_id);
        let passed = self.passed_over(number, id, next, at);
        let (_, log) = self.log_of(number, id);
        let entry = log.and_then(|log| log.entry(at));
        if at < next || !passed.is_empty() || entry != Some(Entry::Record) {
            self.violation(format_args!(
                "I6: e{epoch} gives orders/{number}@{at} ({entry:?}) to the sink, which expects {next}; passed over: {passed:?}"
            ));
        }
        let end = self
            .judge
            .ends
            .get(&epoch)
            .and_then(|ends| ends.get(&number))
            .copied();
        if end.is_some_and(|end| at >= end) {
            self.violation(format_args!(
                "end: e{epoch} gives orders/{number}@{at} to the sink, and the run ends at {end:?}"
            ));
        }
        self.judge_rate(epoch);
    }

    fn judge_rate(&mut self, epoch: i64) {
        let Some(limit) = self.judge.limit else {
            return;
        };
        let given = self.judge.given.entry(epoch).or_insert_with(|| Given {
            since: Instant::now(),
            records: 0,
        });
        given.records += 1;
        // A second's worth may be caught up on, and each subtask may have had as much in its hand, let through before and waiting
        // for a slow sink, when the first record came to it.
        let most =
            (given.since.elapsed().as_secs_f64() + MOST_SUBTASKS) * (limit as f64) * 1.1 + 5.0;
        let records = given.records;
        if records as f64 > most {
            self.violation(format_args!(
                "limit: e{epoch} has given {records} records to its sink where {most:.0} were allowed"
            ));
            self.judge.limit = None;
        }
    }

    /// What a run shows of its event time.
    pub(super) fn judge_watermarks(&mut self, status: &JobStatus) {
        let Some(job) = &status.watermark else {
            return;
        };
        let epoch = status.epoch.0;
        let mut least = Some(i64::MAX);
        let mut active = BTreeSet::new();
        let mut known = BTreeSet::new();
        for (at, live) in status.partitions.iter() {
            let Some(shown) = &live.watermark else {
                continue;
            };
            let now = shown.timestamp.map(|now| now.timestamp_millis());
            self.judge_watermark(epoch, Some(at.partition), now);
            let has_ended = live
                .stop_offset
                .is_some_and(|end| live.position >= Some(end));
            if !shown.idle && !has_ended && !status.parked.contains_key(at) {
                least = least.zip(now).map(|(least, now)| least.min(now));
                active.insert(at.partition);
                known.extend(now.map(|_| at.partition));
            }
            let log = self.broker.logs.get(&at.partition);
            let newest = log.and_then(|log| log.written_at.last()).copied();
            let is_ahead = now.zip(newest).is_some_and(|(now, newest)| now >= newest);
            if is_ahead && !self.broker.was_unsettled {
                self.violation(format_args!(
                    "I5: e{epoch} shows {now:?} as the watermark of {at}, whose newest record is of {newest:?}"
                ));
            }
        }
        let now = job.timestamp.map(|now| now.timestamp_millis());
        let before = self.judge.watermarks.get(&(epoch, None)).copied();
        // In so short a time none is idle and comes back. One that came back, or is new, holds back only what comes after.
        let looked = self.judge.looked.replace((epoch, Instant::now(), known));
        let are_the_same = looked.is_some_and(|(by, at, before)| {
            by == epoch && at.elapsed() < IDLE_AFTER && active.is_subset(&before)
        });
        let has_advanced = are_the_same && now.is_some() && now > before;
        if has_advanced && least.is_none_or(|least| now > Some(least)) {
            self.violation(format_args!(
                "I5: the watermark of e{epoch} goes on to {now:?}, the least one of the active partitions is {least:?}"
            ));
        }
        self.judge_watermark(epoch, None, now);
    }

    fn judge_watermark(&mut self, epoch: i64, number: Option<i32>, now: Option<i64>) {
        let Some(now) = now else {
            return;
        };
        let before = self.judge.watermarks.insert((epoch, number), now);
        if before.is_some_and(|before| now < before) {
            self.violation(format_args!(
                "I5: the watermark of {number:?} in e{epoch} goes back from {before:?} to {now}"
            ));
        }
    }

    /// A barrier reaches the sink: positions stand behind what was given, and pass over no record.
    pub(super) fn judge_barrier(
        &mut self,
        id: CheckpointId,
        number: i32,
        to: Offset,
        read: Option<SinkPosition>,
    ) {
        let Some(read) = read else {
            return self.violation(format_args!(
                "I6: checkpoint {id} has orders/{number}, of which the sink has not heard"
            ));
        };
        let (read, by) = (read.next_offset, read.position_id);
        let passed = self.passed_over(number, by, read.get(), to.get());
        let (_, log) = self.log_of(number, by);
        let end = log.map_or(i64::MAX, Log::end);
        if to < read || !passed.is_empty() || to.get() > end.max(read.get()) {
            self.violation(format_args!(
                "I6: checkpoint {id} has orders/{number}:{to}, the sink was given everything before {read}; passed over: {passed:?}, the log ends at {end}"
            ));
        }
    }

    /// Records become durable in a sink that keeps progress.
    pub(super) fn judge_step(&mut self, number: i32, from: SinkPosition, to: Offset, rows: &[i64]) {
        let (creation, log) = self.log_of(number, from.position_id);
        let mut expected = log.map_or_else(Vec::new, |log| {
            let records = log.records(from.next_offset.get(), to.get()).into_iter();
            let left_out = self.judge.on_bad != OnBad::Stop;
            records
                .filter(|at| !left_out || log.entry(*at) != Some(Entry::Bad))
                .collect()
        });
        if log.is_none() {
            expected = rows.to_vec();
        }
        if expected != rows {
            self.violation(format_args!(
                "I1: orders/{number} from {} to {to} are {expected:?}, the sink gets {rows:?}",
                from.next_offset
            ));
        }
        let held = self.target.progress.get(&partition(number));
        if held != Some(&from) {
            let held = held.copied();
            self.violation(format_args!(
                "I4: orders/{number} stands at {held:?} in the sink, a writer moves it from {from:?}"
            ));
        }
        let rows = rows.iter().map(|row| (creation, number, *row));
        self.judge.has.extend(rows);
    }

    /// A record reaches a sink that keeps no progress.
    pub(super) fn judge_taken(&mut self, number: i32, at: i64, id: CheckpointId) {
        let (creation, _) = self.log_of(number, id);
        if !self.judge.has.insert((creation, number, at)) {
            self.judge.repeats += 1;
        }
    }

    /// A dead letter is delivered.
    pub(super) fn judge_letter(&mut self, number: i32, at: i64) {
        let newest = self.store.newest();
        let position = newest.and_then(|newest| newest.positions.get(&partition(number)));
        let creation = position.and_then(|position| position.topic_id.as_ref().map(creation_of));
        let creation = creation.unwrap_or(self.broker.creation);
        let entry = self
            .broker
            .log(creation, number)
            .and_then(|log| log.entry(at));
        if entry != Some(Entry::Bad) {
            self.violation(format_args!(
                "letter: orders/{number}@{at} is written as a dead letter, and is {entry:?}"
            ));
        }
        self.judge.lettered += 1;
        self.judge.letters.insert((creation, number, at));
    }

    /// Records are sent to a sink that does not know what it has: again only what no checkpoint covers.
    pub(super) fn judge_repeats(&mut self, epoch: i64, rows: &[(i32, i64, CheckpointId)]) {
        let mut newest = self.store.completed.values().rev();
        let newest = newest.find(|known| known.epoch.0 <= epoch).cloned();
        let Some(newest) = newest else {
            return;
        };
        for (number, at, by) in rows {
            let Some(covered) = newest.positions.get(&partition(*number)) else {
                continue;
            };
            let is_of_another =
                self.log_of(*number, *by).0 != self.log_of(*number, covered.position_id).0;
            let next = covered.next_offset.map(Offset::get);
            if !is_of_another && next.is_some_and(|next| *at < next) {
                let id = newest.id;
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
        let unsettled = self.broker.was_unsettled;
        let is_of_it = stored.as_ref().is_some_and(|stored| {
            // Offsets of a topic that is gone, or is another one, may be left out.
            stored.iter().all(|(at, next)| match offsets.get(at) {
                Some(committed) => committed == next,
                None => unsettled,
            }) && offsets.keys().all(|at| stored.contains_key(at))
        });
        if !is_of_it {
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

    /// A start stores where a bounded run ends: where it did before, unless it says itself where to begin.
    pub(super) fn judge_ends(&mut self, checkpoint: &Checkpoint, run: &BoundedRun) {
        let ends: BTreeMap<i32, i64> = run
            .ends
            .iter()
            .map(|(at, end)| (at.partition, end.stop_offset.get()))
            .collect();
        let key = (checkpoint.epoch.0, checkpoint.id);
        let licence = self.judge.licences.get(&key).cloned().unwrap_or_default();
        let before = self.store.bounded.as_ref().map(BoundedRun::stop_offsets);
        // Nothing goes on where there is nothing to go on from.
        let goes_on = before.filter(|_| self.store.newest().is_some());
        for (at, then) in goes_on.into_iter().flatten() {
            let now = ends.get(&at.partition).copied();
            if !licence.moves.contains(&at.partition) && now != Some(then.get()) {
                let id = checkpoint.id;
                self.violation(format_args!(
                    "end: {at} was to end at {then}, the start {id} says {now:?}"
                ));
            }
        }
        self.judge.ends.insert(checkpoint.epoch.0, ends);
    }

    /// A bounded run is said to be finished: the newest checkpoint has each partition at its end, and nowhere else.
    pub(super) fn judge_finish(&mut self, epoch: i64) {
        self.judge.finished += 1;
        let newest = self.store.newest().cloned();
        let Some(run) = self.store.bounded.clone() else {
            return self.violation(format_args!("end: e{epoch} has finished, and has no ends"));
        };
        for (at, end) in run.stop_offsets() {
            let (number, end) = (at.partition, end.get());
            let position = newest.as_ref().and_then(|newest| newest.positions.get(&at));
            let (begin, next) = position.map_or((0, None), |position| {
                let decision = self.judge.decisions.get(&(number, position.position_id));
                let begin = decision.map_or(0, |decision| decision.begin);
                (begin, position.next_offset.map(Offset::get))
            });
            // One that begins behind its end reads nothing.
            if next != Some(end.max(begin)) {
                self.violation(format_args!(
                    "end: e{epoch} has finished, {at} stands at {next:?} and was to end at {end}"
                ));
            }
        }
    }

    /// Nothing is left to do: the checkpoint, the sink and the group say so. Partitions that are parked are not asked about
    /// where they are let be.
    pub(super) fn unfinished(&self, let_be: &BTreeSet<i32>) -> Option<String> {
        let Some(newest) = self.store.newest() else {
            return Some("there is no checkpoint".to_owned());
        };
        for (number, log) in &self.broker.logs {
            if let_be.contains(number) {
                continue;
            }
            let at = partition(*number);
            let stored = newest.positions.get(&at);
            let of_another = stored
                .and_then(|stored| stored.topic_id.as_ref())
                .map(creation_of);
            if of_another.is_some_and(|then| then != self.broker.creation) {
                return Some(format!(
                    "{at} stands in a topic that is no more: {of_another:?}"
                ));
            }
            let next = stored.and_then(|at| at.next_offset);
            let run = self.store.bounded.as_ref();
            let end = run.and_then(|run| run.ends.get(&at));
            if run.is_some() && end.is_none() {
                // It appeared after the run had begun, and is no part of it.
                continue;
            }
            let end = end.map(|end| end.stop_offset.get());
            // Trailing markers may stay untold for ever.
            let unread = |next: i64| log.records(next, end.unwrap_or_else(|| log.end()));
            if next.is_none_or(|next| !unread(next.get()).is_empty()) {
                return Some(format!(
                    "{at} stands at {next:?}, the log ends at {}",
                    log.end()
                ));
            }
            let committed = self.broker.group.get(number).map(|(next, _)| *next);
            if let_be.is_empty() && committed != next.map(Offset::get) {
                return Some(format!(
                    "{at}: the group has {committed:?}, stored is {next:?}"
                ));
            }
        }
        None
    }

    /// The whole of it at the end: each decision's records, once each or at least once.
    pub(super) fn judge_end(&mut self) {
        let newest: BTreeMap<i32, (CheckpointId, Option<Offset>)> = self
            .store
            .newest()
            .into_iter()
            .flat_map(|newest| &newest.positions)
            .map(|(at, now)| (at.partition, (now.position_id, now.next_offset)))
            .collect();
        for (number, (position_id, next)) in newest {
            let decision = self.judge.decisions.get(&(number, position_id)).copied();
            let (Some(decision), Some(next)) = (decision, next) else {
                self.violation(format_args!("I2: nobody decided orders/{number}"));
                continue;
            };
            let begin = decision.begin;
            let Some(log) = self.broker.log(decision.creation, number) else {
                continue;
            };
            let expected: Vec<i64> = log
                .records(begin, next.get())
                .into_iter()
                .filter(|at| log.entry(*at) != Some(Entry::Bad) || self.judge.on_bad == OnBad::Stop)
                .collect();
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
            let open = self.not_dealt_with(number, position_id, begin, next.get());
            if !has_all || !open.is_empty() {
                self.violation(format_args!(
                    "I1: at the end orders/{number} from {begin} to {next} are {expected:?}, the sink has {rows:?}, nobody has dealt with {open:?}"
                ));
            }
        }
    }
}
