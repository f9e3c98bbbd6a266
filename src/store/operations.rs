//! Operations: what was asked for, and what came of it.
//!
//! Each is stored before anything is done, in one transaction with the desired state it asks for, so that whoever owns the
//! job then can carry it on. One at a time changes what a job does; the job's row is locked while that is decided, and
//! unique indexes hold it against mistakes.

use serde_json::{Value, json};
use sqlx::{PgConnection, types::Json};

use super::{
    Result, Store,
    errors::violates,
    events::note,
    jobs::{lock, read_name},
    turns::Turnstile,
    words::{document, read_word, storable, word, words},
};
use crate::{
    engine::error::StoreError,
    model::{
        code::Code,
        event::EventKind,
        ids::{JobUid, OperationId},
        job_state::DesiredState,
        operation::{Operation, OperationKind, OperationStatus},
    },
};

/// An operation to be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NewOperation {
    /// Its identity.
    pub id: OperationId,
    /// The job.
    pub job: JobUid,
    /// What it does.
    pub kind: OperationKind,
    /// The body of the request, for whoever carries it out.
    pub request: Value,
    /// Who asked.
    pub requested_by: String,
    /// Why.
    pub reason: Option<String>,
    /// The request that asked.
    pub request_id: Option<String>,
    /// The caller's key, if one was sent.
    pub idempotency: Option<IdempotencyKey>,
    /// Open operations of these kinds are called off instead of being in the way.
    pub supersedes: Vec<OperationKind>,
}

/// Names a request, so that repeating it gives the operation of the first time (kept for 24 h).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// Who asked, by which method, on which path.
    pub scope: String,
    /// The caller's key.
    pub key: String,
    /// A hash of the body, to notice a key that is used for something else.
    pub body_hash: String,
}

/// What became of a request for an operation.
#[derive(Debug, Clone, PartialEq)]
pub enum CreateOperation {
    /// Stored.
    Created(Operation),
    /// It was stored before, under the same key or the same id.
    Replayed(Operation),
    /// The key belongs to another body.
    KeyReused,
    /// This other one is under way.
    Busy(Operation),
    /// This one is queued and will do for both.
    Joined(Operation),
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq)]
pub enum OperationOutcome {
    /// Done.
    Succeeded {
        /// Whether it changed anything.
        changed: bool,
        /// The step it ended with.
        step: String,
        /// What came of it.
        result: Value,
    },
    /// Not done.
    Failed {
        /// The step it ended with.
        step: String,
        /// The problem document.
        error: Value,
    },
    /// Called off.
    Canceled {
        /// The step it ended with.
        step: String,
        /// The problem document.
        error: Value,
    },
}

/// Which operations are wanted, newest first.
#[derive(Debug, Clone, Default)]
pub struct OperationFilter {
    /// Of this job.
    pub job: Option<JobUid>,
    /// Of these kinds; empty for all.
    pub kinds: Vec<OperationKind>,
    /// Of these statuses; empty for all.
    pub statuses: Vec<OperationStatus>,
    /// At most this many.
    pub limit: u32,
    /// Only older ones than this.
    pub before: Option<OperationId>,
}

/// The kinds of which one at a time may be open: everything but checkpoints.
const CHANGES: [OperationKind; 6] = [
    OperationKind::Start,
    OperationKind::Stop,
    OperationKind::ResetOffsets,
    OperationKind::Delete,
    OperationKind::Skip,
    OperationKind::Restart,
];

