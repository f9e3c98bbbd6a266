//! Creating and changing the declarative document of a job.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Map, Value};
use tokio::time::timeout;

use super::{
    Service,
    core::JobEntry,
    dead_letters,
    error::{Result, ServiceError},
    queries::{Caller, SpecPrecondition},
    startup_mode::{refuse_future_mode, stale_generation},
    without_checkpoints,
};
use crate::{
    engine::{JobHandle, error::ErrorClass, ports::KafkaCluster, topics},
    model::{
        code::Code,
        field_error::FieldError,
        ids::JobName,
        job::{JobSpec, NewPartitions},
        operation::Operation,
        resolver::Warning,
        sink_spec::SinkSpec,
        start::StartRequest,
        startup_mode::StartupMode,
        views::SpecApplied,
    },
    store::{self, JobRow, PutSpec},
};

/// How long a dry run waits for the brokers to say whether the topics exist.
const TOPICS_DEADLINE: Duration = Duration::from_secs(3);
/// How long a spec waits for the sink's target to say whether it can take the records.
const SINK_DEADLINE: Duration = Duration::from_secs(3);
/// How long a run may take to hear of a change.
const TELL_DEADLINE: Duration = Duration::from_secs(2);
/// How often a patch is tried again when somebody else changes the spec at the same time.
const PATCH_ATTEMPTS: usize = 5;

impl Service {
    pub(super) async fn read_spec(&self, name: &JobName) -> Result<(JobSpec, i64)> {
        let job = self.core.job(name).await?;
        self.core.refresh(&job).await;
        let row = job.row();
        Ok((row.spec, row.generation))
    }

    pub(super) async fn apply_spec(
        &self,
        name: &JobName,
        document: &Value,
        precondition: SpecPrecondition,
        dry_run: bool,
        start_on_create: bool,
        caller: &Caller,
    ) -> Result<(SpecApplied, bool, Option<Operation>)> {
        // The connection that the spec names must still be there when the spec is stored.
        let kept = self.core.clusters.keep_names().await;
        let (spec, mut warnings) = self.checked_spec(name, document, dry_run).await?;
        refuse_future_mode(&spec.startup_mode, self.core.now()).map_err(|error| error.job(name))?;
        if dry_run {
            drop(kept);
            return self.try_spec(name, spec, precondition, warnings).await;
        }
        let wanted = match precondition {
            SpecPrecondition {
                if_none_match_any: true,
                ..
            } => store::SpecPrecondition::Absent,
            SpecPrecondition {
                if_match: Some(generation),
                ..
            } => store::SpecPrecondition::Generation(generation),
            SpecPrecondition { .. } => store::SpecPrecondition::Any,
        };
        let before = self.known_spec(name).await;
        let put = self
            .core
            .store
            .put_spec(name, &spec, &wanted, &caller.requested_by)
            .await?;
        drop(kept);
        let (row, changed, created) = match put {
            PutSpec::Created(row) => (row, true, true),
            PutSpec::Replaced(row) => (row, true, false),
            PutSpec::Unchanged(row) => (row, false, false),
            PutSpec::Stale { generation } => {
                let wanted = precondition.if_match.unwrap_or(generation);
                return Err(stale_generation(name, wanted, generation));
            }
            PutSpec::Exists => return Err(exists(name)),
            PutSpec::Missing => return Err(ServiceError::no_such_job(name)),
            PutSpec::GroupTaken { job } => return Err(group_taken(name, &spec, &job)),
        };
        let job = self.core.remember(row.clone());
        if changed {
            tell_the_run(&job, &spec).await;
            job.measure_soon.notify_one();
        }
        warnings.extend(self.shadow_warnings(&job, before.as_ref(), &spec).await);
        warnings.extend(
            self.checkpointing_warning(&job, before.as_ref(), &spec)
                .await,
        );
        let operation = if created && start_on_create {
            Some(
                self.ask_start(name, &StartRequest::auto(), caller)
                    .await?
                    .operation,
            )
        } else {
            None
        };
        Ok((
            applied(&row, changed, warnings, false, spec),
            created,
            operation,
        ))
    }

    /// The spec as it was before, to see what a change does; the answer does not depend on it.
    async fn known_spec(&self, name: &JobName) -> Option<JobSpec> {
        self.core.job(name).await.ok().map(|job| job.row().spec)
    }

