//! What is in the sink, meanwhile and at the end.

use std::collections::BTreeMap;

use oracle::{
    Ranges, fingerprint,
    run::{Life, Look, Row},
};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, PgConnection, Row as _};

use super::{clock::Clock, store::options, writer::Body};
use crate::support::{
    client::block_on,
    sink::{SinkLog, SinkRecord},
};

/// Reads the lines of a log sink.
pub(crate) struct LogReader {
    log: SinkLog,
    clock: Clock,
    mark: usize,
    seen: BTreeMap<i32, Ranges>,
}

impl LogReader {
    pub(crate) fn new(log: &SinkLog, clock: Clock) -> Self {
        Self {
            log: log.clone(),
            clock,
            mark: 0,
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn look(&mut self) -> Option<Look> {
        let began = self.clock.now();
        let records = self.log.records(self.mark);
        self.mark += records.len();
        for record in &records {
            let (body, _) = read(record);
            self.seen.entry(body.p).or_default().insert(body.seq);
        }
        Some(Look {
            began,
            at: self.clock.now(),
            seen: self.seen.clone(),
        })
    }
}

/// What was in the sink when a server died.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    /// Records of the log sink.
    pub(crate) records: usize,
    /// The epoch of the job's lease.
    pub(crate) epoch: i64,
}

/// Whose the record is, by what each of the dead left.
fn life_of(record: usize, left: &[Left]) -> Life {
    let over = left.partition_point(|left| left.records <= record);
    Life {
        after: over.checked_sub(1).map_or(0, |last| left[last].epoch),
        upto: left.get(over).map(|left| left.epoch),
    }
}

/// All lines of a log sink, in order.
pub(crate) fn rows_of_log(log: &SinkLog, left: &[Left]) -> Vec<Row> {
    let records = log.records(0);
    let rows = records.iter().enumerate().map(|(number, record)| {
        let (body, hash) = read(record);
        Row {
            run: body.run,
            p: body.p,
            seq: body.seq,
            offset: record.offset,
            hash,
            order: Some(number as u64),
            life: Some(life_of(number, left)),
            place: format!("record {number} of the output"),
        }
    });
    rows.collect()
}

fn read(record: &SinkRecord) -> (Body, String) {
    let value = record.value.as_deref().unwrap_or_default();
    let body: Body = serde_json::from_str(value)
        .unwrap_or_else(|error| panic!("{record:?} is no record of the writer: {error}"));
    (body, fingerprint(value.as_bytes()))
}

/// The table of a postgres sink. What the value says of itself stands in columns, beside the whole value.
const TABLE: &str = "CREATE TABLE records (
    place bigint GENERATED ALWAYS AS IDENTITY,
    run text NOT NULL, p int NOT NULL, seq bigint NOT NULL, pos bigint NOT NULL, value text NOT NULL)";

/// A sink that writes to the table.
pub(crate) fn postgres_sink(connection: &str) -> Value {
    json!({
        "type": "postgres",
        "connection": connection,
        "table": "public.records",
        "mapping": {"mode": "json-fields", "columns": {
            "run": "$.run", "p": "$.p", "seq": "$.seq", "pos": "@offset", "value": "@value",
        }},
        "batch": {"max_rows": 200, "linger": "20ms"},
    })
}

/// Makes the table in a target database.
pub(crate) fn create_table(url: &str) {
    block_on(async {
        let mut connection = PgConnection::connect_with(&options(url)).await?;
        connection.execute(TABLE).await
    })
    .expect("the table is made");
}

/// Reads the table of a postgres sink meanwhile.
pub(crate) struct TableReader {
    connection: PgConnection,
    clock: Clock,
}

impl TableReader {
    pub(crate) fn new(url: &str, clock: Clock) -> Self {
        let connection = block_on(PgConnection::connect_with(&options(url)));
        Self {
            connection: connection.expect("a connection"),
            clock,
        }
    }

    pub(crate) fn look(&mut self) -> Option<Look> {
        let began = self.clock.now();
        let found = block_on(islands(&mut self.connection)).expect("the target answers");
        let at = self.clock.now();
        let mut ranges: BTreeMap<i32, Vec<(u64, u64)>> = BTreeMap::new();
        for (partition, from, to) in found {
            let range = (number(from), number(to));
            ranges.entry(partition).or_default().push(range);
        }
        let seen = ranges.into_iter();
        let seen = seen.map(|(partition, ranges)| (partition, ranges.into()));
        Some(Look {
            began,
            at,
            seen: seen.collect(),
        })
    }
}

/// One statement, so one moment.
#[expect(
    clippy::disallowed_methods,
    reason = "a witness reads the target behind the server's back, with statements of its own"
)]
async fn islands(connection: &mut PgConnection) -> sqlx::Result<Vec<(i32, i64, i64)>> {
    sqlx::query_as(
        "SELECT p, min(seq), max(seq)
         FROM (SELECT p, seq, seq - row_number() OVER (PARTITION BY p ORDER BY seq) AS island
               FROM (SELECT DISTINCT p, seq FROM records) AS seqs) AS islands
         GROUP BY p, island",
    )
    .fetch_all(connection)
    .await
}

/// All rows of the table of a postgres sink.
#[expect(
    clippy::disallowed_methods,
    reason = "a witness reads the target behind the server's back, with statements of its own"
)]
pub(crate) fn rows_of_table(url: &str) -> Vec<Row> {
    let found = block_on(async {
        let mut connection = PgConnection::connect_with(&options(url)).await?;
        sqlx::query("SELECT place, run, p, seq, pos, value FROM records")
            .fetch_all(&mut connection)
            .await
    });
    let found = found.expect("the target answers");
    let rows = found.iter().map(|row| {
        let place: i64 = row.get(0);
        let value: String = row.get(5);
        Row {
            run: row.get(1),
            p: row.get(2),
            seq: number(row.get(3)),
            offset: row.get(4),
            hash: fingerprint(value.as_bytes()),
            order: Some(number(place)),
            life: None,
            place: format!("row {place}"),
        }
    });
    rows.collect()
}

fn number(number: i64) -> u64 {
    u64::try_from(number).expect("a number that the writer wrote")
}
