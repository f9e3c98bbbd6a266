//! Databases of a test's own: a fresh one in the shared cluster, or a whole cluster that may be killed.

use std::{os::unix::fs::PermissionsExt, path::PathBuf};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{
    client::block_on,
    kafka::{run_script, script},
    unique,
};

/// Makes an empty database in the shared cluster and returns its URL.
pub(crate) fn fresh_database_url() -> String {
    let cluster = std::env::var("HANDOVER_TEST_DATABASE_URL")
        .expect("HANDOVER_TEST_DATABASE_URL names a database (docs/testing.md)");
    let name = unique("e2e").replace('-', "_");
    block_on(async {
        let mut connection = PgConnection::connect(&cluster).await.expect("a connection");
        let statement = AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::raw_sql(statement)
            .execute(&mut connection)
            .await
            .expect("a database");
        connection.close().await.expect("an orderly end");
    });
    let (server, _) = cluster.rsplit_once('/').expect("a URL with a database");
    format!("{server}/{name}")
}

/// A PostgreSQL cluster that a test may restart and kill.
#[derive(Debug)]
pub(crate) struct PrivatePostgres {
    pub(crate) url: String,
    dir: PathBuf,
    _folder: tempfile::TempDir,
}

impl PrivatePostgres {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        // The server may run as another user, who has to get in.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711))
            .expect("permissions");
        let dir = folder.path().join("postgres");
        let answer = run_script(
            "postgres",
            &["up", "--fast", "--dir", dir.to_str().expect("UTF-8")],
        );
        let url = answer
            .lines()
            .find_map(|line| line.strip_prefix("url="))
            .expect("the script names the database")
            .to_owned();
        Self {
            url,
            dir,
            _folder: folder,
        }
    }

    /// `restart`, `kill`, `down` or `up`.
    pub(crate) fn run(&self, command: &str) {
        run_script(
            "postgres",
            &[command, "--dir", self.dir.to_str().expect("UTF-8")],
        );
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap_or_default();
        let _ended = script("postgres", &["down", "--now", "--purge", "--dir", dir]).output();
    }
}
