//! Pauses between attempts at something that is away.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause: what is away for an hour is asked sixty times, and is noticed within a minute when it is back.
const LONGEST: Duration = Duration::from_secs(60);

/// Doubling pauses with jitter, so that a hundred jobs that lost one broker do not come back in step.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Begins with a quarter of a second and grows to a minute.
    #[must_use]
    pub fn new() -> Self {
        Self::up_to(LONGEST)
    }

    /// Grows to a bound of its own.
    #[must_use]
    pub fn up_to(longest: Duration) -> Self {
        Self {
            next: FIRST.min(longest),
            longest,
        }
    }

    /// The next pause: between half and the whole of the current step.
    pub fn next_pause(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.longest);
        step.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
    }

    /// Waits for the next pause.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_bound_and_stay_there() {
        let mut backoff = Backoff::new();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next_pause()).collect();
        assert!(pauses[0] <= FIRST && pauses[0] >= FIRST / 2);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST));
        assert!(pauses[19] >= LONGEST / 2);
    }
}
