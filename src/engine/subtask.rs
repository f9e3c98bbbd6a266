//! One subtask: a consumer thread, its hand-over slot, and the task that takes batches from it and gives them to the sink.
//!
//! The task is the only owner of its positions and of its sink writer. A checkpoint's barrier reaches it as a message and
//! is served between two batches, so a snapshot needs no lock: the task that gives records to the sink is the task that
//! takes the snapshot. A barrier is a value to look at, not a queue: if the sink blocks for ten intervals, only the newest
//! barrier is there when it comes back.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use handover_slot::{FetcherSide, NextError};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::Backoff,
    bad_records::{BadRecords, LeftOutRecord, letter},
    consumer_thread::{Assignment, Content, Fetched, Request},
    error::{ConsumerError, ErrorClass, JobError, KafkaError, SinkError},
    fetcher::{Counters, Fetcher, LivePosition},
    parked::{LeftOut, Parking},
    ports::{Clock, DeadLetter, DeadLetterTopic, Sink, SinkWriter},
    rate_limit::RateLimit,
    stages::{ActivityClock, Stopwatch},
    watermarks::Pausing,
};
use crate::{
    crash_point::CrashPoint,
    model::{
        ids::{CheckpointId, JobName},
        job_status::FailedRecord,
        offset::{Offset, PartitionOffsets},
        record::RecordBatch,
        resolver::{SinkPosition, SinkProgress},
        topic::TopicPartition,
    },
};

/// How long a writer may take to give up and to end: a target that is away must not hide why the job ended.
const WRITER_CLOSE: Duration = Duration::from_secs(3);
/// How long dead letters may take before it is told that they are waited for.
const SLOW_LETTERS: Duration = Duration::from_secs(2);

/// A checkpoint's barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Barrier {
    /// The attempt.
    pub id: CheckpointId,
    /// When it was sent.
    pub sent_at: Instant,
    /// Until when a sink that is away is tried again: there is no later attempt that could cover this one.
    pub insist_until: Option<Instant>,
}

/// Whether a subtask may take batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intake {
    /// It may.
    Open,
    /// It finishes the batch it has and takes no other: the last checkpoint of a stop, or a doubtful lease.
    Frozen,
}

/// What the job task changes of a subtask's partitions.
pub(super) enum PartitionChange {
    /// One is read from now on.
    Begin(NewPartition),
    /// One is read no longer; its position stays.
    Park(TopicPartition),
}

/// A partition on its way to its subtask.
pub(super) struct NewPartition {
    /// Where it begins.
    pub assignment: Assignment,
    /// The checkpoint that decided its position.
    pub position_id: CheckpointId,
    /// Where its position is shown.
    pub live: Arc<LivePosition>,
}

impl NewPartition {
    fn for_sink(&self) -> (TopicPartition, SinkPosition) {
        let (partition, next_offset) = &self.assignment;
        let position = SinkPosition {
            next_offset: *next_offset,
            position_id: self.position_id,
        };
        (partition.clone(), position)
    }
}

/// What a subtask tells the job task.
#[derive(Debug)]
pub(super) enum SubtaskEvent {
    /// Everything up to these positions is with the sink, durable as far as the sink goes.
    Prepared(Prepared),
    /// The sink could not make it durable; it may work the next time.
    PrepareFailed {
        /// The attempt.
        id: CheckpointId,
        /// Which subtask.
        subtask: u32,
        /// What the sink said.
        detail: String,
    },
    /// A partition cannot go on and is not read any more. Everything before its position was given to the sink.
    Parked {
        /// Which.
        partition: TopicPartition,
        /// Where it stands.
        at: Offset,
        /// Why.
        cause: JobError,
    },
    /// Records that cannot be processed were left out, or written elsewhere.
    LeftOut(Vec<LeftOutRecord>),
}

/// A subtask's part of a checkpoint.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The attempt.
    pub id: CheckpointId,
    /// Which subtask.
    pub subtask: u32,
    /// Its positions.
    pub positions: PartitionOffsets,
    /// From the barrier's sending until it was served.
    pub barrier: Duration,
    /// How long the sink took.
    pub flush: Duration,
    /// Whether records went to the sink since the snapshot before.
    pub has_output: bool,
}

