//! What one life of the server is given to bear.

use std::time::Duration;

use fastrand::Rng;
use fault_proxy::CommitFault;
use handover::crash_point::CrashPoint;

use super::Chaos;

/// One life in so many dies at a crash point, if it comes to it.
const CRASHES: u32 = 4;
/// One life in so many loses a connection at a COMMIT, if it comes to it.
const CUTS: u32 = 4;

/// A life of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// How long it lasts at most.
    pub(crate) span: Duration,
    /// Whether that counts from the moment on at which the job reads (or else from the start of the process).
    pub(crate) from_reading: bool,
    /// Where it is to die by itself, in the words of `HANDOVER_CRASH_AT`.
    pub(crate) crash_at: Option<String>,
    /// What is to break at a COMMIT, and whether of the sink's target (or else of the store).
    pub(crate) cut: Option<(CommitFault, bool)>,
}

impl Life {
    /// One that ends soon after the job reads, and has nothing else to bear.
    pub(crate) fn short() -> Self {
        Self {
            span: Duration::from_millis(300),
            from_reading: true,
            ..Self::default()
        }
    }

    /// Draws the next one. Takes as many numbers whatever it draws, so that a seed stays a plan.
    pub(crate) fn draw(chaos: &Chaos, random: &mut Rng) -> Self {
        let (least, most) = chaos.life_ms;
        let span = Duration::from_millis(random.u64(least..=most));
        let from_reading = random.u32(..3) > 0;
        let crashes = random.u32(..CRASHES) == 0;
        let point = random.choice(points()).expect("there are points");
        let occasion = random.u32(1..=2);
        let cuts = random.u32(..CUTS) == 0;
        // Swallowed answers take a time-out to be noticed: the life ends before.
        let fault = random.choice([CommitFault::BeforeServer, CommitFault::AnswerDropped]);
        let of_target = random.bool();
        Self {
            span,
            from_reading,
            crash_at: crashes.then(|| format!("{}:{occasion}", point.name())),
            cut: cuts.then(|| (fault.expect("one of them"), of_target)),
        }
    }
}

/// The points that a job comes to while nobody stops it.
fn points() -> Vec<CrashPoint> {
    let all = CrashPoint::ALL.iter().copied();
    all.filter(|point| {
        !matches!(
            point,
            CrashPoint::BeforeStopSettled | CrashPoint::StopSettled
        )
    })
    .collect()
}
