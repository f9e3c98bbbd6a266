//! Order events of a shop that does not exist, believable enough to look at.
//!
//! Each order lives: it is created, paid, shipped and delivered, or cancelled before that; its events share the order's id
//! as key, so they stay in one partition and in order. The same seed and the same times give the same events.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

/// Orders that are under way at most; beyond it, events are given to those instead of to new ones.
const MAX_OPEN_ORDERS: usize = 400;
/// Customers that order, some often.
const CUSTOMERS: usize = 5_000;

/// What the shop sells: article number, name, price in cents.
const ARTICLES: [(&str, &str, u64); 16] = [
    ("KB-104", "Mechanical keyboard", 8_990),
    ("MS-220", "Wireless mouse", 3_490),
    ("HD-001", "USB-C hub", 4_250),
    ("MN-270", "27 inch monitor", 27_900),
    ("LP-130", "Laptop stand", 3_990),
    ("HS-410", "Headset", 7_450),
    ("WC-080", "Webcam", 5_990),
    ("CB-002", "HDMI cable, 2 m", 1_290),
    ("CB-005", "Network cable, 5 m", 890),
    ("DL-300", "Desk lamp", 4_590),
    ("CH-900", "Office chair", 24_900),
    ("NB-012", "Notebook, dotted", 690),
    ("PN-050", "Ballpoint pens, 10", 590),
    ("SP-077", "Bookshelf speakers", 15_900),
    ("ST-512", "Portable disk, 1 TB", 9_490),
    ("BG-015", "Backpack", 6_990),
];
/// Country, currency, city.
const PLACES: [(&str, &str, &str); 8] = [
    ("DE", "EUR", "Leipzig"),
    ("DE", "EUR", "Hamburg"),
    ("FR", "EUR", "Lyon"),
    ("NL", "EUR", "Utrecht"),
    ("AT", "EUR", "Graz"),
    ("SE", "SEK", "Malmö"),
    ("PL", "PLN", "Gdańsk"),
    ("GB", "GBP", "Leeds"),
];
const PAYMENTS: [&str; 4] = ["card", "paypal", "invoice", "bank-transfer"];
const CARRIERS: [&str; 4] = ["DHL", "GLS", "UPS", "PostNord"];
const REASONS: [&str; 3] = ["customer-request", "payment-declined", "out-of-stock"];

/// One event as it goes to Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderEvent {
    /// The order's id, the record's key.
    pub key: String,
    /// The event as JSON, the record's value.
    pub value: String,
    /// When it happened, milliseconds since 1970; the record's time stamp.
    pub timestamp_ms: i64,
}

/// The shop.
#[derive(Debug)]
pub struct OrderEvents {
    random: fastrand::Rng,
    next_order: u64,
    next_event: u64,
    open: Vec<Order>,
}

#[derive(Debug)]
struct Order {
    id: String,
    customer: String,
    currency: &'static str,
    total_cents: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Created,
    Paid,
    Shipped,
}

impl OrderEvents {
    /// Opens the shop; `first_order` keeps the order ids of one run apart from those of the run before.
    #[must_use]
    pub fn new(seed: u64, first_order: u64) -> Self {
        Self {
            random: fastrand::Rng::with_seed(seed),
            next_order: first_order,
            next_event: 0,
            open: Vec::new(),
        }
    }

    /// What happens next.
    pub fn next_event(&mut self, now: DateTime<Utc>) -> OrderEvent {
        self.next_event += 1;
        let full = self.open.len() >= MAX_OPEN_ORDERS;
        // A little over a third: an order has about three events in its life.
        let opens = self.open.is_empty() || !full && self.random.f64() < 0.36;
        let (key, mut value) = if opens {
            self.create()
        } else {
            let index = self.random.usize(..self.open.len());
            self.advance(index)
        };
        let at = now.to_rfc3339_opts(SecondsFormat::Millis, true);
        let event_id = format!("evt-{:016x}", self.random.u64(..));
        if let Some(members) = value.as_object_mut() {
            members.insert("event_id".to_owned(), event_id.into());
            members.insert("occurred_at".to_owned(), at.into());
        }
        OrderEvent {
            key,
            value: value.to_string(),
            timestamp_ms: now.timestamp_millis(),
        }
    }

