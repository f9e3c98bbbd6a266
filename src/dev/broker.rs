//! The broker that the demo reads from: a given one, or librdkafka's embedded mock cluster.

use std::time::Duration;

use rdkafka::{
    ClientConfig,
    admin::{AdminClient, AdminOptions, NewTopic, TopicReplication},
    client::ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    mocking::MockCluster,
    producer::DefaultProducerContext,
};

/// How long the broker may take to answer at the start.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What the mock cluster cannot do, for people.
pub const MOCK_LIMITS: &str = "the broker is librdkafka's embedded mock: no start by timestamp, no group listing, \
                               and it keeps at most 5 MiB a partition; for everything, give --kafka HOST:PORT";

/// Why there is no broker or topic.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The mock did not start.
    #[error("cannot start the embedded mock broker")]
    Mock(#[source] KafkaError),
    /// The topic could not be made.
    #[error("cannot create topic {topic} on {servers}")]
    CreateTopic {
        /// Which topic.
        topic: String,
        /// Where.
        servers: String,
        /// Why not.
        source: KafkaError,
    },
}

/// A broker to read from.
pub enum Broker {
    /// Somebody else's.
    Given {
        /// Its bootstrap servers.
        servers: String,
    },
    /// Our own; ends when dropped. Not to be sent to another thread.
    Mock {
        /// Its bootstrap servers.
        servers: String,
        /// The cluster.
        cluster: MockCluster<'static, DefaultProducerContext>,
    },
}

impl Broker {
    /// Starts an embedded mock cluster of one broker on a free loopback port.
    ///
    /// # Errors
    /// [`BrokerError::Mock`].
    pub fn mock() -> Result<Self, BrokerError> {
        let cluster = MockCluster::new(1).map_err(BrokerError::Mock)?;
        Ok(Self::Mock {
            servers: cluster.bootstrap_servers(),
            cluster,
        })
    }

    /// Where clients connect.
    #[must_use]
    pub fn servers(&self) -> &str {
        match self {
            Self::Given { servers } | Self::Mock { servers, .. } => servers,
        }
    }

    /// Makes a topic. One that exists stays as it is.
    ///
    /// # Errors
    /// [`BrokerError::CreateTopic`].
    pub async fn create_topic(&self, topic: &str, partitions: i32) -> Result<(), BrokerError> {
        let created = match self {
            Self::Mock { cluster, .. } => cluster.create_topic(topic, partitions, 1),
            Self::Given { servers } => create_on(servers, topic, partitions).await,
        };
        created.map_err(|source| BrokerError::CreateTopic {
            topic: topic.to_owned(),
            servers: self.servers().to_owned(),
            source,
        })
    }
}

async fn create_on(servers: &str, topic: &str, partitions: i32) -> Result<(), KafkaError> {
    let admin: AdminClient<QuietContext> = ClientConfig::new()
        .set("bootstrap.servers", servers)
        .set("client.id", "handover-dev")
        .create_with_context(QuietContext)?;
    // The broker's own default for the number of copies: a cluster of one has another than a cluster of three.
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(-1));
    let options = AdminOptions::new()
        .request_timeout(Some(ANSWER_WITHIN))
        .operation_timeout(Some(ANSWER_WITHIN));
    let answers = admin.create_topics([&new], &options).await?;
    for answer in answers {
        match answer {
            Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((_, code)) => return Err(KafkaError::AdminOp(code)),
        }
    }
    Ok(())
}

/// Keeps the client's complaints out of the log: the caller gets the error.
struct QuietContext;

impl ClientContext for QuietContext {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, _error: KafkaError, _reason: &str) {}
}
