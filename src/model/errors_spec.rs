//! What a job does with a record that it cannot process, as its spec says it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reader::ObjectReader;

/// What happens when something would fail the same way again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ErrorsSpec {
    /// What a failure of one record, or of one partition, stops.
    #[serde(default)]
    #[schema(default = "partition")]
    pub block: Block,
}

/// What a failure of one record, or of one partition, stops.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Block {
    /// The partition is parked exactly before it; the others go on.
    #[default]
    Partition,
    /// The job fails, with a last checkpoint exactly before it.
    Job,
}

impl ErrorsSpec {
    pub(super) fn read(mut reader: ObjectReader<'_>) -> Self {
        let spec = Self {
            block: reader.or("block", Block::default()),
        };
        reader.finish();
        spec
    }
}
