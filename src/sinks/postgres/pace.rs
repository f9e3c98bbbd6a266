//! How many rows one transaction has: as many as the spec allows, and fewer where the target is too slow for so many.
//!
//! A statement that runs into its time limit is given up whole, so the same rows would be tried for ever. Halving them ends
//! with as many as the target gets through with, and it begins before the limit is reached. What was taken away comes back
//! by quarters as long as transactions are quick.

use std::time::Duration;

use super::session::STATEMENT_MS;

/// A transaction that took longer than this part of a statement's limit is followed by a smaller one.
const SLOW: Duration = Duration::from_millis(STATEMENT_MS / 2);
/// One that took less than this part of it may be followed by a larger one.
const QUICK: Duration = Duration::from_millis(STATEMENT_MS / 8);

/// The size of a flusher's transactions.
pub(super) struct Pace {
    /// By the spec.
    most: usize,
    rows: usize,
}

impl Pace {
    pub(super) fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { most, rows: most }
    }

    /// How many rows the next transaction has at most.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// A transaction of so many rows was committed after this time.
    pub(super) fn took(&mut self, rows: usize, time: Duration) {
        if time > SLOW {
            self.rows = self.rows.min(half(rows));
        } else if time < QUICK && rows >= self.rows {
            self.rows = (self.rows + self.rows / 4 + 1).min(self.most);
        }
    }

    /// A transaction of so many rows was given up because it took too long. Says what comes of it.
    pub(super) fn too_slow(&mut self, rows: usize) -> String {
        self.rows = self.rows.min(half(rows));
        if rows <= 1 {
            return "that was one row alone; look at the table's triggers, indexes and locks"
                .to_owned();
        }
        format!(
            "{rows} rows in one transaction (sink.batch.max_rows: {}) took too long, the next one has {} at most; look at the \
             table's triggers, indexes and locks, and set a smaller sink.batch.max_rows if they cannot be quicker",
            self.most, self.rows
        )
    }
}

fn half(rows: usize) -> usize {
    (rows / 2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_slow_is_halved_down_to_one_row_and_comes_back_slowly() {
        let mut pace = Pace::new(20_000);
        let said = pace.too_slow(14_700);
        assert_eq!(pace.rows(), 7_350);
        assert!(
            said.contains("max_rows: 20000") && said.contains("7350"),
            "{said}"
        );
        pace.took(7_350, Duration::from_secs(31));
        assert_eq!(pace.rows(), 3_675);
        // Neither slow nor quick; quick, but with fewer rows than allowed.
        pace.took(3_675, Duration::from_secs(15));
        pace.took(10, Duration::from_millis(1));
        assert_eq!(pace.rows(), 3_675);
        pace.took(3_675, Duration::from_secs(1));
        assert_eq!(pace.rows(), 4_594);
        for _ in 0..10 {
            pace.took(pace.rows(), Duration::from_secs(1));
        }
        assert_eq!(pace.rows(), 20_000);
        for _ in 0..15 {
            pace.too_slow(pace.rows());
        }
        assert_eq!(pace.rows(), 1);
        let said = pace.too_slow(1);
        assert_eq!(pace.rows(), 1);
        assert!(said.contains("one row alone"), "{said}");
    }
}
