//! Where a job stands, partition by partition.

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{header, request::Parts},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    csv::{self, CSV},
    extract::{AcceptsJson, JobPath, Query, names},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::{
        code::Code,
        offset::{Offset, PartitionOffsets},
        topic::TopicPartition,
        views::{OffsetsView, PartitionOffsetsView, SourceStatus, SourceView},
    },
    service::{OffsetsQuery, Only, PartitionFilter, Service},
};

problems!(OffsetsProblems: JobNotFound, KafkaError, KafkaUnreachable, StoreUnreachable, KafkaTimeout);

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
    /// With `Accept: text/csv`: which offsets the table holds.
    #[param(inline)]
    column: Option<Column>,
}

/// Which offsets a table holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Column {
    Checkpointed,
    #[default]
    GroupCommitted,
}

/// How the offsets are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Json,
    /// Only for those who name it.
    Csv,
}

impl<S: Send + Sync> FromRequestParts<S> for Shape {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        if names(&parts.headers, CSV) {
            return Ok(Self::Csv);
        }
        AcceptsJson::from_request_parts(parts, state).await?;
        Ok(Self::Json)
    }
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
///
/// With `Accept: text/csv` a table of one column, `topic,partition,offset`, in the form of Kafka's
/// `kafka-consumer-groups --export`. A table cannot say what is unknown: it is refused when its source does not answer, and
/// partitions without an offset are not in it.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/offsets", operation_id = "inspectOffsets", tag = "offsets",
    params(("job" = String, Path, description = "The job's name", example = "orders"), InspectQuery),
    responses(
        (status = 200, description = "The offsets", content((OffsetsView = "application/json"), (String = "text/csv", example = json!("orders,0,8540\norders,1,7001\n")))),
        OffsetsProblems
    ),
)]
pub(super) async fn inspect_offsets(
    State(service): State<Service>,
    shape: Shape,
    JobPath(job): JobPath,
    Query(query): Query<InspectQuery>,
) -> Result<Response, Problem> {
    let column = query.column;
    if shape == Shape::Json && column.is_some() {
        return Err(Problem::new(
            Code::InvalidRequest,
            "column belongs to a table: send Accept: text/csv",
        ));
    }
    if shape == Shape::Csv && query.summary {
        return Err(Problem::new(
            Code::InvalidRequest,
            "a table has partitions and no sums: leave summary out",
        ));
    }
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
    let view = service.offsets(&job, &query).await?;
    match shape {
        Shape::Json => Ok(Json(&view).into_response()),
        Shape::Csv => {
            let table = table(&view, column.unwrap_or_default())?;
            Ok(([(header::CONTENT_TYPE, CSV)], table).into_response())
        }
    }
}

fn table(view: &OffsetsView, column: Column) -> Result<String, Problem> {
    type Read = fn(&PartitionOffsetsView) -> Option<Offset>;
    let (source, read, who): (&SourceView, Read, Code) = match column {
        Column::Checkpointed => (
            &view.sources.checkpoint,
            |partition| partition.checkpointed,
            Code::StoreUnreachable,
        ),
        Column::GroupCommitted => (
            &view.sources.group,
            |partition| partition.group_committed,
            Code::KafkaUnreachable,
        ),
    };
    let code = match (column, source.status) {
        // A job without a checkpoint has an empty table.
        (_, SourceStatus::Ok) | (Column::Checkpointed, SourceStatus::Absent) => None,
        (Column::GroupCommitted, SourceStatus::Timeout) => Some(Code::KafkaTimeout),
        (Column::GroupCommitted, SourceStatus::Error) => Some(Code::KafkaError),
        (_, _) => Some(who),
    };
    if let Some(code) = code {
        let why = source.because.as_deref().unwrap_or("no answer");
        return Err(Problem::new(
            code,
            format!("the source of the table does not answer: {why}"),
        ));
    }
    let offsets: PartitionOffsets = view
        .partitions
        .iter()
        .filter_map(|partition| {
            let name = TopicPartition::new(partition.topic.as_str(), partition.partition);
            Some((name, read(partition)?))
        })
        .collect();
    Ok(csv::write(&offsets))
}
