//! An operator who leaves out each record that cannot be processed, one by one, while servers die under the requests.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use oracle::run::{Event, Skip};
use reqwest::Method;
use serde_json::{Value, json};

use super::{clock::Clock, watcher::Watcher};
use crate::support::client::Job;

/// At work.
pub(crate) struct Operator {
    watcher: Watcher<Event>,
    skipped: Arc<AtomicU64>,
}

impl Operator {
    pub(crate) fn start(job: &Job, topic: &str, clock: Clock) -> Self {
        let skipped = Arc::new(AtomicU64::new(0));
        let mut eyes = Eyes {
            job: job.clone(),
            topic: topic.to_owned(),
            clock,
            turn: 0,
            done: BTreeSet::new(),
            skipped: Arc::clone(&skipped),
        };
        let pace = Duration::from_millis(20);
        Self {
            watcher: Watcher::start("the operator", pace, move || eyes.look()),
            skipped,
        }
    }

    /// Records that were left out for certain.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Everything that was asked for.
    pub(crate) fn end(self) -> Vec<Event> {
        self.watcher.end()
    }
}

struct Eyes {
    job: Job,
    topic: String,
    clock: Clock,
    turn: usize,
    done: BTreeSet<(i32, i64)>,
    skipped: Arc<AtomicU64>,
}

impl Eyes {
    /// Leaves out one record if there is one that a partition is parked at.
    fn look(&mut self) -> Option<Event> {
        let api = &self.job.api;
        let view = api.try_send(&Method::GET, &self.job.path, None).ok()?;
        let parked: Vec<(i32, i64)> = view.body["parked"]
            .as_array()?
            .iter()
            .filter(|parked| parked["code"] == "blocked-on-record")
            .filter_map(place)
            .collect();
        self.turn += 1;
        let (partition, offset) = *parked.get(self.turn % parked.len().max(1))?;
        let at = self.clock.now();
        let body = json!({"topic": self.topic, "partition": partition, "offset": offset, "reason": "no JSON"});
        let skip = self.job.at("/skip?wait=5s");
        let answer = api.try_send(&Method::POST, &skip, Some(&body));
        let is_done = answer.is_ok_and(|answer| answer.body["status"] == "succeeded");
        if is_done && self.done.insert((partition, offset)) {
            self.skipped.fetch_add(1, Ordering::Relaxed);
        }
        // Also one that was not answered may have taken effect.
        Some(Event::Skip(Skip {
            at,
            partition,
            offset,
        }))
    }
}

fn place(parked: &Value) -> Option<(i32, i64)> {
    let partition = i32::try_from(parked["partition"].as_i64()?).ok()?;
    Some((partition, parked["offset"].as_i64()?))
}
