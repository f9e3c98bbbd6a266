//! `handover dev`: the whole thing at work on one machine, for somebody who has never seen it.
//!
//! Order events flow into a topic, two jobs read them, their checkpoints go to a PostgreSQL of our own. Everything that was
//! made is taken away at the end, in the reverse order: the generator, the server with its jobs' last checkpoints, the
//! database, the folder. What was given (`--kafka`, `--database`) is used and left alone; doing so twice changes nothing.

pub mod api;
pub mod broker;
pub mod generator;
pub mod guide;
pub mod orders;
pub mod postgres;

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs, io,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::{Value, json};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    api::ApiError,
    broker::{Broker, BrokerError},
    generator::GeneratorOptions,
    guide::Guide,
    orders::OrderEvents,
    postgres::{PostgresError, PrivatePostgres},
};
use crate::{
    app::{self, AppError},
    config::{Config, ConfigFile, InvalidConfig, PropertyRules, Sources, setting},
};

/// The name of the Kafka connection in the demo's configuration.
const CONNECTION: &str = "main";
/// The name of the connection that rows go to: the demo's own database has room for them, too.
const TARGET: &str = "warehouse";
/// The job that the printed calls use.
const EXAMPLE_JOB: &str = "orders-to-postgres";

/// Flags of `handover dev`.
#[derive(Debug, Clone, Args)]
pub struct DevOptions {
    /// Order events a second; 0 writes none
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub rate: u32,
    /// Partitions of the topic, if it is made
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=1_000))]
    pub partitions: i32,
    /// The topic for the order events
    #[arg(long, default_value = "orders")]
    pub topic: String,
    /// Address of the API and the web page; loopback only, port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:8080")]
    pub listen: String,
    /// Use this Kafka instead of librdkafka's embedded mock broker, which cannot start by timestamp or list groups
    #[arg(long, value_name = "HOST:PORT")]
    pub kafka: Option<String>,
    /// Use this database instead of a private PostgreSQL cluster
    #[arg(long, value_name = "URL")]
    pub database: Option<String>,
    /// Leave the folder with the database, its log and a configuration file
    #[arg(long)]
    pub keep: bool,
    /// Seed of the order events, to get the same ones again [default: another one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Why the demo did not run.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The system refused something.
    #[error("cannot {step}")]
    System {
        /// What was to be done.
        step: String,
        /// Why it could not be.
        source: io::Error,
    },
    /// No database.
    #[error(transparent)]
    Postgres(#[from] PostgresError),
    /// No broker or topic.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// A flag or a variable is not in order.
    #[error(transparent)]
    Config(#[from] InvalidConfig),
    /// The generator could not start.
    #[error("cannot write order events")]
    Generator(#[from] rdkafka::error::KafkaError),
    /// The server did not run.
    #[error("the server failed")]
    App(#[from] AppError),
    /// The table that the demo writes to could not be made.
    #[error("cannot make the table public.orders")]
    Table(#[source] sqlx::Error),
    /// A job could not be set up.
    #[error("cannot set up job {job}")]
    Job {
        /// Which job.
        job: &'static str,
        /// What the API said.
        source: ApiError,
    },
    /// A task panicked.
    #[error("{task} ended unexpectedly")]
    Task {
        /// Which one.
        task: &'static str,
        /// How.
        source: tokio::task::JoinError,
    },
}

/// Runs the demo until `shutdown`. Not `Send`: the mock broker stays on the calling thread.
///
/// # Errors
/// See [`DevError`]; what was made is taken away then too.
pub async fn run(
    options: DevOptions,
    environment: BTreeMap<String, String>,
    rules: PropertyRules,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    // Declared first, dropped last.
    let folder = WorkFolder::make(options.keep)?;
    let listener = TcpListener::bind(&options.listen)
        .await
        .map_err(|source| DevError::System {
            step: format!(
                "listen on {} (take another with --listen, or port 0 for a free one)",
                options.listen
            ),
            source,
        })?;
    let address = listener
        .local_addr()
        .map_err(system("read the address listened on"))?;
    let mut database = match &options.database {
        Some(_) => None,
        None => Some(start_postgres(&folder, options.keep).await?),
    };
    let database_url = match (&options.database, &database) {
        (Some(url), _) => url.clone(),
        (None, Some(database)) => database.url().to_owned(),
        (None, None) => String::new(),
    };
    let broker = match &options.kafka {
        Some(servers) => Broker::Given {
            servers: servers.clone(),
        },
        None => Broker::mock()?,
    };
    let sources = sources(
        &options,
        environment,
        &folder.path,
        &database_url,
        broker.servers(),
        address,
    );
    let config = Config::load(&sources, rules)?;
    if options.keep {
        let file = folder.path.join("handover.toml");
        write_private(&file, &kept_file(&config, &database_url))
            .map_err(system("write the configuration"))?;
    }
    broker
        .create_topic(&options.topic, options.partitions)
        .await?;

    let outcome = serve(
        &options,
        config,
        listener,
        address,
        &broker,
        &database_url,
        shutdown,
    )
    .await;
    if let Some(mut database) = database.take() {
        blocking("PostgreSQL's end", move || database.stop()).await??;
    }
    folder.remove()?;
    outcome
}

/// Server and generator side by side, until one of them ends or the shutdown comes.
async fn serve(
    options: &DevOptions,
    config: Config,
    listener: TcpListener,
    address: SocketAddr,
    broker: &Broker,
    database_url: &str,
    shutdown: CancellationToken,
) -> Result<(), DevError> {
    let tasks = TaskTracker::new();
    let stop_server = CancellationToken::new();
    let mut server = tasks.spawn(app::run(config, listener, None, stop_server.clone()));
    let stop_generator = CancellationToken::new();
    let shop = OrderEvents::new(
        options.seed.unwrap_or_else(|| fastrand::u64(..)),
        first_order(),
    );
    let generator = tasks.spawn(generator::run(
        GeneratorOptions {
            servers: broker.servers().to_owned(),
            topic: options.topic.clone(),
            rate: options.rate,
        },
        shop,
        stop_generator.clone(),
    ));
    let guided = async {
        make_table(database_url).await?;
        set_up_jobs(address, &options.topic).await?;
        let guide = guide(options, address, broker, database_url);
        writeln!(io::stdout(), "{guide}").map_err(system("print"))?;
        shutdown.cancelled().await;
        Ok::<(), DevError>(())
    };
    let guided = tokio::select! {
        guided = guided => guided,
        () = shutdown.cancelled() => Ok(()),
        ended = &mut server => {
            stop_generator.cancel();
            return ended.map_err(task("the server"))?.map_err(DevError::App);
        }
    };
    stop_generator.cancel();
    let written = generator.await.map_err(task("the generator"))??;
    tracing::info!(records = written, kafka.topic = %options.topic, "no more order events");
    stop_server.cancel();
    server.await.map_err(task("the server"))??;
    guided
}

/// Defines the two jobs through the API and starts them, as a person would.
async fn set_up_jobs(server: SocketAddr, topic: &str) -> Result<(), DevError> {
    for (job, spec) in jobs(topic) {
        let failed = |source| DevError::Job { job, source };
        let path = format!("/api/v1/jobs/{job}");
        api::call(server, "PUT", &format!("{path}/spec"), Some(&spec))
            .await
            .map_err(failed)?;
        api::call(server, "POST", &format!("{path}/start?wait=30s"), None)
            .await
            .map_err(failed)?;
    }
    Ok(())
}

/// Where the demo's events become rows. The key refuses an event that came twice, and with it fails the job.
const ORDERS_TABLE: &str = "CREATE TABLE IF NOT EXISTS public.orders (
    event_id text PRIMARY KEY, order_id text NOT NULL, type text NOT NULL, customer_id text, total_cents bigint,
    occurred_at timestamptz NOT NULL, event jsonb NOT NULL, \"partition\" integer NOT NULL, \"offset\" bigint NOT NULL)";

/// Makes the table that the demo writes to.
async fn make_table(database_url: &str) -> Result<(), DevError> {
    let made = async {
        let mut connection = PgConnection::connect(database_url).await?;
        connection.execute(ORDERS_TABLE).await?;
        connection.close().await
    };
    made.await.map_err(DevError::Table)
}

fn jobs(topic: &str) -> [(&'static str, Value); 2] {
    let to_postgres = json!({
        "labels": {"demo": "orders"},
        "source": {
            "connection": CONNECTION,
            "topics": [topic],
            "group_id": EXAMPLE_JOB,
            "isolation": "read_committed",
            "format": "json",
            "on_out_of_range": "earliest",
        },
        "startup_mode": {"mode": "earliest"},
        "checkpoint": {"interval": "5s"},
        "sink": {
            "type": "postgres",
            "connection": TARGET,
            "delivery": "exactly-once",
            "table": "public.orders",
            "mapping": {
                "mode": "json-fields",
                "columns": {
                    "event_id": "$.event_id",
                    "order_id": "$.order_id",
                    "type": "$.type",
                    "customer_id": "$.customer_id",
                    "total_cents": "$.total_cents",
                    "occurred_at": "$.occurred_at",
                    "event": "@value",
                    "partition": "@partition",
                    "offset": "@offset",
                },
            },
            "write": {"mode": "append", "on_tombstone": "fail"},
        },
    });
    let to_nowhere = json!({
        "labels": {"demo": "orders"},
        "source": {
            "connection": CONNECTION,
            "topics": [topic],
            "group_id": "orders-blackhole",
            "on_out_of_range": "earliest",
        },
        "parallelism": 2,
        "startup_mode": {"mode": "latest"},
        "sink": {"type": "blackhole"},
    });
    [(EXAMPLE_JOB, to_postgres), ("orders-blackhole", to_nowhere)]
}

/// The demo's configuration: flags of ours over the environment over a file that names the broker.
fn sources(
    options: &DevOptions,
    environment: BTreeMap<String, String>,
    folder: &Path,
    database_url: &str,
    servers: &str,
    address: SocketAddr,
) -> Sources {
    let mut flags = BTreeMap::from([
        (setting::LISTEN.name(), address.to_string()),
        (setting::STORE_URL.name(), database_url.to_owned()),
    ]);
    if options.database.is_none() {
        // Nobody else can be in our own database.
        flags.insert(setting::LOCK_DIR.name(), folder.display().to_string());
    }
    let (servers, database) = (toml::Value::from(servers), toml::Value::from(database_url));
    Sources {
        flags,
        environment,
        file: Some(ConfigFile {
            path: PathBuf::from("(made by handover dev)"),
            text: Ok(format!(
                "[connections.{CONNECTION}]\ntype = \"kafka\"\nbootstrap_servers = {servers}\n\
                 [connections.{TARGET}]\ntype = \"postgres\"\nurl = {database}\n"
            )),
        }),
    }
}

/// The effective configuration with the database's real URL: it lies in a folder that only we can read.
fn kept_file(config: &Config, database_url: &str) -> String {
    let hidden = toml::Value::from(config.store.url.to_string()).to_string();
    let real = toml::Value::from(database_url).to_string();
    let mut text = "# What `handover dev` ran with.\n".to_owned();
    let _infallible = write!(text, "{config}");
    text.replace(&hidden, &real)
}

fn guide(options: &DevOptions, address: SocketAddr, broker: &Broker, database_url: &str) -> Guide {
    Guide {
        url: format!("http://{address}"),
        kafka: broker.servers().to_owned(),
        limits: options.kafka.is_none().then_some(broker::MOCK_LIMITS),
        database: match &options.database {
            None => database_url.to_owned(),
            Some(_) => "as given".to_owned(),
        },
        topic: options.topic.clone(),
        partitions: options.partitions,
        rate: options.rate,
        job: EXAMPLE_JOB,
        jq: in_path("jq"),
        psql: options.database.is_none() && in_path("psql"),
    }
}

async fn start_postgres(folder: &WorkFolder, keep: bool) -> Result<PrivatePostgres, DevError> {
    let path = folder.path.clone();
    Ok(blocking("PostgreSQL's start", move || {
        PrivatePostgres::start(&path, keep)
    })
    .await??)
}

async fn blocking<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DevError> {
    tokio::task::spawn_blocking(work).await.map_err(task(name))
}

/// A folder for everything that the demo makes.
struct WorkFolder {
    path: PathBuf,
    keep: bool,
}

impl WorkFolder {
    /// Makes one that nobody else can look into, but through which the database's user can reach its own folder.
    fn make(keep: bool) -> Result<Self, DevError> {
        let name = format!(
            "handover-dev-{}-{:08x}",
            std::process::id(),
            fastrand::u32(..)
        );
        let path = env::temp_dir().join(name);
        let step = || format!("make the folder {}", path.display());
        let failed = |source| DevError::System {
            step: step(),
            source,
        };
        fs::create_dir(&path).map_err(failed)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).map_err(failed)?;
        Ok(Self { path, keep })
    }

    /// Takes it away, or says where it stays.
    fn remove(mut self) -> Result<(), DevError> {
        if self.keep {
            writeln!(io::stdout(), "kept {}", self.path.display()).map_err(system("print"))?;
            return Ok(());
        }
        // Once is enough, even if it fails.
        self.keep = true;
        fs::remove_dir_all(&self.path).map_err(|source| DevError::System {
            step: format!("remove {}", self.path.display()),
            source,
        })
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), error = %error, "cannot remove the demo's folder");
        }
    }
}

/// Writes a file that only we can read.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path)?.write_all(text.as_bytes())
}

/// Order numbers go up from run to run, so that a kept topic does not tell two stories under one key.
fn first_order() -> u64 {
    u64::try_from(now().timestamp()).unwrap_or_default() % 100_000_000
}

/// The demo makes its events out of the real time; nothing of it is tested against a clock.
#[expect(
    clippy::disallowed_methods,
    reason = "the shop lives in the present; what is tested takes the time as an argument"
)]
fn now() -> DateTime<Utc> {
    Utc::now()
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn system(step: &'static str) -> impl FnOnce(io::Error) -> DevError {
    move |source| DevError::System {
        step: step.to_owned(),
        source,
    }
}

fn task(name: &'static str) -> impl FnOnce(tokio::task::JoinError) -> DevError {
    move |source| DevError::Task { task: name, source }
}
