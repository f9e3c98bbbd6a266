//! Which of librdkafka's properties who may set.
//!
//! librdkafka has about two hundred properties; some load code, read files or reach other hosts, some break what the engine
//! guarantees. So every property is in one class (`Class`) and a test walks the linked library's own table: one that is in
//! no class fails the build. What is in none at run time is refused.

use std::collections::BTreeMap;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use crate::{engine::ports::ConsumerSettings, model::job::Isolation};

/// A name, and what is wrong with it.
type Fault = (String, String);

/// Longest value of a text that a job may set.
const MAX_TEXT_BYTES: usize = 255;

/// Who may set a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// A job, within bounds; the connection too, as a default for its jobs.
    TunedNumber { min: u64, max: u64 },
    /// A job, as a short text; the connection too.
    TunedText,
    /// The connection in the server's file.
    Connection,
    /// The connection in the server's file, and only one that says `insecure = true`.
    Insecure,
    /// The connection in the server's file; only some values without `insecure = true`.
    SecureValues { secure: &'static [&'static str] },
    /// The connection in the server's file; only these values at all.
    Values(&'static [&'static str]),
    /// The engine: its guarantees rest on it.
    Engine,
    /// Nobody: another name of a property.
    AliasOf(&'static str),
    /// Nobody: it would do nothing for a consumer.
    ProducerOnly,
    /// Nobody, for the reason given.
    Never(&'static str),
}

const RUNS_CODE: Class = Class::Never("it makes the client run or load foreign code");
const CALLBACK: Class = Class::Never("it is a place for a callback, not a setting");
const WRITES_FILES: Class = Class::Never("it makes the client write files");
const NO_KERBEROS: Class = Class::Never("this build has no Kerberos");
const NO_OAUTH: Class =
    Class::Never("OAUTHBEARER is not supported; use SCRAM, PLAIN or TLS certificates");
const TEST_ONLY: Class = Class::Never("it is for librdkafka's own tests");
const NO_EFFECT: Class = Class::Never("it has no effect");
const LOGGING: Class = Class::Never("the server's [log] section decides what is logged");

const MIB: u64 = 1 << 20;

/// Every property of the linked librdkafka, in one class each. Sorted by class, then by name.
#[rustfmt::skip]
const PROPERTIES: &[(&str, Class)] = &[
    // What a job may tune. The bounds keep one job from taking the server's memory or the broker's patience.
    ("fetch.max.bytes", Class::TunedNumber { min: MIB, max: 64 * MIB }),
    ("fetch.min.bytes", Class::TunedNumber { min: 1, max: MIB }),
    ("fetch.wait.max.ms", Class::TunedNumber { min: 1, max: 10_000 }),
    ("max.partition.fetch.bytes", Class::TunedNumber { min: 1024, max: 16 * MIB }),
    ("queued.max.messages.kbytes", Class::TunedNumber { min: 1024, max: 65_536 }),
    ("client.rack", Class::TunedText),
    // A suffix: the engine puts the job's name before it.
    ("client.id", Class::TunedText),

    // How the connection reaches its brokers.
    ("bootstrap.servers", Class::Connection),
    ("broker.address.family", Class::Connection),
    ("broker.address.ttl", Class::Connection),
    ("client.dns.lookup", Class::Connection),
    ("connections.max.idle.ms", Class::Connection),
    ("metadata.max.age.ms", Class::Connection),
    ("metadata.recovery.rebootstrap.trigger.ms", Class::Connection),
    ("metadata.recovery.strategy", Class::Connection),
    ("reconnect.backoff.max.ms", Class::Connection),
    ("reconnect.backoff.ms", Class::Connection),
    ("retry.backoff.max.ms", Class::Connection),
    ("retry.backoff.ms", Class::Connection),
    ("socket.connection.setup.timeout.ms", Class::Connection),
    ("socket.keepalive.enable", Class::Connection),
    ("socket.nagle.disable", Class::Connection),
    ("socket.receive.buffer.bytes", Class::Connection),
    ("socket.send.buffer.bytes", Class::Connection),
    ("socket.timeout.ms", Class::Connection),
    ("topic.metadata.refresh.fast.interval.ms", Class::Connection),
    ("topic.metadata.refresh.interval.ms", Class::Connection),

    // How the connection proves who it is and whom it trusts.
    ("sasl.mechanisms", Class::Values(&["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])),
    ("sasl.password", Class::Connection),
    ("sasl.username", Class::Connection),
    ("security.protocol", Class::Connection),
    ("ssl.ca.location", Class::Connection),
    ("ssl.ca.pem", Class::Connection),
    ("ssl.certificate.location", Class::Connection),
    ("ssl.certificate.pem", Class::Connection),
    ("ssl.cipher.suites", Class::Connection),
    ("ssl.crl.location", Class::Connection),
    ("ssl.curves.list", Class::Connection),
    ("ssl.key.location", Class::Connection),
    ("ssl.key.password", Class::Connection),
    ("ssl.key.pem", Class::Connection),
    ("ssl.keystore.location", Class::Connection),
    ("ssl.keystore.password", Class::Connection),
    ("ssl.sigalgs.list", Class::Connection),
    ("enable.ssl.certificate.verification", Class::SecureValues { secure: &["true"] }),
    ("ssl.endpoint.identification.algorithm", Class::SecureValues { secure: &["https"] }),
    // Debug lines show addresses, topics, and what is negotiated.
    ("debug", Class::Insecure),

    // What the engine sets itself or leaves as it is, because a guarantee rests on it.
    ("allow.auto.create.topics", Class::Engine),
    ("auto.commit.interval.ms", Class::Engine),
    ("auto.offset.reset", Class::Engine),
    ("check.crcs", Class::Engine),
    ("client.software.name", Class::Engine),
    ("client.software.version", Class::Engine),
    ("coordinator.query.interval.ms", Class::Engine),
    ("enable.auto.commit", Class::Engine),
    ("enable.auto.offset.store", Class::Engine),
    ("enable.metrics.push", Class::Engine),
    ("enable.partition.eof", Class::Engine),
    ("enable.sparse.connections", Class::Engine),
    ("enabled_events", Class::Engine),
    ("fetch.error.backoff.ms", Class::Engine),
    ("fetch.queue.backoff.ms", Class::Engine),
    ("group.id", Class::Engine),
    ("group.instance.id", Class::Engine),
    ("group.protocol", Class::Engine),
    ("group.protocol.type", Class::Engine),
    ("group.remote.assignor", Class::Engine),
    ("heartbeat.interval.ms", Class::Engine),
    ("isolation.level", Class::Engine),
    ("max.in.flight.requests.per.connection", Class::Engine),
    ("max.poll.interval.ms", Class::Engine),
    ("message.max.bytes", Class::Engine),
    ("partition.assignment.strategy", Class::Engine),
    ("queued.min.messages", Class::Engine),
    ("receive.message.max.bytes", Class::Engine),
    ("session.timeout.ms", Class::Engine),
    ("statistics.interval.ms", Class::Engine),
    ("topic.metadata.propagation.max.ms", Class::Engine),
    ("topic.metadata.refresh.sparse", Class::Engine),

    // Second names. One spelling each, or the order in which they are applied would decide.
    ("auto.commit.enable", Class::AliasOf("enable.auto.commit")),
    ("fetch.message.max.bytes", Class::AliasOf("max.partition.fetch.bytes")),
    ("max.in.flight", Class::AliasOf("max.in.flight.requests.per.connection")),
    ("metadata.broker.list", Class::AliasOf("bootstrap.servers")),
    ("sasl.mechanism", Class::AliasOf("sasl.mechanisms")),

    // What only a producer looks at.
    ("acks", Class::ProducerOnly),
    ("batch.num.messages", Class::ProducerOnly),
    ("batch.size", Class::ProducerOnly),
    ("compression.codec", Class::ProducerOnly),
    ("compression.level", Class::ProducerOnly),
    ("compression.type", Class::ProducerOnly),
    ("delivery.report.only.error", Class::ProducerOnly),
    ("delivery.timeout.ms", Class::ProducerOnly),
    ("enable.gapless.guarantee", Class::ProducerOnly),
    ("enable.idempotence", Class::ProducerOnly),
    ("linger.ms", Class::ProducerOnly),
    ("message.copy.max.bytes", Class::ProducerOnly),
    ("message.send.max.retries", Class::ProducerOnly),
    ("message.timeout.ms", Class::ProducerOnly),
    ("partitioner", Class::ProducerOnly),
    ("queue.buffering.backpressure.threshold", Class::ProducerOnly),
    ("queue.buffering.max.kbytes", Class::ProducerOnly),
    ("queue.buffering.max.messages", Class::ProducerOnly),
    ("queue.buffering.max.ms", Class::ProducerOnly),
    ("queuing.strategy", Class::ProducerOnly),
    ("request.required.acks", Class::ProducerOnly),
    ("request.timeout.ms", Class::ProducerOnly),
    ("retries", Class::ProducerOnly),
    ("sticky.partitioning.linger.ms", Class::ProducerOnly),
    ("transaction.timeout.ms", Class::ProducerOnly),
    ("transactional.id", Class::ProducerOnly),

    // What nobody may set.
    ("internal.termination.signal", Class::Never("it sends a signal to the server")),
    ("plugin.library.paths", RUNS_CODE),
    ("ssl.engine.id", RUNS_CODE),
    ("ssl.engine.location", RUNS_CODE),
    ("ssl.providers", RUNS_CODE),
    ("ssl_engine_callback_data", RUNS_CODE),
    ("ut_handle_ProduceResponse", RUNS_CODE),
    ("offset.store.method", WRITES_FILES),
    ("offset.store.path", WRITES_FILES),
    ("offset.store.sync.interval.ms", WRITES_FILES),
    ("background_event_cb", CALLBACK),
    ("closesocket_cb", CALLBACK),
    ("connect_cb", CALLBACK),
    ("consume_cb", CALLBACK),
    ("default_topic_conf", CALLBACK),
    ("dr_cb", CALLBACK),
    ("dr_msg_cb", CALLBACK),
    ("error_cb", CALLBACK),
    ("interceptors", CALLBACK),
    ("log_cb", CALLBACK),
    ("msg_order_cmp", CALLBACK),
    ("oauthbearer_token_refresh_cb", CALLBACK),
    ("offset_commit_cb", CALLBACK),
    ("opaque", CALLBACK),
    ("open_cb", CALLBACK),
    ("partitioner_cb", CALLBACK),
    ("rebalance_cb", CALLBACK),
    ("resolve_cb", CALLBACK),
    ("socket_cb", CALLBACK),
    ("ssl.certificate.verify_cb", CALLBACK),
    ("ssl_ca", CALLBACK),
    ("ssl_certificate", CALLBACK),
    ("ssl_key", CALLBACK),
    ("stats_cb", CALLBACK),
    ("throttle_cb", CALLBACK),
    ("sasl.kerberos.keytab", NO_KERBEROS),
    ("sasl.kerberos.kinit.cmd", NO_KERBEROS),
    ("sasl.kerberos.min.time.before.relogin", NO_KERBEROS),
    ("sasl.kerberos.principal", NO_KERBEROS),
    ("sasl.kerberos.service.name", NO_KERBEROS),
    ("enable.sasl.oauthbearer.unsecure.jwt", NO_OAUTH),
    ("enable_sasl_queue", NO_OAUTH),
    ("https.ca.location", NO_OAUTH),
    ("https.ca.pem", NO_OAUTH),
    ("sasl.oauthbearer.assertion.algorithm", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.aud", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.exp.seconds", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.iss", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.jti.include", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.nbf.seconds", NO_OAUTH),
    ("sasl.oauthbearer.assertion.claim.sub", NO_OAUTH),
    ("sasl.oauthbearer.assertion.file", NO_OAUTH),
    ("sasl.oauthbearer.assertion.jwt.template.file", NO_OAUTH),
    ("sasl.oauthbearer.assertion.private.key.file", NO_OAUTH),
    ("sasl.oauthbearer.assertion.private.key.passphrase", NO_OAUTH),
    ("sasl.oauthbearer.assertion.private.key.pem", NO_OAUTH),
    ("sasl.oauthbearer.client.credentials.client.id", NO_OAUTH),
    ("sasl.oauthbearer.client.credentials.client.secret", NO_OAUTH),
    ("sasl.oauthbearer.client.id", NO_OAUTH),
    ("sasl.oauthbearer.client.secret", NO_OAUTH),
    ("sasl.oauthbearer.config", NO_OAUTH),
    ("sasl.oauthbearer.extensions", NO_OAUTH),
    ("sasl.oauthbearer.grant.type", NO_OAUTH),
    ("sasl.oauthbearer.metadata.authentication.type", NO_OAUTH),
    ("sasl.oauthbearer.method", NO_OAUTH),
    ("sasl.oauthbearer.scope", NO_OAUTH),
    ("sasl.oauthbearer.token.endpoint.url", NO_OAUTH),
    ("log.connection.close", LOGGING),
    ("log.queue", LOGGING),
    ("log.thread.name", LOGGING),
    ("log_level", LOGGING),
    ("test.mock.broker.rtt", TEST_ONLY),
    ("test.mock.num.brokers", TEST_ONLY),
    ("enable.random.seed", Class::Never("it seeds the whole process's random numbers")),
    ("topic.blacklist", Class::Never("a job names its topics")),
    ("ssl.ca.certificate.stores", Class::Never("it is for Windows")),
    ("api.version.fallback.ms", Class::Never("it is for brokers older than Kafka 0.10")),
    ("api.version.request", Class::Never("it is for brokers older than Kafka 0.10")),
    ("api.version.request.timeout.ms", Class::Never("it is for brokers older than Kafka 0.10")),
    ("broker.version.fallback", Class::Never("it is for brokers older than Kafka 0.10")),
    ("builtin.features", NO_EFFECT),
    ("consume.callback.max.messages", NO_EFFECT),
    ("metadata.request.timeout.ms", NO_EFFECT),
    ("produce.offset.report", NO_EFFECT),
    ("reconnect.backoff.jitter.ms", NO_EFFECT),
    ("socket.blocking.max.ms", NO_EFFECT),
    ("socket.max.fails", NO_EFFECT),
    ("topic.metadata.refresh.fast.cnt", NO_EFFECT),
];

/// What proves who the server is, or is kept beside it: the server's file only says where these stand.
const SECRETS: [&str; 7] = [
    "sasl.password",
    "sasl.username",
    "ssl.ca.pem",
    "ssl.certificate.pem",
    "ssl.key.password",
    "ssl.key.pem",
    "ssl.keystore.password",
];

/// Whether a property may be given by reference only.
#[must_use]
pub fn is_secret(property: &str) -> bool {
    SECRETS.contains(&property)
}

/// Judges a connection's properties; see [`KafkaConnection::new`].
#[must_use]
pub fn check_connection(
    name: &str,
    properties: &BTreeMap<String, String>,
    insecure: bool,
) -> Vec<(String, String)> {
    KafkaConnection::new(name, properties.clone(), insecure)
        .err()
        .unwrap_or_default()
}

/// A Kafka connection as the server's file has it, secrets filled in, checked.
#[derive(Clone)]
pub struct KafkaConnection {
    name: String,
    properties: BTreeMap<String, String>,
}

/// Shows names of properties only: values may be secrets.
impl std::fmt::Debug for KafkaConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.properties.keys().collect();
        f.debug_struct("KafkaConnection")
            .field("name", &self.name)
            .field("properties", &names)
            .finish()
    }
}

impl KafkaConnection {
    /// Takes a connection's properties if all of them are allowed there.
    ///
    /// `insecure` is the operator's word that debug output and an unverified broker are meant.
    ///
    /// # Errors
    /// Property and what is wrong with it, for every faulty one.
    pub fn new(
        name: impl Into<String>,
        properties: BTreeMap<String, String>,
        insecure: bool,
    ) -> Result<Self, Vec<(String, String)>> {
        let mut faults: Vec<Fault> = properties
            .iter()
            .filter_map(|(property, value)| {
                check_connection_property(property, value, insecure)
                    .err()
                    .map(|fault| (property.clone(), fault))
            })
            .collect();
        if properties
            .get("bootstrap.servers")
            .is_none_or(|servers| servers.trim().is_empty())
        {
            faults.push((
                "bootstrap.servers".to_owned(),
                "is required: host:port of one or more brokers, separated by commas".to_owned(),
            ));
        }
        let mut allowed = properties.clone();
        allowed.retain(|property, _| faults.iter().all(|(faulty, _)| faulty != property));
        faults.extend(refused_by_the_client(&allowed));
        if faults.is_empty() {
            Ok(Self {
                name: name.into(),
                properties,
            })
        } else {
            Err(faults)
        }
    }

    /// Its name in the server's file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The configuration of the client that asks questions.
    pub(super) fn admin_config(&self) -> ClientConfig {
        let mut config = self.base();
        config.set("client.id", format!("handover-{}-admin", self.name));
        config
    }

    /// The configuration of a producer: the connection alone.
    pub(super) fn producer_config(&self) -> ClientConfig {
        let mut config = self.base();
        config.set("client.id", format!("handover-{}-dead-letters", self.name));
        config
    }

    /// The configuration of a subtask's consumer: connection, then the job's tuning, then what the engine decides.
    pub(super) fn consumer_config(&self, settings: &ConsumerSettings) -> ClientConfig {
        let mut config = self.base();
        for (property, value) in self.tuned().chain(&settings.source.properties) {
            config.set(property, value);
        }
        for (property, value) in ENGINE_SETTINGS {
            config.set(*property, *value);
        }
        let isolation = match settings.source.isolation {
            Isolation::ReadCommitted => "read_committed",
            Isolation::ReadUncommitted => "read_uncommitted",
        };
        let suffix = config
            .get("client.id")
            .map(|suffix| format!("-{suffix}"))
            .unwrap_or_default();
        config
            .set("isolation.level", isolation)
            .set("group.id", &settings.source.group_id)
            .set(
                "client.id",
                format!("handover-{}-{}{suffix}", settings.job, settings.subtask),
            );
        config
    }

    /// What every client of the connection has.
    fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (property, value) in &self.properties {
            if !is_tuned(property) {
                config.set(property, value);
            }
        }
        config.set("enable.metrics.push", "false");
        if !self.properties.contains_key("reconnect.backoff.max.ms") {
            // librdkafka's ten seconds would come on top of each outage of a broker.
            config.set("reconnect.backoff.max.ms", "2000");
        }
        let level = if self.properties.contains_key("debug") {
            RDKafkaLogLevel::Debug
        } else {
            RDKafkaLogLevel::Info
        };
        config.set_log_level(level);
        config
    }

    fn tuned(&self) -> impl Iterator<Item = (&String, &String)> {
        self.properties
            .iter()
            .filter(|(property, _)| is_tuned(property))
    }
}

/// What the engine decides for each consumer, over everything else.
const ENGINE_SETTINGS: &[(&str, &str)] = &[
    ("allow.auto.create.topics", "false"),
    // A position without a record is an error for the job to decide on, never a jump.
    ("auto.offset.reset", "error"),
    // A record damaged on its way or on the broker's disk must not pass for data.
    ("check.crcs", "true"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // The end of a partition carries the position behind trailing transaction markers.
    ("enable.partition.eof", "true"),
    // A partition that brokers do not know is not read on before somebody has looked whether its topic is still the same one;
    // with the default of half a minute nothing is said of it when its topic was made shortly before.
    ("topic.metadata.propagation.max.ms", "1000"),
    // With the default of a second, a loop slower than the fetcher loses three quarters of its throughput (measured).
    ("fetch.queue.backoff.ms", "1"),
];

/// Checks what a job tunes.
///
/// # Errors
/// Property and what is wrong with it, for every faulty one.
pub(super) fn check_tuned(properties: &BTreeMap<String, String>) -> Result<(), Vec<Fault>> {
    let mut faults: Vec<Fault> = properties
        .iter()
        .filter_map(|(property, value)| {
            check_job_property(property, value)
                .err()
                .map(|fault| (property.clone(), fault))
        })
        .collect();
    if faults.is_empty() {
        faults.extend(refused_by_the_client(properties));
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}

fn check_job_property(property: &str, value: &str) -> Result<(), String> {
    let class = class_of(property)?;
    check_value(value)?;
    match class {
        Class::TunedNumber { min, max } => check_number(value, min, max),
        Class::TunedText => check_text(value),
        Class::Connection | Class::Insecure | Class::SecureValues { .. } | Class::Values(_) => Err(
            "is a property of the connection: set it under [connections.*] in the server's file"
                .to_owned(),
        ),
        Class::Engine | Class::AliasOf(_) | Class::ProducerOnly | Class::Never(_) => {
            Err(refusal(class))
        }
    }
}

fn check_connection_property(property: &str, value: &str, insecure: bool) -> Result<(), String> {
    let class = class_of(property)?;
    // PEM texts have lines.
    if !property.ends_with(".pem") {
        check_value(value)?;
    }
    match class {
        Class::TunedNumber { min, max } => check_number(value, min, max),
        Class::TunedText => check_text(value),
        Class::Connection => Ok(()),
        Class::Insecure if insecure => Ok(()),
        Class::Insecure => {
            Err("needs insecure = true in the connection, as it shows internals".to_owned())
        }
        Class::SecureValues { secure } if insecure || secure.contains(&value) => Ok(()),
        Class::SecureValues { secure } => Err(format!(
            "anything but {} needs insecure = true in the connection",
            secure.join(", ")
        )),
        Class::Values(values) if values.contains(&value) => Ok(()),
        Class::Values(values) => Err(format!("must be one of {}", values.join(", "))),
        Class::Engine | Class::AliasOf(_) | Class::ProducerOnly | Class::Never(_) => {
            Err(refusal(class))
        }
    }
}

/// Why nobody may set it.
fn refusal(class: Class) -> String {
    match class {
        Class::Engine => "is set by the engine: leave it out".to_owned(),
        Class::AliasOf(name) => format!("is another name: write {name}"),
        Class::ProducerOnly => {
            "is a producer's property and does nothing for a consumer: leave it out".to_owned()
        }
        Class::Never(reason) => format!("is refused: {reason}"),
        Class::TunedNumber { .. }
        | Class::TunedText
        | Class::Connection
        | Class::Insecure
        | Class::SecureValues { .. }
        | Class::Values(_) => "is not allowed here".to_owned(),
    }
}

fn class_of(property: &str) -> Result<Class, String> {
    if let Some((_, class)) = PROPERTIES.iter().find(|(name, _)| *name == property) {
        return Ok(*class);
    }
    let spelled = property.trim().to_ascii_lowercase();
    if PROPERTIES.iter().any(|(name, _)| *name == spelled) {
        return Err(format!("is misspelt: write {spelled}"));
    }
    Err("is no property of librdkafka that this server knows".to_owned())
}

fn is_tuned(property: &str) -> bool {
    matches!(
        class_of(property),
        Ok(Class::TunedNumber { .. } | Class::TunedText)
    )
}

fn check_value(value: &str) -> Result<(), String> {
    if value.chars().any(char::is_control) {
        return Err("must not contain control characters".to_owned());
    }
    Ok(())
}

fn check_number(value: &str, min: u64, max: u64) -> Result<(), String> {
    let in_bounds = value
        .parse()
        .is_ok_and(|number: u64| (min..=max).contains(&number));
    if in_bounds {
        Ok(())
    } else {
        Err(format!("must be a number from {min} to {max}"))
    }
}

fn check_text(value: &str) -> Result<(), String> {
    if value.is_empty() || value.len() > MAX_TEXT_BYTES {
        return Err(format!("must have 1 to {MAX_TEXT_BYTES} bytes"));
    }
    Ok(())
}

/// Lets librdkafka look at each value by itself. Its words are not passed on: they may hold the value.
fn refused_by_the_client(properties: &BTreeMap<String, String>) -> Vec<Fault> {
    properties
        .iter()
        .filter(|(property, value)| {
            ClientConfig::new()
                .set(*property, *value)
                .create_native_config()
                .is_err()
        })
        .map(|(property, _)| {
            (
                property.clone(),
                "has a value that librdkafka does not take".to_owned(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rdkafka_ext::{BatchConsumer, known_properties};

    use super::*;
    use crate::model::{ids::JobName, job::JobSpec};

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn settings(properties: &[(&str, &str)]) -> ConsumerSettings {
        let job: JobName = "orders".parse().unwrap();
        let spec = serde_json::json!({
            "source": {"connection": "main", "topics": ["orders"], "isolation": "read_uncommitted"},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"},
        });
        let mut source = JobSpec::read(&job, &spec).unwrap().source;
        source.properties = map(properties);
        ConsumerSettings {
            job: "orders".to_owned(),
            subtask: 3,
            source,
        }
    }

    #[test]
    fn every_property_of_the_linked_library_has_one_class() {
        let classified: BTreeSet<&str> = PROPERTIES.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            classified.len(),
            PROPERTIES.len(),
            "a property is listed twice"
        );
        let unclassified: Vec<String> = known_properties()
            .into_iter()
            .filter(|name| !classified.contains(name.as_str()))
            .collect();
        assert!(
            unclassified.is_empty(),
            "librdkafka has properties in no class: {unclassified:?}"
        );
    }

    #[test]
    fn no_class_names_a_property_that_does_not_exist() {
        // Hidden and without a value, so that librdkafka shows them nowhere.
        const INVISIBLE: &[&str] = &["client.software.version", "ut_handle_ProduceResponse"];
        let known: BTreeSet<String> = known_properties().into_iter().collect();
        let invented: Vec<&str> = PROPERTIES
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !known.contains(*name) && !INVISIBLE.contains(name))
            .collect();
        assert!(invented.is_empty(), "{invented:?}");
    }

    #[test]
    fn a_job_may_tune_a_few_properties_within_bounds() {
        check_tuned(&map(&[
            ("fetch.min.bytes", "1024"),
            ("fetch.wait.max.ms", "50"),
            ("fetch.max.bytes", "67108864"),
            ("max.partition.fetch.bytes", "16777216"),
            ("queued.max.messages.kbytes", "1024"),
            ("client.rack", "eu-1a"),
            ("client.id", "blue"),
        ]))
        .unwrap();
        for (property, value) in [
            ("fetch.max.bytes", "67108865"),
            ("fetch.min.bytes", "0"),
            ("fetch.wait.max.ms", "-1"),
            ("fetch.wait.max.ms", "soon"),
            ("queued.max.messages.kbytes", "65537"),
            ("client.rack", ""),
            ("client.rack", "a\0b"),
            ("client.id", "a\nb"),
        ] {
            let faults = check_tuned(&map(&[(property, value)])).unwrap_err();
            assert_eq!(faults.len(), 1, "{property}={value}");
            assert_eq!(faults[0].0, property);
        }
    }

    #[test]
    fn what_a_job_may_not_set_says_why_and_what_to_do() {
        for (property, words) in [
            ("bootstrap.servers", "server's file"),
            ("sasl.password", "server's file"),
            ("ssl.ca.location", "server's file"),
            ("debug", "server's file"),
            ("group.id", "set by the engine"),
            ("enable.auto.commit", "set by the engine"),
            ("isolation.level", "set by the engine"),
            ("auto.offset.reset", "set by the engine"),
            ("metadata.broker.list", "write bootstrap.servers"),
            ("fetch.message.max.bytes", "write max.partition.fetch.bytes"),
            ("linger.ms", "producer"),
            ("transactional.id", "producer"),
            ("plugin.library.paths", "foreign code"),
            ("internal.termination.signal", "signal"),
            ("ut_handle_ProduceResponse", "foreign code"),
            ("sasl.kerberos.kinit.cmd", "Kerberos"),
            ("offset.store.path", "write files"),
            (" Fetch.Min.Bytes", "write fetch.min.bytes"),
            ("no.such.thing", "no property"),
            ("share.anything", "no property"),
        ] {
            let faults = check_tuned(&map(&[(property, "1")])).unwrap_err();
            assert_eq!(faults[0].0, property);
            assert!(faults[0].1.contains(words), "{property}: {}", faults[0].1);
        }
        // All at once, not only the first.
        let faults = check_tuned(&map(&[
            ("group.id", "x"),
            ("debug", "all"),
            ("fetch.min.bytes", "1"),
        ]))
        .unwrap_err();
        assert_eq!(faults.len(), 2);
    }

    #[test]
    fn a_connection_is_checked_as_a_whole() {
        let good = map(&[
            ("bootstrap.servers", "a:9092,b:9092"),
            ("security.protocol", "sasl_ssl"),
            ("sasl.mechanisms", "SCRAM-SHA-512"),
            ("sasl.username", "handover"),
            ("sasl.password", "hunter2"),
        ]);
        let connection = KafkaConnection::new("main", good.clone(), false).unwrap();
        assert!(!format!("{connection:?}").contains("hunter2"));
        let cases: &[(&str, &str, &str)] = &[
            ("debug", "all", "insecure = true"),
            (
                "enable.ssl.certificate.verification",
                "false",
                "insecure = true",
            ),
            (
                "ssl.endpoint.identification.algorithm",
                "none",
                "insecure = true",
            ),
            ("sasl.mechanisms", "GSSAPI", "SCRAM"),
            (
                "sasl.oauthbearer.token.endpoint.url",
                "http://x/",
                "OAUTHBEARER",
            ),
            ("plugin.library.paths", "/x.so", "foreign code"),
            ("group.id", "x", "set by the engine"),
            ("socket.timeout.ms", "soon", "librdkafka does not take"),
        ];
        for (property, value, words) in cases {
            let mut properties = good.clone();
            properties.insert((*property).to_owned(), (*value).to_owned());
            let faults = KafkaConnection::new("main", properties, false).unwrap_err();
            assert_eq!((faults.len(), faults[0].0.as_str()), (1, *property));
            assert!(faults[0].1.contains(words), "{property}: {}", faults[0].1);
        }
        for (property, value) in [
            ("debug", "broker"),
            ("enable.ssl.certificate.verification", "false"),
        ] {
            let mut properties = good.clone();
            properties.insert(property.to_owned(), value.to_owned());
            KafkaConnection::new("main", properties, true).unwrap();
        }
        let faults = KafkaConnection::new("main", BTreeMap::new(), false).unwrap_err();
        assert_eq!(faults[0].0, "bootstrap.servers");
    }

    #[test]
    fn the_engine_has_the_last_word() {
        let connection = map(&[
            ("bootstrap.servers", "localhost:1"),
            ("fetch.wait.max.ms", "20"),
            ("client.rack", "a"),
        ]);
        let connection = KafkaConnection::new("main", connection, false).unwrap();
        let config = connection.consumer_config(&settings(&[
            ("fetch.wait.max.ms", "30"),
            ("client.id", "blue"),
        ]));
        for (property, value) in [
            ("fetch.wait.max.ms", "30"),
            ("client.rack", "a"),
            ("client.id", "handover-orders-3-blue"),
            ("group.id", "orders"),
            ("isolation.level", "read_uncommitted"),
            ("enable.auto.commit", "false"),
            ("enable.auto.offset.store", "false"),
            ("enable.partition.eof", "true"),
            ("auto.offset.reset", "error"),
            ("allow.auto.create.topics", "false"),
            ("fetch.queue.backoff.ms", "1"),
            ("enable.metrics.push", "false"),
        ] {
            assert_eq!(config.get(property), Some(value), "{property}");
        }
        let admin = connection.admin_config();
        assert_eq!(
            (admin.get("client.id"), admin.get("group.id")),
            (Some("handover-main-admin"), None)
        );
    }

    #[test]
    fn the_bounds_fit_together_at_both_ends() {
        let connection = map(&[("bootstrap.servers", "localhost:1")]);
        let connection = KafkaConnection::new("main", connection, false).unwrap();
        let numbers: Vec<(&str, u64, u64)> = PROPERTIES
            .iter()
            .filter_map(|(name, class)| match class {
                Class::TunedNumber { min, max } => Some((*name, *min, *max)),
                _ => None,
            })
            .collect();
        for pick in 0..1_u32 << numbers.len() {
            let chosen: Vec<(&str, String)> = numbers
                .iter()
                .enumerate()
                .map(|(index, (name, min, max))| {
                    (
                        *name,
                        if pick >> index & 1 == 1 { max } else { min }.to_string(),
                    )
                })
                .collect();
            let chosen: Vec<(&str, &str)> = chosen
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            check_tuned(&map(&chosen)).unwrap();
            let config = connection.consumer_config(&settings(&chosen));
            BatchConsumer::create(&config, std::sync::Arc::new(|_| {})).unwrap();
        }
    }
}
