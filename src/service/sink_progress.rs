//! Asking a job's sink how far it has come, without claiming it: for plans, estimates and views.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    core::{Core, JobEntry},
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
    store::JobRow,
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

/// What the target holds that a job wrote to before its spec named another one.
#[derive(Debug, Clone)]
pub(crate) struct Former {
    /// Names that target.
    pub(crate) identity: String,
    /// How far it has come, or why that is not known.
    pub(crate) progress: std::result::Result<SinkProgress, String>,
}

/// The target that a job wrote to last, if its spec names another one now and it can say how far it has come.
pub(crate) fn former_target(
    core: &Core,
    job: &JobEntry,
    row: &JobRow,
    install: InstallId,
) -> Option<Arc<dyn Sink>> {
    let wrote_to = match &row.running {
        Some(running) => running.spec.sink.clone(),
        None => job.shared().wrote_to.clone()?,
    };
    if wrote_to == row.spec.sink {
        return None;
    }
    let former = make_sink(core, &wrote_to, &row.name, (install, row.uid)).ok()?;
    former.has_fence().then_some(former)
}

/// Asks the former target, without claiming it.
pub(crate) async fn ask_former(core: &Core, job: &JobEntry, row: &JobRow) -> Option<Former> {
    let former = former_target(core, job, row, core.known_install()?)?;
    Some(Former {
        identity: former.identity(),
        progress: ask(&*former)
            .await
            .map(Option::unwrap_or_default)
            .map_err(|error| error.detail),
    })
}
