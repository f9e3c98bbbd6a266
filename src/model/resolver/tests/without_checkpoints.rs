//! A job whose checkpoints are off has no state, and what it leaves behind is never passed over silently.

use super::*;

/// Turned off at checkpoint 9, which stands at 150 of 100 to 190.
fn turned_off(mode: &str) -> World {
    World::stored(&[(0, Some(150))])
        .mode(json!({"mode": mode}))
        .without_checkpoints()
}

fn off(mode: &str) -> World {
    World::new()
        .mode(json!({"mode": mode}))
        .without_checkpoints()
}

#[test]
fn the_startup_mode_decides_whatever_is_kept() {
    let group = |mut world: World, at: i64| {
        world.facts_of(0).group_offset = Some(offset(at));
        world
    };
    let earliest = (Some(100), StartReason::StartupEarliest);
    // World, beginning, what the plan rests on, and how many offsets are read again.
    let rows = [
        (off("earliest"), earliest, StartBasis::StartupMode, 0),
        (
            off("latest"),
            (Some(190), StartReason::StartupLatest),
            StartBasis::StartupMode,
            0,
        ),
        (
            group(off("group-offsets"), 130),
            (Some(130), StartReason::StartupGroupOffset),
            StartBasis::StartupMode,
            0,
        ),
        (
            turned_off("earliest"),
            earliest,
            StartBasis::StartupMode,
            50,
        ),
        (
            group(turned_off("group-offsets"), 145),
            (Some(145), StartReason::StartupGroupOffset),
            StartBasis::StartupMode,
            5,
        ),
        (
            turned_off("latest").from(json!({"from": "earliest"})),
            earliest,
            StartBasis::OneShot,
            50,
        ),
    ];
    for (world, begin, basis, replayed) in rows {
        let resolved = world.resolve();
        let row = format!("{world:?}");
        assert_eq!(codes(&resolved), [], "{row}");
        assert_eq!(begins(&resolved, 0), begin, "{row}");
        assert_eq!(
            (resolved.basis, resolved.checkpoint),
            (basis, None),
            "{row}"
        );
        assert_eq!(resolved.totals.replayed, replayed, "{row}");
        let left = world.state.as_ref().map(|left| left.id);
        assert_eq!(resolved.set_aside, left, "{row}");
        let warned = resolved
            .warnings
            .iter()
            .any(|warning| warning.code == Code::StateNotUsed);
        assert_eq!(warned, left.is_some(), "{row}");
        assert!(
            resolved.summary.contains("checkpoints are off"),
            "{}",
            resolved.summary
        );
    }
}

#[test]
fn what_is_unread_behind_the_last_checkpoint_is_passed_over_only_in_so_many_words() {
    let mut ahead = turned_off("group-offsets");
    ahead.facts_of(0).group_offset = Some(offset(170));
    let rows = [
        (
            turned_off("latest"),
            "would pass over 40 unread offsets",
            json!({"from": "latest"}),
        ),
        (
            ahead,
            "would pass over 20 unread offsets",
            json!({"from": "group-offsets"}),
        ),
        (
            turned_off("latest").leaderless(0),
            "may pass over what is unread",
            json!({"from": "latest"}),
        ),
    ];
    for (world, words, by_mode) in rows {
        let resolved = world.resolve();
        let [blocker] = resolved.blockers.as_slice() else {
            panic!("{:?}", resolved.blockers)
        };
        assert_eq!(blocker.code, Code::StateNotUsed);
        assert_eq!(blocker.partitions, [orders(0)]);
        assert!(blocker.summary.contains(words), "{}", blocker.summary);
        let go_on = json!({"from": "specific-offsets", "offsets": {"orders": {"0": 150}}});
        assert_eq!(blocker.choices, [go_on, by_mode]);
        // The first choice passes over nothing and repeats nothing.
        let resolved = world.choosing(&blocker.choices[0]).unwrap().resolve();
        assert_eq!(codes(&resolved), []);
        assert_eq!(begins(&resolved, 0).0, Some(150));
        assert_eq!((resolved.totals.skipped, resolved.totals.replayed), (0, 0));
    }
}

