//! What a step that does not succeed means, and how it is waited for.

use std::{future::Future, time::Duration};

use tokio::time::{sleep, timeout};

use super::{JobTask, LAST_SETTLE_PAUSE, note_step};
use crate::{
    engine::{
        backoff::pause_after,
        error::{ErrorClass, KafkaError, SinkError, StoreError},
    },
    model::{
        code::Code,
        job_status::Waiting,
        operation::{Operation, OperationKind},
    },
    service::error::ServiceError,
};

/// Why a step did not succeed.
pub(super) enum Trouble {
    /// Trying again can help.
    Away { code: Code, detail: String },
    /// It cannot.
    Refused(ServiceError),
    /// Somebody else holds the lease.
    Fenced,
    /// A stop or a shutdown takes precedence.
    Interrupted,
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Fenced => Self::Fenced,
            StoreError::Unavailable(_) => Self::Away {
                code: Code::StoreUnreachable,
                detail: error.to_string(),
            },
            StoreError::Refused(_) | StoreError::NoSuchJob => Self::Refused(error.into()),
        }
    }
}

impl From<KafkaError> for Trouble {
    fn from(error: KafkaError) -> Self {
        match error.class {
            ErrorClass::Infrastructure => Self::Away {
                code: error.code,
                detail: error.to_string(),
            },
            ErrorClass::Deterministic => Self::Refused(error.into()),
        }
    }
}

impl From<SinkError> for Trouble {
    fn from(error: SinkError) -> Self {
        match error.class {
            _ if error.code == Code::LeaseLost => Self::Fenced,
            ErrorClass::Infrastructure => Self::Away {
                code: error.code,
                detail: error.to_string(),
            },
            ErrorClass::Deterministic => Self::Refused(error.into()),
        }
    }
}

impl From<ServiceError> for Trouble {
    fn from(error: ServiceError) -> Self {
        if error.code == Code::LeaseLost {
            Self::Fenced
        } else if error.retry_after.is_some() {
            Self::Away {
                code: error.code,
                detail: error.detail,
            }
        } else {
            Self::Refused(error)
        }
    }
}

pub(super) type Step<T> = Result<T, Trouble>;

impl JobTask {
    /// Repeats a step of a start until it succeeds, cannot succeed, or something takes precedence.
    pub(super) async fn insist<T, F, Fut>(
        &self,
        operation: Option<&Operation>,
        what: &str,
        mut attempt: F,
    ) -> Step<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Step<T>>,
    {
        if let Some(operation) = operation {
            note_step(&self.core, operation, what).await;
        }
        for attempts in 0.. {
            if self.core.stopping.is_cancelled() || *self.job.stop_asked.borrow() {
                return Err(Trouble::Interrupted);
            }
            let trouble = match attempt().await {
                Ok(value) => {
                    if attempts > 0 {
                        self.job.shared().waiting.clear();
                    }
                    return Ok(value);
                }
                Err(Trouble::Away { code, detail }) => (code, detail),
                Err(trouble) => return Err(trouble),
            };
            self.wait_for(trouble.0, &trouble.1);
            if let Some(operation) = operation {
                let step = format!("{what}; waiting: {}", trouble.1);
                note_step(&self.core, operation, &step).await;
            }
            tokio::select! {
                () = sleep(pause_after(attempts)) => {}
                () = self.interrupted() => return Err(Trouble::Interrupted),
            }
            if self.is_called_off().await {
                return Err(Trouble::Interrupted);
            }
        }
        Err(Trouble::Interrupted)
    }

    /// Repeats the last write of a run until it is stored. Only the end of a shutdown's time ends that.
    pub(super) async fn settle<T, F, Fut>(&self, mut attempt: F) -> Step<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Step<T>>,
    {
        for attempts in 0.. {
            let (code, detail) = match attempt().await {
                Err(Trouble::Away { code, detail }) => (code, detail),
                other => {
                    if attempts > 0 {
                        self.job.shared().waiting.clear();
                    }
                    return other;
                }
            };
            self.wait_for(code, &detail);
            let pause = pause_after(attempts).min(LAST_SETTLE_PAUSE);
            if self.core.stopping.is_cancelled() && self.core.shutdown_time_left() <= pause {
                return Err(Trouble::Interrupted);
            }
            tokio::select! {
                () = sleep(pause) => {}
                // One more attempt at once, with what is left of the time.
                () = self.core.stopping.cancelled(), if !self.core.stopping.is_cancelled() => {}
            }
        }
        Err(Trouble::Interrupted)
    }

    pub(super) async fn interrupted(&self) {
        let mut stop_asked = self.job.stop_asked.subscribe();
        tokio::select! {
            () = self.core.stopping.cancelled() => {}
            asked = stop_asked.wait_for(|asked| *asked) => drop(asked),
        }
    }

    /// Whether a stop stands in the store, in case nobody told.
    pub(super) async fn is_called_off(&self) -> bool {
        let open = self.core.store.open_operations(self.job.uid).await;
        open.is_ok_and(|open| {
            open.iter()
                .any(|(operation, _)| operation.kind == OperationKind::Stop)
        })
    }

    pub(super) fn wait_for(&self, code: Code, detail: &str) {
        let mut facts = self.job.shared();
        let since = facts
            .waiting
            .iter()
            .find(|waiting| waiting.code == code)
            .map_or_else(|| self.core.now(), |waiting| waiting.since);
        facts.waiting = vec![Waiting {
            code,
            since,
            detail: detail.to_owned(),
        }];
    }
}

/// Limits an attempt; too late counts as away.
pub(super) async fn within<T, E: Into<Trouble>>(
    limit: Duration,
    code: Code,
    who: &str,
    attempt: impl Future<Output = Result<T, E>>,
) -> Step<T> {
    match timeout(limit, attempt).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_elapsed) => Err(Trouble::Away {
            code,
            detail: format!("{who} did not answer within {} s", limit.as_secs()),
        }),
    }
}
