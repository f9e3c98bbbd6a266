//! Asking a job's sink how far it has come, without claiming it: for plans, estimates and views.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    core::Core,
    error::{Result, ServiceError},
};
use crate::{
    engine::{
        error::{ErrorClass, SinkError},
        ports::{Sink, SinkOwner},
    },
    model::{
        code::Code,
        ids::{InstallId, JobName, JobUid},
        resolver::{ProgressFacts, SinkFacts, SinkProgress},
        sink_spec::SinkSpec,
        views::SourceStatus,
    },
};

/// How long a sink may take to say how far it has come; the views that show it must not wait longer.
const DEADLINE: Duration = Duration::from_secs(3);

/// Why a sink did not say how far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    /// Whether it was late, away, or refused.
    pub(crate) status: SourceStatus,
    pub(crate) code: Code,
    pub(crate) detail: String,
}

/// A job's sink and what it said of its progress: `None` for a sink that keeps none.
pub(crate) type Answer = std::result::Result<Option<SinkProgress>, NoAnswer>;

/// Makes the sink that a spec describes.
pub(crate) fn make_sink(
    core: &Core,
    spec: &SinkSpec,
    name: &JobName,
    (install, job): (InstallId, JobUid),
) -> Result<Arc<dyn Sink>> {
    let owner = SinkOwner { install, job };
    core.sinks
        .sink(spec, name, owner)
        .map_err(|faults| ServiceError::faults(faults, Code::InvalidSpec).job(name))
}

/// Asks a sink how far it has come.
pub(crate) async fn ask(sink: &dyn Sink) -> Answer {
    if !sink.has_fence() {
        return Ok(None);
    }
    match timeout(DEADLINE, sink.progress()).await {
        Ok(Ok(progress)) => Ok(Some(progress)),
        Ok(Err(error)) => Err(no_answer(&error)),
        Err(_elapsed) => Err(NoAnswer {
            status: SourceStatus::Timeout,
            code: Code::SinkUnreachable,
            detail: format!("no answer within {} s", DEADLINE.as_secs()),
        }),
    }
}

pub(crate) fn no_answer(error: &SinkError) -> NoAnswer {
    NoAnswer {
        status: match error.class {
            ErrorClass::Infrastructure => SourceStatus::Unreachable,
            ErrorClass::Deterministic => SourceStatus::Error,
        },
        code: error.code,
        detail: error.to_string(),
    }
}

/// What the resolver is told of a sink that was asked.
pub(crate) fn facts(identity: String, answer: Answer) -> SinkFacts {
    let progress = match answer {
        Ok(None) => ProgressFacts::NotKept,
        Ok(Some(progress)) => ProgressFacts::Kept(progress),
        Err(refused) if refused.status == SourceStatus::Error => ProgressFacts::Refused {
            code: refused.code,
            detail: refused.detail,
        },
        Err(silent) => ProgressFacts::Unknown(silent.detail),
    };
    SinkFacts { identity, progress }
}

/// What the resolver is told of a sink that was claimed.
pub(crate) fn claimed(sink: &dyn Sink, progress: SinkProgress) -> SinkFacts {
    facts(sink.identity(), Ok(sink.has_fence().then_some(progress)))
}
