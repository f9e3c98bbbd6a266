//! Where a job's time goes and what holds it back, in words.

use std::time::Duration;

use serde_json::{Value, json};

use super::next_steps::Curl;
use crate::model::{
    Code,
    duration::HumanDuration,
    job::JobSpec,
    job_status::JobStatus,
    sink_spec::SinkSpec,
    stages::{AT_LEAST, BottleneckKind, Held, RunStages, StageShares, StageTimes, bottleneck},
    views::{BottleneckView, NextStep, StagesView, SubtaskStages},
};

/// The longest checkpoint interval that is proposed: behind it lies what a crash has read again.
const LONGEST_INTERVAL: Duration = Duration::from_secs(300);

pub(crate) fn stages_view(stages: &RunStages) -> StagesView {
    let known = stages.is_known().then_some(&stages.lately);
    let subtasks = known.into_iter().flatten().zip(0..);
    let subtasks = subtasks.filter_map(|(times, subtask)| {
        let shares = times.shares()?;
        Some(SubtaskStages { subtask, shares })
    });
    StagesView {
        since: stages.since,
        window_ms: i64::try_from(stages.window.as_millis()).unwrap_or(i64::MAX),
        shares: known.and_then(|lately| StageTimes::sum(lately).shares()),
        subtasks: subtasks.collect(),
    }
}

pub(crate) fn bottleneck_view(
    curl: &Curl<'_>,
    spec: &JobSpec,
    status: &JobStatus,
) -> BottleneckView {
    let stages = &status.stages;
    let held = stages
        .is_known()
        .then(|| bottleneck(&stages.lately))
        .flatten();
    let Some(held) = held else {
        return BottleneckView {
            kind: None,
            subtask: None,
            summary: format!(
                "not known yet: the run is watched since {}, and it takes {} s to say",
                stages.since.format("%H:%M:%SZ"),
                AT_LEAST.as_secs()
            ),
            hint: None,
            settings: Vec::new(),
            next: Vec::new(),
        };
    };
    let advice = Advice {
        curl,
        spec,
        status,
        held,
    };
    BottleneckView {
        kind: Some(held.kind),
        subtask: advice.subtask(),
        summary: advice.summary(),
        hint: advice.hint(),
        settings: advice.settings(),
        next: advice.next(),
    }
}

struct Advice<'a> {
    curl: &'a Curl<'a>,
    spec: &'a JobSpec,
    status: &'a JobStatus,
    held: Held,
}

