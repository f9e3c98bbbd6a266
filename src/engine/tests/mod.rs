//! A whole run against an in-memory world: real threads, real tasks, scripted surroundings.
//!
//! Nothing here sleeps. Every surrounding part tells a [`Pulse`] when something happened, and a test waits for a condition
//! with a deadline; that something does *not* happen is shown by an event that would have come after it. Rules that must
//! hold in every run are checked by the surroundings themselves and collected as violations (see [`World`]'s drop).

mod bounded;
mod checkpoints;
mod cluster;
mod discovery;
mod failures;
mod letters;
mod limits;
mod parking;
mod records;
mod sink;
mod stages;
mod stops;
mod store;
mod watermarks;
mod without_checkpoints;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::{sync::watch, time::Instant};

use super::{
    JobEnd, JobHandle, JobRun, StopOutcome,
    error::JobError,
    ports::{Clock, JobLease, LeaseHealth},
};
use crate::model::{
    CheckpointId, CheckpointKind, HumanDuration, InstallId, JobName, JobSpec, JobUid, LeaseEpoch,
    Offset, PartitionOffsets, TopicId, TopicPartition,
    checkpoint::{Checkpoint, CheckpointPhases, CheckpointPosition},
    errors_spec::{Block, ErrorsSpec, OnBadRecord},
    event::EventKind,
    job::{CheckpointSpec, CommitToGroup, Format, OnCancel, PositionPolicy, SourceSpec},
    job_status::JobStatus,
    limits::LimitsSpec,
    resolver::{PlannedParking, StartReason},
    start::StopCheckpoint,
    subtask::owner,
    views::CheckpointReport,
    watermark::WatermarkSpec,
};
use cluster::Cluster;
use letters::Letters;
use sink::TestSink;
use store::MemoryStore;

/// Long enough for a loaded machine; only a fault ever waits for it.
const DEADLINE: Duration = Duration::from_secs(20);
/// Never reached in a test.
const NEVER: Duration = Duration::from_secs(3_600);
/// A time that is meant to pass.
const SHORT: Duration = Duration::from_millis(150);

/// Says that something happened, and what must never have happened.
#[derive(Clone)]
struct Pulse {
    beats: watch::Sender<u64>,
    violations: Arc<Mutex<Vec<String>>>,
}

impl Pulse {
    fn new() -> Self {
        Self {
            beats: watch::Sender::new(0),
            violations: Arc::default(),
        }
    }

    fn beat(&self) {
        self.beats.send_modify(|beats| *beats += 1);
    }

    fn violation(&self, what: String) {
        self.violations.lock().unwrap().push(what);
    }

    /// Waits until a condition of the surroundings holds, without a deadline.
    async fn holds(&self, mut condition: impl FnMut() -> bool) {
        let mut beats = self.beats.subscribe();
        while !condition() {
            beats.changed().await.unwrap();
        }
    }
}

struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::milliseconds(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a run is made of.
struct Setup {
    parallelism: u32,
    /// Where each partition begins; `None` for one without a leader.
    partitions: BTreeMap<i32, Option<i64>>,
    checkpoint: CheckpointSpec,
    commits: bool,
    /// Between the commits of a job without checkpoints.
    commit_every: Duration,
    /// Where a bounded run ends.
    ends: Option<PartitionOffsets>,
    /// The id of the topic that the positions belong to.
    topic_id: Option<&'static str>,
    /// Partitions that the start only keeps.
    reasons: BTreeMap<i32, StartReason>,
    /// Partitions that the start parks.
    parked: BTreeMap<i32, PlannedParking>,
    source: fn(&mut SourceSpec),
    limits: LimitsSpec,
    watermark: Option<WatermarkSpec>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            parallelism: 1,
            partitions: BTreeMap::from([(0, Some(0))]),
            checkpoint: timing(NEVER, NEVER),
            commits: true,
            commit_every: NEVER,
            ends: None,
            topic_id: None,
            reasons: BTreeMap::new(),
            parked: BTreeMap::new(),
            source: |_| {},
            limits: LimitsSpec::default(),
            watermark: None,
        }
    }
}

