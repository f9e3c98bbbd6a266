//! Begins a run: subtasks, their consumers, and what each of them reads first.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use tokio::sync::{mpsc, watch};

use super::{JobTask, Subtask};
use crate::{
    engine::{
        consumer_thread::{self, Reachability, Request},
        error::{ConsumerError, JobError},
        fetcher::Fetcher,
        ports::ConsumerSettings,
        subtask::{Intake, SubtaskChannels, SubtaskEvent, SubtaskTask, SubtaskView},
    },
    model::{resolver::SinkPosition, topic::TopicPartition},
};

/// Changes of partitions that appear in a run which wait for a subtask; it takes them between two batches.
const NEW_PARTITIONS: usize = 10_000;

impl JobTask {
    pub(super) fn open_subtasks(
        &mut self,
        events: &mpsc::Sender<SubtaskEvent>,
    ) -> Result<(), JobError> {
        (0..self.run.spec.parallelism).try_for_each(|subtask| self.open_subtask(subtask, events))
    }

    /// Registers the partitions that a subtask begins with; answers what its consumer reads, and the positions its sink hears.
    fn beginnings(
        &self,
        subtask: u32,
        fetcher: &mut Fetcher,
    ) -> (Vec<Request>, Vec<(TopicPartition, SinkPosition)>) {
        let mut assignments = Vec::new();
        let mut begin = Vec::new();
        let of_subtask = self.partitions.iter();
        for (partition, state) in of_subtask.filter(|(_, state)| state.subtask == subtask) {
            let Some(live) = &state.live else { continue };
            let Some(position) = live.get() else { continue };
            if self.parked.contains_key(partition) {
                continue;
            }
            let assignment = (partition.clone(), position);
            fetcher.register(&assignment, state.position_id, 0, Arc::clone(live));
            assignments.push(Request::Read(assignment));
            let for_sink = SinkPosition {
                next_offset: position,
                position_id: state.position_id,
            };
            begin.push((partition.clone(), for_sink));
        }
        begin.extend(self.positions_for_the_sink(subtask));
        (assignments, begin)
    }

    fn open_subtask(
        &mut self,
        subtask: u32,
        events: &mpsc::Sender<SubtaskEvent>,
    ) -> Result<(), JobError> {
        let settings = ConsumerSettings {
            job: self.run.name.to_string(),
            subtask,
            source: self.run.spec.source.clone(),
        };
        let consumer = self
            .run
            .kafka
            .consumer(&settings)
            .map_err(ConsumerError::Kafka)?;
        if self.committer.is_none() {
            self.committer = Some(consumer.committer());
        }
        let (producer, batches) = handover_slot::channel();
        let view = Arc::new(SubtaskView::default());
        let mut fetcher = Fetcher::new(self.run.spec.source.format, Arc::clone(&view.counters));
        if let Some(ends) = &self.run.ends {
            fetcher.end_at(ends.clone());
        }
        let (pausing, paused) = self.pausing();
        if let Some(event_time) = &self.event_time {
            fetcher.keep_event_time(event_time.for_subtask());
        }
        let (assignments, begin) = self.beginnings(subtask, &mut fetcher);
        let asked = assignments.len() as u64;
        batches.assign(assignments);
        let reachability = Reachability::default();
        let thread_name = format!("consumer-{}-{subtask}", self.run.name);
        let thread_ended = consumer_thread::spawn(
            self.threads,
            &thread_name,
            consumer,
            producer,
            reachability.clone(),
            Arc::clone(&view.blocked),
        )
        .map_err(|error| JobError::Panicked {
            part: thread_name,
            detail: error.to_string(),
        })?;
        let (barrier, barrier_receiver) = watch::channel(None);
        let (intake, intake_receiver) = watch::channel(Intake::Open);
        // There is room for every partition to come, to be parked and to come again, and for those that appear.
        let of_subtask = self
            .partitions
            .values()
            .filter(|state| state.subtask == subtask);
        let (partitions, partition_receiver) =
            mpsc::channel(2 * of_subtask.count() + NEW_PARTITIONS);
        let task = SubtaskTask {
            subtask,
            batches,
            asked,
            fetcher,
            sink: Arc::clone(&self.run.sink),
            begin,
            channels: SubtaskChannels {
                barrier: barrier_receiver,
                intake: intake_receiver,
                partitions: partition_receiver,
                events: events.clone(),
                cancel: self.cancel.clone(),
            },
            view: Arc::clone(&view),
            limit: Arc::clone(&self.limit),
            held: None,
            has_output: false,
            pausing,
            clock: Arc::clone(&self.run.clock),
            job: self.run.name.clone(),
            bad_records: self.bad_records(),
        };
        self.tasks
            .spawn(tracing::Instrument::in_current_span(async move {
                let outcome = AssertUnwindSafe(task.run()).catch_unwind().await;
                let outcome = outcome.unwrap_or_else(|panic| {
                    Err(JobError::Panicked {
                        part: format!("subtask {subtask}"),
                        detail: consumer_thread::panic_text(panic.as_ref()),
                    })
                });
                (subtask, outcome)
            }));
        self.subtasks.push(Subtask {
            barrier,
            intake,
            partitions,
            view,
            reachability,
            thread_ended,
            paused,
        });
        Ok(())
    }
}
