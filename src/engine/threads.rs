//! Where the engine's blocking work runs: the consumer clients, and the commits to the group.

#[cfg(test)]
use std::time::Duration;

use tokio::task::JoinSet;

/// The longest that one way of a simulated call takes.
#[cfg(test)]
const ANSWER: Duration = Duration::from_secs(2);

/// Threads for what blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Threads {
    /// Threads of their own: the clients of the world block.
    Own,
    /// Tasks of the runtime. The clients of a simulation answer at once, and its time is the runtime's: no thread may run
    /// that the runtime does not see.
    #[cfg(test)]
    Tasks,
}

impl Threads {
    /// Runs a call that blocks.
    pub(super) fn spawn_blocking<T: Send + 'static>(
        self,
        tasks: &mut JoinSet<T>,
        call: impl FnOnce() -> T + Send + 'static,
    ) {
        match self {
            Self::Own => tasks.spawn_blocking(call),
            #[cfg(test)]
            Self::Tasks => tasks.spawn(async move {
                Self::pause(ANSWER).await;
                let answer = call();
                Self::pause(ANSWER).await;
                answer
            }),
        };
    }

    /// Lets some of the runtime's time pass: mostly a small part of `longest`.
    #[cfg(test)]
    pub(super) async fn pause(longest: Duration) {
        let part = fastrand::f64().powi(4);
        tokio::time::sleep(longest.mul_f64(part)).await;
    }

    #[cfg(test)]
    #[expect(
        clippy::disallowed_methods,
        reason = "it takes the place of a detached thread, and ends with its runtime"
    )]
    pub(super) fn spawn_task(task: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(task));
    }
}
