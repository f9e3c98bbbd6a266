//! Asks the brokers how each job stands, so that lists, health and metrics never have to wait for them.
//!
//! One task a job, few at a time. A caller who wants fresh numbers uses the same function: whoever comes while an answer
//! is under way shares it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout, timeout_at},
};

use super::{
    comparison::{BrokerPartition, CheckpointFacts, SinkHolds},
    core::{Core, JobEntry, LiveSnapshot},
    sink_progress::{self, make_sink},
};
use crate::{
    engine::{
        error::KafkaError,
        ports::{GroupOffset, KafkaCluster, TopicDescription},
        topics,
    },
    model::{
        code::Code,
        health::{HealthSample, PartitionSample},
        job::{Isolation, JobSpec},
        job_state::JobState,
        offset::{Offset, PartitionOffsets},
        sink_spec::SinkSpec,
        topic::TopicPartition,
        views::SourceStatus,
    },
};

/// Between two measurements of a running job.
const RUNNING_EVERY: Duration = Duration::from_secs(5);
/// Between two measurements of a job that does not run.
const STOPPED_EVERY: Duration = Duration::from_secs(15);
/// How long one measurement may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// How old facts may be that a caller is given who does not ask for fresh ones.
pub(crate) const REUSE: Duration = Duration::from_secs(1);
/// Measurements at the same time.
const AT_ONCE: usize = 8;

/// Limits how many jobs are measured at the same time.
pub(crate) fn turnstile() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(AT_ONCE))
}

/// Measures one job until the server goes down or the job is deleted.
pub(crate) async fn watch_job(core: Arc<Core>, job: Arc<JobEntry>, turnstile: Arc<Semaphore>) {
    loop {
        let Ok(permit) = turnstile.acquire().await else {
            return;
        };
        measure(&core, &job, REUSE).await;
        refresh_checkpoint_if_newer(&core, &job).await;
        job.shared().note_log_starts();
        drop(permit);
        let pause = if job.shared().run.is_some() {
            RUNNING_EVERY
        } else {
            STOPPED_EVERY
        };
        tokio::select! {
            () = core.stopping.cancelled() => return,
            () = job.gone.cancelled() => return,
            () = job.measure_soon.notified() => {}
            // A little jitter keeps many jobs from asking at the same moment.
            () = tokio::time::sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())) => {}
        }
    }
}

/// Asks the brokers, unless they were asked at most `reuse` before this call. With no reuse, callers who came while others
/// were being answered share one question that began after they came.
pub(crate) async fn measure(core: &Core, job: &JobEntry, reuse: Duration) {
    let called = Instant::now();
    let _one_at_a_time = job.measuring.lock().await;
    let began = Instant::now();
    let (spec, live) = {
        let mut facts = job.shared();
        let outdated = facts.outdated_at;
        let still_good = |asked: Instant| {
            asked + reuse >= called && outdated.is_none_or(|outdated| asked > outdated)
        };
        if facts.attempted_at.is_some_and(still_good) {
            return;
        }
        let live = facts.status().map(|status| LiveSnapshot {
            epoch: status.epoch,
            partitions: Arc::clone(&status.partitions),
            throttled: status.throttled,
            at: core.now(),
        });
        facts.live = live.clone();
        (facts.spec().clone(), live)
    };
    let asked_at = core.now();
    let answers = match core.clusters.get(&spec.source.connection) {
        Some(cluster) => ask(&*cluster, &spec, &known_partitions(job)).await,
        None => Answers::unreachable(&format!(
            "the server's file has no connection '{}'",
            spec.source.connection
        )),
    };
    let now = core.now();
    let mut facts = job.shared();
    facts.attempted_at = Some(began);
    match answers.brokers {
        Ok(brokers) => {
            if let Some(mut live) = live.filter(|_| facts.shown_state().0 == JobState::Running) {
                if let Some(status) = facts.status() {
                    // That they do not move, or have no leader, is no news.
                    Arc::make_mut(&mut live.partitions)
                        .retain(|partition, _| !status.parked.contains_key(partition));
                }
                let sample = sample(&spec, &live, &brokers, now);
                if let Some(run) = &facts.run {
                    run.saw_log_ends(readable_ends(&sample));
                }
                facts.window.add(sample);
            }
            facts.doubt_topics(&brokers);
            facts.brokers.answered(brokers, now);
        }
        Err((status, why)) => facts.brokers.failed(status, why, asked_at),
    }
    match answers.group {
        Ok(group) => facts.group.answered(group, now),
        Err((status, why)) => facts.group.failed(status, why, asked_at),
    }
    facts.members = answers.members;
}

