//! The history of a job, as it is stored.

use super::{
    Service,
    error::{Result, ServiceError},
    operations::{invalid_cursor, page, page_size},
    queries::EventQuery,
};
use crate::model::{
    code::Code, event::EVENT_KINDS, ids::JobName, reader::nearest, views::EventList,
};

impl Service {
    pub(super) async fn find_events(
        &self,
        name: &JobName,
        query: &EventQuery,
    ) -> Result<EventList> {
        let job = self.core.job(name).await?;
        let (limit, read) = page_size(query.limit);
        let before = match &query.after {
            Some(cursor) => Some(cursor.parse::<i64>().map_err(|_| invalid_cursor())?),
            None => None,
        };
        let events = self.core.store.events(job.uid, &query.kinds, read, before);
        let events = events.await?;
        // A misspelt kind would be an empty history without a word.
        let unknown = |kind: &&String| !EVENT_KINDS.contains(&kind.as_str());
        if let Some(kind) = query.kinds.iter().find(unknown)
            && events.iter().all(|event| event.kind != **kind)
        {
            return Err(no_such_kind(kind));
        }
        let (items, next) = page(events, limit, |event| event.id.to_string());
        Ok(EventList { items, next })
    }
}

fn no_such_kind(kind: &str) -> ServiceError {
    let error = ServiceError::new(
        Code::InvalidRequest,
        format!("there is no kind of event '{kind}'"),
    );
    let near = nearest(kind, EVENT_KINDS).map(|near| format!("Did you mean {near}? "));
    error.hint(format!(
        "{}The kinds are {}.",
        near.unwrap_or_default(),
        EVENT_KINDS.join(", ")
    ))
}