fn timing(interval: Duration, timeout: Duration) -> CheckpointSpec {
    CheckpointSpec {
        interval: Some(HumanDuration(interval)),
        timeout: HumanDuration(timeout),
        min_pause: HumanDuration(Duration::ZERO),
        on_cancel: OnCancel::Retain,
    }
}

/// The surroundings of a run. Dropping it fails the test if a rule was broken.
struct World {
    pulse: Pulse,
    cluster: Arc<Cluster>,
    store: Arc<MemoryStore>,
    sink: Arc<TestSink>,
    letters: Arc<Letters>,
    lease: watch::Sender<LeaseHealth>,
    lease_until: watch::Sender<Instant>,
}

impl World {
    fn new() -> Self {
        let pulse = Pulse::new();
        let store = Arc::new(MemoryStore::new(pulse.clone()));
        Self {
            cluster: Arc::new(Cluster::new(pulse.clone(), Arc::clone(&store))),
            sink: Arc::new(TestSink::new(pulse.clone())),
            letters: Arc::new(Letters::new(pulse.clone())),
            lease: watch::Sender::new(LeaseHealth::Held),
            lease_until: watch::Sender::new(Instant::now() + NEVER),
            store,
            pulse,
        }
    }

    fn start(&self, setup: Setup) -> JobHandle {
        self.start_as(Format::Bytes, setup)
    }

    /// A run that a bad record ends.
    fn start_strict(&self, format: Format, setup: Setup) -> JobHandle {
        self.start_with(format, Block::Job, setup)
    }

    fn start_as(&self, format: Format, setup: Setup) -> JobHandle {
        self.start_with(format, Block::Partition, setup)
    }

    fn start_with(&self, format: Format, block: Block, setup: Setup) -> JobHandle {
        let errors = ErrorsSpec {
            block,
            on_bad_record: OnBadRecord::Stop,
        };
        self.start_under(format, errors, PositionPolicy::Fail, setup)
    }

    fn start_under(
        &self,
        format: Format,
        errors: ErrorsSpec,
        on_out_of_range: PositionPolicy,
        setup: Setup,
    ) -> JobHandle {
        let name = JobName::new("orders").unwrap();
        let document = serde_json::json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "latest"},
            "sink": {"type": "blackhole"},
        });
        let mut spec = JobSpec::read(&name, &document).unwrap();
        spec.source.format = format;
        spec.errors = errors;
        spec.source.on_out_of_range = on_out_of_range;
        spec.parallelism = setup.parallelism;
        spec.checkpoint = setup.checkpoint;
        (setup.source)(&mut spec.source);
        spec.limits = setup.limits;
        if spec.checkpointing().is_off() {
            self.store.keep_none();
            spec.source.commit_to_group = CommitToGroup::Periodic;
            spec.source.commit_interval = Some(HumanDuration(setup.commit_every));
        }
        spec.watermark = setup.watermark;
        if !setup.commits {
            spec.source.commit_to_group = CommitToGroup::Off;
        }
        let lease = JobLease {
            job: JobUid(uuid::Uuid::nil()),
            epoch: LeaseEpoch(1),
        };
        let positions = setup.partitions.iter().map(|(number, position)| {
            let position = CheckpointPosition {
                next_offset: position.map(offset),
                position_id: CheckpointId(1),
                topic_id: setup.topic_id.map(|id| TopicId(id.into())),
            };
            (partition(*number), position)
        });
        let start = Checkpoint {
            id: CheckpointId(1),
            kind: CheckpointKind::Start,
            epoch: lease.epoch,
            started_at: DateTime::UNIX_EPOCH,
            completed_at: DateTime::UNIX_EPOCH,
            phases: CheckpointPhases::default(),
            has_output: false,
            sink_identity: "test".to_owned(),
            positions: positions.collect(),
        };
        self.store.begin_with(start.clone());
        JobHandle::spawn(JobRun {
            name,
            install: InstallId(uuid::Uuid::nil()),
            spec,
            lease,
            start,
            ends: setup.ends,
            reasons: setup
                .reasons
                .into_iter()
                .map(|(number, reason)| (partition(number), reason))
                .collect(),
            parked: setup
                .parked
                .into_iter()
                .map(|(number, parking)| (partition(number), parking))
                .collect(),
            kafka: Arc::clone(&self.cluster) as _,
            sink: Arc::clone(&self.sink) as _,
            dead_letters: Some(Arc::clone(&self.letters) as _),
            store: Arc::clone(&self.store) as _,
            clock: Arc::new(TestClock(AtomicI64::new(0))),
            lease_health: self.lease.subscribe(),
            lease_until: self.lease_until.subscribe(),
        })
    }

    /// Waits until a condition of the surroundings holds.
    async fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        within(what, self.pulse.holds(condition)).await;
    }

    /// Waits until the history has that many entries of a kind, and answers their details.
    async fn until_told(&self, kind: EventKind, entries: usize) -> Vec<serde_json::Value> {
        let what = format!("{entries} entries of {}", kind.as_str());
        self.until(&what, || self.told(kind).len() >= entries).await;
        self.told(kind)
    }

    /// The details of the history's entries of a kind.
    fn told(&self, kind: EventKind) -> Vec<serde_json::Value> {
        let entries = self.store.events().into_iter();
        let of_kind = entries.filter(|(of, _)| *of == kind);
        of_kind.map(|(_, details)| details).collect()
    }

    /// Waits until the sink has that many records.
    async fn until_written(&self, records: usize) {
        let what = format!("{records} records in the sink");
        self.until(&what, || self.sink.written().len() >= records)
            .await;
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Whoever waits on one of our threads goes on, so that the runtime can end.
        self.cluster.release();
        let violations = self.pulse.violations.lock().unwrap().clone();
        if !std::thread::panicking() {
            assert_eq!(violations, Vec::<String>::new(), "a rule was broken");
        }
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(DEADLINE, future).await;
    outcome.unwrap_or_else(|_| panic!("waited too long: {what}"))
}

