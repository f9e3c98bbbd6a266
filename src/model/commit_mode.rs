//! Jobs with and without checkpoints: which commit mode is in effect, and what a spec may not say.
//!
//! Flink's table, with the two knobs of a spec. With checkpoints, `on-checkpoint` is `ON_CHECKPOINTS` and `off` is `DISABLED`;
//! without them, `periodic` is `KAFKA_PERIODIC` and `off` is `DISABLED`. What Flink resolves silently (a periodic commit beside
//! checkpoints) is refused here. The client's own `enable.auto.commit` is off in every row: it commits what the client has
//! handed out, whether or not a sink has it.

use serde::Serialize;
use utoipa::ToSchema;

use super::{
    duration::HumanDuration,
    field_error::FieldError,
    job::{CheckpointSpec, CommitToGroup, JobSpec, OnCancel, PositionPolicy, SourceSpec},
    sink_spec::SinkSpec,
    startup_mode::StartupMode,
    stop_at::StopAt,
};

/// Time between two periodic commits if a spec does not say one: that of Kafka's consumers (`auto.commit.interval.ms`).
pub const COMMIT_INTERVAL: HumanDuration = HumanDuration::from_secs(5);

/// When offsets are committed to the group, as it is in effect. In Flink's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum CommitMode {
    /// After each completed checkpoint.
    OnCheckpoints,
    /// On an interval, once the sink has everything before the positions. Only without checkpoints.
    KafkaPeriodic,
    /// Never.
    Disabled,
}

/// Whether a job takes checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Checkpointing {
    /// It does.
    On,
    /// It does not: it has no state, and each start begins by the startup mode.
    Off,
}

impl Checkpointing {
    /// Whether it takes none.
    #[must_use]
    pub fn is_off(self) -> bool {
        self == Self::Off
    }
}

impl CommitMode {
    /// The mode that a spec brings about.
    #[must_use]
    pub fn of(checkpointing: Checkpointing, commit_to_group: CommitToGroup) -> Self {
        match (checkpointing, commit_to_group) {
            (Checkpointing::On, CommitToGroup::OnCheckpoint) => Self::OnCheckpoints,
            (Checkpointing::Off, CommitToGroup::Periodic) => Self::KafkaPeriodic,
            (_, CommitToGroup::Off)
            // No spec says these two.
            | (Checkpointing::On, CommitToGroup::Periodic)
            | (Checkpointing::Off, CommitToGroup::OnCheckpoint) => Self::Disabled,
        }
    }

    /// Whether anything is committed.
    #[must_use]
    pub fn commits(self) -> bool {
        match self {
            Self::OnCheckpoints | Self::KafkaPeriodic => true,
            Self::Disabled => false,
        }
    }
}

impl JobSpec {
    /// Whether the job takes checkpoints.
    #[must_use]
    pub fn checkpointing(&self) -> Checkpointing {
        self.checkpoint.checkpointing()
    }

    /// The commit mode in effect.
    #[must_use]
    pub fn commit_mode(&self) -> CommitMode {
        CommitMode::of(self.checkpointing(), self.source.commit_to_group)
    }

    /// Why it is this one, in a sentence.
    #[must_use]
    pub fn commit_mode_because(&self) -> String {
        match (self.checkpointing(), self.commit_mode()) {
            (_, CommitMode::OnCheckpoints) => {
                "each completed checkpoint is committed (source.commit_to_group: on-checkpoint)"
                    .to_owned()
            }
            (_, CommitMode::KafkaPeriodic) => format!(
                "checkpoints are off; what the sink has is committed every {} (source.commit_to_group: periodic)",
                self.source.commit_every()
            ),
            (Checkpointing::On, CommitMode::Disabled) => {
                "nothing is committed (source.commit_to_group: off)".to_owned()
            }
            (Checkpointing::Off, CommitMode::Disabled) => {
                "checkpoints are off, and nothing is committed (source.commit_to_group: off)"
                    .to_owned()
            }
        }
    }

