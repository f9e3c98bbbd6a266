//! Where records go: one file per kind of sink.

mod blackhole;
mod log;

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
        }
    }

    async fn check(&self, spec: &SinkSpec) -> Result<Vec<FieldError>, SinkError> {
        match spec {
            SinkSpec::Blackhole | SinkSpec::Log { .. } => Ok(Vec::new()),
        }
    }
}
