//! Laws that hold for every start, over made-up worlds.

use std::collections::BTreeSet;

use proptest::{collection::btree_map, option, prelude::*};

use super::*;

const TOPICS: [&str; 2] = ["orders", "payments"];
const NOW_MS: i64 = 10_000;

/// A world, and what the log would answer for the instant of `from` and for the one of the startup mode.
#[derive(Debug, Clone)]
struct Made {
    world: World,
    lookups: BTreeMap<TopicPartition, (Option<Offset>, Option<Offset>)>,
}

fn partitions() -> impl Strategy<Value = TopicPartition> {
    (0..2_usize, 0..4).prop_map(|(topic, number)| TopicPartition::new(TOPICS[topic], number))
}

fn offsets() -> impl Strategy<Value = Offset> {
    prop_oneof![
        20 => (0..300_i64).prop_map(offset),
        1 => Just(Offset::ZERO),
        1 => Just(Offset::MAX),
    ]
}

fn topic_ids() -> impl Strategy<Value = Option<TopicId>> {
    prop_oneof![4 => Just(id("first")), 1 => Just(id("second")), 1 => Just(None)]
}

fn logs() -> impl Strategy<Value = LogBounds> {
    (offsets(), offsets(), offsets()).prop_map(|(one, two, three)| {
        let mut ends = [one, two, three];
        ends.sort();
        LogBounds {
            earliest: ends[0],
            last_stable: ends[1],
            latest: ends[2],
        }
    })
}

/// The brokers' answers, without the lookups by instant; a topic has one id.
fn broker_facts() -> impl Strategy<Value = BrokerFacts> {
    let one = (option::weighted(0.8, logs()), option::of(offsets()));
    let missing = prop_oneof![9 => Just(vec![]), 1 => Just(vec!["refunds".to_owned()])];
    (
        btree_map(partitions(), one, 0..7),
        [topic_ids(), topic_ids()],
        missing,
    )
        .prop_map(|(answers, ids, missing_topics)| BrokerFacts {
            by_pattern: false,
            partitions: answers
                .into_iter()
                .map(|(partition, (bounds, group_offset))| {
                    let topic_id = ids[usize::from(&*partition.topic == TOPICS[1])].clone();
                    let facts = PartitionFacts {
                        topic_id,
                        bounds,
                        group_offset,
                        at_timestamp: None,
                    };
                    (partition, facts)
                })
                .collect(),
            missing_topics,
            ends: EndFacts::default(),
        })
}

fn checkpoints(number: i64) -> impl Strategy<Value = RestorableState> {
    let position = (option::weighted(0.8, offsets()), 1..=number, topic_ids()).prop_map(
        |(next_offset, position_id, topic_id)| CheckpointPosition {
            next_offset,
            position_id: CheckpointId(position_id),
            topic_id,
        },
    );
    let target = prop_oneof![8 => Just(TARGET), 1 => Just("postgres:elsewhere"), 1 => Just("")];
    let newest_output = option::of((1..=number).prop_map(CheckpointId));
    (
        btree_map(partitions(), position, 0..7),
        target,
        newest_output,
    )
        .prop_map(move |(positions, target, newest_output)| RestorableState {
            id: CheckpointId(number),
            positions,
            sink_identity: target.to_owned(),
            newest_output,
        })
}

fn maps() -> impl Strategy<Value = Value> {
    btree_map(partitions(), offsets(), 1..5).prop_map(|by_partition| {
        let mut map = json!({});
        for (partition, offset) in by_partition {
            map[&*partition.topic][partition.partition.to_string()] = json!(offset);
        }
        map
    })
}

fn modes() -> impl Strategy<Value = StartupMode> {
    let plain = prop::sample::select(vec!["earliest", "latest", "timestamp", "group-offsets"]);
    let specific = maps().prop_map(|map| json!({"mode": "specific-offsets", "offsets": map}));
    prop_oneof![4 => plain.prop_map(|mode| mode_named(mode, 0)), 1 => specific]
        .prop_map(|mode| serde_json::from_value(mode).unwrap())
}

