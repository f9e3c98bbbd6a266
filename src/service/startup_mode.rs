//! Changing where a job without state begins, without anybody being surprised that a job with state does not care.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Service,
    core::JobEntry,
    error::{Result, ServiceError},
    next_steps::Curl,
    operations::in_progress,
    queries::Caller,
};
use crate::{
    model::{
        code::Code,
        field_error::FieldError,
        ids::{CheckpointId, JobName},
        job_state::JobState,
        reader::ObjectReader,
        resolver::{PlanTotals, Warning},
        start::{PendingStart, StartFrom, StartRequest},
        startup_mode::StartupMode,
        views::{ModeEffect, StartupModeView},
    },
    store::{CancelStart, JobRow, SetMode},
};

/// What a caller means by a new startup mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Apply {
    /// Stored for a job without a checkpoint.
    IfNoState,
    /// The next operator's start sets the checkpoint aside, once.
    NextStart,
}

impl Apply {
    fn name(self) -> &'static str {
        match self {
            Self::IfNoState => "if-no-state",
            Self::NextStart => "next-start",
        }
    }
}

struct ModeRequest {
    mode: StartupMode,
    apply: Option<Apply>,
    #[expect(
        dead_code,
        reason = "read so that it is known; the history takes it from the caller"
    )]
    reason: Option<String>,
}

impl ModeRequest {
    fn read(document: &Value) -> std::result::Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut reader = ObjectReader::open(document, "", &mut errors);
        let mode = StartupMode::read(&mut reader);
        let apply = reader.optional("apply");
        let reason = reader.optional("reason");
        reader.finish();
        match mode {
            Some(mode) if errors.is_empty() => Ok(Self {
                mode,
                apply,
                reason,
            }),
            _ => Err(errors),
        }
    }
}

/// Whether a bare start by an operator would use the startup mode.
pub(crate) fn mode_effect(row: &JobRow, has_checkpoint: bool) -> ModeEffect {
    let because = if row.pending_start.is_some() {
        Some("pending-start")
    } else if has_checkpoint {
        Some("checkpoint-exists")
    } else {
        None
    };
    ModeEffect {
        mode: row.spec.startup_mode.clone(),
        effective: because.is_none(),
        because,
    }
}

/// Refuses a startup mode whose instant has not come yet: it would begin at the end of the log without saying so.
pub(crate) fn refuse_future_mode(mode: &StartupMode, now: DateTime<Utc>) -> Result<()> {
    refuse_future_start(&StartFrom::from_mode(mode), now)
}

/// Refuses a start from an instant that has not come yet.
pub(crate) fn refuse_future_start(from: &StartFrom, now: DateTime<Utc>) -> Result<()> {
    let StartFrom::Timestamp { timestamp } = from else {
        return Ok(());
    };
    if *timestamp <= now {
        return Ok(());
    }
    Err(ServiceError::new(
        Code::TimestampInFuture,
        format!(
            "{} lies in the future; it is {} now",
            timestamp.to_rfc3339(),
            now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
        ),
    ))
}

/// The calls and whoever reads them alike: what became of the mode.
struct Outcome<'a> {
    row: &'a JobRow,
    mode: StartupMode,
    apply: Option<Apply>,
    changed: bool,
    state: Option<CheckpointId>,
    estimate: Option<PlanTotals>,
    discarded: Option<PendingStart>,
    dry_run: bool,
}

impl Service {
    pub(super) async fn show_startup_mode(&self, name: &JobName) -> Result<StartupModeView> {
        let job = self.core.job(name).await?;
        self.core.refresh(&job).await;
        let state = self.newest_checkpoint_id(&job).await?;
        let row = job.row();
        // Somebody has set the mode for the next start: what was set is what is shown.
        let ahead = row.pending_start.as_ref();
        let ahead = ahead.filter(|pending| pending.partitions.is_none());
        let ahead = ahead.and_then(|pending| pending.from.as_mode());
        let (mode, apply) = match ahead {
            Some(mode) => (mode, Some(Apply::NextStart)),
            None => (row.spec.startup_mode.clone(), None),
        };
        let outcome = Outcome {
            row: &row,
            mode,
            apply,
            changed: false,
            state,
            estimate: None,
            discarded: None,
            dry_run: false,
        };
        Ok(StartupModeView {
            changed: None,
            warnings: shadow_warning(&row, state),
            ..view(&job, outcome)
        })
    }

    async fn newest_checkpoint_id(&self, job: &JobEntry) -> Result<Option<CheckpointId>> {
        if job.row().spec.checkpointing().is_off() {
            // Whatever is kept of an earlier time does not count.
            return Ok(None);
        }
        let newest = self.core.store.latest_checkpoint(job.uid).await?;
        Ok(newest.map(|checkpoint| checkpoint.id))
    }

