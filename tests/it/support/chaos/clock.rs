//! One clock for all witnesses of a run.

use std::time::Instant;

use oracle::run::Micros;

/// Counts from the beginning of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Micros {
        Micros::try_from(self.0.elapsed().as_micros()).expect("a run of less than 500,000 years")
    }
}