impl Store {
    /// The operation that the same request made before, if it came with a key or is repeated.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn operation_made_before(
        &self,
        new: &NewOperation,
    ) -> Result<Option<CreateOperation>> {
        let new = new.clone();
        self.in_transaction(
            format!("look for operation {}", new.id),
            move |connection| Box::pin(async move { stored_before(connection, &new).await }),
        )
        .await
    }

    /// Stores an operation and the desired state that goes with it, unless another one is in the way.
    ///
    /// # Errors
    /// `NoSuchJob`; see [`StoreError`].
    pub async fn create_operation(
        &self,
        new: &NewOperation,
        desired: Option<DesiredState>,
    ) -> Result<CreateOperation> {
        let new = new.clone();
        let turnstile = Turnstile::Job(new.job);
        self.in_turn(
            format!("store operation {}", new.id),
            turnstile,
            move |connection| {
                Box::pin(async move {
                    lock(connection, new.job).await?;
                    if let Some(known) = stored_before(connection, &new).await? {
                        return Ok(known);
                    }
                    supersede(connection, &new).await?;
                    if let Some(other) = in_the_way(connection, &new).await? {
                        return Ok(match new.kind {
                            OperationKind::Checkpoint => CreateOperation::Joined(other),
                            OperationKind::Start
                            | OperationKind::Stop
                            | OperationKind::ResetOffsets
                            | OperationKind::Delete
                            | OperationKind::Skip
                            | OperationKind::Restart => CreateOperation::Busy(other),
                        });
                    }
                    let operation = insert(connection, &new).await?;
                    if let Some(desired) = desired {
                        sqlx::query!(
                            "UPDATE jobs SET desired_state = $2 WHERE uid = $1",
                            new.job.0,
                            word(&desired)?,
                        )
                        .execute(connection)
                        .await?;
                    }
                    Ok(CreateOperation::Created(operation))
                })
            },
        )
        .await
    }

    /// Stores an operation that was done at once: a start of a job that runs, a stop of one that does not.
    ///
    /// # Errors
    /// `NoSuchJob`; see [`StoreError`].
    pub async fn insert_finished_operation(
        &self,
        new: &NewOperation,
        outcome: &OperationOutcome,
    ) -> Result<CreateOperation> {
        let (new, outcome) = (new.clone(), outcome.clone());
        let turnstile = Turnstile::Job(new.job);
        self.in_turn(
            format!("store operation {}", new.id),
            turnstile,
            move |connection| {
                Box::pin(async move {
                    lock(connection, new.job).await?;
                    if let Some(known) = stored_before(connection, &new).await? {
                        return Ok(known);
                    }
                    // Not inserted as an open one and then finished: another one may be open.
                    insert_with(connection, &new, Some(&outcome)).await?;
                    let operation = existing(connection, &new.id).await?;
                    Ok(CreateOperation::Created(operation))
                })
            },
        )
        .await
    }

    /// The job's operations that have not ended, oldest first, each with its request.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn open_operations(&self, job: JobUid) -> Result<Vec<(Operation, Value)>> {
        self.query(
            format!("read the open operations of job {job}"),
            move |connection| {
                Box::pin(async move {
                    let query = Query {
                        job: Some(job),
                        statuses: words(&[OperationStatus::Queued, OperationStatus::Running])?,
                        // Few can be open; this is only a bound.
                        limit: 1_000,
                        ..Query::default()
                    };
                    let mut open = select(connection, &query).await?;
                    open.reverse();
                    Ok(open)
                })
            },
        )
        .await
    }

    /// Notes the step an operation is at; it is running from the first one on. One that has ended stays as it is.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn operation_step(&self, id: &OperationId, step: &str) -> Result<()> {
        let (id, step) = (id.clone(), step.to_owned());
        self.query(
            format!("note a step of operation {id}"),
            move |connection| Box::pin(async move { reach(connection, &id, &step).await }),
        )
        .await
    }

    /// Notes how an operation ended. The first outcome stays.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn finish_operation(
        &self,
        id: &OperationId,
        outcome: &OperationOutcome,
    ) -> Result<()> {
        let (id, outcome) = (id.clone(), outcome.clone());
        self.in_transaction(
            format!("store the outcome of operation {id}"),
            move |connection| Box::pin(async move { finish(connection, &id, &outcome).await }),
        )
        .await
    }

    /// One operation.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn operation(&self, id: &OperationId) -> Result<Option<Operation>> {
        let id = id.clone();
        self.query(format!("read operation {id}"), move |connection| {
            Box::pin(async move { one(connection, &id).await })
        })
        .await
    }

    /// Operations, newest first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn operations(&self, filter: &OperationFilter) -> Result<Vec<Operation>> {
        let query = Query {
            id: None,
            job: filter.job,
            kinds: words(&filter.kinds)?,
            statuses: words(&filter.statuses)?,
            limit: filter.limit,
            before: filter.before.as_ref().map(|id| storable(id.as_str())),
        };
        self.query("read operations", move |connection| {
            Box::pin(async move {
                let found = select(connection, &query).await?;
                Ok(found.into_iter().map(|(operation, _)| operation).collect())
            })
        })
        .await
    }

    /// Fails the open checkpoint operations of jobs that have no live owner: nobody will carry them out. Says how many.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn fail_orphaned_checkpoints(&self) -> Result<u64> {
        self.query("fail orphaned checkpoint operations", |connection| {
            Box::pin(async move {
                let error = problem(
                    Code::OwnerLost,
                    "the server that was to take the checkpoint has ended",
                );
                let failed = sqlx::query!(
                    "UPDATE operations o SET status = 'failed', step = 'owner-lost', error = $1::text::json,
                            finished_at = clock_timestamp()
                     FROM job_leases l
                     WHERE l.job_uid = o.job_uid AND o.kind = 'checkpoint' AND o.status IN ('queued', 'running')
                       AND NOT EXISTS (SELECT FROM instances i WHERE i.incarnation = l.owner AND i.expires_at > clock_timestamp())",
                    document(&error)?,
                )
                .execute(connection)
                .await?;
                Ok(failed.rows_affected())
            })
        })
        .await
    }
}

