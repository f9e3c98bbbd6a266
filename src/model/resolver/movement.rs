//! What a start means for the records: which are read again, which are passed over, which are gone.

use super::LogBounds;
use crate::model::offset::Offset;

/// The three numbers that somebody needs before daring to start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Movement {
    pub(super) replayed: i64,
    pub(super) skipped: i64,
    pub(super) lost: i64,
}

impl Movement {
    /// Measures a start against `read_up_to`, before which everything was read. `start` is `None` while it is open.
    pub(super) fn between(
        read_up_to: Offset,
        start: Option<Offset>,
        bounds: Option<LogBounds>,
    ) -> Self {
        // Without a leader nothing is known to be gone.
        let earliest = bounds.map_or(Offset::ZERO, |bounds| bounds.earliest);
        if let Some(start) = start
            && start <= read_up_to
        {
            // Only what the log holds can be read again: a position beyond its end says nothing about records.
            let end = bounds.map_or(read_up_to, |bounds| bounds.latest.min(read_up_to));
            return Self {
                replayed: end.distance_from(start).max(0),
                ..Self::default()
            };
        }
        let first_unread = read_up_to.max(earliest);
        Self {
            replayed: 0,
            skipped: start.map_or(0, |start| start.distance_from(first_unread).max(0)),
            // What lies between the position and the log's beginning is gone, whatever is decided.
            lost: first_unread.distance_from(read_up_to),
        }
    }

    /// A start that nothing was read before, and whose log does not hold what was asked for: lost is what is gone of that,
    /// skipped what is not. Offsets below 0 never were.
    pub(super) fn of_first_read(
        asked: i64,
        start: Option<Offset>,
        bounds: Option<LogBounds>,
    ) -> Self {
        let Some(bounds) = bounds else {
            return Self::default();
        };
        let first_unread = bounds.earliest.get().max(asked);
        Self {
            lost: (bounds.earliest.get() - asked.max(0)).max(0),
            skipped: start.map_or(0, |start| (start.get() - first_unread).max(0)),
            ..Self::default()
        }
    }
}
