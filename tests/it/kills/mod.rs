//! A server dies again and again, by `kill -9` at a random time or at a crash point, and loses connections at a COMMIT. In the end
//! the oracle judges.
//!
//! `scripts/chaos` runs the same with more deaths and a seed of choice.

use crate::support::chaos::{Chaos, Course, SinkKind};

/// Lives end anywhere: while the server boots, while it recovers, and mostly while it works.
const LIFE_MS: (u64, u64) = (50, 1_200);

/// Of a hundred deaths in `make test`, and of each hundred of `HANDOVER_CHAOS_KILLS`, how many are of which run.
const OF_POSTGRES: u64 = 26;
const OF_POSTGRES_GROWING: u64 = 18;
const OF_POSTGRES_BOUNDED: u64 = 14;
const OF_POSTGRES_PARKED: u64 = 14;
const OF_LOG: u64 = 8;
const OF_LOG_GROWING: u64 = 8;
const OF_LOG_PARKED: u64 = 7;
const OF_BLACKHOLE: u64 = 5;

#[test]
fn of_the_postgres_sink_nothing_is_lost_and_nothing_is_doubled() {
    run(
        "chaos-postgres",
        SinkKind::Postgres,
        Course::Plain,
        OF_POSTGRES,
    );
}

#[test]
fn of_the_postgres_sink_while_partitions_appear_and_subtasks_come_and_go() {
    run(
        "chaos-growing",
        SinkKind::Postgres,
        Course::Growing,
        OF_POSTGRES_GROWING,
    );
}

#[test]
fn of_the_postgres_sink_a_bounded_run_ends_at_the_same_place() {
    run(
        "chaos-bounded",
        SinkKind::Postgres,
        Course::Bounded,
        OF_POSTGRES_BOUNDED,
    );
}

#[test]
fn of_the_postgres_sink_while_partitions_are_parked_and_records_are_left_out() {
    run(
        "chaos-parked",
        SinkKind::Postgres,
        Course::Parked,
        OF_POSTGRES_PARKED,
    );
}

#[test]
fn of_the_log_sink_nothing_is_lost_and_nothing_comes_again_that_a_checkpoint_covered() {
    run("chaos-log", SinkKind::Log, Course::Plain, OF_LOG);
}

#[test]
fn of_the_log_sink_while_partitions_appear_and_subtasks_come_and_go() {
    run(
        "chaos-log-growing",
        SinkKind::Log,
        Course::Growing,
        OF_LOG_GROWING,
    );
}

#[test]
fn of_the_log_sink_while_partitions_are_parked_and_records_are_left_out() {
    run(
        "chaos-log-parked",
        SinkKind::Log,
        Course::Parked,
        OF_LOG_PARKED,
    );
}

#[test]
fn of_the_blackhole_the_last_life_counts_every_record_once() {
    run(
        "chaos-blackhole",
        SinkKind::Blackhole,
        Course::Plain,
        OF_BLACKHOLE,
    );
}

fn run(name: &'static str, sink: SinkKind, course: Course, share: u64) {
    let all = number("HANDOVER_CHAOS_KILLS").unwrap_or(100);
    let chaos = Chaos {
        name,
        seed: number("HANDOVER_CHAOS_SEED").unwrap_or_else(|| fastrand::u64(..)),
        kills: (all * share).div_ceil(100),
        sink,
        course,
        life_ms: LIFE_MS,
    };
    chaos.judge();
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}
