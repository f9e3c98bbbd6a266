//! What several checks need to know of a run, worked out once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::run::{
    ApiAnswer, Checkpoint, Counters, Event, Fate, Fault, GroupSample, Look, Micros, Move, Row, Run,
    Snapshot, Status, Written,
};

/// Offsets that the job read in one go: from where somebody placed it to where it was taken away again, or to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The first offset.
    pub(crate) start: i64,
    /// Behind the last offset that a completed checkpoint covers: everything below must be in the sink.
    pub(crate) end: i64,
    /// Behind the last offset that may be in the sink.
    pub(crate) limit: i64,
}

impl Segment {
    fn holds(&self, offset: i64) -> bool {
        (self.start..self.end).contains(&offset)
    }

    fn admits(&self, offset: i64) -> bool {
        (self.start..self.limit).contains(&offset)
    }
}

/// A run, sorted and indexed.
pub(crate) struct Facts<'a> {
    pub(crate) run: &'a Run,
    /// What is wrong with the testimonies themselves.
    pub(crate) problems: Vec<String>,
    pub(crate) written: HashMap<(i32, u64), &'a Written>,
    /// The rows of this run by partition, in the sink's order.
    pub(crate) rows: BTreeMap<i32, Vec<&'a Row>>,
    pub(crate) present: HashSet<(i32, u64)>,
    pub(crate) looks: Vec<&'a Look>,
    pub(crate) snapshots: Vec<&'a Snapshot>,
    /// For each snapshot the newest completed checkpoint up to it.
    pub(crate) newest: Vec<Option<i64>>,
    pub(crate) groups: Vec<&'a GroupSample>,
    pub(crate) answers: Vec<&'a ApiAnswer>,
    pub(crate) faults: Vec<&'a Fault>,
    pub(crate) moves: Vec<&'a Move>,
    /// Records that operators asked to leave out: partition and offset.
    pub(crate) skips: BTreeSet<(i32, i64)>,
    pub(crate) counters: Vec<&'a Counters>,
    pub(crate) residues: Vec<(Micros, &'a [String])>,
    pub(crate) writer_ended: Option<Micros>,
    /// Every checkpoint as it was seen last.
    pub(crate) checkpoints: BTreeMap<i64, &'a Checkpoint>,
    /// Every checkpoint in all forms in which it was seen.
    pub(crate) versions: BTreeMap<i64, Vec<&'a Checkpoint>>,
    pub(crate) segments: BTreeMap<i32, Vec<Segment>>,
}

impl<'a> Facts<'a> {
    pub(crate) fn of(run: &'a Run) -> Self {
        let mut facts = Self {
            run,
            problems: Vec::new(),
            written: HashMap::new(),
            rows: BTreeMap::new(),
            present: HashSet::new(),
            looks: run.looks.iter().collect(),
            snapshots: Vec::new(),
            newest: Vec::new(),
            groups: Vec::new(),
            answers: Vec::new(),
            faults: Vec::new(),
            moves: Vec::new(),
            skips: BTreeSet::new(),
            counters: Vec::new(),
            residues: Vec::new(),
            writer_ended: None,
            checkpoints: BTreeMap::new(),
            versions: BTreeMap::new(),
            segments: BTreeMap::new(),
        };
        facts.index_journal();
        facts.index_rows();
        facts.index_history();
        facts.index_checkpoints();
        facts
    }

    fn index_journal(&mut self) {
        let mut counts: BTreeMap<i32, (u64, u64)> = BTreeMap::new();
        for written in &self.run.journal {
            let (count, last) = counts.entry(written.p).or_default();
            *count += 1;
            *last = (*last).max(written.seq);
            let twice = self
                .written
                .insert((written.p, written.seq), written)
                .is_some();
            if twice {
                self.problems.push(format!(
                    "the journal has partition {} seq {} twice",
                    written.p, written.seq
                ));
            }
            if written.fate == Fate::Acked && written.offset.is_none() {
                self.problems.push(format!(
                    "the journal has no offset for the acknowledged partition {} seq {}",
                    written.p, written.seq
                ));
            }
        }
        for (partition, (count, last)) in counts {
            if count != last + 1 {
                self.problems.push(format!(
                    "the journal has {count} records of partition {partition}, but seqs up to {last}"
                ));
            }
        }
        if self.written.is_empty() {
            self.problems.push("the journal is empty".to_owned());
        }
    }

    fn index_rows(&mut self) {
        for row in self
            .run
            .rows
            .iter()
            .filter(|row| row.run == self.run.plan.run)
        {
            self.rows.entry(row.p).or_default().push(row);
            self.present.insert((row.p, row.seq));
        }
        for rows in self.rows.values_mut() {
            // Rows without an order stay as they were read.
            rows.sort_by_key(|row| row.order);
        }
        self.looks.sort_by_key(|look| look.at);
    }

    fn index_history(&mut self) {
        for event in &self.run.history {
            match event {
                Event::Store(snapshot) => self.snapshots.push(snapshot),
                Event::Group(sample) => self.groups.push(sample),
                Event::Api(answer) => self.answers.push(answer),
                Event::Fault(fault) => self.faults.push(fault),
                Event::Move(moved) => self.moves.push(moved),
                Event::Skip(skip) => drop(self.skips.insert((skip.partition, skip.offset))),
                Event::WriterEnded { at } => self.writer_ended = Some(*at),
                Event::Residue { at, found } => self.residues.push((*at, found)),
                Event::Counters(counters) => self.counters.push(counters),
            }
        }
        self.snapshots.sort_by_key(|snapshot| snapshot.began);
        self.groups.sort_by_key(|sample| sample.began);
        self.answers.sort_by_key(|answer| answer.began);
        self.moves.sort_by_key(|moved| moved.at);
        self.residues.sort_by_key(|(at, _)| *at);
        if self.writer_ended.is_none() {
            self.problems
                .push("the history does not say when the writer ended".to_owned());
        }
    }