/// What a subtask does at this moment, for the question "what was it doing?" and for where its time goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// Waits for records.
    Idle = 0,
    /// Checks values.
    Decode = 1,
    /// Waits for the sink to take a batch.
    SinkWrite = 2,
    /// Waits for the sink to make everything durable.
    SinkFlush = 3,
    /// Waits for the sink to open its writer.
    SinkOpen = 4,
    /// Has a batch that the job's limits hold back.
    RateLimit = 5,
    /// Waits until records that cannot be processed stand elsewhere.
    DeadLetters = 6,
    /// May not take batches.
    Frozen = 7,
}

impl Activity {
    /// All of them.
    pub(super) const ALL: [Self; 8] = [
        Self::Idle,
        Self::Decode,
        Self::SinkWrite,
        Self::SinkFlush,
        Self::SinkOpen,
        Self::RateLimit,
        Self::DeadLetters,
        Self::Frozen,
    ];
    /// How many there are.
    pub(super) const COUNT: usize = Self::ALL.len();

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Decode => "decode",
            Self::SinkWrite => "sink-write",
            Self::SinkFlush => "sink-flush",
            Self::SinkOpen => "sink-open",
            Self::RateLimit => "rate-limit",
            Self::DeadLetters => "dead-letters",
            Self::Frozen => "frozen",
        }
    }

    /// Whether it is the sink that is waited for.
    pub(super) fn waits_for_sink(self) -> bool {
        match self {
            Self::Idle | Self::Decode | Self::RateLimit | Self::DeadLetters | Self::Frozen => false,
            Self::SinkWrite | Self::SinkFlush | Self::SinkOpen => true,
        }
    }
}

/// The part of a subtask that the job task reads without asking.
#[derive(Debug, Default)]
pub(super) struct SubtaskView {
    /// What it counted.
    pub counters: Arc<Counters>,
    /// What its time went into.
    pub clock: ActivityClock,
    /// How long its consumer thread stood with a batch that it did not take.
    pub blocked: Arc<Stopwatch>,
    cut_off: AtomicBool,
    /// Whether the writer works at what it has taken.
    flushing: Mutex<Arc<AtomicBool>>,
    sink_problem: Mutex<Option<String>>,
}

impl SubtaskView {
    fn enter(&self, activity: Activity) {
        self.clock.enter(activity);
    }

    pub(super) fn activity(&self) -> Activity {
        self.clock.now()
    }

    /// Whether the subtask was ended while the sink had a batch and had not said yes: some of it may have been kept.
    pub(super) fn was_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    /// Whether the sink works at what it has taken, or has failed to and tries again.
    pub(super) fn sink_is_flushing(&self) -> bool {
        let flushing = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        flushing.load(Ordering::Relaxed)
    }

    fn watch_flushing(&self, writer: &dyn SinkWriter) {
        *self.flushing.lock().unwrap_or_else(PoisonError::into_inner) = writer.flushing();
    }

