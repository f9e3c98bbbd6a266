//! What the services, the supervisor and the monitor share: the seams to the outside and what is known of each job.
//!
//! One server is the only writer of its jobs' states, so its memory is current and lists never wait for anything. What is
//! kept here is lost with the process and nothing depends on it: it is read again from the store and the brokers.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::{
    sync::{Notify, broadcast, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    comparison::{BrokerPartition, CheckpointFacts, CheckpointSource, SinkHolds},
    connections::{Clusters, CurrentClusters},
    error::{Result, ServiceError},
    next_steps::RefusedStart,
    oldest_unread::OldestUnread,
    retention::LogStarts,
    series::SeriesLog,
    without_checkpoints::LastRun,
};
use crate::{
    engine::{
        JobHandle,
        ports::{Clock, DeadLetterTopic, GroupOffset, KafkaCluster, LeaseHealth, SinkFactory},
    },
    model::{
        code::Code,
        errors_spec::OnBadRecord,
        health::{Health, HealthInputs, HealthWindow, verdict},
        ids::{InstallId, JobName, JobUid, LeaseEpoch, OperationId, PlanId},
        job::JobSpec,
        job_state::JobState,
        job_status::{JobStatus, LivePartition, Waiting},
        parked::ParkedPartition,
        restart::CrashLoop,
        sink_spec::SinkSpec,
        stop_at::{BoundedRun, RunEnd},
        topic::{TopicId, TopicPartition},
        views::{Flag, PartitionOffsetsView, SourceStatus},
    },
    store::{Incarnation, JobRow, Store, StoredCheckpoint},
};

/// How long a source may not answer before its last answer is no longer used: two measurements of a running job.
const SILENCE: TimeDelta = TimeDelta::seconds(10);

/// What the server's file says to the services.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Under which URL callers reach this server, without a slash at the end; stands in every curl line.
    pub public_url: String,
    /// The name of this server among others on the same store.
    pub instance: String,
    /// The name of this host.
    pub host: String,
    /// Where the lock file of the instance id lies.
    pub lock_dir: PathBuf,
    /// How long a server may be silent before its jobs may be taken over.
    pub lease_ttl: Duration,
    /// How long a shutdown may take, last checkpoints included.
    pub shutdown_deadline: Duration,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) store: Store,
    pub(crate) clusters: CurrentClusters,
    pub(crate) sinks: Arc<dyn SinkFactory>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    jobs: Mutex<BTreeMap<JobName, Arc<JobEntry>>>,
    install: OnceLock<InstallId>,
    pub(crate) lease_health: watch::Sender<LeaseHealth>,
    /// Until when nobody else can have taken a job, by a clock that cannot be set.
    pub(crate) lease_until: watch::Sender<Instant>,
    pub(crate) incarnation: watch::Sender<Option<Incarnation>>,
    pub(crate) finished: broadcast::Sender<OperationId>,
    /// Told when there is a job without a task.
    pub(crate) new_job: Notify,
    pub(crate) stopping: CancellationToken,
    stop_by: OnceLock<Instant>,
}

