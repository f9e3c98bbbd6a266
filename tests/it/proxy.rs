//! The proxy that the outage tests stand on, between sqlx and a real PostgreSQL: each fault happens where it says, and is
//! counted when it has happened.

#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the database behind the proxy's back"
)]

use std::time::Duration;

use fault_proxy::{CommitFault, Effective, Proxy};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::time::timeout;

use crate::support::{Database, eventually, proxied};

const SOON: Duration = Duration::from_secs(10);
const A_WHILE: Duration = Duration::from_millis(500);

/// A database with a table, seen directly and through a proxy.
struct Scene {
    proxy: Proxy,
    url: String,
    direct: PgConnection,
    _database: Database,
}

impl Scene {
    async fn new() -> Self {
        let database = Database::create().await;
        let mut direct = PgConnection::connect(&database.url()).await.unwrap();
        direct.execute("CREATE TABLE t (n int)").await.unwrap();
        let (proxy, url) = proxied(&database.url());
        Self {
            proxy,
            url,
            direct,
            _database: database,
        }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    async fn stored(&mut self) -> Vec<i32> {
        sqlx::query_scalar("SELECT n FROM t ORDER BY n")
            .fetch_all(&mut self.direct)
            .await
            .unwrap()
    }

    /// How many sessions of the proxy's clients the server has.
    async fn sessions(&mut self) -> i64 {
        sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        .fetch_one(&mut self.direct)
        .await
        .unwrap()
    }
}

async fn insert(connection: &mut PgConnection, number: i32) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query("INSERT INTO t VALUES ($1)")
        .bind(number)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

#[tokio::test]
async fn without_a_fault_everything_passes() {
    let mut scene = Scene::new().await;
    let mut connection = scene.connect().await;
    insert(&mut connection, 1).await.unwrap();
    let long = "x".repeat(3_000_000);
    let back: String = sqlx::query_scalar("SELECT $1")
        .bind(&long)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(back == long);
    let failed = connection.execute("SELECT 1/0").await;
    assert!(failed.unwrap_err().to_string().contains("division by zero"));
    insert(&mut connection, 2).await.unwrap();
    connection.close().await.unwrap();
    assert_eq!(scene.stored().await, [1, 2]);
    assert_eq!(scene.proxy.effective(), Effective::default());
}

#[tokio::test]
async fn a_commit_is_cut_before_and_after_the_server_has_it() {
    let mut scene = Scene::new().await;
    let cases = [
        (CommitFault::BeforeServer, false),
        (CommitFault::AnswerDropped, true),
    ];
    for (round, (fault, takes_effect)) in (1..).zip(cases) {
        let mut connection = scene.connect().await;
        scene.proxy.arm(fault, 1);
        let outcome = insert(&mut connection, round).await;
        assert!(matches!(outcome, Err(sqlx::Error::Io(_))), "{outcome:?}");
        assert_eq!(
            scene.proxy.effective().total(),
            u64::from(round.unsigned_abs())
        );
        assert_eq!(scene.stored().await.contains(&round), takes_effect);
        // The next one is whole again.
        insert(&mut scene.connect().await, 10 * round)
            .await
            .unwrap();
    }
    assert_eq!(scene.stored().await, [2, 10, 20]);
    let effective = scene.proxy.effective();
    assert_eq!((effective.before_server, effective.answer_dropped), (1, 1));
}

#[tokio::test]
async fn an_answer_that_is_swallowed_leaves_the_client_waiting() {
    let mut scene = Scene::new().await;
    let mut connection = scene.connect().await;
    scene.proxy.arm(CommitFault::AnswerSwallowed, 1);
    let outcome = timeout(A_WHILE, insert(&mut connection, 1)).await;
    assert!(outcome.is_err(), "an answer came: {outcome:?}");
    assert_eq!(scene.proxy.effective().answer_swallowed, 1);
    assert_eq!(scene.stored().await, [1]);
    assert_eq!(scene.sessions().await, 1, "the connection is open");
    // The server ends it; not even that is heard.
    let mut ending = connection;
    scene
        .direct
        .execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        .await
        .unwrap();
    assert!(timeout(A_WHILE, ending.ping()).await.is_err());
    drop(ending);
    eventually("the proxy lets go", SOON, || async {
        scene.proxy.connections() == 0
    })
    .await;
}

#[tokio::test]
async fn a_fault_waits_for_a_commit_that_touches_a_table_and_takes_effect() {
    let mut scene = Scene::new().await;
    scene
        .direct
        .execute("CREATE TABLE other (n int); CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO once VALUES (1)")
        .await
        .unwrap();
    let mut connection = scene.connect().await;
    scene
        .proxy
        .arm_touching("once", CommitFault::AnswerDropped, 1);
    for (statement, is_lost) in [
        ("INSERT INTO other VALUES (1)", false),
        // Fails at its COMMIT.
        ("INSERT INTO once VALUES (1)", false),
        ("INSERT INTO once VALUES (2)", true),
    ] {
        let mut transaction = connection.begin().await.unwrap();
        // As a prepared statement.
        sqlx::query(AssertSqlSafe(statement))
            .execute(&mut *transaction)
            .await
            .unwrap();
        let outcome = transaction.commit().await;
        assert_eq!(
            matches!(outcome, Err(sqlx::Error::Io(_))),
            is_lost,
            "{outcome:?}"
        );
        assert_eq!(scene.proxy.armed() == 0, is_lost, "{statement}");
    }
    let numbers: Vec<i32> = sqlx::query_scalar("SELECT n FROM once ORDER BY n")
        .fetch_all(&mut scene.direct)
        .await
        .unwrap();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test]
async fn a_cut_ends_the_sessions_of_the_server_too() {
    let mut scene = Scene::new().await;
    let mut connections = Vec::new();
    for number in 0..5 {
        let mut connection = scene.connect().await;
        connection.execute("BEGIN").await.unwrap();
        connection
            .execute(AssertSqlSafe(format!("INSERT INTO t VALUES ({number})")))
            .await
            .unwrap();
        connections.push(connection);
    }
    assert_eq!(scene.proxy.cut().await, 5);
    let end = tokio::time::Instant::now() + SOON;
    while scene.sessions().await > 0 {
        assert!(tokio::time::Instant::now() < end, "sessions stay");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for mut connection in connections {
        connection.execute("COMMIT").await.unwrap_err();
    }
    assert_eq!(scene.stored().await, Vec::<i32>::new());
}
