//! O9: epochs grow with every owner, an epoch has one owner, and an older epoch writes nothing after a newer one was taken.

use std::collections::{BTreeMap, HashSet};

use crate::{
    facts::Facts,
    run::Lease,
    verdict::{Finding, Tally},
};

pub(super) fn examine(facts: &Facts<'_>) -> Tally {
    let mut tally = Tally::default();
    let mut owners: BTreeMap<i64, &str> = BTreeMap::new();
    let mut epoch_before = None;
    let mut known = HashSet::new();
    let mut found = HashSet::new();
    for snapshot in &facts.snapshots {
        let Some(lease) = &snapshot.lease else {
            continue;
        };
        tally.examine();
        if let Some(what) = wrong_lease(lease, epoch_before, &mut owners) {
            tally.find(Finding::new(format!("{what}, at {} us", snapshot.at)));
        }
        for row in snapshot.rows.iter().filter(|row| known.insert(row.id)) {
            // One transaction saw lease and rows: what is new was written after the snapshot before.
            let taken = epoch_before.unwrap_or(row.epoch);
            let what = if row.epoch > lease.epoch {
                format!(
                    "was written under epoch {}, which nobody has taken",
                    row.epoch
                )
            } else if row.epoch < taken {
                format!(
                    "was written under epoch {} after epoch {taken} had been taken",
                    row.epoch
                )
            } else {
                continue;
            };
            found.insert(row.id);
            tally.find(Finding::of_checkpoint(row.id, what));
        }
        epoch_before = epoch_before.max(Some(lease.epoch));
    }
    let mut newest = i64::MIN;
    for row in facts.checkpoints.values() {
        // Both were new in one snapshot.
        if row.epoch < newest && found.insert(row.id) {
            let what = format!("has epoch {}, a checkpoint before it {newest}", row.epoch);
            tally.find(Finding::of_checkpoint(row.id, what));
        }
        newest = newest.max(row.epoch);
    }
    tally
}

fn wrong_lease<'a>(
    lease: &'a Lease,
    epoch_before: Option<i64>,
    owners: &mut BTreeMap<i64, &'a str>,
) -> Option<String> {
    if let Some(before) = epoch_before.filter(|before| *before > lease.epoch) {
        return Some(format!(
            "the epoch went from {before} back to {}",
            lease.epoch
        ));
    }
    let owner = lease.owner.as_deref()?;
    let first = *owners.entry(lease.epoch).or_insert(owner);
    (first != owner).then(|| format!("epoch {} has two owners, {first} and {owner}", lease.epoch))
}