    pub(super) async fn change_startup_mode(
        &self,
        name: &JobName,
        document: &Value,
        if_match: Option<i64>,
        dry_run: bool,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        let request = ModeRequest::read(document)
            .map_err(|faults| ServiceError::faults(faults, Code::InvalidSpec).job(name))?;
        refuse_future_mode(&request.mode, self.core.now()).map_err(|error| error.job(name))?;
        let job = self.core.job(name).await?;
        self.core.refresh(&job).await;
        let row = job.row();
        if let Some(wanted) = if_match.filter(|wanted| *wanted != row.generation) {
            return Err(stale_generation(name, wanted, row.generation));
        }
        let state = self.newest_checkpoint_id(&job).await?;
        let outcome = Outcome {
            row: &row,
            mode: request.mode.clone(),
            apply: request.apply,
            changed: false,
            state,
            estimate: None,
            discarded: None,
            dry_run,
        };
        if already_so(&request, &row, state.is_some()) {
            return Ok(view(&job, outcome));
        }
        match (request.apply, state) {
            (Some(Apply::NextStart), _) => self.ask_for_next_start(&job, outcome, caller).await,
            (None, Some(checkpoint)) => Err(self.shadowed(name, &request.mode, checkpoint).await),
            (None | Some(Apply::IfNoState), _) => {
                self.store_default(&job, outcome, if_match, caller).await
            }
        }
    }

    pub(super) async fn call_off_next_start(
        &self,
        name: &JobName,
        only: Option<&str>,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        let job = self.core.job(name).await?;
        let store = &self.core.store;
        let reason = caller.reason.as_deref();
        let outcome = store
            .cancel_pending_start(job.uid, only, &caller.requested_by, reason)
            .await?;
        let discarded = match outcome {
            CancelStart::Cancelled(pending) => Some(pending),
            CancelStart::NotPending => None,
            CancelStart::Busy(start) => {
                return Err(in_progress(name, *start));
            }
        };
        Ok(StartupModeView {
            changed: Some(discarded.is_some()),
            discarded,
            ..self.show_startup_mode(name).await?
        })
    }

    /// Keeps the mode as a one-shot start.
    async fn ask_for_next_start(
        &self,
        job: &JobEntry,
        mut outcome: Outcome<'_>,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        outcome.estimate = self.estimate(&job.name, &outcome.mode).await;
        outcome.changed = true;
        let pending = PendingStart {
            id: self.core.ulid(),
            from: StartFrom::from_mode(&outcome.mode),
            partitions: None,
            requested_by: caller.requested_by.clone(),
            at: self.core.now(),
        };
        if outcome.dry_run {
            outcome.discarded.clone_from(&outcome.row.pending_start);
            let row = JobRow {
                pending_start: Some(pending),
                ..outcome.row.clone()
            };
            return Ok(view(
                job,
                Outcome {
                    row: &row,
                    ..outcome
                },
            ));
        }
        outcome.discarded = self.core.store.set_pending_start(job.uid, &pending).await?;
        self.core.refresh(job).await;
        let row = job.row();
        Ok(view(
            job,
            Outcome {
                row: &row,
                ..outcome
            },
        ))
    }

    /// Writes the mode into the spec.
    async fn store_default(
        &self,
        job: &JobEntry,
        mut outcome: Outcome<'_>,
        if_match: Option<i64>,
        caller: &Caller,
    ) -> Result<StartupModeView> {
        if outcome.state.is_none() {
            outcome.estimate = self.estimate(&job.name, &outcome.mode).await;
        }
        if outcome.dry_run {
            let mut row = outcome.row.clone();
            outcome.changed = row.spec.startup_mode != outcome.mode;
            row.spec.startup_mode = outcome.mode.clone();
            return Ok(view(
                job,
                Outcome {
                    row: &row,
                    ..outcome
                },
            ));
        }
        let by = &caller.requested_by;
        let set = self
            .core
            .store
            .set_startup_mode(job.uid, &outcome.mode, if_match, by)
            .await?;
        let row = match set {
            SetMode::Changed(row) => {
                outcome.changed = true;
                row
            }
            SetMode::Unchanged(row) => row,
            SetMode::Stale { generation } => {
                let wanted = if_match.unwrap_or(generation);
                return Err(stale_generation(&job.name, wanted, generation));
            }
        };
        self.core.remember(row.clone());
        Ok(view(
            job,
            Outcome {
                row: &row,
                ..outcome
            },
        ))
    }

