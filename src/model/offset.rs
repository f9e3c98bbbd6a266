//! The one meaning of an offset: the next record to read.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::topic::TopicPartition;

/// A position in a partition's log: the offset of the **next** record to read.
///
/// The same number stands in checkpoints, in the API and in the group's commits. It is never negative, and it stays
/// below 2^53 so that a JSON number carries it exactly (RFC 8259 section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = i64, minimum = 0)]
pub struct Offset(i64);

impl Offset {
    /// The beginning of a log that has lost nothing.
    pub const ZERO: Self = Self(0);
    /// The largest offset that JSON carries exactly.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Takes a number that is an offset; `None` for a negative one (librdkafka's logical offsets are negative) or one
    /// too large for JSON.
    #[must_use]
    pub fn new(number: i64) -> Option<Self> {
        (0..=Self::MAX.0).contains(&number).then_some(Self(number))
    }

    /// The position after the record at `record_offset`: the only plus-one of the program.
    #[must_use]
    pub fn after(record_offset: i64) -> Option<Self> {
        record_offset.checked_add(1).and_then(Self::new)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }

    /// How many offsets lie from `earlier` up to here; negative when `earlier` lies behind.
    #[must_use]
    pub fn distance_from(self, earlier: Self) -> i64 {
        self.0 - earlier.0
    }

    /// The position `by` offsets away, held inside the possible range.
    #[must_use]
    pub fn shifted(self, by: i64) -> Self {
        Self(self.0.saturating_add(by).clamp(0, Self::MAX.0))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        Self::new(number).ok_or_else(|| {
            serde::de::Error::custom(format!("{number} is no offset: it must lie in 0..2^53"))
        })
    }
}

/// Positions by partition, in the order of topic and partition.
///
/// Ordered, so that logs, JSON and the order of row locks are stable.
pub type PartitionOffsets = BTreeMap<TopicPartition, Offset>;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of all sizes, and those at which something ends.
    fn numbers() -> impl Strategy<Value = i64> {
        let ends = [
            i64::MIN,
            -1,
            0,
            1,
            Offset::MAX.0 - 1,
            Offset::MAX.0,
            Offset::MAX.0 + 1,
            i64::MAX,
        ];
        prop_oneof![
            any::<i64>(),
            -3..1_000_i64,
            prop::sample::select(ends.to_vec())
        ]
    }

    fn offsets() -> impl Strategy<Value = Offset> {
        numbers().prop_filter_map("no offset", Offset::new)
    }

    proptest! {
        #[test]
        fn a_number_is_an_offset_inside_the_range_and_keeps_its_value(number in numbers()) {
            let offset = Offset::new(number);
            prop_assert_eq!(offset.is_some(), (0..1_i64 << 53).contains(&number));
            prop_assert_eq!(offset.map_or(number, Offset::get), number);
            let json = number.to_string();
            prop_assert_eq!(serde_json::from_str::<Offset>(&json).ok(), offset);
        }

        #[test]
        fn what_follows_a_record_is_one_more_or_nothing(record_offset in numbers()) {
            let after = Offset::after(record_offset);
            prop_assert_eq!(after, record_offset.checked_add(1).and_then(Offset::new));
            if let Some(after) = after {
                prop_assert_eq!(after.get() - record_offset, 1);
            }
        }

        #[test]
        fn distances_and_shifts_undo_each_other_inside_the_range(one in offsets(), other in offsets(), by in numbers()) {
            prop_assert_eq!(one.shifted(other.distance_from(one)), other);
            prop_assert_eq!(one.distance_from(other), -other.distance_from(one));
            let shifted = one.shifted(by);
            prop_assert!(Offset::new(shifted.get()).is_some());
            // In the direction that was asked for, and as far as the range goes.
            let goes_there = if by >= 0 { shifted >= one } else { shifted <= one };
            prop_assert!(goes_there);
            let exact = one.get().checked_add(by).and_then(Offset::new);
            prop_assert!(exact.is_none_or(|exact| exact == shifted));
        }
    }

    #[test]
    fn logical_offsets_are_no_offsets() {
        for logical in [-1, -2, -1000, -1001, i64::MIN] {
            assert_eq!(Offset::new(logical), None);
        }
    }

    #[test]
    fn the_position_after_a_record_is_one_more() {
        assert_eq!(Offset::after(0), Offset::new(1));
        assert_eq!(Offset::after(i64::MAX), None);
        assert_eq!(Offset::after(-2), None);
    }

    #[test]
    fn a_shift_stays_inside_the_range() {
        assert_eq!(
            Offset::new(10).map(|offset| offset.shifted(-11)),
            Some(Offset::ZERO)
        );
        assert_eq!(Offset::MAX.shifted(i64::MAX), Offset::MAX);
    }
}
