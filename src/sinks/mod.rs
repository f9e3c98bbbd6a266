//! Where records go: one file per kind of sink.

mod blackhole;
mod log;

use std::sync::Arc;

pub use log::LogOutput;

use crate::{
    engine::ports::Sink,
    model::{JobName, job::SinkSpec},
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

    /// The sink of a job.
    #[must_use]
    pub fn build(&self, spec: &SinkSpec, job: &JobName) -> Arc<dyn Sink> {
        match spec {
            SinkSpec::Blackhole => Arc::new(blackhole::Blackhole),
            SinkSpec::Log {
                format,
                max_value_bytes,
            } => Arc::new(log::LogSink::new(
                job.clone(),
                *format,
                *max_value_bytes,
                self.log_output.clone(),
            )),
        }
    }
}
