//! A counting consumer of the log sink: every line of the server's standard output, over restarts of the server.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    sync::{Arc, Mutex, MutexGuard},
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
    /// A value in UTF-8.
    #[serde(default)]
    pub(crate) value: Option<String>,
}

#[derive(Default)]
struct Lines {
    records: Vec<SinkRecord>,
    torn: Vec<String>,
    /// The output of the server's present life, and a line that is not complete yet.
    output: Option<File>,
    begun: Vec<u8>,
}

impl Lines {
    /// Takes what has been written until now.
    fn read(&mut self) {
        let Some(output) = &mut self.output else {
            return;
        };
        output
            .read_to_end(&mut self.begun)
            .expect("a readable file");
        let Some(end) = self.begun.iter().rposition(|byte| *byte == b'\n') else {
            return;
        };
        let rest = self.begun.split_off(end + 1);
        for line in std::mem::replace(&mut self.begun, rest).split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(record) => self.records.push(record),
                Err(_) if line.is_empty() => {}
                Err(_) => self.torn.push(String::from_utf8_lossy(line).into_owned()),
            }
        }
    }

    fn end_life(&mut self) {
        self.read();
        self.output = None;
        if !self.begun.is_empty() {
            // The last line of a server that was killed.
            let torn = std::mem::take(&mut self.begun);
            self.torn.push(String::from_utf8_lossy(&torn).into_owned());
        }
    }
}

/// What came out of a server's log sinks, in order.
///
/// The output goes to a file, which is read up to its end whenever somebody looks: what the server has written before it
/// answered a call is there.
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

    /// Goes on with the output of the server's next life.
    pub(crate) fn follow(&self, output: File) {
        let mut lines = lock(&self.lines);
        lines.end_life();
        lines.output = Some(output);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        let mut lines = lock(&self.lines);
        lines.read();
        lines
    }

    /// How many records came so far: a mark to count from.
    pub(crate) fn mark(&self) -> usize {
        self.lines().records.len()
    }

    /// Lines that are no records, of lives that are over.
    pub(crate) fn torn(&self) -> Vec<String> {
        self.lines().torn.clone()
    }

    /// The records after the mark, in the order they came.
    pub(crate) fn records(&self, mark: usize) -> Vec<SinkRecord> {
        self.lines().records[mark..].to_vec()
    }

    /// The offsets of a topic by partition, in the order they came after the mark.
    pub(crate) fn since(&self, mark: usize, topic: &str) -> BTreeMap<i32, Vec<i64>> {
        let mut found: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
        let wanted = |record: &&SinkRecord| {
            record.topic == topic && self.job.as_ref().is_none_or(|job| *job == record.job)
        };
        for record in self.lines().records[mark..].iter().filter(wanted) {
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
