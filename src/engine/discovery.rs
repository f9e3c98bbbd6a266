//! What a look at the brokers' metadata means for a run. Pure: what is known and what was seen in, changes out.
//!
//! Flink's discoverer knows one change, a partition that appeared, and one answer to trouble, the failure of the job. Here
//! nothing that a look finds or does not find ends a run: what appeared is read, what vanished is parked with its position
//! until the same topic comes back, what was created again follows `on_topic_recreated`, and a look that fails is
//! repeated.
//!
//! *Vanished* is only what two looks in a row did not see, because a broker that has just come up may answer before it
//! knows its topics. *Recreated* is decided by the topic's id alone, never by offsets, and one look is enough: an id does not
//! come back.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{backoff::pause_after, ports::TopicDescription};
use crate::model::topic::{TopicId, TopicPartition};

/// How soon something that was not seen is looked for again.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// How soon a look is taken that somebody has a reason for.
const SOON: Duration = Duration::from_millis(100);

/// A partition as the run knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Known {
    /// The topic that its position belongs to; `None` where the brokers never told.
    pub topic_id: Option<TopicId>,
    /// Whether it is parked because it had vanished.
    pub gone: bool,
    /// The id of the topic that took the place of its own, if it is parked because of that.
    pub replaced_by: Option<TopicId>,
}

/// What has become of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// It is new.
    Appeared,
    /// It is not there any more.
    Vanished,
    /// It is there again, in the same topic as far as can be told.
    Returned,
    /// Its topic is another one of the same name.
    Recreated {
        /// The new one's id.
        now: TopicId,
        /// Whether the new one has this partition, too.
        exists: bool,
    },
}

/// When the next look is due, and what the last ones brought.
#[derive(Debug)]
pub(super) struct Discovery {
    interval: Duration,
    next: Instant,
    looking: bool,
    failures: u32,
    /// The last error, while looks fail.
    problem: Option<String>,
    /// What the last look did not see.
    missed: BTreeSet<TopicPartition>,
    /// Topics that the last good look saw.
    topics: Option<usize>,
}

impl Discovery {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next: now + interval,
            looking: false,
            failures: 0,
            problem: None,
            missed: BTreeSet::new(),
            topics: None,
        }
    }

    /// Takes another interval, from now on.
    pub(super) fn set_interval(&mut self, interval: Duration, now: Instant) {
        self.interval = interval;
        self.next = self.next.min(now + interval);
    }

    /// Whether a look is due; it is under way from then on.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        if self.looking || now < self.next {
            return false;
        }
        self.looking = true;
        true
    }

    /// When the next look is due.
    #[cfg(test)]
    pub(super) fn deadline(&self) -> Option<Instant> {
        (!self.looking).then_some(self.next)
    }

    /// Has a look taken soon: the client says that it does not know a topic.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = self.next.min(now + SOON);
    }

    /// Why looks fail, once two in a row have: a single one is nothing to be told of.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref().filter(|_| self.failures > 1)
    }

    /// Looks that have failed since the last good one, and the last error.
    pub(super) fn failing(&self) -> (u32, Option<&str>) {
        (self.failures, self.problem.as_deref())
    }

    /// How many topics the last good look saw; `None` before the first.
    pub(super) fn topics(&self) -> Option<usize> {
        self.topics
    }

    /// A look has failed: the next one comes after a pause that grows, and never later than the interval says.
    pub(super) fn failed(&mut self, why: String, now: Instant) {
        self.looking = false;
        self.next = now + pause_after(self.failures).min(self.interval);
        self.failures = self.failures.saturating_add(1);
        self.problem = Some(why);
    }

    /// A look has brought something. Answers what has changed.
    pub(super) fn seen(
        &mut self,
        known: &BTreeMap<TopicPartition, Known>,
        described: &[TopicDescription],
        now: Instant,
    ) -> Vec<(TopicPartition, Change)> {
        self.looking = false;
        self.failures = 0;
        self.problem = None;
        let exist = described.iter().filter(|topic| topic.partitions.is_some());
        self.topics = Some(exist.count());
        let mut changes = changes(known, described);
        let missing: BTreeSet<TopicPartition> = changes
            .iter()
            .filter(|(_, change)| *change == Change::Vanished)
            .map(|(partition, _)| partition.clone())
            .collect();
        changes.retain(|(partition, change)| {
            *change != Change::Vanished || self.missed.contains(partition)
        });
        let in_doubt = missing.iter().any(|one| !self.missed.contains(one));
        self.missed = missing;
        let pause = if in_doubt {
            self.interval.min(DOUBT_PAUSE)
        } else {
            self.interval
        };
        self.next = now + pause;
        changes
    }
}