/// The parts of a problem document that the store knows; whoever shows it adds the addresses.
fn problem(code: Code, detail: &str) -> Value {
    json!({
        "code": code,
        "title": code.title(),
        "status": code.status(),
        "detail": detail,
        "hint": code.remedy(),
    })
}

/// The operation that the same request made before, by its id (the caller repeats a call whose outcome it does not know)
/// or by the key that came with it.
async fn stored_before(
    connection: &mut PgConnection,
    new: &NewOperation,
) -> Result<Option<CreateOperation>> {
    if let Some(operation) = one(connection, &new.id).await? {
        return Ok(Some(CreateOperation::Replayed(operation)));
    }
    let Some(given) = &new.idempotency else {
        return Ok(None);
    };
    let (scope, key) = (storable(&given.scope), storable(&given.key));
    sqlx::query!(
        "UPDATE operations SET idempotency_scope = NULL, idempotency_key = NULL, idempotency_body_hash = NULL
         WHERE idempotency_scope = $1 AND idempotency_key = $2 AND created_at < now() - interval '24 hours'",
        scope,
        key,
    )
    .execute(&mut *connection)
    .await?;
    let known = sqlx::query!(
        r#"SELECT id, idempotency_body_hash AS "body_hash!" FROM operations WHERE idempotency_scope = $1 AND idempotency_key = $2"#,
        scope,
        key,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(known) = known else { return Ok(None) };
    if known.body_hash != given.body_hash {
        return Ok(Some(CreateOperation::KeyReused));
    }
    let operation = existing(connection, &OperationId::from_text(&known.id)).await?;
    Ok(Some(CreateOperation::Replayed(operation)))
}

async fn supersede(connection: &mut PgConnection, new: &NewOperation) -> Result<()> {
    if new.supersedes.is_empty() {
        return Ok(());
    }
    let error = problem(
        Code::Superseded,
        &format!("operation {} took its place", new.id),
    );
    let superseded = sqlx::query_scalar!(
        "UPDATE operations SET status = 'canceled', error = $3::text::json, finished_at = clock_timestamp()
         WHERE job_uid = $1 AND kind = ANY ($2) AND status IN ('queued', 'running') RETURNING id",
        new.job.0,
        &words(&new.supersedes)?,
        document(&error)?,
    )
    .fetch_all(&mut *connection)
    .await?;
    for id in superseded {
        let details = json!({"operation": id, "by": &new.id});
        note(
            connection,
            Some(new.job),
            EventKind::OperationSuperseded,
            &new.requested_by,
            &details,
        )
        .await?;
    }
    Ok(())
}

/// Calls off whatever is open of a job but one operation.
pub(super) async fn supersede_all_but(
    connection: &mut PgConnection,
    job: JobUid,
    operation: &OperationId,
) -> Result<()> {
    let error = problem(Code::Superseded, "the job was deleted");
    sqlx::query!(
        "UPDATE operations SET status = 'canceled', error = $3::text::json, finished_at = clock_timestamp()
         WHERE job_uid = $1 AND id <> $2 AND status IN ('queued', 'running')",
        job.0,
        operation.as_str(),
        document(&error)?,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The start or restart that has not ended, if there is one.
pub(super) async fn open_start(
    connection: &mut PgConnection,
    job: JobUid,
) -> Result<Option<Operation>> {
    let query = Query {
        job: Some(job),
        kinds: words(&[OperationKind::Start, OperationKind::Restart])?,
        statuses: words(&[OperationStatus::Queued, OperationStatus::Running])?,
        limit: 1,
        ..Query::default()
    };
    Ok(select(connection, &query)
        .await?
        .pop()
        .map(|(operation, _)| operation))
}

/// The operation that stands against a new one. Checkpoints never stand against anything else; one that waits can be shared.
async fn in_the_way(
    connection: &mut PgConnection,
    new: &NewOperation,
) -> Result<Option<Operation>> {
    let query = match new.kind {
        OperationKind::Checkpoint => Query {
            kinds: words(&[OperationKind::Checkpoint])?,
            statuses: words(&[OperationStatus::Queued])?,
            ..Query::default()
        },
        OperationKind::Start
        | OperationKind::Stop
        | OperationKind::ResetOffsets
        | OperationKind::Delete
        | OperationKind::Skip
        | OperationKind::Restart => Query {
            kinds: words(&CHANGES)?,
            statuses: words(&[OperationStatus::Queued, OperationStatus::Running])?,
            ..Query::default()
        },
    };
    let query = Query {
        job: Some(new.job),
        limit: 1,
        ..query
    };
    Ok(select(connection, &query)
        .await?
        .pop()
        .map(|(operation, _)| operation))
}

async fn insert(connection: &mut PgConnection, new: &NewOperation) -> Result<Operation> {
    insert_with(connection, new, None).await?;
    let details = json!({"operation": &new.id, "kind": &new.kind, "reason": &new.reason});
    note(
        connection,
        Some(new.job),
        EventKind::OperationCreated,
        &new.requested_by,
        &details,
    )
    .await?;
    existing(connection, &new.id).await
}

async fn insert_with(
    connection: &mut PgConnection,
    new: &NewOperation,
    outcome: Option<&OperationOutcome>,
) -> Result<()> {
    let end = outcome.map(End::of).transpose()?;
    let status = match &end {
        Some(end) => end.status.clone(),
        None => word(&OperationStatus::Queued)?,
    };
    let key = new.idempotency.as_ref();
    let inserted = sqlx::query!(
        "INSERT INTO operations (id, job_uid, kind, status, changed, step, request, requested_by, reason, request_id, result, error,
                                 finished_at, idempotency_scope, idempotency_key, idempotency_body_hash)
         VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11::text::json, $12::text::json, CASE WHEN $13 THEN clock_timestamp() END, $14, $15, $16)",
        new.id.as_str(),
        new.job.0,
        word(&new.kind)?,
        status,
        end.as_ref().and_then(|end| end.changed),
        end.as_ref().map_or("queued", |end| end.step.as_str()),
        document(&new.request)?,
        storable(&new.requested_by),
        new.reason.as_deref().map(storable),
        new.request_id.as_deref().map(storable),
        end.as_ref().and_then(|end| end.result.map(document)).transpose()?,
        end.as_ref().and_then(|end| end.error.map(document)).transpose()?,
        end.is_some(),
        key.map(|key| storable(&key.scope)),
        key.map(|key| storable(&key.key)),
        key.map(|key| key.body_hash.as_str()),
    )
    .execute(connection)
    .await;
    match inserted {
        Ok(_) => Ok(()),
        // Only if one scope spans several jobs: the row lock of one job orders the rest. Asked again, it is a replay.
        Err(error) if violates(&error, "operations_idempotency_unique") => {
            Err(StoreError::Unavailable(
                "another request with the same idempotency key was stored at this moment"
                    .to_owned(),
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// An outcome in columns.
struct End<'a> {
    status: String,
    changed: Option<bool>,
    step: String,
    result: Option<&'a Value>,
    error: Option<&'a Value>,
}

impl<'a> End<'a> {
    fn of(outcome: &'a OperationOutcome) -> Result<Self> {
        Ok(match outcome {
            OperationOutcome::Succeeded {
                changed,
                step,
                result,
            } => Self {
                status: word(&OperationStatus::Succeeded)?,
                changed: Some(*changed),
                step: storable(step),
                result: Some(result),
                error: None,
            },
            OperationOutcome::Failed { step, error } => Self {
                status: word(&OperationStatus::Failed)?,
                // A failed operation may have changed something on its way.
                changed: None,
                step: storable(step),
                result: None,
                error: Some(error),
            },
            OperationOutcome::Canceled { step, error } => Self {
                status: word(&OperationStatus::Canceled)?,
                changed: None,
                step: storable(step),
                result: None,
                error: Some(error),
            },
        })
    }
}

/// Notes the step that an operation has come to, unless it has ended.
pub(super) async fn reach(
    connection: &mut PgConnection,
    id: &OperationId,
    step: &str,
) -> Result<()> {
    sqlx::query!(
        "UPDATE operations SET status = 'running', step = $2 WHERE id = $1 AND status IN ('queued', 'running')",
        id.as_str(),
        storable(step),
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether an operation has not ended; until the transaction does, it does not either.
pub(super) async fn is_open(connection: &mut PgConnection, id: &OperationId) -> Result<bool> {
    let open = sqlx::query_scalar!(
        "SELECT id FROM operations WHERE id = $1 AND status IN ('queued', 'running') FOR UPDATE",
        id.as_str(),
    )
    .fetch_optional(connection)
    .await?;
    Ok(open.is_some())
}

/// Ends an operation, unless it has ended: then its first outcome stays.
pub(super) async fn finish(
    connection: &mut PgConnection,
    id: &OperationId,
    outcome: &OperationOutcome,
) -> Result<()> {
    let end = End::of(outcome)?;
    let finished = sqlx::query!(
        "UPDATE operations SET status = $2, changed = $3, step = $4, result = $5::text::json, error = $6::text::json, finished_at = clock_timestamp()
         WHERE id = $1 AND status IN ('queued', 'running')
         RETURNING job_uid, requested_by",
        id.as_str(),
        end.status,
        end.changed,
        end.step,
        end.result.map(document).transpose()?,
        end.error.map(document).transpose()?,
    )
    .fetch_optional(&mut *connection)
    .await?;
    let Some(row) = finished else { return Ok(()) };
    let details =
        json!({"operation": id, "status": end.status, "step": end.step, "error": end.error});
    note(
        connection,
        Some(JobUid(row.job_uid)),
        EventKind::OperationFinished,
        &row.requested_by,
        &details,
    )
    .await
}

async fn one(connection: &mut PgConnection, id: &OperationId) -> Result<Option<Operation>> {
    let query = Query {
        id: Some(storable(id.as_str())),
        limit: 1,
        ..Query::default()
    };
    Ok(select(connection, &query)
        .await?
        .pop()
        .map(|(operation, _)| operation))
}

async fn existing(connection: &mut PgConnection, id: &OperationId) -> Result<Operation> {
    one(connection, id)
        .await?
        .ok_or_else(|| StoreError::Refused(format!("operation {id} is not where it was put")))
}

/// Which operations are read, newest first.
#[derive(Default)]
struct Query {
    id: Option<String>,
    job: Option<JobUid>,
    kinds: Vec<String>,
    statuses: Vec<String>,
    limit: u32,
    before: Option<String>,
}

async fn select(connection: &mut PgConnection, query: &Query) -> Result<Vec<(Operation, Value)>> {
    let rows = sqlx::query!(
        r#"SELECT o.id, o.kind, j.name AS job, o.status, o.changed, o.step, o.request AS "request: Json<Value>", o.requested_by,
                  o.reason, o.request_id, o.result AS "result: Json<Value>", o.error AS "error: Json<Value>", o.created_at,
                  o.finished_at
           FROM operations o JOIN jobs j ON j.uid = o.job_uid
           WHERE ($1::text IS NULL OR o.id = $1) AND ($2::uuid IS NULL OR o.job_uid = $2)
             AND (cardinality($3::text[]) = 0 OR o.kind = ANY ($3)) AND (cardinality($4::text[]) = 0 OR o.status = ANY ($4))
             AND ($5::text IS NULL OR o.id < $5)
           ORDER BY o.id DESC LIMIT $6"#,
        query.id,
        query.job.map(|job| job.0),
        &query.kinds,
        &query.statuses,
        query.before,
        i64::from(query.limit),
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter()
        .map(|row| {
            let operation = Operation {
                id: OperationId::from_text(&row.id),
                kind: read_word(&row.kind)?,
                job: read_name(&row.job)?,
                status: read_word(&row.status)?,
                changed: row.changed,
                step: row.step,
                requested_by: row.requested_by,
                reason: row.reason,
                created_at: row.created_at,
                finished_at: row.finished_at,
                result: row.result.map(|value| value.0),
                error: row.error.map(|value| value.0),
                request_id: row.request_id,
            };
            Ok((operation, row.request.0))
        })
        .collect()
}
