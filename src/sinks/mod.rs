//! Where records go: one file per kind of sink.

mod blackhole;
mod log;
pub mod postgres;

use std::sync::Arc;

use async_trait::async_trait;
pub use log::LogOutput;

use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkFactory, SinkOwner},
    },
    model::{FieldError, JobName, sink_spec::SinkSpec},
};

/// Builds sinks from their specs. Holds what they share.
#[derive(Clone)]
pub struct Sinks {
    log_output: LogOutput,
}

impl Sinks {
    /// Sinks whose log lines go to `log_output`.
    #[must_use]
    pub fn new(log_output: LogOutput) -> Self {
        Self { log_output }
    }
}

#[async_trait]
impl SinkFactory for Sinks {
    fn sink(
        &self,
        spec: &SinkSpec,
        job: &JobName,
        _owner: SinkOwner,
    ) -> Result<Arc<dyn Sink>, Vec<FieldError>> {
        match spec {
            SinkSpec::Blackhole => Ok(Arc::new(blackhole::Blackhole)),
            SinkSpec::Log {
                format,
                max_value_bytes,
            } => Ok(Arc::new(log::LogSink::new(
                job.clone(),
                *format,
                *max_value_bytes,
                self.log_output.clone(),
            ))),
            SinkSpec::Postgres(spec) => Err(vec![no_connection(&spec.connection)]),
        }
    }

    async fn check(&self, spec: &SinkSpec) -> Result<Vec<FieldError>, SinkError> {
        match spec {
            SinkSpec::Blackhole | SinkSpec::Log { .. } => Ok(Vec::new()),
            SinkSpec::Postgres(spec) => Ok(vec![no_connection(&spec.connection)]),
        }
    }
}

fn no_connection(name: &str) -> FieldError {
    FieldError::new(
        "/sink/connection",
        format!("the server's file has no PostgreSQL connection '{name}'"),
    )
}