/// The partitions that the last answer and the newest checkpoint name, for when topics cannot be described.
fn known_partitions(job: &JobEntry) -> Vec<TopicPartition> {
    let facts = job.shared();
    if let Some(brokers) = &facts.brokers.value {
        return brokers.keys().cloned().collect();
    }
    let checkpoint = facts.checkpoint.value.as_ref().and_then(Option::as_ref);
    checkpoint.map_or_else(Vec::new, |checkpoint| {
        checkpoint.positions.keys().cloned().collect()
    })
}

type Failed = (SourceStatus, String);

struct Answers {
    brokers: Result<BTreeMap<TopicPartition, BrokerPartition>, Failed>,
    group: Result<BTreeMap<TopicPartition, GroupOffset>, Failed>,
    members: Option<usize>,
}

impl Answers {
    fn unreachable(why: &str) -> Self {
        Self {
            brokers: Err((SourceStatus::Unreachable, why.to_owned())),
            group: Err((SourceStatus::Unreachable, why.to_owned())),
            members: None,
        }
    }
}

async fn ask(cluster: &dyn KafkaCluster, spec: &JobSpec, known: &[TopicPartition]) -> Answers {
    let deadline = Instant::now() + DEADLINE;
    let described = timeout_at(deadline, topics::describe(cluster, &spec.source)).await;
    let (described, failure) = match flatten(described) {
        Ok(described) => (described, None),
        // Who does not answer the first question is not asked more: those to a coordinator that is away cost a client.
        Err(silent @ (SourceStatus::Timeout | SourceStatus::Unreachable, _)) => {
            return Answers {
                brokers: Err(silent.clone()),
                group: Err(silent),
                members: None,
            };
        }
        Err(failure) => (Vec::new(), Some(failure)),
    };
    let partitions: Vec<TopicPartition> = if failure.is_none() {
        described
            .iter()
            .flat_map(partitions_of)
            .map(|(p, _)| p)
            .collect()
    } else {
        known.to_vec()
    };
    let group = &spec.source.group_id;
    let (bounds, group, members) = tokio::join!(
        async {
            match failure {
                Some(failure) => Err(failure),
                None => flatten(timeout_at(deadline, cluster.log_bounds(&partitions)).await),
            }
        },
        async { flatten(timeout_at(deadline, cluster.group_offsets(group, &partitions)).await) },
        async { flatten(timeout_at(deadline, cluster.group_members(group)).await) },
    );
    let brokers = bounds.map(|bounds| {
        let mut brokers = BTreeMap::new();
        for topic in &described {
            for (partition, leader) in partitions_of(topic) {
                let broker = BrokerPartition {
                    leader,
                    topic_id: topic.id.clone(),
                    bounds: bounds.get(&partition).copied(),
                };
                brokers.insert(partition, broker);
            }
        }
        brokers
    });
    Answers {
        brokers,
        group,
        members: members.ok(),
    }
}

/// The partitions of a topic and their leaders; none for a topic that does not exist.
pub(crate) fn partitions_of(
    topic: &TopicDescription,
) -> impl Iterator<Item = (TopicPartition, Option<i32>)> + '_ {
    let name: Arc<str> = topic.name.as_str().into();
    let partitions = topic.partitions.iter().flatten();
    partitions
        .map(move |(number, leader)| (TopicPartition::new(Arc::clone(&name), *number), *leader))
}

fn flatten<T>(
    answer: Result<Result<T, KafkaError>, tokio::time::error::Elapsed>,
) -> Result<T, Failed> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err((status_of(&error), error.to_string())),
        Err(_elapsed) => Err((
            SourceStatus::Timeout,
            format!("no answer within {} s", DEADLINE.as_secs()),
        )),
    }
}