/// Waits until the status that a job shows is as told.
async fn until_status(
    job: &JobHandle,
    what: &str,
    condition: impl FnMut(&Arc<JobStatus>) -> bool,
) -> Arc<JobStatus> {
    let mut status = job.watch_status();
    let shown = within(what, status.wait_for(condition)).await;
    Arc::clone(&shown.unwrap())
}

async fn checkpoint(job: &JobHandle) -> CheckpointReport {
    let report = within("a manual checkpoint", job.trigger_checkpoint(None)).await;
    report.expect("the job runs")
}

/// Triggers a checkpoint that is awaited elsewhere.
fn trigger(
    job: &JobHandle,
    timeout: Option<Duration>,
) -> impl Future<Output = Option<CheckpointReport>> + use<> {
    let job = job.clone();
    let waits = spawn(async move { job.trigger_checkpoint(timeout).await });
    async move { within("a checkpoint", waits).await.unwrap() }
}

#[expect(
    clippy::disallowed_methods,
    reason = "every test awaits what it spawns, or drops it with its runtime"
)]
fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

async fn stop(job: &JobHandle, how: StopCheckpoint) -> StopOutcome {
    let end = within("a stop", job.stop(how, NEVER)).await;
    stopped(end.expect("the stop takes place"))
}

fn stopped(end: JobEnd) -> StopOutcome {
    match end {
        JobEnd::Stopped(outcome) => *outcome,
        JobEnd::Finished(outcome) => panic!("the job finished: {outcome:?}"),
        JobEnd::Failed(error) => panic!("the job failed: {error}"),
    }
}

async fn failure(job: &JobHandle) -> JobError {
    match within("the end of the job", job.ended()).await {
        JobEnd::Failed(error) => error,
        JobEnd::Stopped(outcome) | JobEnd::Finished(outcome) => {
            panic!("the job ended without a failure: {outcome:?}")
        }
    }
}

fn offset(number: i64) -> Offset {
    Offset::new(number).unwrap()
}

fn partition(number: i32) -> TopicPartition {
    TopicPartition::new("orders", number)
}

/// Positions by partition number.
fn offsets_of(checkpoint: &Checkpoint) -> BTreeMap<i32, i64> {
    let offsets = checkpoint.offsets();
    offsets
        .iter()
        .map(|(partition, offset)| (partition.partition, offset.get()))
        .collect()
}
