use serde::Serialize;
use utoipa::ToSchema;

use crate::model::attempt::Attempt;

/// A page of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct AttemptList {
    /// The runs.
    pub items: Vec<Attempt>,
    /// Cursor of the next page: pass it as `after`; `null` on the last one.
    pub next: Option<String>,
}
