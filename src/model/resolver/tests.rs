//! Tables over the cases, each row a rule that somebody would be blamed for; the laws stand in `properties`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::model::{
    checkpoint::CheckpointPosition,
    code::Code,
    errors_spec::Block,
    ids::CheckpointId,
    job::PositionPolicy,
    offset::{Offset, PartitionOffsets},
    parked::ParkedPartition,
    start::StartRequest,
    topic::{TopicId, TopicPartition},
};

mod ends;
mod properties;
mod without_checkpoints;

use PositionPolicy::{Earliest, Fail, Latest};

const POLICIES: [PositionPolicy; 3] = [Fail, Earliest, Latest];
/// The log of every partition unless a row says otherwise: 100 to 200, an open transaction from 190 on.
const BOUNDS: (i64, i64, i64) = (100, 190, 200);

/// The target of every sink unless a row says otherwise.
const TARGET: &str = "postgres:orders";

/// Positions of a checkpoint: partition and next offset, `None` while it waits for the first one.
type Positions<'a> = &'a [(i32, Option<i64>)];
/// Instants to look up, each with its partitions.
type Instants<'a> = &'a [(i64, &'a [i32])];

/// Everything a decision depends on, owned.
#[derive(Debug, Clone)]
struct World {
    isolation: Isolation,
    mode: StartupMode,
    state: Option<RestorableState>,
    chosen: Option<RestorableState>,
    sink: SinkFacts,
    from: StartFrom,
    covered: Option<PartitionsByTopic>,
    policies: StartPolicies,
    parked_before: Vec<ParkedPartition>,
    parks_others: bool,
    facts: BrokerFacts,
    /// Whether checkpoints are off; `state` is then what is left of an earlier time.
    off: bool,
    /// What the last run without checkpoints has read.
    read: PartitionOffsets,
    /// Whether it committed.
    group_tells: bool,
}

impl World {
    /// A job with mode `latest` that reads `orders/0` and never ran.
    fn new() -> Self {
        let mut world = Self {
            isolation: Isolation::ReadCommitted,
            mode: StartupMode::Latest,
            state: None,
            chosen: None,
            sink: SinkFacts::without_progress(TARGET.to_owned()),
            from: StartFrom::Auto,
            covered: None,
            policies: policies(Fail),
            parked_before: Vec::new(),
            parks_others: false,
            facts: BrokerFacts::default(),
            off: false,
            read: PartitionOffsets::new(),
            group_tells: false,
        };
        world.facts.partitions.insert(orders(0), facts());
        world
    }

    /// With checkpoint 9, whose positions checkpoint 7 decided.
    fn stored(positions: Positions<'_>) -> Self {
        let mut world = Self::new();
        world.state = Some(checkpoint(9, positions));
        world
    }

    fn without_checkpoints(mut self) -> Self {
        self.off = true;
        self
    }

    fn partition(mut self, number: i32) -> Self {
        self.facts.partitions.insert(orders(number), facts());
        self
    }

    fn leaderless(mut self, number: i32) -> Self {
        self.facts_of(number).bounds = None;
        self
    }

    #[expect(clippy::needless_pass_by_value, reason = "rows read better without &")]
    fn from(mut self, from: Value) -> Self {
        let request = StartRequest::read(&from).unwrap();
        self.from = request.from;
        self.covered = request.partitions;
        self
    }

    fn mode(mut self, mode: Value) -> Self {
        self.mode = serde_json::from_value(mode).unwrap();
        self
    }

    fn policy(mut self, policy: PositionPolicy) -> Self {
        self.policies = policies(policy);
        self
    }

    fn sink(mut self, next_offset: i64, position_id: i64) -> Self {
        let position = SinkPosition {
            next_offset: offset(next_offset),
            position_id: CheckpointId(position_id),
        };
        self.progress().insert(orders(0), position);
        self
    }

    /// The sink keeps progress from now on.
    fn progress(&mut self) -> &mut SinkProgress {
        if !matches!(self.sink.progress, ProgressFacts::Kept(_)) {
            self.sink.progress = ProgressFacts::Kept(SinkProgress::new());
        }
        match &mut self.sink.progress {
            ProgressFacts::Kept(progress) => progress,
            _ => unreachable!("it was set above"),
        }
    }

    /// Records had reached the sink before this checkpoint.
    fn output_before(mut self, checkpoint: i64) -> Self {
        self.state.as_mut().unwrap().newest_output = Some(CheckpointId(checkpoint));
        self
    }

    fn facts_of(&mut self, number: i32) -> &mut PartitionFacts {
        self.facts.partitions.entry(orders(number)).or_default()
    }

    fn inputs(&self) -> StartInputs<'_> {
        StartInputs {
            isolation: self.isolation,
            startup_mode: &self.mode,
            state: self.state.as_ref().filter(|_| !self.off),
            state_use: if self.off {
                StateUse::Off {
                    left: self.state.as_ref(),
                    read: ReadBefore {
                        positions: Some(&self.read).filter(|read| !read.is_empty()),
                        group_tells: self.group_tells,
                        missing_is_decided: false,
                    },
                }
            } else {
                StateUse::Counts
            },
            chosen: self.chosen.as_ref(),
            sink: &self.sink,
            from: &self.from,
            covered: self.covered.as_ref(),
            policies: self.policies,
            parking: Parking {
                before: &self.parked_before,
                others: self.parks_others,
            },
            facts: &self.facts,
        }
    }

    fn resolve(&self) -> ResolvedStart {
        resolve_positions(&self.inputs())
    }

    /// The start that a caller sends to take a choice: the body as it was, merged with the choice.
    fn choosing(&self, choice: &Value) -> Result<Self, Vec<crate::model::FieldError>> {
        let mut body = serde_json::to_value(StartRequest {
            from: self.from.clone(),
            partitions: self.covered.clone(),
            on_out_of_range: Some(self.policies.on_out_of_range),
            on_missing_group_offset: Some(self.policies.on_missing_group_offset),
            on_topic_recreated: Some(self.policies.on_topic_recreated),
            ..StartRequest::auto()
        })
        .unwrap();
        for (member, value) in choice.as_object().unwrap() {
            body[member] = value.clone();
        }
        let request = StartRequest::read(&body)?;
        let mut chosen = self.clone();
        chosen.from = request.from;
        chosen.covered = request.partitions;
        chosen.policies = StartPolicies {
            on_out_of_range: request.on_out_of_range.unwrap(),
            on_missing_group_offset: request.on_missing_group_offset.unwrap(),
            on_topic_recreated: request.on_topic_recreated.unwrap(),
            forget_gone: false,
        };
        Ok(chosen)
    }
}

fn orders(number: i32) -> TopicPartition {
    TopicPartition::new("orders", number)
}

fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

fn id(text: &str) -> Option<TopicId> {
    Some(TopicId(text.into()))
}

fn bounds((earliest, last_stable, latest): (i64, i64, i64)) -> LogBounds {
    LogBounds {
        earliest: offset(earliest),
        last_stable: offset(last_stable),
        latest: offset(latest),
    }
}

fn facts() -> PartitionFacts {
    PartitionFacts {
        topic_id: id("first"),
        bounds: Some(bounds(BOUNDS)),
        group_offset: None,
        at_timestamp: None,
    }
}

fn policies(policy: PositionPolicy) -> StartPolicies {
    StartPolicies {
        on_out_of_range: policy,
        on_missing_group_offset: policy,
        on_topic_recreated: policy,
        forget_gone: false,
    }
}

fn checkpoint(number: i64, positions: Positions<'_>) -> RestorableState {
    let positions = positions.iter().map(|(partition, next_offset)| {
        let position = CheckpointPosition {
            next_offset: next_offset.map(offset),
            position_id: CheckpointId(number - 2),
            topic_id: id("first"),
        };
        (orders(*partition), position)
    });
    RestorableState {
        id: CheckpointId(number),
        positions: positions.collect(),
        sink_identity: TARGET.to_owned(),
        newest_output: None,
    }
}

fn of(resolved: &ResolvedStart, number: i32) -> &PlannedPartition {
    resolved
        .partitions
        .iter()
        .find(|planned| planned.topic_partition() == orders(number))
        .unwrap_or_else(|| panic!("orders/{number} is not in {resolved:?}"))
}

/// Where `orders/<number>` begins, and why.
fn begins(resolved: &ResolvedStart, number: i32) -> (Option<i64>, StartReason) {
    let planned = of(resolved, number);
    (planned.start_at.map(Offset::get), planned.reason)
}

/// Replayed, skipped, lost, to read.
fn numbers(resolved: &ResolvedStart, number: i32) -> (i64, i64, i64, Option<i64>) {
    let planned = of(resolved, number);
    (
        planned.replayed,
        planned.skipped,
        planned.lost,
        planned.to_read,
    )
}

fn codes(resolved: &ResolvedStart) -> Vec<Code> {
    resolved
        .blockers
        .iter()
        .map(|blocker| blocker.code)
        .collect()
}

fn warned(resolved: &ResolvedStart) -> Vec<Code> {
    resolved
        .warnings
        .iter()
        .map(|warning| warning.code)
        .collect()
}

/// Each choice of the only blocker removes it.
fn choices_decide(world: &World, count: usize) {
    let resolved = world.resolve();
    let [blocker] = &resolved.blockers[..] else {
        panic!("one blocker expected: {resolved:?}");
    };
    assert_eq!(blocker.choices.len(), count, "{blocker:?}");
    for choice in &blocker.choices {
        let decided = world.choosing(choice).unwrap().resolve();
        assert!(decided.blockers.is_empty(), "{choice}: {decided:?}");
    }
}

const MODES: [&str; 5] = [
    "earliest",
    "latest",
    "timestamp",
    "group-offsets",
    "specific-offsets",
];

fn mode_named(mode: &str, number: i64) -> Value {
    match mode {
        "timestamp" => json!({"mode": mode, "timestamp": "1970-01-01T00:00:05Z"}),
        "specific-offsets" => json!({"mode": mode, "offsets": {"orders": {"0": number}}}),
        _ => json!({"mode": mode}),
    }
}

/// What the log is like, seen from a position.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Log {
    InRange,
    Below,
    Beyond,
    Leaderless,
    Recreated,
}

