//! The checks, each a file of its own. They look at the same facts and know nothing of each other, and each keeps to its own
//! kind of fault, so that one defect has one name.

mod o01_lost;
mod o02_duplicate;
mod o03_phantom;
mod o04_order;
mod o05_beyond;
mod o06_live_view;
mod o07_checkpoint_ids;
mod o08_regression;
mod o09_epochs;
mod o10_group;
mod o11_api_truth;
mod o12_residue;
mod o14_liveness;
mod o15_accounting;

use crate::{
    facts::Facts,
    run::Guarantee,
    verdict::{CheckId, CheckResult, Outcome, Tally},
};

/// Which sinks a check says something about.
#[derive(Clone, Copy)]
enum Sinks {
    All,
    /// Those that keep records.
    Keeping,
    ExactlyOnce,
}

/// One rule.
pub(crate) struct Check {
    id: CheckId,
    name: &'static str,
    sinks: Sinks,
    examine: fn(&Facts<'_>) -> Tally,
}

/// All of them. O13 is about the progress topic of a Kafka sink, which there is not.
pub(crate) const ALL: &[Check] = &[
    Check::new(CheckId::O1, "lost", Sinks::Keeping, o01_lost::examine),
    Check::new(
        CheckId::O2,
        "duplicate",
        Sinks::Keeping,
        o02_duplicate::examine,
    ),
    Check::new(CheckId::O3, "phantom", Sinks::Keeping, o03_phantom::examine),
    Check::new(CheckId::O4, "order", Sinks::Keeping, o04_order::examine),
    Check::new(
        CheckId::O5,
        "beyond",
        Sinks::ExactlyOnce,
        o05_beyond::examine,
    ),
    Check::new(
        CheckId::O6,
        "live view",
        Sinks::Keeping,
        o06_live_view::examine,
    ),
    Check::new(
        CheckId::O7,
        "checkpoint ids",
        Sinks::All,
        o07_checkpoint_ids::examine,
    ),
    Check::new(
        CheckId::O8,
        "offset regression",
        Sinks::All,
        o08_regression::examine,
    ),
    Check::new(CheckId::O9, "epochs", Sinks::All, o09_epochs::examine),
    Check::new(
        CheckId::O10,
        "group offsets",
        Sinks::All,
        o10_group::examine,
    ),
    Check::new(
        CheckId::O11,
        "API truth",
        Sinks::All,
        o11_api_truth::examine,
    ),
    Check::new(CheckId::O12, "residue", Sinks::All, o12_residue::examine),
    Check::new(CheckId::O14, "liveness", Sinks::All, o14_liveness::examine),
    Check::new(
        CheckId::O15,
        "accounting",
        Sinks::All,
        o15_accounting::examine,
    ),
];

impl Check {
    const fn new(
        id: CheckId,
        name: &'static str,
        sinks: Sinks,
        examine: fn(&Facts<'_>) -> Tally,
    ) -> Self {
        Self {
            id,
            name,
            sinks,
            examine,
        }
    }

    pub(crate) fn result(&self, facts: &Facts<'_>) -> CheckResult {
        CheckResult {
            id: self.id,
            name: self.name,
            outcome: self.outcome(facts),
        }
    }

    fn outcome(&self, facts: &Facts<'_>) -> Outcome {
        let plan = &facts.run.plan;
        if !self.applies(plan.guarantee) || (self.id == CheckId::O10 && !plan.group_commits) {
            return Outcome::NotForThisSink;
        }
        if let Some(why) = plan.left_out.get(&self.id) {
            return Outcome::LeftOut(why.clone());
        }
        let Tally {
            examined,
            count,
            first,
        } = (self.examine)(facts);
        match (count, examined) {
            (0, 0) => Outcome::Unproved,
            (0, _) => Outcome::Passed { examined },
            _ => Outcome::Failed {
                examined,
                count,
                first,
            },
        }
    }

    fn applies(&self, guarantee: Guarantee) -> bool {
        match self.sinks {
            Sinks::All => true,
            Sinks::Keeping => guarantee != Guarantee::Counted,
            Sinks::ExactlyOnce => guarantee == Guarantee::ExactlyOnce,
        }
    }
}