    /// What each start of a job without checkpoints means for its records; `None` for a job that takes them.
    #[must_use]
    pub fn each_start_means(&self) -> Option<String> {
        if !self.checkpointing().is_off() {
            return None;
        }
        let mode = self.startup_mode.name();
        let then = match &self.startup_mode {
            StartupMode::Earliest => "everything that the logs hold is read again".to_owned(),
            StartupMode::Latest => {
                "what is unread then, or written while the job does not run, is not read".to_owned()
            }
            StartupMode::Timestamp { .. } => {
                "everything since that instant is read again".to_owned()
            }
            StartupMode::SpecificOffsets { .. } => {
                "everything from the given offsets on is read again".to_owned()
            }
            StartupMode::GroupOffsets => match self.commit_mode() {
                CommitMode::KafkaPeriodic => format!(
                    "what the sink got after the last commit to the group (every {}) is read again",
                    self.source.commit_every()
                ),
                CommitMode::OnCheckpoints | CommitMode::Disabled => format!(
                    "this job never moves its group's offsets, so what it has read since they were moved is read again; {}",
                    match self.source.on_missing_group_offset {
                        PositionPolicy::Earliest =>
                            "where the group has none, everything that the logs hold is read again (on_missing_group_offset: earliest)",
                        PositionPolicy::Latest =>
                            "where the group has none, what is unread then, or written while the job does not run, is not read (on_missing_group_offset: latest)",
                        PositionPolicy::Fail =>
                            "where the group has none, the start is refused (on_missing_group_offset: fail)",
                    }
                ),
            },
        };
        Some(format!(
            "each start, also one by the server itself after a crash, begins by the startup mode ({mode}): {then}"
        ))
    }
}

impl CheckpointSpec {
    /// Whether the job takes checkpoints.
    #[must_use]
    pub fn checkpointing(&self) -> Checkpointing {
        match self.interval {
            Some(_) => Checkpointing::On,
            None => Checkpointing::Off,
        }
    }
}

impl SourceSpec {
    /// Time between two periodic commits.
    #[must_use]
    pub fn commit_every(&self) -> HumanDuration {
        self.commit_interval.unwrap_or(COMMIT_INTERVAL)
    }
}

/// Turns checkpoints off in a stored spec, which says for its part what is committed.
const TURNS_OFF: &str = r#"{"checkpoint":{"interval":null},"source":{"commit_to_group":null}}"#;
/// Turns checkpoints on in a stored spec.
const TURNS_ON: &str =
    r#"{"checkpoint":{"interval":"10s"},"source":{"commit_to_group":null,"commit_interval":null}}"#;

/// Leaves the group's offsets alone.
const KEEPS_THE_GROUP: &str = r#"{"source":{"commit_to_group":"off"}}"#;

/// What is committed where a spec does not say it: Flink's defaults of both rows.
#[must_use]
pub(super) fn default_commit(checkpointing: Checkpointing) -> CommitToGroup {
    match checkpointing {
        Checkpointing::On => CommitToGroup::OnCheckpoint,
        Checkpointing::Off => CommitToGroup::Periodic,
    }
}

