//! The history of what happened, and the end of what is kept too long.

use serde_json::Value;

use super::{Result, Store};
use crate::model::ids::JobUid;

impl Store {
    /// Adds an entry to the history.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn add_event(
        &self,
        _job: Option<JobUid>,
        _kind: &str,
        _actor: &str,
        _details: &Value,
    ) -> Result<()> {
        todo!()
    }

    /// Deletes operations and events of more than 30 days, idempotency keys of more than 24 hours, and plans that ended
    /// 15 minutes ago.
    ///
    /// # Errors
    /// See [`StoreError`](crate::engine::error::StoreError).
    pub async fn prune(&self) -> Result<()> {
        todo!()
    }
}
