//! Where every partition begins, and why: the one function that decides it.
//!
//! The REST start plan, a start, a restart of the server and the recovery after a crash all call [`resolve_positions`] and
//! read the same answer, so a plan cannot promise what a start does not do. It is pure: state, intent and broker facts in,
//! numbers and reasons out. Nothing symbolic ("latest", "group offset") leaves it, so no checkpoint ever holds a
//! placeholder that could mean something else after a restart.
//!
//! The order of precedence, per partition:
//! 1. what the operator asked for this once (`from`, or a pending one-shot start), where it covers the partition;
//! 2. the checkpoint's position, and a sink's own progress where the sink keeps one: the id of the checkpoint that last
//!    decided a position from outside stands beside both, and tells whether they speak of the same run of positions;
//! 3. with a checkpoint that does not hold the partition: the earliest record, whatever the startup mode, because records
//!    may have been written before the partition was noticed (FLIP-288);
//! 4. the startup mode.
//!
//! A job whose checkpoints are off comes to rule 4 by rule 1 alone.
//!
//! A position may be left open only where rule 4 decides it again at the next look: a partition without a leader, under the
//! startup mode. Whatever rule 1 to 3 say of such a partition becomes a number at once or stands against the start, because
//! the checkpoint that is written next remembers numbers and not wishes.
//!
//! The parts: `facts` go in; `decide` says what is wanted for one partition and `place` holds that against its log;
//! `blockers` groups what stands against the start; `movement` counts what is read again or passed over; `ends` says where
//! the partitions of a bounded job end; `without_checkpoints` is about jobs that take none; `uncounted` names what no number
//! holds; `plan` comes out, and `words` tell it.

mod blockers;
mod decide;
mod ends;
mod facts;
mod movement;
mod place;
mod plan;
#[cfg(test)]
mod tests;
mod uncounted;
mod without_checkpoints;
mod words;

pub use ends::{EndInputs, resolve_ends};
pub use facts::{
    BrokerFacts, EndFacts, LogBounds, NeededFacts, Parking, PartitionFacts, ProgressFacts,
    RestorableState, SinkFacts, SinkPosition, SinkProgress, StartPolicies, needed_facts,
};
pub use plan::{
    Blocker, ForgottenPosition, PlanTotals, PlannedParking, PlannedPartition, PlannedRun,
    PlannedSink, ProgressKnown, ResolvedStart, StartBasis, StartReason, StopReason, Warning,
};
pub use uncounted::uncounted;
pub use without_checkpoints::{ReadBefore, StateUse};

use std::collections::BTreeMap;

use super::{
    code::Code,
    job::Isolation,
    start::{PartitionsByTopic, StartFrom},
    startup_mode::StartupMode,
    topic::TopicPartition,
};

/// Everything the decision depends on.
#[derive(Debug, Clone, Copy)]
pub struct StartInputs<'a> {
    /// The job's isolation: `latest` and `to_read` are measured to what it can read.
    pub isolation: Isolation,
    /// The startup mode of the spec.
    pub startup_mode: &'a StartupMode,
    /// The newest completed checkpoint; `None` for a job without checkpoints.
    pub state: Option<&'a RestorableState>,
    /// Whether the job takes checkpoints.
    pub state_use: StateUse<'a>,
    /// The checkpoint that `from: checkpoint` names; `None` for the newest, or if there is none of that number.
    pub chosen: Option<&'a RestorableState>,
    /// What the sink is and holds.
    pub sink: &'a SinkFacts,
    /// What was asked for this once.
    pub from: &'a StartFrom,
    /// Which partitions it covers; `None` for all.
    pub covered: Option<&'a PartitionsByTopic>,
    /// The policies.
    pub policies: StartPolicies,
    /// Which partitions may be left parked by it.
    pub parking: Parking<'a>,
    /// The brokers' answers. [`needed_facts`] does not look at them.
    pub facts: &'a BrokerFacts,
}

/// The checkpoint that the operator asked for.
#[derive(Debug, Clone, Copy)]
enum Named<'a> {
    /// None was asked for.
    Nothing,
    /// This one.
    Found(&'a RestorableState),
    /// One that does not exist.
    Missing,
}