impl Advice<'_> {
    fn subtask(&self) -> Option<u32> {
        let is_one_of_many = self.status.stages.lately.len() > 1;
        is_one_of_many
            .then(|| u32::try_from(self.held.subtask).ok())
            .flatten()
    }

    /// Whether it is limited now; the shares are of the past.
    fn is_limited(&self) -> bool {
        let limits = &self.status.limits;
        limits.records_per_s.is_some() || limits.bytes_per_s.is_some()
    }

    fn brokers_are_away(&self) -> bool {
        let mut waiting = self.status.waiting.iter();
        waiting.any(|waiting| waiting.code == Code::KafkaUnreachable)
    }

    fn summary(&self) -> String {
        let shares = &self.held.shares;
        let of = match self.subtask() {
            Some(subtask) => format!("of the time of subtask {subtask}"),
            None => "of its time".to_owned(),
        };
        let said = match self.held.kind {
            BottleneckKind::Broker => format!(
                "{} {of} it waited for records of the brokers although there were unread ones in the logs",
                percent(shares.fetch_wait)
            ),
            BottleneckKind::Decode => format!(
                "{} {of} went into checking values (source.format)",
                percent(shares.decode)
            ),
            BottleneckKind::Sink => format!(
                "{} {of} it waited for the sink to take records, and {} for it to make durable what it had taken",
                percent(shares.sink_write),
                percent(shares.sink_flush)
            ),
            BottleneckKind::Checkpoint => at_checkpoints(shares, &of),
            BottleneckKind::RateLimit => format!(
                "{} {of} it had records that its limits held back ({})",
                percent(shares.rate_limit),
                if self.is_limited() {
                    self.status.limits.to_string()
                } else {
                    "it has none any more".to_owned()
                }
            ),
            BottleneckKind::Alignment => format!(
                "{} {of} it waited although there were unread records in the logs: those of partitions that are held back until the watermarks of the others have come as far",
                percent(shares.alignment)
            ),
            BottleneckKind::None => format!(
                "{} {of} it waited for records, and everything that was known to be in the logs was read",
                percent(shares.idle)
            ),
        };
        let window = self.status.stages.window.as_secs();
        format!("in the last {window} s, {said}")
    }

    fn hint(&self) -> Option<String> {
        let hint = match self.held.kind {
            BottleneckKind::Broker if self.brokers_are_away() => {
                "The brokers do not answer: see the reason kafka-unreachable in health, at /status. No setting of the job helps."
            }
            BottleneckKind::Broker => {
                "Raise parallelism: each subtask has a client of its own, with its own connections. Where brokers are far away, a larger max.partition.fetch.bytes and fetch.max.bytes in source.properties bring more with each answer. If neither helps, the brokers, a quota of theirs or the network are the limit."
            }
            BottleneckKind::Decode => {
                "Raise parallelism: each subtask checks on a thread of its own, as long as there are processors and partitions. With source.format bytes nothing is checked."
            }
            BottleneckKind::Sink => match self.spec.sink {
                SinkSpec::Postgres(_) => {
                    "Look at the target first: locks, triggers, indexes, its disk. Where transactions are short, a larger sink.batch.max_rows makes fewer of them; where they take long, a smaller one keeps them below the time limit of a statement (60 s). A higher parallelism writes over several connections, each for its own partitions."
                }
                SinkSpec::Log { .. } => {
                    "The log sink waits for whoever reads the server's standard output. Make that faster, or use another sink."
                }
                SinkSpec::Blackhole => "Raise parallelism.",
            },
            BottleneckKind::Checkpoint if self.spec.checkpointing().is_off() => {
                "Raise source.commit_interval: each commit waits until the sink has made everything durable, and no records are taken meanwhile."
            }
            BottleneckKind::Checkpoint => {
                "Raise checkpoint.interval: each checkpoint waits until the sink has made everything durable, and takes no records meanwhile. If the time that one takes (last_checkpoint, phases) grows with it, the sink is too slow and not the checkpoints too many."
            }
            BottleneckKind::RateLimit if !self.is_limited() => {
                "Nothing is to be done: the limits were taken away meanwhile, and what they held back before passes out of view within a minute."
            }
            BottleneckKind::RateLimit => {
                "Raise the limits, or set them to null; that counts at once, without a restart."
            }
            BottleneckKind::Alignment => {
                "A partition is behind the others in event time. /offsets shows each watermark: find out why it is slow or quiet. A larger watermark.alignment.max_drift lets the others go further ahead, a shorter watermark.idle_after gives up sooner on quiet ones."
            }
            BottleneckKind::None => return None,
        };
        Some(hint.to_owned())
    }

    fn settings(&self) -> Vec<String> {
        let limits = &self.status.limits;
        let pointers: Vec<&str> = match self.held.kind {
            BottleneckKind::Broker if self.brokers_are_away() => Vec::new(),
            BottleneckKind::Broker => vec![
                "/parallelism",
                "/source/properties/max.partition.fetch.bytes",
                "/source/properties/fetch.max.bytes",
            ],
            BottleneckKind::Decode => vec!["/parallelism", "/source/format"],
            BottleneckKind::Sink => match self.spec.sink {
                SinkSpec::Postgres(_) => vec!["/sink/batch/max_rows", "/parallelism"],
                SinkSpec::Log { .. } => vec!["/sink"],
                SinkSpec::Blackhole => vec!["/parallelism"],
            },
            BottleneckKind::Checkpoint if self.spec.checkpointing().is_off() => {
                vec!["/source/commit_interval"]
            }
            BottleneckKind::Checkpoint => vec!["/checkpoint/interval"],
            BottleneckKind::RateLimit => [
                ("/limits/records_per_s", limits.records_per_s),
                ("/limits/bytes_per_s", limits.bytes_per_s),
            ]
            .into_iter()
            .filter_map(|(pointer, limit)| limit.and(Some(pointer)))
            .collect(),
            BottleneckKind::Alignment => {
                vec!["/watermark/alignment/max_drift", "/watermark/idle_after"]
            }
            BottleneckKind::None => Vec::new(),
        };
        pointers.into_iter().map(str::to_owned).collect()
    }

    fn next(&self) -> Vec<NextStep> {
        match self.held.kind {
            BottleneckKind::Broker if self.brokers_are_away() => Vec::new(),
            BottleneckKind::RateLimit if !self.is_limited() => Vec::new(),
            BottleneckKind::Broker | BottleneckKind::Decode => self.more_subtasks(),
            BottleneckKind::Sink => match self.spec.sink {
                SinkSpec::Postgres(_) => self.more_subtasks(),
                SinkSpec::Log { .. } | SinkSpec::Blackhole => Vec::new(),
            },
            BottleneckKind::Checkpoint => self.longer_interval(),
            BottleneckKind::RateLimit => {
                let none = json!({"limits": {"records_per_s": null, "bytes_per_s": null}});
                vec![self.patch("only if it may go as fast as it can", &none)]
            }
            BottleneckKind::Alignment | BottleneckKind::None => Vec::new(),
        }
    }

    /// Twice as many subtasks, as far as there are partitions for them.
    fn more_subtasks(&self) -> Vec<NextStep> {
        let now = self.spec.parallelism;
        let partitions = u32::try_from(self.status.partitions.len()).unwrap_or(u32::MAX);
        let more = now.saturating_mul(2).min(partitions);
        if more <= now {
            return Vec::new();
        }
        vec![
            self.patch(
                "twice as many subtasks, as far as there are partitions for them; counts from the next start on",
                &json!({"parallelism": more}),
            ),
            NextStep {
                why: "have it count now: a stop with a last checkpoint, and a start".to_owned(),
                curl: self.curl.restart(None),
            },
        ]
    }

    fn longer_interval(&self) -> Vec<NextStep> {
        let Some(now) = self.spec.checkpoint.interval else {
            // What a longer one of the commits costs depends on the startup mode; the hint names the setting.
            return Vec::new();
        };
        let now = now.0;
        let longer = (now * 4).min(LONGEST_INTERVAL);
        if longer <= now {
            return Vec::new();
        }
        let body = json!({"checkpoint": {"interval": HumanDuration(longer)}});
        let why = "fewer checkpoints; counts at once, and a crash has more to read again, which an exactly-once sink does not write twice";
        vec![self.patch(why, &body)]
    }

    fn patch(&self, why: &str, body: &Value) -> NextStep {
        NextStep {
            why: why.to_owned(),
            curl: self.curl.send("PATCH", "/spec", Some(body)),
        }
    }
}

fn at_checkpoints(shares: &StageShares, of: &str) -> String {
    if shares.checkpoint > shares.sink_flush {
        return format!(
            "{} {of} it took no records because the last checkpoint of a stop was under way or the store did not confirm the lease",
            percent(shares.checkpoint)
        );
    }
    format!(
        "{} {of} it waited at checkpoints until the sink had made everything durable, and only {} until the sink took records",
        percent(shares.sink_flush),
        percent(shares.sink_write)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
