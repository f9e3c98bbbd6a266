//! What the last look at a job's sink says of the next start, for views that do not ask the sink themselves.
//!
//! A sink is asked only where somebody looks at its progress. Somebody who has just seen there that a start would be refused
//! must not read beside it that the job may simply be started.

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    comparison::{CheckpointSource, Comparison, SinkHolds, compare},
    core::JobFacts,
    jobs::age_ms,
};
use crate::model::{
    code::Code,
    ids::{CheckpointId, JobName},
    job_state::JobState,
    resolver::Warning,
    views::Flag,
};

/// What an older look saw may have been mended since.
const RECENT: TimeDelta = TimeDelta::minutes(5);

/// The sink and the checkpoint of a stopped job disagree, so that a bare start is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disagreement {
    /// What the start would be refused with.
    pub(crate) code: Code,
    pub(crate) checkpoint: CheckpointId,
    /// In how many partitions.
    pub(crate) partitions: usize,
    /// Milliseconds since the sink was asked.
    pub(crate) age_ms: i64,
}

/// Whether the progress belongs to another target than the checkpoint's, and so to another time.
pub(crate) fn is_other(checkpoint: CheckpointSource<'_>, holds: &SinkHolds) -> bool {
    match checkpoint {
        CheckpointSource::Known(known) => {
            !known.sink_identity.is_empty() && known.sink_identity != holds.identity
        }
        CheckpointSource::Unknown | CheckpointSource::Absent => false,
    }
}

/// What stands against a start by the last look, if that was made at the sink of the spec, since the job stopped, and
/// recently.
pub(crate) fn disagreement(
    job: &JobName,
    facts: &JobFacts,
    now: DateTime<Utc>,
) -> Option<Disagreement> {
    let (state, since) = facts.shown_state();
    let checkpoint = facts.newest_checkpoint();
    let CheckpointSource::Known(known) = checkpoint else {
        return None;
    };
    let at = facts.sink.at?;
    let holds = facts.sink.current().and_then(Option::as_ref)?;
    let is_of_this_sink = facts.sink_asked.as_ref()?.1 == facts.row.spec.sink;
    let counts = state == JobState::Stopped && is_of_this_sink && at >= since && now - at <= RECENT;
    if !counts || is_other(checkpoint, holds) {
        return None;
    }
    let partitions = compare(&Comparison {
        job,
        install: None,
        spec: facts.spec(),
        brokers: None,
        brokers_at: None,
        group: None,
        live: None,
        checkpoint,
        sink: Some(holds),
        ends: None,
        unread: None,
        log_starts: None,
        checkpoint_every: None,
        now,
    });
    let having = |flag: Flag| {
        let flagged = partitions
            .iter()
            .filter(|shown| shown.flags.contains(&flag));
        flagged.count()
    };
    let (code, partitions) = [
        (Code::StoreBehindSink, having(Flag::StoreBehindSink)),
        (Code::SinkBehindStore, having(Flag::SinkBehindStore)),
        (Code::ProgressLost, having(Flag::ProgressLost)),
    ]
    .into_iter()
    .find(|(_, partitions)| *partitions > 0)?;
    Some(Disagreement {
        code,
        checkpoint: known.id,
        partitions,
        age_ms: age_ms(at, now),
    })
}

impl Disagreement {
    pub(crate) fn warning(&self) -> Warning {
        Warning {
            code: self.code,
            summary: self.told(),
        }
    }

    /// What the sink said, as a clause.
    pub(crate) fn told(&self) -> String {
        let (checkpoint, code) = (self.checkpoint, self.code);
        let what = if code == Code::SinkBehindStore {
            format!("the sink holds less than checkpoint {checkpoint} says")
        } else if code == Code::StoreBehindSink {
            format!("the sink knows a newer decision than checkpoint {checkpoint}")
        } else {
            "the sink has lost how far it had come".to_owned()
        };
        let places = match self.partitions {
            1 => "1 partition".to_owned(),
            more => format!("{more} partitions"),
        };
        format!("{what}, in {places} ({code})")
    }
}
