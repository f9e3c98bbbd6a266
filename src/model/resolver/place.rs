//! Holds a wanted position against the log.

use super::{
    LogBounds, PlannedParking, StartReason,
    decide::{Resolution, Stands},
};
use crate::model::{
    code::Code,
    ids::CheckpointId,
    job::PositionPolicy,
    offset::Offset,
    parked::{LostRange, LostSide},
    topic::TopicPartition,
};

/// A partition's position before it is held against the log.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    /// A number from somewhere; it may lie outside of the log, and a shift may take it below 0.
    At {
        number: i64,
        reason: StartReason,
        position_id: Option<CheckpointId>,
    },
    /// The log's beginning.
    Earliest(StartReason),
    /// The end of what can be read.
    Latest(StartReason),
    /// Nothing can be taken, and a blocker says why.
    Blocked(StartReason),
}

impl Wanted {
    pub(super) fn at(offset: Offset, reason: StartReason) -> Self {
        Self::At {
            number: offset.get(),
            reason,
            position_id: None,
        }
    }
}

/// A partition's beginning, after the log was looked at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    pub(super) start_at: Option<Offset>,
    pub(super) reason: StartReason,
    pub(super) position_id: Option<CheckpointId>,
    /// The number that lay outside of the log.
    pub(super) asked: Option<i64>,
}

impl Placed {
    pub(super) fn new(start_at: Option<Offset>, reason: StartReason) -> Self {
        Self {
            start_at,
            reason,
            position_id: None,
            asked: None,
        }
    }
}

impl Resolution<'_> {
    /// The end of what this job can read. The ends were not asked for in one instant, so it is held above the beginning.
    pub(super) fn end_of(&self, bounds: LogBounds) -> Offset {
        bounds
            .readable_end(self.inputs.isolation)
            .max(bounds.earliest)
    }

    /// Holds the wanted position against the log.
    pub(super) fn place(
        &mut self,
        partition: &TopicPartition,
        wanted: Wanted,
        bounds: LogBounds,
    ) -> Placed {
        let (number, reason, position_id) = match wanted {
            Wanted::Earliest(reason) => return Placed::new(Some(bounds.earliest), reason),
            Wanted::Latest(reason) => return Placed::new(Some(self.end_of(bounds)), reason),
            Wanted::Blocked(reason) => return Placed::new(None, reason),
            Wanted::At {
                number,
                reason,
                position_id,
            } => (number, reason, position_id),
        };
        if (bounds.earliest.get()..=bounds.latest.get()).contains(&number) {
            return Placed {
                position_id,
                ..Placed::new(Offset::new(number), reason)
            };
        }
        if reason == StartReason::StartupTimestamp && number > bounds.latest.get() {
            // Written after the ends were asked for: until then there was no record of that age.
            return Placed::new(Some(self.end_of(bounds)), StartReason::TimestampPastEnd);
        }
        if let Some(parked) = self.park_outside(partition, wanted, bounds) {
            return parked;
        }
        self.place_outside(partition, number, bounds)
    }

    /// A position of the checkpoint or the sink that lies outside stays where it is, if the partition may be parked there.
    fn park_outside(
        &mut self,
        partition: &TopicPartition,
        wanted: Wanted,
        bounds: LogBounds,
    ) -> Option<Placed> {
        let Wanted::At {
            number,
            reason: StartReason::Checkpoint | StartReason::SinkProgress,
            position_id,
        } = wanted
        else {
            return None;
        };
        if self.inputs.policies.on_out_of_range != PositionPolicy::Fail {
            return None;
        }
        let again = self.may_park(partition)?;
        let offset = Offset::new(number)?;
        let lost = LostRange::between(offset, &bounds)?;
        let parking = PlannedParking {
            code: Code::OffsetOutOfRange,
            detail: format!("{partition}: the position is {offset}, outside the log; {lost}"),
            lost: Some(lost),
            replaced_by: None,
            again,
        };
        let stands = Stands {
            offset,
            position_id,
        };
        self.parked.insert(partition.clone(), (stands, parking));
        let reason = match lost.side {
            LostSide::BelowEarliest => StartReason::BelowEarliest,
            LostSide::BeyondLatest => StartReason::BeyondLatest,
        };
        Some(Placed::new(None, reason))
    }

    fn place_outside(
        &mut self,
        partition: &TopicPartition,
        number: i64,
        bounds: LogBounds,
    ) -> Placed {
        let is_below = number < bounds.earliest.get();
        let (reason, why) = if is_below {
            let gone = bounds.earliest.get() - number.max(0);
            let earliest = bounds.earliest;
            let gone = match gone {
                0 => "nothing is gone, for offsets begin at 0".to_owned(),
                1 => "1 offset is gone".to_owned(),
                more => format!("{more} offsets are gone"),
            };
            let why = format!(
                "{partition}: the position is {number}, the log starts at {earliest}: {gone}"
            );
            (StartReason::BelowEarliest, why)
        } else {
            let latest = bounds.latest;
            let why = format!("{partition}: the position is {number}, the log ends at {latest}");
            (StartReason::BeyondLatest, why)
        };
        let policy = self.inputs.policies.on_out_of_range;
        let code = Code::OffsetOutOfRange;
        let choices = [
            ("on_out_of_range", "earliest"),
            ("on_out_of_range", "latest"),
        ];
        let start_at = match self.by_policy(partition, policy, reason, code, &why, &choices) {
            Wanted::Earliest(_) => Some(bounds.earliest),
            Wanted::Latest(_) => Some(self.end_of(bounds)),
            Wanted::At { .. } | Wanted::Blocked(_) => None,
        };
        Placed {
            asked: Some(number),
            ..Placed::new(start_at, reason)
        }
    }

    /// A number needs no leader. What is no number may stay open only if the startup mode wants it, which is asked again at
    /// the next look; see the module above.
    pub(super) fn place_without_leader(
        &mut self,
        partition: &TopicPartition,
        wanted: Wanted,
    ) -> Placed {
        if let Wanted::Blocked(reason) = wanted {
            return Placed::new(None, reason);
        }
        if let Wanted::At {
            number,
            reason,
            position_id,
        } = wanted
            && let Some(offset) = Offset::new(number)
        {
            return Placed {
                position_id,
                ..Placed::new(Some(offset), reason)
            };
        }
        if self.moved_once(partition) {
            let from = self.inputs.from.name();
            let why = format!(
                "{partition}: without a leader from={from} gives no offset, and is not remembered for later"
            );
            self.blockers.add(Code::NoLeader, partition, &why, &[]);
            return Placed::new(None, StartReason::NoLeader);
        }
        if let Wanted::Earliest(reason) = wanted
            && matches!(
                reason,
                StartReason::NewSinceCheckpoint | StartReason::TopicRecreated
            )
        {
            // Offset 0 is the beginning of a log that lost nothing; of one that did, `on_out_of_range` decides later.
            return Placed::new(Some(Offset::ZERO), reason);
        }
        if let Wanted::Latest(reason @ StartReason::TopicRecreated) = wanted {
            let why = format!("{partition}: without a leader its end is not known");
            let choices = [("on_topic_recreated", "earliest")];
            self.blockers
                .add(Code::TopicRecreated, partition, &why, &choices);
            return Placed::new(None, reason);
        }
        Placed::new(None, StartReason::NoLeader)
    }
}
