//! How a job stands, in one sentence, and what one would do next, as lines to copy.
//!
//! Pure, so that every situation is a row of a table. A step is only proposed where it helps; a job that does well gets none.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{core::Core, recreated::Recreated, sink_look::Disagreement};
use crate::model::{
    checkpoint::CheckpointKind,
    code::Code,
    commit_mode::Checkpointing,
    health::{Health, HealthReason, HealthStatus},
    ids::{CheckpointId, JobName},
    job::SourceSpec,
    job_state::{DesiredState, JobState},
    job_status::{FailedRecord, JobFailure},
    offset::Offset,
    parked::ParkedPartition,
    resolver::Blocker,
    restart::CrashLoop,
    start::{PendingStart, StartRequest},
    startup_mode::StartupMode,
    views::{BoundedView, Commands, DivergenceCause, JobLag, NextStep},
};

/// Parked records for which the lines are shown; a page of the same lines helps nobody.
const RECORDS_SHOWN: usize = 5;
/// Parked partitions that a sentence tells with their reason.
const PARKED_TOLD: usize = 3;
/// Measurements that are older than this are told with their age.
const FRESH_MS: i64 = 3_000;
/// The same while the job runs, when its lag is measured every five seconds: a measurement is missing.
const MEASURED_MS: i64 = 6_000;

/// Writes curl lines that call this server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curl<'a> {
    pub(crate) public_url: &'a str,
    pub(crate) job: &'a JobName,
}

impl<'a> Curl<'a> {
    /// For a job of this server.
    pub(crate) fn of(core: &'a Core, job: &'a JobName) -> Self {
        Self {
            public_url: &core.settings.public_url,
            job,
        }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/v1/jobs/{}{path}", self.public_url, self.job)
    }

    /// A line that reads.
    pub(crate) fn get(&self, path: &str) -> String {
        format!("curl -sS '{}'", self.url(path))
    }

    /// A line that sends a body, or none.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        match body {
            None => format!("curl -sS -X {method} '{}'", self.url(path)),
            Some(body) => {
                // JSON holds no single quote but inside strings; the shell needs them taken apart.
                let body = body.to_string().replace('\'', r"'\''");
                format!(
                    "curl -sS -X {method} -H 'Content-Type: application/json' '{}' -d '{body}'",
                    self.url(path)
                )
            }
        }
    }

    /// A start with this body.
    pub(crate) fn start(&self, body: Option<&Value>) -> String {
        self.send("POST", "/start?wait=30s", body)
    }

    /// A stop.
    pub(crate) fn stop(&self) -> String {
        self.send("POST", "/stop?wait=60s", None)
    }

    /// A restart with this body.
    pub(crate) fn restart(&self, body: Option<&Value>) -> String {
        let given = body.map(|body| {
            let mut body = body.clone();
            if let Some(members) = body.as_object_mut() {
                members.retain(|_, value| !value.is_null());
            }
            body
        });
        self.send("POST", "/restart?wait=90s", given.as_ref())
    }

    /// A change of the spec.
    pub(crate) fn patch_spec(&self, patch: &Value) -> String {
        self.send("PATCH", "/spec", Some(patch))
    }

    /// The lines that every job shows.
    pub(crate) fn commands(&self) -> Commands {
        Commands {
            start_plan: self.get("/start-plan"),
            start: self.start(None),
            stop: self.stop(),
            trigger_checkpoint: self.send("POST", "/checkpoints?wait=60s", None),
            offsets: self.get("/offsets"),
        }
    }
}

/// A start that was refused, and what stood against it.
#[derive(Debug, Clone)]
pub(crate) struct RefusedStart {
    pub(crate) request: StartRequest,
    pub(crate) blockers: Vec<Blocker>,
}

/// What the sentence and the steps depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Situation<'a> {
    pub(crate) curl: Curl<'a>,
    pub(crate) state: JobState,
    pub(crate) desired: DesiredState,
    pub(crate) health: &'a Health,
    pub(crate) failure: Option<&'a JobFailure>,
    /// What the run does not read.
    pub(crate) parked: &'a [ParkedPartition],
    pub(crate) lag: &'a JobLag,
    /// Milliseconds since the lags were measured.
    pub(crate) lag_age_ms: Option<i64>,
    /// Topics of the run with a partition that is there, though it may be parked. Of any other topic every partition is gone.
    pub(crate) topics_there: &'a BTreeSet<&'a str>,
    /// The sink works at records that were read and are not durable yet.
    pub(crate) sink_writes: bool,
    /// The limits hold back what was read.
    pub(crate) throttled: bool,
    /// What helps against what holds the run back.
    pub(crate) against_bottleneck: &'a [NextStep],
    /// What the spec reads.
    pub(crate) source: &'a SourceSpec,
    pub(crate) last_checkpoint: Option<(CheckpointId, CheckpointKind)>,
    pub(crate) checkpointing: Checkpointing,
    /// How many of the checkpoint's positions lie outside their logs: a start from them needs a decision.
    pub(crate) outside_log: usize,
    /// Topics of the checkpoint that were created again since.
    pub(crate) recreated: Option<&'a Recreated>,
    pub(crate) mode: &'a StartupMode,
    /// The mode was changed while there was a checkpoint, and is not used because of it.
    pub(crate) mode_shadowed: bool,
    pub(crate) pending_start: Option<&'a PendingStart>,
    /// The last start, if it was refused.
    pub(crate) refused: Option<&'a RefusedStart>,
    /// What the last look at the sink says against a start.
    pub(crate) sink_disagrees: Option<&'a Disagreement>,
    pub(crate) restart_required: bool,
    /// The crash loop that it is in.
    pub(crate) crash_loop: Option<&'a CrashLoop>,
    /// The worst difference between group and checkpoint.
    pub(crate) divergence: Option<DivergenceCause>,
    /// The bounded run.
    pub(crate) bounded: Option<&'a BoundedView>,
}

/// How the job stands.
pub(crate) fn summary(situation: &Situation<'_>) -> String {
    let first = situation.health.reasons.first();
    let reason = first.map_or("", |reason| reason.summary.as_str());
    match situation.state {
        JobState::Stopped => stopped(situation),
        JobState::Finished => finished(situation),
        JobState::Starting => match first {
            None => "starting: the positions are being worked out".to_owned(),
            Some(reason) => format!("starting, and waits: {}", wait(reason)),
        },
        JobState::Stopping if situation.checkpointing.is_off() => {
            "stopping: the sink is given time to have everything durable".to_owned()
        }
        JobState::Stopping => "stopping: the last checkpoint is being taken".to_owned(),
        JobState::BackingOff => match situation.crash_loop {
            Some(crash_loop) => format!("backing off: {}", crash_loop.pause()),
            None => "backing off after a crash".to_owned(),
        },
        JobState::Failed => match situation.failure {
            Some(failure) => format!("failed and needs a decision: {}", failure.summary),
            None => "failed and needs a decision".to_owned(),
        },
        JobState::Running => {
            let told = match (situation.health.status, first) {
                (HealthStatus::Waiting, Some(reason)) => {
                    format!("running, and waits: {}", wait(reason))
                }
                _ => running(situation, reason),
            };
            if situation.checkpointing.is_off() {
                told.replacen("running", "running without checkpoints", 1)
            } else {
                told
            }
        }
    }
}

/// What a job waits for: the code's own words first, because a client's or a driver's last words are no sentence.
fn wait(reason: &HealthReason) -> String {
    format!("{} ({})", reason.code.title(), reason.summary)
}

/// What the sink says against a start that goes on from the checkpoint; a start that was asked for ahead decides itself.
fn disagreement<'a>(situation: &Situation<'a>) -> Option<&'a Disagreement> {
    let decided = situation.refused.is_some() || situation.pending_start.is_some();
    situation.sink_disagrees.filter(|_| !decided)
}

