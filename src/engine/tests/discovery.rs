//! Partitions and topics that appear, vanish and come back under a run.

use super::{
    cluster::Scripted,
    sink::{Does, Step},
    store::{Answers, Call},
    *,
};
use crate::{
    engine::error::ConsumerError,
    model::{
        Code,
        job::{NewPartitions, PartitionDiscovery, PositionPolicy},
        parked::ParkedPartition,
    },
};

/// A run that looks at its topic all the time; partitions 0 and 1 of the topic `a`, both read up to 5.
fn watching() -> Setup {
    Setup {
        partitions: BTreeMap::from([(0, Some(5)), (1, Some(5))]),
        topic_id: Some("a"),
        source: look_often,
        ..Setup::default()
    }
}

fn look_often(source: &mut SourceSpec) {
    source.partition_discovery = PartitionDiscovery {
        interval: HumanDuration(Duration::from_millis(20)),
        new_partitions: NewPartitions::Earliest,
    };
}

pub(super) fn look_often_and_begin_anew(source: &mut SourceSpec) {
    look_often(source);
    source.on_topic_recreated = PositionPolicy::Earliest;
}

impl World {
    pub(super) fn watching(topic: Option<(&'static str, i32)>) -> Self {
        let world = Self::new();
        world.cluster.topic(topic);
        for number in 0..4 {
            world.cluster.elect(number, 0, 100);
        }
        world
    }

    /// Waits until two more looks have been taken.
    pub(super) async fn looked(&self) {
        let before = self.cluster.looks();
        self.until("two looks", || self.cluster.looks() >= before + 2)
            .await;
    }

    async fn until_assigned(&self, number: i32, at: i64) {
        let what = format!("partition {number} is read from {at}");
        self.until(&what, || {
            let assigned = self.cluster.assigned(number);
            assigned.is_some_and(|(_, offset)| offset == at)
        })
        .await;
    }
}

pub(super) async fn until_parked(job: &JobHandle, number: i32, code: Code) -> ParkedPartition {
    let what = format!("partition {number} is parked as {code}");
    let status = until_status(job, &what, |status| {
        let parked = status.parked.get(&partition(number));
        parked.is_some_and(|parked| parked.code == code)
    })
    .await;
    status.parked[&partition(number)].clone()
}

async fn until_waiting(job: &JobHandle, code: Code, waits: bool) {
    let what = format!("{code} is waited for: {waits}");
    until_status(job, &what, |status| {
        status.waiting.iter().any(|waiting| waiting.code == code) == waits
    })
    .await;
}

fn position(checkpoint: &Checkpoint, number: i32) -> (Option<i64>, i64, Option<String>) {
    let position = &checkpoint.positions[&partition(number)];
    (
        position.next_offset.map(Offset::get),
        position.position_id.0,
        position.topic_id.as_ref().map(ToString::to_string),
    )
}

/// FLINK-32019 (FLIP-288): by the mode, which is `latest` here, the records before the discovery were lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_partition_is_read_from_its_beginning_once_that_is_stored() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        parallelism: 2,
        ..watching()
    });
    world.looked().await;
    world.store.answer_to(Call::Complete, Answers::Slow);
    world.cluster.topic(Some(("a", 4)));
    world
        .until("the decision is on its way to the store", || {
            world.store.calls(Call::Complete) > 0
        })
        .await;
    world.looked().await;
    assert_eq!(world.cluster.assigned(2), None, "it is not stored yet");
    world.store.answer_to(Call::Complete, Answers::Yes);
    world.until_assigned(2, 0).await;
    world.until_assigned(3, 0).await;
    let decided = world.store.newest();
    assert_eq!(decided.kind, CheckpointKind::Discovery);
    for number in [2, 3] {
        let stored = (Some(0), decided.id.0, Some("a".to_owned()));
        assert_eq!(position(&decided, number), stored);
        let (subtask, _) = world.cluster.assigned(number).unwrap();
        assert_eq!(subtask, owner("orders", number, 2));
    }
    let status = until_status(&job, "both are shown", |status| {
        status.partitions.len() == 4
    })
    .await;
    assert_eq!(
        status.partitions[&partition(3)].reason,
        Some(StartReason::NewSinceCheckpoint)
    );
    assert_eq!(status.discovery.discovered, 2);
    world.cluster.deliver(2, 0..=4);
    world.until_written(5).await;
    stop(&job, StopCheckpoint::Required).await;
    let expected = [(0, 5), (1, 5), (2, 5), (3, 0)].into();
    assert_eq!(offsets_of(&world.store.newest()), expected);
    assert_eq!(position(&world.store.newest(), 2).1, decided.id.0);
}

