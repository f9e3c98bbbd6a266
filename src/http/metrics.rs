//! `/metrics`: the jobs' numbers as Prometheus wants them.
//!
//! A number that is not known has no series; 0 and `NaN` would both be lies that an alert believes.

use std::{fmt, sync::Arc};

use axum::{
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, prometheus_text,
        text,
    },
    metrics::{MetricType, counter::Counter, exemplar::Exemplar, family::Family},
    registry::Registry,
};
use serde::Serialize;

use super::{context::Context, extract::names, problem::Problem};
use crate::{
    model::{checkpoint::CheckpointPhases, code::Code, stages::StageTimes},
    service::{JobMetrics, PartitionMetrics, Service},
};

const OPEN_METRICS: &str = "application/openmetrics-text";

/// The numbers
///
/// Text in the format of Prometheus, or `OpenMetrics` to a caller who names it. A number that is not known has no series.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "server",
    responses((status = 200, description = "The numbers", body = String, content_type = "text/plain")),
)]
pub(super) async fn get_metrics(
    State(context): State<Arc<Context>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let open = names(&headers, OPEN_METRICS);
    let mut page = String::new();
    let written = context.with_registry(|registry| {
        if open {
            text::encode(&mut page, registry)
        } else {
            prometheus_text::encode(&mut page, registry)
        }
    });
    written.map_err(|error| {
        Problem::new(
            Code::Internal,
            format!("the metrics could not be written: {error}"),
        )
    })?;
    let content_type = if open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    Ok(([(header::CONTENT_TYPE, content_type)], page).into_response())
}

/// Counts the answers of every route.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestCounter(Family<RequestLabels, Counter>);

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: &'static str,
    route: String,
    status: u16,
}

impl RequestCounter {
    /// Makes it a part of `/metrics`.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "handover_http_requests",
            "Requests answered, by route",
            self.0.clone(),
        );
    }

    /// Counts one answer.
    pub(super) fn count(&self, method: &Method, route: &str, status: StatusCode) {
        // Methods are the caller's text: only those that routes have become labels, or a caller could fill the memory.
        let method = ["GET", "HEAD", "PUT", "POST", "PATCH"]
            .into_iter()
            .find(|known| method == *known)
            .unwrap_or("other");
        self.0
            .get_or_create(&RequestLabels {
                method,
                route: route.to_owned(),
                status: status.as_u16(),
            })
            .inc();
    }
}

/// Asks the service for the jobs' numbers whenever somebody scrapes.
pub(super) struct JobsCollector {
    service: Service,
    per_partition: bool,
}

impl JobsCollector {
    /// Collects from `service`, each partition too if asked for.
    pub(super) fn new(service: Service, per_partition: bool) -> Self {
        Self {
            service,
            per_partition,
        }
    }
}

impl fmt::Debug for JobsCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobsCollector").finish_non_exhaustive()
    }
}

impl Collector for JobsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        encode_jobs(&self.service.metrics(), self.per_partition, &mut encoder)
    }
}

type Labels = Vec<(&'static str, String)>;

fn encode_jobs(
    jobs: &[JobMetrics],
    per_partition: bool,
    encoder: &mut DescriptorEncoder<'_>,
) -> fmt::Result {
    let mut page = Page { encoder, jobs };
    page.states()?;
    page.lags()?;
    page.checkpoints()?;
    page.runs()?;
    if per_partition {
        page.partitions()?;
    }
    Ok(())
}

/// Writes one metric after the other, each with the series of all jobs.
struct Page<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    jobs: &'a [JobMetrics],
}

