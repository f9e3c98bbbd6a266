//! Brings the database's schema to what this program expects. See `migrations/README.md`.

use std::collections::BTreeSet;

use sqlx::{
    Connection, PgConnection,
    migrate::{Migrate, MigrateError, Migrator},
};
use tokio::time::timeout;

use super::{Result, Store, errors::during, session};
use crate::engine::error::StoreError;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

impl Store {
    /// Applies the migrations that are missing, under a lock that other servers respect. Names the ones applied.
    ///
    /// # Errors
    /// `Refused` when the database has migrations that this program does not know, or others than it knows, or when one
    /// failed (it has changed nothing then).
    pub async fn migrate(&self) -> Result<Vec<String>> {
        let options = std::sync::Arc::clone(&self.options);
        // A task, for the reason given in `transaction`; with a connection of its own, for its own limits.
        let task = self.tasks.spawn(async move {
            let limits = &session::MIGRATIONS;
            let mut connection = timeout(limits.acquire, PgConnection::connect_with(&options))
                .await
                .map_err(|_| StoreError::Unavailable("no connection in time".to_owned()))?
                .map_err(|error| StoreError::Unavailable(super::errors::describe(&error)))?;
            session::open(&mut connection, limits)
                .await
                .map_err(|error| StoreError::Unavailable(super::errors::describe(&error)))?;
            // The lock can be taken twice. Taken here already, what is pending now is what will be applied.
            connection.lock().await.map_err(refused)?;
            let before = pending(&mut connection).await?;
            // Not `run`, which is the same but cannot be called in a task: "`Acquire` is not general enough".
            timeout(
                limits.transaction,
                MIGRATIONS.run_direct(None, &mut connection, false),
            )
            .await
            .map_err(|_| StoreError::Unavailable("no answer in time".to_owned()))?
            .map_err(refused)?;
            // The lock ends with its session.
            drop(connection);
            Ok(before)
        });
        task.await
            .unwrap_or_else(|error| Err(StoreError::Refused(error.to_string())))
            .map_err(|error| during("migrate the database", error))
    }

    /// Names the migrations that `migrate` would apply.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn pending_migrations(&self) -> Result<Vec<String>> {
        self.query("compare the schema", |connection| {
            Box::pin(pending(connection))
        })
        .await
    }
}

async fn pending(connection: &mut PgConnection) -> Result<Vec<String>> {
    let table = MIGRATIONS.table_name.as_ref();
    let exists = sqlx::query_scalar!(r#"SELECT to_regclass($1) IS NOT NULL AS "exists!""#, table)
        .fetch_one(&mut *connection)
        .await?;
    let applied = if exists {
        connection
            .list_applied_migrations(table)
            .await
            .map_err(refused)?
    } else {
        Vec::new()
    };
    let applied: BTreeSet<i64> = applied.iter().map(|one| one.version).collect();
    Ok(MIGRATIONS
        .iter()
        .filter(|one| !applied.contains(&one.version))
        .map(|one| format!("{:04}_{}", one.version, one.description.replace(' ', "_")))
        .collect())
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "most variants belong to other databases and to migrations read from files"
)]
fn refused(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) => error.into(),
        MigrateError::ExecuteMigration(error, version) => {
            during(&format!("migration {version:04}"), error.into())
        }
        MigrateError::VersionMissing(version) => StoreError::Refused(format!(
            "the database has migration {version:04}, which this program does not know: it belongs to a newer release"
        )),
        MigrateError::VersionMismatch(version) => StoreError::Refused(format!(
            "migration {version:04} was applied in another form than this program has it"
        )),
        other => StoreError::Refused(other.to_string()),
    }
}
