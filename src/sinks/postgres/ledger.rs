//! What the target knows of a job: who may write, and how far each partition has come. Two tables in the schema
//! `handover_sink` of the target database. (Not `handover`: a role of that name would find its own tables there first.)
//!
//! `claims` has one row per job. It is the fence: every transaction of a writer begins by locking it `FOR SHARE` and
//! comparing the claim, and a new owner takes it `FOR UPDATE`, so that it waits for whatever a former one still has under
//! way, and nothing of that can begin afterwards. A claim has a number of its own besides the lease's epoch, because a job
//! that is started again under the same lease must not meet a writer of its former run.
//!
//! `progress` has one row per job, target table and partition. A row is only ever moved from a value that its writer
//! knows (compare and advance), in the transaction that writes the rows. So it tells, whenever a connection broke before the
//! answer to COMMIT, whether that took place: nobody has to guess.

use std::fmt::Write as _;

use sqlx::{PgConnection, Row as _, postgres::PgRow};

use super::{
    errors::{Trouble, mismatch, passes, sqlstate},
    session::{begin, identifier, literal, send},
};
use crate::{
    engine::{error::SinkError, ports::SinkOwner},
    model::{
        CheckpointId, LeaseEpoch, Offset, TopicPartition,
        resolver::{SinkPosition, SinkProgress},
    },
};

/// SQLSTATE of a lock that was not available in time.
const LOCK_NOT_AVAILABLE: &str = "55P03";
/// SQLSTATE of a missing permission.
const NOT_ALLOWED: &str = "42501";

/// A partition's step in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) partition: TopicPartition,
    /// Where it stands, as far as the writer knows.
    pub(super) from: SinkPosition,
    /// Where it stands when the transaction is committed.
    pub(super) to: Offset,
}

/// The right to write: what the claim row must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) epoch: LeaseEpoch,
    pub(super) number: i64,
}

/// What a transaction found when it had locked everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All partitions stand where the steps begin.
    Before,
    /// All partitions stand where the steps end: an earlier attempt was committed.
    After,
}

/// The two tables, as one job and one target table use them.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// Conditions on the key columns of a claim and of progress.
    job: String,
    target: String,
    /// Their values.
    job_values: String,
    progress_values: String,
}

impl Ledger {
    pub(super) fn new(owner: SinkOwner, target: &str) -> Self {
        let (install, job) = (owner.install, owner.job);
        let of_job = format!("install_id = '{install}' AND job_uid = '{job}'");
        Self {
            target: format!("{of_job} AND target = {}", literal(target)),
            job: of_job,
            job_values: format!("'{install}'::uuid, '{job}'::uuid"),
            progress_values: format!("'{install}'::uuid, '{job}'::uuid, {}", literal(target)),
        }
    }

    /// Reads the progress without claiming it. Empty where the tables do not exist yet.
    pub(super) async fn progress(
        &self,
        connection: &mut PgConnection,
        role: &str,
    ) -> Result<SinkProgress, Trouble> {
        let doing = "read the sink's progress";
        let rows = send(connection, self.select_progress()).await;
        match rows {
            Ok(rows) => Ok(progress_of(&rows)?),
            Err(error) if is_missing(&error) => Ok(SinkProgress::new()),
            Err(error) if sqlstate(&error).as_deref() == Some(NOT_ALLOWED) => {
                let remedy = missing(connection, role).await?;
                Err(remedy.map_or_else(
                    || Trouble::of_statement(doing, &error),
                    |remedy| cannot_keep(role, &remedy),
                ))
            }
            Err(error) => Err(Trouble::of_statement(doing, &error)),
        }
    }

    fn select_progress(&self) -> String {
        format!(
            "SELECT 'progress', topic, partition, next_offset, position_id FROM handover_sink.progress WHERE {};",
            self.target
        )
    }