impl Core {
    pub(crate) fn new(
        store: Store,
        clusters: Clusters,
        sinks: Arc<dyn SinkFactory>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Self {
        Self {
            store,
            clusters: CurrentClusters::new(clusters),
            sinks,
            clock,
            settings,
            jobs: Mutex::default(),
            install: OnceLock::new(),
            lease_until: watch::Sender::new(Instant::now()),
            lease_health: watch::Sender::new(LeaseHealth::Doubtful(
                "the instance is not claimed yet".to_owned(),
            )),
            incarnation: watch::Sender::new(None),
            finished: broadcast::Sender::new(256),
            new_job: Notify::new(),
            stopping: CancellationToken::new(),
            stop_by: OnceLock::new(),
        }
    }

    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// The installation's identity; read once.
    pub(crate) async fn install(&self) -> Result<InstallId> {
        if let Some(install) = self.install.get() {
            return Ok(*install);
        }
        let install = self.store.install_id().await?;
        Ok(*self.install.get_or_init(|| install))
    }

    /// The installation's identity, if it was read already.
    pub(crate) fn known_install(&self) -> Option<InstallId> {
        self.install.get().copied()
    }

    pub(crate) fn cluster(&self, connection: &str) -> Result<Arc<dyn KafkaCluster>> {
        self.clusters.get(connection).ok_or_else(|| {
            ServiceError::new(
                Code::InvalidSpec,
                format!("the server's file has no Kafka connection '{connection}'"),
            )
            .hint(format!(
                "Add [connections.{connection}] to the server's file, or change source.connection."
            ))
        })
    }

    /// The topic for records that a job cannot process, if its spec names one.
    pub(crate) fn dead_letters(&self, spec: &JobSpec) -> Result<Option<Arc<dyn DeadLetterTopic>>> {
        let OnBadRecord::DeadLetter { connection, topic } = &spec.errors.on_bad_record else {
            return Ok(None);
        };
        let cluster = self.cluster(connection)?;
        Ok(Some(cluster.dead_letters(topic)?))
    }

    /// Begins the shutdown; from now on nothing new is started.
    pub(crate) fn begin_shutdown(&self) {
        self.stop_by
            .get_or_init(|| Instant::now() + self.settings.shutdown_deadline);
        self.stopping.cancel();
    }

    /// How much of the shutdown's time is left.
    pub(crate) fn shutdown_time_left(&self) -> Duration {
        self.stop_by
            .get()
            .map_or(self.settings.shutdown_deadline, |by| {
                by.saturating_duration_since(Instant::now())
            })
    }

    /// All jobs that are known, by name.
    pub(crate) fn jobs(&self) -> Vec<Arc<JobEntry>> {
        lock(&self.jobs).values().cloned().collect()
    }

    /// The job of this name, from memory or else from the store.
    pub(crate) async fn job(&self, name: &JobName) -> Result<Arc<JobEntry>> {
        let known = lock(&self.jobs).get(name).cloned();
        if let Some(job) = known {
            return Ok(job);
        }
        match self.store.job(name).await {
            Ok(Some(row)) => Ok(self.remember(row)),
            Ok(None) => Err(ServiceError::no_such_job(name)),
            Err(error) => Err(ServiceError::from(error).job(name)),
        }
    }

    /// Keeps what the store says of a job, and has its task started if it is new.
    pub(crate) fn remember(&self, row: JobRow) -> Arc<JobEntry> {
        let mut jobs = lock(&self.jobs);
        if let Some(job) = jobs.get(&row.name) {
            if job.uid == row.uid {
                job.shared().learn(row);
                return Arc::clone(job);
            }
            // The row was read before its job was deleted and another one took the name.
            if job.shared().row.created_at > row.created_at {
                return Arc::clone(job);
            }
        }
        let job = Arc::new(JobEntry::new(row));
        jobs.insert(job.name.clone(), Arc::clone(&job));
        self.new_job.notify_one();
        job
    }

    /// Drops what is known of a job that was deleted, and ends what watches it.
    pub(crate) fn forget(&self, job: &JobEntry) {
        let mut jobs = lock(&self.jobs);
        if jobs
            .get(&job.name)
            .is_some_and(|known| known.uid == job.uid)
        {
            jobs.remove(&job.name);
        }
        job.gone.cancel();
    }

    /// Reads a job's row again; leaves the old one when the store does not answer.
    pub(crate) async fn refresh(&self, job: &JobEntry) {
        match self.store.job_by_uid(job.uid).await {
            Ok(Some(row)) => job.shared().learn(row),
            Ok(None) => {}
            Err(error) => tracing::debug!(job = %job.name, %error, "cannot read the job again"),
        }
    }

    /// Tells whoever waits that an operation has ended.
    pub(crate) fn announce(&self, operation: &OperationId) {
        // Nobody waiting is no fault.
        drop(self.finished.send(operation.clone()));
    }

    pub(crate) fn new_operation_id(&self) -> OperationId {
        OperationId::from_ulid(&self.ulid())
    }

    pub(crate) fn new_plan_id(&self) -> PlanId {
        PlanId::from_ulid(&self.ulid())
    }

    pub(crate) fn ulid(&self) -> String {
        let ms = u64::try_from(self.now().timestamp_millis()).unwrap_or(0);
        let random = fastrand::u128(..);
        ulid::Ulid::from_parts(ms, random)
            .to_string()
            .to_ascii_lowercase()
    }
}

/// Takes a lock whose holder never panics half-way: every critical section here only moves values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of one job.
pub(crate) struct JobEntry {
    pub(crate) uid: JobUid,
    pub(crate) name: JobName,
    shared: Mutex<JobFacts>,
    /// Tells the job's task that there is something to do.
    pub(crate) wake: Notify,
    /// Set while a stop waits; a start that is waiting for something gives way to it.
    pub(crate) stop_asked: watch::Sender<bool>,
    /// Held by whoever asks the brokers, so that callers at the same time share one answer.
    pub(crate) measuring: tokio::sync::Mutex<()>,
    /// Tells the job's monitor to measure soon.
    pub(crate) measure_soon: Notify,
    /// Tells the job's reader of oldest unread records that somebody looks.
    pub(crate) read_unread: Notify,
    /// Cancelled when the job was deleted.
    pub(crate) gone: CancellationToken,
}

/// The changing part of a [`JobEntry`].
pub(crate) struct JobFacts {
    pub(crate) row: JobRow,
    /// What this server does with the job, which the row may not say yet.
    pub(crate) state: Option<(JobState, DateTime<Utc>)>,
    pub(crate) run: Option<JobHandle>,
    /// What a start waits for.
    pub(crate) waiting: Vec<Waiting>,
    /// When the brokers were asked last (when that began, not when they answered).
    pub(crate) attempted_at: Option<Instant>,
    /// Answers to questions from before are no longer to be used: the job has moved the group or itself since.
    pub(crate) outdated_at: Option<Instant>,
    pub(crate) brokers: Source<BTreeMap<TopicPartition, BrokerPartition>>,
    pub(crate) group: Source<BTreeMap<TopicPartition, GroupOffset>>,
    pub(crate) members: Option<usize>,
    /// The live positions as they were just before the brokers were asked, so that a lag is not measured to an older end.
    pub(crate) live: Option<LiveSnapshot>,
    pub(crate) checkpoint: Source<Option<Arc<CheckpointFacts>>>,
    /// The bounded run as it is stored.
    pub(crate) bounded: Option<BoundedRun>,
    /// When a sink was asked last (when that began), and which.
    pub(crate) sink_asked: Option<(Instant, SinkSpec)>,
    /// What the sink said; `None` inside for one that keeps no progress.
    pub(crate) sink: Source<Option<SinkHolds>>,
    pub(crate) unread: OldestUnread,
    pub(crate) log_starts: LogStarts,
    pub(crate) window: HealthWindow,
    pub(crate) counters: Counters,
    pub(crate) series: SeriesLog,
    pub(crate) has_task: bool,
    /// The last start, if it was refused; until the next one.
    pub(crate) refused: Option<RefusedStart>,
    /// Where the last run ended, if it took no checkpoints.
    pub(crate) last_run: Option<LastRun>,
    /// The sink that the last run of this server wrote to.
    pub(crate) wrote_to: Option<SinkSpec>,
}

/// The live positions of one run at one moment.
#[derive(Clone)]
pub(crate) struct LiveSnapshot {
    pub(crate) epoch: LeaseEpoch,
    pub(crate) partitions: Arc<BTreeMap<TopicPartition, LivePartition>>,
    /// Whether the limits held something back.
    pub(crate) throttled: bool,
    pub(crate) at: DateTime<Utc>,
}

/// What a source said last, and whether it answered the last time it was asked.
pub(crate) struct Source<T> {
    pub(crate) value: Option<T>,
    pub(crate) at: Option<DateTime<Utc>>,
    pub(crate) error: Option<(SourceStatus, String)>,
    /// When the first of the questions was asked that have failed since the last answer.
    pub(crate) failing_since: Option<DateTime<Utc>>,
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self {
            value: None,
            at: None,
            error: None,
            failing_since: None,
        }
    }
}

