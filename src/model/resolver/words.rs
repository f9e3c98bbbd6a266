//! A decision in one sentence, as the plan and the report of a start tell it.

use super::{ResolvedStart, StartBasis, StartInputs, StartReason, blockers};
use crate::model::{code::Code, topic::TopicPartition};

/// Said where the positions of what is gone were to be dropped and there are none.
pub(super) const NOTHING_FORGOTTEN: &str =
    "nothing is forgotten: no position is stored of a partition that does not exist";

pub(super) fn summary(inputs: &StartInputs<'_>, resolved: &ResolvedStart) -> String {
    let mode = inputs.startup_mode.name();
    let from = inputs.from.name();
    let on = if inputs.covered.is_some() {
        " on the partitions named"
    } else {
        ""
    };
    let mut text = match (resolved.basis, resolved.checkpoint) {
        (StartBasis::Checkpoint, Some(id)) if inputs.covered.is_none() => {
            format!("resume from checkpoint {id}; the startup mode ({mode}) is not used")
        }
        (StartBasis::Checkpoint, Some(id)) => format!("resume from checkpoint {id}{on}"),
        (StartBasis::Checkpoint, None) => "the checkpoint asked for does not exist".to_owned(),
        (StartBasis::OneShot, _) if inputs.state_use.is_off() => {
            format!(
                "begin from {from}{on}, once; checkpoints are off, so it counts for this run alone"
            )
        }
        (StartBasis::OneShot, _) => format!("begin from {from}{on}, once"),
        (StartBasis::StartupMode, _) if inputs.state_use.is_off() => {
            format!("checkpoints are off: begin by the startup mode ({mode})")
        }
        (StartBasis::StartupMode, _) => {
            format!("no checkpoint: begin by the startup mode ({mode})")
        }
    };
    if let Some(id) = resolved.set_aside {
        let others = match inputs.covered {
            Some(_) if !inputs.state_use.is_off() => "; the others resume from",
            Some(_) => "; set aside is",
            None => "; set aside is",
        };
        text.push_str(&format!("{others} checkpoint {id}"));
    }
    // Without a checkpoint, and where the caller says where to begin, every partition begins anew, and the sentence says so.
    let may_resume = resolved.basis == StartBasis::Checkpoint
        || (inputs.covered.is_some() && !inputs.state_use.is_off());
    if inputs.state_use.is_off() {
        let new = beginning(resolved, StartReason::NewSinceCheckpoint);
        if !new.is_empty() {
            text.push_str(&format!(
                "; new, so from the first record: {}",
                blockers::list(&new)
            ));
        }
    }
    for (reason, one, many) in ANEW {
        let names = beginning(resolved, *reason);
        let why = if names.len() == 1 { one } else { many };
        if may_resume && !names.is_empty() {
            text.push_str(&format!("; {} {why}", blockers::list(&names)));
        }
    }
    for (count, what) in [
        (resolved.totals.replayed, "replayed"),
        (resolved.totals.skipped, "skipped"),
        (resolved.totals.lost, "lost"),
    ] {
        text.push_str(&counted(count, what));
    }
    let gone: Vec<TopicPartition> = resolved
        .partitions
        .iter()
        .filter(|planned| planned.is_gone())
        .map(super::PlannedPartition::topic_partition)
        .collect();
    match gone.len() {
        0 => {}
        1 => text.push_str(&format!(
            "; {} is not there and waits, parked",
            blockers::list(&gone)
        )),
        _ => text.push_str(&format!(
            "; {} are not there and wait, parked",
            blockers::list(&gone)
        )),
    }
    if !resolved.forgotten.is_empty() {
        let dropped: Vec<TopicPartition> = resolved
            .forgotten
            .iter()
            .map(|dropped| TopicPartition::new(dropped.topic.as_str(), dropped.partition))
            .collect();
        text.push_str(&format!(
            "; dropped: what is stored of {}",
            blockers::list(&dropped)
        ));
    }
    match resolved.totals.parked_partitions - gone.len() {
        0 => {}
        1 => text.push_str("; 1 partition stays parked"),
        parked => text.push_str(&format!("; {parked} partitions stay parked")),
    }
    text
}

/// A number of offsets as a part of a sentence; nothing of none.
pub(super) fn counted(count: i64, what: &str) -> String {
    match count {
        0 => String::new(),
        _ => format!("; {count} offsets {what}"),
    }
}

/// Reasons for which a partition does not go on where the checkpoint stands, of one and of several.
const ANEW: &[(StartReason, &str, &str)] = &[
    (
        StartReason::TopicRecreated,
        "begins anew: its topic was created again",
        "begin anew: their topics were created again",
    ),
    (
        StartReason::BelowEarliest,
        "does not resume: its log begins behind the position",
        "do not resume: their logs begin behind the positions",
    ),
    (
        StartReason::BeyondLatest,
        "does not resume: its log ends before the position",
        "do not resume: their logs end before the positions",
    ),
    (
        StartReason::NewSinceCheckpoint,
        "begins at its first record: it is not in the checkpoint",
        "begin at their first records: they are not in the checkpoint",
    ),
];

/// The partitions that begin for this reason, where it is decided.
fn beginning(resolved: &ResolvedStart, reason: StartReason) -> Vec<TopicPartition> {
    let begins = resolved
        .read_partitions()
        .filter(|planned| planned.reason == reason && planned.start_at.is_some());
    begins
        .map(super::PlannedPartition::topic_partition)
        .collect()
}

impl ResolvedStart {
    /// The sentence of a plan: what stands against the start comes before what it would do without that.
    #[must_use]
    pub fn told(&self) -> String {
        let Some(first) = self.blockers.first() else {
            return self.summary.clone();
        };
        let more = match self.blockers.len() - 1 {
            0 => String::new(),
            1 => " (and 1 other blocker)".to_owned(),
            more => format!(" (and {more} other blockers)"),
        };
        // It names no checkpoint to go on from, and nothing would come after it.
        if first.code == Code::CheckpointNotFound {
            return format!("a start is refused: {}{more}", first.summary);
        }
        format!(
            "a start is refused: {}{more}; without that it would {}",
            first.summary,
            self.summary.replacen("no checkpoint: ", "", 1).replacen(
                "checkpoints are off: ",
                "",
                1
            )
        )
    }
}