/// Compares what is known with what was seen.
fn changes(
    known: &BTreeMap<TopicPartition, Known>,
    described: &[TopicDescription],
) -> Vec<(TopicPartition, Change)> {
    let topics: BTreeMap<&str, &TopicDescription> = described
        .iter()
        .filter(|topic| topic.partitions.is_some())
        .map(|topic| (&*topic.name, topic))
        .collect();
    let of_known = known.iter().filter_map(|(partition, known)| {
        let topic = topics.get(&*partition.topic).copied();
        Some((partition.clone(), change_of(partition, known, topic)?))
    });
    let appeared = topics.values().flat_map(|topic| {
        let numbers = topic.partitions.iter().flatten().map(|(number, _)| *number);
        numbers.map(|number| TopicPartition::new(topic.name.as_str(), number))
    });
    let appeared = appeared
        .filter(|partition| !known.contains_key(partition))
        .map(|partition| (partition, Change::Appeared));
    of_known.chain(appeared).collect()
}

fn change_of(
    partition: &TopicPartition,
    known: &Known,
    topic: Option<&TopicDescription>,
) -> Option<Change> {
    let vanished = (!known.gone && known.replaced_by.is_none()).then_some(Change::Vanished);
    let Some(topic) = topic else {
        return vanished;
    };
    let mut numbers = topic.partitions.iter().flatten();
    let exists = numbers.any(|(number, _)| *number == partition.partition);
    if let (Some(then), Some(now)) = (&known.topic_id, &topic.id)
        && then != now
    {
        let is_known = known.replaced_by.as_ref() == Some(now) || (known.gone && !exists);
        return (!is_known).then(|| Change::Recreated {
            now: now.clone(),
            exists,
        });
    }
    match exists {
        true => known.gone.then_some(Change::Returned),
        false => vanished,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn topic(name: &str, id: &str, partitions: i32) -> TopicDescription {
        TopicDescription {
            name: name.to_owned(),
            id: (!id.is_empty()).then(|| TopicId(id.into())),
            partitions: Some((0..partitions).map(|number| (number, Some(1))).collect()),
            internal: false,
        }
    }

    fn missing(name: &str) -> TopicDescription {
        TopicDescription {
            partitions: None,
            ..topic(name, "", 0)
        }
    }

    fn orders(number: i32) -> TopicPartition {
        TopicPartition::new("orders", number)
    }

    fn known(id: &str) -> Known {
        Known {
            topic_id: (!id.is_empty()).then(|| TopicId(id.into())),
            gone: false,
            replaced_by: None,
        }
    }

    fn recreated(exists: bool) -> Change {
        Change::Recreated {
            now: TopicId("b".into()),
            exists,
        }
    }

    #[test]
    fn what_a_look_means() {
        let gone = |id: &str| Known {
            gone: true,
            ..known(id)
        };
        let replaced = || Known {
            replaced_by: Some(TopicId("b".into())),
            ..known("a")
        };
        let rows: Vec<(&str, Option<Known>, TopicDescription, Option<Change>)> = vec![
            ("as before", Some(known("a")), topic("orders", "a", 1), None),
            ("new", None, topic("orders", "a", 1), Some(Change::Appeared)),
            (
                "deleted",
                Some(known("a")),
                missing("orders"),
                Some(Change::Vanished),
            ),
            (
                "not reported",
                Some(known("a")),
                topic("orders", "a", 0),
                Some(Change::Vanished),
            ),
            ("still gone", Some(gone("a")), missing("orders"), None),
            (
                "still not reported",
                Some(gone("a")),
                topic("orders", "a", 0),
                None,
            ),
            (
                "back",
                Some(gone("a")),
                topic("orders", "a", 1),
                Some(Change::Returned),
            ),
            (
                "back as another",
                Some(gone("a")),
                topic("orders", "b", 1),
                Some(recreated(true)),
            ),
            (
                "created again",
                Some(known("a")),
                topic("orders", "b", 1),
                Some(recreated(true)),
            ),
            (
                "created again without it",
                Some(known("a")),
                topic("orders", "b", 0),
                Some(recreated(false)),
            ),
            (
                "gone from the other, too",
                Some(gone("a")),
                topic("orders", "b", 0),
                None,
            ),
            (
                "known to be another",
                Some(replaced()),
                topic("orders", "b", 1),
                None,
            ),
            (
                "the other is gone, too",
                Some(replaced()),
                missing("orders"),
                None,
            ),
            // Ids that are not told prove nothing.
            ("no id then", Some(known("")), topic("orders", "b", 1), None),
            ("no id now", Some(known("a")), topic("orders", "", 1), None),
            (
                "back without an id",
                Some(gone("a")),
                topic("orders", "", 1),
                Some(Change::Returned),
            ),
        ];
        for (what, before, seen, expected) in rows {
            let known = before.into_iter().map(|known| (orders(0), known)).collect();
            let found = changes(&known, &[seen]);
            let found: Vec<Change> = found.into_iter().map(|(_, change)| change).collect();
            assert_eq!(found, Vec::from_iter(expected), "{what}");
        }
        // A third incarnation.
        let known = [(orders(0), replaced())].into();
        assert_eq!(changes(&known, &[topic("orders", "c", 1)]).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_look_does_not_see_is_looked_for_again_before_it_is_gone() {
        let start = Instant::now();
        let mut discovery = Discovery::new(INTERVAL, start);
        assert!(!discovery.begin(start));
        let known: BTreeMap<_, _> = (0..2).map(|number| (orders(number), known("a"))).collect();
        let mut now = start + INTERVAL;
        assert!(
            discovery.begin(now) && !discovery.begin(now),
            "one at a time"
        );
        assert_eq!(discovery.seen(&known, &[topic("orders", "a", 1)], now), []);
        assert_eq!(discovery.deadline(), Some(now + DOUBT_PAUSE));
        now += DOUBT_PAUSE;
        assert!(discovery.begin(now));
        // It was only late.
        assert_eq!(discovery.seen(&known, &[topic("orders", "a", 2)], now), []);
        assert_eq!(discovery.deadline(), Some(now + INTERVAL));
        for expected in [vec![], vec![(orders(1), Change::Vanished)]] {
            let found = discovery.seen(&known, &[topic("orders", "a", 1)], now);
            assert_eq!(found, expected);
        }
        // An id needs no second look.
        let found = discovery.seen(&known, &[topic("orders", "b", 2)], now);
        assert_eq!(found.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_that_fail_are_repeated_with_growing_pauses() {
        let start = Instant::now();
        let mut discovery = Discovery::new(INTERVAL, start);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            discovery.failed("no broker".to_owned(), start);
            pauses.push(discovery.deadline().unwrap() - start);
        }
        assert_eq!(discovery.problem(), Some("no broker"));
        assert!(pauses[0] < Duration::from_secs(2), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= INTERVAL), "{pauses:?}");
        discovery.seen(&BTreeMap::new(), &[], start);
        assert_eq!((discovery.problem(), discovery.topics()), (None, Some(0)));
        assert_eq!(discovery.deadline(), Some(start + INTERVAL));
    }

    #[tokio::test(start_paused = true)]
    async fn another_interval_counts_at_once() {
        let start = Instant::now();
        let mut discovery = Discovery::new(Duration::from_secs(3_600), start);
        discovery.set_interval(Duration::from_secs(2), start);
        assert_eq!(discovery.deadline(), Some(start + Duration::from_secs(2)));
        // A longer one does not put off the look that was due.
        discovery.set_interval(INTERVAL, start);
        assert_eq!(discovery.deadline(), Some(start + Duration::from_secs(2)));
        discovery.hurry(start);
        assert_eq!(discovery.deadline(), Some(start + SOON));
    }
}