const LOGS: [Log; 5] = [
    Log::InRange,
    Log::Below,
    Log::Beyond,
    Log::Leaderless,
    Log::Recreated,
];

impl Log {
    fn position(self) -> i64 {
        match self {
            Self::InRange | Self::Leaderless | Self::Recreated => 150,
            Self::Below => 40,
            Self::Beyond => 250,
        }
    }

    fn apply(self, world: &mut World, mode: &str) {
        let facts = world.facts_of(0);
        if mode == "group-offsets" {
            facts.group_offset = Offset::new(self.position());
        }
        if mode == "timestamp" && self != Self::Leaderless {
            facts.at_timestamp = Offset::new(self.position());
        }
        if self == Self::Leaderless {
            facts.bounds = None;
        }
        if self == Self::Recreated {
            facts.topic_id = id("second");
        }
    }
}

/// Where a policy puts a position that cannot be taken.
fn by(policy: PositionPolicy) -> Option<i64> {
    match policy {
        Fail => None,
        Earliest => Some(BOUNDS.0),
        Latest => Some(BOUNDS.1),
    }
}

/// The startup mode's decision, where it decides.
fn decided_by_mode(mode: &str, log: Log, policy: PositionPolicy) -> (Option<i64>, StartReason) {
    match (mode, log) {
        ("earliest" | "latest" | "timestamp", Log::Leaderless) => (None, StartReason::NoLeader),
        ("earliest", _) => (Some(100), StartReason::StartupEarliest),
        ("latest", _) => (Some(190), StartReason::StartupLatest),
        ("timestamp", Log::Beyond) => (Some(190), StartReason::TimestampPastEnd),
        (_, Log::Below) => (by(policy), StartReason::BelowEarliest),
        (_, Log::Beyond) => (by(policy), StartReason::BeyondLatest),
        ("timestamp", _) => (Some(150), StartReason::StartupTimestamp),
        ("group-offsets", _) => (Some(150), StartReason::StartupGroupOffset),
        (_, _) => (Some(150), StartReason::StartupSpecificOffset),
    }
}

/// A stored position's decision, under any startup mode.
fn decided_by_state(log: Log, policy: PositionPolicy) -> (Option<i64>, StartReason) {
    match log {
        Log::InRange | Log::Leaderless => (Some(150), StartReason::Checkpoint),
        Log::Below => (by(policy), StartReason::BelowEarliest),
        Log::Beyond => (by(policy), StartReason::BeyondLatest),
        Log::Recreated => (by(policy), StartReason::TopicRecreated),
    }
}

/// A partition's decision under a checkpoint that does not hold it, under any startup mode.
fn decided_as_new(log: Log) -> (Option<i64>, StartReason) {
    let start = if log == Log::Leaderless { 0 } else { 100 };
    (Some(start), StartReason::NewSinceCheckpoint)
}

#[test]
fn every_startup_mode_with_every_kind_of_state_in_every_kind_of_log() {
    for mode in MODES {
        for log in LOGS {
            for policy in POLICIES {
                let case = |state: Option<Positions<'_>>| {
                    let mut world = World::new()
                        .mode(mode_named(mode, log.position()))
                        .policy(policy);
                    world.state = state.map(|positions| checkpoint(9, positions));
                    log.apply(&mut world, mode);
                    let resolved = world.resolve();
                    let planned = of(&resolved, 0);
                    let open = planned.start_at.is_none();
                    let blocked = open && planned.reason != StartReason::NoLeader;
                    assert_eq!(!resolved.blockers.is_empty(), blocked, "{resolved:?}");
                    begins(&resolved, 0)
                };
                let row = format!("{mode} {log:?} {policy:?}");
                let by_mode = decided_by_mode(mode, log, policy);
                let with = [(0, Some(log.position()))];
                assert_eq!(case(None), by_mode, "{row}, no state");
                assert_eq!(case(Some(&[(0, None)])), by_mode, "{row}, pending");
                assert_eq!(case(Some(&[])), decided_as_new(log), "{row}, missing");
                let by_state = decided_by_state(log, policy);
                assert_eq!(case(Some(&with)), by_state, "{row}, stored");
            }
        }
    }
}

#[test]
fn a_group_without_an_offset_follows_its_own_policy() {
    for mode in ["group-offsets", "specific-offsets"] {
        for policy in POLICIES {
            let mut world = World::new().mode(json!({"mode": "group-offsets"}));
            if mode == "specific-offsets" {
                let offsets = json!({"orders": {"1": 120}});
                world = world
                    .partition(1)
                    .mode(json!({"mode": mode, "offsets": offsets}));
            }
            world.policies.on_missing_group_offset = policy;
            let expected = (by(policy), StartReason::GroupMissingUsedPolicy);
            assert_eq!(begins(&world.resolve(), 0), expected, "{mode} {policy:?}");
            if policy == Fail {
                choices_decide(&world, 2);
            }
            world.facts_of(0).group_offset = Offset::new(170);
            let reason = match mode {
                "group-offsets" => StartReason::StartupGroupOffset,
                _ => StartReason::SpecificMissingUsedGroup,
            };
            assert_eq!(begins(&world.resolve(), 0), (Some(170), reason));
        }
    }
}

#[test]
fn isolation_decides_where_the_end_is() {
    let mut world = World::new();
    assert_eq!(begins(&world.resolve(), 0).0, Some(190));
    world.isolation = Isolation::ReadUncommitted;
    assert_eq!(begins(&world.resolve(), 0).0, Some(200));
    // A position between the two ends is inside the log under both.
    let mut world = World::stored(&[(0, Some(195))]);
    let resolved = world.resolve();
    assert_eq!(begins(&resolved, 0), (Some(195), StartReason::Checkpoint));
    assert_eq!(numbers(&resolved, 0), (0, 0, 0, Some(0)));
    world = world.from(json!({"from": "latest"}));
    // 190 to 195 was read under another isolation and comes again.
    assert_eq!(numbers(&world.resolve(), 0), (5, 0, 0, Some(0)));
}

#[test]
fn ends_that_were_not_asked_for_in_one_instant_do_no_harm() {
    let mut world = World::new();
    world.facts_of(0).bounds = Some(bounds((100, 90, 90)));
    assert_eq!(begins(&world.resolve(), 0).0, Some(100));
    let mut world = World::new().mode(mode_named("timestamp", 0));
    world.facts_of(0).at_timestamp = Offset::new(201);
    let expected = (Some(190), StartReason::TimestampPastEnd);
    assert_eq!(begins(&world.resolve(), 0), expected);
}

#[test]
fn the_sink_and_the_store_agree_by_position_ids() {
    use StartReason::{Checkpoint, SinkProgress as Sink};
    // Stored: 150, decided by checkpoint 7.
    let rows = [
        ("absent", None, Some(150), Checkpoint, None),
        ("equal", Some((150, 7)), Some(150), Checkpoint, None),
        ("ahead", Some((160, 7)), Some(160), Sink, None),
        (
            "behind",
            Some((140, 7)),
            None,
            Sink,
            Some(Code::SinkBehindStore),
        ),
        ("older, behind", Some((140, 6)), Some(150), Checkpoint, None),
        ("older, ahead", Some((160, 6)), Some(150), Checkpoint, None),
        (
            "newer, behind",
            Some((140, 8)),
            None,
            Sink,
            Some(Code::StoreBehindSink),
        ),
        (
            "newer, equal",
            Some((150, 8)),
            None,
            Sink,
            Some(Code::StoreBehindSink),
        ),
        (
            "newer, ahead",
            Some((160, 8)),
            None,
            Sink,
            Some(Code::StoreBehindSink),
        ),
    ];
    for from in [
        json!({}),
        json!({"from": "checkpoint"}),
        json!({"from": "checkpoint", "checkpoint": 9}),
    ] {
        for (row, sink, start, reason, blocker) in rows {
            let mut world = World::stored(&[(0, Some(150))]).from(from.clone());
            if let Some((next_offset, position_id)) = sink {
                world = world.sink(next_offset, position_id);
            }
            let resolved = world.resolve();
            assert_eq!(begins(&resolved, 0), (start, reason), "{row}");
            assert_eq!(codes(&resolved), Vec::from_iter(blocker), "{row}");
            let decided_before = start.map(|_| CheckpointId(7));
            assert_eq!(of(&resolved, 0).position_id, decided_before, "{row}");
            if blocker.is_some() {
                choices_decide(&world, 1);
            } else {
                // What the sink holds beyond the checkpoint is neither unread nor passed over.
                let moved = numbers(&resolved, 0);
                assert_eq!((moved.0, moved.1, moved.2), (0, 0, 0), "{row}");
            }
        }
    }
}

