//! The built binary, run as a user runs it: `handover serve --config FILE` with a database of its own and a real broker.

use std::{
    fs::File,
    net::TcpListener,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use handover::crash_point;
use reqwest::Method;

use super::{
    Database,
    client::{Api, Job, block_on},
    kafka::Kafka,
    sink::SinkLog,
    unique,
    wait::{SOON, breathe, eventually},
};

/// A server and its folder. Ends with the test; when the test fails, its last log lines are shown.
pub(crate) struct TestServer {
    pub(crate) api: Api,
    pub(crate) log: SinkLog,
    pub(crate) base: String,
    folder: tempfile::TempDir,
    config: PathBuf,
    lives: u32,
    /// Where the next process dies.
    crash_at: Option<String>,
    /// Where the next process panics, and how often.
    panic_at: Option<String>,
    process: Option<Running>,
    /// Last, so that it is dropped when the server is gone.
    _database: Option<Database>,
}

struct Running {
    child: Child,
    /// Standard output that nobody reads.
    unread: Option<ChildStdout>,
}

/// What becomes of the server's standard output, where the log sink writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// Every line is taken at once.
    Followed,
    /// Nobody reads the pipe: after its 64 KiB the sink blocks.
    Unread,
}

impl TestServer {
    /// A server on the shared broker with a fresh database.
    pub(crate) fn start() -> Self {
        Self::start_on(&Kafka::shared(), Output::Followed)
    }

    /// A server with a fresh database.
    pub(crate) fn start_on(kafka: &Kafka, output: Output) -> Self {
        let database = block_on(Database::create());
        let mut server = Self::start_with(kafka, &database.url(), output);
        server._database = Some(database);
        server
    }

    /// A server with a database that belongs to the test.
    pub(crate) fn start_with(kafka: &Kafka, database_url: &str, output: Output) -> Self {
        Self::start_configured(kafka, database_url, output, "")
    }

    /// A server with more in its configuration file: whole sections.
    pub(crate) fn start_configured(
        kafka: &Kafka,
        database_url: &str,
        output: Output,
        more: &str,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let config = folder.path().join("handover.toml");
        let text = format!(
            r#"
[server]
listen = "127.0.0.1:{port}"
shutdown_grace = "20s"
[store]
url = "{database_url}"
[instance]
id = "{}"
lock_dir = "{}"
[log]
format = "text"
filter = "info"
[connections.main]
type = "kafka"
bootstrap_servers = "{}"
{more}
"#,
            unique("server"),
            folder.path().display(),
            kafka.bootstrap,
        );
        std::fs::write(&config, text).expect("a file");
        let base = format!("http://127.0.0.1:{port}");
        let api = Api::new(&base);
        let mut server = Self {
            api,
            log: SinkLog::default(),
            base,
            folder,
            config,
            lives: 0,
            crash_at: None,
            panic_at: None,
            process: None,
            _database: None,
        };
        server.boot_with(output);
        server
    }

    /// Starts the process on its port and waits until it is ready.
    pub(crate) fn boot(&mut self) {
        self.boot_with(Output::Followed);
    }

    fn boot_with(&mut self, output: Output) {
        self.spawn(output);
        self.await_ready();
    }

    /// Starts the process without waiting; it dies as by `SIGKILL` when it comes to this point (`handover::crash_point`).
    pub(crate) fn boot_to_crash(&mut self, point: &str) {
        self.crash_at = Some(point.to_owned());
        self.spawn(Output::Followed);
    }

    /// Starts the process, whose code panics at this point as often as said, and waits until it is ready.
    pub(crate) fn boot_to_panic(&mut self, point: &str) {
        self.panic_at = Some(point.to_owned());
        self.boot();
    }

    /// Waits until the process has died at its crash point.
    pub(crate) fn await_crash(&mut self) {
        let status = self.await_exit();
        assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
    }

    /// Waits until the process has died at its crash point, but not longer than this; says whether it has.
    pub(crate) fn crashes_within(&mut self, span: Duration) -> bool {
        let end = Instant::now() + span;
        while Instant::now() < end {
            if let Some(status) = self.exited() {
                assert_eq!(status.signal(), Some(9), "it ended otherwise: {status}");
                self.process = None;
                return true;
            }
            breathe(Duration::from_millis(2));
        }
        false
    }

    /// Waits until the process has ended by itself.
    pub(crate) fn await_exit(&mut self) -> ExitStatus {
        let status = eventually("the server ends", Duration::from_secs(60), || {
            self.exited().ok_or("it still runs")
        });
        self.process = None;
        status
    }