#[test]
fn a_start_that_names_partitions_does_not_speak_for_the_others() {
    let two = || {
        World::stored(&[(0, Some(150)), (1, Some(150))])
            .partition(1)
            .mode(json!({"mode": "latest"}))
            .without_checkpoints()
    };
    let named = two().from(json!({"from": "latest", "partitions": {"orders": [0]}}));
    let resolved = named.resolve();
    assert_eq!(codes(&resolved), [Code::StateNotUsed]);
    assert_eq!(resolved.blockers[0].partitions, [orders(1)]);
    assert_eq!(codes(&two().from(json!({"from": "latest"})).resolve()), []);
}

#[test]
fn once_they_are_on_again_nothing_is_gone_on_from() {
    // The store does not give a checkpoint that was set aside for the newest one.
    let mut on_again = World::new().mode(json!({"mode": "earliest"}));
    let resolved = on_again.resolve();
    assert_eq!(
        (resolved.basis, resolved.checkpoint),
        (StartBasis::StartupMode, None)
    );
    // By its number it is the way back.
    on_again.chosen = Some(checkpoint(9, &[(0, Some(150))]));
    let resolved = on_again
        .from(json!({"from": "checkpoint", "checkpoint": 9}))
        .resolve();
    assert_eq!(begins(&resolved, 0), (Some(150), StartReason::Checkpoint));
}

#[test]
fn later_starts_count_from_where_the_last_run_stood() {
    let read = |mut world: World, position: Option<i64>, group: Option<i64>| {
        world
            .read
            .extend(position.map(|position| (orders(0), offset(position))));
        world.group_tells = group.is_some();
        world.facts_of(0).group_offset = group.map(offset);
        world
    };
    let none = |mut world: World| {
        world.policies.on_missing_group_offset = Latest;
        world
    };
    // World, offsets passed over, offsets read again.
    let rows = [
        (read(off("latest"), Some(130), None), 60, 0),
        (read(off("latest"), None, Some(140)), 50, 0),
        (read(off("latest"), Some(150), Some(140)), 40, 0),
        (read(off("latest"), None, None), 0, 0),
        (read(off("earliest"), Some(130), None), 0, 30),
        (read(off("group-offsets"), None, Some(140)), 0, 0),
        (read(off("group-offsets"), Some(150), Some(140)), 0, 10),
        (none(read(off("group-offsets"), Some(130), None)), 60, 0),
        (
            read(off("latest"), Some(130), None).from(json!({"from": "earliest"})),
            0,
            30,
        ),
    ];
    for (world, skipped, replayed) in rows {
        let resolved = world.resolve();
        let row = format!("{world:?}");
        assert_eq!(codes(&resolved), [], "{row}");
        let totals = resolved.totals;
        assert_eq!(
            (totals.skipped, totals.replayed),
            (skipped, replayed),
            "{row}"
        );
    }
}

#[test]
fn a_partition_that_appeared_while_the_job_did_not_run_begins_at_its_first_record() {
    for policy in POLICIES {
        let mut world = off("group-offsets").partition(1);
        world.policies.on_missing_group_offset = policy;
        world.facts_of(0).group_offset = Some(offset(150));
        // The group of somebody else: the policy decides.
        let by_policy = StartReason::GroupMissingUsedPolicy;
        assert_eq!(begins(&world.resolve(), 1).1, by_policy);
        world.group_tells = true;
        let resolved = world.resolve();
        assert_eq!(codes(&resolved), [], "{policy:?}");
        assert_eq!(
            begins(&resolved, 1),
            (Some(100), StartReason::NewSinceCheckpoint)
        );
        assert!(
            resolved
                .summary
                .contains("new, so from the first record: orders/1"),
            "{}",
            resolved.summary
        );
        // One that the last run had read is not new: its offset was deleted.
        world.read.insert(orders(1), offset(120));
        assert_eq!(begins(&world.resolve(), 1).1, by_policy);
    }
    let mut latest = off("latest").partition(1);
    latest.read.insert(orders(0), offset(190));
    assert_eq!(latest.resolve().totals.skipped, 90);
}
