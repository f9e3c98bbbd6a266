//! What the oracle answers: a result for each check, and a report that a person can act on.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
};

use serde::{Deserialize, Serialize};

use crate::run::{Event, Run};

/// How many findings of a check are told in full.
const TOLD: usize = 10;

/// The checks, by their numbers in docs/testing.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CheckId {
    /// Every acknowledged record below the final positions is in the sink.
    O1,
    /// No record is in the sink more often than the guarantee allows.
    O2,
    /// Nothing is in the sink that was not written, was aborted, or has another value.
    O3,
    /// Within a partition, records came for the first time in the order in which they were written.
    O4,
    /// An exactly-once sink has nothing at or after the final positions.
    O5,
    /// A concurrent reader saw no gap that filled later, and nothing that went away.
    O6,
    /// Checkpoint ids grow, one row per id, and statuses only go forward.
    O7,
    /// Positions of completed checkpoints never go back, unless an operator moved them.
    O8,
    /// Epochs grow with every owner, and no older epoch writes after a newer one.
    O9,
    /// The group's offset is a completed checkpoint's, never goes back, and ends at the newest.
    O10,
    /// What the API said was true between request and answer.
    O11,
    /// Nothing is left over when everything is quiet.
    O12,
    /// Everything was read soon after the last fault had healed.
    O14,
    /// Records in are records out, skipped, put elsewhere or under way.
    O15,
}

/// One thing that is wrong, and exactly where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// Partition.
    pub partition: Option<i32>,
    /// The record's number within the partition.
    pub seq: Option<u64>,
    /// The record's offset, or the offset that is wrong.
    pub offset: Option<i64>,
    /// The checkpoint.
    pub checkpoint: Option<i64>,
    /// What is wrong.
    pub what: String,
}

impl Finding {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ..Self::default()
        }
    }

    pub(crate) fn of_partition(partition: i32, what: impl Into<String>) -> Self {
        Self {
            partition: Some(partition),
            ..Self::new(what)
        }
    }

    pub(crate) fn of_record(
        partition: i32,
        seq: u64,
        offset: Option<i64>,
        what: impl Into<String>,
    ) -> Self {
        Self {
            seq: Some(seq),
            offset,
            ..Self::of_partition(partition, what)
        }
    }

    pub(crate) fn of_checkpoint(checkpoint: i64, what: impl Into<String>) -> Self {
        Self {
            checkpoint: Some(checkpoint),
            ..Self::new(what)
        }
    }

    pub(crate) fn at(mut self, partition: i32, offset: i64) -> Self {
        self.partition = Some(partition);
        self.offset = Some(offset);
        self
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(partition) = self.partition {
            write!(f, "partition {partition} ")?;
        }
        if let Some(seq) = self.seq {
            write!(f, "seq {seq} ")?;
        }
        if let Some(offset) = self.offset {
            write!(f, "offset {offset} ")?;
        }
        if let Some(checkpoint) = self.checkpoint {
            write!(f, "checkpoint {checkpoint} ")?;
        }
        f.write_str(&self.what)
    }
}

/// The counter of one check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) examined: u64,
    pub(crate) count: u64,
    pub(crate) first: Vec<Finding>,
}

impl Tally {
    /// One more thing was looked at.
    pub(crate) fn examine(&mut self) {
        self.examined += 1;
    }

    /// It is wrong.
    pub(crate) fn find(&mut self, finding: Finding) {
        self.count += 1;
        if self.first.len() < TOLD {
            self.first.push(finding);
        }
    }

    /// One more thing was looked at, and this is whether it is wrong.
    pub(crate) fn check(&mut self, right: bool, finding: impl FnOnce() -> Finding) {
        self.examine();
        if !right {
            self.find(finding());
        }
    }
}

/// How a check came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It looked at this many things, and all were right.
    Passed {
        /// How many.
        examined: u64,
    },
    /// Something is wrong.
    Failed {
        /// How many things it looked at.
        examined: u64,
        /// How many are wrong.
        count: u64,
        /// The first of them.
        first: Vec<Finding>,
    },
    /// It applies, but there was nothing to look at: nothing is proved.
    Unproved,
    /// The plan leaves it out, for this reason.
    LeftOut(String),
    /// It means nothing for a sink with this guarantee.
    NotForThisSink,
}

/// A check and how it came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// Which.
    pub id: CheckId,
    /// What it asks, in short.
    pub name: &'static str,
    /// How it came out.
    pub outcome: Outcome,
}

