//! The whole server, from its configuration to its last word.

use std::{io, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    App, Parts,
    reload::{Reloader, Reloading},
};
use crate::{
    config::{self, Config, KafkaConnection as ConfiguredConnection, PostgresConnection},
    engine::{
        error::StoreError,
        ports::{Clock, KafkaCluster, SinkFactory},
    },
    http::{self, HttpOptions, ServeLimits},
    kafka::{Cluster, KafkaConnection},
    service::{Clusters, ServiceError, Settings},
    sinks::{LogOutput, PostgresTarget, PostgresTargets, Sinks},
    store::{Store, StoreConfig},
};

/// How long the start waits for the schema before it goes on without: a database that is away must not keep the API away.
const SCHEMA_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two attempts to reach the database for the schema.
const SCHEMA_AGAIN: Duration = Duration::from_secs(1);
/// How much of a shutdown's time callers get for their answers at most.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// Why the server did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The listener is of no use.
    #[error("cannot read the address listened on")]
    Listener(#[source] io::Error),
    /// The log sink has nowhere to write.
    #[error("cannot set up the output of log sinks")]
    LogOutput(#[source] io::Error),
    /// The store's settings or its schema.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A connection that was checked is refused after all.
    #[error("connection {connection}: {property} {fault}")]
    Connection {
        /// Its name.
        connection: String,
        /// The first faulty property.
        property: String,
        /// What is wrong with it.
        fault: String,
    },
    /// The services cannot start or go on.
    #[error("{0}")]
    Service(#[from] ServiceError),
}

/// Runs the server on `listener` until `shutdown`, then ends it in order. With `reloading` it follows changes of its
/// configuration meanwhile.
///
/// # Errors
/// See [`AppError`]. A store or a Kafka that is away is none: both are waited for.
pub async fn run(
    config: Config,
    listener: TcpListener,
    reloading: Option<Reloading>,
    shutdown: CancellationToken,
) -> Result<(), AppError> {
    let address = listener.local_addr().map_err(AppError::Listener)?;
    let public_url = config.server.public_url.clone();
    let public_url = public_url.unwrap_or_else(|| format!("http://{address}"));
    let store = Store::connect_lazy(&StoreConfig {
        url: config.store.url.expose().to_owned(),
        max_connections: config.store.max_connections,
    })?;
    let clusters = clusters(&config)?;
    let sinks = Sinks::new(LogOutput::new(io::stdout()).map_err(AppError::LogOutput)?);
    sinks.replace_targets(targets(&config)?);
    let schema = bring_up_schema(
        store.clone(),
        config.store.migrate_at_start,
        shutdown.clone(),
    );
    let mut schema = std::pin::pin!(schema);
    // Where the database is there, nobody sees a server without its tables.
    let schema_is_there = match timeout(SCHEMA_WITHIN, &mut schema).await {
        Ok(outcome) => outcome.map(|()| true)?,
        Err(_still_away) => false,
    };
    let mut app = App::start(Parts {
        store,
        clusters,
        sinks: Arc::new(sinks.clone()) as Arc<dyn SinkFactory>,
        clock: Arc::new(SystemClock),
        settings: Settings {
            public_url: public_url.clone(),
            instance: config.instance.id.clone(),
            host: config::host_name(),
            lock_dir: config.instance.lock_dir.clone(),
            lease_ttl: config.lease.ttl,
            shutdown_deadline: config.server.shutdown_grace,
        },
    })?;
    let options = HttpOptions {
        public_url: public_url.clone(),
        read_only: config.server.read_only,
        per_partition_metrics: config.metrics.per_partition,
    };
    let limits = ServeLimits {
        drain_deadline: DRAIN_WITHIN.min(config.server.shutdown_grace / 2),
        ..ServeLimits::default()
    };
    let stop_http = CancellationToken::new();
    let router = http::router(app.service(), &options, stop_http.clone());
    let mut serving = std::pin::pin!(http::serve(listener, router, stop_http.clone(), limits));
    tracing::info!(server.url = public_url, server.address = %address, "the server is up");

    let schema_failed = async {
        if schema_is_there {
            return std::future::pending().await;
        }
        match schema.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let connections = app.connections();
    let reload = async {
        match reloading {
            Some(reloading) => {
                Reloader::new(reloading, config, connections, sinks)
                    .run()
                    .await
            }
            None => std::future::pending().await,
        }
    };
    let outcome = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        error = app.failed() => Err(error.into()),
        error = schema_failed => Err(error.into()),
        never = reload => match never {},
        // Ends only when it is told to, below.
        () = &mut serving => return Ok(()),
    };
    app.begin_shutdown();
    stop_http.cancel();
    serving.await;
    app.shut_down().await;
    tracing::info!("the server has ended");
    outcome
}

/// Applies the migrations that are missing, as soon as the database can be reached.
async fn bring_up_schema(
    store: Store,
    wanted: bool,
    shutdown: CancellationToken,
) -> Result<(), StoreError> {
    if !wanted {
        return Ok(());
    }
    let mut told = false;
    loop {
        match store.migrate().await {
            Ok(applied) if applied.is_empty() => return Ok(()),
            Ok(applied) => {
                tracing::info!(store.migrations = ?applied, "the database schema is up to date");
                return Ok(());
            }
            Err(StoreError::Unavailable(reason)) => {
                if !told {
                    tracing::warn!(reason, "the database is away; waiting for it");
                    told = true;
                }
            }
            Err(error @ (StoreError::Refused(_) | StoreError::Fenced | StoreError::NoSuchJob)) => {
                return Err(error);
            }
        }
        tokio::select! {
            () = sleep(SCHEMA_AGAIN) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

fn clusters(config: &Config) -> Result<Clusters, AppError> {
    config
        .connections
        .iter()
        .filter_map(|(name, connection)| Some((name, connection.kafka()?)))
        .map(|(name, connection)| Ok((name.clone(), cluster(name, connection)?)))
        .collect()
}

/// The target databases; nothing is asked of them.
pub(super) fn targets(config: &Config) -> Result<PostgresTargets, AppError> {
    config
        .connections
        .iter()
        .filter_map(|(name, connection)| Some((name, connection.postgres()?)))
        .map(|(name, connection)| Ok((name.clone(), target(name, connection)?)))
        .collect()
}

fn target(name: &str, connection: &PostgresConnection) -> Result<PostgresTarget, AppError> {
    PostgresTarget::new(connection.url.expose()).map_err(|fault| AppError::Connection {
        connection: name.to_owned(),
        property: "url".to_owned(),
        fault,
    })
}

/// Makes the cluster of a connection; nothing is asked of a broker.
pub(super) fn cluster(
    name: &str,
    connection: &ConfiguredConnection,
) -> Result<Arc<dyn KafkaCluster>, AppError> {
    if connection.insecure {
        tracing::warn!(
            kafka.connection = name,
            "insecure = true: the broker may be anybody, and debug output may show what is sent"
        );
    }
    let checked = KafkaConnection::new(name, connection.client_properties(), connection.insecure)
        .map_err(|faults| {
        let (property, fault) = faults.into_iter().next().unwrap_or_default();
        AppError::Connection {
            connection: name.to_owned(),
            property,
            fault,
        }
    })?;
    Ok(Arc::new(Cluster::new(checked)))
}

/// The machine's clock.
struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the Clock port's real side"
    )]
    fn now(&self) -> DateTime<Utc> {
        Utc::now()
    }
}
