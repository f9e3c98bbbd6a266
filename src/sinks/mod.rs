//! Where records go: one file per kind of sink.

mod blackhole;
mod log;
pub mod postgres;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
pub use log::LogOutput;
pub use postgres::PostgresTarget;

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
    /// The PostgreSQL connections of the server's file, which can be replaced while the server runs.
    targets: Arc<Mutex<PostgresTargets>>,
}

/// Target databases by the names of the server's file.
pub type PostgresTargets = BTreeMap<String, PostgresTarget>;

impl Sinks {
    /// Sinks whose log lines go to `log_output`.
    #[must_use]
    pub fn new(log_output: LogOutput) -> Self {
        Self {
            log_output,
            targets: Arc::default(),
        }
    }

    /// Puts these target databases in place of the current ones. A sink keeps the one that it was made with.
    pub fn replace_targets(&self, targets: PostgresTargets) {
        *self.targets.lock().unwrap_or_else(PoisonError::into_inner) = targets;
    }

    fn target(&self, name: &str) -> Result<PostgresTarget, FieldError> {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.get(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = targets.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "it has none".to_owned()
            } else {
                format!("it has {}", known.join(", "))
            };
            FieldError::new(
                "/sink/connection",
                format!("the server's file has no PostgreSQL connection '{name}': {known}"),
            )
        })
    }
}

#[async_trait]
impl SinkFactory for Sinks {
    fn sink(
        &self,
        spec: &SinkSpec,
        job: &JobName,
        owner: SinkOwner,
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
            SinkSpec::Postgres(spec) => {
                let target = self.target(&spec.connection).map_err(|fault| vec![fault])?;
                Ok(Arc::new(postgres::PostgresSink::new(
                    (**spec).clone(),
                    target,
                    owner,
                )))
            }
        }
    }

    async fn check(&self, spec: &SinkSpec) -> Result<Vec<FieldError>, SinkError> {
        match spec {
            SinkSpec::Blackhole | SinkSpec::Log { .. } => Ok(Vec::new()),
            SinkSpec::Postgres(spec) => match self.target(&spec.connection) {
                Ok(target) => postgres::check(spec, &target).await,
                Err(fault) => Ok(vec![fault]),
            },
        }
    }
}
