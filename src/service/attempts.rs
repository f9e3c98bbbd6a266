//! The runs of a job, with what the one that is under way has done so far.

use super::{
    Service,
    error::Result,
    operations::{invalid_cursor, page, page_size},
    queries::AttemptQuery,
};
use crate::model::{ids::JobName, views::AttemptList};

impl Service {
    pub(super) async fn find_attempts(
        &self,
        name: &JobName,
        query: &AttemptQuery,
    ) -> Result<AttemptList> {
        let job = self.core.job(name).await?;
        let (limit, read) = page_size(query.limit);
        let before = match &query.after {
            Some(cursor) => Some(cursor.parse::<i64>().map_err(|_| invalid_cursor())?),
            None => None,
        };
        let status = job.shared().status();
        let mut attempts = self.core.store.attempts(job.uid, read, before).await?;
        if let Some(status) = status
            && let Some(running) = attempts
                .iter_mut()
                .find(|attempt| attempt.outcome.is_none() && attempt.epoch == status.epoch)
        {
            running.records = Some(status.records);
            running.bytes = Some(status.bytes);
        }
        let (items, next) = page(attempts, limit, |attempt| attempt.attempt.to_string());
        Ok(AttemptList { items, next })
    }
}
