//! Topics that were created again since the checkpoint, while the job does not run: what its view says of them.
//!
//! The checkpoint's offsets mean other records in the new log. So a start needs a decision, unless the spec has it already.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::model::{
    job::PositionPolicy,
    views::{Flag, PartitionOffsetsView},
};

/// Topics that a sentence names.
const TOPICS_TOLD: usize = 3;

/// The topics, and what the spec says about such ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recreated {
    topics: Vec<String>,
    partitions: usize,
    policy: PositionPolicy,
}

impl Recreated {
    /// Those among the partitions as they were compared; `None` where there is none.
    pub(crate) fn among(
        partitions: &[PartitionOffsetsView],
        policy: PositionPolicy,
    ) -> Option<Self> {
        let of_another = partitions
            .iter()
            .filter(|partition| partition.flags.contains(&Flag::TopicRecreated));
        let topics: Vec<&str> = of_another.map(|partition| &*partition.topic).collect();
        let partitions = topics.len();
        let topics: BTreeSet<&str> = topics.into_iter().collect();
        (partitions > 0).then(|| Self {
            topics: topics.into_iter().map(str::to_owned).collect(),
            partitions,
            policy,
        })
    }

    #[cfg(test)]
    pub(crate) fn of(topics: &[&str], partitions: usize, policy: PositionPolicy) -> Self {
        Self {
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            partitions,
            policy,
        }
    }

    /// Whether a start is refused until somebody decides.
    pub(crate) fn is_undecided(&self) -> bool {
        self.policy == PositionPolicy::Fail
    }

    /// What there is to know before a start, as a part of a sentence.
    pub(crate) fn told(&self) -> String {
        let mut names: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let more = names.len().saturating_sub(TOPICS_TOLD);
        names.truncate(TOPICS_TOLD);
        let mut who = names.join(", ");
        if more > 0 {
            who.push_str(&format!(" and {more} more"));
        }
        let were = match self.topics.len() {
            1 => "was",
            _ => "were",
        };
        let partitions = match self.partitions {
            1 => "1 partition".to_owned(),
            more => format!("{more} partitions"),
        };
        let then = match self.policy {
            PositionPolicy::Fail => "a start needs a decision",
            PositionPolicy::Earliest => "a start begins there at the first record",
            PositionPolicy::Latest => "a start begins there at the end of the log",
        };
        format!("{who} {were} created again ({partitions}): {then}")
    }

    /// The decisions that a start takes, each with what it means.
    pub(crate) fn decisions() -> [(&'static str, Value); 2] {
        [
            (
                "start it, and begin what was created again at its first record",
                json!({"on_topic_recreated": "earliest"}),
            ),
            (
                "start it, and begin what was created again at its end: what is in it is passed over",
                json!({"on_topic_recreated": "latest"}),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_which_and_what_a_start_does() {
        use PositionPolicy as P;
        for (topics, partitions, policy, told) in [
            (
                &["a"][..],
                1,
                P::Fail,
                "a was created again (1 partition): a start needs a decision",
            ),
            (
                &["a", "b"],
                4,
                P::Earliest,
                "a, b were created again (4 partitions): a start begins there at the first record",
            ),
            (
                &["a", "b", "c", "d", "e"],
                9,
                P::Latest,
                "a, b, c and 2 more were created again (9 partitions): a start begins there at the end of the log",
            ),
        ] {
            let recreated = Recreated::of(topics, partitions, policy);
            assert_eq!(recreated.told(), told);
            assert_eq!(recreated.is_undecided(), policy == P::Fail);
        }
        assert_eq!(Recreated::among(&[], P::Fail), None);
    }
}
