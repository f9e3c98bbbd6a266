//! The numbers of a job over time.

use std::time::Duration;

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    extract::{AcceptsJson, JobPath, Query, Words},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::{
        code::Code, duration::HumanDuration, series::SeriesName, topic::TopicPartition,
        views::SeriesView,
    },
    service::{
        SERIES_COARSE, SERIES_FINE, SERIES_OF_PARTITION, SERIES_RECENT, SERIES_WINDOW, SeriesQuery,
        Service,
    },
};

problems!(SeriesProblems: InvalidRequest, JobNotFound, UnknownPartition, UnknownTopic, StoreUnreachable);

/// Which numbers, and of which time.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SeriesParameters {
    /// Which series; all that there are if nothing is said. Of a partition there are `position_lag`, `checkpoint_lag`,
    /// `group_lag` and `watermark_lag_s`.
    #[serde(default)]
    #[param(value_type = Option<Vec<SeriesName>>, style = Form, explode = false, inline)]
    names: Words<SeriesName>,
    /// A topic that the job reads: with `partition`, the numbers of that partition and not the whole job's.
    topic: Option<String>,
    /// Its partition.
    partition: Option<i32>,
    /// How much time before now, from one step to `24h`; to `15m`, which is then the default, of a partition.
    #[param(value_type = Option<String>, default = "1h", example = "15m")]
    window: Option<HumanDuration>,
    /// The time between two points: a multiple of `10s`, and of `1m` for a window of more than an hour. The shortest that there
    /// is if nothing is said.
    #[param(value_type = Option<String>, example = "10s")]
    step: Option<HumanDuration>,
}

impl SeriesParameters {
    fn read(self) -> Result<SeriesQuery, Problem> {
        let refused = |text: String| Err(Problem::new(Code::InvalidRequest, text));
        let partition = match (&self.topic, self.partition) {
            (Some(topic), Some(number)) => Some(TopicPartition::new(topic.as_str(), number)),
            (None, None) => None,
            _ => return refused("topic and partition name a partition together".to_owned()),
        };
        let (all, usual, longest) = match &partition {
            Some(_) => (
                SeriesName::OF_PARTITION.as_slice(),
                SERIES_OF_PARTITION,
                SERIES_OF_PARTITION,
            ),
            None => (SeriesName::ALL.as_slice(), SERIES_RECENT, SERIES_WINDOW),
        };
        let window = self.window.map_or(usual, |window| window.0);
        let base = if window > SERIES_RECENT {
            SERIES_COARSE
        } else {
            SERIES_FINE
        };
        let step = self.step.map_or(base, |step| step.0);
        let is_multiple = !step.is_zero() && step.as_millis().is_multiple_of(base.as_millis());
        if !is_multiple {
            return refused(format!(
                "step={} does not fit: for a window of {} it is a multiple of {}",
                HumanDuration(step),
                HumanDuration(window),
                HumanDuration(base)
            ));
        }
        if window < step || window > longest {
            return refused(format!(
                "window={} is out of range: use one step ({}) to {}",
                HumanDuration(window),
                HumanDuration(step),
                HumanDuration(longest)
            ));
        }
        let names = match self.names.0 {
            names if names.is_empty() => all.to_vec(),
            names => names,
        };
        if names.iter().any(|name| !all.contains(name)) {
            return refused(
                "names: of a partition there are position_lag, checkpoint_lag, group_lag and watermark_lag_s"
                    .to_owned(),
            );
        }
        Ok(SeriesQuery {
            names,
            partition,
            window: whole_steps(window, step),
            step,
        })
    }
}

/// A window of whole steps.
fn whole_steps(window: Duration, step: Duration) -> Duration {
    let steps = window.as_millis() / step.as_millis().max(1);
    step * u32::try_from(steps).unwrap_or(u32::MAX)
}

/// Show numbers of a job over time
///
/// Kept in the server's memory: the last hour at ten seconds and the last day at a minute. They outlive a stop of the job and
/// not a restart of the server; `since` says from when on there are any. Of each partition the last 15 minutes are kept at ten
/// seconds. A number that is not known is `null`, never 0.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/series", operation_id = "jobSeries", tag = "jobs",
    params(("job" = String, Path, description = "The job's name", example = "orders"), SeriesParameters),
    responses((status = 200, description = "The numbers", body = SeriesView), SeriesProblems),
)]
pub(super) async fn job_series(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    Query(parameters): Query<SeriesParameters>,
) -> Result<Json<SeriesView>, Problem> {
    Ok(Json(service.series(&job, &parameters.read()?).await?))
}