impl<'a> StartInputs<'a> {
    fn named(&self) -> Named<'a> {
        let StartFrom::Checkpoint { checkpoint } = self.from else {
            return Named::Nothing;
        };
        let found = [self.state, self.chosen]
            .into_iter()
            .flatten()
            .find(|known| checkpoint.is_none_or(|id| id == known.id));
        found.map_or(Named::Missing, Named::Found)
    }

    /// The sink's progress, where it may be held against the newest checkpoint.
    fn progress(&self) -> Option<&'a SinkProgress> {
        self.sink.comparable_with(self.state)
    }

    /// What another target than the checkpoint's holds of this job from an earlier time, or under another name.
    fn progress_elsewhere(&self) -> Option<&'a SinkProgress> {
        match &self.sink.progress {
            ProgressFacts::Kept(progress) if self.sink.is_other_than(self.state) => Some(progress),
            ProgressFacts::Kept(_)
            | ProgressFacts::NotKept
            | ProgressFacts::Unknown(_)
            | ProgressFacts::Refused { .. } => None,
        }
    }

    /// Whether `from` speaks of this partition.
    fn covers(&self, partition: &TopicPartition) -> bool {
        self.covered
            .is_none_or(|covered| covered.contains(partition))
    }

    /// Whether `from` sets positions itself, rather than taking them from a checkpoint.
    fn is_one_shot(&self) -> bool {
        match self.from {
            StartFrom::Auto | StartFrom::Checkpoint { .. } => false,
            StartFrom::Earliest
            | StartFrom::Latest
            | StartFrom::Timestamp { .. }
            | StartFrom::Ago { .. }
            | StartFrom::SpecificOffsets { .. }
            | StartFrom::GroupOffsets
            | StartFrom::Shift { .. } => true,
        }
    }

    /// The newest checkpoint, if `from` restores another one.
    fn left_for_another(&self) -> Option<&'a RestorableState> {
        let Named::Found(named) = self.named() else {
            return None;
        };
        self.state.filter(|state| state.id != named.id)
    }
}

/// Decides where every partition begins. See the module.
#[must_use]
pub fn resolve_positions(inputs: &StartInputs<'_>) -> ResolvedStart {
    let mut resolution = decide::Resolution::new(inputs);
    let partitions: Vec<PlannedPartition> = resolution
        .partitions_to_decide()
        .iter()
        .map(|partition| resolution.decide(partition))
        .collect();
    resolution.check_names(&partitions);

    let basis = if inputs.is_one_shot() {
        StartBasis::OneShot
    } else if inputs.state.is_some() || matches!(inputs.from, StartFrom::Checkpoint { .. }) {
        StartBasis::Checkpoint
    } else {
        StartBasis::StartupMode
    };
    let resumed = match inputs.named() {
        Named::Found(named) => Some(named),
        Named::Missing => None,
        Named::Nothing => inputs.state,
    };
    let left = inputs.state_use.left();
    let set_aside = if basis == StartBasis::OneShot {
        inputs.state.or(left)
    } else {
        inputs.left_for_another().or(left)
    };
    let totals = PlanTotals::of(&partitions);
    let mut resolved = ResolvedStart {
        basis,
        checkpoint: resumed.map(|state| state.id),
        set_aside: set_aside.map(|state| state.id),
        summary: String::new(),
        partitions,
        totals,
        forgotten: resolution.dropped_positions(),
        sink: PlannedSink::of(inputs.sink),
        bounded: None,
        blockers: Vec::new(),
        warnings: Vec::new(),
    };
    resolved.summary = words::summary(inputs, &resolved);
    if resolution.forgets_nothing() {
        resolved.summary.push_str("; ");
        resolved.summary.push_str(words::NOTHING_FORGOTTEN);
    }
    resolved.warnings = warnings(inputs, &resolution, &resolved);
    resolved.blockers = resolution.blockers.into_list(inputs, &resolved.partitions);
    let passes_over = without_checkpoints::blocker(inputs, &resolved.partitions);
    resolved.blockers.extend(passes_over);
    resolved
}