    /// Starts the process without waiting.
    pub(crate) fn spawn(&mut self, output: Output) {
        assert!(self.process.is_none(), "it runs already");
        let errors = File::options()
            .create(true)
            .append(true)
            .open(self.stderr_path())
            .expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_handover"));
        command.arg("serve").arg("--config").arg(&self.config);
        // Nothing of whoever runs the tests may reach the server.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HANDOVER_")) {
            command.env_remove(name);
        }
        if let Some(point) = self.crash_at.take() {
            command.env(crash_point::VARIABLE, point);
        }
        if let Some(point) = self.panic_at.take() {
            command.env(crash_point::PANIC_VARIABLE, point);
        }
        let (written, read) = self.output_file();
        let stdout = match output {
            Output::Followed => written.into(),
            Output::Unread => Stdio::piped(),
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(errors)
            .spawn()
            .expect("the server runs");
        self.log.follow(read);
        let unread = child.stdout.take();
        self.process = Some(Running { child, unread });
    }

    /// A file for the output of one life, to write to and to read from.
    fn output_file(&mut self) -> (File, File) {
        self.lives += 1;
        let path = self
            .folder
            .path()
            .join(format!("stdout-{}.log", self.lives));
        let written = File::create(&path).expect("a file");
        (written, File::open(&path).expect("a file"))
    }

    pub(crate) fn await_ready(&mut self) {
        let api = self.api.clone();
        eventually("the server is ready", Duration::from_secs(60), || {
            if let Some(status) = self.exited() {
                panic!("the server ended: {status}");
            }
            match api.try_send(&Method::GET, "/readyz?verbose", None) {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(answer.body.to_string()),
                Err(error) => Err(error),
            }
        });
    }

    /// Begins to read the output that nobody read.
    pub(crate) fn follow_output(&mut self) {
        let mut pipe = self.running().unread.take().expect("an unread pipe");
        let (mut written, read) = self.output_file();
        self.log.follow(read);
        // Ends with the server.
        std::thread::spawn(move || std::io::copy(&mut pipe, &mut written));
    }

    /// The database of the server, if it has one of its own.
    pub(crate) fn database(&self) -> &Database {
        self._database.as_ref().expect("a database of its own")
    }

    fn running(&mut self) -> &mut Running {
        self.process.as_mut().expect("the server runs")
    }

    fn exited(&mut self) -> Option<ExitStatus> {
        self.running().child.try_wait().expect("a child")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").child.id()
    }

    /// `SIGKILL`: nothing of the process runs any more when this returns.
    pub(crate) fn kill(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.child.kill().expect("a signal");
        process.child.wait().expect("an end");
    }

    /// `SIGTERM`, as a supervisor stops it; answers how it ended and how long that took.
    pub(crate) fn terminate(&mut self) -> (ExitStatus, Duration) {
        let from = Instant::now();
        self.signal("-TERM");
        let status = self.await_exit();
        (status, from.elapsed())
    }

    /// `SIGHUP`: the server reads its configuration again.
    pub(crate) fn hang_up(&self) {
        self.signal("-HUP");
    }

    /// Sends a signal, for instance `-STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status()
            .expect("a signal");
        assert!(sent.success());
    }

    pub(crate) fn config_path(&self) -> &Path {
        &self.config
    }

    /// The text of the configuration file.
    pub(crate) fn config(&self) -> String {
        std::fs::read_to_string(&self.config).expect("a file")
    }

    /// Writes the configuration file anew; the server does not know yet.
    pub(crate) fn write_config(&self, text: &str) {
        std::fs::write(&self.config, text).expect("a file");
    }

    /// What the server has logged, over all its starts.
    pub(crate) fn logged(&self) -> String {
        std::fs::read_to_string(self.stderr_path()).expect("a file")
    }

    /// Resident memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .expect("the process's status");
        let kilobytes: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
            .expect("a number");
        kilobytes * 1024
    }

    pub(crate) fn job(&self, name: &str) -> Job {
        self.api.job(name)
    }

    /// Waits until a job does this.
    pub(crate) fn await_state(&self, job: &Job, state: &str) {
        eventually(&format!("{} is {state}", job.path), SOON, || {
            let view = job.view();
            if view["state"] == state {
                Ok(())
            } else {
                Err(format!("{view:#}"))
            }
        });
    }

    fn stderr_path(&self) -> PathBuf {
        self.folder.path().join("stderr.log")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            if let Ok(Some(status)) = process.child.try_wait() {
                println!("--- the server had ended: {status}");
            }
            let _killed = process.child.kill();
            let _ended = process.child.wait();
        }
        if std::thread::panicking() {
            let text = std::fs::read_to_string(self.stderr_path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            println!("--- the server's log, its end\n{tail}\n---");
        }
    }
}

/// A loopback port that nobody listens on, below the range from which the kernel takes ports for outgoing connections and
/// below that of `scripts/`, so that it stays free while the server is down.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FROM: u16 = 10_000;
    const COUNT: u16 = 6_000;
    let seed = u16::try_from(std::process::id() % u32::from(COUNT)).expect("a small number");
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FROM + (seed.wrapping_mul(7).wrapping_add(step)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port");
}
