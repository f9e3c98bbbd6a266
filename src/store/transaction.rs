//! Runs statements so that no cancelled caller leaves a connection in the middle of something.
//!
//! sqlx 0.9 counts a transaction as open only when the answer to BEGIN has come. A future that is dropped between the two
//! (a client that hangs up, a `select!`, a time-out) leaves BEGIN on its way: nothing rolls it back, and the connection
//! goes back to the pool inside a transaction that nobody ends. Its locks then stay, and the statements of its next user
//! are never committed although they succeed.
//!
//! Therefore every conversation with the database runs on a task of its own and is only awaited by its caller. The task is
//! never cancelled. If it takes too long, or if the end of its transaction is not known, its connection is closed instead
//! of being used again. Plain statements go the same way: sqlx does read to the end what a dropped one has left, but until
//! then the connection is lost to the pool, and one rule is easier to keep than two.
//!
//! A connection is given back with a deadline, too. The pool asks each one for a sign of life before it takes it back, and
//! waits for the answer without end: with a cut cable its place would never be free again.

use std::{future::Future, pin::Pin};

use sqlx::{Connection, PgConnection};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Result, Store, errors::during, session::Sessions};
use crate::{
    engine::{error::StoreError, ports::JobLease},
    store::leases::hold_lease,
};

/// Statements on a borrowed connection.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'c>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Transaction,
}

impl Store {
    /// Runs a single statement. Several reads that must agree belong into one statement.
    pub(super) async fn query<T, F>(&self, operation: impl Into<String>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        self.run(&self.work, Mode::Plain, operation.into(), work)
            .await
    }

    /// Runs statements in one transaction, which ends with `work`: committed if it succeeded.
    pub(super) async fn in_transaction<T, F>(
        &self,
        operation: impl Into<String>,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        self.run(&self.work, Mode::Transaction, operation.into(), work)
            .await
    }

    /// Runs statements in one transaction whose first statement is the fence. `work` is also given the owner's instance id,
    /// for the history.
    pub(super) async fn fenced<T, F>(
        &self,
        operation: impl Into<String>,
        lease: &JobLease,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection, String) -> Work<'c, T> + Send + 'static,
    {
        let lease = *lease;
        self.in_transaction(operation, move |connection| {
            Box::pin(async move {
                let owner = hold_lease(connection, &lease).await?;
                work(connection, owner).await
            })
        })
        .await
    }

    /// Runs a sign of life, on the connection kept for it.
    pub(super) async fn renewal<T, F>(&self, operation: impl Into<String>, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        self.run(&self.renewals, Mode::Plain, operation.into(), work)
            .await
    }

    async fn run<T, F>(
        &self,
        sessions: &Sessions,
        mode: Mode,
        operation: String,
        work: F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T> + Send + 'static,
    {
        let (sessions, tasks) = (sessions.clone(), self.tasks.clone());
        let task = self
            .tasks
            .spawn(async move { converse(&sessions, &tasks, mode, work).await });
        let outcome = task.await.unwrap_or_else(|error| {
            Err(if error.is_panic() {
                StoreError::Refused("a task of the store crashed".to_owned())
            } else {
                StoreError::Unavailable("the program is ending".to_owned())
            })
        });
        outcome.map_err(|error| during(&operation, error))
    }
}

async fn converse<T, F>(sessions: &Sessions, tasks: &TaskTracker, mode: Mode, work: F) -> Result<T>
where
    F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T>,
{
    let mut connection = sessions.connection().await?;
    let conversation = async {
        match mode {
            Mode::Plain => Conversation::from(work(&mut connection).await),
            Mode::Transaction => transact(&mut connection, work).await,
        }
    };
    let conversation = timeout(sessions.transaction, conversation)
        .await
        .unwrap_or_else(|_| Conversation {
            reusable: false,
            outcome: Err(StoreError::Unavailable(format!(
                "no answer within {} s",
                sessions.transaction.as_secs()
            ))),
        });
    if conversation.reusable {
        // Not awaited: the answer is known.
        tasks.spawn(timeout(sessions.acquire, connection.return_to_pool()));
    } else {
        // Dropped without a word; the server rolls back what was open when it notices the end of the stream.
        drop(connection.detach());
    }
    conversation.outcome
}

/// How statements ended, and whether the connection is known to be outside of a transaction now.
struct Conversation<T> {
    reusable: bool,
    outcome: Result<T>,
}

impl<T> From<Result<T>> for Conversation<T> {
    fn from(outcome: Result<T>) -> Self {
        Self {
            reusable: !matches!(outcome, Err(StoreError::Unavailable(_))),
            outcome,
        }
    }
}

async fn transact<T, F>(connection: &mut PgConnection, work: F) -> Conversation<T>
where
    F: for<'c> FnOnce(&'c mut PgConnection) -> Work<'c, T>,
{
    let mut transaction = match connection.begin().await {
        Ok(transaction) => transaction,
        Err(error) => {
            return Conversation {
                reusable: false,
                outcome: Err(error.into()),
            };
        }
    };
    match work(&mut transaction).await {
        Ok(value) => match transaction.commit().await {
            Ok(()) => Conversation {
                reusable: true,
                outcome: Ok(value),
            },
            Err(error) => Conversation {
                reusable: false,
                outcome: Err(error.into()),
            },
        },
        Err(error) => Conversation {
            reusable: transaction.rollback().await.is_ok(),
            outcome: Err(error),
        },
    }
}