    /// Takes the claim for an epoch and reads the progress. Waits for a transaction that an older claim has under way.
    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        epoch: LeaseEpoch,
    ) -> Result<(Claim, SinkProgress), Trouble> {
        let doing = "claim the sink's progress";
        let sql = format!(
            "{begin}
             INSERT INTO handover_sink.claims (install_id, job_uid, epoch, claim, claimed_at)
               VALUES ({values}, {epoch}, 0, clock_timestamp()) ON CONFLICT DO NOTHING;
             SELECT 'claim', epoch, claim FROM handover_sink.claims WHERE {job} FOR UPDATE;
             UPDATE handover_sink.claims SET epoch = {epoch}, claim = claim + 1, claimed_at = clock_timestamp()
               WHERE {job} AND epoch <= {epoch};
             {progress}",
            begin = begin(),
            values = self.job_values,
            job = self.job,
            progress = self.select_progress(),
        );
        let rows = send(connection, sql).await.map_err(|error| {
            if sqlstate(&error).as_deref() == Some(LOCK_NOT_AVAILABLE) {
                return Trouble::Away(format!(
                    "{doing}: another session still writes under an older claim; waiting until it has ended (pg_stat_activity shows it)"
                ));
            }
            Trouble::of_statement(doing, &error)
        })?;
        let Some((known, number)) = claim_of(&rows)? else {
            return Err(Trouble::Away(format!(
                "{doing}: the claim was deleted meanwhile"
            )));
        };
        if known > epoch.0 {
            return Err(fenced(known, epoch));
        }
        let progress = progress_of(&rows)?;
        commit(connection, doing).await?;
        let claim = Claim {
            epoch,
            number: number + 1,
        };
        Ok((claim, progress))
    }

    /// Begins a writer's transaction: the fence, the locks, and the steps, all in one message. What it answers holds until
    /// the transaction ends.
    pub(super) async fn begin(
        &self,
        connection: &mut PgConnection,
        claim: Claim,
        steps: &[Step],
    ) -> Result<Found, Trouble> {
        let mut sql = begin();
        self.push_fence(&mut sql);
        self.push_lock(&mut sql, steps.iter().map(|step| &step.partition));
        self.push_advance(&mut sql, steps);
        let rows = send(connection, sql)
            .await
            .map_err(|error| Trouble::of_statement("lock the sink's progress", &error))?;
        check_fence(&rows, claim)?;
        let progress = progress_of(&rows)?;
        let stands_at = |position: fn(&Step) -> Offset| {
            steps.iter().all(|step| {
                progress.get(&step.partition).is_some_and(|found| {
                    found.position_id == step.from.position_id
                        && found.next_offset == position(step)
                })
            })
        };
        if stands_at(|step| step.from.next_offset) {
            Ok(Found::Before)
        } else if stands_at(|step| step.to) {
            Ok(Found::After)
        } else {
            Err(mismatch(explain(steps, &progress)))
        }
    }

    /// Notes where partitions begin, in a transaction of its own. One that has such a note is left alone.
    pub(super) async fn assign(
        &self,
        connection: &mut PgConnection,
        claim: Claim,
        positions: &[(TopicPartition, SinkPosition)],
    ) -> Result<(), Trouble> {
        let doing = "note where partitions begin";
        let mut sql = begin();
        self.push_fence(&mut sql);
        self.push_lock(&mut sql, positions.iter().map(|(partition, _)| partition));
        let rows = send(connection, sql)
            .await
            .map_err(|error| Trouble::of_statement(doing, &error))?;
        check_fence(&rows, claim)?;
        let known = progress_of(&rows)?;
        let mut values = Vec::new();
        for (partition, position) in positions {
            match known.get(partition) {
                Some(found) if found == position => {}
                Some(found) if found.position_id >= position.position_id => {
                    return Err(mismatch(format!(
                        "{partition}: the sink stands at {} by checkpoint {}, the job begins at {} by checkpoint {}",
                        found.next_offset,
                        found.position_id,
                        position.next_offset,
                        position.position_id
                    )));
                }
                _ => values.push(format!(
                    "({}, {}, {}, {}, {}, clock_timestamp())",
                    self.progress_values,
                    literal(&partition.topic),
                    partition.partition,
                    position.next_offset,
                    position.position_id
                )),
            }
        }
        let mut sql = String::new();
        if !values.is_empty() {
            sql = format!(
                "INSERT INTO handover_sink.progress AS p
                   (install_id, job_uid, target, topic, partition, next_offset, position_id, updated_at)
                 VALUES {}
                 ON CONFLICT (install_id, job_uid, target, topic, partition) DO UPDATE
                   SET next_offset = excluded.next_offset, position_id = excluded.position_id, updated_at = excluded.updated_at;",
                values.join(", ")
            );
        }
        sql.push_str("COMMIT");
        send(connection, sql)
            .await
            .map_err(|error| Trouble::of_statement(doing, &error))?;
        Ok(())
    }

    /// Deletes what is known of the job, for all its target tables.
    pub(super) async fn forget(&self, connection: &mut PgConnection) -> Result<(), Trouble> {
        let sql = format!(
            "{} DELETE FROM handover_sink.claims WHERE {job}; DELETE FROM handover_sink.progress WHERE {job}; COMMIT",
            begin(),
            job = self.job
        );
        match send(connection, sql).await {
            Ok(_) => Ok(()),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(Trouble::of_statement("delete the sink's progress", &error)),
        }
    }

    fn push_fence(&self, sql: &mut String) {
        let _infallible = write!(
            sql,
            "SELECT 'claim', epoch, claim FROM handover_sink.claims WHERE {} FOR SHARE;",
            self.job
        );
    }

    /// In the order of topic and partition, as everybody does.
    fn push_lock<'a>(
        &self,
        sql: &mut String,
        partitions: impl Iterator<Item = &'a TopicPartition>,
    ) {
        let keys: Vec<String> = partitions
            .map(|key| format!("({}, {})", literal(&key.topic), key.partition))
            .collect();
        if keys.is_empty() {
            return;
        }
        let _infallible = write!(
            sql,
            "SELECT 'progress', topic, partition, next_offset, position_id FROM handover_sink.progress
               WHERE {} AND (topic, partition) IN ({}) ORDER BY topic, partition FOR UPDATE;",
            self.target,
            keys.join(", ")
        );
    }

    fn push_advance(&self, sql: &mut String, steps: &[Step]) {
        if steps.is_empty() {
            return;
        }
        let values: Vec<String> = steps
            .iter()
            .map(|step| {
                format!(
                    "({}, {}, {}::bigint, {}::bigint, {}::bigint)",
                    literal(&step.partition.topic),
                    step.partition.partition,
                    step.from.next_offset,
                    step.to,
                    step.from.position_id
                )
            })
            .collect();
        let _infallible = write!(
            sql,
            "UPDATE handover_sink.progress AS p SET next_offset = m.end_offset, updated_at = clock_timestamp()
               FROM (VALUES {}) AS m (topic, partition, begin_offset, end_offset, position_id)
               WHERE {} AND p.topic = m.topic AND p.partition = m.partition
                 AND p.next_offset = m.begin_offset AND p.position_id = m.position_id;",
            values.join(", "),
            self.target
        );
    }
}