impl<T> Source<T> {
    pub(crate) fn answered(&mut self, value: T, at: DateTime<Utc>) {
        *self = Self {
            value: Some(value),
            at: Some(at),
            error: None,
            failing_since: None,
        };
    }

    pub(crate) fn failed(&mut self, status: SourceStatus, why: String, asked_at: DateTime<Utc>) {
        self.error = Some((status, why));
        self.failing_since.get_or_insert(asked_at);
    }

    /// The value, unless it is from before a silence that has lasted for a while: then it is no longer known.
    pub(crate) fn recent(&self, now: DateTime<Utc>) -> Option<&T> {
        self.value.as_ref().filter(|_| !self.is_silent(now))
    }

    /// Whether every question has failed for a while; one that is late does not count.
    fn is_silent(&self, now: DateTime<Utc>) -> bool {
        self.failing_since
            .is_some_and(|since| now - since >= SILENCE)
    }

    /// The value, if the last answer is a good one.
    pub(crate) fn current(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.error.is_none())
    }
}

/// What happened to a job since this server started.
///
/// `completed` and `failed` count checkpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pub(crate) completed: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    /// Runs that crashed.
    pub(crate) crashes: u64,
}

impl JobEntry {
    fn new(row: JobRow) -> Self {
        Self {
            uid: row.uid,
            name: row.name.clone(),
            shared: Mutex::new(JobFacts {
                row,
                state: None,
                run: None,
                waiting: Vec::new(),
                attempted_at: None,
                outdated_at: None,
                brokers: Source::default(),
                group: Source::default(),
                members: None,
                live: None,
                checkpoint: Source::default(),
                bounded: None,
                sink_asked: None,
                sink: Source::default(),
                unread: OldestUnread::default(),
                log_starts: LogStarts::default(),
                window: HealthWindow::default(),
                counters: Counters::default(),
                series: SeriesLog::default(),
                has_task: false,
                refused: None,
                last_run: None,
                wrote_to: None,
            }),
            wake: Notify::new(),
            stop_asked: watch::Sender::new(false),
            measuring: tokio::sync::Mutex::new(()),
            measure_soon: Notify::new(),
            read_unread: Notify::new(),
            gone: CancellationToken::new(),
        }
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, JobFacts> {
        lock(&self.shared)
    }

    pub(crate) fn row(&self) -> JobRow {
        self.shared().row.clone()
    }

    /// Has the brokers asked again, and what they said until now used no more.
    pub(crate) fn measure_anew(&self) {
        self.shared().outdated_at = Some(Instant::now());
        self.measure_soon.notify_one();
    }

    pub(crate) fn state(&self) -> JobState {
        self.shared().shown_state().0
    }
}

impl JobFacts {
    /// Keeps a row that was read, unless a newer spec has been learnt while it was under way.
    pub(crate) fn learn(&mut self, row: JobRow) {
        if row.generation >= self.row.generation {
            self.row = row;
        }
    }