impl CheckResult {
    fn passed(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed { .. } | Outcome::Unproved)
    }

    fn count(&self) -> u64 {
        match &self.outcome {
            Outcome::Failed { count, .. } => *count,
            Outcome::Passed { .. }
            | Outcome::Unproved
            | Outcome::LeftOut(_)
            | Outcome::NotForThisSink => 0,
        }
    }

    fn examined(&self) -> Option<u64> {
        match &self.outcome {
            Outcome::Failed { examined, .. } | Outcome::Passed { examined } => Some(*examined),
            Outcome::Unproved | Outcome::LeftOut(_) | Outcome::NotForThisSink => None,
        }
    }
}

impl Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, outcome } = self;
        let id = format!("{id:?}");
        match outcome {
            Outcome::Passed { examined } => write!(f, "  {id:<4}{name:<22}ok, {examined} examined"),
            Outcome::Failed {
                examined,
                count,
                first,
            } => {
                write!(
                    f,
                    "  {id:<4}{name:<22}FAILED, {count} findings, {examined} examined"
                )?;
                for finding in first {
                    write!(f, "\n        {finding}")?;
                }
                let untold = count.saturating_sub(first.len() as u64);
                if untold > 0 {
                    write!(f, "\n        and {untold} more")?;
                }
                Ok(())
            }
            Outcome::Unproved => {
                write!(
                    f,
                    "  {id:<4}{name:<22}UNPROVED, there was nothing to examine"
                )
            }
            Outcome::LeftOut(why) => write!(f, "  {id:<4}{name:<22}left out: {why}"),
            Outcome::NotForThisSink => write!(f, "  {id:<4}{name:<22}not for this sink"),
        }
    }
}

/// Faults of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FaultCount {
    planned: u64,
    struck: u64,
    effective: u64,
}

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Every check.
    pub checks: Vec<CheckResult>,
    /// What is wrong with the evidence itself: a journal that contradicts itself, too few faults.
    pub problems: Vec<String>,
    run: String,
    seed: u64,
    versions: BTreeMap<String, String>,
    faults: BTreeMap<String, FaultCount>,
}

impl Verdict {
    pub(crate) fn new(run: &Run, mut problems: Vec<String>, checks: Vec<CheckResult>) -> Self {
        let mut faults: BTreeMap<String, FaultCount> = BTreeMap::new();
        for (kind, planned) in &run.plan.faults {
            faults.entry(kind.clone()).or_default().planned = *planned;
        }
        for event in &run.history {
            if let Event::Fault(fault) = event {
                let count = faults.entry(fault.kind.clone()).or_default();
                count.struck += 1;
                count.effective += u64::from(fault.effective);
            }
        }
        let quiet = faults
            .iter()
            .filter(|(_, count)| count.effective < count.planned);
        problems.extend(quiet.map(|(kind, count)| {
            format!(
                "only {} of {} planned faults of kind {kind} took effect: a quiet test proves nothing",
                count.effective, count.planned
            )
        }));
        Self {
            checks,
            problems,
            run: run.plan.run.clone(),
            seed: run.plan.seed,
            versions: run.plan.versions.clone(),
            faults,
        }
    }

    /// Whether nothing is wrong and everything that applies was proved.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.problems.is_empty() && self.checks.iter().all(CheckResult::passed)
    }

    /// The checks that failed or had nothing to examine.
    #[must_use]
    pub fn failed_checks(&self) -> Vec<CheckId> {
        let failed = self.checks.iter().filter(|check| !check.passed());
        failed.map(|check| check.id).collect()
    }

    /// What a check found: the first ten.
    #[must_use]
    pub fn findings(&self, id: CheckId) -> &[Finding] {
        let found = self.checks.iter().find(|check| check.id == id);
        match found.map(|check| &check.outcome) {
            Some(Outcome::Failed { first, .. }) => first,
            _ => &[],
        }
    }

    fn result(&self, id: CheckId) -> Option<&CheckResult> {
        self.checks.iter().find(|check| check.id == id)
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "run {}, seed {}", self.run, self.seed)?;
        for (what, version) in &self.versions {
            writeln!(f, "  {what} {version}")?;
        }
        writeln!(f, "faults")?;
        for (kind, count) in &self.faults {
            let FaultCount {
                planned,
                struck,
                effective,
            } = count;
            writeln!(
                f,
                "  {kind}: {struck} struck, {effective} effective, {planned} planned"
            )?;
        }
        writeln!(f, "checks")?;
        for check in &self.checks {
            writeln!(f, "{check}")?;
        }
        for problem in &self.problems {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        let judged = self.result(CheckId::O1).and_then(CheckResult::examined);
        if let Some(records) = judged {
            let lost = self.result(CheckId::O1).map_or(0, CheckResult::count);
            let doubled = self.result(CheckId::O2).map_or(0, CheckResult::count);
            writeln!(f, "{lost} lost, {doubled} duplicated of {records}")?;
        }
        f.write_str(if self.passed() { "PASSED" } else { "FAILED" })
    }
}