/// Ends a transaction that holds no rows of records.
async fn commit(connection: &mut PgConnection, doing: &str) -> Result<(), Trouble> {
    send(connection, "COMMIT".to_owned())
        .await
        .map_err(|error| Trouble::of_statement(doing, &error))?;
    Ok(())
}

fn is_missing(error: &sqlx::Error) -> bool {
    matches!(sqlstate(error).as_deref(), Some("42P01" | "3F000"))
}

fn fenced(known: i64, mine: LeaseEpoch) -> Trouble {
    Trouble::Refused(SinkError::fenced(format!(
        "the target was claimed under epoch {known}, this job has epoch {mine}"
    )))
}

fn check_fence(rows: &[PgRow], claim: Claim) -> Result<(), Trouble> {
    let Some((epoch, number)) = claim_of(rows)? else {
        return Err(Trouble::Refused(SinkError::fenced(
            "the target's claim is gone: the job's progress there was deleted",
        )));
    };
    if epoch > claim.epoch.0 || (epoch == claim.epoch.0 && number > claim.number) {
        return Err(fenced(epoch, claim.epoch));
    }
    if (epoch, number) != (claim.epoch.0, claim.number) {
        return Err(mismatch(format!(
            "the target knows claim {number} of epoch {epoch}, this job holds claim {} of epoch {}: the target was restored",
            claim.number, claim.epoch
        )));
    }
    Ok(())
}

/// Which partitions stand elsewhere than the writer knows.
fn explain(steps: &[Step], progress: &SinkProgress) -> String {
    let odd: Vec<String> = steps
        .iter()
        .filter(|step| progress.get(&step.partition) != Some(&step.from))
        .take(5)
        .map(|step| {
            let found = match progress.get(&step.partition) {
                None => "has no progress".to_owned(),
                Some(found) => {
                    format!(
                        "stands at {} by checkpoint {}",
                        found.next_offset, found.position_id
                    )
                }
            };
            format!(
                "{} {found}, this job left it at {} by checkpoint {}",
                step.partition, step.from.next_offset, step.from.position_id
            )
        })
        .collect();
    format!(
        "the target's progress was changed by something else: {}",
        odd.join("; ")
    )
}

fn unreadable(error: &sqlx::Error) -> Trouble {
    if passes(error) {
        Trouble::Away(error.to_string())
    } else {
        mismatch(format!(
            "the tables in schema handover_sink are not readable: {error}"
        ))
    }
}

