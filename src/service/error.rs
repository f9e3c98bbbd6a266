//! Why a call was not carried out, in the vocabulary of codes that every answer uses.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    engine::error::{ErrorClass, KafkaError, SinkError, StoreError},
    model::{
        code::Code, field_error::FieldError, ids::JobName, operation::Operation, resolver::Blocker,
        views::NextStep,
    },
};

/// What the services answer.
pub type Result<T> = std::result::Result<T, ServiceError>;

/// How soon a caller may ask again when something outside is away.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// A call that was not carried out: the code, one sentence, and what there is to choose from.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct ServiceError {
    /// The code; decides the HTTP status.
    pub code: Code,
    /// One sentence about this case.
    pub detail: String,
    /// What to do in this case; the code's general remedy otherwise.
    pub hint: Option<String>,
    /// The job it is about.
    pub job: Option<JobName>,
    /// Every fault of a document.
    pub errors: Box<[FieldError]>,
    /// Members that the caller may repeat the call with.
    pub choices: Box<[Value]>,
    /// What stands against a start.
    pub blockers: Box<[Blocker]>,
    /// Whole lines to copy, one for each way out.
    pub next: Box<[NextStep]>,
    /// The operation that is in the way.
    pub operation: Option<Box<Operation>>,
    /// How soon the same call may succeed without anybody changing anything; `None` if it cannot.
    pub retry_after: Option<Duration>,
}

impl ServiceError {
    /// An error of this code.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        let retry_after = match code.status() {
            503 | 504 => Some(ASK_AGAIN),
            _ => None,
        };
        Self {
            code,
            detail: detail.into(),
            hint: None,
            job: None,
            errors: Box::default(),
            choices: Box::default(),
            blockers: Box::default(),
            next: Box::default(),
            operation: None,
            retry_after,
        }
    }

    /// Says what to do in this case.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Names the job.
    #[must_use]
    pub fn job(mut self, job: &JobName) -> Self {
        self.job = Some(job.clone());
        self
    }

    /// Adds the faults of a document.
    #[must_use]
    pub fn errors(mut self, errors: Vec<FieldError>) -> Self {
        self.errors = errors.into();
        self
    }

    /// Adds what the caller may choose from.
    #[must_use]
    pub fn choices(mut self, choices: Vec<Value>) -> Self {
        self.choices = choices.into();
        self
    }

    /// Adds what stands against a start.
    #[must_use]
    pub fn blockers(mut self, blockers: Vec<Blocker>) -> Self {
        self.blockers = blockers.into();
        self
    }

    /// Adds lines to copy.
    #[must_use]
    pub fn next(mut self, next: Vec<NextStep>) -> Self {
        self.next = next.into();
        self
    }

    /// Adds the operation that is in the way.
    #[must_use]
    pub fn operation(mut self, operation: Operation) -> Self {
        self.operation = Some(Box::new(operation));
        self
    }

    /// Says how soon the same call may succeed.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The faults of a document: `unknown-member` when every one is a member that does not exist, else `invalid-spec` for
    /// a spec and `invalid-request` for any other body.
    #[must_use]
    pub fn faults(errors: Vec<FieldError>, otherwise: Code) -> Self {
        let code = if errors.iter().all(|error| error.unknown_member) {
            Code::UnknownMember
        } else {
            otherwise
        };
        let detail = match errors.as_slice() {
            [only] => only.to_string(),
            all => format!("the document has {} faults", all.len()),
        };
        Self::new(code, detail).errors(errors)
    }

    /// There is no job of this name.
    #[must_use]
    pub fn no_such_job(name: &JobName) -> Self {
        Self::new(Code::JobNotFound, format!("there is no job {name}")).job(name)
    }

    /// The problem as it is kept with a failed operation. The HTTP layer adds what depends on the request.
    #[must_use]
    pub fn to_problem(&self) -> Value {
        let mut problem = json!({
            "code": self.code,
            "title": self.code.title(),
            "status": self.code.status(),
            "detail": self.detail,
            "hint": self.hint.as_deref().unwrap_or_else(|| self.code.remedy()),
            "retryable": self.retry_after.is_some(),
        });
        let mut add = |name: &str, value: Value| {
            if let Some(members) = problem.as_object_mut() {
                members.insert(name.to_owned(), value);
            }
        };
        if let Some(job) = &self.job {
            add("job", json!(job));
        }
        if !self.errors.is_empty() {
            add("errors", json!(self.errors));
        }
        if !self.choices.is_empty() {
            add("choices", json!(self.choices));
        }
        if !self.blockers.is_empty() {
            add("blockers", json!(self.blockers));
        }
        if !self.next.is_empty() {
            add("next", json!(self.next));
        }
        problem
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        let detail = error.to_string();
        match error {
            StoreError::Unavailable(_) => Self::new(Code::StoreUnreachable, detail),
            StoreError::Fenced => Self::new(Code::LeaseLost, detail),
            StoreError::NoSuchJob => Self::new(Code::JobNotFound, detail),
            StoreError::Refused(_) => {
                tracing::error!(%detail, "the store refused a statement");
                Self::new(Code::Internal, "the store refused a statement")
            }
        }
    }
}

impl From<KafkaError> for ServiceError {
    fn from(error: KafkaError) -> Self {
        Self::new(error.code, error.to_string())
    }
}

impl From<SinkError> for ServiceError {
    fn from(error: SinkError) -> Self {
        let retry_after = (error.class == ErrorClass::Infrastructure).then_some(ASK_AGAIN);
        Self {
            retry_after,
            ..Self::new(Code::SinkError, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_members_make_the_whole_an_unknown_member() {
        let unknown = FieldError::unknown("/x", "no such member");
        let wrong = FieldError::new("/y", "must be a number");
        let only = ServiceError::faults(vec![unknown.clone()], Code::InvalidSpec);
        assert_eq!(only.code, Code::UnknownMember);
        let mixed = ServiceError::faults(vec![unknown, wrong], Code::InvalidSpec);
        assert_eq!(mixed.code, Code::InvalidSpec);
        assert_eq!(
            mixed.to_problem()["errors"].as_array().map(Vec::len),
            Some(2)
        );
    }

    #[test]
    fn what_is_away_may_be_asked_again() {
        let away = ServiceError::from(StoreError::Unavailable("connection refused".to_owned()));
        assert_eq!(away.code, Code::StoreUnreachable);
        assert!(away.retry_after.is_some());
        assert!(
            ServiceError::new(Code::JobRunning, "x")
                .retry_after
                .is_none()
        );
    }
}