fn warnings(
    inputs: &StartInputs<'_>,
    resolution: &decide::Resolution<'_>,
    resolved: &ResolvedStart,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut read = resolved.read_partitions().peekable();
    if resolved.basis == StartBasis::Checkpoint
        && resolved.checkpoint.is_some()
        && read.peek().is_some()
        && !read.any(|planned| resolution.is_held(&planned.topic_partition()))
    {
        warnings.push(Warning {
            code: Code::CheckpointHasNoSubscribedPartition,
            summary: "the checkpoint holds none of the topics read now: every partition begins at its earliest record".to_owned(),
        });
    }
    if let Some(left) = inputs.state_use.left() {
        warnings.push(without_checkpoints::set_aside(left));
    } else if let Some(id) = resolved.set_aside {
        let whole = if inputs.covered.is_some() {
            " for the partitions named"
        } else {
            ""
        };
        warnings.push(Warning {
            code: Code::StateNotUsed,
            summary: format!("checkpoint {id} is set aside{whole}; it is kept, and from=checkpoint with its number is the way back"),
        });
    }
    warnings.extend(about_the_sink(inputs));
    if !resolution.leaderless.is_empty() {
        let names = blockers::list(&resolution.leaderless);
        warnings.push(Warning {
            code: Code::NoLeader,
            summary: format!(
                "no leader answers for {names}; the other partitions go on and these follow"
            ),
        });
    }
    if !resolution.absent.is_empty() {
        let names = blockers::list(&resolution.absent);
        warnings.push(Warning {
            code: Code::PartitionGone,
            summary: format!(
                "{names}: the topic does not exist now; the positions are kept, and reading goes on where it comes back"
            ),
        });
    }
    if !resolution.forgotten.is_empty() {
        let names = blockers::list(&resolution.forgotten);
        warnings.push(Warning {
            code: Code::PartitionGone,
            summary: format!(
                "{names}: not there now, and the positions stored for them are dropped; one that comes later is read from its first record"
            ),
        });
    }
    if resolution.forgets_nothing() {
        warnings.push(Warning {
            code: Code::PartitionGone,
            summary: format!("on_partition_gone=forget: {}", words::NOTHING_FORGOTTEN),
        });
    }
    if !resolution.gone.is_empty() {
        let names = blockers::list(&resolution.gone);
        warnings.push(Warning {
            code: Code::TopicRecreated,
            summary: format!("the topic was created again without {names}; the positions are kept"),
        });
    }
    warnings.extend(about_parked(resolved));
    warnings
}

/// What stays parked, one warning per code.
fn about_parked(resolved: &ResolvedStart) -> Vec<Warning> {
    let mut by_code: BTreeMap<Code, Vec<String>> = BTreeMap::new();
    for parking in resolved.parked().into_values() {
        by_code
            .entry(parking.code)
            .or_default()
            .push(parking.detail);
    }
    let warnings = by_code.into_iter().map(|(code, details)| {
        let parked = match details.len() {
            1 => "it stays parked",
            _ => "they stay parked",
        };
        Warning {
            code,
            summary: format!(
                "{}; {parked} and the others run",
                blockers::sentence(&details)
            ),
        }
    });
    warnings.collect()
}

fn about_the_sink(inputs: &StartInputs<'_>) -> Option<Warning> {
    if let Some(state) = inputs
        .state
        .filter(|state| inputs.sink.is_other_than(Some(state)))
    {
        let (then, now) = (&state.sink_identity, &inputs.sink.identity);
        return Some(Warning {
            code: Code::SinkChanged,
            summary: format!(
                "checkpoint {} was taken with the sink {then}, and it is {now} now: the checkpoint's positions count, and what {now} holds from an earlier time does not",
                state.id
            ),
        });
    }
    if let ProgressFacts::Unknown(why) = &inputs.sink.progress {
        return Some(Warning {
            code: Code::SinkProgressUnknown,
            summary: format!(
                "how far the sink has come is not known ({why}): shown is what the checkpoint says, and a start waits until the sink answers"
            ),
        });
    }
    None
}
