//! What a stop leaves behind: whether anything of the job can still write, what will come again, and from where it goes on.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    core::Core,
    sink_progress::{Answer, NoAnswer, ask, make_sink, no_answer},
};
use crate::{
    engine::{backoff::Backoff, error::ErrorClass, ports::Sink},
    model::{
        checkpoint::CheckpointPosition,
        code::Code,
        ids::{CheckpointId, LeaseEpoch},
        job::JobSpec,
        resolver::{SinkProgress, Warning},
        topic::TopicPartition,
        views::{Fence, SourceStatus},
    },
    store::JobRow,
};

/// The longest pause between two attempts at a sink that is away, while somebody waits for a stop.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The sink at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SinkEnd {
    pub(crate) fence: Fence,
    /// What it holds, if it was asked and answered.
    progress: Option<SinkProgress>,
    /// Why it is not known what it holds.
    unknown: Option<String>,
}

impl SinkEnd {
    /// Nobody needed to ask.
    pub(crate) fn quiet(fence: Fence) -> Self {
        Self {
            fence,
            progress: None,
            unknown: None,
        }
    }

    /// It was claimed, or it did not answer in time.
    pub(crate) fn of_claim(claim: Result<SinkProgress, NoAnswer>) -> Self {
        match claim {
            Ok(progress) => Self {
                progress: Some(progress),
                ..Self::quiet(Fence::Claimed)
            },
            Err(error) => Self::unknown(error.detail),
        }
    }

    /// It could not be claimed.
    pub(crate) fn unknown(why: String) -> Self {
        Self {
            unknown: Some(why),
            ..Self::quiet(Fence::Open)
        }
    }

    /// The sink of a run that ended in this server, or of none.
    pub(crate) async fn of_closed(core: &Core, row: &JobRow) -> Self {
        let Some(install) = core.known_install() else {
            return Self::quiet(Fence::Closed);
        };
        match make_sink(core, &row.spec.sink, &row.name, (install, row.uid)) {
            Ok(sink) => Self::of_answer(ask(&*sink).await),
            // No start can use it either, and says so.
            Err(_) => Self::quiet(Fence::Closed),
        }
    }

    fn of_answer(answer: Answer) -> Self {
        match answer {
            Ok(None) => Self::quiet(Fence::None),
            Ok(progress) => Self {
                progress,
                ..Self::quiet(Fence::Closed)
            },
            Err(error) => Self {
                unknown: Some(error.detail),
                ..Self::quiet(Fence::Closed)
            },
        }
    }

    /// How many records that the sink may hold come again. `otherwise` is what the run says of a sink that keeps no
    /// progress; one that does goes on where it stands.
    pub(crate) fn will_replay(&self, otherwise: Option<i64>) -> Option<i64> {
        if self.unknown.is_some() {
            return None;
        }
        if self.progress.is_some() {
            return Some(0);
        }
        otherwise
    }

    /// What a sink that was claimed holds, or why that is not known.
    pub(crate) fn into_progress(self) -> Result<SinkProgress, String> {
        match self.unknown {
            Some(why) => Err(why),
            None => Ok(self.progress.unwrap_or_default()),
        }
    }

    pub(crate) fn warnings(&self) -> Vec<Warning> {
        let unknown = self.unknown.iter().map(|why| Warning {
            code: Code::SinkOutcomeUnknown,
            summary: format!(
                "what the sink kept of the last records is not known ({why}); the next start asks it before it reads anything"
            ),
        });
        unknown.collect()
    }

    /// Where a start would go on, in words.
    pub(crate) fn resume_from(
        &self,
        newest: Option<(CheckpointId, &BTreeMap<TopicPartition, CheckpointPosition>)>,
        spec: &JobSpec,
    ) -> String {
        let Some((id, positions)) = newest else {
            let mode = spec.startup_mode.name();
            let off = spec.checkpointing().is_off();
            let why = if off { " (checkpoints are off)" } else { "" };
            return format!("startup mode {mode}{why}");
        };
        let beyond = self.progress.iter().flatten().filter(|(partition, held)| {
            positions.get(*partition).is_some_and(|stored| {
                stored.position_id == held.position_id
                    && stored
                        .next_offset
                        .is_some_and(|stored| stored < held.next_offset)
            })
        });
        match beyond.count() {
            0 => format!("checkpoint {id}"),
            1 => format!("checkpoint {id}, and where the sink stands beyond it in 1 partition"),
            more => {
                format!("checkpoint {id}, and where the sink stands beyond it in {more} partitions")
            }
        }
    }
}

