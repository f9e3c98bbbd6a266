//! What the job waits for, and what it shows.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{Background, JobTask};
use crate::{
    engine::{
        checkpoint_coordinator::CoordinatorEvent, error::KafkaError, fetcher::Counters,
        parked::Decided, pending_positions,
    },
    model::{
        checkpoint::CheckpointKind,
        code::Code,
        job_status::{AttemptInProgress, JobStatus, LivePartition, Waiting},
        topic::TopicPartition,
    },
};

/// How often partitions without a leader are asked for.
const PENDING_PERIOD: Duration = Duration::from_secs(2);
/// How often the history is thinned.
const THIN_PERIOD: Duration = Duration::from_secs(60);

impl JobTask {
    pub(super) fn on_tick(&mut self) {
        let kafka_problem = self
            .subtasks
            .iter()
            .find_map(|subtask| subtask.reachability.problem());
        self.note_waiting(Code::KafkaUnreachable, kafka_problem);
        self.watch_pending();
        self.watch_ends();
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

    pub(super) fn watch_pending(&mut self) {
        let unresolved = self.pending.unresolved();
        let names: Vec<String> = unresolved.iter().map(ToString::to_string).collect();
        let waits =
            (!names.is_empty()).then(|| format!("no leader answers for {}", names.join(", ")));
        if waits.is_some() && !self.looking_up && self.looked_up.elapsed() >= PENDING_PERIOD {
            self.looking_up = true;
            let (kafka, spec, unresolved) = (
                Arc::clone(&self.run.kafka),
                self.run.spec.clone(),
                unresolved.clone(),
            );
            let now_ms = self.run.clock.now().timestamp_millis();
            self.background.spawn(async move {
                Background::LookedUp(
                    pending_positions::look_up(kafka, spec, unresolved, now_ms).await,
                )
            });
        }
        self.note_waiting(Code::NoLeader, waits);
    }

    pub(super) fn on_looked_up(
        &mut self,
        outcome: Result<BTreeMap<TopicPartition, Decided>, KafkaError>,
    ) {
        self.looking_up = false;
        self.looked_up = Instant::now();
        match outcome {
            Ok(found) => {
                self.pending.found(found);
                // The position is stored before the first fetch.
                if !self.pending.resolved().is_empty() && self.stopping.is_none() {
                    let event = CoordinatorEvent::Trigger {
                        kind: CheckpointKind::Periodic,
                        timeout: None,
                    };
                    self.coordinate(event);
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, "partitions without a leader could not be looked up");
            }
        }
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
                    stop_offset: self
                        .run
                        .ends
                        .as_ref()
                        .and_then(|ends| ends.get(partition).copied()),
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
            last_checkpoint: Some(self.last.clone()),
            in_progress: self.attempt.as_ref().map(|attempt| AttemptInProgress {
                id: attempt.id,
                kind: attempt.kind,
                started_at: attempt.started_at,
                uncertain: attempt
                    .store_write
                    .is_some_and(|write| self.store_writes.is_unanswered(write)),
            }),
            last_failed: self.last_failed.clone(),
            consecutive_failures: self.consecutive_failures,
            commits: self.commits.counters.clone(),
            waiting: self.waiting.values().cloned().collect(),
            parked: Arc::clone(&self.parked),
        };
        self.status.send_replace(Arc::new(status));
    }
}