fn stopped(situation: &Situation<'_>) -> String {
    if let Some(disagreement) = disagreement(situation) {
        let told = disagreement.told();
        let as_of = as_of(Some(disagreement.age_ms), FRESH_MS);
        return format!("stopped; a start is refused until it is decided: {told}{as_of}");
    }
    let goes_on = match (situation.pending_start, situation.last_checkpoint) {
        (Some(pending), _) => format!("a start begins from {}, once", pending.from.name()),
        (None, Some((id, _))) => format!("a start goes on from checkpoint {id}"),
        (None, None) if situation.checkpointing.is_off() => format!(
            "checkpoints are off, so a start begins by its startup mode ({})",
            situation.mode.name()
        ),
        (None, None) => format!(
            "it has no checkpoint, so a start begins by its startup mode ({})",
            situation.mode.name()
        ),
    };
    let as_of = as_of(situation.lag_age_ms, FRESH_MS);
    let unread = situation
        .lag
        .checkpoint
        .map_or_else(String::new, |lag| format!("; {}{as_of}", unread(lag)));
    // What is not known may be unread, too.
    let known = match situation.lag {
        lag if lag.unknown_partitions == 0 || lag.checkpoint.is_none() => String::new(),
        lag => format!(", not counting {}", partitions(lag.unknown_partitions)),
    };
    let recreated = situation
        .recreated
        .filter(|_| situation.refused.is_none() && situation.pending_start.is_none())
        .map_or_else(String::new, |recreated| format!("; {}", recreated.told()));
    let outside = match situation.outside_log {
        // Either the refusal says it, or the positions do not come from the checkpoint.
        _ if situation.refused.is_some() || situation.pending_start.is_some() => String::new(),
        0 => String::new(),
        1 => "; the position of 1 partition is outside its log".to_owned(),
        more => format!("; the positions of {more} partitions are outside their logs"),
    };
    let refused = situation.refused.map_or_else(String::new, |refused| {
        let why = refused.blockers.first();
        let why = why.map_or_else(String::new, |blocker| format!(": {}", blocker.summary));
        format!("; the last start was refused{why}")
    });
    format!("stopped; {goes_on}{unread}{known}{recreated}{outside}{refused}")
}

/// How old a measurement is, where it is older than it may be.
fn as_of(age_ms: Option<i64>, fresh_ms: i64) -> String {
    match age_ms {
        Some(age) if age >= fresh_ms => format!(" as of {} s ago", age / 1_000),
        Some(_) | None => String::new(),
    }
}

fn finished(situation: &Situation<'_>) -> String {
    let by = situation
        .last_checkpoint
        .map_or_else(String::new, |(id, _)| format!(" (checkpoint {id})"));
    let goes_on = match situation.pending_start {
        Some(pending) => format!("a start begins from {}, once", pending.from.name()),
        None => "another run needs a start with from, or another stop_at".to_owned(),
    };
    let refused = situation.refused.map_or_else(String::new, |refused| {
        let why = refused.blockers.first();
        let why = why.map_or_else(String::new, |blocker| format!(": {}", blocker.summary));
        format!("; the last start was refused{why}")
    });
    format!("finished: every partition has come to its stop offset{by}; {goes_on}{refused}")
}

fn running(situation: &Situation<'_>, reason: &str) -> String {
    match situation.health.status {
        HealthStatus::Behind => format!("running, and falls behind: {reason}"),
        HealthStatus::Stalled => format!("running, but stands still: {reason}"),
        HealthStatus::Held => format!("running, and held back: {reason}"),
        HealthStatus::Blocked => {
            // A partition that is parked is all that stands between a bounded run and its end, and must be seen as that.
            let waits = situation.bounded.filter(|run| !run.parked.is_empty());
            let parked = several_parked(situation.parked);
            let reason = parked.as_deref().unwrap_or(reason);
            let until = match parked {
                Some(_) => "they go on",
                None => "it goes on",
            };
            let waits = waits.map_or_else(String::new, |_| {
                format!("; the bounded run does not end until {until}")
            });
            format!("running, but blocked: {reason}{waits}")
        }
        HealthStatus::Ok
        | HealthStatus::Waiting
        | HealthStatus::Unknown
        | HealthStatus::Stopped => {
            let as_of = as_of(situation.lag_age_ms, MEASURED_MS);
            let lag = match situation.lag.position {
                _ if situation.bounded.is_some() => situation
                    .bounded
                    .map_or_else(String::new, BoundedView::progress),
                Some(0) if situation.sink_writes => {
                    "everything readable is read, and not all of it written yet".to_owned()
                }
                // What is held back is unread, though nobody has measured it yet.
                Some(0) if situation.throttled => "it reads what its limits allow".to_owned(),
                Some(0) => format!("everything readable is read{as_of}"),
                Some(lag) => format!("{}{as_of}", unread(lag)),
                None => "its lag is not known yet".to_owned(),
            };
            let ahead = situation.pending_start.map_or_else(String::new, |pending| {
                format!("; its next start begins from {}, once", pending.from.name())
            });
            format!("running; {lag}{ahead}")
        }
    }
}

/// How many partitions are parked, and which; `None` for fewer than two, of which the reason says everything.
fn several_parked(parked: &[ParkedPartition]) -> Option<String> {
    if parked.len() < 2 {
        return None;
    }
    let told = parked.iter().take(PARKED_TOLD).map(|parked| {
        let at = parked
            .offset
            .map_or_else(String::new, |offset| format!(" at offset {offset}"));
        format!("{}{at}: {}", parked.topic_partition(), parked.detail)
    });
    let mut parts: Vec<String> = told.collect();
    let others: Vec<String> = parked
        .iter()
        .skip(PARKED_TOLD)
        .take(PARKED_TOLD * 4)
        .map(|parked| format!("{} ({})", parked.topic_partition(), parked.code))
        .collect();
    if !others.is_empty() {
        parts.push(others.join(", "));
    }
    let named = PARKED_TOLD * 5;
    if parked.len() > named {
        parts.push(format!("{} more", parked.len() - named));
    }
    Some(format!(
        "{} partitions are parked: {}",
        parked.len(),
        parts.join("; ")
    ))
}

fn partitions(number: usize) -> String {
    match number {
        1 => "1 partition".to_owned(),
        more => format!("{more} partitions"),
    }
}

fn unread(offsets: i64) -> String {
    match offsets {
        0 => "nothing is unread".to_owned(),
        1 => "1 offset is unread".to_owned(),
        more => format!("{more} offsets are unread"),
    }
}

/// What to do next.
pub(crate) fn next(situation: &Situation<'_>) -> Vec<NextStep> {
    let mut steps = match situation.state {
        JobState::Failed => after_failure(situation),
        JobState::Stopped => before_start(situation),
        JobState::Finished => after_the_end(situation),
        JobState::Starting => {
            let mut steps = what_is_away(situation);
            steps.push(step("to call the start off", situation.curl.stop()));
            steps
        }
        JobState::Stopping => Vec::new(),
        JobState::BackingOff => after_crash(situation),
        JobState::Running => while_running(situation),
    };
    // What is away is the only thing that counts while something is away.
    let waits = situation.health.status == HealthStatus::Waiting;
    if situation.mode_shadowed && situation.pending_start.is_none() && !waits {
        steps.push(use_the_mode(situation));
    }
    steps
}

fn step(why: impl Into<String>, curl: String) -> NextStep {
    NextStep {
        why: why.into(),
        curl,
    }
}

/// The line that makes a shadowed startup mode count once.
fn use_the_mode(situation: &Situation<'_>) -> NextStep {
    let mut body = json!(situation.mode);
    if let Some(members) = body.as_object_mut() {
        members.insert("apply".to_owned(), json!("next-start"));
    }
    step(
        format!(
            "the startup mode ({}) is not used while a checkpoint exists; only if it should count: this makes the next start use it, once, and sets the checkpoint aside",
            situation.mode.name()
        ),
        situation.curl.send("PUT", "/startup-mode", Some(&body)),
    )
}