    /// Everything a document can be checked for without asking the brokers, all faults at once, and what could not be
    /// checked because the sink's target does not answer.
    async fn checked_spec(
        &self,
        name: &JobName,
        document: &Value,
        dry_run: bool,
    ) -> Result<(JobSpec, Vec<Warning>)> {
        let (spec, mut faults) = match JobSpec::read(name, document) {
            Ok(spec) => (Some(spec), Vec::new()),
            Err(faults) => (None, faults),
        };
        faults.extend(self.connection_faults(document));
        let known = self.known_spec(name).await;
        let is_known = |spec: &JobSpec| known.as_ref().is_some_and(|known| known.sink == spec.sink);
        // A document that is applied again as it is must not be refused for what became of the target meanwhile: the start
        // says that. Whoever tries it wants to know.
        let mut warnings = Vec::new();
        if dry_run || !spec.as_ref().is_some_and(is_known) {
            let (sink_faults, sink_warnings) = self.check_sink(document).await;
            faults.extend(sink_faults);
            warnings = sink_warnings;
        }
        let letters_known = known.as_ref().zip(spec.as_ref());
        let letters_are_known =
            letters_known.is_some_and(|(known, spec)| known.errors == spec.errors);
        if let Some(spec) = spec.as_ref().filter(|_| dry_run || !letters_are_known) {
            let (letter_faults, letter_warnings) =
                dead_letters::look(&self.core, spec).await.of_spec();
            faults.extend(letter_faults);
            warnings.extend(letter_warnings);
        }
        warnings.extend(spec.as_ref().and_then(new_partition_warning));
        match spec {
            Some(spec) if faults.is_empty() => Ok((spec, warnings)),
            _ => Err(ServiceError::faults(faults, Code::InvalidSpec).job(name)),
        }
    }

