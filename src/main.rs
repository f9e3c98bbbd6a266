//! The program: reads the command line, runs one command, turns its outcome into an exit code.

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use clap::Parser;
use handover::{
    app::{self, Reloading},
    config::{Config, PropertyRules, Sources},
    crash_point,
    dev::{self, DevOptions},
    http, kafka,
    store::{Store, StoreConfig},
    telemetry,
};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

use crate::cli::{Cli, ConfigArgs, Task};

mod cli;

/// Over C's `malloc` too: most of the memory is librdkafka's, allocated on one thread and freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What the Kafka adapter knows about client properties.
const PROPERTY_RULES: PropertyRules = PropertyRules {
    is_secret: kafka::client_config::is_secret,
    check: kafka::client_config::check_connection,
};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Task::Serve(args) => serve(args),
        Task::Dev(options) => dev(options),
        Task::Migrate(args) => migrate(args).map(|()| ExitCode::SUCCESS),
        Task::Openapi => print(&http::openapi_json()).map(|()| ExitCode::SUCCESS),
        Task::CheckConfig(args) => check_config(args).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        // With all causes, outermost first. If standard error is gone there is nobody to tell.
        let _told = writeln!(io::stderr(), "handover: {error:#}");
        ExitCode::FAILURE
    })
}

fn serve(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let config = load(args.clone())?;
    let filter = telemetry::init(&config.log)?;
    crash_point::arm(
        cli::environment()
            .get(crash_point::VARIABLE)
            .map(String::as_str),
    )?;
    crash_point::arm_panics(
        cli::environment()
            .get(crash_point::PANIC_VARIABLE)
            .map(String::as_str),
    )?;
    run(false, async |shutdown| {
        let reloading = Reloading {
            hangups: signal(SignalKind::hangup()).context("cannot listen for signals")?,
            load: Arc::new(move || Config::load(&args.clone().sources(), PROPERTY_RULES)),
            filter,
        };
        let listen = config.server.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen} (server.listen)"))?;
        app::run(config, listener, Some(reloading), shutdown).await?;
        Ok(())
    })
}

fn dev(options: DevOptions) -> anyhow::Result<ExitCode> {
    let environment = cli::environment();
    let sources = Sources {
        environment: environment.clone(),
        ..Sources::default()
    };
    telemetry::init(&Config::load_log(&sources)?)?;
    // A closed terminal ends the demo, which would otherwise leave its database behind.
    run(true, async |shutdown| {
        dev::run(options, environment, PROPERTY_RULES, shutdown).await?;
        Ok(())
    })
}

fn check_config(args: ConfigArgs) -> anyhow::Result<()> {
    print(&load(args)?.to_string())
}

fn migrate(args: ConfigArgs) -> anyhow::Result<()> {
    let config = load(args)?;
    telemetry::init(&config.log)?;
    runtime()?.block_on(async {
        let store = Store::connect_lazy(&StoreConfig {
            url: config.store.url.expose().to_owned(),
            max_connections: config.store.max_connections,
        })?;
        let applied = store.migrate().await;
        store.close().await;
        let lines: String = match applied?.as_slice() {
            [] => "nothing to do: the schema is up to date\n".to_owned(),
            names => names
                .iter()
                .map(|name| format!("applied {name}\n"))
                .collect(),
        };
        print(&lines)
    })
}

fn load(args: ConfigArgs) -> anyhow::Result<Config> {
    Ok(Config::load(&args.sources(), PROPERTY_RULES)?)
}

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}

/// Runs something that ends in order when its token is cancelled: at the first signal. At the second one it is dropped.
fn run(
    hangup: bool,
    work: impl AsyncFnOnce(CancellationToken) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        let mut signals = Signals::listen(hangup).context("cannot listen for signals")?;
        let shutdown = CancellationToken::new();
        tokio::select! {
            outcome = work(shutdown.clone()) => outcome.map(|()| ExitCode::SUCCESS),
            kind = signals.second(&shutdown) => {
                tracing::warn!("second signal: ending at once, without waiting for last checkpoints");
                Ok(ExitCode::from(128 + kind))
            }
        }
    });
    // A thread that still blocks (a broker that does not answer) must not hold up the end.
    runtime.shutdown_background();
    outcome
}

/// The signals that end the program.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    fn listen(hangup: bool) -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: hangup.then(|| signal(SignalKind::hangup())).transpose()?,
        })
    }

    /// Cancels the token at the first signal and answers the number of the second.
    async fn second(&mut self, shutdown: &CancellationToken) -> u8 {
        self.next().await;
        tracing::info!("shutting down; a second signal ends at once");
        shutdown.cancel();
        self.next().await
    }

    async fn next(&mut self) -> u8 {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => 15,
            _ = self.interrupt.recv() => 2,
            _ = hangup => 1,
        }
    }
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // `handover openapi | head` is in order.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        outcome => outcome.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn librdkafka_allocates_with_the_allocator_of_the_program() {
        assert!(rdkafka_ext::librdkafka_allocates_with_mimalloc());
    }
}
