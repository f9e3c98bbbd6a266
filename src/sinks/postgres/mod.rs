//! Writes rows to a table of PostgreSQL, exactly once.
//!
//! The idea: **rows and progress commit together**, in the target database. Each flush is one transaction that locks the
//! job's claim (the fence, `ledger`), moves the progress of its partitions from the value that the writer knows to the one
//! behind the rows, and writes the rows. Whatever breaks, the target itself says what took place: a writer whose COMMIT was
//! not answered reads the progress, a start reads it before it decides where to begin, and a former owner finds the claim
//! taken and writes nothing.
//!
//! ```text
//! subtask ──write──► writer ──encodes──► slot (one chunk) ──► flusher ──one transaction each──► target
//!            prepare waits until the flusher has committed everything up to the barrier's positions
//! ```
//!
//! One task per writer owns the connection (`flusher`); nothing that a caller may drop ever waits for the database.
//!
//! Statements here are made at run time, since the table is the user's: names are quoted, values of records travel as COPY
//! data or parameters only.

pub mod catalogue;
mod chunk;
mod errors;
mod flusher;
mod ledger;
pub mod mapping;
mod pace;
mod session;
mod slot;
mod writer;

use std::{
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
pub use session::PostgresTarget;
use sqlx::PgConnection;

use self::{
    chunk::Chunk,
    errors::{Refusal, Trouble},
    flusher::Flusher,
    ledger::{Claim, Ledger},
    mapping::{RowEncoder, RowsSlice},
    session::{close, identifier, send, within_deadline},
    slot::Slot,
    writer::PostgresWriter,
};
use crate::{
    engine::{
        error::SinkError,
        ports::{Sink, SinkOwner, SinkWriter},
    },
    model::{
        FieldError, LeaseEpoch,
        resolver::SinkProgress,
        sink_spec::{PostgresSinkSpec, WriteMode},
    },
};

/// Bytes of COPY data in one message: the server parses one while the next is on its way.
const COPY_PIECE_BYTES: usize = 128 << 10;

/// A job's table in a target database.
pub(super) struct PostgresSink {
    spec: PostgresSinkSpec,
    database: PostgresTarget,
    ledger: Ledger,
    /// By the last `recover`.
    claim: Mutex<Option<Claim>>,
}

impl PostgresSink {
    pub(super) fn new(spec: PostgresSinkSpec, database: PostgresTarget, owner: SinkOwner) -> Self {
        Self {
            ledger: Ledger::new(owner, &spec.table.to_string()),
            spec,
            database,
            claim: Mutex::default(),
        }
    }

    fn claim(&self) -> Option<Claim> {
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sink for PostgresSink {
    async fn progress(&self) -> Result<SinkProgress, SinkError> {
        let progress = within_deadline(async {
            let mut connection = self.database.connect().await?;
            let progress = self
                .ledger
                .progress(&mut connection, self.database.role())
                .await?;
            close(connection).await;
            Ok(progress)
        });
        progress.await.map_err(Trouble::into_error)
    }

    async fn recover(&self, epoch: LeaseEpoch) -> Result<SinkProgress, SinkError> {
        let claimed = within_deadline(async {
            let mut connection = self.database.connect().await?;
            ledger::bring_up(&mut connection, self.database.role()).await?;
            let claimed = self.ledger.claim(&mut connection, epoch).await?;
            close(connection).await;
            Ok(claimed)
        });
        let (claim, progress) = claimed.await.map_err(Trouble::into_error)?;
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
        Ok(progress)
    }

    async fn writer(&self, subtask: u32) -> Result<Box<dyn SinkWriter>, SinkError> {
        let Some(claim) = self.claim() else {
            return Err(SinkError::refused(format!(
                "subtask {subtask} opens a writer of a target that was not claimed"
            )));
        };
        let columns = within_deadline(async {
            let mut connection = self.database.connect().await?;
            // Asked again at each start: a table that became unlogged since the spec was checked would lose rows, not progress.
            let faults = table_faults(&mut connection, &self.spec).await?;
            if let Some(fault) = faults.first() {
                return Err(Trouble::Refused(SinkError::refused(fault.to_string())));
            }
            let columns = catalogue::read_columns(&mut connection, &self.spec.table).await;
            let columns = columns
                .map_err(|error| Trouble::of_statement("read the table's columns", &error))?;
            close(connection).await;
            Ok(columns)
        });
        let columns = columns.await.map_err(Trouble::into_error)?;
        let encoder = RowEncoder::new(&self.spec, &columns)
            .map_err(|missing| SinkError::refused(missing.to_string()))?;
        let target = Arc::new(Target {
            database: self.database.clone(),
            ledger: self.ledger.clone(),
            table: self.spec.table.quoted(),
            mode: encoder.mode(),
            copy: encoder.copy_statement().to_owned(),
            upsert: encoder.upsert_statement().to_owned(),
            delete: encoder.delete_statement().to_owned(),
            max_rows: usize::try_from(self.spec.batch.max_rows).unwrap_or(usize::MAX),
        });
        let slot = Slot::new(
            encoder.rows(),
            target.max_rows,
            Duration::from_millis(self.spec.batch.linger.as_millis().unsigned_abs()),
        );
        let flusher = Flusher::new(target, claim, Arc::clone(&slot));
        Ok(Box::new(PostgresWriter::new(encoder, slot, flusher)))
    }

    async fn forget(&self) -> Result<(), SinkError> {
        let forgotten = within_deadline(async {
            let mut connection = self.database.connect().await?;
            self.ledger.forget(&mut connection).await?;
            close(connection).await;
            Ok(())
        });
        forgotten.await.map_err(Trouble::into_error)
    }

    fn identity(&self) -> String {
        format!(
            "postgres/{}/{}/{}",
            self.spec.connection,
            self.database.database(),
            self.spec.table
        )
    }

    fn has_fence(&self) -> bool {
        true
    }
}

/// What stands in the target against a spec: the table and its columns, and whether progress can be kept beside it.
///
/// # Errors
/// When the target does not answer.
pub(super) async fn check(
    spec: &PostgresSinkSpec,
    database: &PostgresTarget,
) -> Result<Vec<FieldError>, SinkError> {
    let checked = within_deadline(async {
        let mut connection = database.connect().await?;
        let mut faults = table_faults(&mut connection, spec).await?;
        if let Some(remedy) = ledger::missing(&mut connection, database.role()).await? {
            faults.push(FieldError::new(
                "/sink/connection",
                format!(
                    "the role {} cannot keep the job's progress in the database {}; as its owner run: {remedy}",
                    database.role(),
                    database.database()
                ),
            ));
        }
        close(connection).await;
        Ok(faults)
    });
    checked.await.map_err(Trouble::into_error)
}

async fn table_faults(
    connection: &mut PgConnection,
    spec: &PostgresSinkSpec,
) -> Result<Vec<FieldError>, Trouble> {
    catalogue::check(connection, spec)
        .await
        .map_err(|error| Trouble::of_statement("read the catalogue", &error))
}

/// What a flusher needs to know of where its rows go.
struct Target {
    database: PostgresTarget,
    ledger: Ledger,
    /// Its quoted name.
    table: String,
    mode: WriteMode,
    copy: String,
    upsert: String,
    delete: String,
    max_rows: usize,
}

impl Target {
    /// Writes rows inside the transaction that is open, and has checked what waits for its end: that is the table's work,
    /// with the time of a statement, and a COMMIT after it is nothing but a COMMIT.
    async fn write(
        &self,
        connection: &mut PgConnection,
        chunk: &Chunk,
        rows: &Range<usize>,
    ) -> Result<(), Trouble> {
        if rows.is_empty() {
            return Ok(());
        }
        let slice = chunk.rows.slice(rows.clone());
        let written = match self.mode {
            WriteMode::Append => self.copy(connection, &slice).await,
            WriteMode::Upsert => self.replace(connection, &slice).await,
        };
        written.map_err(|error| self.trouble_of_rows(&error))?;
        let checked = send(connection, "SET CONSTRAINTS ALL IMMEDIATE".to_owned()).await;
        checked
            .map(drop)
            .map_err(|error| self.trouble_of_rows(&error))
    }

    /// Runs the statement of a row without any row: what it is refused for then is the table's.
    async fn write_nothing(
        &self,
        connection: &mut PgConnection,
        chunk: &Chunk,
        row: usize,
    ) -> Result<(), Trouble> {
        let nothing = chunk.rows.slice(row..row);
        let written = match self.mode {
            WriteMode::Append => self.copy(connection, &nothing).await,
            WriteMode::Upsert if chunk.is_deletion(row) => {
                run(connection, &self.delete, &nothing).await
            }
            WriteMode::Upsert => run(connection, &self.upsert, &nothing).await,
        };
        written.map_err(|error| self.trouble_of_rows(&error))
    }

    async fn copy(
        &self,
        connection: &mut PgConnection,
        rows: &RowsSlice<'_>,
    ) -> Result<(), sqlx::Error> {
        let mut copy = connection.copy_in_raw(&self.copy).await?;
        for piece in rows.copy_text().chunks(COPY_PIECE_BYTES) {
            copy.send(piece).await?;
        }
        copy.finish().await.map(drop)
    }

    async fn replace(
        &self,
        connection: &mut PgConnection,
        rows: &RowsSlice<'_>,
    ) -> Result<(), sqlx::Error> {
        let deletions = rows.deletions();
        if deletions > 0 {
            run(connection, &self.delete, rows).await?;
        }
        if deletions < rows.len() {
            run(connection, &self.upsert, rows).await?;
        }
        Ok(())
    }

    async fn commit(&self, connection: &mut PgConnection) -> Result<(), Trouble> {
        let committed = send(connection, "COMMIT".to_owned()).await;
        committed
            .map(drop)
            .map_err(|error| self.trouble_of_rows(&error))
    }

    fn trouble_of_rows(&self, error: &sqlx::Error) -> Trouble {
        Trouble::of_rows(&self.table, error)
    }

    /// A refusal that is the table's.
    fn fault(&self, refusal: &Refusal) -> SinkError {
        refusal.of_the_table(&self.table, &identifier(self.database.role()))
    }

    /// A refusal of which no record is to blame.
    fn refused(&self, text: &str) -> SinkError {
        SinkError::refused(format!("write to {}: {text}", self.table))
    }
}

/// Runs a statement whose parameters are the rows' columns, without leaving a prepared statement behind.
async fn run(
    connection: &mut PgConnection,
    sql: &str,
    rows: &RowsSlice<'_>,
) -> Result<(), sqlx::Error> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the statement is made of the user's table, which no compiler knows"
    )]
    let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).persistent(false);
    for column in rows.columns() {
        query = query.bind(column);
    }
    query.bind(rows.gone()).execute(connection).await.map(drop)
}
