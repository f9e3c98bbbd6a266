//! Looks up positions that only the logs can tell ([`pending_positions`]): one look-up at a time, repeated while a partition waits.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Background, JobTask};
use crate::{
    engine::{
        error::KafkaError,
        pending_positions::{self, LookedUp},
    },
    model::{code::Code, resolver::Blocker, topic::TopicPartition},
};

/// How often partitions that wait are asked for.
const PENDING_PERIOD: Duration = Duration::from_secs(2);

/// The look-ups of a run, and what the last one left open.
pub(super) struct LookUps {
    /// When the last one ended.
    last: Instant,
    under_way: bool,
    /// Whether a partition waits for its first look-up.
    at_once: bool,
    /// Partitions that the last one had no answer for.
    leaderless: Vec<TopicPartition>,
    /// What stood against positions in the last one.
    pub(super) against: Vec<Blocker>,
}

impl LookUps {
    /// None was made; the first one is due a period after this moment.
    pub(super) fn since(now: Instant) -> Self {
        Self {
            last: now,
            under_way: false,
            at_once: false,
            leaderless: Vec::new(),
            against: Vec::new(),
        }
    }
}

impl JobTask {
    /// A partition waits that no look-up was asked for yet.
    pub(super) fn look_up_at_once(&mut self) {
        self.look_ups.at_once = true;
        self.watch_pending();
    }

    pub(super) fn watch_pending(&mut self) {
        let waits = !self.pending.unresolved().is_empty();
        let is_due = self.look_ups.at_once || self.look_ups.last.elapsed() >= PENDING_PERIOD;
        if waits && !self.look_ups.under_way && is_due {
            self.look_ups.under_way = true;
            self.look_ups.at_once = false;
            let (kafka, spec, unresolved) = (
                Arc::clone(&self.run.kafka),
                self.run.spec.clone(),
                self.pending.ask(),
            );
            let now_ms = self.run.clock.now().timestamp_millis();
            self.background.spawn(async move {
                Background::LookedUp(
                    pending_positions::look_up(kafka, spec, unresolved, now_ms).await,
                )
            });
        }
        let unresolved = self.pending.unresolved();
        let names: Vec<String> = self
            .look_ups
            .leaderless
            .iter()
            .filter(|partition| unresolved.contains_key(partition))
            .map(ToString::to_string)
            .collect();
        let waits =
            (!names.is_empty()).then(|| format!("no leader answers for {}", names.join(", ")));
        self.note_waiting(Code::NoLeader, waits);
        for code in [
            Code::OffsetOutOfRange,
            Code::GroupMissing,
            Code::TopicRecreated,
        ] {
            let unresolved = self.pending.unresolved();
            let stands = self.look_ups.against.iter().find(|blocker| {
                let mut waiting = blocker.partitions.iter();
                blocker.code == code && waiting.any(|waits| unresolved.contains_key(waits))
            });
            let summary = stands.map(|blocker| blocker.summary.clone());
            self.note_waiting(code, summary);
        }
    }

    pub(super) fn on_looked_up(&mut self, outcome: Result<LookedUp, KafkaError>) {
        self.look_ups.under_way = false;
        self.look_ups.last = Instant::now();
        match outcome {
            Ok(looked_up) => {
                let (found, elsewhere) = self.in_their_topics(looked_up.found);
                let found = self.pending.found(found);
                self.note_moves(&found, &looked_up.bounds);
                self.look_ups.against = looked_up.against;
                self.park_what_came_back_outside();
                let decided = |partition: &&TopicPartition| {
                    let mut against = self.look_ups.against.iter();
                    against.any(|blocker| blocker.partitions.contains(partition))
                };
                let leaderless = self.pending.unresolved().keys();
                self.look_ups.leaderless = leaderless
                    .filter(|one| !decided(one) && !elsewhere.contains(*one))
                    .cloned()
                    .collect();
                self.take_positions(found);
            }
            Err(error) => {
                self.look_ups.leaderless = self.pending.unresolved().keys().cloned().collect();
                tracing::debug!(error = %error, "partitions without a leader could not be looked up");
            }
        }
        if self.look_ups.at_once {
            self.watch_pending();
        }
    }
}
