//! The task that owns a writer's connection and puts chunks into the target, one transaction each.
//!
//! It is the only one that waits for the database, so a writer's future can be dropped at any time without tearing a
//! conversation, and rows are encoded while earlier ones are on their way. What passes by waiting is tried again here, with
//! the same rows, for ever; whether an attempt whose answer was lost took place is read from the target before anything is
//! written again. A transaction that takes too long is made smaller. What does not pass ends the task, and the writer tells
//! of it.

use std::{collections::BTreeMap, ops::Range, sync::Arc, time::Duration};

use sqlx::PgConnection;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{
    Target,
    chunk::Chunk,
    errors::{Refusal, Trouble, mismatch},
    ledger::{Claim, Found, Step},
    pace::Pace,
    session::{
        ATTEMPT_WITHIN, COMMIT_WITHIN, LOCKS_WITHIN, answered_within, close, send, within_deadline,
    },
    slot::{Slot, Work},
};
use crate::{
    crash_point::CrashPoint,
    engine::error::SinkError,
    model::{Code, TopicPartition, resolver::SinkPosition},
};

/// A first attempt that fails faster than this is made again without a word: a connection that was idle for long is often
/// found broken when it is used, and one side of a deadlock goes on at once.
const AT_ONCE: Duration = Duration::from_secs(3);
/// The pause after the first attempt that is told of, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many rows are tried to tell a record that is refused from a table that refuses everything.
const COMPARED_ROWS: usize = 8;

pub(super) struct Flusher {
    target: Arc<Target>,
    claim: Claim,
    slot: Arc<Slot>,
    connection: Option<PgConnection>,
    /// Where the partitions stand in the target.
    positions: BTreeMap<TopicPartition, SinkPosition>,
    /// How many rows the next transaction has.
    pace: Pace,
}

/// How one attempt at rows ended.
enum Written {
    Yes,
    /// It took too long; the next one is to have fewer rows.
    TooSlow,
    /// The target refused the statement.
    Refused(Refusal),
}

/// What is tried in a transaction that is rolled back.
#[derive(Debug, Clone, Copy)]
enum Probe<'a> {
    Rows(&'a Range<usize>),
    /// The statement of this row, without rows.
    Nothing(usize),
}

impl Flusher {
    pub(super) fn new(target: Arc<Target>, claim: Claim, slot: Arc<Slot>) -> Self {
        Self {
            pace: Pace::new(target.max_rows),
            target,
            claim,
            slot,
            connection: None,
            positions: BTreeMap::new(),
        }
    }

    /// Works until the writer ends or something does not pass.
    pub(super) async fn run(mut self) {
        // However this ends, the writer must not wait for it.
        let slot = Arc::clone(&self.slot);
        let _ended = slot.ends_with_this();
        loop {
            let (work, due) = self.slot.take(Instant::now());
            let outcome = match work {
                Work::Flush(chunk) => self.flush(chunk).await,
                Work::Assign(positions) => self.assign(&positions).await,
                Work::Nothing => {
                    self.idle(due).await;
                    continue;
                }
                Work::End => break,
            };
            match outcome {
                Ok(()) => self.slot.done(),
                Err(error) => {
                    self.slot.fail(error);
                    break;
                }
            }
        }
        if let Some(connection) = self.connection.take() {
            close(connection).await;
        }
    }

    async fn idle(&self, due: Option<Instant>) {
        let called = self.slot.called();
        match due {
            None => called.await,
            Some(due) => tokio::select! {
                () = called => {}
                () = sleep_until(due) => {}
            },
        }
    }

