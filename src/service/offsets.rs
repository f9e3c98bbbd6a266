//! Where a job stands, partition by partition, running or stopped; each source that is away leaves its numbers out.

use std::{sync::Arc, time::Duration};

use super::{
    Service,
    comparison::{Comparison, SinkHolds, compare, totals},
    core::{Core, JobEntry, JobFacts, Source},
    error::Result,
    jobs::{Standing, age_ms},
    monitor::{REUSE, ask_sink, measure, refresh_checkpoint},
    oldest_unread::ask_if_unknown,
    queries::{OffsetsQuery, Only},
    sink_look::is_other,
    without_checkpoints,
};
use crate::model::{
    ids::JobName,
    job_state::JobState,
    topic::TopicPartition,
    views::{
        DivergenceCause, Flag, OffsetsView, PartitionOffsetsView, SourceStatus, SourceView, Sources,
    },
};

impl Service {
    pub(super) async fn show_offsets(
        &self,
        name: &JobName,
        query: &OffsetsQuery,
    ) -> Result<OffsetsView> {
        let core = &self.core;
        let job = core.job(name).await?;
        let reuse = if query.fresh { Duration::ZERO } else { REUSE };
        measure(core, &job, reuse).await;
        // The checkpoint comes last: it is then never older than the group's offsets.
        refresh_checkpoint(core, &job).await;
        job.shared().note_log_starts();
        // And the sink after it: a running job's sink would otherwise seem to be behind its checkpoint.
        ask_sink(core, &job, reuse).await;
        let standing = Standing::take(core, &job);
        let (partitions, running, sources) = look(core, &job);
        // Aside: nobody waits for it, and the next look has it.
        ask_if_unknown(&job, &partitions);
        let chosen: Vec<PartitionOffsetsView> = partitions
            .into_iter()
            .filter(|partition| is_meant(partition, query))
            .collect();
        let totals = totals(&chosen, running);
        let totals = without_checkpoints::explain(totals, &chosen, &job.shared());
        let shown = chosen.into_iter().filter(|partition| {
            !query.summary && query.only.is_none_or(|only| is_notable(partition, only))
        });
        let row = job.row();
        Ok(OffsetsView {
            summary: standing.summary,
            next: standing.next,
            job: name.clone(),
            state: job.state(),
            observed_at: core.now(),
            isolation: row.spec.source.isolation,
            group_id: row.spec.source.group_id,
            sources,
            totals,
            partitions: shown.collect(),
        })
    }
}

fn look(core: &Core, job: &JobEntry) -> (Vec<PartitionOffsetsView>, bool, Sources) {
    let now = core.now();
    let facts = job.shared();
    let status = facts.status();
    let brokers = facts.brokers.current();
    // Positions are shown as they were when the ends of the logs were asked for; without those, as they are now.
    let live = status.as_ref().map(|status| {
        let taken = facts
            .live
            .as_ref()
            .filter(|live| live.epoch == status.epoch && brokers.is_some());
        match taken {
            Some(live) => (Arc::clone(&live.partitions), live.at),
            None => (Arc::clone(&status.partitions), status.observed_at),
        }
    });
    let install = core.known_install().map(|install| install.short());
    let checkpoint = facts.newest_checkpoint();
    let holds = facts.sink.current().and_then(Option::as_ref);
    let is_other = |holds: &SinkHolds| is_other(checkpoint, holds);
    let mut partitions = compare(&Comparison {
        job: &job.name,
        install: install.as_deref(),
        spec: facts.spec(),
        brokers,
        brokers_at: facts.brokers.at,
        group: facts.group.current(),
        live: live.as_ref().map(|(partitions, _)| &**partitions),
        checkpoint,
        sink: holds.filter(|holds| !is_other(holds)),
        ends: facts.ends(),
        unread: facts.unread.of(&facts.spec().source),
        log_starts: Some(&facts.log_starts),
        checkpoint_every: checkpoint_every(&facts),
        now,
    });
    facts.mark_parked(&mut partitions);
    if let Some(status) = status.as_ref().filter(|status| status.watermark.is_some()) {
        // These are not compared with the ends of the logs: as they are now.
        for shown in &mut partitions {
            let partition = TopicPartition::new(shown.topic.as_str(), shown.partition);
            let live = status.partitions.get(&partition);
            shown.watermark = live.and_then(|live| live.watermark.clone());
        }
    }
    let unanswered = brokers.map(|brokers| {
        brokers
            .values()
            .filter(|broker| broker.bounds.is_none())
            .count()
    });
    let sources = Sources {
        live: match &live {
            Some((_, at)) => SourceView {
                age_ms: Some(age_ms(*at, now)),
                ..SourceView::new(SourceStatus::Ok)
            },
            None => SourceView {
                because: Some(format!("job-{}", facts.shown_state().0.name())),
                ..SourceView::new(SourceStatus::Absent)
            },
        },
        checkpoint: checkpoint_source(&facts, now),
        group: SourceView {
            members: facts.members,
            ..source(&facts.group, now)
        },
        brokers: SourceView {
            unanswered_partitions: unanswered,
            ..source(&facts.brokers, now)
        },
        sink: match facts.sink.current() {
            Some(None) => SourceView {
                because: Some("sink-keeps-no-progress".to_owned()),
                ..SourceView::new(SourceStatus::Absent)
            },
            Some(Some(holds)) if is_other(holds) => SourceView {
                because: Some("sink-changed".to_owned()),
                ..SourceView::new(SourceStatus::Absent)
            },
            Some(Some(_)) | None => source(&facts.sink, now),
        },
    };
    (partitions, status.is_some(), sources)
}

