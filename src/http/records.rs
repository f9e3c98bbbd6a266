//! A look at single records.

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    extract::{AcceptsJson, CalledBy, JobPath, Query},
    openapi::problems,
    problem::Problem,
};
use crate::{
    model::{code::Code, offset::Offset, topic::TopicPartition, views::RecordsView},
    service::{RecordsQuery, Service},
};

problems!(RecordsProblems: JobNotFound, RecordNotFound, OffsetOutOfRange, UnknownPartition, UnknownTopic, KafkaError, KafkaNotAuthorized, KafkaUnreachable, StoreUnreachable, KafkaTimeout);

/// Most records of one look.
const MOST: usize = 20;

/// Which records to show.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct LookQuery {
    /// A topic that the job reads.
    topic: String,
    /// Its partition.
    partition: i32,
    /// The offset of the first record, for example the one that the job's failure names.
    #[param(minimum = 0)]
    offset: i64,
    /// How many at most.
    #[param(minimum = 1, maximum = 20, default = 1)]
    limit: Option<usize>,
    /// How keys and values are shown.
    #[serde(default, rename = "as")]
    #[param(inline)]
    form: Form,
}

/// How bytes are shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
enum Form {
    /// As they are.
    #[default]
    Base64,
    /// As UTF-8, with what is none replaced.
    Text,
}

/// Look at records
///
/// Up to 20 from an offset on, as a job of this isolation sees them, each cut at 64 KiB. An offset that holds no record (a
/// transaction's marker, or compacted away) is `record-not-found`, and names the next one that does. Every look is noted in
/// the history before it is answered.
#[utoipa::path(
    get, path = "/api/v1/jobs/{job}/records", operation_id = "lookAtRecords", tag = "offsets",
    params(("job" = String, Path, description = "The job's name", example = "orders"), LookQuery),
    responses((status = 200, description = "The records", body = RecordsView), RecordsProblems),
)]
pub(super) async fn look_at_records(
    State(service): State<Service>,
    _: AcceptsJson,
    CalledBy(caller): CalledBy,
    JobPath(job): JobPath,
    Query(query): Query<LookQuery>,
) -> Result<Json<RecordsView>, Problem> {
    let refused = |fault: String| Problem::new(Code::InvalidRequest, fault);
    let offset = Offset::new(query.offset)
        .ok_or_else(|| refused(format!("offset: {} is no offset", query.offset)))?;
    let limit = query.limit.unwrap_or(1);
    if !(1..=MOST).contains(&limit) {
        return Err(refused(format!("limit: must lie between 1 and {MOST}")));
    }
    let query = RecordsQuery {
        partition: TopicPartition::new(query.topic.as_str(), query.partition),
        offset,
        limit,
        as_text: query.form == Form::Text,
    };
    Ok(Json(service.records(&job, &query, &caller).await?))
}
