//! A server dies again and again, by `kill -9` at a random time or at a crash point, and loses connections at a COMMIT. In the end
//! the oracle judges.
//!
//! `scripts/chaos` runs the same with more deaths and a seed of choice.

use crate::support::chaos::{Chaos, SinkKind};

/// Deaths in `make test`, by sink.
const OF_POSTGRES: u64 = 100;
const OF_LOG: u64 = 20;
const OF_BLACKHOLE: u64 = 10;

/// Lives end anywhere: while the server boots, while it recovers, and mostly while it works.
const LIFE_MS: (u64, u64) = (50, 1_200);

#[test]
fn of_the_postgres_sink_nothing_is_lost_and_nothing_is_doubled() {
    run("chaos-postgres", SinkKind::Postgres, OF_POSTGRES);
}

#[test]
fn of_the_log_sink_nothing_is_lost_and_nothing_comes_again_that_a_checkpoint_covered() {
    run("chaos-log", SinkKind::Log, OF_LOG);
}

#[test]
fn of_the_blackhole_the_last_life_counts_every_record_once() {
    run("chaos-blackhole", SinkKind::Blackhole, OF_BLACKHOLE);
}

fn run(name: &'static str, sink: SinkKind, kills: u64) {
    let chaos = Chaos {
        name,
        seed: number("HANDOVER_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..)),
        kills: number("HANDOVER_CHAOS_KILLS").unwrap_or(kills),
        sink,
        life_ms: LIFE_MS,
    };
    chaos.judge();
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