impl Page<'_, '_> {
    fn states(&mut self) -> fmt::Result {
        self.gauges(
            "handover_job_state",
            "The state of each job: 1 for the state it is in",
            |job| vec![(vec![("state", word(&job.state))], 1_i64)],
        )?;
        self.gauges(
            "handover_job_health",
            "The health of each job: 1 for each reason, or for the verdict with an empty reason",
            |job| {
                let status = word(&job.health);
                let series =
                    |reason: String| (vec![("status", status.clone()), ("reason", reason)], 1_i64);
                if job.health_reasons.is_empty() {
                    vec![series(String::new())]
                } else {
                    let mut reasons = job.health_reasons.clone();
                    reasons.sort_unstable();
                    reasons.dedup();
                    reasons
                        .iter()
                        .map(|code| series(code.to_string()))
                        .collect()
                }
            },
        )
    }

    fn lags(&mut self) -> fmt::Result {
        self.gauges(
            "handover_lag_offsets",
            "Offsets up to the readable ends, from the live positions, the checkpoint or the group",
            |job| {
                by_basis(job.lag.position, job.lag.checkpoint, job.lag.group)
                    .map(|(basis, lag)| (vec![("basis", basis.to_owned())], lag))
                    .collect()
            },
        )?;
        self.gauges(
            "handover_lag_unknown_partitions",
            "Partitions that the lags could not include",
            |job| vec![(Vec::new(), count(job.lag.unknown_partitions))],
        )?;
        self.gauges(
            "handover_group_behind_checkpoint_offsets",
            "Offsets from the group's to the checkpointed positions, where the group is behind",
            |job| one(job.group_behind_checkpoint),
        )?;
        self.gauges(
            "handover_group_ahead_of_checkpoint_offsets",
            "Offsets from the checkpointed positions to the group's, where something else moved the group ahead",
            |job| one(job.group_ahead_of_checkpoint),
        )
    }

    fn checkpoints(&mut self) -> fmt::Result {
        self.gauges(
            "handover_last_checkpoint_timestamp_seconds",
            "When the newest checkpoint completed",
            |job| one(job.last_checkpoint_at),
        )?;
        self.gauges(
            "handover_checkpoint_duration_seconds",
            "What the phases of the newest completed checkpoint took",
            |job| {
                job.last_checkpoint_phases
                    .iter()
                    .flat_map(phases)
                    .map(|(phase, seconds)| (vec![("phase", phase.to_owned())], seconds))
                    .collect()
            },
        )?;
        self.counters(
            "handover_checkpoints",
            "Checkpoints completed since the server started",
            |job| one(job.checkpoints_completed),
        )?;
        self.counters(
            "handover_checkpoint_failures",
            "Attempts at a checkpoint that failed since the server started",
            |job| {
                job.checkpoint_failures
                    .iter()
                    .map(|(code, failures)| (vec![("code", code.clone())], *failures))
                    .collect()
            },
        )
    }

    fn runs(&mut self) -> fmt::Result {
        self.gauges(
            "handover_last_commit_timestamp_seconds",
            "When the broker last confirmed a commit to the group in this run",
            |job| {
                let at = job
                    .commits
                    .as_ref()
                    .and_then(|commits| commits.last_success_at);
                one(at.map(|at| at.timestamp()))
            },
        )?;
        self.counters(
            "handover_group_commit_failures",
            "Commits to the group that failed in this run",
            |job| one(job.commits.as_ref().map(|commits| commits.failed)),
        )?;
        self.counters(
            "handover_records",
            "Records given to the sink in this run",
            |job| one(job.records),
        )?;
        self.counters(
            "handover_record_bytes",
            "Bytes of keys and values given to the sink in this run",
            |job| one(job.bytes),
        )?;
        self.counters(
            "handover_records_redelivered",
            "Records dropped in this run because the client delivered them twice",
            |job| one(job.redelivered),
        )?;
        self.gauges(
            "handover_parked_partitions",
            "Partitions that the run does not read until somebody decides or the cause goes away",
            |job| one(job.parked_partitions.map(count)),
        )?;
        self.counters(
            "handover_bad_records",
            "Records that could not be processed in this run, by what became of them",
            |job| {
                let bad = job.bad_records.iter();
                bad.flat_map(|bad| [("skip", bad.skipped), ("dead-letter", bad.dead_lettered)])
                    .map(|(policy, records)| (vec![("policy", policy.to_owned())], records))
                    .collect()
            },
        )?;
        self.counters(
            "handover_positions_moved",
            "Positions that their logs did not hold, or whose topics were created again, and that were moved by the start of this run or in it",
            |job| one(job.positions_moved),
        )?;
        self.discoveries()?;
        self.crashes()?;
        self.limits()?;
        self.stages()?;
        self.watermarks()
    }

