//! O11: what the API said equals some state between request and answer.
//!
//! The last look at the store that was over before the request, and the first that began after the answer, bound what could
//! be true in between. Where an answer says itself that a number is older, the bound is that much earlier.

use crate::{
    facts::Facts,
    run::{ApiAnswer, Checkpoint, Fault, Micros, Said, Snapshot, Status, StoredState, Vector},
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    for answer in &facts.answers {
        let judged = match &answer.said {
            Said::Checkpoints(listed) => checkpoints(facts, answer, listed),
            Said::Offsets {
                checkpoint_as_of,
                group_as_of,
                checkpointed,
                group,
            } => {
                let since = checkpoint_as_of.unwrap_or(answer.began);
                let of_checkpoint = checkpointed
                    .as_ref()
                    .and_then(|said| offsets(facts, answer, since, said));
                let since = group_as_of.unwrap_or(answer.began);
                let of_group = group
                    .as_ref()
                    .and_then(|said| of_group(facts, answer, since, said));
                match of_checkpoint {
                    Some(Err(finding)) => Some(Err(finding)),
                    known => of_group.or(known),
                }
            }
            Said::Job {
                state,
                last_checkpoint,
                under_way,
            } => job(facts, answer, state, (*last_checkpoint, *under_way)),
        };
        let Some(judged) = judged else {
            // Nobody looked at the store before or after.
            continue;
        };
        tally.examine();
        if let Err(finding) = judged {
            let what = format!(
                "{} (asked at {} us, answered at {} us)",
                finding.what, answer.began, answer.at
            );
            tally.find(Finding { what, ..*finding });
        }
    }
    tally
}

/// `None`: nobody can say.
type Judged = Option<Result<(), Box<Finding>>>;

fn wrong(finding: Finding) -> Judged {
    Some(Err(Box::new(finding)))
}

/// The newest completed checkpoint at `since` and at the answer.
fn bounds(
    facts: &Facts<'_>,
    answer: &ApiAnswer,
    since: Micros,
) -> Option<(Option<i64>, Option<i64>)> {
    let before = facts.snapshot_before(since)?;
    let after = facts.snapshot_after(answer.at)?;
    Some((facts.newest[before], facts.newest[after]))
}

fn checkpoints(facts: &Facts<'_>, answer: &ApiAnswer, listed: &[Checkpoint]) -> Judged {
    let completed = listed.iter().filter(|row| row.status == Status::Completed);
    let newest = completed.map(|row| row.id).max();
    let judged = newest_is_true(facts, answer, "/checkpoints", newest);
    if !matches!(judged, Some(Ok(()))) {
        return judged;
    }
    let oldest_known = facts.checkpoints.keys().next().copied();
    for row in listed.iter().filter(|row| Some(row.id) >= oldest_known) {
        let Some(versions) = facts.versions.get(&row.id) else {
            let what = "is listed by /checkpoints, and the store never had it";
            return wrong(Finding::of_checkpoint(row.id, what));
        };
        if !versions.iter().any(|stored| is_shown_by(stored, row)) {
            let what = "is shown by /checkpoints otherwise than the store has it";
            return wrong(Finding::of_checkpoint(row.id, what));
        }
    }
    judged
}

/// A list may leave the positions out.
fn is_shown_by(stored: &Checkpoint, shown: &Checkpoint) -> bool {
    stored.kind == shown.kind
        && stored.status == shown.status
        && stored.epoch == shown.epoch
        && (shown.vector.is_empty() || stored.vector == shown.vector)
}

fn newest_is_true(facts: &Facts<'_>, answer: &ApiAnswer, who: &str, newest: Option<i64>) -> Judged {
    let (from, to) = bounds(facts, answer, answer.began)?;
    if newest < from || newest > to {
        let what = format!("{who} said {newest:?} is newest; it was {from:?} to {to:?}");
        return wrong(Finding {
            checkpoint: newest,
            ..Finding::new(what)
        });
    }
    Some(Ok(()))
}

