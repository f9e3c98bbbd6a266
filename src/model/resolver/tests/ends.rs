//! Where the partitions of a bounded job end. The broker's log of `orders` holds 100 to 200, and its last stable offset is 190.

use chrono::DateTime;

use super::*;
use crate::model::stop_at::{BoundedRun, RunEnd, StopAt};

fn stop_at(document: Value) -> StopAt {
    serde_json::from_value(document).unwrap()
}

fn latest() -> StopAt {
    StopAt::Latest
}

/// A run that checkpoint 3 began, with these ends.
fn run(stop_at: StopAt, ends: &[(i32, i64)]) -> BoundedRun {
    let ends = ends.iter().map(|(number, end)| {
        let end = RunEnd {
            stop_offset: offset(*end),
            topic_id: id("first"),
        };
        (orders(*number), end)
    });
    BoundedRun {
        stop_at,
        begun_by: CheckpointId(3),
        begun_at: DateTime::UNIX_EPOCH,
        finished_at: None,
        ends: ends.collect(),
    }
}

impl World {
    fn ends(&self, stop_at: &StopAt, run: Option<&BoundedRun>) -> ResolvedStart {
        let inputs = self.inputs();
        let mut resolved = resolve_positions(&inputs);
        resolve_ends(&mut resolved, &inputs, &EndInputs { stop_at, run });
        resolved
    }
}

/// Where `orders/<number>` ends, and why.
fn end(resolved: &ResolvedStart, number: i32) -> (Option<i64>, Option<StopReason>) {
    let planned = of(resolved, number);
    (planned.stop_at.map(Offset::get), planned.stop_reason)
}

#[test]
fn a_wish_becomes_a_number() {
    use StopReason as R;
    let mut world = World::new().mode(json!({"mode": "earliest"}));
    let (earliest, stable, _) = BOUNDS;
    let resolved = world.ends(&latest(), None);
    assert_eq!(end(&resolved, 0), (Some(stable), Some(R::StopLatest)));
    assert_eq!(of(&resolved, 0).to_read, Some(stable - earliest));
    assert_eq!(resolved.totals.to_read, stable - earliest);
    let planned = resolved.bounded.as_ref().unwrap();
    assert_eq!((planned.goes_on_from, planned.partitions), (None, 1));
    assert!(
        resolved.summary.contains("a bounded run begins"),
        "{}",
        resolved.summary
    );

    let timestamp = stop_at(json!({"mode": "timestamp", "timestamp": "1970-01-01T00:00:05Z"}));
    let past_end = (Some(stable), Some(R::StopTimestampPastEnd));
    assert_eq!(end(&world.ends(&timestamp, None), 0), past_end);
    world
        .facts
        .ends
        .at_timestamp
        .insert(orders(0), offset(stable - 7));
    assert_eq!(
        end(&world.ends(&timestamp, None), 0),
        (Some(stable - 7), Some(R::StopTimestamp))
    );
    // Written after the ends of the logs were asked for.
    world
        .facts
        .ends
        .at_timestamp
        .insert(orders(0), offset(stable + 50));
    assert_eq!(end(&world.ends(&timestamp, None), 0), past_end);

    world
        .facts
        .ends
        .group
        .insert(orders(0), offset(earliest + 1));
    assert_eq!(
        end(&world.ends(&StopAt::GroupOffsets, None), 0),
        (Some(earliest + 1), Some(R::StopGroupOffset))
    );
    let given =
        stop_at(json!({"mode": "specific-offsets", "offsets": {"orders": {"0": stable + 500}}}));
    let resolved = world.ends(&given, None);
    assert_eq!(
        end(&resolved, 0),
        (Some(stable + 500), Some(R::StopSpecificOffset))
    );
    assert_eq!(resolved.blockers, Vec::new());
    assert_eq!(
        resolved
            .warnings
            .iter()
            .map(|warning| warning.code)
            .collect::<Vec<_>>(),
        [Code::WaitsForStopOffset],
        "it is waited for, and said before"
    );
}

/// FLINK-28475, FLINK-27041.
#[test]
fn an_end_before_the_beginning_has_nothing_to_read() {
    let world = World::new().mode(json!({"mode": "earliest"}));
    for stop in [0, BOUNDS.0 - 1, BOUNDS.0] {
        let given =
            stop_at(json!({"mode": "specific-offsets", "offsets": {"orders": {"0": stop}}}));
        let resolved = world.ends(&given, None);
        assert_eq!(of(&resolved, 0).to_read, Some(0));
        assert_eq!(resolved.bounded.as_ref().unwrap().at_their_end, 1);
        assert_eq!((&resolved.blockers, &resolved.warnings), (&vec![], &vec![]));
    }
}

