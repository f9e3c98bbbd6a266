//! What one life of the server is given to bear.

use std::time::Duration;

use fastrand::Rng;
use fault_proxy::CommitFault;
use handover::crash_point::CrashPoint;

use super::Chaos;

/// One life in so many dies at a crash point, if it comes to it.
const CRASHES: u32 = 4;
/// One life in so many loses a connection at a COMMIT, if it comes to it.
const CUTS: u32 = 3;
/// A life that is to come to something gets the time for it.
const LONG_ENOUGH: Duration = Duration::from_millis(1_500);

/// A life of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Life {
    /// How long it lasts at most.
    pub(crate) span: Duration,
    /// Whether that counts from the moment on at which the job reads (or else from the start of the process).
    pub(crate) from_reading: bool,
    /// Where it is to die by itself, in the words of `HANDOVER_CRASH_AT`.
    pub(crate) crash_at: Option<String>,
    /// What is to break at a COMMIT.
    pub(crate) cut: Option<Cut>,
}

/// A connection that breaks at a COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) fault: CommitFault,
    pub(crate) at: Place,
}

/// Which transaction it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The sink's, with rows in it.
    Rows,
    /// The store's, with the checkpoint of a start in it.
    Start,
    /// The store's, with a checkpoint of a running job in it.
    Checkpoint,
    /// Any of the store's.
    Store,
}

impl Place {
    /// Or when the job reads.
    pub(crate) fn is_armed_at_boot(self) -> bool {
        self != Self::Checkpoint
    }
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

    /// Draws the one after so many deaths. Takes as many numbers whatever it draws, so that a seed stays a plan. Every fifth
    /// life ends at a crash point whatever is drawn: chance alone leaves one in some hundred short runs without any.
    pub(crate) fn draw(chaos: &Chaos, deaths: usize, random: &mut Rng) -> Self {
        let (least, most) = chaos.life_ms;
        let span = Duration::from_millis(random.u64(least..=most));
        let from_reading = random.u32(..3) > 0;
        let crashes = random.u32(..CRASHES) == 0 || deaths % 5 == 4;
        let point = random.choice(points()).expect("there are points");
        let again = random.bool();
        let cuts = random.u32(..CUTS) == 0;
        // An answer that is swallowed takes a time-out to be noticed: the life ends before.
        let fault = random.choice([CommitFault::BeforeServer, CommitFault::AnswerDropped]);
        let place = random.choice([
            Place::Rows,
            Place::Rows,
            Place::Start,
            Place::Checkpoint,
            Place::Store,
        ]);
        let crash_at = crashes.then(|| crash_at(point, again));
        Self {
            span: if crashes { span.max(LONG_ENOUGH) } else { span },
            from_reading: from_reading || crashes,
            crash_at,
            cut: cuts.then(|| Cut {
                fault: fault.expect("one of them"),
                at: place.expect("one of them"),
            }),
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

/// The first time, or the second where there is one in a life.
fn crash_at(point: CrashPoint, again: bool) -> String {
    let comes_once = matches!(
        point,
        CrashPoint::LeaseTaken
            | CrashPoint::SinkClaimed
            | CrashPoint::BeforeStartStored
            | CrashPoint::StartStored
            | CrashPoint::SinkAssigned
    );
    let time = if again && !comes_once { 2 } else { 1 };
    format!("{}:{time}", point.name())
}