    /// What the job does, and since when. Before this server has taken the job up, a row that says running was written by a
    /// server that is gone, unless its owner is alive.
    pub(crate) fn shown_state(&self) -> (JobState, DateTime<Utc>) {
        let is_owned = self.row.owner.as_ref().is_some_and(|owner| owner.live);
        let stored = match self.row.state {
            JobState::Running if !is_owned => JobState::Starting,
            JobState::Running => JobState::Running,
            state @ (JobState::Stopped
            | JobState::Starting
            | JobState::Stopping
            | JobState::BackingOff
            | JobState::Failed
            | JobState::Finished) => state,
        };
        self.state.unwrap_or((stored, self.row.state_since))
    }

    /// The status of the run, if there is one.
    pub(crate) fn status(&self) -> Option<Arc<JobStatus>> {
        self.run.as_ref().map(JobHandle::status)
    }

    /// The spec that counts: the running one, else the declared one.
    pub(crate) fn spec(&self) -> &JobSpec {
        match &self.run {
            Some(_) => self.row.running_spec(),
            None => &self.row.spec,
        }
    }

    /// Where the bounded run ends that the spec means.
    pub(crate) fn ends(&self) -> Option<&BTreeMap<TopicPartition, RunEnd>> {
        let run = self.bounded.as_ref()?;
        let is_meant = self.spec().source.stop_at.as_ref() == Some(&run.stop_at);
        is_meant.then_some(&run.ends)
    }

