//! What the job waits for, and what it shows.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{JobTask, watermarks};
use crate::{
    engine::{fetcher::Counters, subtask::Activity},
    model::{
        checkpoint::CheckpointKind,
        code::Code,
        job_status::{
            AttemptInProgress, BadRecordCounters, CommitCounters, JobStatus, LivePartition, Waiting,
        },
    },
};

/// How often the history is thinned.
const THIN_PERIOD: Duration = Duration::from_secs(60);

impl JobTask {
    pub(super) fn on_tick(&mut self) {
        self.account_time();
        let kafka_problem = self
            .subtasks
            .iter()
            .find_map(|subtask| subtask.reachability.problem());
        self.note_waiting(Code::KafkaUnreachable, kafka_problem);
        self.watch_topics();
        self.watch_pending();
        self.ask_bounds();
        self.tell_left_out();
        self.watch_ends();
        self.watch_event_time();
        let sink_problem = self
            .subtasks
            .iter()
            .find_map(|subtask| subtask.view.sink_problem());
        self.note_waiting(Code::SinkError, sink_problem);
        let store_problem = self.lease_doubt.clone();
        let store_problem = store_problem.or_else(|| self.store_writes.problem());
        self.note_waiting(Code::StoreUnreachable, store_problem);
        if self.thinned.elapsed() >= THIN_PERIOD {
            self.thinned = Instant::now();
            let (store, lease) = (Arc::clone(&self.run.store), self.run.lease);
            self.note(async move { store.thin(&lease).await });
        }
        self.publish();
    }

    /// Notes or clears something that the job waits for; the first moment of it is kept.
    pub(super) fn note_waiting(&mut self, code: Code, detail: Option<String>) {
        let Some(detail) = detail else {
            if self.waiting.remove(&code).is_some() {
                tracing::info!(code = %code, "goes on");
            }
            return;
        };
        let now = self.run.clock.now();
        let entry = self.waiting.entry(code).or_insert_with(|| {
            tracing::warn!(code = %code, detail, "waits");
            Waiting {
                code,
                since: now,
                detail: String::new(),
            }
        });
        entry.detail = detail;
    }

    // --- status ------------------------------------------------------------------------------------------------------

    pub(super) fn publish(&self) {
        let partitions = self.partitions.iter().map(|(partition, state)| {
            let position = state.live.as_ref().and_then(|live| live.get());
            (
                partition.clone(),
                LivePartition {
                    subtask: state.subtask,
                    position,
                    topic_id: state.topic_id.clone(),
                    stop_offset: self
                        .run
                        .ends
                        .as_ref()
                        .and_then(|ends| ends.get(partition).copied()),
                    reason: state.reason.filter(|_| position.is_some()),
                    watermark: self.watermark_of(partition),
                },
            )
        });
        let sum = |of: fn(&Counters) -> &AtomicU64| {
            self.subtasks
                .iter()
                .map(|subtask| of(&subtask.view.counters).load(Ordering::Relaxed))
                .sum()
        };
        let status = JobStatus {
            epoch: self.run.lease.epoch,
            since: self.since,
            observed_at: self.run.clock.now(),
            stopping: self.stopping.as_ref().is_some_and(|stopping| {
                stopping.kind == CheckpointKind::Stop && !stopping.finishes
            }),
            partitions: Arc::new(partitions.collect()),
            records: sum(|counters| &counters.records),
            bytes: sum(|counters| &counters.bytes),
            redelivered: sum(|counters| &counters.redelivered),
            limits: self.run.spec.limits,
            throttled: self
                .subtasks
                .iter()
                .any(|subtask| subtask.view.activity() == Activity::RateLimit),
            throttled_for: self.limit.waited(),
            stages: Arc::clone(&self.stages),
            last_checkpoint: self.if_kept(&self.last).cloned(),
            in_progress: self
                .attempt
                .as_ref()
                .and_then(|attempt| self.if_kept(attempt))
                .map(|attempt| AttemptInProgress {
                    id: attempt.id,
                    kind: attempt.kind,
                    started_at: attempt.started_at,
                    uncertain: attempt
                        .store_write
                        .is_some_and(|write| self.store_writes.is_unanswered(write)),
                }),
            last_failed: self
                .last_failed
                .clone()
                .and_then(|failed| self.if_kept(failed)),
            consecutive_failures: self.if_kept(self.consecutive_failures).unwrap_or_default(),
            commits: CommitCounters {
                last_committed: self
                    .commits
                    .counters
                    .last_committed
                    .and_then(|id| self.if_kept(id)),
                ..self.commits.counters.clone()
            },
            waiting: self.waiting.values().cloned().collect(),
            discovery: self.discovery_status(),
            parked: Arc::clone(&self.parked),
            bad_records: BadRecordCounters {
                skipped: sum(|counters| &counters.skipped),
                dead_lettered: sum(|counters| &counters.dead_lettered),
            },
            sink_writes: self
                .subtasks
                .iter()
                .any(|subtask| subtask.view.sink_is_flushing()),
            positions_moved: self.moved,
            watermark: self
                .event_time
                .as_ref()
                .map(watermarks::JobEventTime::shown),
        };
        self.status.send_replace(Arc::new(status));
    }
}
