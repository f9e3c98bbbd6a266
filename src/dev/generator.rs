//! Writes order events to a topic at a steady rate, whatever the broker does.
//!
//! While the broker is away, events wait in the producer's queue, which is bounded; when it is full the shop waits too, and
//! goes on in the present when the broker is back, without a burst.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rdkafka::{
    ClientConfig, ClientContext,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer},
};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::orders::{OrderEvent, OrderEvents};

/// Events that wait for the broker at most.
const QUEUE: usize = 10_000;
/// The shortest pause between two looks at the clock; at higher rates several events go out at once.
const LEAST_PAUSE: Duration = Duration::from_millis(10);
/// How long the last events may take at the end.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);

/// What to write.
#[derive(Debug, Clone)]
pub struct GeneratorOptions {
    /// Bootstrap servers.
    pub servers: String,
    /// The topic.
    pub topic: String,
    /// Events a second; 0 writes none.
    pub rate: u32,
}

/// Writes until told to stop. Answers how many events the broker took.
///
/// # Errors
/// When the producer cannot be made.
pub async fn run(
    options: GeneratorOptions,
    mut shop: OrderEvents,
    stop: CancellationToken,
) -> Result<u64, KafkaError> {
    let deliveries = Arc::new(Deliveries::default());
    let producer = ClientConfig::new()
        .set("bootstrap.servers", &options.servers)
        .set("client.id", "handover-dev-orders")
        .set("enable.idempotence", "true")
        .set("linger.ms", "5")
        // Java's partitioner, so that a key's partition is the one that other clients expect.
        .set("partitioner", "murmur2_random")
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", QUEUE.to_string())
        .create_with_context::<_, ThreadedProducer<Context>>(Context(Arc::clone(&deliveries)))?;
    if options.rate == 0 {
        stop.cancelled().await;
        return Ok(0);
    }
    let pause = Duration::from_secs_f64(1.0 / f64::from(options.rate)).max(LEAST_PAUSE);
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut pace = Pace::new(options.rate, Instant::now());
    let mut waiting = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            _ = ticks.tick() => {}
        }
        for _ in 0..pace.due(Instant::now()) {
            let event = waiting
                .take()
                .unwrap_or_else(|| shop.next_event(super::now()));
            if !send(&producer, &options.topic, &event) {
                waiting = Some(event);
                break;
            }
        }
    }
    // Flushing blocks; so does the drop of a client.
    let flushed = tokio::task::spawn_blocking(move || producer.flush(FLUSH_WITHIN)).await;
    if !matches!(flushed, Ok(Ok(()))) {
        tracing::warn!("the last order events did not reach the broker");
    }
    Ok(deliveries.taken.load(Ordering::Relaxed))
}

/// Queues an event; `false` if it has to wait.
fn send(producer: &ThreadedProducer<Context>, topic: &str, event: &OrderEvent) -> bool {
    let record = BaseRecord::to(topic)
        .key(&event.key)
        .payload(&event.value)
        .timestamp(event.timestamp_ms);
    match producer.send(record) {
        Ok(()) => true,
        Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), _)) => false,
        Err((error, _)) => {
            tracing::warn!(error = %error, kafka.topic = topic, "cannot queue an order event; trying it again");
            false
        }
    }
}

/// How many events are due: by the time since the last look, with the fraction carried over.
#[derive(Debug)]
struct Pace {
    rate: f64,
    looked: Instant,
    owed: f64,
}

impl Pace {
    fn new(rate: u32, now: Instant) -> Self {
        Self {
            rate: f64::from(rate),
            looked: now,
            owed: 0.0,
        }
    }

    /// Never more than a second's worth: what was missed (a paused machine, a full queue) stays missed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the rate, which is a u32"
    )]
    fn due(&mut self, now: Instant) -> u32 {
        self.owed += now.duration_since(self.looked).as_secs_f64() * self.rate;
        self.looked = now;
        let whole = self.owed.min(self.rate.max(1.0)).floor();
        self.owed -= self.owed.floor();
        whole as u32
    }
}

#[derive(Debug, Default)]
struct Deliveries {
    taken: AtomicU64,
    away: AtomicBool,
}

/// Says once that the broker is away, and once that it is back.
struct Context(Arc<Deliveries>);

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _message: &str) {}

    fn error(&self, error: KafkaError, reason: &str) {
        let all_down = error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown);
        if all_down && !self.0.away.swap(true, Ordering::Relaxed) {
            tracing::warn!(reason, "the broker is away; order events wait for it");
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, _opaque: ()) {
        match result {
            Ok(_) => {
                self.0.taken.fetch_add(1, Ordering::Relaxed);
                if self.0.away.swap(false, Ordering::Relaxed) {
                    tracing::info!("the broker is back; order events go on");
                }
            }
            Err((error, _)) => tracing::warn!(error = %error, "an order event was lost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_over_uneven_looks() {
        let start = Instant::now();
        let mut pace = Pace::new(20, start);
        let mut now = start;
        let mut sent = 0;
        for step in 0..1_000_u64 {
            now += Duration::from_millis(1 + step % 99);
            sent += pace.due(now);
        }
        let expected = now.duration_since(start).as_secs_f64() * 20.0;
        assert!(
            (f64::from(sent) - expected).abs() < 1.5,
            "{sent} of {expected}"
        );
    }

    #[test]
    fn what_was_missed_is_not_made_up_for() {
        let start = Instant::now();
        let mut pace = Pace::new(20, start);
        assert_eq!(pace.due(start + Duration::from_secs(3_600)), 20);
        assert_eq!(pace.due(start + Duration::from_secs(3_601)), 20);
    }
}