#[test]
fn following_the_sink_begins_there_and_leaves_the_others_alone() {
    let world = World::stored(&[(0, Some(150)), (1, Some(155))])
        .partition(1)
        .sink(140, 7);
    let choice = &world.resolve().blockers[0].choices[0];
    let followed = world.choosing(choice).unwrap().resolve();
    let at_the_sink = (Some(140), StartReason::StartupSpecificOffset);
    assert_eq!(begins(&followed, 0), at_the_sink);
    assert_eq!(of(&followed, 0).position_id, None);
    assert_eq!(numbers(&followed, 0), (0, 0, 0, Some(50)));
    assert_eq!(begins(&followed, 1), (Some(155), StartReason::Checkpoint));
    // Staying with the store would pass over what the sink lacks: the number says so.
    let stayed = world.from(json!({"from": "specific-offsets", "offsets": {"orders": {"0": 150}}, "partitions": {"orders": [0]}}));
    assert_eq!(numbers(&stayed.resolve(), 0), (0, 10, 0, Some(40)));
}

#[test]
fn progress_of_a_partition_that_the_store_does_not_know() {
    use StartReason::{NewSinceCheckpoint, SinkProgress as Sink, StartupLatest};
    let blocked = Some(Code::StoreBehindSink);
    let rows: [(&str, Option<Positions<'_>>, i64, _, _, _); 5] = [
        ("no checkpoint at all", None, 3, None, Sink, blocked),
        (
            "newer than the checkpoint",
            Some(&[]),
            10,
            None,
            Sink,
            blocked,
        ),
        (
            "from an earlier subscription",
            Some(&[]),
            9,
            Some(100),
            NewSinceCheckpoint,
            None,
        ),
        (
            "while waiting for a leader",
            Some(&[(0, None)]),
            7,
            None,
            Sink,
            blocked,
        ),
        (
            "older than the wait",
            Some(&[(0, None)]),
            6,
            Some(190),
            StartupLatest,
            None,
        ),
    ];
    for (row, state, position_id, start, reason, blocker) in rows {
        let mut world = World::new().sink(160, position_id);
        world.state = state.map(|positions| checkpoint(9, positions));
        let resolved = world.resolve();
        assert_eq!(begins(&resolved, 0), (start, reason), "{row}");
        assert_eq!(codes(&resolved), Vec::from_iter(blocker), "{row}");
        if blocker.is_some() {
            choices_decide(&world, 1);
        }
    }
}

#[test]
fn a_sink_that_was_written_to_and_knows_nothing_has_lost_its_progress() {
    use StartReason::{Checkpoint, NewSinceCheckpoint, SinkProgress as Sink, StartupLatest};
    let lost = Some(Code::ProgressLost);
    let read: Positions<'_> = &[(0, Some(150))];
    // Stored: 150, decided by checkpoint 7; the newest checkpoint before which records had reached the sink.
    let rows: [(&str, Positions<'_>, Option<i64>, _, _, _); 6] = [
        ("never written to", read, None, Some(150), Checkpoint, None),
        (
            "not since the start",
            read,
            Some(6),
            Some(150),
            Checkpoint,
            None,
        ),
        (
            "not since the start's own checkpoint",
            read,
            Some(7),
            Some(150),
            Checkpoint,
            None,
        ),
        ("since the start", read, Some(8), None, Sink, lost),
        (
            "a new partition",
            &[],
            Some(8),
            Some(100),
            NewSinceCheckpoint,
            None,
        ),
        (
            "still without a leader",
            &[(0, None)],
            Some(8),
            Some(190),
            StartupLatest,
            None,
        ),
    ];
    for (row, positions, output, start, reason, blocker) in rows {
        let mut world = World::stored(positions);
        world.progress();
        if let Some(output) = output {
            world = world.output_before(output);
        }
        let resolved = world.resolve();
        assert_eq!(begins(&resolved, 0), (start, reason), "{row}");
        assert_eq!(codes(&resolved), Vec::from_iter(blocker), "{row}");
        // A sink that keeps none has none to lose, and one that does not answer is waited for.
        for progress in [
            ProgressFacts::NotKept,
            ProgressFacts::Unknown("away".to_owned()),
        ] {
            world.sink.progress = progress;
            assert_eq!(codes(&world.resolve()), [], "{row}");
        }
    }
}

#[test]
fn going_on_from_the_checkpoint_after_the_progress_was_lost() {
    let mut world = World::stored(&[(0, Some(150)), (1, Some(155))])
        .partition(1)
        .output_before(9);
    let other = SinkPosition {
        next_offset: offset(160),
        position_id: CheckpointId(7),
    };
    world.progress().insert(orders(1), other);
    let resolved = world.resolve();
    assert_eq!(resolved.blockers[0].partitions, [orders(0)]);
    choices_decide(&world, 1);
    let decided = world.choosing(&resolved.blockers[0].choices[0]).unwrap();
    let decided = decided.resolve();
    let here = (Some(150), StartReason::StartupSpecificOffset);
    assert_eq!(begins(&decided, 0), here);
    assert_eq!(of(&decided, 0).position_id, None, "decided anew");
    // The other partition's sink counts as ever.
    let there = (Some(160), StartReason::SinkProgress);
    assert_eq!(begins(&decided, 1), there);
    // What stands in the target behind the checkpoint is in no number, unless nothing is read that it might hold.
    let rows = [
        (json!({}), None),
        (resolved.blockers[0].choices[0].clone(), Some("orders/0")),
        (json!({"from": "earliest"}), Some("orders/0")),
        (json!({"from": "latest"}), None),
    ];
    for (body, named) in rows {
        let world = world.clone().from(body.clone());
        let named = named.map(ToOwned::to_owned);
        assert_eq!(
            uncounted(&world.inputs(), &world.resolve()),
            named,
            "{body}"
        );
    }
    let mut unread = world.clone().from(json!({"from": "earliest"}));
    unread.state.as_mut().unwrap().newest_output = None;
    assert_eq!(uncounted(&unread.inputs(), &unread.resolve()), None);
    unread.state.as_mut().unwrap().newest_output = Some(CheckpointId(9));
    unread.facts_of(0).topic_id = id("second");
    let held = unread
        .state
        .as_mut()
        .unwrap()
        .positions
        .get_mut(&orders(0))
        .unwrap();
    held.topic_id = id("first");
    assert_eq!(
        uncounted(&unread.inputs(), &unread.resolve()),
        None,
        "a new topic"
    );

    // A one-shot start, or an older checkpoint, is a decision already.
    world.chosen = Some(checkpoint(5, &[(0, Some(120))]));
    for body in [
        json!({"from": "earliest", "partitions": {"orders": [0]}}),
        json!({"from": "checkpoint", "checkpoint": 5, "partitions": {"orders": [0]}}),
    ] {
        let resolved = world.clone().from(body).resolve();
        assert_eq!(codes(&resolved), []);
        assert_eq!(of(&resolved, 0).position_id, None);
    }
    // Not one for the partitions that it leaves alone.
    let elsewhere = json!({"from": "earliest", "partitions": {"orders": [1]}});
    assert_eq!(
        codes(&world.from(elsewhere).resolve()),
        [Code::ProgressLost]
    );
}

#[test]
fn under_another_target_the_checkpoint_counts_and_every_position_is_decided_anew() {
    // What the new target holds from an earlier time: nothing, less, more, an older and a newer decision.
    for held in [
        None,
        Some((140, 7)),
        Some((160, 7)),
        Some((160, 3)),
        Some((160, 8)),
    ] {
        for body in [json!({}), json!({"from": "checkpoint"})] {
            let mut world = World::stored(&[(0, Some(150))]).output_before(9).from(body);
            world.progress();
            if let Some((next_offset, position_id)) = held {
                world = world.sink(next_offset, position_id);
            }
            world.state.as_mut().unwrap().sink_identity = "postgres:before".to_owned();
            let resolved = world.resolve();
            if held.is_some_and(|(next_offset, _)| next_offset > 150) {
                // The target is the same under another name, or was left for a while: nothing is written twice unasked.
                assert_eq!(codes(&resolved), [Code::SinkChanged], "{held:?}");
                let starts: Vec<i64> = resolved.blockers[0]
                    .choices
                    .iter()
                    .filter_map(|choice| choice["offsets"]["orders"]["0"].as_i64())
                    .collect();
                assert_eq!(starts, [160, 150]);
                // Counted from what the table holds: nothing is passed over by the first, and the second writes it again.
                let counted = [(0, 0, 0, Some(30)), (10, 0, 0, Some(40))];
                for (choice, counted) in resolved.blockers[0].choices.iter().zip(counted) {
                    let decided = world.clone().from(choice.clone()).resolve();
                    assert_eq!(codes(&decided), []);
                    assert_eq!(numbers(&decided, 0), counted, "{held:?}, {choice}");
                }
                continue;
            }
            let by_store = (Some(150), StartReason::Checkpoint);
            assert_eq!(begins(&resolved, 0), by_store, "{held:?}");
            assert_eq!(of(&resolved, 0).position_id, None, "{held:?}");
            assert_eq!(numbers(&resolved, 0), (0, 0, 0, Some(40)), "{held:?}");
            assert_eq!(codes(&resolved), [], "{held:?}");
            assert_eq!(warned(&resolved), [Code::SinkChanged], "{held:?}");
            assert!(!resolved.sets_state_aside());
            // Where nobody noted the target, it is taken for the same.
            world.state.as_mut().unwrap().sink_identity.clear();
            assert_eq!(warned(&world.resolve()), []);
        }
    }
    // Also without progress on either side: the records are in two places from now on.
    let mut world = World::stored(&[(0, Some(150))]);
    world.sink.identity = "log".to_owned();
    assert_eq!(warned(&world.resolve()), [Code::SinkChanged]);
    // A new partition, and one without a leader, do not count old progress either.
    for (positions, begin) in [
        (&[][..], (Some(100), StartReason::NewSinceCheckpoint)),
        (&[(0, None)][..], (Some(190), StartReason::StartupLatest)),
    ] {
        let mut world = World::stored(positions).sink(160, 11);
        world.state.as_mut().unwrap().sink_identity = "postgres:before".to_owned();
        let resolved = world.resolve();
        assert_eq!(begins(&resolved, 0), begin);
        assert_eq!(codes(&resolved), []);
    }
}

#[test]
fn a_sink_that_does_not_say_how_far_it_has_come() {
    let mut world = World::stored(&[(0, Some(150))]).output_before(9);
    world.sink.progress = ProgressFacts::Unknown("connection refused".to_owned());
    let resolved = world.resolve();
    assert_eq!(begins(&resolved, 0), (Some(150), StartReason::Checkpoint));
    assert_eq!(warned(&resolved), [Code::SinkProgressUnknown]);
    assert!(resolved.warnings[0].summary.contains("connection refused"));
    assert_eq!(resolved.sink.progress, ProgressKnown::Unknown);
    // One that refuses would refuse the start too.
    world.sink.progress = ProgressFacts::Refused {
        code: Code::SinkError,
        detail: "permission denied for table handover_progress".to_owned(),
    };
    let resolved = world.resolve();
    assert_eq!(codes(&resolved), [Code::SinkError]);
    assert!(resolved.blockers[0].summary.contains("permission denied"));
}

#[test]
fn a_plan_shows_where_the_sink_stands() {
    let shown = |world: World| of(&world.resolve(), 0).sink;
    let at = |next_offset, position_id| {
        Some(SinkPosition {
            next_offset: offset(next_offset),
            position_id: CheckpointId(position_id),
        })
    };
    assert_eq!(shown(World::stored(&[(0, Some(150))])), None);
    let world = World::stored(&[(0, Some(150))]).sink(160, 7);
    assert_eq!(shown(world.clone()), at(160, 7));
    assert_eq!(
        shown(world.clone().from(json!({"from": "earliest"}))),
        at(160, 7)
    );
    let mut elsewhere = world;
    elsewhere.sink.identity = "postgres:elsewhere".to_owned();
    assert_eq!(shown(elsewhere), None, "of another time");
}

#[test]
fn both_disagreements_with_the_sink_can_be_settled_one_after_the_other() {
    let mut world = World::stored(&[(0, Some(150)), (1, Some(150))])
        .partition(1)
        .sink(140, 7);
    let newer = SinkPosition {
        next_offset: offset(160),
        position_id: CheckpointId(8),
    };
    world.progress().insert(orders(1), newer);
    let first = world.resolve().blockers[0].choices[0].clone();
    let world = world.choosing(&first).unwrap();
    choices_decide(&world, 1);
}

#[test]
fn every_from_with_and_without_partitions() {
    use StartReason::*;
    let rows = [
        (json!({"from": "earliest"}), 100, StartupEarliest),
        (json!({"from": "latest"}), 190, StartupLatest),
        (
            json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z"}),
            130,
            StartupTimestamp,
        ),
        (
            json!({"from": "ago", "duration": "8s"}),
            130,
            StartupTimestamp,
        ),
        (
            json!({"from": "specific-offsets", "offsets": {"orders": {"0": 140}}}),
            140,
            StartupSpecificOffset,
        ),
        (json!({"from": "group-offsets"}), 170, StartupGroupOffset),
        (json!({"from": "shift", "by": -20}), 130, Shift),
    ];
    for (from, start, reason) in rows {
        for with_state in [true, false] {
            for narrowed in [true, false] {
                let row = format!("{from}, state {with_state}, narrowed {narrowed}");
                let mut world = World::new().partition(1).mode(json!({
                    "mode": "specific-offsets",
                    "offsets": {"orders": {"0": 150, "1": 150}},
                }));
                if with_state {
                    world.state = Some(checkpoint(9, &[(0, Some(150)), (1, Some(150))]));
                }
                for number in [0, 1] {
                    world.facts_of(number).group_offset = Offset::new(170);
                    world.facts_of(number).at_timestamp = Offset::new(130);
                }
                let mut body = from.clone();
                if narrowed {
                    body["partitions"] = json!({"orders": [0]});
                }
                let resolved = world.from(body).resolve();
                assert_eq!(codes(&resolved), [], "{row}");
                assert_eq!(begins(&resolved, 0), (Some(start), reason), "{row}");
                assert_eq!(of(&resolved, 0).position_id, None, "{row}");
                let other = match (narrowed, with_state) {
                    (true, true) => (Some(150), Checkpoint),
                    (true, false) => (Some(150), StartupSpecificOffset),
                    (false, _) if reason == StartupSpecificOffset => {
                        (Some(170), SpecificMissingUsedGroup)
                    }
                    (false, _) => (Some(start), reason),
                };
                assert_eq!(begins(&resolved, 1), other, "{row}");
                assert_eq!(resolved.basis, StartBasis::OneShot, "{row}");
                assert_eq!(resolved.sets_state_aside(), with_state, "{row}");
                let warnings = Vec::from_iter(with_state.then_some(Code::StateNotUsed));
                assert_eq!(warned(&resolved), warnings, "{row}");
            }
        }
    }
}

#[test]
fn an_instant_without_a_later_record_is_the_end() {
    for from in [
        json!({"from": "ago", "duration": "1s"}),
        json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z"}),
    ] {
        let resolved = World::stored(&[(0, Some(150))]).from(from).resolve();
        let end = (Some(190), StartReason::TimestampPastEnd);
        assert_eq!(begins(&resolved, 0), end);
        assert_eq!(numbers(&resolved, 0), (0, 40, 0, Some(0)));
    }
}

#[test]
fn the_checkpoint_asked_for() {
    let older = || {
        let mut world = World::stored(&[(0, Some(150)), (1, Some(160))]).partition(1);
        world.chosen = Some(checkpoint(5, &[(0, Some(120)), (1, Some(130))]));
        // A sink that went on since does not speak against the operator's choice.
        world.sink(150, 7)
    };
    let whole = older()
        .from(json!({"from": "checkpoint", "checkpoint": 5}))
        .resolve();
    assert_eq!(codes(&whole), []);
    assert_eq!(begins(&whole, 0), (Some(120), StartReason::Checkpoint));
    assert_eq!(begins(&whole, 1), (Some(130), StartReason::Checkpoint));
    assert_eq!(of(&whole, 0).position_id, None, "this start decides");
    assert_eq!(numbers(&whole, 0), (30, 0, 0, Some(70)));
    assert_eq!(
        (whole.basis, whole.checkpoint),
        (StartBasis::Checkpoint, Some(CheckpointId(5)))
    );
    assert_eq!(whole.set_aside, Some(CheckpointId(9)));
    assert_eq!(warned(&whole), [Code::StateNotUsed]);

    let part = older()
        .from(json!({"from": "checkpoint", "checkpoint": 5, "partitions": {"orders": [1]}}))
        .resolve();
    assert_eq!(begins(&part, 0), (Some(150), StartReason::Checkpoint));
    assert_eq!(of(&part, 0).position_id, Some(CheckpointId(7)), "copied");
    assert_eq!(begins(&part, 1), (Some(130), StartReason::Checkpoint));
    assert_eq!(of(&part, 1).position_id, None);

    // Outside of the part that is restored the sink counts as ever.
    let world = older()
        .sink(140, 7)
        .from(json!({"from": "checkpoint", "checkpoint": 5, "partitions": {"orders": [1]}}));
    assert_eq!(codes(&world.resolve()), [Code::SinkBehindStore]);

    for newest in [
        json!({"from": "checkpoint"}),
        json!({"from": "checkpoint", "checkpoint": 9}),
    ] {
        let resolved = older().from(newest).resolve();
        assert_eq!(begins(&resolved, 0), (Some(150), StartReason::Checkpoint));
        assert_eq!(
            of(&resolved, 0).position_id,
            Some(CheckpointId(7)),
            "copied"
        );
        assert!(!resolved.sets_state_aside());
        assert_eq!(warned(&resolved), []);
    }
}

#[test]
fn an_older_checkpoint_that_lacks_a_partition_replays_it_from_the_earliest() {
    for lacking in [
        checkpoint(5, &[(0, Some(120))]),
        checkpoint(5, &[(0, Some(120)), (1, None)]),
    ] {
        let mut world = World::stored(&[(0, Some(150)), (1, Some(160))]).partition(1);
        world.chosen = Some(lacking);
        world = world.from(json!({"from": "checkpoint", "checkpoint": 5}));
        let resolved = world.resolve();
        // Not the startup mode's `latest`, which would pass over what was written since.
        assert_eq!(
            begins(&resolved, 1),
            (Some(100), StartReason::NewSinceCheckpoint)
        );
        assert_eq!(numbers(&resolved, 1), (60, 0, 0, Some(90)));
        // Also where the broker is away, and whatever part is restored.
        world.facts.partitions.remove(&orders(1));
        assert_eq!(
            begins(&world.resolve(), 1),
            (Some(0), StartReason::NewSinceCheckpoint)
        );
        world.covered = serde_json::from_value(json!({"orders": [0]})).unwrap();
        assert_eq!(
            begins(&world.resolve(), 1),
            (Some(160), StartReason::Checkpoint)
        );
    }
    // Never positioned until now: still the startup mode's.
    let mut world = World::stored(&[(0, None)]);
    world.chosen = Some(checkpoint(5, &[(0, None)]));
    world = world.from(json!({"from": "checkpoint", "checkpoint": 5}));
    assert_eq!(
        begins(&world.resolve(), 0),
        (Some(190), StartReason::StartupLatest)
    );
}

#[test]
fn a_checkpoint_that_does_not_exist_is_not_replaced_silently() {
    let bodies = [
        json!({"from": "checkpoint"}),
        json!({"from": "checkpoint", "checkpoint": 5}),
        json!({"from": "checkpoint", "checkpoint": 5, "partitions": {"orders": [0]}}),
    ];
    for body in bodies {
        let world = World::new().from(body.clone());
        let resolved = world.resolve();
        assert_eq!(codes(&resolved), [Code::CheckpointNotFound], "{body}");
        assert_eq!(begins(&resolved, 0), (None, StartReason::Checkpoint));
        choices_decide(&world, 1);
    }
    // Nor by the newest one, nor by another one that the caller found.
    let mut world =
        World::stored(&[(0, Some(150))]).from(json!({"from": "checkpoint", "checkpoint": 5}));
    world.chosen = Some(checkpoint(4, &[(0, Some(120))]));
    assert_eq!(codes(&world.resolve()), [Code::CheckpointNotFound]);
    assert_eq!(begins(&world.resolve(), 0).0, None);
    choices_decide(&world, 1);
}

#[test]
fn a_shift_is_held_against_the_log() {
    use StartReason::{BelowEarliest, BeyondLatest, Shift};
    // Stored: 150 in a log of 100 to 200.
    for (by_offsets, inside, outside) in [
        (-50, Some(100), None),
        (50, Some(200), None),
        (0, Some(150), None),
        (-51, None, Some(BelowEarliest)),
        (-151, None, Some(BelowEarliest)),
        (51, None, Some(BeyondLatest)),
        (i64::MIN, None, Some(BelowEarliest)),
        (i64::MAX, None, Some(BeyondLatest)),
    ] {
        for policy in POLICIES {
            let world = World::stored(&[(0, Some(150))])
                .policy(policy)
                .from(json!({"from": "shift", "by": by_offsets}));
            let expected = match outside {
                None => (inside, Shift),
                Some(reason) => (by(policy), reason),
            };
            assert_eq!(begins(&world.resolve(), 0), expected, "{by_offsets}");
            if outside.is_some() && policy == Fail {
                choices_decide(&world, 2);
            }
        }
    }
}

#[test]
fn a_shift_below_zero_does_not_count_offsets_that_never_were() {
    let mut world = World::new()
        .policy(Earliest)
        .from(json!({"from": "shift", "by": -1000}));
    world.facts_of(0).bounds = Some(bounds((0, 90, 90)));
    let resolved = world.resolve();
    assert_eq!(begins(&resolved, 0), (Some(0), StartReason::BelowEarliest));
    assert_eq!(numbers(&resolved, 0), (0, 0, 0, Some(90)));
}

#[test]
fn a_shift_moves_what_auto_would_take() {
    for (world, start) in [
        (World::new(), 187),
        (World::new().mode(json!({"mode": "earliest"})), 97),
        (World::stored(&[]), 97),
        (World::stored(&[(0, Some(150))]).sink(160, 7), 157),
        (World::stored(&[(0, None)]), 187),
    ] {
        let mut world = world.from(json!({"from": "shift", "by": -3}));
        world.facts_of(0).bounds = Some(bounds((100, 190, 200)));
        world.policies.on_out_of_range = Earliest;
        assert_eq!(begins(&world.resolve(), 0).0, Some(start.max(100)));
    }
    let blocked = World::stored(&[(0, Some(150))])
        .sink(140, 7)
        .from(json!({"from": "shift", "by": -3}));
    assert_eq!(codes(&blocked.resolve()), [Code::SinkBehindStore]);
}

#[test]
fn the_numbers() {
    let specific =
        |number: i64| json!({"from": "specific-offsets", "offsets": {"orders": {"0": number}}});
    // Stored, from, policy -> replayed, skipped, lost, to read. The log holds 100 to 200, readable to 190.
    let rows = [
        (Some(150), json!({}), Fail, (0, 0, 0, Some(40))),
        (
            Some(150),
            json!({"from": "earliest"}),
            Fail,
            (50, 0, 0, Some(90)),
        ),
        (
            Some(150),
            json!({"from": "latest"}),
            Fail,
            (0, 40, 0, Some(0)),
        ),
        (Some(150), specific(130), Fail, (20, 0, 0, Some(60))),
        (Some(150), specific(170), Fail, (0, 20, 0, Some(20))),
        (Some(40), json!({}), Fail, (0, 0, 60, None)),
        (Some(40), json!({}), Earliest, (0, 0, 60, Some(90))),
        (Some(40), json!({}), Latest, (0, 90, 60, Some(0))),
        (Some(40), specific(150), Fail, (0, 50, 60, Some(40))),
        // Asked for and gone, but read before.
        (Some(150), specific(40), Earliest, (50, 0, 0, Some(90))),
        (Some(250), json!({}), Fail, (0, 0, 0, None)),
        (Some(250), json!({}), Earliest, (100, 0, 0, Some(90))),
        (Some(250), json!({}), Latest, (10, 0, 0, Some(0))),
    ];
    for (stored, from, policy, expected) in rows {
        let world = World::stored(&[(0, stored)])
            .policy(policy)
            .from(from.clone());
        let resolved = world.resolve();
        assert_eq!(
            numbers(&resolved, 0),
            expected,
            "{stored:?} {from} {policy:?}"
        );
        let totals = resolved.totals;
        assert_eq!(
            (totals.replayed, totals.skipped, totals.lost),
            (expected.0, expected.1, expected.2)
        );
        assert_eq!(totals.to_read, expected.3.unwrap_or(0));
        assert_eq!(
            totals.undecided_partitions,
            usize::from(expected.3.is_none())
        );
    }
}

#[test]
fn the_numbers_where_the_checkpoint_has_no_position() {
    let latest = json!({"from": "latest"});
    // Appeared after the checkpoint: all of it is unread.
    assert_eq!(
        numbers(&World::stored(&[]).resolve(), 0),
        (0, 0, 0, Some(90))
    );
    let new = World::stored(&[]).from(latest.clone());
    assert_eq!(numbers(&new.resolve(), 0), (0, 90, 0, Some(0)));
    // Of a deleted topic: the same, and the stored number says nothing.
    for (policy, expected) in [
        (Earliest, (0, 0, 0, Some(90))),
        (Latest, (0, 90, 0, Some(0))),
    ] {
        let mut world = World::stored(&[(0, Some(5000))]).policy(policy);
        world.facts_of(0).topic_id = id("second");
        assert_eq!(numbers(&world.resolve(), 0), expected);
    }
    // Without a checkpoint, or while it waits for its first position, nothing was promised.
    for state in [None, Some(checkpoint(9, &[(0, None)]))] {
        let mut world = World::new().from(latest.clone());
        world.state = state;
        assert_eq!(numbers(&world.resolve(), 0), (0, 0, 0, Some(0)));
    }
}

#[test]
fn what_was_asked_for_and_is_gone_is_lost_also_without_a_checkpoint() {
    for mode in ["group-offsets", "specific-offsets"] {
        for (policy, skipped, to_read) in [
            (Fail, 0, None),
            (Earliest, 0, Some(90)),
            (Latest, 90, Some(0)),
        ] {
            let mut world = World::new().mode(mode_named(mode, 40)).policy(policy);
            // With the mode `specific-offsets` the group's offset is not what counts.
            world.facts_of(0).group_offset =
                Offset::new(if mode == "group-offsets" { 40 } else { 20 });
            let resolved = world.resolve();
            assert_eq!(numbers(&resolved, 0), (0, skipped, 60, to_read), "{mode}");
            let outside = of(&resolved, 0).outside.expect("a range");
            assert_eq!((outside.from.get(), outside.to.get()), (40, 100));
        }
    }
}

#[test]
fn names_that_do_not_exist_are_refused() {
    let state = || World::stored(&[(0, Some(150))]);
    let unknown = json!({"orders": {"0": 150, "8": 1}, "payments": {"0": 3}});
    let specific = json!({"from": "specific-offsets", "offsets": unknown.clone()});
    let mode = json!({"mode": "specific-offsets", "offsets": unknown});
    let all = [
        TopicPartition::new("orders", 8),
        TopicPartition::new("payments", 0),
    ];
    for world in [
        state().from(specific),
        World::new().mode(mode.clone()),
        World::new()
            .mode(mode.clone())
            .from(json!({"from": "shift", "by": 1})),
        state().from(json!({"from": "latest", "partitions": {"orders": [0, 8], "payments": [0]}})),
    ] {
        let resolved = world.resolve();
        assert_eq!(codes(&resolved), [Code::UnknownPartition]);
        assert_eq!(resolved.blockers[0].partitions, all);
        assert!(resolved.blockers[0].choices.is_empty());
    }
    // A mode that does not count is not checked: the job must go on.
    let unused = [
        state().mode(mode.clone()),
        World::new()
            .mode(mode.clone())
            .from(json!({"from": "earliest"})),
        World::new()
            .mode(mode)
            .from(json!({"from": "earliest", "partitions": {"orders": [0]}})),
    ];
    for world in unused {
        assert_eq!(codes(&world.resolve()), []);
    }
}

#[test]
fn topics_that_do_not_exist_are_refused() {
    let mut world = World::stored(&[(0, Some(150))]);
    world.facts.missing_topics = vec!["payments".to_owned(), "refunds".to_owned()];
    let payments = TopicPartition::new("payments", 0);
    let mut position = world.state.as_ref().unwrap().positions[&orders(0)].clone();
    position.next_offset = None;
    world
        .state
        .as_mut()
        .unwrap()
        .positions
        .insert(payments.clone(), position);
    let resolved = world.resolve();
    assert_eq!(codes(&resolved), [Code::UnknownTopic]);
    let text = &resolved.blockers[0].summary;
    assert!(
        text.contains("payments") && text.contains("refunds"),
        "{text}"
    );
    // The spec does read it, so it is not shown as dropped by the spec.
    let gone = &resolved.partitions[1];
    assert_eq!(gone.topic_partition(), payments);
    assert_eq!(
        (gone.start_at, gone.reason),
        (None, StartReason::PartitionGone)
    );
    assert!(!gone.is_read());
}

#[test]
fn a_partition_that_the_brokers_do_not_report_keeps_its_position() {
    let world = World::stored(&[(0, Some(150)), (1, Some(160)), (2, None)]);
    let resolved = world.resolve();
    assert_eq!(codes(&resolved), []);
    assert_eq!(begins(&resolved, 1), (Some(160), StartReason::Checkpoint));
    assert_eq!(of(&resolved, 1).position_id, Some(CheckpointId(7)));
    assert_eq!(
        of(&resolved, 1).topic_id,
        id("first"),
        "a recreation must still be seen later"
    );
    assert_eq!(begins(&resolved, 2), (None, StartReason::NoLeader));
    assert_eq!(warned(&resolved), [Code::NoLeader]);
    assert_eq!(resolved.totals.undecided_partitions, 1);
    // It may be named, as one that exists.
    let moved = json!({"from": "specific-offsets", "offsets": {"orders": {"1": 5}}, "partitions": {"orders": [1]}});
    assert_eq!(codes(&world.from(moved).resolve()), []);
}

#[test]
fn a_partition_that_the_recreated_topic_lacks_is_not_assigned() {
    let world = |policy| {
        let mut world = World::stored(&[(0, Some(150)), (1, Some(160)), (2, None)]).policy(policy);
        world.facts_of(0).topic_id = id("second");
        world
    };
    let blocked = world(Fail);
    let resolved = blocked.resolve();
    assert_eq!(codes(&resolved), [Code::TopicRecreated]);
    assert_eq!(resolved.blockers[0].partitions, [orders(0)]);
    choices_decide(&blocked, 2);
    for policy in [Earliest, Latest] {
        let resolved = world(policy).resolve();
        assert_eq!(
            begins(&resolved, 0),
            (by(policy), StartReason::TopicRecreated)
        );
        for number in [1, 2] {
            assert_eq!(
                begins(&resolved, number),
                (None, StartReason::PartitionGone)
            );
        }
        assert_eq!(resolved.read_partitions().count(), 1);
        assert_eq!(resolved.totals.undecided_partitions, 0);
        assert_eq!(
            resolved.totals.parked_partitions, 1,
            "the one with a position"
        );
        let said = "; orders/1 is not there and waits, parked";
        assert!(resolved.summary.contains(said), "{}", resolved.summary);
        assert_eq!(warned(&resolved), [Code::TopicRecreated]);
        // Should the topic ever have it, its id still tells that the position belonged to another one.
        let kept = &resolved.positions(CheckpointId(10))[&orders(1)];
        assert_eq!(
            (kept.next_offset, &kept.topic_id),
            (Some(offset(160)), &id("first"))
        );
    }
    // Nothing brings it back by itself, so it can be dropped, and nothing of the partitions that are there with it.
    let mut forgetting = world(Earliest);
    forgetting.policies.forget_gone = true;
    let dropped = forgetting.resolve();
    assert_eq!(codes(&dropped), []);
    assert_eq!(begins(&dropped, 1), (None, StartReason::PartitionGone));
    let positions = dropped.positions(CheckpointId(10));
    assert_eq!(Vec::from_iter(positions.keys().cloned()), [orders(0)]);
    assert_eq!(warned(&dropped), [Code::PartitionGone]);
    let said = &dropped.warnings[0].summary;
    assert!(
        said.contains("orders/1") && said.contains("dropped"),
        "{said}"
    );
    assert!(!said.contains("orders/2"), "it had none: {said}");
    // A one-shot start needs no policy, and cannot name it.
    let moved = world(Fail).from(json!({"from": "earliest"})).resolve();
    assert_eq!(codes(&moved), []);
    let named = world(Fail).from(json!({"from": "earliest", "partitions": {"orders": [0, 1]}}));
    assert_eq!(codes(&named.resolve()), [Code::UnknownPartition]);
}

/// A partition that was parked before, as the job shows it.
fn parked_before(number: i32) -> ParkedPartition {
    ParkedPartition {
        topic: "orders".to_owned(),
        partition: number,
        offset: None,
        code: Code::OffsetOutOfRange,
        phase: None,
        detail: String::new(),
        record: None,
        lost: None,
        since: chrono::DateTime::UNIX_EPOCH,
    }
}

/// Position 40 lies before the log, 300 behind it, and the position of another topic means nothing at all.
#[test]
fn what_a_policy_of_fail_says_of_one_partition_parks_it_where_it_may_and_the_others_begin() {
    for (position, topic, reason, code) in [
        (
            40,
            "first",
            StartReason::BelowEarliest,
            Code::OffsetOutOfRange,
        ),
        (
            300,
            "first",
            StartReason::BeyondLatest,
            Code::OffsetOutOfRange,
        ),
        (
            150,
            "second",
            StartReason::TopicRecreated,
            Code::TopicRecreated,
        ),
    ] {
        let world = || {
            let mut world = World::stored(&[(0, Some(position)), (1, Some(160))]).partition(1);
            world.facts_of(0).topic_id = id(topic);
            world.facts_of(1).topic_id = id(topic);
            let positions = &mut world.state.as_mut().unwrap().positions;
            positions.get_mut(&orders(1)).unwrap().topic_id = id(topic);
            world
        };
        let named = [code];
        // An operator is asked.
        assert_eq!(codes(&world().resolve()), named);

        // Nobody is there to be asked, or it was parked before.
        let mut automatic = world();
        automatic.parks_others = true;
        let mut again = world();
        again.parked_before = vec![parked_before(0)];
        for (world, is_again) in [(automatic, false), (again, true)] {
            let resolved = world.resolve();
            assert_eq!(codes(&resolved), []);
            assert_eq!(begins(&resolved, 0), (None, reason));
            assert!(begins(&resolved, 1).0.is_some());
            let parked = resolved.parked();
            let parking = &parked[&orders(0)];
            assert_eq!((parking.code, parking.again), (code, is_again));
            assert_eq!(resolved.totals.parked_partitions, 1);
            assert_eq!(resolved.totals.undecided_partitions, 0);
            assert_eq!(warned(&resolved), named);
            assert!(
                resolved.summary.ends_with("; 1 partition stays parked"),
                "{}",
                resolved.summary
            );
            // The position, its decision and its topic stay as they are: the next start comes to the same.
            let before = world.state.as_ref().unwrap().positions[&orders(0)].clone();
            assert_eq!(resolved.positions(CheckpointId(10))[&orders(0)], before);
        }

        // What this start itself says of the partition counts, and a policy decides it.
        let mut moved = world().from(json!({"from": "latest"}));
        moved.parks_others = true;
        assert_eq!(moved.resolve().totals.parked_partitions, 0);
        let mut decided = world().policy(Earliest);
        decided.parks_others = true;
        assert_eq!(begins(&decided.resolve(), 0).0, Some(100));
        // One that was parked before is no licence for others.
        let mut other = world();
        other.parked_before = vec![parked_before(1)];
        assert_eq!(codes(&other.resolve()), named);
    }
}

/// The sink is further than the checkpoint: that is where the partition stands.
#[test]
fn a_partition_is_parked_where_its_sink_stands() {
    let mut outside = World::stored(&[(0, Some(30))]).sink(40, 7);
    outside.parks_others = true;
    let mut recreated = World::stored(&[(0, Some(130))]).sink(140, 7);
    recreated.parks_others = true;
    recreated.facts_of(0).topic_id = id("second");
    for (world, stands) in [(outside, 40), (recreated, 140)] {
        let resolved = world.resolve();
        assert_eq!(codes(&resolved), []);
        let position = &resolved.positions(CheckpointId(10))[&orders(0)];
        assert_eq!(
            (position.next_offset, position.position_id),
            (Some(offset(stands)), CheckpointId(7))
        );
    }
}

#[test]
fn a_spec_that_stops_the_job_parks_nothing() {
    let before = [parked_before(0)];
    for is_automatic in [false, true] {
        let parking = Parking::of(Block::Job, &before, is_automatic);
        assert_eq!(parking, Parking::default());
        let parking = Parking::of(Block::Partition, &before, is_automatic);
        assert_eq!(parking.allows(&orders(0)), Some(true));
        assert_eq!(parking.allows(&orders(1)), is_automatic.then_some(false));
    }
}

#[test]
fn partitions_that_are_not_subscribed_now_are_shown_and_kept() {
    let mut world = World::stored(&[(0, Some(150))]);
    world.facts.partitions = BTreeMap::from([(TopicPartition::new("payments", 0), facts())]);
    for from in [
        json!({}),
        json!({"from": "latest"}),
        json!({"from": "shift", "by": 9}),
    ] {
        let resolved = world.clone().from(from.clone()).resolve();
        assert_eq!(begins(&resolved, 0), (None, StartReason::Detached));
        assert_eq!(numbers(&resolved, 0), (0, 0, 0, None));
        assert!(!of(&resolved, 0).is_read());
        assert_eq!(stored_of(&resolved), [(orders(0), Some(150), 7)]);
        assert_eq!(resolved.totals.undecided_partitions, 0);
        let lonely = warned(&resolved).contains(&Code::CheckpointHasNoSubscribedPartition);
        assert_eq!(lonely, from == json!({}));
    }
}

/// What the checkpoint of the start holds of partitions that the start does not read.
fn stored_of(resolved: &ResolvedStart) -> Vec<(TopicPartition, Option<i64>, i64)> {
    let positions = resolved.positions(CheckpointId(10));
    let read: Vec<TopicPartition> = resolved
        .read_partitions()
        .map(PlannedPartition::topic_partition)
        .collect();
    positions
        .into_iter()
        .filter(|(partition, _)| !read.contains(partition))
        .map(|(partition, position)| {
            let next_offset = position.next_offset.map(Offset::get);
            (partition, next_offset, position.position_id.0)
        })
        .collect()
}

/// FLINK-39837: a cluster that was taken out of a job and put back began anew. The same for a topic.
#[test]
fn a_topic_that_is_read_again_goes_on_where_it_was_left() {
    let payments = TopicPartition::new("payments", 0);
    let mut without = World::stored(&[(0, Some(150))]);
    without.facts.partitions = BTreeMap::from([(payments.clone(), facts())]);
    let mut again = without.clone();
    for id in 10..13 {
        // Whoever takes the topic out may start the job as often as he likes.
        again.state = Some(RestorableState {
            positions: again.resolve().positions(CheckpointId(id)),
            ..checkpoint(id, &[])
        });
    }
    again.facts.partitions.insert(orders(0), facts());
    let resolved = again.resolve();
    assert_eq!(codes(&resolved), []);
    assert_eq!(begins(&resolved, 0), (Some(150), StartReason::Checkpoint));
    assert_eq!(of(&resolved, 0).position_id, Some(CheckpointId(7)));
    // Created again meanwhile.
    again.facts_of(0).topic_id = id("second");
    assert_eq!(codes(&again.resolve()), [Code::TopicRecreated]);
    // A position that was never decided is nothing to keep.
    let mut waiting = World::stored(&[(0, None)]);
    waiting.facts.partitions = without.facts.partitions;
    assert_eq!(stored_of(&waiting.resolve()), []);
}

#[test]
fn a_topic_that_was_read_and_is_deleted_does_not_stand_against_the_start() {
    let payments = TopicPartition::new("payments", 0);
    let mut world = World::stored(&[(0, Some(150))]);
    world.facts.partitions = BTreeMap::from([(payments, facts())]);
    world.facts.missing_topics = vec!["orders".to_owned()];
    let resolved = world.resolve();
    assert_eq!(codes(&resolved), []);
    assert_eq!(begins(&resolved, 0), (None, StartReason::PartitionGone));
    assert_eq!(stored_of(&resolved), [(orders(0), Some(150), 7)]);
    assert!(warned(&resolved).contains(&Code::PartitionGone));
    // What the sink has taken since the checkpoint it does not give back, and it would refuse to be told so.
    let stored_with = |next_offset, position_id| {
        let world = world.clone().sink(next_offset, position_id);
        stored_of(&world.resolve())
    };
    assert_eq!(stored_with(160, 7), [(orders(0), Some(160), 7)]);
    assert_eq!(stored_with(160, 6), [(orders(0), Some(150), 7)]);
    // Whether it comes back as the same topic shows when it does.
    world.facts.partitions.insert(orders(0), facts());
    world.facts.missing_topics.clear();
    assert_eq!(begins(&world.resolve(), 0).0, Some(150));
    world.facts_of(0).topic_id = id("second");
    assert_eq!(codes(&world.resolve()), [Code::TopicRecreated]);
}

#[test]
fn a_pattern_that_matches_nothing_is_no_obstacle() {
    let mut world = World::new();
    world.facts.partitions.clear();
    let resolved = world.resolve();
    assert_eq!((codes(&resolved), resolved.partitions.len()), (vec![], 0));
    // What appears later begins at its first record: the job has state now.
    world.state = Some(checkpoint(9, &[]));
    world.facts.partitions.insert(orders(0), facts());
    assert_eq!(
        begins(&world.resolve(), 0),
        (Some(100), StartReason::NewSinceCheckpoint)
    );
}

#[test]
fn a_checkpoint_without_any_topic_read_now_is_pointed_out() {
    let expected = [Code::CheckpointHasNoSubscribedPartition];
    assert_eq!(warned(&World::stored(&[]).resolve()), expected);
    // Also when the new partition has no leader.
    assert!(warned(&World::stored(&[]).leaderless(0).resolve()).starts_with(&expected));
    assert_eq!(warned(&World::stored(&[(0, None)]).resolve()), []);
    assert_eq!(warned(&World::new().resolve()), []);
}

#[test]
fn a_one_shot_start_is_not_forgotten_for_a_partition_without_a_leader() {
    let bodies = [
        json!({"from": "earliest"}),
        json!({"from": "latest"}),
        json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z"}),
        json!({"from": "ago", "duration": "1s"}),
        json!({"from": "shift", "by": -500}),
    ];
    for body in bodies {
        // Left open, the startup mode would decide later: `latest`, where `earliest` was asked for.
        let mut world = World::stored(&[(0, Some(150)), (1, Some(160))])
            .partition(1)
            .leaderless(1);
        world.policies.on_out_of_range = Earliest;
        let world = world.from(body.clone());
        let resolved = world.resolve();
        assert_eq!(codes(&resolved), [Code::NoLeader], "{body}");
        assert_eq!(resolved.blockers[0].partitions, [orders(1)]);
        assert_eq!(
            resolved.blockers[0].choices,
            [json!({"partitions": {"orders": [0]}})]
        );
        choices_decide(&world, 1);
        let kept = world
            .choosing(&resolved.blockers[0].choices[0])
            .unwrap()
            .resolve();
        assert_eq!(begins(&kept, 1), (Some(160), StartReason::Checkpoint));
    }
    // What is a number needs no leader.
    let numbered = [
        (json!({"from": "shift", "by": -5}), Some(155)),
        (
            json!({"from": "specific-offsets", "offsets": {"orders": {"0": 120, "1": 155}}}),
            Some(155),
        ),
    ];
    for (body, start) in numbered {
        let world = World::stored(&[(0, Some(150)), (1, Some(160))])
            .partition(1)
            .leaderless(1);
        let resolved = world.from(body).resolve();
        assert_eq!(codes(&resolved), []);
        assert_eq!(begins(&resolved, 1).0, start);
    }
}

#[test]
fn a_recreated_topic_without_a_leader() {
    let world = |policy| {
        let mut world = World::stored(&[(0, Some(150))])
            .policy(policy)
            .leaderless(0);
        world.facts_of(0).topic_id = id("second");
        world
    };
    assert_eq!(
        begins(&world(Earliest).resolve(), 0),
        (Some(0), StartReason::TopicRecreated)
    );
    // Its end is not known, and the startup mode must not decide instead later on.
    let resolved = world(Latest).resolve();
    assert_eq!(begins(&resolved, 0), (None, StartReason::TopicRecreated));
    choices_decide(&world(Latest), 1);
    // So `latest` is not offered either, not even for the partitions beside it.
    let mut both = world(Fail).partition(1);
    both.facts_of(1).topic_id = id("second");
    both.state = Some(checkpoint(9, &[(0, Some(150)), (1, Some(150))]));
    choices_decide(&both, 1);
}

#[test]
fn only_offsets_that_were_there_are_gone() {
    for (by, gone) in [
        (-5_150, "100 offsets are gone"),
        (-51, "1 offset is gone"),
        (-70, "20 offsets are gone"),
    ] {
        let world = World::stored(&[(0, Some(150))]).from(json!({"from": "shift", "by": by}));
        let summary = world.resolve().blockers[0].summary.clone();
        assert!(summary.ends_with(gone), "{summary}");
    }
    let mut world = World::stored(&[(0, Some(150))]).from(json!({"from": "shift", "by": -5_150}));
    world.facts_of(0).bounds.as_mut().unwrap().earliest = Offset::ZERO;
    assert_eq!(
        world.resolve().blockers[0].summary,
        "orders/0: the position is -5000, the log starts at 0: nothing is gone, for offsets begin at 0"
    );
}

#[test]
fn blockers_are_grouped_by_code() {
    let mut world = World::new();
    world.mode = serde_json::from_value(json!({"mode": "group-offsets"})).unwrap();
    for number in 0..40 {
        world = world.partition(number);
        world.facts_of(number).group_offset = (number % 2 == 0).then(|| offset(40));
    }
    let resolved = world.resolve();
    assert_eq!(
        codes(&resolved),
        [Code::OffsetOutOfRange, Code::GroupMissing]
    );
    for blocker in &resolved.blockers {
        assert_eq!(blocker.partitions.len(), 20);
        assert!(
            blocker.summary.len() < 600 && blocker.summary.ends_with("and more"),
            "{}",
            blocker.summary
        );
    }
    assert_eq!(
        resolved.blockers[0].choices,
        [
            json!({"on_out_of_range": "earliest"}),
            json!({"on_out_of_range": "latest"})
        ]
    );
    assert!(
        resolved.blockers[0].summary.starts_with(
            "orders/0: the position is 40, the log starts at 100: 60 offsets are gone"
        ),
        "{}",
        resolved.blockers[0].summary
    );
}

#[test]
fn the_basis_and_its_sentence() {
    let stored = || World::stored(&[(0, Some(150))]);
    let rows = [
        (
            World::new(),
            StartBasis::StartupMode,
            "no checkpoint: begin by the startup mode (latest)",
        ),
        (
            stored(),
            StartBasis::Checkpoint,
            "resume from checkpoint 9; the startup mode (latest) is not used",
        ),
        (
            stored().from(json!({"from": "earliest"})),
            StartBasis::OneShot,
            "begin from earliest, once; set aside is checkpoint 9; 50 offsets replayed",
        ),
        (
            stored().from(json!({"from": "latest", "partitions": {"orders": [0]}})),
            StartBasis::OneShot,
            "begin from latest on the partitions named, once; the others resume from checkpoint 9; 40 offsets skipped",
        ),
        (
            World::new().from(json!({"from": "earliest"})),
            StartBasis::OneShot,
            "begin from earliest, once",
        ),
        (
            World::new().from(json!({"from": "checkpoint"})),
            StartBasis::Checkpoint,
            "the checkpoint asked for does not exist",
        ),
    ];
    for (world, basis, text) in rows {
        let resolved = world.resolve();
        assert_eq!((resolved.basis, resolved.summary.as_str()), (basis, text));
    }
}

#[test]
fn the_sentence_says_which_partitions_do_not_resume() {
    let mut world = World::stored(&[
        (0, Some(150)),
        (1, Some(50)),
        (2, Some(900)),
        (3, Some(160)),
    ])
    .policy(Earliest);
    for number in 0..5 {
        world = world.partition(number);
    }
    world.facts_of(0).topic_id = id("second");
    let resolved = world.resolve();
    assert_eq!(
        resolved.summary,
        "resume from checkpoint 9; the startup mode (latest) is not used; orders/0 begins anew: its topic was created again; orders/1 does not resume: its log begins behind the position; orders/2 does not resume: its log ends before the position; orders/4 begins at its first record: it is not in the checkpoint; 100 offsets replayed; 50 offsets lost",
    );
    assert_eq!(resolved.told(), resolved.summary);
    // What stands against a start comes first, and what it would do is no promise.
    let refused = world.policy(Fail).resolve();
    assert_eq!(codes(&refused).len(), 2);
    let told = refused.told();
    let first = &refused.blockers[0].summary;
    assert!(
        told.starts_with(&format!("a start is refused: {first} (and 1 other blocker); without that it would resume from checkpoint 9; ")),
        "{told}"
    );
    let told = World::new()
        .from(json!({"from": "checkpoint"}))
        .resolve()
        .told();
    assert!(
        told.starts_with("a start is refused: ") && !told.contains("would"),
        "{told}"
    );
}

#[test]
fn positions_of_what_is_gone_are_dropped_only_when_asked() {
    let mut world = World::stored(&[(0, Some(150))]);
    world.facts.partitions.clear();
    world.facts.missing_topics = vec!["orders".to_owned()];
    let kept = world.resolve();
    assert_eq!(
        kept.positions(CheckpointId(10))[&orders(0)].next_offset,
        Some(offset(150))
    );
    world.policies.forget_gone = true;
    let dropped = world.resolve();
    assert!(!dropped.summary.contains("nothing is forgotten"));
    assert_eq!(begins(&dropped, 0), (None, StartReason::PartitionGone));
    assert!(dropped.positions(CheckpointId(10)).is_empty());
    assert_eq!(dropped.totals.parked_partitions, 0);
    let said = "; dropped: what is stored of orders/0";
    assert!(dropped.summary.contains(said), "{}", dropped.summary);
    let forgotten = ForgottenPosition {
        topic: "orders".to_owned(),
        partition: 0,
        next_offset: Some(offset(150)),
    };
    assert_eq!(dropped.forgotten, [forgotten]);
    // The next start would not know that the topic was ever there: its name has to go as well.
    assert_eq!(codes(&dropped), [Code::UnknownTopic]);
    world.facts.by_pattern = true;
    assert_eq!(codes(&world.resolve()), []);
    assert!(
        dropped.warnings[0].summary.contains("are dropped"),
        "{:?}",
        dropped.warnings
    );
}

/// What was meant for something that is there changes nothing, and whoever asked for it is told so.
#[test]
fn forgetting_where_nothing_is_gone_is_said_to_change_nothing() {
    let mut world = World::stored(&[(0, Some(150)), (1, Some(160))])
        .partition(0)
        .partition(1);
    let plain = world.resolve();
    world.policies.forget_gone = true;
    let resolved = world.resolve();
    let id = CheckpointId(10);
    assert_eq!(resolved.positions(id), plain.positions(id));
    assert_eq!(warned(&resolved), [Code::PartitionGone]);
    for said in [&resolved.summary, &resolved.warnings[0].summary] {
        assert!(said.contains("nothing is forgotten"), "{said}");
    }
}

#[test]
fn facts_are_asked_for_where_they_count_and_only_there() {
    let group = || World::new().mode(json!({"mode": "group-offsets"}));
    let instant = || World::new().mode(mode_named("timestamp", 0));
    let with = |mut world: World, positions: Positions<'_>| {
        world.state = Some(checkpoint(9, positions));
        world
    };
    let timestamp = json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z"});
    let narrowed = json!({"from": "timestamp", "timestamp": "1970-01-01T00:00:02Z", "partitions": {"orders": [0]}});
    let read = [(0, Some(150))];
    let rows: Vec<(World, bool, Instants<'_>)> = vec![
        (group(), true, &[]),
        // The coordinator may be away: the checkpoint decides alone.
        (with(group(), &read), false, &[]),
        (with(group(), &[]), false, &[]),
        (with(group(), &[(0, None)]), true, &[]),
        (
            with(group(), &[(0, None)]).from(json!({"from": "earliest"})),
            false,
            &[],
        ),
        (
            with(group(), &[(1, None)]).from(narrowed.clone()),
            true,
            &[(2000, &[0])],
        ),
        (group().from(timestamp.clone()), false, &[(2000, &[0, 1])]),
        (group().from(narrowed.clone()), true, &[(2000, &[0])]),
        (instant(), false, &[(5000, &[0, 1])]),
        (with(instant(), &read), false, &[]),
        (
            instant().from(json!({"from": "shift", "by": 1})),
            false,
            &[(5000, &[0, 1])],
        ),
        (instant().from(json!({"from": "group-offsets"})), true, &[]),
        // Two instants in one start.
        (
            instant().from(narrowed),
            false,
            &[(2000, &[0]), (5000, &[1])],
        ),
        (
            with(instant(), &read).from(json!({"from": "ago", "duration": "8s"})),
            false,
            &[(2000, &[0, 1])],
        ),
        (
            World::new().from(json!({"from": "ago", "duration": "9s"})),
            false,
            &[(1000, &[0, 1])],
        ),
        (
            World::new().from(json!({"from": "ago", "duration": "9000d"})),
            false,
            &[(0, &[0, 1])],
        ),
        (
            with(World::new(), &read)
                .from(json!({"from": "specific-offsets", "offsets": {"orders": {"0": 1}}})),
            true,
            &[],
        ),
    ];
    for (row, (world, group_offsets, instants)) in rows.iter().enumerate() {
        let inputs = world.inputs();
        let needed = needed_facts(&inputs, 10_000);
        assert_eq!(needed.group_offsets, *group_offsets, "row {row}: {world:?}");
        let expected: BTreeMap<i64, Vec<TopicPartition>> = instants
            .iter()
            .map(|(instant, numbers)| (*instant, numbers.iter().copied().map(orders).collect()))
            .collect();
        assert_eq!(
            needed.instants(&[orders(0), orders(1)]),
            expected,
            "row {row}: {world:?}"
        );
    }
}