    fn watermarks(&mut self) -> fmt::Result {
        self.gauges(
            "handover_watermark_timestamp_seconds",
            "The job's watermark in seconds since 1970: no record at or before it is expected any more",
            |job| {
                let watermark = job.watermark.as_ref();
                one(watermark.and_then(|watermark| watermark.timestamp).map(seconds))
            },
        )?;
        self.gauges(
            "handover_watermark_idle_partitions",
            "Partitions that have had nothing to read for the time that makes them idle",
            |job| {
                let watermark = job.watermark.as_ref();
                one(watermark.map(|watermark| count(watermark.idle_partitions)))
            },
        )?;
        self.gauges(
            "handover_watermark_paused_partitions",
            "Partitions that are not read at the moment because their event time is too far ahead",
            |job| {
                let watermark = job.watermark.as_ref();
                one(watermark.map(|watermark| count(watermark.paused_partitions.len())))
            },
        )?;
        self.counters(
            "handover_late_records",
            "Records of this run that were at or before the watermark when they were given to the sink",
            |job| one(job.watermark.as_ref().map(|watermark| watermark.late_records)),
        )
    }

    fn discoveries(&mut self) -> fmt::Result {
        self.counters(
            "handover_partitions_discovered",
            "Partitions that this run has found since its start",
            |job| one(job.discovery.as_ref().map(|looks| looks.discovered)),
        )?;
        self.gauges(
            "handover_discovery_failing_looks",
            "Looks for new partitions that failed since the last one that was answered",
            |job| {
                let looks = job.discovery.as_ref();
                looks.map_or_else(Vec::new, |looks| {
                    vec![(Vec::new(), i64::from(looks.failures))]
                })
            },
        )
    }

    fn crashes(&mut self) -> fmt::Result {
        self.counters(
            "handover_job_crashes",
            "Runs that crashed since the server started",
            |job| vec![(Vec::new(), job.crashes)],
        )?;
        self.gauges(
            "handover_job_restarts_in_loop",
            "Restarts after crashes that followed each other, 0 once a run has lasted",
            |job| vec![(Vec::new(), i64::from(job.restarts_in_loop))],
        )
    }

    fn limits(&mut self) -> fmt::Result {
        self.gauges(
            "handover_limit_records_per_second",
            "The limit that the run is held to; no series without one",
            |job| {
                one(job
                    .limits
                    .and_then(|limits| limits.records_per_s)
                    .map(plain))
            },
        )?;
        self.gauges(
            "handover_limit_bytes_per_second",
            "The limit that the run is held to; no series without one",
            |job| one(job.limits.and_then(|limits| limits.bytes_per_s).map(plain)),
        )?;
        self.gauges(
            "handover_throttled_seconds",
            "How long the limits have held subtasks back in this run, all together",
            |job| one(job.throttled_for.map(|time| time.as_secs_f64())),
        )
    }

    fn stages(&mut self) -> fmt::Result {
        self.counters(
            "handover_stage_seconds",
            "What the subtasks of this run spent their time on, all together; handover_wait is beside the others",
            |job| {
                let stages = job.stages.iter().flat_map(StageTimes::named);
                stages
                    .map(|(name, time)| (vec![("stage", name.to_owned())], time.as_secs_f64()))
                    .collect()
            },
        )
    }