#[test]
fn an_end_that_is_no_number_stands_against_the_start() {
    let world = World::new()
        .partition(1)
        .mode(json!({"mode": "earliest"}))
        .leaderless(1);
    let one = stop_at(json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 150}}}));
    let unknown = stop_at(
        json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 1, "1": 1, "7": 1}}}),
    );
    for (wish, code, names) in [
        (latest(), Code::StopOffsetUnknown, vec![orders(1)]),
        (one, Code::StopOffsetUnknown, vec![orders(1)]),
        (
            StopAt::GroupOffsets,
            Code::StopOffsetUnknown,
            vec![orders(0), orders(1)],
        ),
        (unknown, Code::UnknownPartition, vec![orders(7)]),
    ] {
        let resolved = world.ends(&wish, None);
        assert_eq!(codes(&resolved), [code], "{wish:?}");
        assert_eq!(resolved.blockers[0].partitions, names, "{wish:?}");
        assert_eq!(resolved.blockers[0].choices, Vec::<Value>::new());
    }
}

/// FLINK-33466, FLINK-31006: a bounded source that was restored forgot where it ends.
#[test]
fn a_run_goes_on_to_the_ends_it_has() {
    let world = World::stored(&[(0, Some(120))]);
    let stored = run(latest(), &[(0, 150)]);
    let resolved = world.ends(&latest(), Some(&stored));
    assert_eq!(end(&resolved, 0), (Some(150), Some(StopReason::RunGoesOn)));
    assert_eq!(resolved.totals.to_read, 30);
    let planned = resolved.bounded.as_ref().unwrap();
    assert_eq!(planned.goes_on_from, Some(CheckpointId(3)));
    assert!(resolved.summary.contains("goes on"), "{}", resolved.summary);
    // What is stored again is the same run.
    let now = DateTime::from_timestamp(1_000, 0).unwrap();
    assert_eq!(
        resolved.bounded_run(CheckpointId(11), now),
        Some(stored.clone())
    );

    // No leader, no answer of the group: the numbers are known.
    let leaderless = World::stored(&[(0, Some(120))]).leaderless(0);
    let resolved = leaderless.ends(
        &StopAt::GroupOffsets,
        Some(&run(StopAt::GroupOffsets, &[(0, 150)])),
    );
    assert_eq!((end(&resolved, 0).0, codes(&resolved)), (Some(150), vec![]));
    let inputs = world.inputs();
    let ends = EndInputs {
        stop_at: &latest(),
        run: Some(&stored),
    };
    assert_eq!(ends.to_look_up(&inputs, &world.facts), Vec::new());
}

#[test]
fn what_begins_another_run_gets_other_ends() {
    let stored = run(latest(), &[(0, 150), (1, 150)]);
    let world = || World::stored(&[(0, Some(120)), (1, Some(120))]).partition(1);
    let stable = BOUNDS.1;
    let now = DateTime::from_timestamp(1_000, 0).unwrap();
    for from in [
        json!({"from": "earliest"}),
        json!({"from": "checkpoint"}),
        json!({"from": "shift", "by": -5}),
    ] {
        let resolved = world().from(from.clone()).ends(&latest(), Some(&stored));
        assert_eq!(end(&resolved, 0).0, Some(stable), "{from}");
        let begun = resolved.bounded_run(CheckpointId(11), now).unwrap();
        assert_eq!(
            (begun.begun_by, begun.begun_at),
            (CheckpointId(11), now),
            "{from}"
        );
    }
    // Another wish, and positions that go on.
    let given =
        stop_at(json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 160, "1": 170}}}));
    let resolved = world().ends(&given, Some(&stored));
    assert_eq!(
        (end(&resolved, 0).0, end(&resolved, 1).0),
        (Some(160), Some(170))
    );
    assert_eq!(begins(&resolved, 0), (Some(120), StartReason::Checkpoint));
    // Only where the start says where to begin.
    let moved = json!({"from": "earliest", "partitions": {"orders": [1]}});
    let resolved = world().from(moved).ends(&latest(), Some(&stored));
    assert_eq!(
        (end(&resolved, 0).0, end(&resolved, 1).0),
        (Some(150), Some(stable))
    );
    // A number of a topic that was deleted means nothing in the one that has its name.
    let mut recreated = world().policy(Earliest);
    for number in 0..2 {
        recreated.facts_of(number).topic_id = id("second");
    }
    let resolved = recreated.ends(&latest(), Some(&stored));
    assert_eq!(end(&resolved, 0).0, Some(stable));
    // Of one topic among others that is so, and told.
    recreated.facts_of(0).topic_id = id("first");
    let resolved = recreated.ends(&latest(), Some(&stored));
    assert_eq!(
        (end(&resolved, 0).0, end(&resolved, 1).0),
        (Some(150), Some(stable))
    );
    let told = "orders/1 gets an end anew by stop_at (latest)";
    assert!(resolved.summary.contains(told), "{}", resolved.summary);
    // Without a checkpoint there is nothing that goes on.
    let resolved = World::new()
        .mode(json!({"mode": "earliest"}))
        .ends(&latest(), Some(&stored));
    assert_eq!(end(&resolved, 0).0, Some(stable));
}