    fn create(&mut self) -> (String, Value) {
        let id = format!("ord-{:08}", self.next_order);
        self.next_order += 1;
        // The square of an even number favours the low ones: some customers order often.
        let share = self.random.f64();
        let customer = self.pick_customer(share * share);
        let (country, currency, city) = self.pick(&PLACES);
        let mut total_cents = 0;
        let mut items = Vec::new();
        for _ in 0..self.random.usize(1..=4) {
            let (article, name, price_cents) = self.pick(&ARTICLES);
            let quantity = if self.random.f64() < 0.8 {
                1
            } else {
                self.random.u64(2..=5)
            };
            total_cents += price_cents * quantity;
            items.push(json!({"article": article, "name": name, "quantity": quantity, "price_cents": price_cents}));
        }
        let value = json!({
            "type": "order-created",
            "order_id": id,
            "customer_id": customer,
            "items": items,
            "total_cents": total_cents,
            "currency": currency,
            "ship_to": {"country": country, "city": city},
        });
        self.open.push(Order {
            id: id.clone(),
            customer,
            currency,
            total_cents,
            stage: Stage::Created,
        });
        (id, value)
    }

    fn advance(&mut self, index: usize) -> (String, Value) {
        let cancelled = self.open[index].stage == Stage::Created && self.random.f64() < 0.1;
        if cancelled {
            let order = self.open.swap_remove(index);
            let reason = self.pick(&REASONS);
            let value = about(&order, "order-cancelled", json!({"reason": reason}));
            return (order.id, value);
        }
        match self.open[index].stage {
            Stage::Created => {
                let payment = self.pick(&PAYMENTS);
                let order = &mut self.open[index];
                order.stage = Stage::Paid;
                let paid = json!({"payment": payment, "total_cents": order.total_cents, "currency": order.currency});
                (order.id.clone(), about(order, "order-paid", paid))
            }
            Stage::Paid => {
                let carrier = self.pick(&CARRIERS);
                let tracking = format!("{carrier}{:010}", self.random.u64(..10_000_000_000));
                let order = &mut self.open[index];
                order.stage = Stage::Shipped;
                let shipped = json!({"carrier": carrier, "tracking": tracking});
                (order.id.clone(), about(order, "order-shipped", shipped))
            }
            Stage::Shipped => {
                let order = self.open.swap_remove(index);
                let delivered =
                    json!({"signed_by": if self.random.bool() { "customer" } else { "neighbour" }});
                let value = about(&order, "order-delivered", delivered);
                (order.id, value)
            }
        }
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.random.usize(..choices.len())]
    }

    /// `share` lies between 0 and 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a number between 0 and a few thousand, and any customer will do"
    )]
    fn pick_customer(&self, share: f64) -> String {
        let number = (share * CUSTOMERS as f64) as usize;
        format!("cus-{:05}", number.min(CUSTOMERS - 1))
    }
}

/// An event of an order: its kind and ids first, then what is particular to it.
fn about(order: &Order, kind: &str, details: Value) -> Value {
    let mut event = json!({"type": kind, "order_id": order.id, "customer_id": order.customer});
    if let (Some(event), Value::Object(details)) = (event.as_object_mut(), details) {
        event.extend(details);
    }
    event
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn instant() -> DateTime<Utc> {
        DateTime::from_timestamp_millis(1_796_000_000_123).unwrap()
    }

    fn events(seed: u64, count: usize) -> Vec<OrderEvent> {
        let mut shop = OrderEvents::new(seed, 1);
        (0..count).map(|_| shop.next_event(instant())).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_events() {
        assert_eq!(events(7, 2_000), events(7, 2_000));
        assert_ne!(events(7, 20), events(8, 20));
    }

    #[test]
    fn an_order_is_created_once_and_goes_through_its_stages_in_order() {
        let mut seen: BTreeMap<String, String> = BTreeMap::new();
        for event in events(1, 20_000) {
            let value: Value = serde_json::from_str(&event.value).unwrap();
            assert_eq!(value["order_id"], event.key.as_str());
            assert_eq!(value["occurred_at"], "2026-11-30T00:53:20.123Z");
            let kind = value["type"].as_str().unwrap().to_owned();
            let before = seen.insert(event.key, kind.clone());
            let legal = match kind.as_str() {
                "order-created" => before.is_none(),
                "order-paid" | "order-cancelled" => before.as_deref() == Some("order-created"),
                "order-shipped" => before.as_deref() == Some("order-paid"),
                "order-delivered" => before.as_deref() == Some("order-shipped"),
                _ => false,
            };
            assert!(legal, "{kind} after {before:?}");
        }
        let ended = seen
            .values()
            .filter(|kind| *kind == "order-delivered")
            .count();
        assert!(ended > 1_000, "only {ended} orders were delivered");
    }

    #[test]
    fn the_total_is_the_sum_of_the_items() {
        let created = events(3, 500)
            .into_iter()
            .map(|event| serde_json::from_str::<Value>(&event.value).unwrap())
            .filter(|value| value["type"] == "order-created");
        let mut count = 0;
        for value in created {
            let sum: u64 = value["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| {
                    item["quantity"].as_u64().unwrap() * item["price_cents"].as_u64().unwrap()
                })
                .sum();
            assert_eq!(value["total_cents"], sum);
            count += 1;
        }
        assert!(count > 100, "{count}");
    }
}
