//! The history of a job's checkpoints, with the attempt under way at its head.

use std::collections::BTreeMap;

use super::{
    Service,
    error::{Result, ServiceError},
    operations::{invalid_cursor, page, page_size},
    queries::{CheckpointQuery, CheckpointRef},
    without_checkpoints,
};
use crate::{
    model::{
        checkpoint::{CheckpointPhases, CheckpointPosition, CheckpointStatus, GroupCommit},
        code::Code,
        ids::{CheckpointId, JobName},
        job_status::JobStatus,
        topic::TopicPartition,
        views::{CheckpointList, CheckpointView},
    },
    store::{CheckpointFilter, StoredCheckpoint},
};

impl Service {
    pub(super) async fn find_checkpoints(
        &self,
        name: &JobName,
        query: &CheckpointQuery,
    ) -> Result<CheckpointList> {
        let job = self.core.job(name).await?;
        let (limit, read) = page_size(query.limit);
        let before = match &query.after {
            Some(cursor) => Some(CheckpointId(cursor.parse().map_err(|_| invalid_cursor())?)),
            None => None,
        };
        let status = job.shared().status();
        let mut items: Vec<CheckpointView> = Vec::new();
        if let Some(status) = status.filter(|_| before.is_none()) {
            items.extend(under_way(&status));
        }
        items.retain(|view| {
            let status_fits = query.statuses.is_empty() || query.statuses.contains(&view.status);
            status_fits && (query.kinds.is_empty() || query.kinds.contains(&view.kind))
        });
        let stored_statuses: Vec<CheckpointStatus> = query
            .statuses
            .iter()
            .copied()
            .filter(|status| {
                matches!(
                    status,
                    CheckpointStatus::Completed | CheckpointStatus::Failed
                )
            })
            .collect();
        if query.statuses.is_empty() || !stored_statuses.is_empty() {
            let filter = CheckpointFilter {
                statuses: stored_statuses,
                kinds: query.kinds.clone(),
                limit: read,
                before,
                with_positions: query.with_offsets,
            };
            let stored = self.core.store.checkpoints(job.uid, &filter).await?;
            // An attempt may have been stored between the two looks.
            items.retain(|attempt| stored.iter().all(|stored| stored.id != attempt.id));
            let views = stored
                .into_iter()
                .map(|stored| view(stored, query.with_offsets));
            items.extend(views);
        }
        let (items, next) = page(items, limit, |view| view.id.to_string());
        let off = without_checkpoints::warning(job.shared().spec()).map(|off| off.summary);
        Ok(CheckpointList { items, next, off })
    }

    pub(super) async fn show_checkpoint(
        &self,
        name: &JobName,
        which: CheckpointRef,
    ) -> Result<CheckpointView> {
        let job = self.core.job(name).await?;
        let store = &self.core.store;
        let stored = match which {
            CheckpointRef::Latest if job.shared().spec().checkpointing().is_off() => None,
            CheckpointRef::Latest => store.latest_checkpoint(job.uid).await?,
            CheckpointRef::Id(id) => store.checkpoint(job.uid, id).await?,
        };
        let attempt = || {
            let status = job.shared().status()?;
            under_way(&status).filter(|view| which == CheckpointRef::Id(view.id))
        };
        stored
            .map(|stored| view(stored, true))
            .or_else(attempt)
            .ok_or_else(|| {
                let what = match which {
                    CheckpointRef::Latest => "completed checkpoint".to_owned(),
                    CheckpointRef::Id(id) => format!("checkpoint {id}"),
                };
                let is_off = job.shared().spec().checkpointing().is_off();
                let why = if is_off { ": checkpoints are off" } else { "" };
                ServiceError::new(
                    Code::CheckpointNotFound,
                    format!("job {name} has no {what}{why}"),
                )
                .job(name)
            })
    }
}

/// The attempt under way, as a checkpoint that has not ended.
fn under_way(status: &JobStatus) -> Option<CheckpointView> {
    let attempt = status.in_progress.as_ref()?;
    Some(CheckpointView {
        id: attempt.id,
        kind: attempt.kind,
        status: if attempt.uncertain {
            CheckpointStatus::Uncertain
        } else {
            CheckpointStatus::InProgress
        },
        started_at: attempt.started_at,
        ended_at: None,
        confirmed_at: None,
        duration_ms: None,
        phases: CheckpointPhases::default(),
        failure: None,
        group_commit: GroupCommit::PENDING,
        epoch: status.epoch,
        superseded: false,
        offsets: None,
    })
}

fn view(stored: StoredCheckpoint, with_offsets: bool) -> CheckpointView {
    CheckpointView {
        id: stored.id,
        kind: stored.kind,
        status: stored.status,
        started_at: stored.started_at,
        ended_at: Some(stored.ended_at),
        confirmed_at: stored.confirmed_at,
        duration_ms: Some((stored.ended_at - stored.started_at).num_milliseconds()),
        phases: stored.phases,
        failure: stored.failure,
        group_commit: stored.group_commit,
        epoch: stored.epoch,
        superseded: stored.superseded,
        offsets: with_offsets.then(|| by_topic(stored.positions)),
    }
}

fn by_topic(
    positions: BTreeMap<TopicPartition, CheckpointPosition>,
) -> BTreeMap<String, BTreeMap<i32, CheckpointPosition>> {
    let mut topics: BTreeMap<String, BTreeMap<i32, CheckpointPosition>> = BTreeMap::new();
    for (partition, position) in positions {
        topics
            .entry(partition.topic.to_string())
            .or_default()
            .insert(partition.partition, position);
    }
    topics
}