    fn partitions(&mut self) -> fmt::Result {
        self.gauges(
            "handover_offset",
            "Offsets of each partition; every one is the next offset to read",
            |job| job.partitions.iter().flat_map(partition_offsets).collect(),
        )?;
        self.gauges(
            "handover_partition_lag_offsets",
            "Offsets up to the readable end of each partition",
            |job| {
                let lags = |partition: &PartitionMetrics| -> Vec<(Labels, i64)> {
                    let lag = partition.lag;
                    by_basis(lag.position, lag.checkpoint, lag.group)
                        .map(|(basis, lag)| (labels_of(partition, "basis", basis), lag))
                        .collect()
                };
                job.partitions.iter().flat_map(lags).collect()
            },
        )?;
        self.gauges(
            "handover_partition_watermark_timestamp_seconds",
            "The watermark of each partition in seconds since 1970",
            |job| {
                let of = |partition: &PartitionMetrics| {
                    let timestamp = partition.watermark.as_ref()?.timestamp?;
                    Some((names_of(partition), seconds(timestamp)))
                };
                job.partitions.iter().filter_map(of).collect()
            },
        )
    }

    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl Fn(&JobMetrics) -> Vec<(Labels, V)>,
    ) -> fmt::Result {
        let mut metric = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for job in self.jobs {
            for (labels, value) in series(job) {
                metric
                    .encode_family(&with_job(job, labels))?
                    .encode_gauge(&value)?;
            }
        }
        Ok(())
    }

    fn counters<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl Fn(&JobMetrics) -> Vec<(Labels, V)>,
    ) -> fmt::Result {
        const NO_EXEMPLAR: Option<&Exemplar<Vec<(String, String)>, f64>> = None;
        let mut metric = self
            .encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for job in self.jobs {
            for (labels, value) in series(job) {
                metric
                    .encode_family(&with_job(job, labels))?
                    .encode_counter(&value, NO_EXEMPLAR)?;
            }
        }
        Ok(())
    }
}

fn with_job(job: &JobMetrics, mut labels: Labels) -> Labels {
    labels.insert(0, ("job", job.job.to_string()));
    labels
}

fn names_of(partition: &PartitionMetrics) -> Labels {
    vec![
        ("topic", partition.partition.topic.to_string()),
        ("partition", partition.partition.partition.to_string()),
    ]
}

fn labels_of(partition: &PartitionMetrics, name: &'static str, value: &'static str) -> Labels {
    let mut labels = names_of(partition);
    labels.push((name, value.to_owned()));
    labels
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of the time stamps that are taken stay below 2^53"
)]
fn seconds(at: DateTime<Utc>) -> f64 {
    at.timestamp_millis() as f64 / 1_000.0
}

fn partition_offsets(partition: &PartitionMetrics) -> Vec<(Labels, i64)> {
    [
        ("earliest", partition.earliest),
        ("last_stable", partition.last_stable),
        ("latest", partition.latest),
        ("position", partition.position),
        ("checkpointed", partition.checkpointed),
        ("group_committed", partition.group_committed),
    ]
    .into_iter()
    .filter_map(|(kind, offset)| Some((labels_of(partition, "kind", kind), offset?.get())))
    .collect()
}

fn by_basis(
    position: Option<i64>,
    checkpoint: Option<i64>,
    group: Option<i64>,
) -> impl Iterator<Item = (&'static str, i64)> {
    [
        ("position", position),
        ("checkpoint", checkpoint),
        ("group", group),
    ]
    .into_iter()
    .filter_map(|(basis, lag)| Some((basis, lag?)))
}

fn phases(phases: &CheckpointPhases) -> Vec<(&'static str, f64)> {
    [
        ("barrier", phases.barrier_ms),
        ("sink_flush", phases.sink_flush_ms),
        ("store", phases.store_ms),
        ("group_commit", phases.group_commit_ms),
    ]
    .into_iter()
    .filter_map(|(phase, milliseconds)| {
        let milliseconds = u32::try_from(milliseconds?).unwrap_or(u32::MAX);
        Some((phase, f64::from(milliseconds) / 1000.0))
    })
    .collect()
}

