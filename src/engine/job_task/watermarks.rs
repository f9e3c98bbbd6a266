//! Keeps the event time of a job; see [`watermarks`](crate::engine::watermarks).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::{Background, JobTask};
use crate::{
    engine::{
        error::KafkaError,
        subtask::{Activity, Intake},
        watermarks::{
            EventTime, EventTimes, PartitionSeen, Pausing, SharedWatermark, Standing, SubtaskSeen,
            Watermarks,
        },
    },
    model::{
        code::Code,
        job::JobSpec,
        offset::Offset,
        resolver::LogBounds,
        topic::TopicPartition,
        watermark::{JobWatermark, PartitionWatermark, TimestampSource},
    },
};

/// Least time between two questions whether quiet partitions have anything to read.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long the answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// Least time between two looks, however often one is due.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// And so many times what the last one took: a look is at every partition, and must not be what the job does.
const LOOK_SHARE: u32 = 20;

/// What a job that keeps event time has for that.
pub(super) struct JobEventTime {
    watermarks: Watermarks,
    source: TimestampSource,
    aligns: bool,
    shared: Arc<SharedWatermark>,
    /// When the next look may be.
    look_from: Instant,
    asked: Option<Instant>,
    asking: bool,
}

impl JobEventTime {
    pub(super) fn of(spec: &JobSpec) -> Option<Self> {
        let watermark = spec.watermark.as_ref()?;
        let aligns = watermark.alignment.is_some();
        Some(Self {
            watermarks: Watermarks::new(watermark, spec.parallelism),
            source: watermark.timestamp.clone(),
            aligns,
            shared: Arc::new(SharedWatermark::new(aligns)),
            look_from: Instant::now(),
            asked: None,
            asking: false,
        })
    }

    /// What a subtask needs to find and note time stamps.
    pub(super) fn for_subtask(&self) -> EventTime {
        EventTime::new(self.source.clone(), Arc::clone(&self.shared))
    }

    /// Waits until alignment needs a look before its time. May be dropped and called again.
    pub(super) async fn look_due(of_job: Option<&Self>) {
        let Some(time) = of_job.filter(|time| time.aligns) else {
            return std::future::pending().await;
        };
        // First the pause: nothing that is due may be forgotten where this is dropped.
        tokio::time::sleep_until(time.look_from).await;
        time.shared.due().await;
    }

    /// What the status shows.
    pub(super) fn shown(&self) -> JobWatermark {
        self.watermarks.of_job()
    }
}

/// The two ends of what a subtask is to hold back; nothing without alignment.
type Ends = (
    Option<Pausing>,
    Option<watch::Sender<Arc<BTreeSet<TopicPartition>>>>,
);

impl JobTask {
    pub(super) fn pausing(&self) -> Ends {
        if !self.event_time.as_ref().is_some_and(|time| time.aligns) {
            return (None, None);
        }
        let (sender, wanted) = watch::channel(Arc::default());
        (Some(Pausing::new(wanted)), Some(sender))
    }

