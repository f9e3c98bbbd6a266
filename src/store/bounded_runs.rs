//! The bounded run of a job: where its partitions end.
//!
//! Written with the `start` checkpoint, in the same transaction; read by every start that may go on with it.

use std::collections::BTreeMap;

use sqlx::{PgConnection, types::Json};

use super::{Result, Store, checkpoints::read_offset, words::document};
use crate::model::{
    ids::{CheckpointId, JobUid},
    stop_at::{BoundedRun, RunEnd, StopAt},
    topic::{TopicId, TopicPartition},
};

impl Store {
    /// The bounded run of a job; `None` for a job that was not started bounded last.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn bounded_run(&self, job: JobUid) -> Result<Option<BoundedRun>> {
        self.query(
            format!("read the bounded run of job {job}"),
            move |connection| Box::pin(async move { select(connection, job).await }),
        )
        .await
    }
}

async fn select(connection: &mut PgConnection, job: JobUid) -> Result<Option<BoundedRun>> {
    // In one statement: a start could replace the ends between two.
    let row = sqlx::query!(
        r#"SELECT r.stop_at AS "stop_at: Json<StopAt>", r.begun_by, r.begun_at, r.finished_at,
                  e.topics AS "topics: Vec<String>", e.partitions AS "partitions: Vec<i32>",
                  e.topic_ids AS "topic_ids: Vec<Option<String>>", e.stop_offsets AS "stop_offsets: Vec<i64>"
           FROM bounded_runs r LEFT JOIN LATERAL (
               SELECT array_agg(topic) AS topics, array_agg(partition) AS partitions, array_agg(topic_id) AS topic_ids,
                      array_agg(stop_offset) AS stop_offsets
               FROM bounded_run_ends WHERE job_uid = r.job_uid
           ) e ON true
           WHERE r.job_uid = $1"#,
        job.0,
    )
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let topics = row.topics.unwrap_or_default().into_iter();
    let ends = topics
        .zip(row.partitions.unwrap_or_default())
        .zip(row.topic_ids.unwrap_or_default())
        .zip(row.stop_offsets.unwrap_or_default());
    let ends = ends.map(|(((topic, partition), topic_id), stop_offset)| {
        let end = RunEnd {
            stop_offset: read_offset(stop_offset)?,
            topic_id: topic_id.map(|id| TopicId(id.into())),
        };
        Ok((TopicPartition::new(topic, partition), end))
    });
    Ok(Some(BoundedRun {
        stop_at: row.stop_at.0,
        begun_by: CheckpointId(row.begun_by),
        begun_at: row.begun_at,
        finished_at: row.finished_at,
        ends: ends.collect::<Result<BTreeMap<_, _>>>()?,
    }))
}

/// Replaces the run of a job, or forgets it.
pub(super) async fn replace(
    connection: &mut PgConnection,
    job: JobUid,
    run: Option<&BoundedRun>,
) -> Result<()> {
    forget(connection, job).await?;
    let Some(run) = run else { return Ok(()) };
    sqlx::query!(
        "INSERT INTO bounded_runs (job_uid, stop_at, begun_by, begun_at) VALUES ($1, $2::text::json, $3, $4)",
        job.0,
        document(&run.stop_at)?,
        run.begun_by.0,
        run.begun_at,
    )
    .execute(&mut *connection)
    .await?;
    let topics: Vec<String> = run.ends.keys().map(|one| one.topic.to_string()).collect();
    let partitions: Vec<i32> = run.ends.keys().map(|one| one.partition).collect();
    let topic_ids: Vec<Option<String>> = run
        .ends
        .values()
        .map(|end| end.topic_id.as_ref().map(ToString::to_string))
        .collect();
    let stop_offsets: Vec<i64> = run.ends.values().map(|end| end.stop_offset.get()).collect();
    sqlx::query!(
        "INSERT INTO bounded_run_ends (job_uid, topic, partition, topic_id, stop_offset)
         SELECT $1, * FROM unnest($2::text[], $3::int[], $4::text[], $5::bigint[])",
        job.0,
        &topics,
        &partitions,
        &topic_ids as &[Option<String>],
        &stop_offsets,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Forgets the run of a job; its ends go with it.
pub(super) async fn forget(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!("DELETE FROM bounded_runs WHERE job_uid = $1", job.0)
        .execute(connection)
        .await?;
    Ok(())
}

/// Notes that the job is finished with its run.
pub(super) async fn finished(connection: &mut PgConnection, job: JobUid) -> Result<()> {
    sqlx::query!(
        "UPDATE bounded_runs SET finished_at = coalesce(finished_at, clock_timestamp()) WHERE job_uid = $1",
        job.0,
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// Whether the job is finished with its run, and no start has replaced it.
pub(super) async fn is_finished(connection: &mut PgConnection, job: JobUid) -> Result<bool> {
    let finished = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM bounded_runs WHERE job_uid = $1 AND finished_at IS NOT NULL) AS "finished!""#,
        job.0,
    )
    .fetch_one(connection)
    .await?;
    Ok(finished)
}
