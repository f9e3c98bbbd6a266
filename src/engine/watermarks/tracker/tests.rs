use proptest::prelude::*;

use super::*;
use crate::model::{
    duration::HumanDuration,
    watermark::{TimestampSource, WatermarkAlignment, WatermarkStrategy},
};

fn spec(delay_ms: u64, idle_s: Option<u64>, drift_s: Option<u64>) -> WatermarkSpec {
    WatermarkSpec {
        strategy: WatermarkStrategy::BoundedOutOfOrderness,
        max_delay: Some(HumanDuration(Duration::from_millis(delay_ms))),
        idle_after: idle_s.map(HumanDuration::from_secs),
        timestamp: TimestampSource::Record,
        alignment: drift_s.map(|drift| WatermarkAlignment {
            max_drift: HumanDuration::from_secs(drift),
        }),
    }
}

fn name(number: i32) -> TopicPartition {
    TopicPartition::new("orders", number)
}

fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

/// A job under a clock that the test moves, and the brokers' logs.
struct Bench {
    watermarks: Watermarks,
    now: Instant,
    subtasks: Vec<SubtaskSeen>,
    partitions: BTreeMap<TopicPartition, PartitionSeen>,
    ends: BTreeMap<TopicPartition, Offset>,
}

impl Bench {
    /// As many partitions, spread over the subtasks in turn.
    fn new(spec: &WatermarkSpec, partitions: i32, subtasks: u32) -> Self {
        let seen = |number: i32| PartitionSeen {
            subtask: number.cast_unsigned() % subtasks,
            standing: Standing::Read,
            position: Some(offset(0)),
            greatest: None,
            records: 0,
            late: 0,
        };
        let open = SubtaskSeen {
            open: true,
            waits_for_sink: false,
            records: 0,
        };
        let mut bench = Self {
            watermarks: Watermarks::new(spec, subtasks),
            now: Instant::now(),
            subtasks: vec![open; subtasks as usize],
            partitions: (0..partitions).map(|one| (name(one), seen(one))).collect(),
            ends: (0..partitions).map(|one| (name(one), offset(0))).collect(),
        };
        bench.look();
        bench
    }

    fn of(&mut self, number: i32) -> &mut PartitionSeen {
        self.partitions.get_mut(&name(number)).unwrap()
    }

    /// A record with this time stamp comes, is read and written.
    fn record(&mut self, number: i32, stamp: i64) {
        let end = self.ends[&name(number)].get() + 1;
        self.ends.insert(name(number), offset(end));
        let seen = self.of(number);
        seen.position = Some(offset(end));
        seen.greatest = seen.greatest.max(Some(stamp));
        seen.records += 1;
        let subtask = seen.subtask as usize;
        self.subtasks[subtask].records += 1;
    }

    /// A record comes and is not read yet.
    fn unread(&mut self, number: i32) {
        let end = self.ends[&name(number)].get() + 1;
        self.ends.insert(name(number), offset(end));
    }

    fn look(&mut self) {
        self.watermarks
            .see(self.now, &self.subtasks, self.partitions.clone());
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.now += Duration::from_millis(250);
            self.look();
            let asked = self.watermarks.to_ask();
            let ends: BTreeMap<_, _> = asked
                .iter()
                .map(|one| (one.clone(), self.ends[one]))
                .collect();
            self.watermarks.hear_ends(&ends);
        }
    }

    fn idle(&self) -> Vec<i32> {
        let numbers = self.partitions.keys().map(|one| one.partition);
        numbers
            .filter(|one| self.watermarks.of_partition(&name(*one)).unwrap().idle)
            .collect()
    }

    fn paused(&self) -> Vec<i32> {
        let paused = self.watermarks.paused();
        paused.iter().map(|one| one.partition).collect()
    }

    fn watermark(&self) -> Option<i64> {
        self.watermarks.watermark()
    }
}

#[test]
fn the_least_of_all_partitions_counts_and_what_is_not_known_holds_it() {
    let mut bench = Bench::new(&spec(100, None, None), 2, 1);
    assert_eq!(bench.watermark(), None);
    bench.record(0, 1_000);
    bench.look();
    assert_eq!(bench.watermark(), None);
    assert_eq!(bench.watermarks.of_job().held_by, Some(name(1)));
    bench.record(1, 500);
    bench.look();
    assert_eq!(bench.watermark(), Some(399));
    bench.record(1, 300);
    bench.record(0, 2_000);
    bench.look();
    assert_eq!(bench.watermark(), Some(399));
    bench.record(1, 5_000);
    bench.pass(3_600);
    assert_eq!(bench.watermark(), Some(1_899));
    assert_eq!(bench.idle(), Vec::<i32>::new(), "nobody asked for idleness");
}