    /// What the next start would do with this mode; `None` if that cannot be worked out now.
    async fn estimate(&self, name: &JobName, mode: &StartupMode) -> Option<PlanTotals> {
        let request = StartRequest {
            from: StartFrom::from_mode(mode),
            ..StartRequest::auto()
        };
        let decision = self.decide(name, &request).await;
        decision.ok().map(|decision| decision.resolved.totals)
    }

    /// The refusal that says what there is to choose from.
    async fn shadowed(
        &self,
        name: &JobName,
        mode: &StartupMode,
        checkpoint: CheckpointId,
    ) -> ServiceError {
        let estimate = self.estimate(name, mode).await;
        let curl = Curl::of(&self.core, name);
        let with_apply = |apply: Apply| {
            let mut body = json!(mode);
            if let Some(members) = body.as_object_mut() {
                members.insert("apply".to_owned(), json!(apply.name()));
            }
            curl.send("PUT", "/startup-mode", Some(&body))
        };
        let start = json!(StartFrom::from_mode(mode));
        let runs = self.core.job(name).await.is_ok_and(|job| runs(&job));
        let since = if runs {
            format!(" (counted from checkpoint {checkpoint}; the job reads on)")
        } else {
            String::new()
        };
        let movement = estimate.map_or_else(String::new, |totals| movement(&totals) + &since);
        let choices = vec![
            json!({
                "apply": "next-start",
                "effect": format!("the next start sets checkpoint {checkpoint} aside, once{movement}"),
                "estimate": estimate,
                "curl": with_apply(Apply::NextStart),
            }),
            json!({
                "apply": "if-no-state",
                "effect": "stored only; used when there is no checkpoint",
                "curl": with_apply(Apply::IfNoState),
            }),
            json!({
                "restart": start,
                "effect": format!("restart now from there, once{movement}"),
                "curl": curl.restart(Some(&start)),
            }),
        ];
        ServiceError::new(
            Code::StartupModeShadowed,
            format!("job {name} has checkpoint {checkpoint}. A start resumes from it and does not look at the startup mode. Nothing was changed."),
        )
        .job(name)
        .choices(choices)
    }
}

