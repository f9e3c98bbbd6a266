use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::model::{
    checkpoint::{CheckpointFailure, CheckpointPhases, GroupCommit},
    ids::{CheckpointId, JobName, PlanId},
    operation::Operation,
    resolver::{PlanTotals, ResolvedStart, StartBasis, Warning},
    startup_mode::OffsetsByTopic,
};

use super::{ModeEffect, NextStep};

/// Where a start would begin, partition by partition, and why.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StartPlanView {
    /// The job.
    pub job: JobName,
    /// Generation of the spec it was made from.
    pub generation: i64,
    /// Pass it to a start as `plan`: the start uses exactly these numbers or fails with `plan-stale`. `null` while there
    /// are blockers, if the store could not keep it, and for a job without checkpoints, of which nothing is kept.
    pub plan: Option<PlanId>,
    /// Until when the plan is kept.
    pub valid_until: Option<DateTime<Utc>>,
    /// The startup mode and whether it counts.
    pub startup_mode: ModeEffect,
    /// What to do next.
    pub next: Vec<NextStep>,
    /// Milliseconds that the spec's limit `records_per_s` makes it take to read up to the end as it is now, if every offset is
    /// a record; `null` without the limit.
    pub catch_up_ms: Option<i64>,
    /// The decision.
    #[serde(flatten)]
    pub resolved: ResolvedStart,
}

/// What a start did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartReport {
    /// What it rested on.
    pub basis: StartBasis,
    /// The checkpoint it resumed from or set aside.
    pub checkpoint: Option<CheckpointId>,
    /// The `start` checkpoint that holds the positions it began at; `null` for a job that was running already, and for one
    /// without checkpoints.
    pub bootstrap_checkpoint: Option<CheckpointId>,
    /// How many partitions the job has after it: without those whose positions were dropped.
    pub partitions: usize,
    /// Topic to partition to the offset that it began at, for a job without checkpoints: nothing else keeps them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positions: Option<OffsetsByTopic>,
    /// One sentence.
    pub summary: String,
    /// The sums of its plan.
    #[serde(flatten)]
    pub totals: PlanTotals,
    /// What its plan warned of.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// What a stop did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopReport {
    /// The last checkpoint; `null` if none was taken or the job was stopped already.
    pub checkpoint: Option<CheckpointReport>,
    /// The last commit to the group of a job without checkpoints; one that takes them has it in `checkpoint`.
    #[serde(default)]
    pub group_commit: Option<GroupCommit>,
    /// Offsets between the last live positions and the readable ends; `null` if unknown.
    pub position_lag: Option<i64>,
    /// Records that the sink may hold and that will be read, and given to it, again; `null` if unknown. 0 where the sink says
    /// how far it has come: a start goes on there.
    pub will_replay: Option<i64>,
    /// From where a start would go on.
    pub resume_from: String,
    /// What keeps a late writer of the run out.
    pub fence: Fence,
    /// What to know.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// What keeps a late writer of a run that is over away from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fence {
    /// Nothing: the sink cannot tell an old owner from a new one.
    None,
    /// There is none: the run ended in this server and closed its writers.
    Closed,
    /// The target was claimed under a new epoch, and refuses what a dead owner still sends.
    Claimed,
    /// The target did not answer; the next start claims it before it reads.
    Open,
}

/// What became of a checkpoint that somebody waited for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointReport {
    /// Its number.
    pub id: CheckpointId,
    /// `completed`, `failed`, or `uncertain` when the store has not said whether it keeps it.
    pub status: String,
    /// When it was stored.
    pub completed_at: Option<DateTime<Utc>>,
    /// Its commit to the group.
    pub group_commit: GroupCommit,
    /// What the phases took.
    pub phases: CheckpointPhases,
    /// Why it failed.
    pub failure: Option<CheckpointFailure>,
}

/// A page of operations, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct OperationList {
    /// The operations.
    pub items: Vec<Operation>,
    /// Cursor of the next page: pass it as `after`; `null` on the last one.
    pub next: Option<String>,
}