    fn index_checkpoints(&mut self) {
        let mut newest = None;
        for snapshot in &self.snapshots {
            for row in &snapshot.rows {
                self.checkpoints.insert(row.id, row);
                self.versions.entry(row.id).or_default().push(row);
                if row.status == Status::Completed {
                    newest = newest.max(Some(row.id));
                }
            }
            self.newest.push(newest);
        }
        let mut deciders: BTreeMap<i32, i64> = BTreeMap::new();
        let completed: Vec<&Checkpoint> = self.completed().collect();
        for row in completed {
            for (partition, position) in &row.vector {
                let Some(offset) = position.next_offset else {
                    continue;
                };
                let segments = self.segments.entry(*partition).or_default();
                let decider = deciders.insert(*partition, position.position_id);
                match segments.last_mut() {
                    Some(last) if decider == Some(position.position_id) => last.end = offset,
                    Some(last) => {
                        let skipped = offset - 1;
                        if skipped >= last.end && self.skips.contains(&(*partition, skipped)) {
                            // A record is left out where the job stands: everything before it is in the sink.
                            last.end = skipped;
                        }
                        segments.push(Segment::at(offset));
                    }
                    None => {
                        if position.position_id != row.id && row.kind != "start" {
                            self.problems.push(format!(
                                "the history begins in the middle: checkpoint {} of partition {partition} was decided by {}",
                                row.id, position.position_id
                            ));
                        }
                        segments.push(Segment::at(offset));
                    }
                }
            }
        }
        for (partition, segments) in &mut self.segments {
            // Before its last move the sink may have been ahead of the checkpoint, and the move said how far.
            let left = self
                .moves
                .iter()
                .filter_map(|moved| moved.left.get(partition));
            let left: Vec<i64> = left.copied().collect();
            for segment in segments.iter_mut() {
                segment.limit = segment.end;
            }
            let moved = segments.len().saturating_sub(1);
            for (segment, left) in segments.iter_mut().take(moved).zip(left) {
                segment.limit = segment.limit.max(left);
            }
        }
        if self.segments.is_empty() {
            self.problems
                .push("the history has no completed checkpoint".to_owned());
        }
    }

    /// The completed checkpoints, oldest first.
    pub(crate) fn completed(&self) -> impl Iterator<Item = &'a Checkpoint> {
        self.checkpoints
            .values()
            .copied()
            .filter(|row| row.status == Status::Completed)
    }

    /// Completed checkpoints with ids from `from` to `to`, both included.
    pub(crate) fn completed_between(
        &self,
        from: Option<i64>,
        to: Option<i64>,
    ) -> impl Iterator<Item = &'a Checkpoint> {
        let range = match to {
            Some(to) => from.unwrap_or(0).min(to)..to + 1,
            None => 0..0,
        };
        self.checkpoints
            .range(range)
            .map(|(_, row)| *row)
            .filter(|row| row.status == Status::Completed)
    }

    /// The last positions that a completed checkpoint has.
    pub(crate) fn final_vector(&self) -> BTreeMap<i32, i64> {
        let ends = self.segments.iter();
        ends.filter_map(|(partition, segments)| Some((*partition, segments.last()?.end)))
            .collect()
    }

    /// Whether a completed checkpoint says that this record went through.
    pub(crate) fn is_covered(&self, partition: i32, offset: i64) -> bool {
        self.segments_of(partition)
            .iter()
            .any(|segment| segment.holds(offset))
    }

    /// How often the record may be in an exactly-once sink: once for each time the job was told to read it.
    pub(crate) fn times_admitted(&self, partition: i32, offset: i64) -> usize {
        let segments = self.segments_of(partition).iter();
        segments.filter(|segment| segment.admits(offset)).count()
    }

    /// Where the job began to read a partition, for the first time.
    pub(crate) fn first_read(&self, partition: i32) -> Option<i64> {
        self.segments_of(partition)
            .first()
            .map(|segment| segment.start)
    }

    /// The segment in which the record comes first.
    pub(crate) fn segment(&self, partition: i32, offset: i64) -> Option<usize> {
        self.segments_of(partition)
            .iter()
            .position(|segment| segment.admits(offset))
    }

    fn segments_of(&self, partition: i32) -> &[Segment] {
        self.segments.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// The last snapshot that was over at `time`.
    pub(crate) fn snapshot_before(&self, time: Micros) -> Option<usize> {
        self.snapshots
            .partition_point(|snapshot| snapshot.at <= time)
            .checked_sub(1)
    }

    /// The first snapshot that began at `time` or later.
    pub(crate) fn snapshot_after(&self, time: Micros) -> Option<usize> {
        let index = self
            .snapshots
            .partition_point(|snapshot| snapshot.began < time);
        (index < self.snapshots.len()).then_some(index)
    }

    /// When nothing disturbed the run any more: the writer was done and every fault had healed.
    pub(crate) fn quiet(&self) -> Option<Micros> {
        let healed = self
            .faults
            .iter()
            .map(|fault| fault.healed.unwrap_or(fault.at));
        Some(self.writer_ended?.max(healed.max().unwrap_or(0)))
    }
}

impl Segment {
    fn at(start: i64) -> Self {
        Self {
            start,
            end: start,
            limit: start,
        }
    }
}
