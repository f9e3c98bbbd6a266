//! Databases of a test's own: a fresh one in the shared cluster, or a whole private cluster.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use fault_proxy::{Protocol, Proxy};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;
use uuid::Uuid;

use super::client::block_on;

const VARIABLE: &str = "HANDOVER_TEST_DATABASE_URL";

/// An empty database in the cluster that the tests share; dropped at the end of the test.
pub(crate) struct Database {
    admin_url: String,
    name: String,
}

impl Database {
    /// Makes one.
    ///
    /// # Panics
    /// When the environment does not say where the cluster is: a test that cannot run has failed.
    pub(crate) async fn create() -> Self {
        let admin_url = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!("{VARIABLE} is not set: run `scripts/postgres up --fast` and set it to the url of its last line")
        });
        let name = format!("test_{}", Uuid::new_v4().simple());
        let mut admin = PgConnection::connect(&admin_url).await.unwrap();
        admin
            .execute(AssertSqlSafe(format!(
                "CREATE DATABASE {name} TEMPLATE template0"
            )))
            .await
            .unwrap();
        Self { admin_url, name }
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        with_database(&self.admin_url, &self.name)
    }

    /// The rows of a statement with one column, asked past the product.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests look at the database behind the product's back"
    )]
    pub(crate) fn column<T>(&self, sql: &'static str) -> Vec<T>
    where
        T: Send + Unpin + for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        block_on(async {
            let mut direct = PgConnection::connect(&self.url()).await.unwrap();
            sqlx::query_scalar(sql)
                .fetch_all(&mut direct)
                .await
                .unwrap()
        })
    }

    /// The rows of a statement that is made by the test.
    #[expect(
        clippy::disallowed_methods,
        reason = "tests look at the database behind the product's back"
    )]
    pub(crate) fn rows(&self, sql: &str) -> Vec<sqlx::postgres::PgRow> {
        block_on(async {
            let mut direct = PgConnection::connect(&self.url()).await.unwrap();
            sqlx::query(AssertSqlSafe(sql.to_owned()))
                .fetch_all(&mut direct)
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error}"))
        })
    }

    /// Runs statements behind the product's back.
    pub(crate) fn run(&self, sql: &str) {
        block_on(async {
            let mut direct = PgConnection::connect(&self.url()).await.unwrap();
            direct
                .execute(AssertSqlSafe(sql.to_owned()))
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error}"));
        });
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// The URL with another database in it.
fn with_database(url: &str, name: &str) -> String {
    let (address, query) = match url.split_once('?') {
        Some((address, query)) => (address, format!("?{query}")),
        None => (url, String::new()),
    };
    let (server, _) = address.rsplit_once('/').unwrap();
    format!("{server}/{name}{query}")
}

/// A proxy before a database's server, and the database's URL through it.
///
/// # Panics
/// Outside of a runtime.
pub(crate) fn proxied(url: &str) -> (Proxy, String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (user, rest) = rest.split_once('@').unwrap();
    let (server, path) = rest.split_once('/').unwrap();
    let proxy = Proxy::start(server, Protocol::Postgres).unwrap();
    let url = format!("{scheme}://{user}@{}/{path}", proxy.address());
    (proxy, url)
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, name) = (self.admin_url.clone(), self.name.clone());
        // On a thread of its own: the test's runtime may be ending, and it must not be blocked.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await?;
                admin
                    .execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)")))
                    .await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .join();
        if !matches!(dropped, Ok(Ok(()))) && !std::thread::panicking() {
            panic!("the test's database was not dropped: {dropped:?}");
        }
    }
}

/// A cluster of the test's own, to be stopped and killed; gone at the end of the test.
pub(crate) struct Cluster {
    folder: TempDir,
    url: String,
}

impl Cluster {
    /// Makes one.
    ///
    /// # Panics
    /// When it does not start.
    pub(crate) fn create() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server runs as another user when the test runs as root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let output = script(folder.path(), &["up", "--fast"]);
        let url = output
            .lines()
            .find_map(|line| line.strip_prefix("url="))
            .unwrap()
            .to_owned();
        Self { folder, url }
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Where its data lies.
    pub(crate) fn data(&self) -> PathBuf {
        self.home().join("data")
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("postgres")
    }

    /// Runs `scripts/postgres` on it, for example with `restart`.
    pub(crate) fn control(&self, arguments: &[&str]) {
        script(self.folder.path(), arguments);
    }
}

/// # Panics
/// When the script fails.
fn script(folder: &Path, arguments: &[&str]) -> String {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/postgres");
    let output = Command::new(program)
        .args(arguments)
        .arg("--dir")
        .arg(folder.join("postgres"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "scripts/postgres {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.home().exists() {
            self.control(&["down", "--now", "--purge"]);
        }
    }
}