/// The interval of the checkpoints by which the job's position moves; `None` where it stands.
fn checkpoint_every(facts: &JobFacts) -> Option<Duration> {
    let timing = &facts.spec().checkpoint;
    match facts.shown_state().0 {
        JobState::Stopped | JobState::BackingOff | JobState::Failed | JobState::Finished => None,
        JobState::Starting | JobState::Running | JobState::Stopping => {
            Some(timing.interval?.0 + timing.min_pause.0)
        }
    }
}

fn source<T>(source: &Source<T>, now: chrono::DateTime<chrono::Utc>) -> SourceView {
    match (&source.error, source.at) {
        (Some((status, why)), _) => SourceView {
            because: Some(why.clone()),
            ..SourceView::new(*status)
        },
        (None, Some(at)) => SourceView {
            age_ms: Some(age_ms(at, now)),
            ..SourceView::new(SourceStatus::Ok)
        },
        (None, None) => SourceView {
            because: Some("not asked yet".to_owned()),
            ..SourceView::new(SourceStatus::Absent)
        },
    }
}

/// A checkpoint that was read before the store went away is still shown, with the source's status and its age.
fn checkpoint_source(facts: &JobFacts, now: chrono::DateTime<chrono::Utc>) -> SourceView {
    if facts.spec().checkpointing().is_off() {
        return SourceView {
            because: Some(without_checkpoints::BECAUSE.to_owned()),
            ..SourceView::new(SourceStatus::Absent)
        };
    }
    let view = source(&facts.checkpoint, now);
    match facts.checkpoint.value.as_ref() {
        Some(Some(checkpoint)) => SourceView {
            id: Some(checkpoint.id),
            completed_at: Some(checkpoint.completed_at),
            age_ms: facts.checkpoint.at.map(|at| age_ms(at, now)),
            ..view
        },
        Some(None) if view.status == SourceStatus::Ok => SourceView {
            because: Some("no-checkpoint".to_owned()),
            ..SourceView::new(SourceStatus::Absent)
        },
        Some(None) | None => view,
    }
}

fn is_meant(partition: &PartitionOffsetsView, query: &OffsetsQuery) -> bool {
    query.partitions.as_ref().is_none_or(|filter| {
        filter.contains(&TopicPartition::new(
            partition.topic.as_str(),
            partition.partition,
        ))
    })
}

fn is_notable(partition: &PartitionOffsetsView, only: Only) -> bool {
    match only {
        Only::Lagging => {
            let lag = partition.lag.position.or(partition.lag.checkpoint);
            lag.is_some_and(|lag| lag > 0)
        }
        Only::Diverged => {
            let group_differs = !matches!(
                partition.divergence.cause,
                DivergenceCause::None | DivergenceCause::NoCheckpoint | DivergenceCause::Unknown
            );
            let sink_differs = partition.flags.iter().any(|flag| {
                matches!(
                    flag,
                    Flag::SinkBehindStore | Flag::StoreBehindSink | Flag::ProgressLost
                )
            });
            group_differs || sink_differs
        }
        Only::Flagged => !partition.flags.is_empty(),
    }
}