/// FLINK-34995: one partition without a leader held back all others.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_partition_without_a_leader_holds_back_nobody_and_follows() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(watching());
    world.looked().await;
    world.cluster.topic(Some(("a", 6)));
    world.until_assigned(3, 0).await;
    until_waiting(&job, Code::NoLeader, true).await;
    checkpoint(&job).await;
    assert!(
        !world.store.newest().positions.contains_key(&partition(4)),
        "a start would take it for one that waits since the first start, and begin by the mode"
    );
    world.cluster.elect(4, 7, 9);
    world.cluster.elect(5, 0, 0);
    world.until_assigned(4, 7).await;
    until_waiting(&job, Code::NoLeader, false).await;
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partitions_begin_by_the_mode_if_that_is_wanted() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        source: |source| {
            look_often(source);
            source.partition_discovery.new_partitions = NewPartitions::StartupMode;
        },
        ..watching()
    });
    world.cluster.topic(Some(("a", 5)));
    world.until_assigned(3, 100).await;
    checkpoint(&job).await;
    let waiting = position(&world.store.newest(), 4);
    assert_eq!(
        waiting.0, None,
        "the next start decides it by the mode, too"
    );
    stop(&job, StopCheckpoint::Required).await;
}

/// confluentinc/librdkafka issue 4836: nothing was said of a topic that was deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_vanishes_is_parked_with_its_position_and_goes_on_when_it_is_back() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(watching());
    world.cluster.deliver(1, 5..=7);
    world.until_written(3).await;
    world.cluster.topic(Some(("a", 1)));
    let parked = until_parked(&job, 1, Code::PartitionGone).await;
    assert_eq!(parked.offset, Some(offset(8)));
    world.cluster.deliver(0, 5..=5);
    world.until_written(4).await;
    checkpoint(&job).await;
    let kept = (Some(8), 1, Some("a".to_owned()));
    assert_eq!(position(&world.store.newest(), 1), kept);
    let committed = world.cluster.committed().pop().unwrap();
    assert_eq!(
        committed,
        [(0, 6)].into(),
        "a broker would refuse the other"
    );

    world.cluster.topic(Some(("a", 2)));
    world.until_assigned(1, 8).await;
    assert_eq!(
        position(&world.store.newest(), 1),
        kept,
        "nothing was decided"
    );
    let status = until_status(&job, "it is read", |status| status.parked.is_empty()).await;
    assert_eq!(
        status.partitions[&partition(1)].reason,
        Some(StartReason::Checkpoint)
    );
    world.cluster.deliver(1, 8..=9);
    world.until_written(6).await;
    stop(&job, StopCheckpoint::Required).await;
    let told: Vec<&str> = world
        .store
        .events()
        .iter()
        .map(|(kind, _)| kind.as_str())
        .collect();
    assert_eq!(
        told,
        [
            "partition-parked",
            "partition-gone",
            "partition-returned",
            "partition-goes-on"
        ]
    );
    assert_eq!(world.sink.written_of(1), [5, 6, 7, 8, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_without_the_records_before_it_is_parked_for_that() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(watching());
    world.cluster.topic(Some(("a", 1)));
    until_parked(&job, 1, Code::PartitionGone).await;
    world.cluster.elect(1, 43, 90);
    world.cluster.topic(Some(("a", 2)));
    let what = "what is lost is named";
    let status = until_status(&job, what, |status| {
        let parked = status.parked.get(&partition(1));
        parked.is_some_and(|parked| parked.lost.is_some())
    })
    .await;
    let parked = &status.parked[&partition(1)];
    assert_eq!(parked.code, Code::OffsetOutOfRange);
    assert_eq!(parked.offset, Some(offset(5)));
    let lost = parked.lost.unwrap();
    assert_eq!((lost.from, lost.offsets), (offset(5), 38));

    // Somebody decides.
    job.set_policies(PositionPolicy::Earliest, PositionPolicy::Fail)
        .await;

    world.until_assigned(1, 43).await;
    until_status(&job, "it is read", |status| status.parked.is_empty()).await;
    stop(&job, StopCheckpoint::Required).await;
    let told: Vec<EventKind> = world.store.events().iter().map(|(kind, _)| *kind).collect();
    assert_eq!(
        told,
        [
            EventKind::PartitionParked,
            EventKind::PartitionGone,
            EventKind::PartitionReturned,
            EventKind::PartitionParked,
            EventKind::PositionMoved,
            EventKind::PartitionGoesOn,
        ]
    );
}

/// confluentinc/librdkafka issue 3255: the client goes on at the old offset in the new topic and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_topic_parks_its_partitions_until_somebody_decides() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(watching());
    world.looked().await;
    world.cluster.topic(Some(("b", 2)));
    for number in [0, 1] {
        let parked = until_parked(&job, number, Code::TopicRecreated).await;
        assert!(
            parked.detail.contains("id a then, b now"),
            "{}",
            parked.detail
        );
        assert_eq!(parked.offset, Some(offset(5)));
    }
    world.looked().await;
    checkpoint(&job).await;
    let newest = world.store.newest();
    assert_eq!(position(&newest, 0), (Some(5), 1, Some("a".to_owned())));
    assert_eq!(
        world.cluster.committed().len(),
        0,
        "it would mean other records"
    );
    let told = world.until_told(EventKind::TopicRecreated, 1).await;
    assert_eq!(told[0]["partitions"][0]["new_topic_id"], "b");
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recreated_topic_is_read_from_its_beginning_by_policy() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        source: look_often_and_begin_anew,
        ..watching()
    });
    // What was fetched at the old position waits in the slot and in the thread's hand.
    world.sink.set(Step::Write, Does::Block);
    for begin in [5, 7, 9] {
        world.cluster.deliver(0, begin..=begin + 1);
    }
    world
        .until("three batches", || world.cluster.taken() == 3)
        .await;
    world.cluster.topic(Some(("b", 3)));
    until_parked(&job, 0, Code::TopicRecreated).await;
    world.sink.set(Step::Write, Does::Work);
    for number in 0..3 {
        world.until_assigned(number, 0).await;
    }
    let decided = world.store.newest();
    for number in 0..3 {
        let stored = (Some(0), decided.id.0, Some("b".to_owned()));
        assert_eq!(position(&decided, number), stored);
    }
    world.cluster.deliver(0, 0..=8);
    world
        .until("the new topic's records", || {
            world.sink.written_of(0).len() >= 9 + 2
        })
        .await;
    let written = world.sink.written_of(0);
    let anew = written.iter().position(|offset| *offset == 0).unwrap();
    assert_eq!(written[anew..], [0, 1, 2, 3, 4, 5, 6, 7, 8], "{written:?}");
    let status = until_status(&job, "all are read", |status| status.parked.is_empty()).await;
    assert_eq!(
        status.partitions[&partition(0)].reason,
        Some(StartReason::TopicRecreated)
    );
    stop(&job, StopCheckpoint::Required).await;
}

