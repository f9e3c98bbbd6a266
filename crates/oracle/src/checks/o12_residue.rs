//! O12: when everything is quiet, nothing is left over: no open transaction, no idle session in one, no temporary thing.

use crate::{
    facts::Facts,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let quiet = facts.quiet().unwrap_or(u64::MAX);
    // The last look counts: what is left over a moment after the noise may be on its way out.
    let last = facts.residues.iter().rev().find(|(at, _)| *at >= quiet);
    if let Some((_, found)) = last {
        tally.examine();
        for what in *found {
            tally.find(Finding::new(format!("is left over: {what}")));
        }
    }
    tally
}
