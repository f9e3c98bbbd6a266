//! Where a job stands, partition by partition.

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{AcceptsJson, JobPath, Query},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::{code::Code, views::OffsetsView},
    service::{OffsetsQuery, Only, PartitionFilter, Service},
};

problems!(OffsetsProblems: JobNotFound, StoreUnreachable);

/// What to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct InspectQuery {
    /// Which partitions, with ranges; a topic alone means all of its partitions.
    #[param(example = "orders:0,3-5")]
    partitions: Option<String>,
    /// Only notable partitions.
    #[param(inline)]
    only: Option<OnlyWord>,
    /// Leave the partitions out and show the sums.
    #[serde(default)]
    #[param(required = false, default = false)]
    summary: bool,
    /// Ask the brokers in any case; otherwise answers of the last second are used again.
    #[serde(default)]
    #[param(required = false, default = false)]
    fresh: bool,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum OnlyWord {
    Lagging,
    Diverged,
    Flagged,
}

/// Compare the offsets
///
/// Live position, checkpoint, consumer group and the ends of the logs side by side, for a job that runs as for one that is
/// stopped. Every offset is the next one to read. Unknown is `null`, and each source says how old its numbers are: the view
/// does not vanish when a broker or the database is away.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/offsets", operation_id = "inspectOffsets", tag = "offsets",
    params(("job" = String, Path, description = "The job's name", example = "orders"), InspectQuery),
    responses((status = 200, description = "The offsets", body = OffsetsView), OffsetsProblems),
)]
pub(super) async fn inspect_offsets(
    State(service): State<Service>,
    _: AcceptsJson,
    JobPath(job): JobPath,
    Query(query): Query<InspectQuery>,
) -> Result<Json<OffsetsView>, Problem> {
    let partitions = query
        .partitions
        .as_deref()
        .map(PartitionFilter::parse)
        .transpose()
        .map_err(|fault| Problem::new(Code::InvalidRequest, format!("partitions: {fault}")))?;
    let query = OffsetsQuery {
        partitions,
        only: query.only.map(|word| match word {
            OnlyWord::Lagging => Only::Lagging,
            OnlyWord::Diverged => Only::Diverged,
            OnlyWord::Flagged => Only::Flagged,
        }),
        summary: query.summary,
        fresh: query.fresh,
    };
    Ok(Json(service.offsets(&job, &query).await?))
}