fn movement(totals: &PlanTotals) -> String {
    let parts: Vec<String> = [
        (totals.replayed, "replayed"),
        (totals.skipped, "skipped"),
        (totals.lost, "lost"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} offsets {what}"))
    .collect();
    if parts.is_empty() {
        "; nothing is replayed, skipped or lost".to_owned()
    } else {
        format!("; {}", parts.join(", "))
    }
}

/// The error of a precondition that names another generation.
pub(crate) fn stale_generation(job: &JobName, wanted: i64, generation: i64) -> ServiceError {
    ServiceError::new(
        Code::StaleGeneration,
        format!("the spec of job {job} has generation {generation}, not {wanted}"),
    )
    .job(job)
}

/// Whether sending this changes nothing, so that a machine that sends it each minute is never refused.
fn already_so(request: &ModeRequest, row: &JobRow, has_checkpoint: bool) -> bool {
    let pending_means_it = row.pending_start.as_ref().is_some_and(|pending| {
        pending.partitions.is_none() && pending.from == StartFrom::from_mode(&request.mode)
    });
    let stored = row.spec.startup_mode == request.mode;
    match request.apply {
        Some(Apply::NextStart) => pending_means_it,
        Some(Apply::IfNoState) => stored,
        None => stored || (has_checkpoint && pending_means_it),
    }
}

fn runs(job: &JobEntry) -> bool {
    matches!(
        job.state(),
        JobState::Running | JobState::Starting | JobState::Stopping | JobState::BackingOff
    )
}

fn shadow_warning(row: &JobRow, state: Option<CheckpointId>) -> Vec<Warning> {
    match state {
        Some(checkpoint) if row.startup_mode_shadowed && row.pending_start.is_none() => {
            vec![Warning {
                code: Code::StartupModeShadowed,
                summary: format!(
                    "the startup mode will not be used: checkpoint {checkpoint} exists"
                ),
            }]
        }
        _ => Vec::new(),
    }
}

fn view(job: &JobEntry, outcome: Outcome<'_>) -> StartupModeView {
    let Outcome { row, mode, .. } = outcome;
    let pending_means_it = row
        .pending_start
        .as_ref()
        .is_some_and(|pending| pending.from == StartFrom::from_mode(&mode));
    let because = match (&row.pending_start, outcome.state) {
        (Some(_), _) if pending_means_it => None,
        (Some(_), _) => Some("pending-start"),
        (None, Some(_)) => Some("checkpoint-exists"),
        (None, None) => None,
    };
    let mut warnings = Vec::new();
    if because == Some("checkpoint-exists")
        && let Some(checkpoint) = outcome.state
    {
        warnings.push(Warning {
            code: Code::StartupModeShadowed,
            summary: format!("stored, and not used while checkpoint {checkpoint} exists"),
        });
    }
    let running = runs(job);
    StartupModeView {
        mode,
        spec_mode: row.spec.startup_mode.clone(),
        apply: outcome.apply.map(Apply::name),
        generation: row.generation,
        changed: Some(outcome.changed),
        effective: because.is_none(),
        because,
        takes_effect: because.is_none().then_some("next-start"),
        job_is_running: running,
        will_set_aside_checkpoint: outcome.state.filter(|_| pending_means_it),
        estimated_from: outcome
            .state
            .filter(|_| outcome.estimate.is_some() && running),
        estimate: outcome.estimate,
        pending_start: row.pending_start.clone(),
        discarded: outcome.discarded,
        warnings,
        dry_run: outcome.dry_run,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::JobSpec, model::JobUid, model::job_state::DesiredState};

    fn row(mode: &Value, pending: Option<&Value>) -> JobRow {
        let name = JobName::new("orders").unwrap();
        let document = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": mode,
            "sink": {"type": "blackhole"}
        });
        JobRow {
            uid: JobUid(uuid::Uuid::nil()),
            spec: JobSpec::read(&name, &document).unwrap(),
            name,
            generation: 1,
            desired_state: DesiredState::Stopped,
            state: JobState::Stopped,
            state_since: DateTime::UNIX_EPOCH,
            failure: None,
            failed_record: None,
            parked: Vec::new(),
            crash_loop: None,
            pending_start: pending.map(|from| PendingStart {
                id: "p".to_owned(),
                from: serde_json::from_value(from.clone()).unwrap(),
                partitions: None,
                requested_by: "x".to_owned(),
                at: DateTime::UNIX_EPOCH,
            }),
            running: None,
            startup_mode_shadowed: false,
            owner: None,
            created_at: DateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn sending_the_same_again_changes_nothing() {
        let earliest = json!({"mode": "earliest"});
        let pending = json!({"from": "latest"});
        for (body, pending, has_checkpoint, same) in [
            (json!({"mode": "earliest"}), None, true, true),
            (json!({"mode": "latest"}), None, true, false),
            (json!({"mode": "latest"}), Some(&pending), true, true),
            (
                json!({"mode": "latest", "apply": "next-start"}),
                Some(&pending),
                true,
                true,
            ),
            (
                json!({"mode": "earliest", "apply": "next-start"}),
                Some(&pending),
                true,
                false,
            ),
            (
                json!({"mode": "earliest", "apply": "if-no-state"}),
                Some(&pending),
                true,
                true,
            ),
            (json!({"mode": "latest"}), Some(&pending), false, false),
        ] {
            let request = ModeRequest::read(&body).unwrap();
            let row = row(&earliest, pending);
            assert_eq!(
                already_so(&request, &row, has_checkpoint),
                same,
                "{body} {pending:?}"
            );
        }
    }

    #[test]
    fn a_mode_counts_only_without_state_and_without_a_pending_start() {
        let earliest = json!({"mode": "earliest"});
        let pending = json!({"from": "latest"});
        assert_eq!(mode_effect(&row(&earliest, None), false).because, None);
        assert_eq!(
            mode_effect(&row(&earliest, None), true).because,
            Some("checkpoint-exists")
        );
        assert_eq!(
            mode_effect(&row(&earliest, Some(&pending)), true).because,
            Some("pending-start")
        );
    }

    #[test]
    fn an_instant_must_have_passed() {
        let mode = |text: &str| StartupMode::Timestamp {
            timestamp: DateTime::parse_from_rfc3339(text).unwrap(),
        };
        let now = DateTime::parse_from_rfc3339("2026-11-28T01:00:00Z")
            .unwrap()
            .to_utc();
        assert!(refuse_future_mode(&mode("2026-11-28T02:00:00+01:00"), now).is_ok());
        let error = refuse_future_mode(&mode("2026-11-28T02:00:01+01:00"), now).unwrap_err();
        assert_eq!(error.code, Code::TimestampInFuture);
        assert!(refuse_future_mode(&StartupMode::Latest, now).is_ok());
    }

    #[test]
    fn a_misspelt_intent_is_refused() {
        let faults = ModeRequest::read(&json!({"mode": "earliest", "aply": "next-start"}))
            .err()
            .unwrap();
        assert!(faults[0].unknown_member);
        assert!(ModeRequest::read(&json!({"mode": "earliest", "apply": "now"})).is_err());
    }
}
