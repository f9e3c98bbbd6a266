//! librdkafka's log, forwarded.

use std::sync::Arc;

use rdkafka_ext::{LogLevel, LogSink};

/// Forwards a client's lines under the target `librdkafka`, named by connection and client.
///
/// librdkafka calls a lost connection an error. It goes on by itself, so nothing of its log is more than a warning here;
/// what ends a job reaches the engine as an error of a call.
pub(super) fn sink(connection: &str, client: &str) -> LogSink {
    let connection: Arc<str> = connection.into();
    let client: Arc<str> = client.into();
    Arc::new(move |line| {
        let (connection, client, facility, message) =
            (&*connection, &*client, line.facility, line.message);
        match line.level {
            LogLevel::Error | LogLevel::Warning => {
                tracing::warn!(target: "librdkafka", connection, client, facility, "{message}");
            }
            LogLevel::Info => {
                tracing::info!(target: "librdkafka", connection, client, facility, "{message}");
            }
            LogLevel::Debug => {
                tracing::debug!(target: "librdkafka", connection, client, facility, "{message}");
            }
        }
    })
}
