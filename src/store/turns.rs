//! Who changes a job waits for its row. Here it waits before it borrows a connection.
//!
//! PostgreSQL would let them queue as well, but each with a connection: a handful of calls on one job, while its row is
//! locked for a moment, would leave none for all the other jobs, for reads and for checkpoints. So one at a time goes on to
//! the row, and whoever is behind it stands here, in order and with a deadline.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use sqlx::PgConnection;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{Result, Store, errors::during, transaction::Work};
use crate::{engine::error::StoreError, model::ids::JobUid};

/// How long to stand in the queue. Two hundred calls on one job are through in a fraction of it.
const DEADLINE: Duration = Duration::from_secs(15);

/// What is changed by one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Turnstile {
    /// A job's row.
    Job(JobUid),
    /// The specs, which are held against each other.
    Specs,
}

/// The queues in which somebody stands.
#[derive(Debug, Clone, Default)]
pub(super) struct Turns(Arc<Mutex<HashMap<Turnstile, Weak<Semaphore>>>>);

impl Turns {
    async fn take(&self, turnstile: Turnstile) -> Result<OwnedSemaphorePermit> {
        let queue = self.queue(turnstile);
        match timeout(DEADLINE, queue.acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(StoreError::Unavailable(format!(
                "others were before it for {} s",
                DEADLINE.as_secs()
            ))),
        }
    }

    fn queue(&self, turnstile: Turnstile) -> Arc<Semaphore> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&turnstile).and_then(Weak::upgrade) {
            return queue;
        }
        queues.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Semaphore::new(1));
        queues.insert(turnstile, Arc::downgrade(&queue));
        queue
    }
}

impl Store {
    /// Runs statements in one transaction when it is their turn. The turn ends with the statements, also when the caller has
    /// gone away meanwhile.
    pub(super) async fn in_turn<T, F>(
        &self,
        operation: String,
        turnstile: Turnstile,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        let turn = self.turns.take(turnstile).await;
        let turn = turn.map_err(|error| during(&operation, error))?;
        self.in_transaction(operation, move |connection| {
            Box::pin(async move {
                let outcome = work(connection).await;
                drop(turn);
                outcome
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u128) -> Turnstile {
        Turnstile::Job(JobUid(uuid::Uuid::from_u128(number)))
    }

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_has_its_turn_and_others_wait_so_long() {
        let turns = Turns::default();
        let first = turns.take(job(1)).await.unwrap();
        let _other_job = turns.take(job(2)).await.unwrap();
        let begun = tokio::time::Instant::now();
        let late = turns.take(job(1)).await.unwrap_err();
        assert_eq!(begun.elapsed(), DEADLINE);
        assert!(matches!(late, StoreError::Unavailable(_)), "{late}");
        drop(first);
        drop(turns.take(job(1)).await.unwrap());
    }

    #[tokio::test]
    async fn a_queue_in_which_nobody_stands_is_forgotten() {
        let turns = Turns::default();
        for number in 0..100 {
            drop(turns.take(job(number)).await.unwrap());
        }
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