/// Claims a sink for an epoch, again and again while it is away and time is left. What a dead owner still sends is refused
/// from then on, and what it had sent is settled.
pub(crate) async fn claim(
    sink: &dyn Sink,
    epoch: LeaseEpoch,
    patience: Duration,
) -> Result<SinkProgress, NoAnswer> {
    let deadline = Instant::now() + patience;
    let mut pauses = Backoff::up_to(LONGEST_PAUSE);
    loop {
        let error = match timeout_at(deadline, sink.recover(epoch)).await {
            Ok(Ok(progress)) => return Ok(progress),
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                return Err(NoAnswer {
                    status: SourceStatus::Timeout,
                    code: Code::SinkUnreachable,
                    detail: format!("no answer within {} s", patience.as_secs()),
                });
            }
        };
        let pause = pauses.next_pause();
        let is_over = Instant::now() + pause >= deadline;
        if error.class == ErrorClass::Deterministic || is_over {
            return Err(no_answer(&error));
        }
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{offset::Offset, resolver::SinkPosition};

    fn offset(number: i64) -> Offset {
        Offset::new(number).unwrap()
    }

    fn away() -> NoAnswer {
        NoAnswer {
            status: SourceStatus::Unreachable,
            code: Code::SinkUnreachable,
            detail: "connection refused".to_owned(),
        }
    }

    #[test]
    fn a_stop_tells_from_where_the_job_goes_on() {
        let partition = |number| TopicPartition::new("orders", number);
        let stored = |next_offset| CheckpointPosition {
            next_offset: Some(offset(next_offset)),
            position_id: CheckpointId(3),
            topic_id: None,
        };
        let positions = BTreeMap::from([(partition(0), stored(50)), (partition(1), stored(60))]);
        let newest = Some((CheckpointId(9), &positions));
        let held = |next_offset, position_id| SinkPosition {
            next_offset: offset(next_offset),
            position_id: CheckpointId(position_id),
        };
        let claimed = |zero, one| {
            SinkEnd::of_claim(Ok(BTreeMap::from([
                (partition(0), zero),
                (partition(1), one),
            ])))
        };
        let rows = [
            (SinkEnd::quiet(Fence::None), "checkpoint 9"),
            (claimed(held(50, 3), held(60, 3)), "checkpoint 9"),
            // An older decision: the sink has not heard of the newer one.
            (claimed(held(50, 3), held(90, 2)), "checkpoint 9"),
            (
                claimed(held(50, 3), held(61, 3)),
                "checkpoint 9, and where the sink stands beyond it in 1 partition",
            ),
            (
                claimed(held(51, 3), held(61, 3)),
                "checkpoint 9, and where the sink stands beyond it in 2 partitions",
            ),
        ];
        let document = serde_json::json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "latest"}, "sink": {"type": "blackhole"},
        });
        let spec = JobSpec::read(&crate::model::JobName::new("orders").unwrap(), &document);
        let spec = spec.unwrap();
        for (end, words) in rows {
            assert_eq!(end.resume_from(newest, &spec), words, "{end:?}");
            assert_eq!(end.resume_from(None, &spec), "startup mode latest");
        }
    }

    #[test]
    fn what_comes_again_is_known_where_the_sink_knows_it() {
        let given = Some(7);
        let rows = [
            (SinkEnd::quiet(Fence::None), given, Fence::None, false),
            (SinkEnd::quiet(Fence::Closed), given, Fence::Closed, false),
            (
                SinkEnd::of_claim(Ok(SinkProgress::new())),
                Some(0),
                Fence::Claimed,
                false,
            ),
            (SinkEnd::of_claim(Err(away())), None, Fence::Open, true),
            (SinkEnd::of_answer(Ok(None)), given, Fence::None, false),
            (
                SinkEnd::of_answer(Ok(Some(SinkProgress::new()))),
                Some(0),
                Fence::Closed,
                false,
            ),
            (SinkEnd::of_answer(Err(away())), None, Fence::Closed, true),
        ];
        for (end, replay, fence, unknown) in rows {
            assert_eq!(end.will_replay(given), replay, "{end:?}");
            assert_eq!(end.fence, fence, "{end:?}");
            let codes: Vec<Code> = end.warnings().iter().map(|warning| warning.code).collect();
            assert_eq!(
                codes,
                Vec::from_iter(unknown.then_some(Code::SinkOutcomeUnknown))
            );
        }
    }
}
