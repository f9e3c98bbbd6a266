use serde::Serialize;
use utoipa::ToSchema;

use crate::model::event::Event;

/// A page of the history.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct EventList {
    /// The entries, newest first.
    pub items: Vec<Event>,
    /// Cursor of the next page: pass it as `after`; `null` on the last one.
    pub next: Option<String>,
}
