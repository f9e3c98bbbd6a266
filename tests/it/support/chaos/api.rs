//! What the API says, asked again and again also while the server is being killed.

use std::collections::BTreeMap;

use oracle::run::{ApiAnswer, Checkpoint, Event, Micros, Position, Said, Vector};
use reqwest::Method;
use serde_json::Value;

use super::{clock::Clock, store::status};
use crate::support::client::Job;

/// Asks three views in turn.
pub(crate) struct ApiReader {
    job: Job,
    topic: String,
    clock: Clock,
    turn: usize,
}

impl ApiReader {
    pub(crate) fn new(job: &Job, topic: &str, clock: Clock) -> Self {
        Self {
            job: job.clone(),
            topic: topic.to_owned(),
            clock,
            turn: 0,
        }
    }

    /// `None` when there was no answer, or one that says that the server is not ready.
    pub(crate) fn look(&mut self) -> Option<Event> {
        const VIEWS: [&str; 3] = [
            "/offsets?fresh=true",
            "/checkpoints?offsets=true&limit=6",
            "",
        ];
        let view = VIEWS[self.turn % VIEWS.len()];
        self.turn += 1;
        let began = self.clock.now();
        let answer = self
            .job
            .api
            .try_send(&Method::GET, &self.job.at(view), None)
            .ok()?;
        let at = self.clock.now();
        if answer.status != 200 {
            assert!(
                answer.status == 503,
                "{view}: {} {:#}",
                answer.status,
                answer.body
            );
            return None;
        }
        let said = match view {
            "" => said_of_job(&answer.body),
            view if view.starts_with("/offsets") => said_of_offsets(&answer.body, at),
            _ => self.said_of_checkpoints(&answer.body),
        };
        Some(Event::Api(ApiAnswer { began, at, said }))
    }

    fn said_of_checkpoints(&self, body: &Value) -> Said {
        let items = body["items"].as_array().expect("a list");
        // An attempt under way has no row yet, and one that is uncertain may have none.
        let stored = items
            .iter()
            .filter(|item| item["status"] != "in-progress" && item["status"] != "uncertain");
        Said::Checkpoints(stored.map(|item| checkpoint(item, &self.topic)).collect())
    }
}

fn checkpoint(item: &Value, topic: &str) -> Checkpoint {
    let text = |name: &str| item[name].as_str().expect("a text").to_owned();
    let number = |name: &str| item[name].as_i64().expect("a number");
    let positions = item["offsets"][topic].as_object();
    let vector: BTreeMap<i32, Position> = positions
        .into_iter()
        .flatten()
        .map(|(partition, position)| {
            let position = Position {
                topic_id: position["topic_id"].as_str().map(str::to_owned),
                next_offset: position["next_offset"].as_i64(),
                position_id: position["position_id"].as_i64().expect("a number"),
            };
            (partition.parse().expect("a partition"), position)
        })
        .collect();
    Checkpoint {
        id: number("id"),
        kind: text("kind"),
        status: status(&text("status")),
        epoch: number("epoch"),
        vector,
    }
}

fn said_of_job(body: &Value) -> Said {
    Said::Job {
        state: body["state"].as_str().expect("a state").to_owned(),
        last_checkpoint: body["last_checkpoint"]["id"].as_i64(),
        under_way: body["checkpoint_in_progress"].as_i64(),
    }
}

fn said_of_offsets(body: &Value, at: Micros) -> Said {
    let numbers = |name: &str| -> Vector {
        let partitions = body["partitions"].as_array().expect("partitions");
        partitions
            .iter()
            .filter_map(|row| {
                let partition = i32::try_from(row["partition"].as_i64()?).ok()?;
                Some((partition, row[name].as_i64()?))
            })
            .collect()
    };
    let (knows_checkpoint, checkpoint_as_of) = source(&body["sources"]["checkpoint"], at);
    let (knows_group, group_as_of) = source(&body["sources"]["group"], at);
    Said::Offsets {
        checkpoint_as_of,
        group_as_of,
        checkpointed: knows_checkpoint.then(|| numbers("checkpointed")),
        group: knows_group.then(|| numbers("group_committed")),
    }
}

/// Whether a source is known, and since when if it said that it is away and its numbers are old.
fn source(source: &Value, at: Micros) -> (bool, Option<Micros>) {
    if source["status"] == "ok" || source["because"] == "no-checkpoint" {
        // Asked for afresh.
        return (true, None);
    }
    let age = source["age_ms"].as_u64();
    let as_of = age.map(|age| at.saturating_sub((age + 1) * 1_000));
    (as_of.is_some(), as_of)
}