/// What cannot be together: every fault, each with the remedy.
pub(super) fn faults(
    checkpoint: &CheckpointSpec,
    source: &SourceSpec,
    sink: Option<&SinkSpec>,
) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, message: &str| {
        faults.push(FieldError::new(pointer, message));
    };
    let checkpointing = checkpoint.checkpointing();
    if source.commit_interval.is_some() && source.commit_to_group != CommitToGroup::Periodic {
        fault(
            "/source/commit_interval",
            &match checkpointing {
                Checkpointing::Off => {
                    "belongs to commit_to_group: periodic; leave it out".to_owned()
                }
                Checkpointing::On => format!(
                    "belongs to commit_to_group: periodic, which is for jobs without checkpoints; leave it out. A PATCH that turns checkpoints on: {TURNS_ON}"
                ),
            },
        );
    }
    if checkpointing == Checkpointing::On {
        if source.commit_to_group == CommitToGroup::Periodic {
            fault(
                "/source/commit_to_group",
                &format!(
                    "periodic is for jobs without checkpoints (checkpoint.interval: null): use on-checkpoint, or off. A PATCH that turns checkpoints on: {TURNS_ON}"
                ),
            );
        }
        let ends_at_the_group = source.stop_at == Some(StopAt::GroupOffsets);
        if ends_at_the_group && source.commit_to_group == CommitToGroup::OnCheckpoint {
            fault(
                "/source/stop_at",
                &format!(
                    "group-offsets ends where the group stands, and commit_to_group: on-checkpoint, the default, moves the group to where the job stands, so the wanted ends would be lost: turn the commits off. As a PATCH: {KEEPS_THE_GROUP}"
                ),
            );
        }
        return faults;
    }
    if source.commit_to_group == CommitToGroup::OnCheckpoint {
        fault(
            "/source/commit_to_group",
            &format!(
                "checkpoints are off (checkpoint.interval: null), so on-checkpoint would never commit: use periodic, or off. A PATCH that turns checkpoints off: {TURNS_OFF}"
            ),
        );
    }
    if source.stop_at.is_some() {
        fault(
            "/source/stop_at",
            "checkpoints are off (checkpoint.interval: null), and a bounded run keeps in them how far it has come: give an interval, or leave stop_at out",
        );
    }
    if checkpoint.on_cancel == OnCancel::Delete {
        fault(
            "/checkpoint/on_cancel",
            "checkpoints are off (checkpoint.interval: null), so a stop has none to delete: leave it out",
        );
    }
    if let Some(sink) = sink.filter(|sink| sink.keeps_progress()) {
        fault(
            "/checkpoint/interval",
            &format!(
                "null turns checkpoints off, and a sink of type {} is {} by them: give an interval, or use a sink that is at-least-once",
                sink.kind(),
                sink.delivery()
            ),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::JobName;

    /// A spec with these members beside what it needs.
    fn read(interval: &Value, source: &Value, sink: &Value) -> Result<JobSpec, Vec<FieldError>> {
        let mut document = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "group-offsets"},
            "checkpoint": {"interval": interval},
            "sink": sink,
        });
        for (name, value) in source.as_object().unwrap() {
            document["source"][name] = value.clone();
        }
        JobSpec::read(&JobName::new("orders").unwrap(), &document)
    }

    /// The lines that a refusal gives, each as a merge patch of a stored spec of the other kind.
    #[test]
    fn what_a_refusal_says_to_send_works() {
        let blackhole = json!({"type": "blackhole"});
        let on = (json!("10s"), json!({"commit_to_group": "on-checkpoint"}));
        let off = (
            json!(null),
            json!({"commit_to_group": "periodic", "commit_interval": "1s"}),
        );
        for ((_, source), (interval, _), line, is_off) in
            [(&on, &off, TURNS_OFF, true), (&off, &on, TURNS_ON, false)]
        {
            let faults = read(interval, source, &blackhole).unwrap_err();
            assert!(
                json!(faults)
                    .to_string()
                    .contains(&json!(line).to_string()[1..]),
                "{faults:?}"
            );
            let patch: Value = serde_json::from_str(line).unwrap();
            let mut patched = source.clone();
            for (member, value) in patch["source"].as_object().unwrap() {
                assert!(value.is_null());
                patched.as_object_mut().unwrap().remove(member);
            }
            let spec = read(&patch["checkpoint"]["interval"], &patched, &blackhole).unwrap();
            assert_eq!(spec.checkpointing().is_off(), is_off);
        }
    }

    #[test]
    fn the_table_of_commit_modes() {
        use CommitMode::{Disabled, KafkaPeriodic, OnCheckpoints};
        let blackhole = json!({"type": "blackhole"});
        let rows = [
            (
                json!("10s"),
                json!({}),
                Ok((OnCheckpoints, "each completed checkpoint")),
            ),
            (
                json!("10s"),
                json!({"commit_to_group": "on-checkpoint"}),
                Ok((OnCheckpoints, "on-checkpoint")),
            ),
            (
                json!("10s"),
                json!({"commit_to_group": "off"}),
                Ok((Disabled, "nothing is committed")),
            ),
            (
                json!("10s"),
                json!({"commit_to_group": "periodic"}),
                Err("/source/commit_to_group"),
            ),
            (
                json!("10s"),
                json!({"commit_interval": "1s"}),
                Err("/source/commit_interval"),
            ),
            (json!(null), json!({}), Ok((KafkaPeriodic, "every 5s"))),
            (
                json!(null),
                json!({"commit_to_group": "periodic"}),
                Ok((KafkaPeriodic, "every 5s")),
            ),
            (
                json!(null),
                json!({"commit_to_group": "periodic", "commit_interval": "1s"}),
                Ok((KafkaPeriodic, "every 1s")),
            ),
            (
                json!(null),
                json!({"commit_interval": "1s"}),
                Ok((KafkaPeriodic, "every 1s")),
            ),
            (
                json!(null),
                json!({"commit_to_group": "off"}),
                Ok((Disabled, "checkpoints are off, and nothing is committed")),
            ),
            (
                json!(null),
                json!({"commit_to_group": "on-checkpoint"}),
                Err("/source/commit_to_group"),
            ),
            (
                json!(null),
                json!({"commit_to_group": "off", "commit_interval": "1s"}),
                Err("/source/commit_interval"),
            ),
            (
                json!(null),
                json!({"commit_interval": "1ms"}),
                Err("/source/commit_interval"),
            ),
            (
                json!(null),
                json!({"stop_at": {"mode": "latest"}}),
                Err("/source/stop_at"),
            ),
        ];
        for (interval, source, expected) in rows {
            let row = format!("{interval} {source}");
            match (read(&interval, &source, &blackhole), expected) {
                (Ok(spec), Ok((mode, because))) => {
                    assert_eq!(spec.commit_mode(), mode, "{row}");
                    let why = spec.commit_mode_because();
                    assert!(why.contains(because), "{row}: {why}");
                    assert_eq!(spec.checkpointing().is_off(), interval.is_null(), "{row}");
                    // What is shown can be sent again and means the same.
                    let shown = serde_json::to_value(&spec).unwrap();
                    assert_eq!(
                        JobSpec::read(&JobName::new("orders").unwrap(), &shown),
                        Ok(spec.clone()),
                        "{row}"
                    );
                    assert_eq!(
                        serde_json::from_value::<JobSpec>(shown).unwrap(),
                        spec,
                        "{row}"
                    );
                }
                (Err(faults), Err(pointer)) => {
                    let pointers: Vec<&str> =
                        faults.iter().map(|fault| fault.pointer.as_str()).collect();
                    assert_eq!(pointers, [pointer], "{row}: {faults:?}");
                }
                (read, _) => panic!("{row}: {read:?}"),
            }
        }
    }

    /// The job's own commits would move the ends to where the job stands.
    #[test]
    fn a_job_does_not_overwrite_the_ends_that_its_group_holds() {
        let blackhole = json!({"type": "blackhole"});
        let mut source = json!({"stop_at": {"mode": "group-offsets"}});
        let faults = read(&json!("10s"), &source, &blackhole).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].pointer, "/source/stop_at");
        assert!(faults[0].message.contains(KEEPS_THE_GROUP), "{faults:?}");
        let patch: Value = serde_json::from_str(KEEPS_THE_GROUP).unwrap();
        source["commit_to_group"] = patch["source"]["commit_to_group"].clone();
        let spec = read(&json!("10s"), &source, &blackhole).unwrap();
        assert_eq!(spec.commit_mode(), CommitMode::Disabled);
    }

    #[test]
    fn the_words_are_flinks() {
        let words = [
            CommitMode::OnCheckpoints,
            CommitMode::KafkaPeriodic,
            CommitMode::Disabled,
        ]
        .map(|mode| serde_json::to_value(mode).unwrap());
        assert_eq!(words, ["ON_CHECKPOINTS", "KAFKA_PERIODIC", "DISABLED"]);
    }

    #[test]
    fn what_rests_on_checkpoints_is_refused_without_them() {
        let postgres = json!({
            "type": "postgres", "connection": "warehouse", "table": "public.orders",
            "mapping": {"mode": "raw", "columns": {"value": "@value"}},
        });
        let faults = read(&json!(null), &json!({}), &postgres).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].pointer, "/checkpoint/interval");
        assert!(
            faults[0].message.contains("exactly-once"),
            "{}",
            faults[0].message
        );
        assert!(read(&json!("10s"), &json!({}), &postgres).is_ok());
        let document = json!({
            "source": {"connection": "main", "topics": ["orders"]},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"interval": null, "on_cancel": "delete"},
            "sink": {"type": "log"},
        });
        let faults = JobSpec::read(&JobName::new("orders").unwrap(), &document).unwrap_err();
        assert_eq!(faults[0].pointer, "/checkpoint/on_cancel");
    }

    #[test]
    fn each_start_says_what_it_means() {
        let rows = [
            (
                json!({"mode": "earliest"}),
                "periodic",
                "everything that the logs hold is read again",
            ),
            (
                json!({"mode": "latest"}),
                "periodic",
                "unread then, or written while the job does not run, is not read",
            ),
            (
                json!({"mode": "timestamp", "timestamp": "2026-11-28T02:00:00Z"}),
                "off",
                "everything since that instant",
            ),
            (
                json!({"mode": "specific-offsets", "offsets": {"orders": {"0": 1}}}),
                "off",
                "from the given offsets",
            ),
            (
                json!({"mode": "group-offsets"}),
                "periodic",
                "after the last commit to the group (every 5s)",
            ),
            (
                json!({"mode": "group-offsets"}),
                "off",
                "where the group has none, the start is refused",
            ),
        ];
        for (mode, commit, words) in rows {
            let mut spec = read(
                &json!(null),
                &json!({"commit_to_group": commit}),
                &json!({"type": "log"}),
            )
            .unwrap();
            spec.startup_mode = serde_json::from_value(mode).unwrap();
            let said = spec.each_start_means().unwrap();
            assert!(said.contains(words), "{said}");
            spec.checkpoint.interval = Some(COMMIT_INTERVAL);
            assert_eq!(spec.each_start_means(), None);
        }
    }
}