/// FLINK-8001: without partitions there is no watermark, and not the greatest one.
#[test]
fn without_partitions_there_is_none_and_where_all_are_idle_it_stays() {
    let mut none = Bench::new(&spec(0, Some(1), None), 0, 2);
    none.pass(10);
    let shown = none.watermarks.of_job();
    assert_eq!((shown.timestamp, shown.idle), (None, true));
    assert!(
        shown
            .subtasks
            .iter()
            .all(|one| one.idle && one.timestamp.is_none())
    );

    let mut bench = Bench::new(&spec(0, Some(1), None), 3, 2);
    bench.record(0, 10);
    bench.record(1, 20);
    bench.pass(2);
    // 2 never had a record: it was quiet for longest and left first.
    assert_eq!((bench.idle(), bench.watermark()), (vec![0, 1, 2], Some(9)));
    bench.record(1, 30);
    bench.look();
    assert_eq!(
        bench.watermark(),
        Some(29),
        "one that was never active holds nothing"
    );
    bench.pass(2);
    assert_eq!(
        (bench.watermark(), bench.watermarks.of_job().idle),
        (Some(29), true)
    );
}

/// FLINK-40475: a partition that comes back counts again, and with older records it does not pull the watermark back.
#[test]
fn a_partition_that_comes_back_counts_again() {
    let mut bench = Bench::new(&spec(0, Some(1), None), 2, 2);
    bench.record(0, 100);
    bench.record(1, 50);
    bench.look();
    assert_eq!(bench.watermark(), Some(49));
    for _ in 0..8 {
        bench.record(0, 100);
        bench.pass(1);
    }
    assert_eq!((bench.idle(), bench.watermark()), (vec![1], Some(99)));
    bench.record(1, 60);
    bench.record(0, 200);
    bench.look();
    assert_eq!(
        bench.watermark(),
        Some(99),
        "it waits for the one that is back"
    );
    assert_eq!(bench.watermarks.of_job().held_by, Some(name(1)));
    bench.record(1, 150);
    bench.look();
    assert_eq!(bench.watermark(), Some(149));
}

/// FLINK-5479: what lies unread anywhere is no quiet partition, and a sink that is stuck makes none.
#[test]
fn nobody_turns_idle_for_another_reason_than_that_there_is_nothing() {
    let mut bench = Bench::new(&spec(0, Some(5), None), 2, 1);
    bench.pass(4);
    bench.subtasks[0].waits_for_sink = true;
    bench.pass(3_600);
    assert_eq!(bench.idle(), Vec::<i32>::new(), "the sink is stuck");
    bench.subtasks[0] = SubtaskSeen {
        open: false,
        waits_for_sink: false,
        records: 0,
    };
    bench.pass(3_600);
    assert_eq!(bench.idle(), Vec::<i32>::new(), "it may take nothing");
    bench.subtasks[0].open = true;
    bench.unread(0);
    bench.pass(3_600);
    assert_eq!(bench.idle(), [1], "0 has a record that is on its way");
    bench.of(0).standing = Standing::Waits;
    bench.pass(3_600);
    bench.of(0).standing = Standing::Read;
    bench.pass(4);
    assert_eq!(bench.idle(), [1]);
    // No answer is no answer.
    bench.of(0).position = Some(offset(1));
    bench.now += Duration::from_secs(60);
    bench.look();
    assert_eq!(bench.watermarks.to_ask(), [name(0)]);
    bench.watermarks.hear_ends(&BTreeMap::new());
    assert_eq!(bench.idle(), [1]);
    // A record that came between question and answer.
    let ends = BTreeMap::from([(name(0), offset(1))]);
    bench.record(0, 5);
    bench.look();
    bench.watermarks.hear_ends(&ends);
    assert_eq!(bench.idle(), [1]);
    bench.pass(6);
    assert_eq!(bench.idle(), [0, 1]);
}

/// A sink that is the slow part, but moves, does not keep a quiet partition from being idle.
#[test]
fn a_busy_sink_is_not_a_stuck_one() {
    let mut bench = Bench::new(&spec(0, Some(5), None), 2, 1);
    bench.subtasks[0].waits_for_sink = true;
    for stamp in 0..10 {
        bench.record(0, stamp);
        bench.now += Duration::from_secs(1);
        bench.pass(0);
        bench.look();
    }
    bench.watermarks.hear_ends(&bench.ends.clone());
    assert_eq!((bench.idle(), bench.watermark()), (vec![1], Some(8)));
}