    /// Asks the sink's target what stands against the spec there. One that does not answer is a warning, since the spec may
    /// be right all the same.
    async fn check_sink(&self, document: &Value) -> (Vec<FieldError>, Vec<Warning>) {
        let Some(sink) = SinkSpec::of_document(document) else {
            // It has faults of its own, which are told.
            return (Vec::new(), Vec::new());
        };
        let why = match timeout(SINK_DEADLINE, self.core.sinks.check(&sink)).await {
            Ok(Ok(faults)) => return (faults, Vec::new()),
            Ok(Err(error)) if error.class == ErrorClass::Deterministic => {
                let fault = FieldError::new("/sink/connection", error.to_string());
                return (vec![fault], Vec::new());
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {} s", SINK_DEADLINE.as_secs()),
        };
        let warning = Warning {
            code: Code::SinkUnreachable,
            summary: format!("whether the sink's target can take the records is not known: {why}"),
        };
        (Vec::new(), vec![warning])
    }

    /// Reads the raw document, so that these faults come together with those of the form.
    fn connection_faults(&self, document: &Value) -> Vec<FieldError> {
        let Some(connection) = document
            .pointer("/source/connection")
            .and_then(Value::as_str)
        else {
            return Vec::new();
        };
        let Some(cluster) = self.core.clusters.get(connection) else {
            let clusters = self.core.clusters.all();
            let known: Vec<&str> = clusters.keys().map(String::as_str).collect();
            return vec![FieldError::new(
                "/source/connection",
                format!(
                    "the server's file has no Kafka connection '{connection}'; it has: {}",
                    known.join(", ")
                ),
            )];
        };
        let properties: Option<BTreeMap<String, String>> = document
            .pointer("/source/properties")
            .and_then(|properties| serde_json::from_value(properties.clone()).ok());
        let refused = cluster.check_properties(&properties.unwrap_or_default());
        refused
            .err()
            .unwrap_or_default()
            .into_iter()
            .map(property_fault)
            .collect()
    }

    /// Validates wholly and stores nothing.
    async fn try_spec(
        &self,
        name: &JobName,
        spec: JobSpec,
        precondition: SpecPrecondition,
        mut warnings: Vec<Warning>,
    ) -> Result<(SpecApplied, bool, Option<Operation>)> {
        let rows = self.core.store.jobs().await?;
        let current = rows.iter().find(|row| row.name == *name);
        match (precondition, current) {
            (
                SpecPrecondition {
                    if_none_match_any: true,
                    ..
                },
                Some(_),
            ) => {
                return Err(exists(name));
            }
            (
                SpecPrecondition {
                    if_match: Some(_), ..
                },
                None,
            ) => {
                return Err(ServiceError::no_such_job(name));
            }
            (
                SpecPrecondition {
                    if_match: Some(wanted),
                    ..
                },
                Some(row),
            ) if row.generation != wanted => {
                return Err(stale_generation(name, wanted, row.generation));
            }
            _ => {}
        }
        let shares = |row: &&JobRow| {
            row.name != *name
                && row.spec.source.connection == spec.source.connection
                && row.spec.source.group_id == spec.source.group_id
        };
        // Both must allow it, since each moves the other's offsets.
        let allowed =
            |other: &JobRow| spec.source.allow_shared_group && other.spec.source.allow_shared_group;
        if let Some(other) = rows.iter().filter(shares).find(|other| !allowed(other)) {
            return Err(group_taken(name, &spec, &other.name));
        }
        let cluster = self.core.cluster(&spec.source.connection)?;
        let about_topics = topic_warnings(&*cluster, &spec)
            .await
            .map_err(|faults| ServiceError::faults(faults, Code::InvalidSpec).job(name))?;
        warnings.extend(about_topics);
        let Some(row) = current else {
            warnings.extend(without_checkpoints::change_warning(
                None, &spec, None, false,
            ));
            let view = SpecApplied {
                job: name.clone(),
                generation: 1,
                changed: true,
                applies: "now",
                pending_fields: Vec::new(),
                warnings,
                dry_run: true,
                spec,
            };
            return Ok((view, true, None));
        };
        let job = self.core.remember(row.clone());
        warnings.extend(self.shadow_warnings(&job, Some(&row.spec), &spec).await);
        let about_checkpoints = self.checkpointing_warning(&job, Some(&row.spec), &spec);
        warnings.extend(about_checkpoints.await);
        let changed = row.spec != spec;
        let would_be = JobRow {
            generation: row.generation + i64::from(changed),
            ..row.clone()
        };
        Ok((
            applied(&would_be, changed, warnings, true, spec),
            false,
            None,
        ))
    }

    /// A changed startup mode that a checkpoint makes ineffective is said, not refused: machines re-apply documents.
    async fn shadow_warnings(
        &self,
        job: &JobEntry,
        before: Option<&JobSpec>,
        spec: &JobSpec,
    ) -> Vec<Warning> {
        let is_same = before.is_none_or(|before| before.startup_mode == spec.startup_mode);
        if is_same || spec.checkpointing().is_off() {
            return Vec::new();
        }
        match self.core.store.latest_checkpoint(job.uid).await {
            Ok(Some(checkpoint)) => vec![Warning {
                code: Code::StartupModeShadowed,
                summary: format!(
                    "the startup mode is stored and not used: checkpoint {} exists; PUT startup-mode with apply=next-start makes it count once",
                    checkpoint.id
                ),
            }],
            Ok(None) | Err(_) => Vec::new(),
        }
    }

    /// Turning checkpoints off or on is said, and what becomes of the ones there are.
    async fn checkpointing_warning(
        &self,
        job: &JobEntry,
        before: Option<&JobSpec>,
        spec: &JobSpec,
    ) -> Option<Warning> {
        let was_off = before.is_some_and(|before| before.checkpointing().is_off());
        if !was_off && !spec.checkpointing().is_off() {
            return None;
        }
        let newest = self.core.store.latest_checkpoint(job.uid).await;
        let newest = newest.ok().flatten().map(|newest| newest.id);
        let ran_without = without_checkpoints::ran_without(&self.core, job.uid).await;
        // Where the store does not say it, the plan will.
        without_checkpoints::change_warning(before, spec, newest, ran_without.unwrap_or(false))
    }

    pub(super) async fn merge_spec(
        &self,
        name: &JobName,
        patch: &Value,
        if_match: Option<i64>,
        dry_run: bool,
        caller: &Caller,
    ) -> Result<SpecApplied> {
        if !patch.is_object() {
            let fault = FieldError::new("", "a merge patch of a spec must be an object");
            return Err(ServiceError::faults(vec![fault], Code::InvalidSpec).job(name));
        }
        let mut attempts_left = PATCH_ATTEMPTS;
        loop {
            attempts_left -= 1;
            let (current, generation) = self.read_spec(name).await?;
            let mut document = serde_json::to_value(current).map_err(|error| {
                ServiceError::new(
                    Code::Internal,
                    format!("the stored spec cannot be shown: {error}"),
                )
            })?;
            merge_spec(&mut document, patch);
            let precondition = SpecPrecondition {
                // Without a precondition of the caller, the patch goes on top of what was just read.
                if_match: Some(if_match.unwrap_or(generation)),
                if_none_match_any: false,
            };
            let put = self
                .apply_spec(name, &document, precondition, dry_run, false, caller)
                .await;
            match put {
                Ok((applied, _created, _operation)) => return Ok(applied),
                Err(error)
                    if error.code == Code::StaleGeneration
                        && if_match.is_none()
                        && attempts_left > 0 => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn property_fault((name, message): (String, String)) -> FieldError {
    let escaped = name.replace('~', "~0").replace('/', "~1");
    FieldError::new(format!("/source/properties/{escaped}"), message)
}

fn exists(name: &JobName) -> ServiceError {
    ServiceError::new(Code::AlreadyExists, format!("job {name} exists already")).job(name)
}

fn group_taken(name: &JobName, spec: &JobSpec, other: &JobName) -> ServiceError {
    ServiceError::new(
        Code::GroupIdTaken,
        format!(
            "job {other} uses the consumer group {} on the connection {}",
            spec.source.group_id, spec.source.connection
        ),
    )
    .job(name)
}

/// Checkpoint timing, limits and partition discovery count at once for the run. (Labels and the restart strategy are read from
/// the spec itself, and everything else counts from the next start on.)
async fn tell_the_run(job: &JobEntry, spec: &JobSpec) {
    let run = job.shared().run.clone();
    if let Some(run) = run {
        // A run that is too busy to listen takes it at its next start.
        drop(timeout(TELL_DEADLINE, apply_live(&run, spec)).await);
    }
}

/// Gives a run what counts at once of a spec.
pub(crate) async fn apply_live(run: &JobHandle, spec: &JobSpec) {
    run.set_checkpointing(spec.checkpoint.clone()).await;
    run.set_limits(spec.limits).await;
    run.set_discovery(spec.source.partition_discovery.clone())
        .await;
    let source = &spec.source;
    run.set_policies(source.on_out_of_range, source.on_topic_recreated)
        .await;
}

fn applied(
    row: &JobRow,
    changed: bool,
    warnings: Vec<Warning>,
    dry_run: bool,
    spec: JobSpec,
) -> SpecApplied {
    let pending_fields = row.running.as_ref().map_or_else(Vec::new, |running| {
        spec.change_from(&running.spec).pending_fields
    });
    SpecApplied {
        job: row.name.clone(),
        generation: row.generation,
        changed,
        applies: if pending_fields.is_empty() {
            "now"
        } else {
            "next-start"
        },
        pending_fields,
        warnings,
        dry_run,
        spec,
    }
}

/// A pattern that matches nothing may be meant: its topics can come later.
fn no_topics(spec: &JobSpec, is_empty: bool) -> Option<Warning> {
    let pattern = spec.source.topic_pattern.as_ref().filter(|_| is_empty)?;
    Some(Warning {
        code: Code::NoTopics,
        summary: format!("no topic matches {pattern} now; the job reads them when they appear"),
    })
}

/// What passes over records by choice is said each time.
fn new_partition_warning(spec: &JobSpec) -> Option<Warning> {
    let by_mode = spec.source.partition_discovery.new_partitions == NewPartitions::StartupMode;
    let passes_over = match spec.startup_mode {
        StartupMode::Latest | StartupMode::Timestamp { .. } | StartupMode::GroupOffsets => true,
        StartupMode::SpecificOffsets { .. } => true,
        StartupMode::Earliest => false,
    };
    (by_mode && passes_over).then(|| Warning {
        code: Code::NewPartitions,
        summary: format!(
            "partitions that appear while the job runs begin by the startup mode ({}): records that were written before they were found may be passed over",
            spec.startup_mode.name()
        ),
    })
}

/// Asks whether the topics exist. A broker that does not answer is a warning, since the spec may be right all the same.
async fn topic_warnings(
    cluster: &dyn KafkaCluster,
    spec: &JobSpec,
) -> std::result::Result<Vec<Warning>, Vec<FieldError>> {
    let topics = &spec.source.topics;
    let asked = topics::describe(cluster, &spec.source);
    let why = match timeout(TOPICS_DEADLINE, asked).await {
        Ok(Ok(described)) if spec.source.topic_pattern.is_some() => {
            return Ok(no_topics(spec, described.is_empty()).into_iter().collect());
        }
        Ok(Ok(described)) => {
            let missing = |name: &String| {
                described
                    .iter()
                    .any(|topic| topic.name == *name && topic.partitions.is_none())
            };
            let faults: Vec<FieldError> = topics
                .iter()
                .enumerate()
                .filter(|(_, name)| missing(name))
                .map(|(index, name)| {
                    FieldError::new(
                        format!("/source/topics/{index}"),
                        format!("the cluster has no topic '{name}'"),
                    )
                })
                .collect();
            return if faults.is_empty() {
                Ok(Vec::new())
            } else {
                Err(faults)
            };
        }
        Ok(Err(error)) => error.to_string(),
        Err(_elapsed) => format!("no answer within {} s", TOPICS_DEADLINE.as_secs()),
    };
    Ok(vec![Warning {
        code: Code::KafkaUnreachable,
        summary: format!("whether the topics exist is not known: {why}"),
    }])
}

/// Members of a spec that are one of several kinds: where each stands, and the member that says which kind it is.
const KINDS: &[(&[&str], &str)] = &[
    (&["startup_mode"], "mode"),
    (&["source", "stop_at"], "mode"),
    (&["restart"], "strategy"),
    (&["errors", "on_bad_record"], "policy"),
    (&["sink"], "type"),
];

/// Merges a patch into a spec that is shown with its defaults. Where the patch changes the kind of a member, what stands there
/// belongs to the old kind, and nobody has written it: it goes.
fn merge_spec(document: &mut Value, patch: &Value) {
    for (path, tag) in KINDS {
        let at = |document: &Value| {
            let place = path
                .iter()
                .try_fold(document, |place, name| place.get(name));
            place.and_then(|place| place.get(tag)).cloned()
        };
        let (before, after) = (at(document), at(patch));
        if after.is_none() || before == after {
            continue;
        }
        let pointer = format!("/{}", path.join("/"));
        if let Some(place) = document.pointer_mut(&pointer) {
            *place = Value::Null;
        }
    }
    merge(document, patch);
    keep_null_interval(document, patch);
}

/// Merges a patch into a document as RFC 7396 says: null removes, objects merge, everything else replaces.
fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Some(members) = document.as_object_mut() else {
        return;
    };
    for (name, value) in patch {
        if value.is_null() {
            members.shift_remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// In a merge patch null takes a member away, and gives it its default. Of the one member where null is a value of its own
/// nobody means that: it turns checkpoints off, like in a document.
fn keep_null_interval(document: &mut Value, patch: &Value) {
    let is_null = patch.pointer("/checkpoint/interval") == Some(&Value::Null);
    if let Some(checkpoint) = document.get_mut("checkpoint").filter(|_| is_null)
        && let Some(members) = checkpoint.as_object_mut()
    {
        members.insert("interval".to_owned(), Value::Null);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn merging_follows_the_rfc() {
        // The table of RFC 7396, appendix A, as far as patches are objects.
        for (mut document, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            merge(&mut document, &patch);
            assert_eq!(document, expected, "{patch}");
        }
    }

    fn merged(document: &Value, patch: &Value) -> Value {
        let mut merged = document.clone();
        merge(&mut merged, patch);
        merged
    }

    /// Small documents, with names that meet.
    fn documents(with_null: bool) -> BoxedStrategy<Value> {
        let nothing = if with_null { Value::Null } else { json!(false) };
        let leaf = prop_oneof![
            Just(nothing),
            any::<bool>().prop_map(Value::from),
            (0..3_i64).prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from),
        ];
        let tree = leaf.prop_recursive(3, 20, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                members(inner),
            ]
        });
        members(tree.boxed()).boxed()
    }

    fn members(inner: BoxedStrategy<Value>) -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|members| json!(members))
    }

    /// The patch that makes one document of another.
    fn difference(from: &Value, to: &Value) -> Value {
        let (Value::Object(old), Value::Object(new)) = (from, to) else {
            return to.clone();
        };
        let gone = old.keys().filter(|name| !new.contains_key(*name));
        let mut patch: Map<String, Value> = gone.map(|name| (name.clone(), Value::Null)).collect();
        for (name, value) in new {
            match old.get(name) {
                Some(known) if known == value => {}
                Some(known) => drop(patch.insert(name.clone(), difference(known, value))),
                None => drop(patch.insert(name.clone(), value.clone())),
            }
        }
        Value::Object(patch)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Laws of RFC 7396: nothing changes nothing; once is as good as twice; a null removes and is never stored; what is
        /// not named stays; and every document without nulls can be made of every other one.
        #[test]
        fn merging_keeps_its_laws(document in documents(true), patch in documents(true), other in documents(false)) {
            prop_assert_eq!(&merged(&document, &json!({})), &document);
            let once = merged(&document, &patch);
            prop_assert_eq!(&merged(&once, &patch), &once);
            for (name, value) in patch.as_object().unwrap() {
                let kept = once.get(name);
                match value {
                    Value::Null => prop_assert_eq!(kept, None),
                    Value::Object(_) => prop_assert!(kept.is_some_and(Value::is_object)),
                    _ => prop_assert_eq!(kept, Some(value)),
                }
            }
            for (name, value) in document.as_object().unwrap() {
                prop_assert!(patch.get(name).is_some() || once.get(name) == Some(value));
            }
            prop_assert_eq!(merged(&document, &difference(&document, &other)), other);
        }

        /// Patches that name different members can come in any order.
        #[test]
        fn patches_of_different_members_commute(document in documents(true), one in documents(true), another in documents(true)) {
            let mut another = another;
            another.as_object_mut().unwrap().retain(|name, _| one.get(name).is_none());
            prop_assert_eq!(merged(&merged(&document, &one), &another), merged(&merged(&document, &another), &one));
        }
    }

    #[test]
    fn another_kind_takes_nothing_from_the_old_one() {
        let before = json!({
            "restart": {"strategy": "exponential", "initial": "1s", "max": "1m"},
            "source": {"topics": ["orders"], "stop_at": {"mode": "timestamp", "timestamp": "2026-11-28T02:00:00Z"}},
        });
        for (patch, restart, stop_at) in [
            (
                json!({"restart": {"strategy": "none"}, "source": {"stop_at": {"mode": "latest"}}}),
                json!({"strategy": "none"}),
                json!({"mode": "latest"}),
            ),
            // The same kind, or no word of it: what stands there stays.
            (
                json!({"restart": {"strategy": "exponential", "max": "5m"}}),
                json!({"strategy": "exponential", "initial": "1s", "max": "5m"}),
                before["source"]["stop_at"].clone(),
            ),
            (
                json!({"restart": {"max": "5m"}, "source": {"stop_at": null}}),
                json!({"strategy": "exponential", "initial": "1s", "max": "5m"}),
                json!(null),
            ),
        ] {
            let mut document = before.clone();
            merge_spec(&mut document, &patch);
            assert_eq!(document["restart"], restart, "{patch}");
            assert_eq!(document["source"]["stop_at"], stop_at, "{patch}");
            assert_eq!(document["source"]["topics"], json!(["orders"]), "{patch}");
        }
    }

    #[test]
    fn null_as_the_interval_of_checkpoints_is_a_value() {
        let spec = json!({"checkpoint": {"interval": "10s", "timeout": "60s"}});
        for (patch, expected) in [
            (
                json!({"checkpoint": {"interval": null}}),
                json!({"interval": null, "timeout": "60s"}),
            ),
            (
                json!({"checkpoint": {"interval": "3s"}}),
                json!({"interval": "3s", "timeout": "60s"}),
            ),
            (
                json!({"checkpoint": {"timeout": null}}),
                json!({"interval": "10s"}),
            ),
        ] {
            let mut document = spec.clone();
            merge_spec(&mut document, &patch);
            assert_eq!(document["checkpoint"], expected, "{patch}");
        }
    }

    #[test]
    fn a_property_is_pointed_at_by_its_name() {
        let fault = property_fault(("a/b".to_owned(), "no".to_owned()));
        assert_eq!(fault.pointer, "/source/properties/a~1b");
    }
}
