//! How old the oldest record is that each partition of a job has not in a checkpoint yet.
//!
//! Only the record itself knows, so it is read: by one client for all partitions of a job that have something unread and of
//! whose record nothing is known, aside, and only when somebody looks at the offsets. What is kept is the record's place and
//! time stamp. That stays true for as long as the position stands, so a view shows what an earlier look has found, never
//! waits, and a job that stands still is read once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::Instant};

use super::{
    comparison::FirstUnread,
    core::{Core, JobEntry, JobFacts},
};
use crate::{
    engine::{FirstRecord, first_records, ports::ConsumerSettings},
    model::{
        job::{Isolation, SourceSpec},
        offset::Offset,
        topic::{TopicId, TopicPartition},
        views::{Flag, PartitionOffsetsView},
    },
};

/// Between two reads of a job.
const EVERY: Duration = Duration::from_secs(30);
/// How long a read may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// Jobs that are read at the same time; each read is a client with its connections.
const AT_ONCE: usize = 4;

/// What is known of a job's oldest unread records.
#[derive(Default)]
pub(crate) struct OldestUnread {
    /// When the last read was asked for.
    asked_at: Option<Instant>,
    wanted: Option<Wanted>,
    /// Through whose eyes: another isolation sees other records.
    seen_by: Option<(String, Isolation)>,
    firsts: BTreeMap<TopicPartition, FirstUnread>,
}

impl OldestUnread {
    /// What was found for a job that reads like this.
    pub(crate) fn of(&self, source: &SourceSpec) -> Option<&BTreeMap<TopicPartition, FirstUnread>> {
        let is_same = self
            .seen_by
            .as_ref()
            .is_some_and(|seen_by| *seen_by == eyes(source));
        is_same.then_some(&self.firsts)
    }

    fn learn(&mut self, source: &SourceSpec, found: BTreeMap<TopicPartition, FirstUnread>) {
        if self.of(source).is_none() {
            self.firsts.clear();
            self.seen_by = Some(eyes(source));
        }
        self.firsts.extend(found);
    }
}

fn eyes(source: &SourceSpec) -> (String, Isolation) {
    (source.connection.clone(), source.isolation)
}

/// What is to be read, and for a job that reads like this.
struct Wanted {
    source: SourceSpec,
    places: BTreeMap<TopicPartition, Place>,
}

/// A checkpointed position.
struct Place {
    checkpointed: Offset,
    /// Where to read: what lies before the log's beginning is gone.
    read_at: Offset,
    topic_id: Option<TopicId>,
}

/// Limits how many jobs are read at the same time.
pub(crate) fn turnstile() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(AT_ONCE))
}

/// Has read what a view could not say, unless that was tried a short time ago. Returns at once.
pub(crate) fn ask_if_unknown(job: &JobEntry, partitions: &[PartitionOffsetsView]) {
    let mut facts = job.shared();
    let last = facts.unread.asked_at;
    if last.is_some_and(|asked| asked.elapsed() < EVERY) {
        return;
    }
    let places = unknown(&facts, partitions);
    if places.is_empty() {
        return;
    }
    let source = facts.spec().source.clone();
    facts.unread.asked_at = Some(Instant::now());
    facts.unread.wanted = Some(Wanted { source, places });
    job.read_unread.notify_one();
}

/// Reads for one job what was asked for, until the server goes down or the job is deleted.
pub(crate) async fn read_when_asked(
    core: Arc<Core>,
    job: Arc<JobEntry>,
    turnstile: Arc<Semaphore>,
) {
    let read = async {
        loop {
            job.read_unread.notified().await;
            let Ok(_permit) = turnstile.acquire().await else {
                return;
            };
            let wanted = job.shared().unread.wanted.take();
            if let Some(wanted) = wanted {
                find(&core, &job, wanted).await;
            }
        }
    };
    tokio::select! {
        () = core.stopping.cancelled() => {}
        () = job.gone.cancelled() => {}
        () = read => {}
    }
}

async fn find(core: &Core, job: &JobEntry, wanted: Wanted) {
    let Wanted { source, places } = wanted;
    let Some(cluster) = core.clusters.get(&source.connection) else {
        return;
    };
    let settings = ConsumerSettings {
        job: job.name.to_string(),
        subtask: 0,
        source: source.clone(),
    };
    let from = places
        .iter()
        .map(|(partition, place)| (partition.clone(), place.read_at))
        .collect();
    match first_records(cluster, settings, from, DEADLINE).await {
        Ok(found) => {
            let found = beside_places(found, places);
            job.shared().unread.learn(&source, found);
        }
        Err(error) => {
            tracing::debug!(job = %job.name, %error, "the oldest unread records cannot be read");
        }
    }
}

/// The positions with something unread behind them of which nothing is known.
fn unknown(
    facts: &JobFacts,
    partitions: &[PartitionOffsetsView],
) -> BTreeMap<TopicPartition, Place> {
    let Some(Some(checkpoint)) = &facts.checkpoint.value else {
        return BTreeMap::new();
    };
    let is_unknown = |partition: &&PartitionOffsetsView| {
        partition.oldest_unread_age_ms.is_none()
            && partition.lag.checkpoint.is_some_and(|lag| lag > 0)
            && !partition.flags.contains(&Flag::TopicRecreated)
    };
    partitions
        .iter()
        .filter(is_unknown)
        .filter_map(|row| {
            let partition = TopicPartition::new(row.topic.as_str(), row.partition);
            let checkpointed = row.checkpointed?;
            let place = Place {
                checkpointed,
                read_at: row
                    .earliest
                    .map_or(checkpointed, |earliest| checkpointed.max(earliest)),
                topic_id: checkpoint.positions.get(&partition)?.topic_id.clone(),
            };
            Some((partition, place))
        })
        .collect()
}

fn beside_places(
    found: BTreeMap<TopicPartition, FirstRecord>,
    mut places: BTreeMap<TopicPartition, Place>,
) -> BTreeMap<TopicPartition, FirstUnread> {
    found
        .into_iter()
        .filter_map(|(partition, first)| {
            let place = places.remove(&partition)?;
            let unread = FirstUnread {
                from: place.checkpointed,
                topic_id: place.topic_id,
                first,
            };
            Some((partition, unread))
        })
        .collect()
}