fn offsets(facts: &Facts<'_>, answer: &ApiAnswer, since: Micros, said: &Vector) -> Judged {
    let (from, to) = bounds(facts, answer, since)?;
    if said.is_empty() && from.is_none() {
        return Some(Ok(()));
    }
    let rows: Vec<&Checkpoint> = facts.completed_between(from, to).collect();
    let shows = |row: &&Checkpoint| {
        said.iter().all(|(partition, offset)| {
            let position = row.vector.get(partition);
            position.and_then(|position| position.next_offset) == Some(*offset)
        })
    };
    if !said.is_empty() && rows.iter().any(shows) {
        return Some(Ok(()));
    }
    // The partition that none of them has, if there is one.
    let odd = said.iter().find(|(partition, offset)| {
        rows.iter().all(|row| {
            let position = row.vector.get(partition);
            position.and_then(|position| position.next_offset) != Some(**offset)
        })
    });
    let what = format!(
        "/offsets said checkpointed {said:?}; no checkpoint from {from:?} to {to:?} has that"
    );
    let finding = Finding::new(what);
    wrong(match odd {
        Some((partition, offset)) => finding.at(*partition, *offset),
        None => finding,
    })
}

fn of_group(facts: &Facts<'_>, answer: &ApiAnswer, since: Micros, said: &Vector) -> Judged {
    // One witness asks, so the answers are in the order of the questions.
    let groups = &facts.groups;
    let before = groups.partition_point(|sample| sample.at <= since);
    let before = before.checked_sub(1).map(|index| groups[index]);
    let after = groups.get(groups.partition_point(|sample| sample.began < answer.at));
    let (Some(before), Some(after)) = (before, after) else {
        return None;
    };
    for (partition, from) in &before.offsets {
        let Some(to) = after.offsets.get(partition) else {
            continue;
        };
        // Between two moves it only grows (O10).
        let (low, high) = (from.min(to), from.max(to));
        let found = said.get(partition);
        if !found.is_some_and(|found| (low..=high).contains(&found)) {
            let what = format!("/offsets said {found:?} for the group; it was {from} to {to}");
            return wrong(Finding::new(what).at(*partition, found.copied().unwrap_or(-1)));
        }
    }
    Some(Ok(()))
}

fn job(
    facts: &Facts<'_>,
    answer: &ApiAnswer,
    state: &str,
    (last_checkpoint, under_way): (Option<i64>, Option<i64>),
) -> Judged {
    let before = facts.snapshots[facts.snapshot_before(answer.began)?];
    let after = facts.snapshots[facts.snapshot_after(answer.at)?];
    let (newest, _) = bounds(facts, answer, answer.began)?;
    let judged = match under_way {
        // What it says to be under way may be stored already: its COMMIT has not been answered, or was just now.
        Some(id) if newest <= Some(id) && last_checkpoint == completed_before(facts, id) => {
            Some(Ok(()))
        }
        _ if last_checkpoint < newest && is_before_unanswered(facts, answer, last_checkpoint) => {
            Some(Ok(()))
        }
        _ => newest_is_true(facts, answer, "the job's view", last_checkpoint),
    };
    let (Some(stored), Some(after)) = (&before.state, &after.state) else {
        return judged;
    };
    // The same state since the same moment: it was nothing else in between.
    if stored != after || stored.state == state {
        return judged;
    }
    if !is_on_its_way(facts, stored, answer, state)
        && !is_as_just_before(facts, stored, answer, state)
    {
        let what = format!(
            "the job was {} all the time, and its view said {state}",
            stored.state
        );
        return wrong(Finding::new(what));
    }
    judged
}