fn before_start(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    if let Some(refused) = situation.refused {
        return choices(curl, refused);
    }
    if situation.desired == DesiredState::Running {
        return Vec::new();
    }
    let plan = match disagreement(situation) {
        Some(_) => "see what stands against a start, partition by partition, and each way out",
        None => "see where a start would begin",
    };
    let mut steps = vec![step(plan, curl.get("/start-plan"))];
    if disagreement(situation).is_none() {
        steps.extend(starts(situation, "start it"));
    }
    let records = situation
        .parked
        .iter()
        .filter_map(|parked| parked.record.as_ref());
    steps.extend(
        records
            .take(RECORDS_SHOWN)
            .flat_map(|record| past_record(curl, situation.checkpointing, record)),
    );
    steps.extend(
        situation
            .pending_start
            .map(|pending| call_off(curl, pending)),
    );
    steps
}

/// The start, or one for each decision that it would be refused without.
fn starts(situation: &Situation<'_>, why: &str) -> Vec<NextStep> {
    let curl = situation.curl;
    let is_asked = situation
        .recreated
        .is_some_and(|recreated| recreated.is_undecided() && situation.pending_start.is_none());
    if !is_asked {
        return vec![step(why, curl.start(None))];
    }
    Recreated::decisions()
        .into_iter()
        .map(|(why, body)| step(why, curl.start(Some(&body))))
        .collect()
}

/// Drops exactly the start that is shown; another one that has replaced it since stays.
fn call_off(curl: Curl<'_>, pending: &PendingStart) -> NextStep {
    let path = format!("/startup-mode/next-start?id={}", pending.id);
    step(
        format!(
            "call off the start from {} that was asked for ahead",
            pending.from.name()
        ),
        curl.send("DELETE", &path, None),
    )
}

/// A bounded run has ended: whoever wants another one says where it begins.
fn after_the_end(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    if let Some(refused) = situation.refused {
        return choices(curl, refused);
    }
    if situation.pending_start.is_some() {
        return vec![
            step("see where a start would begin", curl.get("/start-plan")),
            step("start it", curl.start(None)),
        ];
    }
    vec![
        step(
            "to go on behind the last run, up to new ends",
            curl.start(Some(&json!({"from": "checkpoint"}))),
        ),
        step(
            "to read all of it again, up to new ends",
            curl.start(Some(&json!({"from": "earliest"}))),
        ),
    ]
}

/// The same start again with one decision added; a bare start would forget where it was meant to begin.
pub(crate) fn with_decision(request: &StartRequest, choice: &Value) -> Value {
    let mut body = json!(StartRequest {
        reason: None,
        plan: None,
        ..request.clone()
    });
    if let (Some(members), Some(decision)) = (body.as_object_mut(), choice.as_object()) {
        members.retain(|name, value| !(value.is_null() || name == "from" && value == "auto"));
        members.extend(decision.clone());
    }
    body
}

/// One line for each way out that the blockers name.
pub(crate) fn choices(curl: Curl<'_>, refused: &RefusedStart) -> Vec<NextStep> {
    let mut steps = vec![step(
        "see what stands against a start, partition by partition",
        curl.get("/start-plan"),
    )];
    steps.extend(ways_out(refused, |body| curl.start(Some(body))));
    steps
}

/// One line for each choice of the blockers: the whole call, with what was asked for and the decision.
pub(crate) fn ways_out(refused: &RefusedStart, call: impl Fn(&Value) -> String) -> Vec<NextStep> {
    let mut steps: Vec<NextStep> = Vec::new();
    for blocker in &refused.blockers {
        for choice in &blocker.choices {
            let line = call(&with_decision(&refused.request, choice));
            if steps.iter().all(|known: &NextStep| known.curl != line) {
                let why = format!("{}: {}", blocker.code, meaning(blocker, choice));
                steps.push(step(why, line));
            }
        }
    }
    steps
}

/// What taking a choice means.
fn meaning(blocker: &Blocker, choice: &Value) -> String {
    let code = blocker.code;
    if matches!(code, Code::SinkBehindStore | Code::StoreBehindSink) {
        return "begin those partitions where the sink stands; the others go on where they are"
            .to_owned();
    }
    if code == Code::ProgressLost {
        return "begin those partitions where the checkpoint stands; what was written after it is written again, and how much that is cannot be counted"
            .to_owned();
    }
    if code == Code::SinkChanged {
        return in_another_target(blocker, choice);
    }
    if code == Code::RunFinished {
        let goes_on = choice.get("from").is_some_and(|from| from == "checkpoint");
        return if goes_on {
            "begin another run behind the last one, up to new ends"
        } else {
            "begin another run at the first records that the logs still hold, up to new ends"
        }
        .to_owned();
    }
    if code == Code::StateNotUsed {
        let goes_on = choice.get("offsets").is_some();
        return if goes_on {
            "begin where the checkpoint stands, this once"
        } else {
            "begin by the startup mode all the same, and pass those records over"
        }
        .to_owned();
    }
    let words = choice.as_object().into_iter().flatten().next();
    let (member, value) = words.map_or(("", ""), |(member, value)| {
        (member.as_str(), value.as_str().unwrap_or_default())
    });
    let what = match value {
        "earliest" => "begin those partitions at the first record their logs still hold",
        "latest" => "begin those partitions at the end of their logs",
        _ => "decide it",
    };
    format!("{what} ({member})")
}

/// What a choice does to a target that holds more than the checkpoint, which was taken with another one. The choices differ in
/// where they begin: the furthest is where the target stands, and whatever lies before it is in there.
fn in_another_target(blocker: &Blocker, choice: &Value) -> String {
    let begins = |choice: &Value| -> i64 {
        let offsets = blocker.partitions.iter().filter_map(|partition| {
            let of_topic = &choice["offsets"][&*partition.topic];
            of_topic[partition.partition.to_string()].as_i64()
        });
        offsets.sum()
    };
    let furthest = blocker.choices.iter().map(begins).max();
    let again = furthest.map_or(0, |furthest| furthest - begins(choice));
    match again {
        0 => "go on where the sink stands; nothing is written twice".to_owned(),
        1 => "begin those partitions where the checkpoint stands; 1 offset that the sink holds is written again".to_owned(),
        more => format!(
            "begin those partitions where the checkpoint stands; {more} offsets that the sink holds are written again"
        ),
    }
}

fn after_crash(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    vec![
        step(
            "see how its last runs ended",
            curl.get("/attempts?limit=10"),
        ),
        step(
            "to start it now instead of after the pause",
            curl.start(None),
        ),
        step("to call the restart off", curl.stop()),
    ]
}

fn after_failure(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    let record = situation
        .failure
        .and_then(|failure| failure.record.as_ref());
    if let (Some(refused), None) = (situation.refused, record) {
        return choices(curl, refused);
    }
    let mut steps = vec![step(
        "see where a start would begin",
        curl.get("/start-plan"),
    )];
    let failure = situation.failure;
    if let Some(record) = record {
        steps = past_record(curl, situation.checkpointing, record);
        let again = step(
            "once the cause is mended, try the same record again",
            curl.start(None),
        );
        steps.insert(1, again);
        return steps;
    }
    if failure.is_some_and(|failure| failure.code == Code::OffsetOutOfRange) {
        for (value, why) in [
            (
                "earliest",
                "begin at the first records that the logs still hold",
            ),
            ("latest", "begin at the ends of the logs"),
        ] {
            let body = json!({"on_out_of_range": value});
            steps.push(step(why, curl.start(Some(&body))));
        }
        return steps;
    }
    steps.extend(starts(
        situation,
        "once the cause is mended, start it again",
    ));
    steps
}

