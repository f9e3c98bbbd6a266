//! Sets of numbers that mostly follow each other.

use serde::{Deserialize, Serialize};

/// A set of numbers as ranges with both ends: growing, and with a gap between any two of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        let index = self.0.partition_point(|(from, _)| *from <= number);
        let after = self
            .0
            .get(index)
            .is_some_and(|(from, _)| *from == number + 1);
        match index.checked_sub(1).map(|before| self.0[before].1) {
            Some(to) if number <= to => {}
            Some(to) if number == to + 1 => {
                self.0[index - 1].1 = number;
                if after {
                    self.0[index - 1].1 = self.0.remove(index).1;
                }
            }
            _ if after => self.0[index].0 = number,
            _ => self.0.insert(index, (number, number)),
        }
    }

    /// The largest number.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.0.last().map(|(_, to)| *to)
    }

    /// Whether the number is in it.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        let index = self.0.partition_point(|(_, to)| *to < number);
        self.0.get(index).is_some_and(|(from, _)| *from <= number)
    }

    /// The numbers, growing.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.0.iter().flat_map(|(from, to)| *from..=*to)
    }

    /// Those numbers that the other set has not. Takes as long as there are ranges, not numbers.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut others = other.0.iter().copied().peekable();
        for (from, to) in self.0.iter().copied() {
            let mut next = Some(from);
            while let Some((_, end)) = others.peek() {
                if *end >= from {
                    break;
                }
                others.next();
            }
            while let (Some(start), Some((begin, end))) = (next, others.peek().copied()) {
                if begin > to {
                    break;
                }
                if begin > start {
                    left.push((start, begin - 1));
                }
                next = (end < to).then(|| start.max(end + 1));
                if end > to {
                    // It may cover the next range too.
                    break;
                }
                others.next();
            }
            if let Some(start) = next {
                left.push((start, to));
            }
        }
        Self(left)
    }

    /// The numbers of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut all: Vec<(u64, u64)> = [self.0.as_slice(), other.0.as_slice()].concat();
        all.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match merged.last_mut() {
                Some((_, end)) if from <= *end + 1 => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        Self(merged)
    }

    /// The numbers below this one.
    #[must_use]
    pub fn below(&self, number: u64) -> Self {
        let ranges = self.0.iter().filter(|(from, _)| *from < number);
        Self(
            ranges
                .map(|(from, to)| (*from, (*to).min(number - 1)))
                .collect(),
        )
    }
}

impl From<Vec<(u64, u64)>> for Ranges {
    /// Of ranges in any order.
    fn from(ranges: Vec<(u64, u64)>) -> Self {
        Self(ranges).union(&Self::default())
    }
}

impl FromIterator<u64> for Ranges {
    fn from_iter<I: IntoIterator<Item = u64>>(numbers: I) -> Self {
        let mut ranges = Self::default();
        for number in numbers {
            ranges.insert(number);
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Ranges;

    /// All subsets of eight numbers.
    fn all() -> impl Iterator<Item = BTreeSet<u64>> {
        (0..256_u32).map(|bits| (0..8).filter(|n| bits & (1 << n) != 0).collect())
    }

    #[test]
    fn it_is_a_set_whatever_the_order_of_the_numbers() {
        for set in all() {
            let ranges: Ranges = set.iter().copied().collect();
            let backwards: Ranges = set.iter().rev().copied().collect();
            assert_eq!(ranges, backwards);
            assert!(ranges.numbers().eq(set.iter().copied()), "{ranges:?}");
            let single: Vec<(u64, u64)> = set.iter().rev().map(|n| (*n, *n)).collect();
            assert_eq!(ranges, Ranges::from(single));
            assert_eq!(ranges.last(), set.last().copied());
            for number in 0..9 {
                assert_eq!(ranges.contains(number), set.contains(&number));
                let below = set.range(..number).copied();
                assert!(ranges.below(number).numbers().eq(below));
            }
        }
    }

    #[test]
    fn differences_and_unions_are_those_of_sets() {
        for one in all() {
            let ranges: Ranges = one.iter().copied().collect();
            for other in all() {
                let others: Ranges = other.iter().copied().collect();
                let left: Ranges = one.difference(&other).copied().collect();
                assert_eq!(ranges.minus(&others), left, "{ranges:?} without {others:?}");
                let union: Ranges = one.union(&other).copied().collect();
                assert_eq!(ranges.union(&others), union, "{ranges:?} and {others:?}");
            }
        }
    }
}