/// Whether the job is on its way to what was asked for, which the server knows a moment before the store.
fn is_on_its_way(facts: &Facts<'_>, stored: &StoredState, answer: &ApiAnswer, state: &str) -> bool {
    let operation = stored.operation.as_deref();
    let is_ordered = |verb: &str| operation == Some(verb) || operation == Some("restart");
    match state {
        "starting" => {
            is_ordered("start")
                || (stored.desired == "running"
                    && (stored.state != "running"
                        || was_struck_since(facts, stored, answer)
                        || was_stored_just_now(facts, stored, answer)))
        }
        "stopping" => {
            is_ordered("stop") || (stored.desired == "stopped" && stored.state != "stopped")
        }
        _ => false,
    }
}

/// Whether this is the state before one that was stored just now.
fn is_as_just_before(
    facts: &Facts<'_>,
    stored: &StoredState,
    answer: &ApiAnswer,
    state: &str,
) -> bool {
    let first = facts.snapshots.iter().position(|look| shows(look, stored));
    let before = first.and_then(|first| facts.snapshots.get(first.checked_sub(1)?));
    let before = before.and_then(|look| look.state.as_ref());
    before.is_some_and(|before| before.state == state) && was_stored_just_now(facts, stored, answer)
}

/// Whether this is the checkpoint before the newest, and a fault struck when that one was stored, less than a second ago: its
/// COMMIT may not have been answered, and then the server cannot know yet.
fn is_before_unanswered(facts: &Facts<'_>, answer: &ApiAnswer, last: Option<i64>) -> bool {
    const UNTIL_IT_LOOKS: Micros = 1_000_000;
    let before = facts.snapshot_before(answer.began);
    let Some(newest) = before.and_then(|index| facts.newest[index]) else {
        return false;
    };
    let first = facts.newest.iter().position(|id| *id == Some(newest));
    // It was stored after the look before, which had not seen it.
    let looked = first.and_then(|first| facts.snapshots.get(first.saturating_sub(1)));
    let stored_after = looked.map_or(0, |look| look.began);
    let struck = |fault: &Fault| {
        fault.at >= stored_after
            && fault.began.unwrap_or(fault.at) <= answer.at
            && answer.began <= fault.at + UNTIL_IT_LOOKS
    };
    last == completed_before(facts, newest) && facts.faults.iter().any(|fault| struck(fault))
}

fn completed_before(facts: &Facts<'_>, id: i64) -> Option<i64> {
    let before = facts.completed_between(None, Some(id - 1));
    before.last().map(|row| row.id)
}

/// Whether a look saw this state, whatever operation was open then.
fn shows(look: &Snapshot, stored: &StoredState) -> bool {
    let seen = look.state.as_ref();
    seen.is_some_and(|seen| (&seen.state, &seen.since) == (&stored.state, &stored.since))
}

/// Whether the state was seen in the store for the first time so shortly before that the server, on a busy machine, may not
/// have read the answer to its COMMIT.
fn was_stored_just_now(facts: &Facts<'_>, stored: &StoredState, answer: &ApiAnswer) -> bool {
    const UNTIL_IT_READS: Micros = 100_000;
    let mut looks = facts.snapshots.iter();
    let first = looks.find(|look| shows(look, stored));
    first.is_some_and(|first| answer.began <= first.began + UNTIL_IT_READS)
}

/// Whether a fault struck since the state was stored: then a stored `running` is a dead process's word, or one whose storing was not
/// answered, and `starting` is right.
fn was_struck_since(facts: &Facts<'_>, stored: &StoredState, answer: &ApiAnswer) -> bool {
    let first = facts.snapshots.iter().position(|look| shows(look, stored));
    first.is_some_and(|first| {
        // It was stored after the look before, which had not seen it.
        let stored_after = facts.snapshots[first.saturating_sub(1)].began;
        let struck = |fault: &Fault| {
            fault.at >= stored_after && fault.began.unwrap_or(fault.at) <= answer.at
        };
        facts.faults.iter().any(|fault| struck(fault))
    })
}
