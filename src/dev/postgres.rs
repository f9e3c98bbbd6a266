//! A private PostgreSQL cluster: made in a folder, served on a free loopback port, gone at the end.
//!
//! `initdb` and `postgres` refuse to run as root, rightly; run by root, they are started as user `postgres`, else `nobody`.
//! The server watches a pipe that this process holds: when the process is gone, however it went, the server shuts down.

use std::{
    env, fs, io,
    net::{Ipv4Addr, TcpListener},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long the server may take until it accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a fast shutdown may take before the server is killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Why there is no database.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    /// The programs are not there.
    #[error(
        "PostgreSQL's server programs (initdb, postgres) were found neither in PATH nor under /usr/lib/postgresql; \
         install them (Debian: apt-get install -y postgresql), or name a database with --database URL"
    )]
    NotInstalled,
    /// Run by root, and no user to run as.
    #[error(
        "PostgreSQL does not run as root, and there is neither a user postgres nor nobody; use --database URL"
    )]
    NoUser,
    /// A step failed at the system.
    #[error("cannot {step}")]
    System {
        /// What was to be done.
        step: String,
        /// Why it could not be.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Program {
        /// Which one.
        program: &'static str,
        /// What it said.
        output: String,
    },
    /// The server did not come up.
    #[error("PostgreSQL {what}; its log:\n{log}")]
    NotReady {
        /// Whether it ended or did not get ready.
        what: &'static str,
        /// The end of its log.
        log: String,
    },
}

/// A running private cluster. Blocking calls only; use from a thread that may block.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: Child,
    url: String,
    stopped: bool,
}

/// The user that the programs run as; `None`: as ourselves.
#[derive(Debug, Clone, Copy)]
struct RunAs {
    uid: u32,
    gid: u32,
}

impl PrivatePostgres {
    /// Makes and starts a cluster in `folder`, which exists and is ours. `durable`: whether its data must survive a crash
    /// of the machine.
    ///
    /// # Errors
    /// See [`PostgresError`]; nothing runs then.
    pub fn start(folder: &Path, durable: bool) -> Result<Self, PostgresError> {
        let programs = find_programs().ok_or(PostgresError::NotInstalled)?;
        let run_as = run_as(folder)?;
        let data = folder.join("postgres");
        fs::create_dir(&data).map_err(system("make the folder of the database"))?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))
            .map_err(system("close the folder of the database"))?;
        let password = format!("{:032x}", fastrand::u128(..));
        let password_file = folder.join("password");
        super::write_private(&password_file, &password).map_err(system("write the password"))?;
        if let Some(user) = run_as {
            for path in [&data, &password_file] {
                chown(path, Some(user.uid), Some(user.gid))
                    .map_err(system("give the folder away"))?;
            }
        }
        init_cluster(&programs, &data, &password_file, run_as)?;
        fs::remove_file(&password_file).map_err(system("remove the password's file"))?;
        let port = free_port().map_err(system("find a free port"))?;
        let server = spawn_server(&programs, &data, port, run_as, durable)?;
        let mut cluster = Self {
            server,
            url: format!("postgres://handover:{password}@127.0.0.1:{port}/postgres"),
            stopped: false,
        };
        cluster.await_ready(&data)?;
        Ok(cluster)
    }

    /// Where it is reached, with its password.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Ends it: open sessions are cut, data is written; killed when that takes too long.
    ///
    /// # Errors
    /// When the system does not say what became of it.
    pub fn stop(&mut self) -> Result<(), PostgresError> {
        if self.stopped {
            return Ok(());
        }
        self.stopped = true;
        // Closing the pipe is the sign to shut down.
        drop(self.server.stdin.take());
        let deadline = Instant::now() + STOP_WITHIN;
        loop {
            let ended = self
                .server
                .try_wait()
                .map_err(system("wait for postgres"))?;
            if ended.is_some() {
                return Ok(());
            }
            if Instant::now() > deadline {
                self.server.kill().map_err(system("kill postgres"))?;
                self.server.wait().map_err(system("wait for postgres"))?;
                return Ok(());
            }
            pause();
        }
    }

    /// Waits for what `pg_ctl` waits for: the word in the eighth line of the server's pid file.
    fn await_ready(&mut self, data: &Path) -> Result<(), PostgresError> {
        let deadline = Instant::now() + READY_WITHIN;
        let what = loop {
            let pid_file = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            if pid_file
                .lines()
                .nth(7)
                .is_some_and(|status| status.trim() == "ready")
            {
                return Ok(());
            }
            if self
                .server
                .try_wait()
                .map_err(system("wait for postgres"))?
                .is_some()
            {
                break "ended at its start";
            }
            if Instant::now() > deadline {
                break "did not get ready in time";
            }
            pause();
        };
        self.stop()?;
        let log = fs::read_to_string(data.join("server.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines.len().saturating_sub(10);
        Err(PostgresError::NotReady {
            what,
            log: lines[last..].join("\n"),
        })
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "cannot stop the private PostgreSQL"
            );
        }
    }
}