    /// Takes a look, tells the subtasks, and asks whether quiet partitions have anything to read.
    pub(super) fn watch_event_time(&mut self) {
        self.look_at_event_time();
        let Some(time) = &mut self.event_time else {
            return;
        };
        let asked = time.asked;
        let is_due = asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN);
        if time.asking || !is_due {
            return;
        }
        let quiet = time.watermarks.to_ask();
        if quiet.is_empty() {
            return;
        }
        time.asking = true;
        time.asked = Some(Instant::now());
        let kafka = Arc::clone(&self.run.kafka);
        self.background.spawn(async move {
            let question = "ask for the ends of quiet partitions";
            let ends = kafka.log_bounds(&quiet);
            let ends = KafkaError::unless_answered(question, ANSWER, ends);
            Background::ReadableEnds(ends.await)
        });
    }

    pub(super) fn on_readable_ends(
        &mut self,
        answer: Result<BTreeMap<TopicPartition, LogBounds>, KafkaError>,
    ) {
        // First what was read meanwhile: only what has been quiet until now can be idle.
        self.look_at_event_time();
        let isolation = self.run.spec.source.isolation;
        let Some(time) = &mut self.event_time else {
            return;
        };
        time.asking = false;
        match answer {
            Ok(bounds) => {
                let ends: BTreeMap<TopicPartition, Offset> = bounds
                    .into_iter()
                    .map(|(partition, bounds)| (partition, bounds.readable_end(isolation)))
                    .collect();
                time.watermarks.hear_ends(&ends);
            }
            Err(error) => {
                tracing::debug!(%error, "whether quiet partitions have anything to read is not known");
            }
        }
        self.tell_event_time();
        self.publish();
    }

    pub(super) fn look_at_event_time(&mut self) {
        if self.event_time.is_none() {
            return;
        }
        let began = Instant::now();
        let (subtasks, partitions) = (self.subtasks_seen(), self.partitions_seen());
        if let Some(time) = &mut self.event_time {
            time.watermarks.see(began, &subtasks, partitions);
        }
        self.tell_event_time();
        if let Some(time) = &mut self.event_time {
            let ended = Instant::now();
            let pause = ended.saturating_duration_since(began) * LOOK_SHARE;
            time.look_from = ended + pause.max(LOOK_AGAIN);
        }
    }

    fn tell_event_time(&self) {
        let Some(time) = &self.event_time else {
            return;
        };
        if time.aligns {
            let paused = Arc::new(time.watermarks.paused());
            for wanted in self.subtasks.iter().filter_map(|one| one.paused.as_ref()) {
                wanted.send_if_modified(|now| {
                    let differs = *now != paused;
                    if differs {
                        *now = Arc::clone(&paused);
                    }
                    differs
                });
            }
        }
        // Behind that: who waited for this look finds what is to be held back.
        time.shared
            .set(time.watermarks.watermark(), time.watermarks.allowed());
    }

    fn subtasks_seen(&self) -> Vec<SubtaskSeen> {
        let seen = self.subtasks.iter().map(|subtask| SubtaskSeen {
            open: *subtask.intake.borrow() == Intake::Open
                && subtask.reachability.problem().is_none()
                && subtask.view.sink_problem().is_none(),
            waits_for_sink: {
                let activity = subtask.view.activity();
                activity.waits_for_sink() || activity == Activity::DeadLetters
            },
            records: subtask
                .view
                .counters
                .records
                .load(std::sync::atomic::Ordering::Relaxed),
        });
        seen.collect()
    }

    fn partitions_seen(&self) -> BTreeMap<TopicPartition, PartitionSeen> {
        let seen = self.partitions.iter().map(|(partition, state)| {
            // The position first: what was seen of the time stamps up to there is behind it.
            let position = state.live.as_ref().and_then(|live| live.get());
            let times = state.live.as_ref().map(|live| live.event_times());
            let seen = PartitionSeen {
                subtask: state.subtask,
                standing: self.standing(partition, position),
                position,
                greatest: times.and_then(EventTimes::greatest),
                records: times.map_or(0, EventTimes::records),
                late: times.map_or(0, EventTimes::late),
            };
            (partition.clone(), seen)
        });
        seen.collect()
    }

    fn standing(&self, partition: &TopicPartition, position: Option<Offset>) -> Standing {
        let end = self.run.ends.as_ref().and_then(|ends| ends.get(partition));
        let has_ended = end.is_some_and(|end| position >= Some(*end));
        match self.parked.get(partition).map(|parked| parked.code) {
            _ if has_ended => Standing::Left,
            Some(Code::PartitionGone) => Standing::Left,
            Some(_) => Standing::Waits,
            None if position.is_none() => Standing::Waits,
            None => Standing::Read,
        }
    }

    /// Whether alignment holds a partition back.
    pub(super) fn is_held_back(&self, partition: &TopicPartition) -> bool {
        let time = self.event_time.as_ref();
        time.is_some_and(|time| time.watermarks.is_paused(partition))
    }

    pub(super) fn watermark_of(&self, partition: &TopicPartition) -> Option<PartitionWatermark> {
        let time = self.event_time.as_ref()?;
        time.watermarks.of_partition(partition)
    }
}
