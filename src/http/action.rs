//! A call for something that goes on after its answer: start, stop, skip ... Each takes the same from its request and
//! answers with the operation.

use std::sync::Arc;

use axum::{
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
    response::Response,
};

use super::{
    context::Context,
    extract::{AcceptsJson, CalledBy, JobPath},
    problem::Problem,
    wait::{Wait, accepted},
};
use crate::{
    model::ids::JobName,
    service::{Accepted, Caller, Service},
};

/// What is asked of whom, and by whom; everything but the body.
pub(super) struct Action {
    pub(super) service: Service,
    pub(super) job: JobName,
    pub(super) caller: Caller,
    wait: Wait,
    context: Arc<Context>,
}

impl<S> FromRequestParts<S> for Action
where
    S: Send + Sync,
    Service: FromRef<S>,
    Arc<Context>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        AcceptsJson::from_request_parts(parts, state).await?;
        let CalledBy(caller) = CalledBy::from_request_parts(parts, state).await?;
        let JobPath(job) = JobPath::from_request_parts(parts, state).await?;
        let wait = Wait::from_request_parts(parts, state).await?;
        Ok(Self {
            service: Service::from_ref(state),
            job,
            caller,
            wait,
            context: Arc::from_ref(state),
        })
    }
}

impl Action {
    /// Answers for the operation that was taken on, after waiting for its end if that was asked for.
    pub(super) async fn answer(&self, taken_on: Accepted) -> Result<Response, Problem> {
        accepted(taken_on, self.wait, &self.service, &self.context).await
    }
}
