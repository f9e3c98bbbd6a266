//! Migrations, the first contact, and what the database refuses by itself.

use handover::engine::error::StoreError;

use super::{World, checkpoint, open};
use crate::support::{Cluster, Database};
use handover::{
    engine::ports::CheckpointStore,
    model::{checkpoint::CheckpointKind, event::EventKind},
};

#[tokio::test]
async fn migrations_are_applied_once_and_named() {
    let world = World::without_schema().await;
    let pending = world.store.pending_migrations().await.unwrap();
    assert_eq!(
        pending.first().map(String::as_str),
        Some("0001_installation")
    );
    // Servers that come up together: each migration is applied by one of them.
    let other = open(&world.database.url());
    let (one, two) = tokio::join!(world.store.migrate(), other.migrate());
    let mut applied = [one.unwrap(), two.unwrap()];
    applied.sort_by_key(Vec::len);
    assert_eq!(applied, [Vec::new(), pending]);
    assert!(world.store.pending_migrations().await.unwrap().is_empty());
    assert!(world.store.migrate().await.unwrap().is_empty());

    let id = world.store.install_id().await.unwrap();
    assert_eq!(other.install_id().await.unwrap(), id);
}

#[tokio::test]
async fn a_newer_and_a_changed_schema_are_refused() {
    let world = World::new().await;
    sqlx::query("UPDATE _sqlx_migrations SET checksum = '\\x00' WHERE version = 1")
        .execute(&world.sql)
        .await
        .unwrap();
    let error = world.store.migrate().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused(text) if text.contains("0001")),
        "{error}"
    );
    sqlx::query("INSERT INTO _sqlx_migrations VALUES (9999, 'later', now(), true, '\\x00', 1)")
        .execute(&world.sql)
        .await
        .unwrap();
    let error = world.store.migrate().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Refused(text) if text.contains("newer release")),
        "{error}"
    );
}

#[tokio::test]
async fn what_must_never_be_stored_is_refused_by_the_database_itself() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    world
        .store
        .complete(&lease, &checkpoint(&lease, 1, CheckpointKind::Manual, 5))
        .await
        .unwrap();
    for (sql, constraint) in [
        (
            "UPDATE checkpoint_offsets SET next_offset = -1 WHERE job_uid = $1",
            "checkpoint_offsets_next_offset_possible",
        ),
        (
            "UPDATE checkpoint_offsets SET next_offset = 9007199254740992 WHERE job_uid = $1",
            "checkpoint_offsets_next_offset_possible",
        ),
        (
            "UPDATE checkpoint_offsets SET partition = -1 WHERE job_uid = $1",
            "checkpoint_offsets_partition_non_negative",
        ),
        (
            "UPDATE checkpoints SET status = 'uncertain', confirmed_at = NULL WHERE job_uid = $1",
            "checkpoints_status_known",
        ),
        (
            "UPDATE checkpoints SET kind = 'savepoint' WHERE job_uid = $1",
            "checkpoints_kind_known",
        ),
        (
            "UPDATE checkpoints SET status = 'failed', confirmed_at = NULL WHERE job_uid = $1",
            "checkpoints_failure_if_failed",
        ),
        (
            "UPDATE job_leases SET epoch = -1 WHERE job_uid = $1",
            "job_leases_epoch_non_negative",
        ),
        (
            "UPDATE jobs SET state = 'perhaps' WHERE uid = $1",
            "jobs_state_known",
        ),
        (
            "UPDATE jobs SET name = 'Orders' WHERE uid = $1",
            "jobs_name_form",
        ),
        (
            "UPDATE jobs SET pending_start = '{}' WHERE uid = $1",
            "jobs_pending_start_has_id",
        ),
        (
            "INSERT INTO jobs (uid, name, spec) SELECT gen_random_uuid(), name, spec FROM jobs WHERE uid = $1",
            "jobs_name_unique",
        ),
        (
            "INSERT INTO operations (id, job_uid, kind, status, step, request, requested_by)
          SELECT t, $1, 'start', 'running', '', '{}', '' FROM unnest(ARRAY['op_1', 'op_2']) t",
            "operations_one_open_change",
        ),
        (
            "INSERT INTO operations (id, job_uid, kind, status, step, request, requested_by)
          VALUES ('op_1', $1, 'start', 'succeeded', '', '{}', '')",
            "operations_finished_if_final",
        ),
    ] {
        let error = sqlx::query(sql)
            .bind(job.uid.0)
            .execute(&world.sql)
            .await
            .unwrap_err();
        let violated = error
            .as_database_error()
            .and_then(|error| error.constraint());
        assert_eq!(violated, Some(constraint), "{sql}: {error}");
    }
    let error = sqlx::query("INSERT INTO installation DEFAULT VALUES")
        .execute(&world.sql)
        .await;
    assert!(error.is_err());
}

#[tokio::test]
async fn sessions_have_limits_and_a_name() {
    let world = World::new().await;
    world.store.ping().await.unwrap();
    let settings: Vec<(String, String)> = {
        // Seen from inside: a trigger notes what the session of the store is set to.
        sqlx::raw_sql(
            "CREATE TABLE seen (name text, setting text);
             CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO seen SELECT name, setting FROM pg_settings;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER look BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION look();",
        )
        .execute(&world.sql)
        .await
        .unwrap();
        world
            .store
            .add_event(None, EventKind::RecordsRead, "test", &serde_json::json!({}))
            .await
            .unwrap();
        sqlx::query_as("SELECT name, setting FROM seen")
            .fetch_all(&world.sql)
            .await
            .unwrap()
    };
    for (name, expected) in [
        ("application_name", "handover"),
        ("statement_timeout", "15000"),
        ("lock_timeout", "5000"),
        ("idle_in_transaction_session_timeout", "5000"),
        ("default_transaction_isolation", "read committed"),
    ] {
        let setting = settings
            .iter()
            .find(|(seen, _)| seen == name)
            .map(|(_, setting)| setting.as_str());
        assert_eq!(setting, Some(expected), "{name}");
    }
}

#[tokio::test]
async fn a_database_that_forgets_commits_is_not_used() {
    let database = Database::create().await;
    let store = open(&database.url());
    store.migrate().await.unwrap();
    store.ping().await.unwrap();
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect(&database.url())
        .await
        .unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!(
        "ALTER DATABASE {} SET synchronous_commit = off",
        database.name()
    )))
    .execute(&mut admin)
    .await
    .unwrap();
    let later = open(&database.url());
    for error in [
        later.ping().await.unwrap_err(),
        later.migrate().await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, StoreError::Unavailable(text) if text.contains("synchronous_commit")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_standby_is_not_used() {
    let cluster = Cluster::create();
    let store = open(cluster.url());
    store.migrate().await.unwrap();
    store.install_id().await.unwrap();
    cluster.control(&["down"]);
    std::fs::write(cluster.data().join("standby.signal"), "").unwrap();
    cluster.control(&["up"]);
    // Both the connection that was there before and a new one.
    for store in [store, open(cluster.url())] {
        let error = store.install_id().await.unwrap_err();
        assert!(
            matches!(&error, StoreError::Unavailable(text) if text.contains("standby")),
            "{error}"
        );
    }
}