/// Nothing of the new topic was read: what lies before its end is passed over, and that is told and counted.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_passed_over_in_a_recreated_topic_is_told() {
    let world = World::watching(Some(("a", 1)));
    world.cluster.elect(0, 20, 97);
    let job = world.start(Setup {
        partitions: BTreeMap::from([(0, Some(50))]),
        source: |source| {
            look_often(source);
            source.on_topic_recreated = PositionPolicy::Latest;
        },
        ..watching()
    });
    world.looked().await;
    world.cluster.topic(Some(("b", 1)));
    world.until_assigned(0, 97).await;
    let told = world.until_told(EventKind::PositionMoved, 1).await;
    let expected = serde_json::json!({
        "topic": "orders", "partition": 0, "from": 50, "to": 97, "reason": "topic-recreated", "policy": "latest",
        "lost": null, "skipped": 77,
    });
    assert_eq!(told, [expected]);
    until_status(&job, "it is counted", |status| status.positions_moved == 1).await;
    stop(&job, StopCheckpoint::Required).await;
}

fn look_when_asked(source: &mut SourceSpec) {
    source.partition_discovery.interval = HumanDuration(NEVER);
}

fn look_when_asked_and_begin_anew(source: &mut SourceSpec) {
    look_when_asked(source);
    source.on_topic_recreated = PositionPolicy::Earliest;
}