/// Ways on for parked partitions: for a few of those at a record each its own, for the others one for all of a kind.
fn past_parked(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    let records = situation
        .parked
        .iter()
        .filter_map(|parked| parked.record.as_ref());
    let mut steps = Vec::new();
    for record in records.clone().take(RECORDS_SHOWN) {
        // The run itself steps over them, with or without checkpoints.
        steps.extend(past_record(curl, Checkpointing::On, record));
    }
    if records.count() > RECORDS_SHOWN {
        steps.push(step(
            "see all partitions that are parked",
            curl.get("/offsets?only=flagged"),
        ));
    }
    let of_records = !steps.is_empty();
    let is_parked = |code| situation.parked.iter().any(|parked| parked.code == code);
    // One restart decides all of them: a start that leaves one of the questions open is refused.
    let asked: Vec<(&str, &str)> = [
        (Code::OffsetOutOfRange, "on_out_of_range", "out of range"),
        (Code::TopicRecreated, "on_topic_recreated", "recreated"),
    ]
    .into_iter()
    .filter(|(code, _, _)| is_parked(*code))
    .map(|(_, member, words)| (member, words))
    .collect();
    if of_records && asked.is_empty() {
        steps.push(step(
            "once the cause is mended, try the same records again",
            curl.restart(None),
        ));
    }
    for (value, place) in [
        ("earliest", "at the first records that the logs still hold"),
        ("latest", "at the ends of the logs"),
    ] {
        if asked.is_empty() {
            break;
        }
        let words: Vec<&str> = asked.iter().map(|(_, words)| *words).collect();
        let body: serde_json::Map<String, Value> = asked
            .iter()
            .map(|(member, _)| ((*member).to_owned(), json!(value)))
            .collect();
        let records = if of_records {
            ", and the parked records are tried again"
        } else {
            ""
        };
        steps.push(step(
            format!(
                "begin the partitions that are {} {place}; the others go on where they stand{records}",
                words.join(" or ")
            ),
            curl.restart(Some(&Value::Object(body))),
        ));
    }
    if is_parked(Code::PartitionGone) {
        steps.extend(past_gone(situation));
    }
    steps
}

/// Ways on where partitions do not come back. Only a topic of which nothing is left leaves the spec: of one that was created
/// again with fewer partitions the others are read.
fn past_gone(situation: &Situation<'_>) -> Vec<NextStep> {
    let (curl, source) = (situation.curl, situation.source);
    let forget = || curl.restart(Some(&json!({"on_partition_gone": "forget"})));
    let gone: Vec<&ParkedPartition> = situation
        .parked
        .iter()
        .filter(|parked| parked.code == Code::PartitionGone)
        .collect();
    let (parts, whole): (Vec<&ParkedPartition>, Vec<&ParkedPartition>) = gone
        .iter()
        .partition(|parked| situation.topics_there.contains(parked.topic.as_str()));
    let topics: BTreeSet<&str> = whole.iter().map(|parked| parked.topic.as_str()).collect();
    let dropped = dropped_with_them(&parts);
    if topics.is_empty() {
        return vec![step(
            format!("restart without what is gone: {dropped}"),
            forget(),
        )];
    }
    let condition = not_coming_back(&topics);
    if source.topic_pattern.is_some() {
        let too = if parts.is_empty() {
            String::new()
        } else {
            format!("; {dropped}")
        };
        return vec![step(
            format!("{condition}: drop the positions stored for what is gone{too}"),
            forget(),
        )];
    }
    let left: Vec<&str> = source
        .topics
        .iter()
        .map(String::as_str)
        .filter(|topic| !topics.contains(topic))
        .collect();
    if left.is_empty() {
        return vec![step(
            format!("{condition}: nothing is left to read, stop the job"),
            curl.stop(),
        )];
    }
    let take_out = step(
        format!("{condition}: out of the spec; the positions are kept"),
        curl.patch_spec(&json!({"source": {"topics": left}})),
    );
    let count = if parts.is_empty() {
        step("and have that count", curl.restart(None))
    } else {
        step(format!("and have that count; {dropped}"), forget())
    };
    vec![take_out, count]
}

/// The condition on which topics are given up. One that is made anew under the name is another topic, and needs a decision.
fn not_coming_back(topics: &BTreeSet<&str>) -> String {
    let names: Vec<&str> = topics.iter().copied().collect();
    let (does, it_goes) = match names.len() {
        1 => ("does", "it goes on by itself"),
        _ => ("do", "they go on by themselves"),
    };
    format!(
        "only if {} {does} not come back ({it_goes} where the same topic does)",
        names.join(", ")
    )
}

/// What becomes of partitions that their topic lacks since it was created again. They never go on by themselves: should the new
/// topic get that many, theirs are other records.
fn dropped_with_them(parts: &[&ParkedPartition]) -> String {
    let told = PARKED_TOLD * 5;
    let mut names: Vec<String> = parts
        .iter()
        .take(told)
        .map(|parked| parked.topic_partition().to_string())
        .collect();
    if parts.len() > told {
        names.push(format!("{} more", parts.len() - told));
    }
    format!(
        "the positions stored for {} are dropped, because the topic was created again with fewer partitions",
        names.join(", ")
    )
}

/// A look at a record that cannot be processed, and the way past it.
fn past_record(
    curl: Curl<'_>,
    checkpointing: Checkpointing,
    record: &FailedRecord,
) -> Vec<NextStep> {
    let place = format!(
        "{}/{} at offset {}",
        record.topic, record.partition, record.offset
    );
    let look = step(
        format!("look at the record: {place}"),
        curl.get(&format!(
            "/records?topic={}&partition={}&offset={}&as=text",
            record.topic, record.partition, record.offset
        )),
    );
    let behind = start_behind(record).filter(|_| checkpointing.is_off());
    if let Some(body) = behind {
        let start = step(
            format!(
                "start behind exactly that record ({place}), once; the other partitions begin by the startup mode, since checkpoints are off"
            ),
            curl.start(Some(&body)),
        );
        return vec![look, start];
    }
    let skip = skip_of(record).map(|body| {
        step(
            format!("leave exactly that record out ({place}) and go on; the other partitions are not moved"),
            curl.send("POST", "/skip?wait=60s", Some(&body)),
        )
    });
    [Some(look), skip].into_iter().flatten().collect()
}

/// A start behind one record, for a job that keeps no position.
fn start_behind(record: &FailedRecord) -> Option<Value> {
    let behind = Offset::after(record.offset)?;
    let (topic, partition) = (&record.topic, record.partition.to_string());
    Some(json!({
        "from": "specific-offsets", "offsets": {topic: {partition: behind}},
        "partitions": {topic: [record.partition]},
    }))
}

/// The skip of one record, if there is a position behind it.
fn skip_of(record: &FailedRecord) -> Option<Value> {
    Offset::after(record.offset)?;
    Some(json!({"topic": record.topic, "partition": record.partition, "offset": record.offset}))
}

/// A look at what does not answer. There is nothing to do to the job itself, and the step says so.
fn what_is_away(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    let waits_for = |codes: &[Code]| {
        let mut reasons = situation.health.reasons.iter();
        reasons.any(|reason| codes.contains(&reason.code))
    };
    let mut steps = Vec::new();
    if waits_for(&[Code::StoreUnreachable]) {
        steps.push(step(
            "nothing to do to the job, it goes on by itself: see whether this server reaches PostgreSQL",
            format!("curl -sS '{}/readyz?verbose'", curl.public_url),
        ));
    }
    if waits_for(&[Code::KafkaUnreachable, Code::KafkaTimeout, Code::NoLeader]) {
        steps.push(step(
            "nothing to do to the job, it goes on by itself: see which partitions' brokers do not answer",
            curl.get("/offsets"),
        ));
    }
    if waits_for(&[Code::SinkError, Code::SinkUnreachable]) {
        steps.push(step(
            "nothing to do to the job, it goes on by itself: see whether the sink's target answers (sources.sink), and look there",
            curl.get("/offsets?fresh=true&summary=true"),
        ));
    }
    steps
}