    /// The newest checkpoint, as far as it counts: a job that takes none has none, whatever is kept of an earlier time.
    pub(crate) fn newest_checkpoint(&self) -> CheckpointSource<'_> {
        if self.spec().checkpointing().is_off() {
            return CheckpointSource::Absent;
        }
        match &self.checkpoint.value {
            Some(known) if self.is_outdated(known.as_deref()) => CheckpointSource::Unknown,
            Some(Some(checkpoint)) => CheckpointSource::Known(checkpoint),
            Some(None) => CheckpointSource::Absent,
            None => CheckpointSource::Unknown,
        }
    }

    /// Whether the run has completed a newer checkpoint than the store told of, and the store does not answer: then the group
    /// may rightly be ahead of what is known.
    fn is_outdated(&self, known: Option<&CheckpointFacts>) -> bool {
        let newest = self
            .status()
            .and_then(|status| Some(status.last_checkpoint.as_ref()?.id));
        let is_newer = newest > known.map(|known| known.id);
        is_newer && self.checkpoint.current().is_none()
    }

    /// What the job waits for: its start, or its run.
    pub(crate) fn all_waiting(&self, now: DateTime<Utc>) -> Vec<Waiting> {
        let run = self.status().map(|status| status.waiting.clone());
        let mut all = self.waiting.clone();
        all.extend(run.unwrap_or_default());
        let is_told = all
            .iter()
            .any(|waiting| matches!(waiting.code, Code::KafkaUnreachable | Code::KafkaTimeout));
        all.extend(self.silent_brokers(now).filter(|_| !is_told));
        all.extend(self.pause_after_crash());
        all
    }

    /// What is known of the crash loop that the job is in. A run that has lasted has ended it.
    pub(crate) fn crash_loop(&self, now: DateTime<Utc>) -> Option<&CrashLoop> {
        let lasts = self.status().is_some_and(|status| {
            let ran_for = (now - status.since).to_std().unwrap_or_default();
            ran_for >= self.row.spec.restart.loop_ends_after()
        });
        self.row.crash_loop.as_ref().filter(|_| !lasts)
    }

    fn pause_after_crash(&self) -> Option<Waiting> {
        let crash_loop = self.row.crash_loop.as_ref()?;
        if self.shown_state().0 != JobState::BackingOff {
            return None;
        }
        let cause = &crash_loop.last_cause;
        Some(Waiting {
            code: cause.code,
            since: cause.first_seen,
            detail: crash_loop.pause(),
        })
    }