impl World {
    /// A run at 50, which `on_out_of_range: earliest` would move, and a topic whose log is 0 to 20; the client says so.
    fn outside(&self, topic: &'static str, source: fn(&mut SourceSpec)) -> JobHandle {
        self.cluster.topic(Some((topic, 1)));
        self.cluster.elect(0, 0, 20);
        let setup = Setup {
            partitions: BTreeMap::from([(0, Some(50))]),
            source,
            ..watching()
        };
        let (errors, policy) = (ErrorsSpec::default(), PositionPolicy::Earliest);
        let job = self.start_under(Format::Bytes, errors, policy, setup);
        let cause = ConsumerError::OutOfRange {
            partition: partition(0),
            position: offset(50),
        };
        self.cluster.script(Scripted::Error(0, cause));
        job
    }

    /// The bounds of the new topic have moved nothing: the position stays, or the new topic is read from its beginning, once.
    async fn in_another_topic(&self, job: &JobHandle, on_topic_recreated: PositionPolicy) {
        if on_topic_recreated == PositionPolicy::Fail {
            until_parked(job, 0, Code::TopicRecreated).await;
            // What is stored is newer than what the brokers said.
            checkpoint(job).await;
            checkpoint(job).await;
            let stands = (Some(50), 1, Some("a".to_owned()));
            assert_eq!(position(&self.store.newest(), 0), stands);
            assert_eq!(self.cluster.assigned(0), None);
        } else {
            self.until_assigned(0, 0).await;
            let newest = self.store.newest();
            let begins = (Some(0), newest.id.0, Some("b".to_owned()));
            assert_eq!(position(&newest, 0), begins);
            assert_eq!(self.cluster.assigned_since(0), Some((0, 2)));
        }
        // That it was outside of its log is not told: nobody knows of which.
        let expected: &[&str] = match on_topic_recreated {
            PositionPolicy::Fail => &["topic-recreated"],
            _ => &["topic-recreated", "position-moved", "partition-goes-on"],
        };
        self.until("the history tells it", || {
            let told = self.store.events();
            told.iter()
                .map(|(kind, _)| kind.as_str())
                .eq(expected.iter().copied())
        })
        .await;
        let moves = self.told(EventKind::PositionMoved);
        let by_id = |told: &serde_json::Value| told["reason"] == "topic-recreated";
        assert!(moves.iter().all(by_id), "{moves:?}");
        assert_eq!(job.status().positions_moved, moves.len() as u64);
        stop(job, StopCheckpoint::Required).await;
    }
}

/// The numbers of a new topic say nothing of a position in the old one: `on_topic_recreated` counts, not `on_out_of_range`.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_that_come_after_the_look_move_nothing_in_another_topic() {
    let policies = [
        (PositionPolicy::Fail, look_often as fn(&mut SourceSpec)),
        (PositionPolicy::Earliest, look_often_and_begin_anew),
    ];
    for (policy, source) in policies {
        let world = World::new();
        world.cluster.set_bounds_wait(true);
        let job = world.outside("a", source);
        world
            .until("the bounds are asked for", || {
                world.cluster.bounds_asked() > 0
            })
            .await;
        world.cluster.topic(Some(("b", 1)));
        until_parked(&job, 0, Code::TopicRecreated).await;
        world.cluster.set_bounds_wait(false);
        world.in_another_topic(&job, policy).await;
    }
}

/// Here they are known before anybody has looked at the topics.
#[tokio::test(flavor = "multi_thread")]
async fn bounds_that_come_before_the_look_move_nothing_in_another_topic() {
    let policies = [
        (PositionPolicy::Fail, look_when_asked as fn(&mut SourceSpec)),
        (PositionPolicy::Earliest, look_when_asked_and_begin_anew),
    ];
    for (policy, source) in policies {
        let world = World::new();
        let job = world.outside("b", source);
        world.in_another_topic(&job, policy).await;
    }
}

/// MaterializeInc/materialize issue 20141: fewer partitions than before ended in a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_the_recreated_topic_lacks_is_gone() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        source: look_often_and_begin_anew,
        ..watching()
    });
    world.looked().await;
    world.cluster.topic(Some(("b", 1)));
    world.until_assigned(0, 0).await;
    let gone = until_parked(&job, 1, Code::PartitionGone).await;
    assert!(
        gone.detail.contains("without this partition"),
        "{}",
        gone.detail
    );
    world.looked().await;
    world.cluster.topic(Some(("b", 2)));
    world.until_assigned(1, 0).await;
    stop(&job, StopCheckpoint::Required).await;
}