fn froms() -> impl Strategy<Value = StartFrom> {
    let by = prop_oneof![8 => -300..300_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    let body = prop_oneof![
        4 => Just(json!({"from": "auto"})),
        2 => prop::sample::select(vec![
            json!({"from": "checkpoint"}),
            json!({"from": "checkpoint", "checkpoint": 5}),
            json!({"from": "checkpoint", "checkpoint": 9}),
            json!({"from": "checkpoint", "checkpoint": 6}),
        ]),
        5 => prop::sample::select(vec![
            json!({"from": "earliest"}),
            json!({"from": "latest"}),
            json!({"from": "group-offsets"}),
            json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z"}),
            json!({"from": "ago", "duration": "8s"}),
        ]),
        2 => by.prop_map(|by| json!({"from": "shift", "by": by})),
        2 => maps().prop_map(|map| json!({"from": "specific-offsets", "offsets": map})),
    ];
    body.prop_map(|body| StartRequest::read(&body).unwrap().from)
}

fn coverings() -> impl Strategy<Value = Option<PartitionsByTopic>> {
    option::of(
        prop::collection::btree_set(partitions(), 1..5).prop_map(|names| {
            let mut covered = PartitionsByTopic::default();
            for name in names {
                let numbers = covered.0.entry(name.topic.to_string()).or_default();
                numbers.insert(name.partition);
            }
            covered
        }),
    )
}

fn sinks() -> impl Strategy<Value = SinkFacts> {
    let position = (offsets(), 1..12_i64).prop_map(|(next_offset, position_id)| SinkPosition {
        next_offset,
        position_id: CheckpointId(position_id),
    });
    let progress = prop_oneof![
        2 => Just(ProgressFacts::NotKept),
        1 => Just(ProgressFacts::Unknown("away".to_owned())),
        6 => btree_map(partitions(), position, 0..7).prop_map(ProgressFacts::Kept),
    ];
    progress.prop_map(|progress| SinkFacts {
        identity: TARGET.to_owned(),
        progress,
    })
}

fn any_policies() -> impl Strategy<Value = StartPolicies> {
    let one = || prop::sample::select(POLICIES.to_vec());
    (one(), one(), one(), proptest::bool::weighted(0.2)).prop_map(
        |(range, group, topic, forget_gone)| StartPolicies {
            on_out_of_range: range,
            on_missing_group_offset: group,
            on_topic_recreated: topic,
            forget_gone,
        },
    )
}

fn made() -> impl Strategy<Value = Made> {
    let intent = (modes(), froms(), coverings(), any_policies());
    let known = (
        option::weighted(0.7, checkpoints(9)),
        option::of(checkpoints(5)),
        sinks(),
        broker_facts(),
    );
    let lookup = (option::of(offsets()), option::of(offsets()));
    (
        intent,
        known,
        (any::<bool>(), any::<bool>()),
        btree_map(partitions(), lookup, 0..7),
    )
        .prop_map(|(intent, known, (committed, parks_others), lookups)| {
            let (mode, from, covered, policies) = intent;
            let (state, chosen, sink, facts) = known;
            let isolation = if committed {
                Isolation::ReadCommitted
            } else {
                Isolation::ReadUncommitted
            };
            let covered = covered.filter(|_| from != StartFrom::Auto);
            // Only a start that nobody asked for parks what was not parked.
            let parks_others = parks_others && from == StartFrom::Auto;
            let world = World {
                isolation,
                mode,
                state,
                chosen,
                sink,
                from,
                covered,
                policies,
                parked_before: Vec::new(),
                parks_others,
                facts,
                off: false,
                read: PartitionOffsets::new(),
                group_tells: false,
            };
            Made { world, lookups }.with_every_answer()
        })
}

impl Made {
    fn looks_up(&self) -> bool {
        matches!(
            self.world.from,
            StartFrom::Timestamp { .. } | StartFrom::Ago { .. }
        )
    }

    /// Fills in the answer that each partition's own rule needs, asked for or not. Only a leader answers for an instant.
    fn with_every_answer(mut self) -> Self {
        let looks_up = self.looks_up();
        let covered = self.world.covered.clone();
        for (partition, facts) in &mut self.world.facts.partitions {
            let is_covered = covered.as_ref().is_none_or(|some| some.contains(partition));
            let (by_intent, by_mode) = self.lookups.get(partition).copied().unwrap_or_default();
            let answer = if looks_up && is_covered {
                by_intent
            } else {
                by_mode
            };
            facts.at_timestamp = answer.filter(|_| facts.bounds.is_some());
        }
        self
    }

    /// Leaves only what [`needed_facts`] asks for.
    fn with_needed_answers(&self) -> World {
        let mut world = self.world.clone();
        let inputs = self.world.inputs();
        let needed = needed_facts(&inputs, NOW_MS);
        let instants = needed.instants(world.facts.partitions.keys());
        for (partition, facts) in &mut world.facts.partitions {
            facts.group_offset = facts.group_offset.filter(|_| needed.group_offsets);
            let (by_intent, by_mode) = self.lookups.get(partition).copied().unwrap_or_default();
            let asked = instants.iter().find(|(_, names)| names.contains(partition));
            facts.at_timestamp = asked.and_then(|(instant, _)| match instant {
                2000 => by_intent,
                5000 => by_mode,
                other => panic!("nobody speaks of {other}"),
            });
            facts.at_timestamp = facts.at_timestamp.filter(|_| facts.bounds.is_some());
        }
        world
    }
}

fn covers(world: &World, partition: &TopicPartition) -> bool {
    world
        .covered
        .as_ref()
        .is_none_or(|some| some.contains(partition))
}

/// The newest checkpoint's position, if it is a number of the topic as it is now.
fn stored(world: &World, planned: &PlannedPartition) -> Option<(Offset, CheckpointId)> {
    let partition = planned.topic_partition();
    let held = world.state.as_ref()?.positions.get(&partition)?;
    let now = world.facts.partitions.get(&partition);
    let now = now.and_then(|facts| facts.topic_id.as_ref());
    if held
        .topic_id
        .as_ref()
        .zip(now)
        .is_some_and(|(then, now)| then != now)
    {
        return None;
    }
    Some((held.next_offset?, held.position_id))
}

/// Before where every record was read: by the newest checkpoint, or by a sink that speaks of the same run of positions or of
/// a newer one, or by a target that is new to the checkpoint and holds more.
fn read_up_to(world: &World, planned: &PlannedPartition) -> Option<Offset> {
    let (stored, position_id) = stored(world, planned)?;
    let partition = planned.topic_partition();
    if world.sink.is_other_than(world.state.as_ref())
        && let ProgressFacts::Kept(progress) = &world.sink.progress
    {
        let held = progress.get(&partition).map(|held| held.next_offset);
        return Some(held.map_or(stored, |held| held.max(stored)));
    }
    let sink = world.sink.comparable_with(world.state.as_ref());
    let sink = sink.and_then(|sink| sink.get(&partition));
    let counts = sink.filter(|sink| sink.position_id >= position_id);
    Some(counts.map_or(stored, |sink| sink.next_offset))
}

/// The world after a start that died: its checkpoint is stored, and the sink has heard of some partitions' positions, for
/// which it has also kept some records since.
fn after_a_start(world: &World, resolved: &ResolvedStart, heard: &[(bool, i64)]) -> World {
    let mut after = world.clone();
    let ids = after
        .state
        .iter()
        .chain(&after.chosen)
        .map(|state| state.id);
    let in_sink = match &after.sink.progress {
        ProgressFacts::Kept(progress) => progress.values().map(|sink| sink.position_id).max(),
        _ => None,
    };
    let id = ids.chain(in_sink).max().unwrap_or(CheckpointId(0)).next();
    let positions = resolved.positions(id);
    for (planned, (has_heard, kept)) in resolved.read_partitions().zip(heard.iter().cycle()) {
        let partition = planned.topic_partition();
        let position_id = planned.position_id.unwrap_or(id);
        let log = world
            .facts
            .partitions
            .get(&partition)
            .and_then(|facts| facts.bounds);
        if let (ProgressFacts::Kept(progress), Some(start), true) =
            (&mut after.sink.progress, planned.start_at, has_heard)
        {
            let kept = log.map_or(0, |log| log.latest.distance_from(start).clamp(0, *kept));
            let sink = SinkPosition {
                next_offset: Offset::new(start.get() + kept).unwrap(),
                position_id,
            };
            progress.insert(partition, sink);
        }
    }
    after.state = Some(RestorableState {
        id,
        positions,
        sink_identity: world.sink.identity.clone(),
        newest_output: world.state.as_ref().and_then(|state| state.newest_output),
    });
    after.from = StartFrom::Auto;
    after.covered = None;
    // Its policies stay: a partition that still waits for a leader is decided by them again.
    after
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_decision_is_total_repeatable_and_survives_the_store(made in made()) {
        let resolved = made.world.resolve();
        prop_assert_eq!(&resolved, &made.world.resolve());
        let text = serde_json::to_string(&resolved).unwrap();
        prop_assert_eq!(&resolved, &serde_json::from_str::<ResolvedStart>(&text).unwrap());
        // One row for each partition that anybody knows of, in order.
        let names: Vec<TopicPartition> =
            resolved.partitions.iter().map(PlannedPartition::topic_partition).collect();
        let sorted: BTreeSet<TopicPartition> = names.iter().cloned().collect();
        prop_assert_eq!(&names, &sorted.iter().cloned().collect::<Vec<_>>());
        let state = made.world.state.iter().flat_map(|state| state.positions.keys());
        for known in made.world.facts.partitions.keys().chain(state) {
            prop_assert!(sorted.contains(known), "{known} is missing");
        }
        let codes = codes(&resolved);
        prop_assert_eq!(codes.len(), codes.iter().collect::<BTreeSet<_>>().len());
    }

    #[test]
    fn without_blockers_every_partition_with_a_leader_begins_inside_its_log(made in made()) {
        let resolved = made.world.resolve();
        for planned in resolved.read_partitions() {
            let bounds = made.world.facts.partitions.get(&planned.topic_partition()).and_then(|facts| facts.bounds);
            if let (Some(bounds), Some(start)) = (bounds, planned.start_at) {
                prop_assert!(bounds.earliest <= start && start <= bounds.latest, "{planned:?}");
            }
            prop_assert!(!resolved.blockers.is_empty() || bounds.is_none() || planned.start_at.is_some(), "{planned:?}");
        }
    }

    /// Otherwise a later look, which knows nothing of this start, would decide by another rule.
    #[test]
    fn without_blockers_only_the_startup_mode_leaves_a_position_open(made in made()) {
        let world = &made.world;
        let resolved = world.resolve();
        if !resolved.blockers.is_empty() {
            return Ok(());
        }
        for planned in resolved.read_partitions().filter(|planned| planned.start_at.is_none()) {
            let partition = planned.topic_partition();
            prop_assert_eq!(planned.reason, StartReason::NoLeader);
            prop_assert_eq!(planned.earliest, None);
            prop_assert!(!(world.inputs().is_one_shot() && covers(world, &partition)), "{planned:?}");
            let held = world.state.as_ref().map(|state| state.positions.get(&partition));
            let has_number = held.flatten().is_some_and(|held| held.next_offset.is_some());
            prop_assert!(!has_number, "{planned:?}");
            let chosen = matches!(world.from, StartFrom::Checkpoint { .. });
            prop_assert!(chosen || !matches!(held, Some(None)), "a new partition is not the mode's: {planned:?}");
        }
    }

    #[test]
    fn under_auto_the_checkpoint_wins_over_the_startup_mode(made in made(), newest in checkpoints(9), mode in modes()) {
        let mut world = made.world;
        world.from = StartFrom::Auto;
        world.covered = None;
        world.sink.progress = ProgressFacts::NotKept;
        world.state = Some(newest);
        let resolved = world.resolve();
        for planned in resolved.read_partitions() {
            let held = world.state.as_ref().and_then(|state| state.positions.get(&planned.topic_partition()));
            if held.is_none() {
                prop_assert_eq!(planned.reason, StartReason::NewSinceCheckpoint);
                prop_assert_eq!(planned.start_at, Some(planned.earliest.unwrap_or(Offset::ZERO)));
            }
            let Some((stored, position_id)) = stored(&world, planned) else { continue };
            let bounds = world.facts.partitions.get(&planned.topic_partition()).and_then(|facts| facts.bounds);
            if bounds.is_none_or(|log| (log.earliest..=log.latest).contains(&stored)) {
                prop_assert_eq!((planned.start_at, planned.reason), (Some(stored), StartReason::Checkpoint));
                let decided_before = !world.sink.is_other_than(world.state.as_ref());
                prop_assert_eq!(planned.position_id, decided_before.then_some(position_id));
            }
        }
        // And does not look at it, where every partition has a position.
        let waits = world.state.iter().flat_map(|state| state.positions.values()).any(|held| held.next_offset.is_none());
        if !waits {
            let mut other = world.clone();
            other.mode = mode;
            prop_assert_eq!(&other.resolve().partitions, &resolved.partitions);
        }
    }

    #[test]
    fn the_numbers_fit_to_the_positions(made in made()) {
        let world = made.world;
        let resolved = world.resolve();
        let mut sums = (0_i64, 0_i64, 0_i64, 0_i64);
        for planned in resolved.read_partitions() {
            let (replayed, skipped, lost) = (planned.replayed, planned.skipped, planned.lost);
            prop_assert!(replayed >= 0 && skipped >= 0 && lost >= 0 && planned.to_read.unwrap_or(0) >= 0, "{planned:?}");
            prop_assert!(replayed == 0 || (skipped == 0 && lost == 0), "{planned:?}");
            sums.0 += planned.to_read.unwrap_or(0);
            sums.1 += replayed;
            sums.2 += skipped;
            sums.3 += lost;
            let Some(stored) = read_up_to(&world, planned) else { continue };
            let bounds = world.facts.partitions.get(&planned.topic_partition()).and_then(|facts| facts.bounds);
            let gone = bounds.map_or(0, |log| log.earliest.distance_from(stored).max(0));
            match planned.start_at {
                None => prop_assert_eq!((replayed, skipped, lost), (0, 0, gone)),
                Some(start) if start > stored => {
                    prop_assert_eq!((replayed, lost), (0, gone));
                    prop_assert_eq!(skipped + lost, start.distance_from(stored));
                }
                Some(start) => {
                    let end = bounds.map_or(stored, |log| log.latest.min(stored));
                    prop_assert_eq!((skipped, lost), (0, 0));
                    prop_assert_eq!(replayed, end.distance_from(start).max(0));
                }
            }
        }
        let totals = resolved.totals;
        prop_assert_eq!(sums, (totals.to_read, totals.replayed, totals.skipped, totals.lost));
    }

    /// A start may die after any of its steps, and so may the run after it, between what the sink keeps and a checkpoint.
    #[test]
    fn whatever_dies_after_the_start_checkpoint_goes_on_where_the_sink_stands(
        made in made(),
        heard in prop::collection::vec((any::<bool>(), 0..40_i64), 1..5),
    ) {
        let first = made.world.resolve();
        if !first.blockers.is_empty() || first.sink.progress == ProgressKnown::Unknown {
            // Not started.
            return Ok(());
        }
        let world = after_a_start(&made.world, &first, &heard);
        let again = world.resolve();
        prop_assert_eq!(codes(&again), vec![], "{:?}", again);
        prop_assert!(!warned(&again).contains(&Code::SinkChanged));
        let in_sink = world.sink.comparable_with(world.state.as_ref());
        for planned in again.read_partitions() {
            let partition = planned.topic_partition();
            let begun = first.read_partitions().find(|first| first.topic_partition() == partition);
            let begun = begun.and_then(|first| first.start_at);
            let stored = &world.state.as_ref().unwrap().positions[&partition];
            let held = in_sink.and_then(|sink| sink.get(&partition));
            let held = held.filter(|held| held.position_id == stored.position_id);
            if begun.is_some() {
                prop_assert_eq!(planned.start_at, held.map_or(begun, |held| Some(held.next_offset)), "{:?}", planned);
                prop_assert_eq!(planned.position_id, Some(stored.position_id));
            }
            prop_assert_eq!((planned.replayed, planned.skipped, planned.lost), (0, 0, 0), "{:?}", planned);
        }
    }

    #[test]
    fn a_one_shot_start_begins_where_it_says_whatever_the_sink_holds(made in made()) {
        let world = &made.world;
        if !world.inputs().is_one_shot() || matches!(world.from, StartFrom::Shift { .. }) {
            return Ok(());
        }
        let mut plain = world.clone();
        plain.sink.progress = ProgressFacts::NotKept;
        let without = plain.resolve();
        for planned in world.resolve().read_partitions().filter(|planned| covers(world, &planned.topic_partition())) {
            let same = without.read_partitions().find(|other| other.topic_partition() == planned.topic_partition());
            prop_assert_eq!(planned.start_at, same.and_then(|same| same.start_at));
            prop_assert_eq!(planned.position_id, None);
        }
    }

    /// Those who decide a position are the checkpoint, the sink and the operator; a blocked one waits for the operator.
    #[test]
    fn a_position_with_a_leader_is_open_only_under_a_blocker(made in made()) {
        let resolved = made.world.resolve();
        let blocked: BTreeSet<&TopicPartition> =
            resolved.blockers.iter().flat_map(|blocker| &blocker.partitions).collect();
        let general = resolved.blockers.iter().any(|blocker| blocker.code == Code::CheckpointNotFound);
        for planned in resolved.read_partitions().filter(|planned| planned.start_at.is_none()) {
            let is_blocked = general || blocked.contains(&planned.topic_partition());
            prop_assert!(is_blocked || planned.earliest.is_none(), "{planned:?}");
        }
    }

    #[test]
    fn an_offered_choice_removes_its_blocker(made in made()) {
        let world = &made.world;
        if world.choosing(&json!({})).is_err() {
            // A body that is refused by itself was never planned.
            return Ok(());
        }
        for blocker in world.resolve().blockers {
            for choice in &blocker.choices {
                let decided = world.choosing(choice);
                prop_assert!(decided.is_ok(), "{choice}: {decided:?}");
                let mut decided = Made { world: decided.unwrap(), lookups: made.lookups.clone() };
                decided = decided.with_every_answer();
                let left = decided.world.resolve();
                prop_assert!(!codes(&left).contains(&blocker.code), "{choice}: {left:?}");
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_all_that_is_used(made in made()) {
        prop_assert_eq!(made.with_needed_answers().resolve(), made.world.resolve());
    }
}
