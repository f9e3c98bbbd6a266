//! A counting consumer of the log sink: every line of the server's standard output, over restarts of the server.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

use serde::Deserialize;

use super::wait::{eventually, lock};

/// A record as the log sink prints it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct SinkRecord {
    pub(crate) job: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
}

#[derive(Default)]
struct Lines {
    records: Vec<SinkRecord>,
    torn: Vec<String>,
}

/// What came out of a server's log sinks, in order.
#[derive(Clone, Default)]
pub(crate) struct SinkLog {
    lines: Arc<Mutex<Lines>>,
    job: Option<String>,
}

impl SinkLog {
    /// The same log, showing the records of one job only.
    pub(crate) fn of_job(&self, job: &str) -> Self {
        Self {
            lines: Arc::clone(&self.lines),
            job: Some(job.to_owned()),
        }
    }

    /// Reads a server's standard output to its end. Each call is one life of the server.
    pub(crate) fn follow(&self, output: impl Read + Send + 'static) -> JoinHandle<()> {
        let log = self.clone();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
                log.take(&line);
                line.clear();
            }
        })
    }

    fn take(&self, line: &[u8]) {
        let mut lines = lock(&self.lines);
        match serde_json::from_slice(line) {
            Ok(record) => lines.records.push(record),
            // The last line of a server that was killed.
            Err(_) => lines.torn.push(String::from_utf8_lossy(line).into_owned()),
        }
    }

    /// How many records came so far: a mark to count from.
    pub(crate) fn mark(&self) -> usize {
        lock(&self.lines).records.len()
    }

    /// Lines that are no records.
    pub(crate) fn torn(&self) -> Vec<String> {
        lock(&self.lines).torn.clone()
    }

    /// The offsets of a topic by partition, in the order they came after the mark.
    pub(crate) fn since(&self, mark: usize, topic: &str) -> BTreeMap<i32, Vec<i64>> {
        let mut found: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
        let wanted = |record: &&SinkRecord| {
            record.topic == topic && self.job.as_ref().is_none_or(|job| *job == record.job)
        };
        for record in lock(&self.lines).records[mark..].iter().filter(wanted) {
            found
                .entry(record.partition)
                .or_default()
                .push(record.offset);
        }
        found
    }

    /// The first offset of each partition after the mark.
    pub(crate) fn first_since(&self, mark: usize, topic: &str) -> BTreeMap<i32, i64> {
        self.since(mark, topic)
            .into_iter()
            .map(|(partition, offsets)| (partition, offsets[0]))
            .collect()
    }

    /// Waits until exactly these offsets came after the mark, each partition's in order; fails on the first that is not
    /// among them.
    pub(crate) fn await_exactly(
        &self,
        mark: usize,
        topic: &str,
        wanted: &BTreeMap<i32, Vec<i64>>,
        within: Duration,
    ) {
        let empty = Vec::new();
        eventually(
            &format!("exactly the wanted records of {topic}"),
            within,
            || {
                let found = self.since(mark, topic);
                for (partition, offsets) in &found {
                    let wanted = wanted.get(partition).unwrap_or(&empty);
                    assert!(
                        wanted.starts_with(offsets),
                        "{topic}/{partition}: delivered {}, wanted {}",
                        brief(offsets),
                        brief(wanted)
                    );
                }
                let missing: Vec<String> = wanted
                    .iter()
                    .filter(|(partition, wanted)| {
                        found.get(partition).unwrap_or(&empty).len() < wanted.len()
                    })
                    .map(|(partition, wanted)| {
                        let found = found.get(partition).unwrap_or(&empty);
                        format!("{partition} has {} of {}", brief(found), brief(wanted))
                    })
                    .collect();
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(missing.join(", "))
                }
            },
        );
    }

    /// Waits until every offset below `ends` came at least once since the mark; answers how many came again.
    pub(crate) fn await_complete(
        &self,
        mark: usize,
        topic: &str,
        ends: &BTreeMap<i32, i64>,
        within: Duration,
    ) -> usize {
        eventually(&format!("every record of {topic}"), within, || {
            let found = self.since(mark, topic);
            let mut repeats = 0;
            for (partition, end) in ends {
                let mut offsets = found.get(partition).cloned().unwrap_or_default();
                let all = offsets.len();
                offsets.sort_unstable();
                offsets.dedup();
                repeats += all - offsets.len();
                if let Some(gap) = (0..*end).find(|offset| offsets.binary_search(offset).is_err()) {
                    return Err(format!("{topic}/{partition}@{gap} of {end} is missing"));
                }
                assert!(
                    offsets.len() as u64 == end.cast_unsigned(),
                    "{topic}/{partition} has records that were never sent"
                );
            }
            Ok(repeats)
        })
    }
}

/// Offsets as ranges.
fn brief(offsets: &[i64]) -> String {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    for offset in offsets {
        match ranges.last_mut() {
            Some((_, end)) if *end + 1 == *offset => *end = *offset,
            _ => ranges.push((*offset, *offset)),
        }
    }
    let texts: Vec<String> = ranges
        .iter()
        .take(20)
        .map(|(from, to)| {
            if from == to {
                from.to_string()
            } else {
                format!("{from}..{to}")
            }
        })
        .collect();
    format!("[{}]", texts.join(" "))
}