/// The client says that brokers do not know a partition: what comes next may be another topic, so nothing more is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_brokers_do_not_know_waits_for_a_look() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        source: |source| source.partition_discovery.interval = HumanDuration(NEVER),
        ..watching()
    });
    let unknown = ConsumerError::TopicUnknown {
        partition: partition(0),
    };
    world.cluster.script(Scripted::Error(0, unknown));
    // It was only for a moment: the look that follows at once finds the same topic.
    let status = until_status(&job, "it goes on", |status| {
        let read = &status.partitions[&partition(0)];
        read.reason == Some(StartReason::Checkpoint) && status.parked.is_empty()
    })
    .await;
    assert_eq!(status.partitions[&partition(0)].position, Some(offset(5)));
    world.cluster.deliver(0, 5..=6);
    world.until_written(2).await;
    stop(&job, StopCheckpoint::Required).await;
}

/// A failed look was the end of the job in Flink's legacy consumer.
#[tokio::test(flavor = "multi_thread")]
async fn looks_that_fail_are_shown_and_repeated_and_stop_nothing() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(watching());
    world.looked().await;
    world.cluster.topics_fail();
    until_waiting(&job, Code::DiscoveryFailing, true).await;
    let status = job.status();
    assert!(status.discovery.failures > 1, "{status:?}");
    assert!(status.discovery.last_error.is_some());
    world.cluster.deliver(0, 5..=6);
    world.until_written(2).await;
    world.cluster.topic(Some(("a", 3)));
    until_waiting(&job, Code::DiscoveryFailing, false).await;
    world.until_assigned(2, 0).await;
    stop(&job, StopCheckpoint::Required).await;
}

/// A checkpoint that fails decides nothing; the next one does.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_outlives_a_checkpoint_that_fails() {
    let world = World::watching(Some(("a", 2)));
    let job = world.start(Setup {
        checkpoint: timing(SHORT, SHORT),
        ..watching()
    });
    world.looked().await;
    world.sink.set(Step::Prepare, Does::Block);
    world.cluster.topic(Some(("a", 3)));
    until_status(&job, "a checkpoint fails", |status| {
        status.consecutive_failures > 0
    })
    .await;
    assert_eq!(world.cluster.assigned(2), None);
    world.sink.set(Step::Prepare, Does::Work);
    world.until_assigned(2, 0).await;
    stop(&job, StopCheckpoint::Required).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_spec_does_not_read_stays_in_every_checkpoint_and_out_of_the_group() {
    let world = World::watching(Some(("a", 1)));
    let job = world.start(Setup {
        reasons: BTreeMap::from([(1, StartReason::Detached), (2, StartReason::PartitionGone)]),
        partitions: BTreeMap::from([(0, Some(5)), (1, Some(5)), (2, Some(5))]),
        checkpoint: timing(SHORT, NEVER),
        ..watching()
    });
    until_parked(&job, 2, Code::PartitionGone).await;
    assert!(!job.status().partitions.contains_key(&partition(1)));
    world.cluster.deliver(0, 5..=6);
    world
        .until("a commit", || !world.cluster.committed().is_empty())
        .await;
    assert_eq!(world.cluster.assigned(1), None);
    assert_eq!(world.cluster.committed()[0], [(0, 7)].into());
    let newest = world.store.newest();
    assert_eq!(offsets_of(&newest), [(0, 7), (1, 5), (2, 5)].into());
    // Nothing moves, and nothing is written.
    world.looked().await;
    tokio::time::sleep(3 * SHORT).await;
    assert_eq!(world.store.newest().id, newest.id);
    stop(&job, StopCheckpoint::Required).await;
}

/// A pattern may match nothing, at the start and for as long as that lasts.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_partitions_says_so_and_waits_for_topics() {
    let world = World::watching(None);
    let job = world.start(Setup {
        partitions: BTreeMap::new(),
        source: |source| {
            look_often(source);
            source.topics.clear();
            source.topic_pattern = crate::model::topic_pattern::TopicPattern::new("ord.*").ok();
        },
        ..watching()
    });
    until_waiting(&job, Code::NoTopics, true).await;
    assert!(checkpoint(&job).await.failure.is_none());
    world.cluster.topic(Some(("a", 1)));
    world.until_assigned(0, 0).await;
    until_waiting(&job, Code::NoTopics, false).await;
    stop(&job, StopCheckpoint::Required).await;
}