    fn set_sink_problem(&self, problem: Option<String>) {
        *self
            .sink_problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// What the sink said when it last refused for a reason that passes; `None` when it works.
    pub(super) fn sink_problem(&self) -> Option<String> {
        self.sink_problem
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// The job task's end of a subtask's channels.
pub(super) struct SubtaskChannels {
    /// The newest barrier.
    pub barrier: watch::Receiver<Option<Barrier>>,
    /// Whether batches may be taken.
    pub intake: watch::Receiver<Intake>,
    /// Partitions that were given a position after the start, and such that are to be parked.
    pub partitions: mpsc::Receiver<PartitionChange>,
    /// Where to tell what happened.
    pub events: mpsc::Sender<SubtaskEvent>,
    /// Ends the subtask without a checkpoint.
    pub cancel: CancellationToken,
}

/// The task of a subtask.
pub(super) struct SubtaskTask {
    /// Its number.
    pub subtask: u32,
    /// Its end of the hand-over.
    pub batches: FetcherSide<Fetched, Request, JobError>,
    /// Requests made of the consumer thread, those before the start of this task included.
    pub asked: u64,
    /// Its positions.
    pub fetcher: Fetcher,
    /// Where its records go.
    pub sink: Arc<dyn Sink>,
    /// The positions it begins with, as the sink hears them.
    pub begin: Vec<(TopicPartition, SinkPosition)>,
    /// Its channels.
    pub channels: SubtaskChannels,
    /// What it shows.
    pub view: Arc<SubtaskView>,
    /// The limits of the job.
    pub limit: Arc<RateLimit>,
    /// What is left of a batch that the limits hold back, and how many requests the thread had served when it fetched it.
    pub held: Option<(RecordBatch, u64)>,
    /// Whether records went to the sink since the last snapshot.
    pub has_output: bool,
    /// The partitions that are held back because they are ahead; `None` without alignment.
    pub pausing: Option<Pausing>,
    /// Tells the time of a dead letter.
    pub clock: Arc<dyn Clock>,
    /// The job, for dead letters.
    pub job: JobName,
    /// What becomes of records that cannot be processed.
    pub bad_records: BadRecords,
}

/// What the loop does next.
enum Next {
    Cancelled,
    Barrier(Barrier),
    Partition(PartitionChange),
    Fetched(Result<Fetched, NextError<JobError>>),
    /// So many records of the batch that is held back may go.
    Release(usize),
    Sink(Result<(), SinkError>),
    IntakeChanged,
    /// Other partitions are to be held back.
    Align,
}

impl SubtaskTask {
    /// Runs until it is cancelled or something fails that will not pass.
    ///
    /// # Errors
    /// The first cause.
    pub(super) async fn run(mut self) -> Result<(), JobError> {
        let Some(mut writer) = self.open_writer().await? else {
            return Ok(());
        };
        let begin = std::mem::take(&mut self.begin);
        let outcome = match self.assign(writer.as_mut(), &begin).await {
            Ok(true) => {
                CrashPoint::SinkAssigned.reached();
                self.run_loop(&mut writer).await
            }
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        // No thread may be left waiting on a full slot, however this ended.
        self.batches.stop();
        self.batches.close();
        self.close_writer(writer.as_mut()).await;
        outcome
    }

    async fn close_writer(&self, writer: &mut dyn SinkWriter) {
        let closing = tokio::time::timeout(WRITER_CLOSE, async {
            writer.abort().await;
            writer.close().await;
        });
        if closing.await.is_err() {
            tracing::warn!(
                subtask = self.subtask,
                "the sink did not close in time; its writer is dropped"
            );
        }
    }

    /// Opens the writer; `None` when the subtask was cancelled meanwhile.
    async fn open_writer(&mut self) -> Result<Option<Box<dyn SinkWriter>>, JobError> {
        let mut backoff = Backoff::new();
        self.view.enter(Activity::SinkOpen);
        loop {
            let opened = tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(None),
                opened = self.sink.writer(self.subtask) => opened,
            };
            match opened {
                Ok(writer) => {
                    self.view.watch_flushing(writer.as_ref());
                    self.view.set_sink_problem(None);
                    self.view.enter(Activity::Idle);
                    return Ok(Some(writer));
                }
                Err(error) => {
                    if !self.pause_after(error, &mut backoff).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits before the next attempt at the sink if its trouble is of the kind that passes. False when the subtask was
    /// cancelled meanwhile.
    async fn pause_after(
        &mut self,
        error: SinkError,
        backoff: &mut Backoff,
    ) -> Result<bool, JobError> {
        if error.class == ErrorClass::Deterministic {
            return Err(error.into());
        }
        self.view.set_sink_problem(Some(error.detail));
        tokio::select! {
            biased;
            () = self.channels.cancel.cancelled() => Ok(false),
            () = backoff.wait() => Ok(true),
        }
    }

    /// Tells the sink where partitions begin. False when the subtask was cancelled meanwhile.
    async fn assign(
        &mut self,
        writer: &mut dyn SinkWriter,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<bool, JobError> {
        if positions.is_empty() {
            return Ok(true);
        }
        let mut backoff = Backoff::new();
        self.view.enter(Activity::SinkOpen);
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(false),
                outcome = writer.assign(positions) => outcome,
            };
            let Err(error) = outcome else {
                self.view.set_sink_problem(None);
                self.view.enter(Activity::Idle);
                return Ok(true);
            };
            if !self.pause_after(error, &mut backoff).await? {
                return Ok(false);
            }
        }
    }

    async fn run_loop(&mut self, writer: &mut Box<dyn SinkWriter>) -> Result<(), JobError> {
        loop {
            self.leave_what_has_ended();
            match self.next(writer.as_mut()).await {
                Next::Cancelled => return Ok(()),
                Next::Barrier(barrier) => self.prepare(writer, barrier).await?,
                Next::Partition(PartitionChange::Begin(new)) => {
                    if !self.begin(writer, new).await? {
                        return Ok(());
                    }
                }
                Next::Partition(PartitionChange::Park(partition)) => {
                    if self.fetcher.park_by_order(&partition) {
                        self.ask(Request::Leave(partition));
                    }
                }
                Next::Fetched(Ok(Fetched {
                    served,
                    what: Content::Batch(batch),
                })) if self.limit.is_limited() && !batch.is_empty() => {
                    self.held = Some((batch, served));
                }
                Next::Fetched(Ok(Fetched {
                    served,
                    what: Content::Batch(mut batch),
                })) => self.process(writer, &mut batch, served).await?,
                Next::Release(records) => self.release(writer, records).await?,
                Next::Fetched(Ok(Fetched {
                    served,
                    what: Content::OutOfRange(partition),
                })) => self.out_of_range(partition, served).await,
                Next::Fetched(Ok(Fetched {
                    served,
                    what: Content::Unknown(partition),
                })) => self.unknown(partition, served).await,
                Next::Fetched(Err(NextError::Failed(error))) => return Err(error),
                Next::Fetched(Err(NextError::Closed)) => return Ok(()),
                Next::Sink(outcome) => {
                    if let Err(error) = self.heard(outcome) {
                        let refusal = of_a_record(error)?;
                        self.rewind(writer, refusal).await?;
                    }
                }
                Next::IntakeChanged => {}
                Next::Align => self.align(),
            }
        }
    }

    /// Shows what the sink said by itself.
    fn heard(&self, outcome: Result<(), SinkError>) -> Result<(), JobError> {
        let problem = match outcome {
            Ok(()) => None,
            Err(error) if error.class == ErrorClass::Deterministic => return Err(error.into()),
            Err(error) => Some(error.detail),
        };
        self.view.set_sink_problem(problem);
        Ok(())
    }

    /// Waits for whatever comes first; the order says what wins when several are there.
    async fn next(&mut self, writer: &mut dyn SinkWriter) -> Next {
        let shown = self.view.sink_problem();
        let channels = &mut self.channels;
        let open = *channels.intake.borrow_and_update() == Intake::Open;
        let pausing = self.pausing.as_mut();
        let is_aligned = pausing.is_some();
        let realigned = async {
            match pausing {
                Some(pausing) => pausing.changed().await,
                None => std::future::pending().await,
            }
        };
        let held = self.held.as_ref();
        self.view.enter(match held {
            _ if !open => Activity::Frozen,
            Some(_) => Activity::RateLimit,
            None => Activity::Idle,
        });
        let fetcher = &mut self.fetcher;
        let (limit, batches) = (&self.limit, &mut self.batches);
        let taken = async {
            fetcher.looked_at().await;
            match held {
                Some((batch, _)) => Next::Release(limit.take(batch).await),
                None => Next::Fetched(batches.next().await),
            }
        };
        tokio::select! {
            biased;
            () = channels.cancel.cancelled() => Next::Cancelled,
            // Before the barrier: one that was sent after a partition was given covers it.
            Some(change) = channels.partitions.recv() => Next::Partition(change),
            changed = channels.barrier.changed() => match changed {
                Ok(()) => channels.barrier.borrow_and_update().map_or(Next::IntakeChanged, Next::Barrier),
                // The job task is gone.
                Err(_) => Next::Cancelled,
            },
            changed = channels.intake.changed() => if changed.is_ok() { Next::IntakeChanged } else { Next::Cancelled },
            () = realigned, if is_aligned => Next::Align,
            // Before a batch: a sink that has refused a record takes no other.
            outcome = writer.troubled(shown.as_deref()) => Next::Sink(outcome),
            taken = taken, if open => taken,
        }
    }

    /// Lets the first records of the batch go that is held back. The rest waits for its turn, as if it were a batch of its
    /// own: a barrier may come between the two.
    async fn release(
        &mut self,
        writer: &mut Box<dyn SinkWriter>,
        records: usize,
    ) -> Result<(), JobError> {
        let Some((mut batch, served)) = self.held.take() else {
            return Ok(());
        };
        let rest = batch.keep_first(records);
        self.process(writer, &mut batch, served).await?;
        if !rest.is_empty() {
            batch.set_runs(rest);
            self.held = Some((batch, served));
        }
        Ok(())
    }

    /// Begins to read a partition, for the first time or again.
    async fn begin(
        &mut self,
        writer: &mut Box<dyn SinkWriter>,
        new: NewPartition,
    ) -> Result<bool, JobError> {
        let for_sink = [new.for_sink()];
        loop {
            match self.assign(writer.as_mut(), &for_sink).await {
                Ok(true) => break,
                Ok(false) => return Ok(false),
                Err(error) => {
                    let refusal = of_a_record(error)?;
                    if !self.rewind(writer, refusal).await? {
                        return Ok(false);
                    }
                }
            }
        }
        let (partition, _) = &new.assignment;
        if self.fetcher.position(partition).is_some() {
            self.ask(Request::Leave(partition.clone()));
        }
        let since = self.ask(Request::Read(new.assignment.clone()));
        self.fetcher
            .register(&new.assignment, new.position_id, since, new.live);
        if let Some(pausing) = &mut self.pausing {
            pausing.forget(&new.assignment.0);
        }
        self.align();
        Ok(true)
    }

    /// Leaves the partitions that are too far ahead, and reads those again that no longer are, from where they stand. What is
    /// on its way of a partition that is left still counts, until it is given again.
    fn align(&mut self) {
        let Some(mut pausing) = self.pausing.take() else {
            return;
        };
        let changes = pausing.changes(|partition| self.fetcher.reads(partition).is_some());
        self.pausing = Some(pausing);
        for partition in changes.pause {
            tracing::debug!(%partition, "held back: it is ahead of the others");
            self.ask(Request::Leave(partition));
        }
        for partition in changes.resume {
            let Some(position) = self.fetcher.reads(&partition) else {
                // It has ended or was parked meanwhile (FLINK-39728).
                tracing::debug!(%partition, "no longer held back, and not read any more either");
                continue;
            };
            tracing::debug!(%partition, "no longer held back");
            let since = self.ask(Request::Read((partition.clone(), position)));
            self.fetcher.given_again(&partition, since);
        }
    }

    fn is_held_back(&self, partition: &TopicPartition) -> bool {
        let pausing = self.pausing.as_ref();
        pausing.is_some_and(|pausing| pausing.holds(partition))
    }

    /// The sink refuses a record. Its writer has lost what it had not made durable, so everything behind that is read again,
    /// and when it comes to the record, that is not given to the sink a second time. False when the subtask was cancelled.
    async fn rewind(
        &mut self,
        writer: &mut Box<dyn SinkWriter>,
        refusal: SinkError,
    ) -> Result<bool, JobError> {
        tracing::warn!(error = %refusal, "the sink refuses a record; what it has not kept is read again");
        self.close_writer(writer.as_mut()).await;
        let Some(progress) = self.progress().await? else {
            return Ok(false);
        };
        let Some(next) = self.open_writer().await? else {
            return Ok(false);
        };
        *writer = next;
        let rewound = self.fetcher.rewind(&progress);
        let positions: Vec<(TopicPartition, SinkPosition)> = rewound
            .iter()
            .map(|rewound| (rewound.partition.clone(), rewound.from))
            .collect();
        if !self.assign(writer.as_mut(), &positions).await? {
            return Ok(false);
        }
        for again in rewound.into_iter().filter(|rewound| rewound.read) {
            let mut since = self.ask(Request::Leave(again.partition.clone()));
            if !self.is_held_back(&again.partition) {
                let assignment = (again.partition.clone(), again.from.next_offset);
                since = self.ask(Request::Read(assignment));
            }
            self.fetcher.given_again(&again.partition, since);
        }
        self.fetcher.refuse(&refusal);
        self.view.enter(Activity::Idle);
        Ok(true)
    }

    /// How far the sink has come; `None` when the subtask was cancelled meanwhile.
    async fn progress(&mut self) -> Result<Option<SinkProgress>, JobError> {
        let mut backoff = Backoff::new();
        self.view.enter(Activity::SinkOpen);
        loop {
            let asked = tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(None),
                asked = self.sink.progress() => asked,
            };
            match asked {
                Ok(progress) => return Ok(Some(progress)),
                Err(error) => {
                    if !self.pause_after(error, &mut backoff).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn process(
        &mut self,
        writer: &mut Box<dyn SinkWriter>,
        batch: &mut RecordBatch,
        served: u64,
    ) -> Result<(), JobError> {
        self.view.enter(Activity::Decode);
        let leave_out = self.bad_records.leaves_out();
        let admitted = self.fetcher.admit(batch, served, leave_out);
        let mut parked = admitted.parked;
        let mut left_out = Vec::new();
        if !admitted.left_out.is_empty() {
            self.view.enter(Activity::DeadLetters);
            match self.leave_out(batch, admitted.left_out).await {
                Some((refused, done)) => {
                    parked.extend(refused);
                    left_out = done;
                }
                None => return Ok(()),
            }
        }
        if !batch.is_empty() {
            self.view.enter(Activity::SinkWrite);
            let written = match self.write(writer.as_mut(), batch).await {
                Ok(written) => written,
                Err(error) => {
                    let refusal = of_a_record(error)?;
                    return self.rewind(writer, refusal).await.map(drop);
                }
            };
            if !written {
                self.view.cut_off.store(true, Ordering::Relaxed);
                return Ok(());
            }
            CrashPoint::BatchWritten.reached();
            self.has_output = true;
        }
        // Not before the write: if the sink refuses a record of the batch, all of it comes once more.
        self.count_left_out(left_out).await;
        self.fetcher.advance(batch);
        self.view.enter(Activity::Idle);
        for parking in parked {
            self.parked(parking).await;
        }
        // The hand-over does not take part in the runtime's budget, so a fast topic would never let go of its worker.
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Deals with records that cannot be processed, before anything behind them is given to the sink. Answers the partitions
    /// that are parked at one after all, and what was left out; `None` when the subtask was cancelled meanwhile.
    async fn leave_out(
        &mut self,
        batch: &mut RecordBatch,
        left_out: Vec<LeftOut>,
    ) -> Option<(Vec<Parking>, Vec<(TopicPartition, LeftOutRecord)>)> {
        let refusals = match self.bad_records.clone() {
            BadRecords::Stop | BadRecords::Skip => left_out.iter().map(|_| None).collect(),
            BadRecords::DeadLetter(topic) => {
                let letters = left_out
                    .iter()
                    .map(|bad| letter(batch, bad.index, &bad.cause, &self.job, self.clock.now()))
                    .collect();
                self.deliver(&*topic, letters).await?
            }
        };
        let mut parked: Vec<Parking> = Vec::new();
        let mut told = Vec::new();
        for (bad, refusal) in left_out.into_iter().zip(refusals) {
            if parked
                .iter()
                .any(|parked| parked.partition == bad.partition)
            {
                // It comes to this one again.
                continue;
            }
            let record = FailedRecord::of(&bad.partition, &batch.record(bad.index));
            let Some(refusal) = refusal else {
                let failure = bad.cause.failure(chrono::DateTime::UNIX_EPOCH);
                let record = LeftOutRecord {
                    record,
                    phase: failure.phase.unwrap_or_default(),
                    detail: failure.summary,
                };
                told.push((bad.partition, record));
                continue;
            };
            self.fetcher.park_in(batch, &bad.partition, bad.index);
            let cause = JobError::DeadLetter {
                record: Box::new(record),
                why: bad.cause.to_string(),
                refusal,
            };
            parked.push(Parking {
                partition: bad.partition,
                cause,
            });
        }
        Some((parked, told))
    }

    /// Delivers letters; such that cannot be now are tried again for ever. Answers why each one is refused for good, if it is.
    async fn deliver(
        &mut self,
        topic: &dyn DeadLetterTopic,
        letters: Vec<DeadLetter>,
    ) -> Option<Vec<Option<KafkaError>>> {
        let mut refusals: Vec<Option<KafkaError>> = letters.iter().map(|_| None).collect();
        let mut open: Vec<(usize, DeadLetter)> = letters.into_iter().enumerate().collect();
        let mut backoff = Backoff::new();
        loop {
            let (places, now): (Vec<usize>, Vec<DeadLetter>) = open.into_iter().unzip();
            let outcomes = {
                let delivery = topic.deliver(&now);
                tokio::pin!(delivery);
                loop {
                    tokio::select! {
                        biased;
                        () = self.channels.cancel.cancelled() => return None,
                        outcomes = &mut delivery => break outcomes,
                        // The producer tries for longer than anybody wants to be left without a word.
                        () = tokio::time::sleep(SLOW_LETTERS) => {
                            let words =
                                format!("dead letters to {} are not answered yet", topic.name());
                            self.view.set_sink_problem(Some(words));
                        }
                    }
                }
            };
            open = Vec::new();
            let mut away = None;
            for ((place, letter), outcome) in places.into_iter().zip(now).zip(outcomes) {
                match outcome {
                    Ok(()) => {}
                    Err(error) if error.class == ErrorClass::Infrastructure => {
                        away = Some(format!("dead letters to {}: {error}", topic.name()));
                        open.push((place, letter));
                    }
                    Err(error) => refusals[place] = Some(error),
                }
            }
            let is_away = away.is_some();
            self.view.set_sink_problem(away);
            if !is_away {
                return Some(refusals);
            }
            tokio::select! {
                () = self.channels.cancel.cancelled() => return None,
                () = backoff.wait() => {}
            }
        }
    }

    /// Counts what is left out, each record once. Its letter may stand twice.
    async fn count_left_out(&mut self, mut left_out: Vec<(TopicPartition, LeftOutRecord)>) {
        left_out.retain(|(partition, left_out)| {
            self.fetcher
                .is_newly_left_out(partition, left_out.record.offset)
        });
        let records: Vec<LeftOutRecord> = left_out.into_iter().map(|(_, record)| record).collect();
        if records.is_empty() {
            return;
        }
        let counters = &self.view.counters;
        let counter = match &self.bad_records {
            BadRecords::DeadLetter(_) => &counters.dead_lettered,
            BadRecords::Stop | BadRecords::Skip => &counters.skipped,
        };
        counter.fetch_add(records.len() as u64, Ordering::Relaxed);
        // The job task is gone when nobody takes it; then this subtask is cancelled too.
        let _unheard = self
            .channels
            .events
            .send(SubtaskEvent::LeftOut(records))
            .await;
    }

    /// Has the consumer leave the partitions of a bounded run that have come to their ends: while the others go on, nothing
    /// is fetched of them to be thrown away.
    fn leave_what_has_ended(&mut self) {
        for partition in self.fetcher.take_ended() {
            self.ask(Request::Leave(partition));
        }
    }

    /// Asks something of the consumer thread; answers how many requests that makes.
    fn ask(&mut self, request: Request) -> u64 {
        self.batches.assign([request]);
        self.asked += 1;
        self.asked
    }

    /// The log does not hold a partition's position. What counts is our own: all before it was written.
    async fn out_of_range(&mut self, partition: TopicPartition, served: u64) {
        let Some(position) = self.fetcher.park(&partition, served) else {
            return;
        };
        let cause = ConsumerError::OutOfRange {
            partition: partition.clone(),
            position,
        };
        let cause = cause.into();
        self.parked(Parking { partition, cause }).await;
    }

    /// The brokers do not know a partition. What comes of it next may be of another topic of that name, so nothing is taken
    /// until somebody has looked.
    async fn unknown(&mut self, partition: TopicPartition, served: u64) {
        if self.fetcher.park(&partition, served).is_none() {
            return;
        }
        let cause = ConsumerError::TopicUnknown {
            partition: partition.clone(),
        };
        let cause = cause.into();
        self.parked(Parking { partition, cause }).await;
    }

    /// Leaves a partition that is parked and tells of it.
    async fn parked(&mut self, Parking { partition, cause }: Parking) {
        self.ask(Request::Leave(partition.clone()));
        let Some(at) = self.fetcher.position(&partition) else {
            return;
        };
        let event = SubtaskEvent::Parked {
            partition,
            at,
            cause,
        };
        // The job task is gone when nobody takes it; then this subtask is cancelled too.
        let _unheard = self.channels.events.send(event).await;
    }

    /// Gives a batch to the sink, again and again while the sink's trouble is of the kind that passes. False when the
    /// subtask was cancelled meanwhile: the batch does not count then.
    async fn write(
        &mut self,
        writer: &mut dyn SinkWriter,
        batch: &RecordBatch,
    ) -> Result<bool, JobError> {
        let mut backoff = Backoff::new();
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(false),
                outcome = writer.write(batch) => outcome,
            };
            match outcome {
                Ok(()) => {
                    self.view.set_sink_problem(None);
                    return Ok(true);
                }
                Err(error) => {
                    if !self.pause_after(error, &mut backoff).await? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    async fn prepare(
        &mut self,
        writer: &mut Box<dyn SinkWriter>,
        barrier: Barrier,
    ) -> Result<(), JobError> {
        let served_at = Instant::now();
        self.view.enter(Activity::SinkFlush);
        let mut positions = self.fetcher.snapshot();
        CrashPoint::BeforeSinkPrepared.reached();
        let outcome = loop {
            match self.insist(writer.as_mut(), barrier, &positions).await {
                Ok(Some(outcome)) => break outcome,
                Ok(None) => return Ok(()),
                Err(error) => {
                    let refusal = of_a_record(error)?;
                    if !self.rewind(writer, refusal).await? {
                        return Ok(());
                    }
                    // The barrier is answered with what the sink has.
                    self.view.enter(Activity::SinkFlush);
                    positions = self.fetcher.snapshot();
                }
            }
        };
        if outcome.is_ok() {
            self.fetcher.prepared(&positions);
            self.view.clock.flushed();
            CrashPoint::SinkPrepared.reached();
        }
        // Whatever is done next, the next barrier perhaps, the sink has not got through with it.
        self.view.set_sink_problem(outcome.as_ref().err().cloned());
        let event = match outcome {
            Ok(()) => SubtaskEvent::Prepared(Prepared {
                id: barrier.id,
                subtask: self.subtask,
                positions,
                barrier: served_at.saturating_duration_since(barrier.sent_at),
                flush: served_at.elapsed(),
                has_output: std::mem::take(&mut self.has_output),
            }),
            Err(detail) => SubtaskEvent::PrepareFailed {
                id: barrier.id,
                subtask: self.subtask,
                detail,
            },
        };
        // The job task is gone when nobody takes it; then this subtask is cancelled too.
        let _unheard = self.channels.events.send(event).await;
        Ok(())
    }

    /// Lets the sink prepare; one that is away is tried again as long as the barrier says. `None` when the subtask was
    /// cancelled or another barrier came meanwhile; the inner error is what a sink that is away said last.
    async fn insist(
        &mut self,
        writer: &mut dyn SinkWriter,
        barrier: Barrier,
        positions: &PartitionOffsets,
    ) -> Result<Option<Result<(), String>>, JobError> {
        let mut backoff = Backoff::new();
        loop {
            let outcome = tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(None),
                outcome = writer.prepare(barrier.id, positions) => outcome,
            };
            let error = match outcome {
                Ok(()) => return Ok(Some(Ok(()))),
                Err(error) if error.class == ErrorClass::Deterministic => return Err(error.into()),
                Err(error) => error,
            };
            let now = Instant::now();
            let Some(until) = barrier.insist_until.filter(|until| *until > now) else {
                return Ok(Some(Err(error.detail)));
            };
            self.view.set_sink_problem(Some(error.detail));
            tokio::select! {
                biased;
                () = self.channels.cancel.cancelled() => return Ok(None),
                changed = self.channels.barrier.changed() => {
                    if changed.is_ok() {
                        // The loop is to see it too.
                        self.channels.barrier.mark_changed();
                    }
                    return Ok(None);
                }
                () = tokio::time::sleep_until(until.min(now + backoff.next_pause())) => {}
            }
        }
    }
}

/// A sink's refusal of one record; anything else is passed on as an error.
fn of_a_record(error: JobError) -> Result<SinkError, JobError> {
    if let JobError::Sink(SinkError {
        record: Some(_), ..
    }) = &error
        && let JobError::Sink(refusal) = error
    {
        return Ok(refusal);
    }
    Err(error)
}
