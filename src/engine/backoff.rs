//! Pauses between attempts at something that is away.

use std::time::Duration;

/// The first pause.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause: what is away for an hour is asked sixty times, and is noticed within a minute when it is back.
const LONGEST: Duration = Duration::from_secs(60);

/// The pause after so many attempts: doubled each time up to a minute, between half and the whole of it, so that a hundred
/// jobs that lost one broker do not come back in step.
#[must_use]
pub fn pause_after(attempts: u32) -> Duration {
    let step = FIRST.saturating_mul(1 << attempts.min(16)).min(LONGEST);
    step.mul_f64(fastrand::f64().mul_add(0.5, 0.5))
}

/// Pauses that grow from attempt to attempt.
#[derive(Debug)]
pub struct Backoff {
    attempts: u32,
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
            attempts: 0,
            longest,
        }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = pause_after(self.attempts).min(self.longest);
        self.attempts = self.attempts.saturating_add(1);
        pause
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
    fn pauses_grow_from_a_quarter_second_to_a_minute() {
        for (attempts, longest) in [(0, 250), (1, 500), (4, 4_000), (8, 60_000), (4_000, 60_000)] {
            let pause = pause_after(attempts).as_millis();
            let longest: u128 = longest;
            assert!(
                pause <= longest && pause >= longest / 2,
                "{attempts}: {pause}"
            );
        }
    }

    #[test]
    fn a_backoff_keeps_to_its_own_bound() {
        let mut backoff = Backoff::up_to(Duration::from_secs(5));
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next_pause()).collect();
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(5)));
        assert_eq!(pauses[19], Duration::from_secs(5));
    }
}
