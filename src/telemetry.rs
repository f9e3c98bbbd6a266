//! The program's own log: one line an event on standard error, for people on a terminal and for machines elsewhere.
//!
//! Standard output belongs to the log sink. Fields have dotted names (`job.name`, `kafka.topic`) in both forms; in JSON
//! they are flat, with those of the spans around an event beside its own, so that `jq 'select(."job.name" == "orders")'`
//! finds everything a job said. See docs/logging.md for the names.

use std::{
    fmt,
    io::{self, IsTerminal},
};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    fmt::{
        FmtContext, FormatEvent, FormattedFields,
        format::{JsonFields, Writer},
        time::{FormatTime, SystemTime},
    },
    layer::SubscriberExt,
    registry::{LookupSpan, Scope},
    reload,
    util::SubscriberInitExt,
};

use crate::config::{LogConfig, LogFormat};

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is none.
    #[error("log.filter '{filter}' is no filter")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Somebody was here before.
    #[error("logging is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
    /// The filter cannot be replaced.
    #[error("log.filter cannot be changed")]
    Fixed(#[source] reload::Error),
}

/// What is logged; can be changed while the process runs.
#[derive(Debug, Clone)]
pub struct LogFilter(reload::Handle<EnvFilter, Registry>);

impl LogFilter {
    /// Logs what this filter lets through from now on. A span that the filter before did not let through stays hidden.
    ///
    /// # Errors
    /// When it is no filter; nothing has changed then.
    pub fn change(&self, filter: &str) -> Result<(), TelemetryError> {
        self.0.reload(parse(filter)?).map_err(TelemetryError::Fixed)
    }
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::try_new(filter).map_err(|source| TelemetryError::Filter {
        filter: filter.to_owned(),
        source,
    })
}

/// Sends all events of this process to standard error. Answers how to change what is logged.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init(config: &LogConfig) -> Result<LogFilter, TelemetryError> {
    let (filter, handle) = reload::Layer::new(parse(&config.filter)?);
    let terminal = io::stderr().is_terminal();
    let layer = match (config.format, terminal) {
        (LogFormat::Text, colour) | (LogFormat::Auto, colour @ true) => {
            text(colour && std::env::var_os("NO_COLOR").is_none(), io::stderr)
        }
        (LogFormat::Json, _) | (LogFormat::Auto, false) => json(io::stderr),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok(LogFilter(handle))
}

fn text<W>(colour: bool, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_ansi(colour)
        .with_writer(writer)
        .boxed()
}

fn json<W>(writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .fmt_fields(JsonFields::new())
        .event_format(FlatJson)
        .with_writer(writer)
        .boxed()
}

/// Events as flat JSON objects.
struct FlatJson;

impl<S> FormatEvent<S, JsonFields> for FlatJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut timestamp = String::new();
        SystemTime.format_time(&mut Writer::new(&mut timestamp))?;
        let mut line = Map::new();
        line.insert("timestamp".into(), timestamp.into());
        line.insert("level".into(), event.metadata().level().as_str().into());
        line.insert("message".into(), "".into());
        line.insert("target".into(), event.metadata().target().into());
        for span in context.event_scope().into_iter().flat_map(Scope::from_root) {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else {
                continue;
            };
            if let Ok(Value::Object(fields)) = serde_json::from_str(&fields.fields) {
                // An inner span's field hides an outer one's.
                line.extend(fields);
            }
        }
        event.record(&mut Fields(&mut line));
        writeln!(writer, "{}", Value::Object(line))
    }
}

/// Takes an event's fields in the forms that JSON has.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        // Raw identifiers, for fields whose name is a keyword.
        let name = field.name().trim_start_matches("r#");
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        self.put(field, text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Captured {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn say_something() {
        let outer = tracing::info_span!("job", job.name = "orders", kafka.partition = 1);
        let _outer = outer.enter();
        let inner = tracing::info_span!("subtask", kafka.partition = 2);
        let _inner = inner.enter();
        tracing::warn!(
            kafka.offset = 7_i64,
            awake = true,
            "checkpoint \"failed\"\nbadly"
        );
    }

    #[test]
    fn a_json_line_is_flat_and_names_the_job() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::registry().with(json(move || writer.clone()));
        tracing::subscriber::with_default(subscriber, say_something);
        let text = captured.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut line: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert!(line.remove("timestamp").is_some());
        assert_eq!(
            Value::Object(line),
            serde_json::json!({
                "level": "WARN",
                "message": "checkpoint \"failed\"\nbadly",
                "target": "handover::telemetry::tests",
                "job.name": "orders",
                "kafka.partition": 2,
                "kafka.offset": 7,
                "awake": true
            })
        );
    }

    #[test]
    fn a_changed_filter_counts_at_once() {
        let captured = Captured::default();
        let writer = captured.clone();
        let (filter, handle) = reload::Layer::new(parse("error").unwrap());
        let filter_of_log = LogFilter(handle);
        let layer = text(false, move || writer.clone()).with_filter(filter);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            say_something();
            assert_eq!(captured.text(), "");
            assert!(filter_of_log.change("info,=").is_err());
            say_something();
            assert_eq!(captured.text(), "");
            filter_of_log.change("warn").unwrap();
            say_something();
        });
        let text = captured.text();
        assert_eq!(text.matches("kafka.offset=7").count(), 1, "{text}");
    }

    #[test]
    fn a_text_line_has_the_same_names() {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = tracing_subscriber::registry().with(text(false, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, say_something);
        let text = captured.text();
        for part in ["WARN", "job.name=\"orders\"", "kafka.offset=7"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }
}
