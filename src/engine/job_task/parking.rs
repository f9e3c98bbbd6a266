//! Parks partitions and lets them go on; see [`parked`](crate::engine::parked).

use std::{collections::BTreeSet, sync::Arc};

use serde_json::json;
use tokio::{sync::oneshot, time::Instant};

use super::JobTask;
use crate::{
    engine::{
        checkpoint_coordinator::CoordinatorEvent,
        error::{ConsumerError, JobError},
        parked::{Decided, SkipOutcome, SkipWaiter},
        pending_positions::Pending,
        subtask::PartitionChange,
    },
    model::{
        checkpoint::CheckpointKind, code::Code, errors_spec::Block, event::EventKind,
        ids::CheckpointId, job::PositionPolicy, job_status::JobFailure, offset::Offset,
        parked::ParkedPartition, topic::TopicPartition,
    },
};

impl JobTask {
    /// A subtask has parked a partition of its own accord.
    pub(super) fn on_parked(&mut self, partition: &TopicPartition, at: Offset, cause: JobError) {
        let is_outside = cause.code() == Code::OffsetOutOfRange;
        let moves = is_outside && self.run.spec.source.on_out_of_range != PositionPolicy::Fail;
        if matches!(cause, JobError::Consumer(_)) {
            // Whether the topic is gone, or another one has its name, the next look tells.
            self.discovery.hurry(Instant::now());
        }
        let may_pass = matches!(
            cause,
            JobError::Consumer(ConsumerError::TopicUnknown { .. })
        );
        if may_pass {
            tracing::debug!(%partition, "the brokers do not know it");
        } else if self.run.spec.errors.block == Block::Job && !moves {
            return self.on_blocked(cause);
        }
        let failure = cause.failure(self.run.clock.now());
        self.show_parked(partition, Some(at), failure);
        if is_outside {
            self.judge_outside(partition.clone());
        }
    }

    /// Parks a partition for something that was noticed here. Its subtask reads no further; a batch that it has taken is
    /// still written.
    pub(super) fn park(&mut self, partition: &TopicPartition, failure: JobFailure) {
        if self.parked.contains_key(partition) {
            return;
        }
        let Some(state) = self.partitions.get(partition) else {
            return;
        };
        let at = state.live.as_ref().and_then(|live| live.get());
        let subtask = state.subtask;
        if at.is_some() {
            self.tell_subtask(subtask, PartitionChange::Park(partition.clone()));
        }
        self.show_parked(partition, at, failure);
    }

    fn show_parked(&mut self, partition: &TopicPartition, at: Option<Offset>, failure: JobFailure) {
        if self.parked.contains_key(partition) {
            return;
        }
        tracing::error!(kafka.topic = %partition.topic, kafka.partition = partition.partition, kafka.offset = at.map(Offset::get), code = %failure.code, detail = failure.summary, "the partition is parked; the others go on");
        let parked = ParkedPartition::at(partition, at, failure);
        // Of a position outside the log it is told what is lost, once that is known.
        if parked.code != Code::OffsetOutOfRange {
            let details = json!({"parked": &parked});
            self.tell(EventKind::PartitionParked, details);
        }
        Arc::make_mut(&mut self.parked).insert(partition.clone(), parked);
    }

    /// Decides where a parked partition goes on: stored with the next checkpoint, then read from there.
    pub(super) fn decide(&mut self, partition: TopicPartition, decided: Decided) {
        self.pending.decide(partition, decided);
        if self.stopping.is_none() {
            self.coordinate(CoordinatorEvent::Trigger {
                kind: CheckpointKind::Periodic,
                timeout: None,
            });
        }
    }

    /// Takes other policies, from now on. What is parked for want of one goes on by it.
    pub(super) fn set_policies(
        &mut self,
        on_out_of_range: PositionPolicy,
        on_topic_recreated: PositionPolicy,
    ) {
        let source = &mut self.run.spec.source;
        let outside_changes = source.on_out_of_range != on_out_of_range;
        let recreated_changes = source.on_topic_recreated != on_topic_recreated;
        source.on_out_of_range = on_out_of_range;
        source.on_topic_recreated = on_topic_recreated;
        if outside_changes {
            self.judge_outside_anew();
        }
        if recreated_changes && self.moves_into_new_topics() {
            let waiting = self.parked.iter().filter(|(partition, parked)| {
                parked.code == Code::TopicRecreated && !self.pending.holds(partition)
            });
            let waiting: Vec<TopicPartition> =
                waiting.map(|(partition, _)| partition.clone()).collect();
            for partition in waiting {
                if let Some(position) = self.position_of(&partition) {
                    self.pending.add(partition, Pending::Held(position));
                }
            }
            self.look_up_at_once();
        }
        self.publish();
    }

    /// A parked partition is read again.
    pub(super) fn goes_on(&mut self, partition: &TopicPartition, at: Offset) {
        if !self.parked.contains_key(partition) {
            return;
        }
        let parked = Arc::make_mut(&mut self.parked).remove(partition);
        let details =
            json!({"parked": parked, "goes_on_at": at, "checkpoint": self.if_kept(self.last.id)});
        self.tell(EventKind::PartitionGoesOn, details);
    }

    /// Leaves out the record at which a partition is parked. A compare-and-set: any other position is refused.
    pub(super) fn on_skip(
        &mut self,
        partition: TopicPartition,
        at: Offset,
        reply: oneshot::Sender<SkipOutcome>,
    ) {
        let stands_there = self
            .parked
            .get(&partition)
            .is_some_and(|parked| parked.stands_at_record(at));
        let next = Offset::after(at.get()).filter(|_| stands_there);
        let (Some(next), Some(state)) = (next, self.partitions.get(&partition)) else {
            // A caller that went away loses only the answer.
            let _unheard = reply.send(SkipOutcome::NotParkedThere);
            return;
        };
        let decided = Decided {
            offset: next,
            topic_id: state.topic_id.clone(),
            reason: None,
            position_id: None,
        };
        self.skips.push(SkipWaiter {
            partition: partition.clone(),
            next_offset: next,
            reply,
        });
        self.decide(partition, decided);
    }

    /// Whether one of these decisions is an operator's over a record.
    pub(super) fn skips_a_record(&self, decided: &BTreeSet<TopicPartition>) -> bool {
        self.skips
            .iter()
            .any(|skip| decided.contains(&skip.partition))
    }

    /// Answers those whose record a completed checkpoint leaves out.
    pub(super) fn answer_skips(&mut self, id: CheckpointId) {
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.skips)
            .into_iter()
            .partition(|skip| {
                let stored = self.last_offsets.get(&skip.partition);
                stored.is_some_and(|stored| *stored >= skip.next_offset)
            });
        self.skips = waiting;
        for skip in done {
            // A caller that went away loses only the answer.
            let _unheard = skip.reply.send(SkipOutcome::Skipped {
                checkpoint: self.if_kept(id),
                next_offset: skip.next_offset,
            });
        }
    }

    /// Gives a subtask a change of its partitions. There is room for them all, unless the subtask is ending.
    pub(super) fn tell_subtask(&mut self, subtask: u32, change: PartitionChange) {
        let Some(subtask) = self.subtasks.get(subtask as usize) else {
            return;
        };
        if subtask.partitions.try_send(change).is_err() {
            // It must not be forgotten, so the job begins again.
            self.fail(JobError::Panicked {
                part: "subtask".to_owned(),
                detail: "it does not take changes of its partitions".to_owned(),
            });
        }
    }
}
