//! A target database as the postgres sink's parts see it, without a server around them.

use std::{str::FromStr, sync::Arc};

use handover::{
    model::{
        FieldError, JobName, JobSpec, TopicPartition,
        record::{BatchRun, ConsumerRecord},
        sink_spec::{PostgresSinkSpec, SinkSpec, WriteMode},
    },
    sinks::postgres::{
        catalogue::{check, read_columns},
        mapping::{RowEncoder, Rows},
    },
};
use serde_json::{Value, json};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Executor, PgConnection, postgres::PgConnectOptions,
};

use crate::support::{Database, unique};

/// What a record has.
pub(super) type KeyAndValue<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// A target database, seen by its owner and by the role that the sink has.
pub(super) struct Target {
    database: Database,
    pub(super) role: String,
    owner: PgConnection,
    sink: PgConnection,
}

impl Target {
    pub(super) async fn create() -> Self {
        let database = Database::create().await;
        let role = unique("sink").replace('-', "_");
        let mut owner = PgConnection::connect(&database.url()).await.unwrap();
        let make = format!("CREATE ROLE {role} LOGIN");
        owner.execute(AssertSqlSafe(make)).await.unwrap();
        let options = PgConnectOptions::from_str(&database.url()).unwrap();
        let sink = options.username(&role).connect().await.unwrap();
        Self {
            database,
            role,
            owner,
            sink,
        }
    }

    /// Statements by the owner; `ROLE` stands for the sink's role.
    pub(super) async fn run(&mut self, sql: &str) {
        let sql = sql.replace("ROLE", &self.role);
        let done = self.owner.execute(AssertSqlSafe(sql.clone())).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(super) async fn check(&mut self, spec: &PostgresSinkSpec) -> Vec<FieldError> {
        check(&mut self.sink, spec).await.unwrap()
    }

    /// Runs what the faults say until there is none; answers what was run.
    pub(super) async fn mend(&mut self, spec: &PostgresSinkSpec) -> Vec<String> {
        let mut run = Vec::new();
        loop {
            let faults = self.check(spec).await;
            if faults.is_empty() {
                return run;
            }
            for fault in faults {
                let remedy = remedy(&fault).unwrap_or_else(|| panic!("no remedy: {fault}"));
                assert!(!run.contains(&remedy), "did not help: {remedy}");
                self.run(&remedy).await;
                run.push(remedy);
            }
        }
    }

    /// Writes records as the sink's role, in one chunk.
    pub(super) async fn write(
        &mut self,
        spec: &PostgresSinkSpec,
        records: &[KeyAndValue<'_>],
    ) -> Result<(), sqlx::Error> {
        let mut encoder = self.encoder(spec).await;
        let mut rows = encoder.rows();
        for (offset, (key, value)) in (0..).zip(records) {
            let record = record(offset, *key, *value);
            encoder.encode(&run(), &record, &mut rows).unwrap();
        }
        self.send(&encoder, &rows).await
    }

    pub(super) async fn encoder(&mut self, spec: &PostgresSinkSpec) -> RowEncoder {
        let columns = read_columns(&mut self.sink, &spec.table).await.unwrap();
        RowEncoder::new(spec, &columns).unwrap()
    }

    pub(super) async fn send(
        &mut self,
        encoder: &RowEncoder,
        rows: &Rows,
    ) -> Result<(), sqlx::Error> {
        let rows = rows.all();
        if encoder.mode() == WriteMode::Append {
            let mut copy = self.sink.copy_in_raw(encoder.copy_statement()).await?;
            copy.send(rows.copy_text()).await?;
            return copy.finish().await.map(drop);
        }
        let mut transaction = self.sink.begin().await?;
        let mut statements = vec![encoder.upsert_statement()];
        if rows.deletions() > 0 {
            statements.push(encoder.delete_statement());
        }
        for statement in statements {
            #[expect(
                clippy::disallowed_methods,
                reason = "the statement is made at run time"
            )]
            let mut query = sqlx::query(AssertSqlSafe(statement.to_owned()));
            for column in rows.columns() {
                query = query.bind(column);
            }
            query.bind(rows.gone()).execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    /// What a query answers, one line a row.
    pub(super) async fn lines(&mut self, sql: &str) -> Vec<String> {
        let lines = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
        lines.fetch_all(&mut self.owner).await.unwrap()
    }

    pub(super) async fn finish(self) {
        self.sink.close().await.unwrap();
        self.owner.close().await.unwrap();
        let admin = std::env::var("HANDOVER_TEST_DATABASE_URL").unwrap();
        drop(self.database);
        let mut admin = PgConnection::connect(&admin).await.unwrap();
        let drop_role = format!("DROP ROLE {}", self.role);
        admin.execute(AssertSqlSafe(drop_role)).await.unwrap();
    }
}

/// The statement of a fault, which its message leaves out.
pub(super) fn remedy(fault: &FieldError) -> Option<String> {
    if let Some(statement) = &fault.statement {
        assert!(!fault.message.contains(statement), "{fault}");
    }
    fault.statement.clone()
}

pub(super) fn spec(table: &str, mapping: &Value, write: &Value) -> PostgresSinkSpec {
    let document = json!({
        "source": {"connection": "main", "topics": ["orders"]},
        "startup_mode": {"mode": "earliest"},
        "sink": {"type": "postgres", "connection": "warehouse", "table": table, "mapping": mapping, "write": write},
    });
    let read = JobSpec::read(&JobName::new("orders").unwrap(), &document);
    match read.unwrap_or_else(|faults| panic!("{faults:?}")).sink {
        SinkSpec::Postgres(spec) => *spec,
        other => panic!("{other:?}"),
    }
}

pub(super) fn run() -> BatchRun {
    BatchRun {
        partition: Arc::new(TopicPartition {
            topic: "orders".into(),
            partition: 3,
        }),
        records: 0..1,
        advance_to: None,
    }
}

pub(super) fn record<'a>(
    offset: i64,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
) -> ConsumerRecord<'a> {
    ConsumerRecord {
        record_offset: offset,
        timestamp_ms: Some(1_796_145_576_123),
        key,
        value,
    }
}
