//! Waits for conditions, never for time.

use std::{
    future::Future,
    time::{Duration, Instant},
};

/// Asks again and again until the condition holds.
///
/// # Panics
/// When it does not hold within the deadline.
pub(crate) async fn eventually<F, Fut>(what: &str, deadline: Duration, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let end = Instant::now() + deadline;
    while !condition().await {
        assert!(Instant::now() < end, "{what}: not within {deadline:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
