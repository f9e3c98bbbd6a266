//! The oracle: reads what a run under faults left behind, and says whether anything was lost, doubled or reordered, and
//! whether the API told the truth meanwhile.
//!
//! It knows nothing of how handover works. It compares four testimonies, each taken by somebody else ([`run`]):
//!
//! - the **journal** of the writer, who knows what went into the topic;
//! - the **reading** of the sink, during the run and at its end;
//! - the **history**: what the store, the consumer group and the API said at which moment, and which faults struck;
//! - the **plan**: what the run promised to be, above all how many faults had to strike.
//!
//! Each check ([`CheckId`]) is a rule of its own with a counter of its own. A check that applies but had nothing to look at
//! fails, and so does a run with fewer effective faults than planned: a quiet test proves nothing.
//!
//! ```
//! use oracle::{Run, judge};
//!
//! # fn of_a_test() -> Run { Run::default() }
//! let run: Run = of_a_test();
//! let verdict = judge(&run);
//! println!("{verdict}");
//! assert!(!verdict.passed(), "an empty run proves nothing");
//! ```

mod checks;
mod facts;
mod files;
mod ranges;
pub mod run;
mod verdict;

pub use files::{FileError, read, write};
pub use ranges::Ranges;
pub use run::Run;
pub use verdict::{CheckId, CheckResult, Finding, Outcome, Verdict};

/// Judges a run: every check that applies to its sink, the number of faults, and the evidence itself.
#[must_use]
pub fn judge(run: &Run) -> Verdict {
    let facts = facts::Facts::of(run);
    let results = checks::ALL
        .iter()
        .map(|check| check.result(&facts))
        .collect();
    Verdict::new(run, facts.problems, results)
}

/// Fingerprint of a record's value, as journal and reading carry it: FNV-1a with 64 bits, in hexadecimal.
///
/// It has to tell a torn or mixed-up value from the right one, not to resist anybody.
#[must_use]
pub fn fingerprint(value: &[u8]) -> String {
    let hash = value.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::fingerprint;

    #[test]
    fn fingerprints_are_fnv_1a() {
        // Vectors of the algorithm's authors.
        assert_eq!(fingerprint(b""), "cbf29ce484222325");
        assert_eq!(fingerprint(b"a"), "af63dc4c8601ec8c");
        assert_eq!(fingerprint(b"foobar"), "85944171f73967e8");
    }
}