/// What lies behind the end is no part of the run, so it is not lost to it.
#[test]
fn what_is_lost_counts_up_to_the_end() {
    let world = World::stored(&[(0, Some(20))]).policy(Earliest);
    for (end, lost) in [(60, 40), (100, 80), (150, 80), (20, 0), (10, 0)] {
        let given = stop_at(json!({"mode": "specific-offsets", "offsets": {"orders": {"0": end}}}));
        let resolved = world.ends(&given, None);
        assert_eq!(begins(&resolved, 0).0, Some(BOUNDS.0));
        assert_eq!(
            (of(&resolved, 0).lost, resolved.totals.lost),
            (lost, lost),
            "{end}"
        );
        let says = resolved.summary.contains(&format!("; {lost} offsets lost"));
        assert_eq!(says, lost > 0, "{end}: {}", resolved.summary);
    }
}

#[test]
fn a_partition_that_appeared_meanwhile_is_left_for_the_next_run() {
    let world = World::stored(&[(0, Some(120))]).partition(1);
    let resolved = world.ends(&latest(), Some(&run(latest(), &[(0, 150)])));
    let planned = of(&resolved, 1);
    assert_eq!(planned.start_at, planned.stop_at, "nothing of it is read");
    assert_eq!(planned.start_at.map(Offset::get), Some(BOUNDS.0));
    assert_eq!(planned.stop_reason, Some(StopReason::NotPartOfTheRun));
    let warned: Vec<Code> = resolved
        .warnings
        .iter()
        .map(|warning| warning.code)
        .collect();
    assert_eq!(warned, [Code::NotPartOfTheRun]);
}

#[test]
fn a_run_that_has_ended_is_not_begun_again_by_chance() {
    let world = World::stored(&[(0, Some(150))]);
    let mut stored = run(latest(), &[(0, 150)]);
    // Not finished: a server that died before it could say so carries it to its end.
    assert_eq!(codes(&world.ends(&latest(), Some(&stored))), []);
    stored.finished_at = Some(DateTime::UNIX_EPOCH);
    let resolved = world.ends(&latest(), Some(&stored));
    assert_eq!(codes(&resolved), [Code::RunFinished]);
    let choices = resolved.blockers[0].choices.clone();
    assert_eq!(
        choices,
        [json!({"from": "checkpoint"}), json!({"from": "earliest"})]
    );
    for choice in choices {
        let chosen = world.choosing(&choice).unwrap();
        let resolved = chosen.ends(&latest(), Some(&stored));
        assert_eq!(codes(&resolved), [], "{choice}");
        assert_eq!(end(&resolved, 0).0, Some(BOUNDS.1), "{choice}");
    }
    // A skip, or a position that was moved back by hand, leaves something to read.
    let behind = World::stored(&[(0, Some(149))]);
    assert_eq!(codes(&behind.ends(&latest(), Some(&stored))), []);
}

proptest::proptest! {
    /// Laws: a start without a blocker has a number for every end; a run that goes on has the ends it had; what a start
    /// stores is what the next one finds, so resolving twice changes nothing however far the log has grown meanwhile.
    #[test]
    fn a_restart_ends_at_the_same_place(
        position in 100_i64..200,
        grown in 0_i64..1_000,
        mode in proptest::sample::select(vec!["latest", "group-offsets", "specific-offsets", "timestamp"]),
        group in 100_i64..300,
    ) {
        let wish = match mode {
            "specific-offsets" => stop_at(json!({"mode": mode, "offsets": {"orders": {"0": group}}})),
            "timestamp" => stop_at(json!({"mode": mode, "timestamp": "1970-01-01T00:00:05Z"})),
            _ => stop_at(json!({"mode": mode})),
        };
        let mut world = World::stored(&[(0, Some(position))]);
        world.facts.ends.group.insert(orders(0), offset(group));
        world.facts.ends.at_timestamp.insert(orders(0), offset(group));
        let first = world.ends(&wish, None);
        proptest::prop_assert_eq!(codes(&first), vec![]);
        let begun = first.bounded_run(CheckpointId(11), DateTime::UNIX_EPOCH).unwrap();

        let mut later = World::stored(&[(0, Some(position))]);
        let known = later.facts_of(0).bounds.unwrap();
        later.facts_of(0).bounds = Some(LogBounds {
            last_stable: offset(known.last_stable.get() + grown),
            latest: offset(known.latest.get() + grown),
            ..known
        });
        later.facts.ends.group.insert(orders(0), offset(group + grown));
        let second = later.ends(&wish, Some(&begun));
        proptest::prop_assert_eq!(end(&second, 0).0, end(&first, 0).0);
        let again = second.bounded_run(CheckpointId(12), DateTime::UNIX_EPOCH).unwrap();
        proptest::prop_assert_eq!(again, begun);
    }
}