    async fn assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), SinkError> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_assign(positions).await {
                Ok(()) => break,
                Err(trouble) => self.wait_out(trouble, &mut attempts).await?,
            }
        }
        self.positions.extend(positions.iter().cloned());
        Ok(())
    }

    async fn try_assign(
        &mut self,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), Trouble> {
        let mut connection = self.take_connection().await?;
        let ledger = &self.target.ledger;
        within_deadline(ledger.assign(&mut connection, self.claim, positions)).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn flush(&mut self, chunk: Chunk) -> Result<(), SinkError> {
        let all = 0..chunk.rows.len();
        if let Some((piece, refusal)) = self.write_rows(&chunk, all).await? {
            return Err(self.blame(&chunk, piece, refusal).await?);
        }
        self.slot.recycle(chunk);
        Ok(())
    }

    /// Writes rows in as many transactions as the pace asks for, and one if there are none. Answers the piece that the target
    /// refuses, if it does.
    async fn write_rows(
        &mut self,
        chunk: &Chunk,
        rows: Range<usize>,
    ) -> Result<Option<(Range<usize>, Refusal)>, SinkError> {
        let mut begin = rows.start;
        loop {
            let piece = begin..rows.end.min(begin + self.pace.rows());
            match self.write(chunk, &piece).await? {
                Written::Yes => begin = piece.end,
                Written::TooSlow => continue,
                Written::Refused(refusal) => return Ok(Some((piece, refusal))),
            }
            if begin >= rows.end {
                return Ok(None);
            }
        }
    }

    /// Writes rows and progress in one transaction, again and again until it is known to have taken place or cannot.
    async fn write(&mut self, chunk: &Chunk, rows: &Range<usize>) -> Result<Written, SinkError> {
        let steps = self.steps(chunk, rows)?;
        if steps.is_empty() {
            return Ok(Written::Yes);
        }
        let mut attempts = Attempts::new();
        // Whether a COMMIT was sent whose answer is not known.
        let mut in_doubt = false;
        loop {
            let began = Instant::now();
            let attempt = self.try_write(chunk, rows, &steps, &mut in_doubt).await;
            match attempt {
                Ok(()) => {
                    self.pace.took(rows.len(), began.elapsed());
                    break;
                }
                Err(Trouble::Rows(refusal)) => return Ok(Written::Refused(refusal)),
                Err(Trouble::TooSlow(text)) => {
                    let text = format!("{text}; {}", self.pace.too_slow(rows.len()));
                    self.wait_out(Trouble::TooSlow(text), &mut attempts).await?;
                    // While a COMMIT is in doubt, only the same steps tell what became of it.
                    if !in_doubt && rows.len() > 1 {
                        return Ok(Written::TooSlow);
                    }
                }
                Err(trouble) => self.wait_out(trouble, &mut attempts).await?,
            }
        }
        for step in steps {
            let position = SinkPosition {
                next_offset: step.to,
                ..step.from
            };
            self.positions.insert(step.partition, position);
        }
        self.slot.works();
        Ok(Written::Yes)
    }

    /// The partitions that move with these rows.
    fn steps(&self, chunk: &Chunk, rows: &Range<usize>) -> Result<Vec<Step>, SinkError> {
        let mut steps = Vec::new();
        for (partition, to) in chunk.ends_of(rows) {
            let Some(from) = self.positions.get(&partition).copied() else {
                return Err(SinkError {
                    code: Code::Internal,
                    ..SinkError::refused(format!("{partition} was never given a position"))
                });
            };
            if to > from.next_offset {
                steps.push(Step {
                    partition,
                    from,
                    to,
                });
            }
        }
        Ok(steps)
    }

    async fn try_write(
        &mut self,
        chunk: &Chunk,
        rows: &Range<usize>,
        steps: &[Step],
        in_doubt: &mut bool,
    ) -> Result<(), Trouble> {
        let mut connection = self.take_connection().await?;
        let target = Arc::clone(&self.target);
        let claim = self.claim;
        let outcome = async {
            let locked = target.ledger.begin(&mut connection, claim, steps);
            match answered_within(LOCKS_WITHIN, locked).await? {
                Found::After if *in_doubt => return rollback(&mut connection).await,
                Found::After => {
                    return Err(mismatch(
                        "the target's progress is ahead of this job by just what it was about to write",
                    ));
                }
                Found::Before => *in_doubt = false,
            }
            let written = timeout(ATTEMPT_WITHIN, target.write(&mut connection, chunk, rows)).await;
            written.unwrap_or_else(|_elapsed| {
                Err(Trouble::TooSlow(format!(
                    "write to {}: no answer within {} s",
                    target.table,
                    ATTEMPT_WITHIN.as_secs()
                )))
            })?;
            CrashPoint::BeforeSinkCommitted.reached();
            *in_doubt = true;
            answered_within(COMMIT_WITHIN, target.commit(&mut connection)).await?;
            CrashPoint::SinkCommitted.reached();
            *in_doubt = false;
            Ok(())
        }
        .await;
        self.give_back(connection, &outcome).await;
        outcome
    }

    /// Finds the first row that the target refuses, writes what lies before it, and names its record; names none if it is
    /// the table that refuses.
    ///
    /// Some prefix is accepted (the empty one) and some is refused (all of the piece), so halving what lies between leads to
    /// a row with which the refusal begins, whatever the rows do to each other.
    async fn blame(
        &mut self,
        chunk: &Chunk,
        piece: Range<usize>,
        refusal: Refusal,
    ) -> Result<SinkError, SinkError> {
        let (mut accepted, mut refused, mut refusal) = (piece.start, piece.end, refusal);
        while refused - accepted > 1 {
            let middle = accepted + (refused - accepted) / 2;
            match self.probe(chunk, &(piece.start..middle)).await? {
                None => accepted = middle,
                Some(other) => (refused, refusal) = (middle, other),
            }
        }
        if refusal.may_be_of_the_table()
            && let Some(fault) = self
                .fault_of_table(chunk, &piece, accepted, &refusal)
                .await?
        {
            return Ok(fault);
        }
        if accepted > piece.start
            && let Some((_, refusal)) = self.write_rows(chunk, piece.start..accepted).await?
        {
            // It was accepted a moment ago: the table has changed meanwhile.
            return Ok(self.target.fault(&refusal));
        }
        let record = chunk.record(accepted);
        Ok(SinkError {
            detail: format!(
                "{} refuses the row of {}/{}@{}: {}",
                self.target.table, record.topic, record.partition, record.offset, refusal.text
            ),
            record: Some(Box::new(record)),
            code: Code::BlockedOnRecord,
            ..SinkError::refused("")
        })
    }

    /// Whether the table refuses whatever it is given: the same statement without rows, or every other row. `row` is the
    /// first of the piece that it refuses.
    ///
    /// Only rows of the same statement say something of it: a table may take deletions and nothing else. Where there is none
    /// to compare with, the statement without rows decides: a table, a column, a type or an index that is missing shows
    /// there, a value does not. A right may be missing behind it (on a default's sequence), so that needs a row that passes.
    async fn fault_of_table(
        &mut self,
        chunk: &Chunk,
        piece: &Range<usize>,
        row: usize,
        refusal: &Refusal,
    ) -> Result<Option<SinkError>, SinkError> {
        if let Some(refusal) = self.probe_with(chunk, Probe::Nothing(row)).await? {
            return Ok(Some(self.target.fault(&refusal)));
        }
        let is_alike = |other: &usize| chunk.is_deletion(*other) == chunk.is_deletion(row);
        if (piece.start..row).any(|before| is_alike(&before)) {
            return Ok(None);
        }
        let others: Vec<usize> = (row + 1..piece.end).filter(is_alike).collect();
        let step = others.len().div_ceil(COMPARED_ROWS).max(1);
        let mut tried = 0;
        for other in others.into_iter().step_by(step) {
            if self.probe(chunk, &(other..other + 1)).await?.is_none() {
                return Ok(None);
            }
            tried += 1;
        }
        if tried == 0 && !refusal.is_of_rights() {
            return Ok(None);
        }
        Ok(Some(self.target.refused(&format!(
            "{}; so it is with every row that was tried ({}), and not without rows: look at the table's triggers and defaults, \
             and at what they need",
            refusal.text,
            tried + 1
        ))))
    }

    /// Tries rows in a transaction that is rolled back. Answers what the target has against them, if it has.
    async fn probe(
        &mut self,
        chunk: &Chunk,
        rows: &Range<usize>,
    ) -> Result<Option<Refusal>, SinkError> {
        self.probe_with(chunk, Probe::Rows(rows)).await
    }

    async fn probe_with(
        &mut self,
        chunk: &Chunk,
        what: Probe<'_>,
    ) -> Result<Option<Refusal>, SinkError> {
        let mut attempts = Attempts::new();
        loop {
            match self.try_probe(chunk, what).await {
                Ok(()) => return Ok(None),
                Err(Trouble::Rows(refusal)) => return Ok(Some(refusal)),
                // Never smaller: no part of what was refused in time takes longer than that.
                Err(trouble) => self.wait_out(trouble, &mut attempts).await?,
            }
        }
    }

    async fn try_probe(&mut self, chunk: &Chunk, what: Probe<'_>) -> Result<(), Trouble> {
        let mut connection = self.take_connection().await?;
        let target = Arc::clone(&self.target);
        let claim = self.claim;
        let outcome = within_deadline(async {
            target.ledger.begin(&mut connection, claim, &[]).await?;
            match what {
                Probe::Rows(rows) => target.write(&mut connection, chunk, rows).await?,
                Probe::Nothing(row) => target.write_nothing(&mut connection, chunk, row).await?,
            }
            rollback(&mut connection).await
        })
        .await;
        self.give_back(connection, &outcome).await;
        outcome
    }

    /// Keeps a connection that is known to be outside of a transaction. After any other trouble than a refused row it is
    /// closed.
    async fn give_back(&mut self, mut connection: PgConnection, outcome: &Result<(), Trouble>) {
        let is_usable = match outcome {
            Ok(()) => true,
            Err(Trouble::Rows(_)) => answered_within(LOCKS_WITHIN, rollback(&mut connection))
                .await
                .is_ok(),
            Err(Trouble::Away(_) | Trouble::TooSlow(_) | Trouble::Refused(_)) => false,
        };
        if is_usable {
            self.connection = Some(connection);
        }
    }

    /// The connection, or a new one.
    async fn take_connection(&mut self) -> Result<PgConnection, Trouble> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => self.target.database.connect().await,
        }
    }

    /// Waits for what passes; what does not is handed on.
    async fn wait_out(
        &mut self,
        trouble: Trouble,
        attempts: &mut Attempts,
    ) -> Result<(), SinkError> {
        let (Trouble::Away(text) | Trouble::TooSlow(text)) = trouble else {
            return Err(trouble.into_error());
        };
        if let Some(pause) = attempts.next_pause() {
            self.slot.set_trouble(text);
            sleep(pause).await;
        } else {
            tracing::debug!(trouble = text, "the target is asked once more");
        }
        Ok(())
    }
}

/// Ends a transaction that changed nothing.
async fn rollback(connection: &mut PgConnection) -> Result<(), Trouble> {
    send(connection, "ROLLBACK".to_owned())
        .await
        .map_err(|error| Trouble::of_statement("roll back", &error))?;
    Ok(())
}

/// Counts failed attempts at one thing.
struct Attempts {
    began: Instant,
    failed: u32,
}

impl Attempts {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            failed: 0,
        }
    }

    /// The pause before the next attempt; none after a first one that failed at once.
    fn next_pause(&mut self) -> Option<Duration> {
        let failed = self.failed;
        self.failed = failed.saturating_add(1);
        if failed == 0 && self.began.elapsed() < AT_ONCE {
            return None;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << failed.min(10));
        // Not all writers at once.
        Some(
            pause
                .min(LONGEST_PAUSE)
                .mul_f64(fastrand::f64().mul_add(0.5, 0.5)),
        )
    }
}
