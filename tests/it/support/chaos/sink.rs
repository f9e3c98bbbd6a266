//! What is in the sink, meanwhile and at the end.

use std::collections::BTreeMap;

use oracle::{
    Ranges, fingerprint,
    run::{Look, Row},
};

use super::{clock::Clock, writer::Body};
use crate::support::sink::{SinkLog, SinkRecord};

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

/// All lines of a log sink, in order.
pub(crate) fn rows_of_log(log: &SinkLog) -> Vec<Row> {
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