fn status_of(error: &KafkaError) -> SourceStatus {
    if error.code == Code::KafkaUnreachable {
        SourceStatus::Unreachable
    } else if error.code == Code::KafkaTimeout {
        SourceStatus::Timeout
    } else {
        SourceStatus::Error
    }
}

fn sample(
    spec: &JobSpec,
    snapshot: &LiveSnapshot,
    brokers: &BTreeMap<TopicPartition, BrokerPartition>,
    at: chrono::DateTime<chrono::Utc>,
) -> HealthSample {
    let isolation: Isolation = spec.source.isolation;
    let partitions = snapshot.partitions.iter().map(|(partition, live)| {
        let bounds = brokers.get(partition).and_then(|broker| broker.bounds);
        // What lies behind the end of a bounded run does not concern it, and one that has come to it needs no leader.
        let has_ended = live.stop_offset.is_some() && live.position >= live.stop_offset;
        let up_to = |end: Offset| live.stop_offset.map_or(end, |stop| end.min(stop));
        let sample = PartitionSample {
            position: live.position,
            readable_end: match bounds {
                _ if has_ended => live.position,
                Some(bounds) => Some(up_to(bounds.readable_end(isolation))),
                None => None,
            },
            latest: match bounds {
                _ if has_ended => live.position,
                Some(bounds) => Some(up_to(bounds.latest)),
                None => None,
            },
            held_back: snapshot.throttled || live.watermark.as_ref().is_some_and(|one| one.paused),
        };
        (partition.clone(), sample)
    });
    HealthSample {
        at,
        partitions: partitions.collect(),
    }
}

fn readable_ends(sample: &HealthSample) -> PartitionOffsets {
    let partitions = sample.partitions.iter();
    let ends =
        partitions.filter_map(|(partition, seen)| Some((partition.clone(), seen.readable_end?)));
    ends.collect()
}

/// Reads the newest checkpoint from the store, if the run says that there is a newer one or none was read yet.
async fn refresh_checkpoint_if_newer(core: &Core, job: &JobEntry) {
    let newer = {
        let facts = job.shared();
        let known = facts.checkpoint.current().and_then(Option::as_ref);
        let newest = facts
            .status()
            .and_then(|status| status.last_checkpoint.clone());
        match (known, newest) {
            (None, Some(_)) => true,
            (None, None) => facts.checkpoint.current().is_none(),
            (Some(known), Some(newest)) => {
                known.id != newest.id
                    || known.group_commit != newest.group_commit
                    || known.confirmed_at < newest.confirmed_at
            }
            // Without a run nobody says so: a stop has taken a last one, or another server runs the job.
            (Some(_), None) => true,
        }
    };
    if newer {
        refresh_checkpoint(core, job).await;
    }
}

/// Reads the newest checkpoint from the store.
pub(crate) async fn refresh_checkpoint(core: &Core, job: &JobEntry) {
    let asked_at = core.now();
    let is_off = job.shared().spec().checkpointing().is_off();
    let answer = timeout(DEADLINE, async {
        if is_off {
            // Whatever is kept of an earlier time does not count.
            return Ok(None);
        }
        core.store.latest_checkpoint(job.uid).await
    })
    .await;
    refresh_bounded_run(core, job).await;
    let now = core.now();
    let mut facts = job.shared();
    match answer {
        Ok(Ok(checkpoint)) => {
            let checkpoint = checkpoint.map(|stored| Arc::new(CheckpointFacts::from(stored)));
            facts.checkpoint.answered(checkpoint, now);
        }
        Ok(Err(error)) => {
            facts
                .checkpoint
                .failed(SourceStatus::Unreachable, error.to_string(), asked_at);
        }
        Err(_elapsed) => facts.checkpoint.failed(
            SourceStatus::Timeout,
            format!("no answer within {} s", DEADLINE.as_secs()),
            asked_at,
        ),
    }
}

/// Reads where the job's bounded run ends. What was read last stays when the store does not answer: ends do not move.
/// Reads where the bounded run ends, and whether it has ended, from the store.
pub(crate) async fn refresh_bounded_run(core: &Core, job: &JobEntry) {
    let is_bounded = job.shared().spec().source.stop_at.is_some();
    if !is_bounded {
        job.shared().bounded = None;
        return;
    }
    if let Ok(Ok(run)) = timeout(DEADLINE, core.store.bounded_run(job.uid)).await {
        job.shared().bounded = run;
    }
}