#[test]
fn one_that_waits_holds_the_watermark_and_one_that_has_left_does_not() {
    let mut bench = Bench::new(&spec(0, Some(2), None), 3, 1);
    for (number, stamp) in [(0, 100), (1, 50), (2, 30)] {
        bench.record(number, stamp);
    }
    bench.look();
    bench.of(2).standing = Standing::Waits;
    for stamp in 200..210 {
        bench.record(0, stamp);
        bench.record(1, stamp);
        bench.pass(1);
    }
    assert_eq!(bench.watermark(), Some(29), "its records are still to come");
    bench.of(2).standing = Standing::Left;
    bench.pass(1);
    assert_eq!(bench.watermark(), Some(208));
    // What it came to at its very end counts.
    bench.record(0, 500);
    bench.record(1, 400);
    bench.of(0).standing = Standing::Left;
    bench.of(1).standing = Standing::Left;
    bench.look();
    assert_eq!(bench.watermark(), Some(399));
    bench.pass(5);
    let shown = bench.watermarks.of_job();
    assert_eq!((bench.watermark(), shown.idle), (Some(399), true));
}

#[test]
fn who_is_too_far_ahead_is_held_back_until_half_of_it_is_made_good() {
    let mut bench = Bench::new(&spec(0, Some(5), Some(10)), 3, 2);
    for (number, stamp) in [(0, 10_000), (1, 0), (2, 10_001)] {
        bench.record(number, stamp);
    }
    bench.look();
    assert_eq!(bench.paused(), [2], "a drift of just as much is allowed");
    bench.record(1, 5_000);
    bench.look();
    assert_eq!(bench.paused(), [2], "not to and fro");
    bench.record(1, 5_001);
    bench.look();
    assert_eq!(bench.paused(), Vec::<i32>::new());
    // Held back over any time nobody is idle for that.
    bench.record(0, 100_000);
    bench.look();
    for stamp in 0..20 {
        bench.record(1, 5_001 + stamp);
        bench.record(2, 5_001 + stamp);
        bench.pass(1);
    }
    assert_eq!((bench.paused(), bench.idle()), (vec![0], vec![]));
}

/// FLINK-25982, FLINK-31632, FLINK-32496: whatever becomes of the one that all wait for, the others go on.
#[test]
fn who_is_held_back_goes_on_when_the_least_one_is_idle_parked_or_gone() {
    for ended in [None, Some(Standing::Waits), Some(Standing::Left)] {
        let mut bench = Bench::new(&spec(0, Some(2), Some(1)), 3, 2);
        for (number, stamp) in [(0, i64::MAX), (1, 0), (2, 4_000_000)] {
            bench.record(number, stamp);
        }
        bench.look();
        assert_eq!(bench.paused(), [0, 2]);
        if let Some(standing) = ended {
            bench.of(1).standing = standing;
            // What it came to at its very end counts once more.
            bench.look();
            bench.look();
        } else {
            bench.pass(3);
        }
        assert_eq!(bench.paused(), [0], "{ended:?}: 2 is the least one now");
        bench.pass(3);
        assert_eq!(bench.paused(), Vec::<i32>::new(), "{ended:?}: 2 is idle");
        bench.pass(3);
        assert!(bench.idle().contains(&0), "{ended:?}");
        // All are quiet. Then it flows again, from wherever.
        bench.record(2, 4_000_001);
        bench.look();
        assert_eq!(bench.paused(), Vec::<i32>::new());
        bench.record(0, i64::MAX);
        bench.look();
        assert_eq!(bench.paused(), [0]);
        bench.pass(3);
        assert_eq!(bench.paused(), Vec::<i32>::new());
    }
}

