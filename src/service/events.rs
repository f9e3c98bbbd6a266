//! The history of a job, as it is stored.

use super::{
    Service,
    error::{Result, ServiceError},
    operations::{invalid_cursor, page, page_size},
    queries::EventQuery,
};
use crate::model::{code::Code, event::EventKind, ids::JobName, reader::nearest, views::EventList};

impl Service {
    pub(super) async fn find_events(
        &self,
        name: &JobName,
        query: &EventQuery,
    ) -> Result<EventList> {
        // A misspelt kind would be an empty history without a word, whatever is stored.
        let kinds: Vec<EventKind> = {
            let words = query.kinds.iter();
            words.map(|word| kind_of(word)).collect::<Result<_>>()?
        };
        let job = self.core.job(name).await?;
        let (limit, read) = page_size(query.limit);
        let before = match &query.after {
            Some(cursor) => Some(cursor.parse::<i64>().map_err(|_| invalid_cursor())?),
            None => None,
        };
        let events = self.core.store.events(job.uid, &kinds, read, before);
        let (items, next) = page(events.await?, limit, |event| event.id.to_string());
        Ok(EventList { items, next })
    }
}

fn kind_of(word: &str) -> Result<EventKind> {
    EventKind::of_word(word).ok_or_else(|| no_such_kind(word))
}

fn no_such_kind(kind: &str) -> ServiceError {
    let error = ServiceError::new(
        Code::InvalidRequest,
        format!("there is no kind of event '{kind}'"),
    );
    let near = nearest(kind, EventKind::WORDS).map(|near| format!("Did you mean {near}? "));
    error.hint(format!(
        "{}The kinds are {}.",
        near.unwrap_or_default(),
        EventKind::WORDS.join(", ")
    ))
}