/// Asks the sink how far it has come, unless it was asked at most `reuse` before this call. Only for who looks at it: each
/// answer is a connection to the target.
pub(crate) async fn ask_sink(core: &Core, job: &JobEntry, reuse: Duration) {
    let called = Instant::now();
    let _one_at_a_time = job.measuring.lock().await;
    let began = Instant::now();
    let (spec, asked_before) = {
        let facts = job.shared();
        (facts.spec().sink.clone(), facts.sink_asked.clone())
    };
    if asked_before.is_some_and(|(asked, of)| of == spec && asked + reuse >= called) {
        return;
    }
    let asked_at = core.now();
    let answer = holds(core, job, &spec).await;
    let now = core.now();
    let mut facts = job.shared();
    facts.sink_asked = Some((began, spec));
    match answer {
        Ok(holds) => facts.sink.answered(holds, now),
        Err((status, why)) => facts.sink.failed(status, why, asked_at),
    }
}

async fn holds(core: &Core, job: &JobEntry, spec: &SinkSpec) -> Result<Option<SinkHolds>, Failed> {
    let of_store = |error: &dyn std::fmt::Display| {
        let why = format!("the store does not say whose progress to ask for: {error}");
        (SourceStatus::Unreachable, why)
    };
    let install = core.install().await.map_err(|error| of_store(&error))?;
    let sink = make_sink(core, spec, &job.name, (install, job.uid))
        .map_err(|error| (SourceStatus::Error, error.detail))?;
    let answer = sink_progress::ask(&*sink).await;
    let progress = answer.map_err(|silent| (silent.status, silent.detail))?;
    let Some(progress) = progress else {
        return Ok(None);
    };
    let newest_output = match timeout(DEADLINE, core.store.newest_output(job.uid)).await {
        Ok(Ok(newest)) => newest,
        // Without it nothing is taken for lost.
        Ok(Err(_)) | Err(_) => None,
    };
    Ok(Some(SinkHolds {
        identity: sink.identity(),
        progress,
        newest_output,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_topic_has_no_partitions() {
        let gone = TopicDescription {
            name: "gone".to_owned(),
            id: None,
            partitions: None,
            internal: false,
        };
        assert_eq!(partitions_of(&gone).count(), 0);
        let there = TopicDescription {
            partitions: Some(BTreeMap::from([(0, Some(1)), (1, None)])),
            ..gone
        };
        let leaders: Vec<Option<i32>> = partitions_of(&there).map(|(_, leader)| leader).collect();
        assert_eq!(leaders, [Some(1), None]);
    }

    #[test]
    fn a_sample_leaves_out_what_is_not_known() {
        let live = LiveSnapshot {
            epoch: crate::model::ids::LeaseEpoch(1),
            partitions: Arc::new(BTreeMap::from([(
                TopicPartition::new("orders", 0),
                crate::model::job_status::LivePartition {
                    subtask: 0,
                    position: Offset::new(4),
                    topic_id: None,
                    stop_offset: None,
                    reason: None,
                    watermark: None,
                },
            )])),
            throttled: false,
            at: chrono::DateTime::UNIX_EPOCH,
        };
        let spec = JobSpec::read(
            &crate::model::JobName::new("orders").unwrap(),
            &serde_json::json!({
                "source": {"connection": "main", "topics": ["orders"]},
                "startup_mode": {"mode": "earliest"},
                "sink": {"type": "blackhole"}
            }),
        )
        .unwrap();
        let seen = |live: &LiveSnapshot| {
            let at = chrono::DateTime::UNIX_EPOCH;
            sample(&spec, live, &BTreeMap::new(), at).partitions[&TopicPartition::new("orders", 0)]
        };
        let partition = seen(&live);
        assert_eq!(
            (partition.position, partition.readable_end),
            (Offset::new(4), None)
        );
        assert!(!partition.held_back);
        // With limits one partition may wait for another's records to go: it does not stand still by itself.
        let throttled = LiveSnapshot {
            throttled: true,
            ..live
        };
        assert!(seen(&throttled).held_back);
    }
}