fn init_cluster(
    programs: &Path,
    data: &Path,
    password_file: &Path,
    run_as: Option<RunAs>,
) -> Result<(), PostgresError> {
    let mut initdb = Command::new(programs.join("initdb"));
    initdb
        .args([
            "--username=handover",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ])
        .arg("--pwfile")
        .arg(password_file)
        .arg("--pgdata")
        .arg(data)
        .current_dir(data)
        .stdin(Stdio::null());
    drop_root(&mut initdb, run_as);
    let output = initdb.output().map_err(system("run initdb"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(PostgresError::Program {
        program: "initdb",
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

fn spawn_server(
    programs: &Path,
    data: &Path,
    port: u16,
    run_as: Option<RunAs>,
    durable: bool,
) -> Result<Child, PostgresError> {
    // `cat` ends when the last writer of its standard input is gone; SIGINT is PostgreSQL's fast shutdown.
    const WATCHED: &str =
        r#"exec 3<&0 </dev/null; (cat <&3 >/dev/null; kill -INT $$) & exec "$@" 3<&-"#;
    let log =
        fs::File::create(data.join("server.log")).map_err(system("make the log of postgres"))?;
    let both = log
        .try_clone()
        .map_err(system("make the log of postgres"))?;
    let mut server = Command::new("sh");
    server
        .args(["-c", WATCHED, "sh"])
        .arg(programs.join("postgres"))
        .arg("-D")
        .arg(data)
        .arg("-k")
        .arg(data)
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args([
            "-c",
            &format!("fsync={durable}"),
            "-c",
            "logging_collector=off",
        ])
        .current_dir(data)
        .stdin(Stdio::piped())
        .stdout(log)
        .stderr(both)
        // Ctrl-C on the terminal must not reach it: jobs take their last checkpoint into it.
        .process_group(0);
    drop_root(&mut server, run_as);
    server.spawn().map_err(system("run postgres"))
}

fn drop_root(command: &mut Command, run_as: Option<RunAs>) {
    if let Some(user) = run_as {
        // Also gives up root's supplementary groups.
        command.uid(user.uid).gid(user.gid);
    }
}

/// The user for the programs: whoever owns the folder, unless that is root.
fn run_as(folder: &Path) -> Result<Option<RunAs>, PostgresError> {
    let owner = fs::metadata(folder)
        .map_err(system("look at the folder"))?
        .uid();
    if owner != 0 {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(system("read /etc/passwd"))?;
    ["postgres", "nobody"]
        .iter()
        .find_map(|name| user_of(&users, name))
        .map(Some)
        .ok_or(PostgresError::NoUser)
}

/// A user's ids by the lines of /etc/passwd: `name:x:uid:gid:...`.
fn user_of(users: &str, name: &str) -> Option<RunAs> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(RunAs { uid, gid })
    })
}

/// The folder of the server's programs: `PG_BIN`, the newest where distributions put them, or one of PATH.
fn find_programs() -> Option<PathBuf> {
    let whole =
        |folder: &Path| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    if let Some(folder) = env::var_os("PG_BIN") {
        return Some(PathBuf::from(folder)).filter(|folder| whole(folder));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    if let Some(folder) = env::split_paths(&path).find(|folder| whole(folder)) {
        return Some(folder);
    }
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    versions
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .filter(|(_, folder)| whole(folder))
        .max()
        .map(|(_, folder)| folder)
}

/// A port that was free a moment ago.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// Between two looks at a process or a file, neither of which can wake us.
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread that may block, and each loop around it has a deadline"
)]
fn pause() {
    thread::sleep(POLL);
}

fn system(step: &'static str) -> impl FnOnce(io::Error) -> PostgresError {
    move |source| PostgresError::System {
        step: step.to_owned(),
        source,
    }
}