    /// Has the run look at its topics at once if the brokers do not have one of its partitions, or have it in another topic
    /// than the checkpoint says: it would see that by itself, at its next look.
    pub(crate) fn doubt_topics(&self, brokers: &BTreeMap<TopicPartition, BrokerPartition>) {
        let (Some(run), Some(status)) = (&self.run, self.status()) else {
            return;
        };
        let checkpoint = self.checkpoint.value.as_ref().and_then(Option::as_ref);
        let is_other = |partition: &TopicPartition| {
            let Some(now) = brokers.get(partition) else {
                return true;
            };
            let then = checkpoint.and_then(|known| known.positions.get(partition));
            let then = then.and_then(|position| position.topic_id.as_ref());
            TopicId::differ(then, now.topic_id.as_ref())
        };
        let parked = |partition: &TopicPartition| status.parked.contains_key(partition);
        let mut read = status.partitions.keys();
        if read.any(|partition| !parked(partition) && is_other(partition)) {
            run.look_at_topics();
        }
    }

    /// A run learns from its client only that a connection has broken. Brokers that keep their connections and say nothing
    /// are noticed by those who ask them.
    fn silent_brokers(&self, now: DateTime<Utc>) -> Option<Waiting> {
        self.run.as_ref()?;
        let (status, why) = self.brokers.error.as_ref()?;
        let code = match status {
            SourceStatus::Timeout => Code::KafkaTimeout,
            SourceStatus::Unreachable => Code::KafkaUnreachable,
            SourceStatus::Ok | SourceStatus::Absent | SourceStatus::Error => return None,
        };
        Some(Waiting {
            code,
            since: self
                .brokers
                .failing_since
                .filter(|_| self.brokers.is_silent(now))?,
            detail: format!("the brokers do not say how far their logs go: {why}"),
        })
    }

    /// What the run does not read; of a job that does not run, what its last run did not.
    pub(crate) fn parked(&self) -> Vec<ParkedPartition> {
        match self.status() {
            Some(status) => status.parked.values().cloned().collect(),
            None => self.row.parked.clone(),
        }
    }

    /// Says at each partition that is not read why.
    pub(crate) fn mark_parked(&self, partitions: &mut [PartitionOffsetsView]) {
        for parked in self.parked() {
            let is_meant = |known: &&mut PartitionOffsetsView| {
                known.topic == parked.topic && known.partition == parked.partition
            };
            if let Some(partition) = partitions.iter_mut().find(is_meant) {
                partition.flags.push(Flag::Parked);
                partition.parked = Some(parked);
            }
        }
    }

    pub(crate) fn health(&self, now: DateTime<Utc>) -> Health {
        let parked = match self.run {
            Some(_) => self.parked(),
            None => Vec::new(),
        };
        verdict(&HealthInputs {
            parked: &parked,
            state: self.shown_state().0,
            waiting: &self.all_waiting(now),
            failure: self.row.failure.as_ref(),
            isolation: self.spec().source.isolation,
            window: &self.window,
        })
    }
}

impl From<StoredCheckpoint> for CheckpointFacts {
    fn from(stored: StoredCheckpoint) -> Self {
        Self {
            id: stored.id,
            kind: stored.kind,
            completed_at: stored.ended_at,
            confirmed_at: stored.confirmed_at.unwrap_or(stored.ended_at),
            group_commit: stored.group_commit,
            phases: stored.phases,
            positions: stored.positions,
            sink_identity: stored.sink_identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_until_the_source_has_been_silent_for_a_while() {
        let second = |second: i64| DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap();
        let mut source = Source::default();
        assert_eq!(source.recent(second(0)), None);
        source.answered(7, second(0));
        assert_eq!(
            source.recent(second(3_600)),
            Some(&7),
            "nobody has asked since"
        );
        let fail = |source: &mut Source<i32>, at: i64| {
            source.failed(SourceStatus::Timeout, "no answer".to_owned(), second(at));
        };
        fail(&mut source, 20);
        fail(&mut source, 28);
        assert_eq!(
            (source.recent(second(29)), source.current()),
            (Some(&7), None)
        );
        assert_eq!(source.recent(second(30)), None);
        source.answered(9, second(31));
        fail(&mut source, 40);
        assert_eq!(source.recent(second(45)), Some(&9));
    }
}