fn while_running(situation: &Situation<'_>) -> Vec<NextStep> {
    let curl = situation.curl;
    let mut steps = what_is_away(situation);
    match situation.health.status {
        HealthStatus::Behind | HealthStatus::Stalled => {
            steps.push(step(
                "see which partitions lag",
                curl.get("/offsets?only=lagging"),
            ));
            steps.extend_from_slice(situation.against_bottleneck);
        }
        HealthStatus::Blocked => steps.extend(past_parked(situation)),
        HealthStatus::Held => steps.push(step(
            "see which partitions an open transaction holds back",
            curl.get("/offsets?only=flagged"),
        )),
        HealthStatus::Ok
        | HealthStatus::Waiting
        | HealthStatus::Unknown
        | HealthStatus::Stopped => {}
    }
    match situation.divergence {
        Some(DivergenceCause::ExternalCommit) => steps.push(step(
            "something else committed to the consumer group; the job does not follow it",
            curl.get("/offsets?only=diverged"),
        )),
        Some(DivergenceCause::CommitFailed) => steps.push(step(
            "commits to the consumer group fail; nothing is lost, the checkpoint counts",
            curl.get("/offsets?only=diverged"),
        )),
        _ => {}
    }
    let restart = curl.restart(None);
    match situation.pending_start {
        Some(pending) => {
            let from = pending.from.name();
            steps.push(step(
                format!("see what the start from {from} that was asked for ahead would read again and pass over"),
                curl.get("/start-plan"),
            ));
            steps.push(step(
                format!(
                    "a start from {from} was asked for ahead and counts from the next start on: restart it"
                ),
                restart,
            ));
            steps.push(call_off(curl, pending));
        }
        None if situation.restart_required => steps.push(step(
            "parts of the spec count from the next start on: restart it",
            restart,
        )),
        None => {}
    }
    steps
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::model::{job::PositionPolicy, start::StartFrom};

    struct Case {
        name: &'static str,
        state: JobState,
        health: HealthStatus,
        change: fn(&mut Situation<'_>),
        failure: Option<JobFailure>,
        /// The evidence for the health, with "why" as its words.
        reasons: &'static [Code],
        summary: &'static str,
        /// A part of each proposed line, in order.
        lines: &'static [&'static str],
    }

    const ALL_READ: JobLag = JobLag {
        position: Some(0),
        checkpoint: Some(900),
        checkpoint_because: None,
        group: None,
        unknown_partitions: 0,
    };

    fn failure(code: Code, with_record: bool) -> JobFailure {
        JobFailure {
            code,
            summary: "cannot decode orders/3@90412: no JSON".to_owned(),
            record: with_record.then(|| FailedRecord {
                topic: "orders".to_owned(),
                partition: 3,
                offset: 90_412,
                timestamp: None,
                key_bytes: None,
                value_bytes: Some(7),
            }),
            phase: None,
            first_seen: DateTime::UNIX_EPOCH,
        }
    }

    fn source() -> SourceSpec {
        let name = JobName::new("orders").unwrap();
        let document = json!({
            "source": {"connection": "main", "topics": ["orders", "payments"]},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"}
        });
        crate::model::JobSpec::read(&name, &document)
            .unwrap()
            .source
    }

    fn by_pattern() -> &'static SourceSpec {
        let name = JobName::new("orders").unwrap();
        let document = json!({
            "source": {"connection": "main", "topic_pattern": "ord.*"},
            "startup_mode": {"mode": "earliest"},
            "sink": {"type": "blackhole"}
        });
        let spec = crate::model::JobSpec::read(&name, &document).unwrap();
        Box::leak(Box::new(spec.source))
    }

    /// A partition for each code, and with how many records of partitions before them.
    fn several(records: i64, codes: &[Code]) -> &'static [ParkedPartition] {
        let at_record = (0..records).map(|number| {
            let partition =
                crate::model::TopicPartition::new("orders", i32::try_from(number).unwrap());
            let mut failure = failure(Code::BlockedOnRecord, true);
            failure.summary = format!("no JSON {number}");
            if let Some(record) = &mut failure.record {
                record.partition = partition.partition;
                record.offset = number;
            }
            ParkedPartition::at(&partition, Offset::new(number), failure)
        });
        let others = codes.iter().zip(100..).map(|(code, number)| {
            let partition = crate::model::TopicPartition::new("orders", number);
            let failure = JobFailure {
                summary: format!("why {number}"),
                ..failure(*code, false)
            };
            ParkedPartition::at(&partition, Offset::new(7), failure)
        });
        Vec::leak(at_record.chain(others).collect())
    }

    /// A stopped job with checkpoint 9.
    fn at_rest<'a>(job: &'a JobName, health: &'a Health, mode: &'a StartupMode) -> Situation<'a> {
        Situation {
            curl: Curl {
                public_url: "http://localhost:1",
                job,
            },
            state: JobState::Stopped,
            desired: DesiredState::Stopped,
            health,
            failure: None,
            parked: &[],
            lag: &LAG_UNKNOWN,
            lag_age_ms: None,
            topics_there: there(&[]),
            sink_writes: false,
            throttled: false,
            against_bottleneck: &[],
            source: Box::leak(Box::new(source())),
            last_checkpoint: Some((CheckpointId(9), CheckpointKind::Stop)),
            checkpointing: Checkpointing::On,
            outside_log: 0,
            recreated: None,
            mode,
            mode_shadowed: false,
            pending_start: None,
            refused: None,
            sink_disagrees: None,
            restart_required: false,
            crash_loop: None,
            divergence: None,
            bounded: None,
        }
    }

    /// The only partition's lag is not known.
    const LAG_UNKNOWN: JobLag = JobLag {
        position: None,
        checkpoint: None,
        checkpoint_because: None,
        group: None,
        unknown_partitions: 1,
    };

    fn created_again(policy: PositionPolicy) -> &'static Recreated {
        Box::leak(Box::new(Recreated::of(&["orders"], 1, policy)))
    }

    fn there(topics: &[&'static str]) -> &'static BTreeSet<&'static str> {
        Box::leak(Box::new(topics.iter().copied().collect()))
    }

    /// A partition of `orders`, and all of `payments`.
    fn part_and_whole() -> &'static [ParkedPartition] {
        let whole = ParkedPartition::at(
            &crate::model::TopicPartition::new("payments", 0),
            Offset::new(3),
            JobFailure {
                summary: "why".to_owned(),
                ..failure(Code::PartitionGone, false)
            },
        );
        let part = several(0, &[Code::PartitionGone]);
        Vec::leak([part, &[whole]].concat())
    }

    fn raise_the_limits() -> &'static [NextStep] {
        let line = "-d '{\"limits\":{\"records_per_s\":null}}'".to_owned();
        Vec::leak(vec![step("only if it may go as fast as it can", line)])
    }

    fn parked(failure: JobFailure) -> &'static [ParkedPartition] {
        let partition = crate::model::TopicPartition::new("orders", 3);
        let parked = ParkedPartition::at(&partition, Offset::new(90_412), failure);
        Vec::leak(vec![parked])
    }

    #[expect(clippy::too_many_lines, reason = "one table")]
    fn cases() -> Vec<Case> {
        let case = |name, state, health, change, summary, lines| Case {
            name,
            state,
            health,
            change,
            failure: None,
            reasons: &[Code::Stalled],
            summary,
            lines,
        };
        vec![
            case(
                "fine",
                JobState::Running,
                HealthStatus::Ok,
                |s| {
                    s.lag = &JobLag {
                        position: Some(0),
                        checkpoint: None,
                        checkpoint_because: None,
                        group: None,
                        unknown_partitions: 0,
                    }
                },
                "running; everything readable is read",
                &[],
            ),
            case(
                "the limits hold back what nobody has measured yet",
                JobState::Running,
                HealthStatus::Ok,
                |s| {
                    s.throttled = true;
                    s.lag = &ALL_READ;
                },
                "running; it reads what its limits allow",
                &[],
            ),
            case(
                "a measurement is missing",
                JobState::Running,
                HealthStatus::Ok,
                |s| {
                    s.lag_age_ms = Some(9_400);
                    s.lag = &ALL_READ;
                },
                "running; everything readable is read as of 9 s ago",
                &[],
            ),
            case(
                "the sink is not through with what was read",
                JobState::Running,
                HealthStatus::Ok,
                |s| {
                    s.sink_writes = true;
                    s.lag = &ALL_READ;
                },
                "running; everything readable is read, and not all of it written yet",
                &[],
            ),
            case(
                "reads",
                JobState::Running,
                HealthStatus::Unknown,
                |_| {},
                "running; 12 offsets are unread",
                &[],
            ),
            case(
                "behind",
                JobState::Running,
                HealthStatus::Behind,
                |_| {},
                "running, and falls behind: why",
                &["/offsets?only=lagging'"],
            ),
            Case {
                reasons: &[Code::StoreUnreachable],
                ..case(
                    "waits for the store",
                    JobState::Running,
                    HealthStatus::Waiting,
                    |s| s.mode_shadowed = true,
                    "running, and waits: PostgreSQL does not answer (why)",
                    &["curl -sS 'http://localhost:1/readyz?verbose'"],
                )
            },
            Case {
                reasons: &[Code::KafkaUnreachable, Code::KafkaTimeout],
                ..case(
                    "waits for the brokers",
                    JobState::Running,
                    HealthStatus::Waiting,
                    |_| {},
                    "running, and waits: Kafka does not answer (why)",
                    &["/jobs/orders/offsets'"],
                )
            },
            Case {
                reasons: &[Code::BlockedOnRecord],
                ..case(
                    "parked at a record",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| s.parked = parked(failure(Code::BlockedOnRecord, true)),
                    "running, but blocked: why",
                    &[
                        "/records?topic=orders&partition=3&offset=90412",
                        r#"/skip?wait=60s' -d '{"topic":"orders","partition":3,"offset":90412}'"#,
                        "/restart?wait=90s'",
                    ],
                )
            },
            Case {
                reasons: &[Code::OffsetOutOfRange],
                ..case(
                    "parked outside the log",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| s.parked = parked(failure(Code::OffsetOutOfRange, false)),
                    "running, but blocked: why",
                    &[
                        r#"/restart?wait=90s' -d '{"on_out_of_range":"earliest"}'"#,
                        r#"/restart?wait=90s' -d '{"on_out_of_range":"latest"}'"#,
                    ],
                )
            },
            Case {
                reasons: &[Code::BlockedOnRecord],
                ..case(
                    "several parked, for several reasons",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| s.parked = several(2, &[Code::OffsetOutOfRange, Code::TopicRecreated]),
                    "running, but blocked: 4 partitions are parked: orders/0 at offset 0: no JSON 0; orders/1 at offset 1: no JSON 1; orders/100 at offset 7: why 100; orders/101 (topic-recreated)",
                    &[
                        "partition=0&offset=0",
                        r#"-d '{"topic":"orders","partition":0,"offset":0}'"#,
                        "partition=1&offset=1",
                        r#"-d '{"topic":"orders","partition":1,"offset":1}'"#,
                        r#"/restart?wait=90s' -d '{"on_out_of_range":"earliest","on_topic_recreated":"earliest"}'"#,
                        r#"/restart?wait=90s' -d '{"on_out_of_range":"latest","on_topic_recreated":"latest"}'"#,
                    ],
                )
            },
            Case {
                reasons: &[Code::BlockedOnRecord],
                ..case(
                    "so many that they are only counted",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| s.parked = several(0, &[Code::TopicRecreated; 17]),
                    "running, but blocked: 17 partitions are parked: orders/100 at offset 7: why 100; orders/101 at offset 7: why 101; orders/102 at offset 7: why 102; orders/103 (topic-recreated), orders/104 (topic-recreated), orders/105 (topic-recreated), orders/106 (topic-recreated), orders/107 (topic-recreated), orders/108 (topic-recreated), orders/109 (topic-recreated), orders/110 (topic-recreated), orders/111 (topic-recreated), orders/112 (topic-recreated), orders/113 (topic-recreated), orders/114 (topic-recreated); 2 more",
                    &[
                        r#"-d '{"on_topic_recreated":"earliest"}'"#,
                        r#"-d '{"on_topic_recreated":"latest"}'"#,
                    ],
                )
            },
            Case {
                reasons: &[Code::PartitionGone],
                ..case(
                    "one of two topics is gone",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| s.parked = several(0, &[Code::PartitionGone]),
                    "running, but blocked: why",
                    &[
                        r#"-X PATCH -H 'Content-Type: application/json' 'http://localhost:1/api/v1/jobs/orders/spec' -d '{"source":{"topics":["payments"]}}'"#,
                        "/restart?wait=90s'",
                    ],
                )
            },
            Case {
                reasons: &[Code::PartitionGone],
                ..case(
                    "a topic was created again with fewer partitions: the others of it are read",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| {
                        s.parked = several(0, &[Code::PartitionGone]);
                        s.topics_there = there(&["orders", "payments"]);
                    },
                    "running, but blocked: why",
                    &[r#"/restart?wait=90s' -d '{"on_partition_gone":"forget"}'"#],
                )
            },
            Case {
                reasons: &[Code::PartitionGone],
                ..case(
                    "one topic is gone, and a part of another",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| {
                        s.parked = part_and_whole();
                        s.topics_there = there(&["orders"]);
                    },
                    "running, but blocked: 2 partitions are parked: orders/100 at offset 7: why 100; payments/0 at offset 3: why",
                    &[
                        r#"/spec' -d '{"source":{"topics":["orders"]}}'"#,
                        r#"/restart?wait=90s' -d '{"on_partition_gone":"forget"}'"#,
                    ],
                )
            },
            Case {
                reasons: &[Code::LagGrowing],
                ..case(
                    "behind because of its limits",
                    JobState::Running,
                    HealthStatus::Behind,
                    |s| s.against_bottleneck = raise_the_limits(),
                    "running, and falls behind: why",
                    &[
                        "/offsets?only=lagging'",
                        r#"-d '{"limits":{"records_per_s":null}}'"#,
                    ],
                )
            },
            Case {
                reasons: &[Code::PartitionGone],
                ..case(
                    "a topic of a pattern is gone",
                    JobState::Running,
                    HealthStatus::Blocked,
                    |s| {
                        s.parked = several(0, &[Code::PartitionGone]);
                        s.source = by_pattern();
                    },
                    "running, but blocked: why",
                    &[r#"/restart?wait=90s' -d '{"on_partition_gone":"forget"}'"#],
                )
            },
            case(
                "held",
                JobState::Running,
                HealthStatus::Held,
                |_| {},
                "running, and held back: why",
                &["/offsets?only=flagged'"],
            ),
            case(
                "group moved",
                JobState::Running,
                HealthStatus::Ok,
                |s| s.divergence = Some(DivergenceCause::ExternalCommit),
                "running; 12 offsets are unread",
                &["/offsets?only=diverged'"],
            ),
            case(
                "restart",
                JobState::Running,
                HealthStatus::Ok,
                |s| s.restart_required = true,
                "running; 12 offsets are unread",
                &["/restart?wait=90s'"],
            ),
            case(
                "finished",
                JobState::Finished,
                HealthStatus::Ok,
                |s| s.last_checkpoint = Some((CheckpointId(9), CheckpointKind::Stop)),
                "finished: every partition has come to its stop offset (checkpoint 9); another run needs a start with from, or another stop_at",
                &[
                    r#"-d '{"from":"checkpoint"}'"#,
                    r#"-d '{"from":"earliest"}'"#,
                ],
            ),
            case(
                "shadowed",
                JobState::Running,
                HealthStatus::Ok,
                |s| s.mode_shadowed = true,
                "running; 12 offsets are unread",
                &[
                    r#"-X PUT -H 'Content-Type: application/json' 'http://localhost:1/api/v1/jobs/orders/startup-mode' -d '{"mode":"earliest","apply":"next-start"}'"#,
                ],
            ),
            Case {
                reasons: &[Code::KafkaUnreachable],
                ..case(
                    "starting",
                    JobState::Starting,
                    HealthStatus::Waiting,
                    |_| {},
                    "starting, and waits: Kafka does not answer (why)",
                    &["/jobs/orders/offsets'", "/stop?wait=60s"],
                )
            },
            case(
                "backing off",
                JobState::BackingOff,
                HealthStatus::Waiting,
                |_| {},
                "backing off: restart 2 begins at 1970-01-01T00:00:00Z after a crash: cannot decode orders/3@90412: no JSON; the first of these crashes was: cannot decode orders/3@90412: no JSON",
                &["/attempts?limit=10'", "/start?wait=30s'", "/stop?wait=60s'"],
            ),
            case(
                "stopped",
                JobState::Stopped,
                HealthStatus::Stopped,
                |_| {},
                "stopped; a start goes on from checkpoint 9; 30 offsets are unread",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            case(
                "stopped, measured a while ago",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| s.lag_age_ms = Some(14_900),
                "stopped; a start goes on from checkpoint 9; 30 offsets are unread as of 14 s ago",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            case(
                "the sink speaks against the checkpoint",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.sink_disagrees = Some(&Disagreement {
                        code: Code::SinkBehindStore,
                        checkpoint: CheckpointId(9),
                        partitions: 2,
                        age_ms: 14_900,
                    });
                },
                "stopped; a start is refused until it is decided: the sink holds less than checkpoint 9 says, in 2 partitions (sink-behind-store) as of 14 s ago",
                &["/start-plan'"],
            ),
            case(
                "overtaken by retention",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| s.outside_log = 1,
                "stopped; a start goes on from checkpoint 9; 30 offsets are unread; the position of 1 partition is outside its log",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            Case {
                reasons: &[Code::SinkError],
                ..case(
                    "the sink is away",
                    JobState::Running,
                    HealthStatus::Waiting,
                    |_| {},
                    "running, and waits: The sink does not take the records (why)",
                    &["/offsets?fresh=true&summary=true'"],
                )
            },
            case(
                "a topic was created again",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.lag = &LAG_UNKNOWN;
                    s.recreated = Some(created_again(PositionPolicy::Fail));
                },
                "stopped; a start goes on from checkpoint 9; orders was created again (1 partition): a start needs a decision",
                &[
                    "/start-plan'",
                    r#"/start?wait=30s' -d '{"on_topic_recreated":"earliest"}'"#,
                    r#"/start?wait=30s' -d '{"on_topic_recreated":"latest"}'"#,
                ],
            ),
            case(
                "a topic was created again, another one was not",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.lag = &JobLag {
                        checkpoint: Some(0),
                        ..LAG_UNKNOWN
                    };
                    s.recreated = Some(created_again(PositionPolicy::Fail));
                },
                "stopped; a start goes on from checkpoint 9; nothing is unread, not counting 1 partition; orders was created again (1 partition): a start needs a decision",
                &[
                    "/start-plan'",
                    r#"{"on_topic_recreated":"earliest"}'"#,
                    r#"{"on_topic_recreated":"latest"}'"#,
                ],
            ),
            case(
                "a topic was created again, and the spec says what then",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.lag = &LAG_UNKNOWN;
                    s.recreated = Some(created_again(PositionPolicy::Earliest));
                },
                "stopped; a start goes on from checkpoint 9; orders was created again (1 partition): a start begins there at the first record",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            Case {
                failure: Some(failure(Code::Panicked, false)),
                ..case(
                    "a topic was created again after a crash",
                    JobState::Failed,
                    HealthStatus::Blocked,
                    |s| s.recreated = Some(created_again(PositionPolicy::Fail)),
                    "failed and needs a decision: cannot decode orders/3@90412: no JSON",
                    &[
                        "/start-plan'",
                        r#"{"on_topic_recreated":"earliest"}'"#,
                        r#"{"on_topic_recreated":"latest"}'"#,
                    ],
                )
            },
            case(
                "never ran",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.last_checkpoint = None;
                    s.lag = &JobLag {
                        position: None,
                        checkpoint: None,
                        checkpoint_because: None,
                        group: None,
                        unknown_partitions: 1,
                    }
                },
                "stopped; it has no checkpoint, so a start begins by its startup mode (earliest)",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            case(
                "reads without checkpoints",
                JobState::Running,
                HealthStatus::Ok,
                |s| s.checkpointing = Checkpointing::Off,
                "running without checkpoints; 12 offsets are unread",
                &[],
            ),
            case(
                "behind without checkpoints",
                JobState::Running,
                HealthStatus::Behind,
                |s| s.checkpointing = Checkpointing::Off,
                "running without checkpoints, and falls behind: why",
                &["/offsets?only=lagging'"],
            ),
            case(
                "stopped without checkpoints",
                JobState::Stopped,
                HealthStatus::Stopped,
                |s| {
                    s.checkpointing = Checkpointing::Off;
                    s.last_checkpoint = None;
                    s.lag = &JobLag {
                        position: None,
                        checkpoint: None,
                        checkpoint_because: Some("checkpoints-off"),
                        group: Some(3),
                        unknown_partitions: 0,
                    }
                },
                "stopped; checkpoints are off, so a start begins by its startup mode (earliest)",
                &["/start-plan'", "/start?wait=30s'"],
            ),
            case(
                "stops without checkpoints",
                JobState::Stopping,
                HealthStatus::Ok,
                |s| s.checkpointing = Checkpointing::Off,
                "stopping: the sink is given time to have everything durable",
                &[],
            ),
            Case {
                failure: Some(failure(Code::BlockedOnRecord, true)),
                ..case(
                    "bad record without checkpoints",
                    JobState::Failed,
                    HealthStatus::Blocked,
                    |s| s.checkpointing = Checkpointing::Off,
                    "failed and needs a decision: cannot decode orders/3@90412: no JSON",
                    &[
                        "/records?topic=orders&partition=3&offset=90412&as=text'",
                        "/start?wait=30s'",
                        r#"/start?wait=30s' -d '{"from":"specific-offsets","offsets":{"orders":{"3":90413}},"partitions":{"orders":[3]}}'"#,
                    ],
                )
            },
            Case {
                failure: Some(failure(Code::BlockedOnRecord, true)),
                ..case(
                    "bad record",
                    JobState::Failed,
                    HealthStatus::Blocked,
                    |_| {},
                    "failed and needs a decision: cannot decode orders/3@90412: no JSON",
                    &[
                        "/records?topic=orders&partition=3&offset=90412&as=text'",
                        "/start?wait=30s'",
                        r#"/skip?wait=60s' -d '{"topic":"orders","partition":3,"offset":90412}'"#,
                    ],
                )
            },
            Case {
                failure: Some(failure(Code::OffsetOutOfRange, false)),
                ..case(
                    "retention",
                    JobState::Failed,
                    HealthStatus::Blocked,
                    |_| {},
                    "failed and needs a decision: cannot decode orders/3@90412: no JSON",
                    &[
                        "/start-plan'",
                        r#"-d '{"on_out_of_range":"earliest"}'"#,
                        r#"-d '{"on_out_of_range":"latest"}'"#,
                    ],
                )
            },
            Case {
                failure: Some(failure(Code::Panicked, false)),
                ..case(
                    "crash",
                    JobState::Failed,
                    HealthStatus::Blocked,
                    |_| {},
                    "failed and needs a decision: cannot decode orders/3@90412: no JSON",
                    &["/start-plan'", "/start?wait=30s'"],
                )
            },
        ]
    }

    #[test]
    fn every_situation_has_its_sentence_and_its_lines() {
        let job = JobName::new("orders").unwrap();
        let mode = StartupMode::Earliest;
        let source = source();
        let none_there = BTreeSet::new();
        let lag = JobLag {
            position: Some(12),
            checkpoint: Some(30),
            checkpoint_because: None,
            group: None,
            unknown_partitions: 0,
        };
        let crash_loop = CrashLoop {
            restarts: 2,
            first_cause: failure(Code::Panicked, false),
            last_cause: failure(Code::Panicked, false),
            failures: Vec::new(),
            next_attempt_at: Some(DateTime::UNIX_EPOCH),
        };
        for case in cases() {
            let health = Health {
                status: case.health,
                reasons: case
                    .reasons
                    .iter()
                    .map(|code| HealthReason::new(*code, None, "why"))
                    .collect(),
            };
            let mut situation = Situation {
                curl: Curl {
                    public_url: "http://localhost:1",
                    job: &job,
                },
                state: case.state,
                desired: DesiredState::Stopped,
                health: &health,
                failure: case.failure.as_ref(),
                parked: &[],
                lag: &lag,
                last_checkpoint: Some((CheckpointId(9), CheckpointKind::Stop)),
                checkpointing: Checkpointing::On,
                lag_age_ms: Some(40),
                source: &source,
                topics_there: &none_there,
                sink_writes: false,
                throttled: false,
                against_bottleneck: &[],
                outside_log: 0,
                recreated: None,
                mode: &mode,
                mode_shadowed: false,
                pending_start: None,
                refused: None,
                sink_disagrees: None,
                restart_required: false,
                crash_loop: Some(&crash_loop),
                divergence: None,
                bounded: None,
            };
            (case.change)(&mut situation);
            assert_eq!(summary(&situation), case.summary, "{}", case.name);
            let lines: Vec<String> = next(&situation).into_iter().map(|step| step.curl).collect();
            assert_eq!(lines.len(), case.lines.len(), "{}: {lines:?}", case.name);
            for (line, part) in lines.iter().zip(case.lines) {
                assert!(line.contains(part), "{}: {line}", case.name);
            }
        }
    }

    /// Whether it goes on by itself is said of those only that do.
    #[test]
    fn what_comes_back_by_itself_is_told_from_what_does_not() {
        let gone = |topic: &str, partition: i32| {
            let partition = crate::model::TopicPartition::new(topic, partition);
            ParkedPartition::at(
                &partition,
                Offset::new(3),
                failure(Code::PartitionGone, false),
            )
        };
        let (a, b) = (gone("a", 2), gone("a", 3));
        let fewer = dropped_with_them(&[&a, &b]);
        assert_eq!(
            fewer,
            "the positions stored for a/2, a/3 are dropped, because the topic was created again with fewer partitions"
        );
        assert_eq!(
            not_coming_back(there(&["a"])),
            "only if a does not come back (it goes on by itself where the same topic does)"
        );
        assert_eq!(
            not_coming_back(there(&["a", "b"])),
            "only if a, b do not come back (they go on by themselves where the same topic does)"
        );
        let parked = [a, b];
        let job = JobName::new("orders").unwrap();
        let (health, mode) = (
            Health {
                status: HealthStatus::Blocked,
                reasons: Vec::new(),
            },
            StartupMode::Earliest,
        );
        let situation = Situation {
            parked: &parked,
            topics_there: there(&["a"]),
            state: JobState::Running,
            ..at_rest(&job, &health, &mode)
        };
        let steps = next(&situation);
        assert_eq!(steps.len(), 1, "{steps:?}");
        assert!(!steps[0].why.contains("by itself"), "{steps:?}");
        assert!(steps[0].curl.contains("on_partition_gone"), "{steps:?}");
    }

    #[test]
    fn blockers_become_lines() {
        let job = JobName::new("orders").unwrap();
        let curl = Curl {
            public_url: "http://localhost:1",
            job: &job,
        };
        let blocker = Blocker {
            code: Code::OffsetOutOfRange,
            partitions: Vec::new(),
            summary: String::new(),
            choices: vec![
                json!({"on_out_of_range": "earliest"}),
                json!({"on_out_of_range": "latest"}),
            ],
        };
        let mut refused = RefusedStart {
            request: StartRequest::auto(),
            blockers: vec![blocker.clone(), blocker],
        };
        let lines = choices(curl, &refused);
        assert_eq!(lines.len(), 3);
        assert!(
            lines[1]
                .curl
                .ends_with(r#"-d '{"on_out_of_range":"earliest"}'"#)
        );
        // What was asked for is asked for again.
        refused.request = StartRequest::read(
            &json!({"from": "shift", "by": -5, "reason": "INC-1", "on_out_of_range": "fail"}),
        )
        .unwrap();
        let lines = choices(curl, &refused);
        assert!(
            lines[1]
                .curl
                .ends_with(r#"-d '{"from":"shift","by":-5,"on_out_of_range":"earliest"}'"#),
            "{lines:?}"
        );
    }

    #[test]
    fn each_way_into_a_target_that_holds_more_says_what_it_does() {
        let blocker = |stored: i64| Blocker {
            code: Code::SinkChanged,
            partitions: vec![
                crate::model::TopicPartition::new("orders", 0),
                crate::model::TopicPartition::new("payments", 1),
            ],
            summary: String::new(),
            // The offsets of others, which the start named already, count for neither.
            choices: vec![
                json!({"from": "specific-offsets", "offsets": {"orders": {"0": 130, "7": 5}, "payments": {"1": 8}}}),
                json!({"from": "specific-offsets", "offsets": {"orders": {"0": stored, "7": 5}, "payments": {"1": 8}}}),
            ],
        };
        for (stored, words) in [
            (70, "60 offsets that the sink holds are"),
            (129, "1 offset that the sink holds is"),
        ] {
            let refused = RefusedStart {
                request: StartRequest::auto(),
                blockers: vec![blocker(stored)],
            };
            let steps = ways_out(&refused, ToString::to_string);
            let told: Vec<&str> = steps.iter().map(|step| step.why.as_str()).collect();
            let again = format!(
                "sink-changed: begin those partitions where the checkpoint stands; {words} written again"
            );
            let goes_on = "sink-changed: go on where the sink stands; nothing is written twice";
            assert_eq!(told, [goes_on, again.as_str()]);
        }
    }

    #[test]
    fn a_quote_in_a_body_survives_the_shell() {
        let job = JobName::new("orders").unwrap();
        let curl = Curl {
            public_url: "http://localhost:1",
            job: &job,
        };
        let line = curl.start(Some(&json!({"reason": "it's"})));
        assert!(line.ends_with(r#"-d '{"reason":"it'\''s"}'"#), "{line}");
    }

    #[test]
    fn a_pending_start_is_named() {
        let job = JobName::new("orders").unwrap();
        let pending = PendingStart {
            id: "x".to_owned(),
            from: StartFrom::Latest,
            partitions: None,
            requested_by: "somebody".to_owned(),
            at: DateTime::UNIX_EPOCH,
        };
        let health = Health {
            status: HealthStatus::Stopped,
            reasons: Vec::new(),
        };
        let mut situation = Situation {
            curl: Curl {
                public_url: "",
                job: &job,
            },
            state: JobState::Stopped,
            desired: DesiredState::Stopped,
            health: &health,
            failure: None,
            parked: &[],
            lag: &JobLag::default(),
            last_checkpoint: None,
            checkpointing: Checkpointing::On,
            lag_age_ms: None,
            source: &source(),
            topics_there: &BTreeSet::new(),
            sink_writes: false,
            throttled: false,
            against_bottleneck: &[],
            outside_log: 0,
            recreated: None,
            mode: &StartupMode::Earliest,
            mode_shadowed: true,
            pending_start: Some(&pending),
            refused: None,
            sink_disagrees: None,
            restart_required: false,
            crash_loop: None,
            divergence: None,
            bounded: None,
        };
        assert_eq!(
            summary(&situation),
            "stopped; a start begins from latest, once"
        );
        let steps = next(&situation);
        assert_eq!(steps.len(), 3, "the mode needs no line of its own");
        let off = "curl -sS -X DELETE '/api/v1/jobs/orders/startup-mode/next-start?id=x'";
        assert_eq!(steps[2].curl, off);

        let health = Health {
            status: HealthStatus::Ok,
            ..health.clone()
        };
        situation.health = &health;
        situation.state = JobState::Running;
        assert_eq!(
            summary(&situation),
            "running; its lag is not known yet; its next start begins from latest, once"
        );
        let steps = next(&situation);
        assert_eq!(steps.len(), 3, "{steps:?}");
        assert!(
            steps[0].curl.contains("/start-plan'"),
            "what it passes over is looked at first: {steps:?}"
        );
        assert!(steps[1].curl.contains("/restart?wait=90s'"), "{steps:?}");
        assert_eq!(steps[2].curl, off);
    }
}