fn one<V>(value: Option<V>) -> Vec<(Labels, V)> {
    value.into_iter().map(|value| (Vec::new(), value)).collect()
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The word that the API writes for a value.
fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// A limit as a series; limits stay below 2^53.
fn plain(limit: u64) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{
        health::HealthStatus,
        ids::JobName,
        job_state::JobState,
        offset::Offset,
        topic::TopicPartition,
        views::{JobLag, PartitionLag},
    };

    #[derive(Debug)]
    struct Fixed(Vec<JobMetrics>, bool);

    impl Collector for Fixed {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
            encode_jobs(&self.0, self.1, &mut encoder)
        }
    }

    fn stopped_job() -> JobMetrics {
        JobMetrics {
            job: JobName::new("orders").unwrap(),
            state: JobState::Stopped,
            health: HealthStatus::Stopped,
            health_reasons: Vec::new(),
            lag: JobLag {
                checkpoint: Some(40),
                ..JobLag::default()
            },
            group_behind_checkpoint: None,
            group_ahead_of_checkpoint: None,
            partitions: vec![PartitionMetrics {
                partition: TopicPartition::new("or\"ders\n", 3),
                earliest: None,
                last_stable: None,
                latest: Offset::new(100),
                position: None,
                checkpointed: Offset::new(60),
                group_committed: None,
                lag: PartitionLag {
                    checkpoint: Some(40),
                    ..PartitionLag::default()
                },
                watermark: None,
            }],
            last_checkpoint_at: None,
            last_checkpoint_phases: Some(CheckpointPhases {
                barrier_ms: Some(1500),
                ..CheckpointPhases::default()
            }),
            checkpoints_completed: Some(7),
            checkpoint_failures: BTreeMap::from([("checkpoint-timeout".to_owned(), 2)]),
            commits: None,
            records: None,
            bytes: None,
            redelivered: None,
            parked_partitions: None,
            bad_records: None,
            positions_moved: None,
            discovery: None,
            crashes: 1,
            restarts_in_loop: 0,
            limits: None,
            throttled_for: None,
            watermark: None,
            stages: None,
        }
    }

    #[test]
    fn what_is_not_known_has_no_series() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fixed(vec![stopped_job()], true)));
        let mut page = String::new();
        prometheus_text::encode(&mut page, &registry).unwrap();
        for line in [
            "handover_job_state{job=\"orders\",state=\"stopped\"} 1",
            "handover_job_health{job=\"orders\",status=\"stopped\",reason=\"\"} 1",
            "handover_lag_offsets{job=\"orders\",basis=\"checkpoint\"} 40",
            "handover_offset{job=\"orders\",topic=\"or\\\"ders\\n\",partition=\"3\",kind=\"checkpointed\"} 60",
            "handover_checkpoint_duration_seconds{job=\"orders\",phase=\"barrier\"} 1.5",
            "handover_checkpoint_failures_total{job=\"orders\",code=\"checkpoint-timeout\"} 2",
            "handover_checkpoints_total{job=\"orders\"} 7",
            "handover_job_crashes_total{job=\"orders\"} 1",
            "handover_job_restarts_in_loop{job=\"orders\"} 0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        for absent in [
            "basis=\"group\"",
            "handover_records_total{",
            "handover_limit_records_per_second{",
            "handover_throttled_seconds{",
            "handover_watermark_timestamp_seconds{",
            "handover_late_records_total{",
            "handover_stage_seconds_total{",
            "NaN",
            "kind=\"position\"",
        ] {
            assert!(!page.contains(absent), "{absent}\n{page}");
        }

        let mut registry = Registry::default();
        registry.register_collector(Box::new(Fixed(vec![stopped_job()], false)));
        let mut page = String::new();
        prometheus_text::encode(&mut page, &registry).unwrap();
        assert!(page.contains("handover_lag_offsets"), "{page}");
        assert!(!page.contains("partition=\"3\""), "{page}");
    }
}