#[derive(Debug, Clone)]
enum Step {
    Record(i32, i64),
    Unread(i32),
    Standing(i32, Standing),
    Sink(usize, bool),
    Open(usize, bool),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..5_i32;
    let standing = prop_oneof![
        4 => Just(Standing::Read),
        1 => Just(Standing::Waits),
        1 => Just(Standing::Left),
    ];
    let stamp = prop_oneof![6 => 0..100_000_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN + 1)];
    let step = prop_oneof![
        8 => (number.clone(), stamp).prop_map(|(number, stamp)| Step::Record(number, stamp)),
        1 => number.clone().prop_map(Step::Unread),
        2 => (number, standing).prop_map(|(number, standing)| Step::Standing(number, standing)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(subtask, waits)| Step::Sink(subtask, waits)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(subtask, open)| Step::Open(subtask, open)),
        3 => (1..8_u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// I5 and what alignment promises, over any history.
    #[test]
    fn a_watermark_never_goes_back_and_moves_only_to_the_least_active_one(steps in steps(), delay in 0..5_000_u64) {
        let mut bench = Bench::new(&spec(delay, Some(3), Some(20)), 5, 2);
        let mut before: Vec<Option<i64>> = vec![None; 8];
        let delay = i64::try_from(delay).unwrap();
        for step in steps {
            let mut waits = 1;
            match step {
                // One that is not read gives nothing.
                Step::Record(number, _) | Step::Unread(number)
                    if bench.of(number).standing != Standing::Read => {}
                Step::Record(number, stamp) => bench.record(number, stamp),
                Step::Unread(number) => bench.unread(number),
                Step::Standing(number, standing) => bench.of(number).standing = standing,
                Step::Sink(subtask, waits) => bench.subtasks[subtask].waits_for_sink = waits,
                Step::Open(subtask, open) => bench.subtasks[subtask].open = open,
                Step::Pass(seconds) => waits = seconds * 4,
            }
            for _ in 0..waits {
                let was_idle = bench.idle();
                bench.now += Duration::from_millis(250);
                let looks = [true, false];
                for is_look in looks {
                    if is_look {
                        bench.look();
                    } else {
                        let ends = bench.ends.clone();
                        bench.watermarks.hear_ends(&ends);
                    }
                    let states = &bench.watermarks.partitions;
                    let mut now = vec![bench.watermark()];
                    now.extend(bench.watermarks.subtasks.iter().map(|(_, output)| output.watermark));
                    now.extend(states.values().map(|state| state.watermark));
                    // One that has just left counts once more, and is not active afterwards.
                    let least = |subtask: Option<u32>| {
                        let own = states.values().filter(|state| subtask.is_none_or(|one| one == state.seen.subtask));
                        let still = own.filter(|state| !state.idle && state.seen.standing != Standing::Left);
                        still.map(|state| state.watermark).min()
                    };
                    for (index, (then, now)) in before.iter().zip(&now).enumerate() {
                        prop_assert!(then <= now, "{index} went back from {then:?} to {now:?}");
                        let subtask = index.checked_sub(1).and_then(|one| u32::try_from(one).ok());
                        if index < 3 && then != now && let Some(least) = least(subtask) {
                            prop_assert!(*now <= least, "{index} is {now:?} beyond {least:?}");
                        }
                    }
                    before = now;
                    for (partition, state) in states {
                        let own = state.seen.greatest.map(|greatest| greatest.saturating_sub(delay).saturating_sub(1));
                        prop_assert_eq!(state.watermark, own);
                        let has_all = state.seen.position == bench.ends.get(partition).copied();
                        let turned = state.idle && !was_idle.contains(&partition.partition);
                        prop_assert!(!turned || has_all, "{} turned idle with something to read", partition);
                        prop_assert!(!(state.idle && state.paused));
                    }
                    let group: Vec<&State> = states.values().filter(|state| state.is_aligned()).collect();
                    let floor = group.iter().filter_map(|state| state.watermark).min();
                    let held = group.iter().filter(|state| state.paused);
                    for state in held {
                        prop_assert!(state.watermark.unwrap() > floor.unwrap().saturating_add(10_000));
                    }
                    let ahead = group.iter().filter(|state| !state.paused).filter_map(|state| state.watermark);
                    for watermark in ahead {
                        prop_assert!(watermark.saturating_sub(floor.unwrap()) <= 20_000);
                    }
                    prop_assert!(group.is_empty() || group.iter().any(|state| !state.paused), "somebody reads");
                }
            }
        }
        // Peace: nobody may be held back for ever.
        for number in 0..5 {
            bench.of(number).standing = Standing::Read;
            let end = bench.ends[&name(number)];
            bench.of(number).position = Some(end);
        }
        for subtask in &mut bench.subtasks {
            *subtask = SubtaskSeen { open: true, waits_for_sink: false, records: subtask.records };
        }
        bench.pass(60);
        prop_assert_eq!(bench.paused(), Vec::<i32>::new());
        prop_assert_eq!(bench.idle(), vec![0, 1, 2, 3, 4]);
    }
}