fn claim_of(rows: &[PgRow]) -> Result<Option<(i64, i64)>, Trouble> {
    let Some(row) = rows.iter().find(|row| is_tagged(row, "claim")) else {
        return Ok(None);
    };
    let read = || Ok((row.try_get(1)?, row.try_get(2)?));
    read().map(Some).map_err(|error| unreadable(&error))
}

fn progress_of(rows: &[PgRow]) -> Result<SinkProgress, Trouble> {
    rows.iter()
        .filter(|row| is_tagged(row, "progress"))
        .map(|row| {
            let read = || {
                let topic: String = row.try_get(1)?;
                Ok((
                    TopicPartition::new(topic, row.try_get(2)?),
                    row.try_get::<i64, _>(3)?,
                    row.try_get(4)?,
                ))
            };
            let (partition, offset, position_id) = read().map_err(|error| unreadable(&error))?;
            let next_offset = Offset::new(offset).ok_or_else(|| {
                mismatch(format!(
                    "{partition}: the sink's progress is {offset}, which is no offset"
                ))
            })?;
            let position = SinkPosition {
                next_offset,
                position_id: CheckpointId(position_id),
            };
            Ok((partition, position))
        })
        .collect()
}

fn is_tagged(row: &PgRow, tag: &str) -> bool {
    row.try_get::<&str, _>(0).is_ok_and(|found| found == tag)
}

// ---------------------------------------------------------------------------------------------------------------------
// The tables themselves

const TABLES: [(&str, &str); 2] = [
    (
        "claims",
        "CREATE TABLE handover_sink.claims (install_id uuid NOT NULL, job_uid uuid NOT NULL, epoch bigint NOT NULL, \
         claim bigint NOT NULL, claimed_at timestamptz NOT NULL, PRIMARY KEY (install_id, job_uid));",
    ),
    (
        "progress",
        // Space for new versions beside the old ones: a row changes with every flush.
        "CREATE TABLE handover_sink.progress (install_id uuid NOT NULL, job_uid uuid NOT NULL, target text NOT NULL, \
         topic text COLLATE \"C\" NOT NULL, partition integer NOT NULL, next_offset bigint NOT NULL, position_id bigint NOT NULL, \
         updated_at timestamptz NOT NULL, PRIMARY KEY (install_id, job_uid, target, topic, partition)) WITH (fillfactor = 50);",
    ),
];
const CREATE_SCHEMA: &str = "CREATE SCHEMA handover_sink;";
/// Number of the lock under which the tables are made: two jobs may begin at once.
const MAKING: i64 = 0x68616e646f766572;

/// What is there of the schema, and what the role may do.
struct Standing {
    has_schema: bool,
    may_create_schema: bool,
    may_use_schema: bool,
    may_create_tables: bool,
    /// Of each table: whether it exists, and whether the role may read and write it.
    tables: Vec<(&'static str, &'static str, bool, bool)>,
}

impl Standing {
    async fn read(connection: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let mut sql = "SELECT n.oid IS NOT NULL, has_database_privilege(current_database(), 'CREATE'),
               coalesce(has_schema_privilege(n.oid, 'USAGE'), false), coalesce(has_schema_privilege(n.oid, 'CREATE'), false)"
            .to_owned();
        for (table, _) in TABLES {
            let _infallible = write!(
                sql,
                ", {table}.oid IS NOT NULL, coalesce(has_table_privilege({table}.oid, 'SELECT')
                   AND has_table_privilege({table}.oid, 'INSERT') AND has_table_privilege({table}.oid, 'UPDATE')
                   AND has_table_privilege({table}.oid, 'DELETE'), false)"
            );
        }
        sql.push_str(
            " FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = 'handover_sink'",
        );
        for (table, _) in TABLES {
            let _infallible = write!(
                sql,
                " LEFT JOIN pg_catalog.pg_class {table} ON {table}.relnamespace = n.oid AND {table}.relname = '{table}'"
            );
        }
        let rows = send(connection, sql).await?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
        let mut tables = Vec::new();
        for (index, (table, create)) in TABLES.into_iter().enumerate() {
            let column = 4 + 2 * index;
            tables.push((
                table,
                create,
                row.try_get(column)?,
                row.try_get(column + 1)?,
            ));
        }
        Ok(Self {
            has_schema: row.try_get(0)?,
            may_create_schema: row.try_get(1)?,
            may_use_schema: row.try_get(2)?,
            may_create_tables: row.try_get(3)?,
            tables,
        })
    }

    /// The statements that make what is missing, if the role may run them.
    fn to_create(&self) -> Vec<&'static str> {
        let schema = (!self.has_schema).then_some(CREATE_SCHEMA);
        let tables = self.tables.iter().filter(|(_, _, exists, _)| !exists);
        schema
            .into_iter()
            .chain(tables.map(|(_, create, _, _)| *create))
            .collect()
    }

    fn may_create(&self) -> bool {
        if self.has_schema {
            self.may_create_tables
        } else {
            self.may_create_schema
        }
    }

    /// What an administrator has to run, if the role itself cannot help itself.
    fn remedy(&self, role: &str) -> Option<String> {
        let role = identifier(role);
        let to_create = self.to_create();
        let mut lines: Vec<String> = Vec::new();
        if !to_create.is_empty() && !self.may_create() {
            lines.extend(to_create.iter().map(|line| (*line).to_owned()));
        }
        let creates_schema = !self.has_schema && self.may_create_schema;
        if !self.may_use_schema && !creates_schema {
            lines.push(format!("GRANT USAGE ON SCHEMA handover_sink TO {role};"));
        }
        for (table, _, exists, may_write) in &self.tables {
            let by_others = *exists || !self.may_create();
            if !may_write && by_others {
                lines.push(format!(
                    "GRANT SELECT, INSERT, UPDATE, DELETE ON handover_sink.{table} TO {role};"
                ));
            }
        }
        (!lines.is_empty()).then(|| lines.join(" "))
    }
}

/// Says which statements an administrator has to run before the role can keep progress here; `None` if it can already, or
/// can make what is missing.
pub(super) async fn missing(
    connection: &mut PgConnection,
    role: &str,
) -> Result<Option<String>, Trouble> {
    let standing = Standing::read(connection)
        .await
        .map_err(|error| Trouble::of_statement("look for the schema handover_sink", &error))?;
    Ok(standing.remedy(role))
}

fn cannot_keep(role: &str, remedy: &str) -> Trouble {
    Trouble::Refused(SinkError::refused(format!(
        "the role {role} cannot keep the job's progress in the target database; as its owner run: {remedy}"
    )))
}

/// Makes the schema and its tables where they are missing.
pub(super) async fn bring_up(connection: &mut PgConnection, role: &str) -> Result<(), Trouble> {
    let doing = "make the schema handover_sink";
    let failed = |error: &sqlx::Error| Trouble::of_statement(doing, error);
    let standing = Standing::read(connection).await.map_err(|e| failed(&e))?;
    if let Some(remedy) = standing.remedy(role) {
        return Err(cannot_keep(role, &remedy));
    }
    if standing.to_create().is_empty() {
        return Ok(());
    }
    let sql = format!("{} SELECT pg_advisory_xact_lock({MAKING})", begin());
    send(connection, sql).await.map_err(|e| failed(&e))?;
    // Looked at again: another job may have made them meanwhile.
    let standing = Standing::read(connection).await.map_err(|e| failed(&e))?;
    let mut sql = standing.to_create().join(" ");
    sql.push_str(" COMMIT");
    send(connection, sql).await.map_err(|e| failed(&e))?;
    tracing::info!("made the schema handover_sink in the target database");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(has_schema: bool, may: bool, tables: bool) -> Standing {
        Standing {
            has_schema,
            may_create_schema: may,
            may_use_schema: has_schema && may,
            may_create_tables: has_schema && may,
            tables: TABLES
                .map(|(table, create)| (table, create, tables, tables && may))
                .into(),
        }
    }

    #[test]
    fn what_an_administrator_has_to_run_is_said_whole_and_no_more() {
        assert_eq!(standing(false, true, false).remedy("w"), None);
        assert_eq!(standing(true, true, false).remedy("w"), None);
        assert_eq!(standing(true, true, true).remedy("w"), None);
        let all = standing(false, false, false).remedy("w").unwrap();
        assert!(
            all.starts_with("CREATE SCHEMA handover_sink; CREATE TABLE handover_sink.claims ("),
            "{all}"
        );
        assert!(
            all.contains("GRANT USAGE ON SCHEMA handover_sink TO \"w\";"),
            "{all}"
        );
        assert!(
            all.ends_with("ON handover_sink.progress TO \"w\";"),
            "{all}"
        );
        let grants = standing(true, false, true).remedy("w").unwrap();
        assert!(!grants.contains("CREATE"), "{grants}");
    }
}
