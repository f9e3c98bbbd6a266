//! A model of the topic for dead letters: what it answers is delivered, what it does not answer may be.

use std::sync::Arc;

use async_trait::async_trait;

use super::world::{Defect, Peer, ServerId, World};
use crate::{
    engine::{
        error::{ErrorClass, KafkaError},
        ports::{DeadLetter, DeadLetterTopic},
    },
    model::code::Code,
};

/// The topic as one server writes to it.
pub(super) struct ModelLetters {
    pub(super) world: Arc<World>,
    pub(super) server: ServerId,
    /// Whether it refuses some letters for good: those of each third offset.
    pub(super) refuses: bool,
}

fn number(letter: &DeadLetter, name: &str) -> i64 {
    let name = format!("handover.error.{name}");
    let header = letter
        .headers
        .iter()
        .find(|header| header.name == name.as_bytes());
    let value = header.and_then(|header| header.value.as_deref()).unwrap();
    std::str::from_utf8(value).unwrap().parse().unwrap()
}

fn refused(class: ErrorClass) -> KafkaError {
    KafkaError {
        operation: "write a dead letter".to_owned(),
        detail: "it was not taken".to_owned(),
        code: Code::KafkaError,
        class,
    }
}

#[async_trait]
impl DeadLetterTopic for ModelLetters {
    fn name(&self) -> &str {
        "letters"
    }

    async fn deliver(&self, letters: &[DeadLetter]) -> Vec<Result<(), KafkaError>> {
        let records: Vec<(i32, i64)> = letters
            .iter()
            .map(|letter| {
                let partition = i32::try_from(number(letter, "partition")).unwrap();
                (partition, number(letter, "offset"))
            })
            .collect();
        let refuses = self.refuses;
        let answered = self.world.call(self.server, Peer::Broker, move |state| {
            let outcomes = records.iter().map(|(partition, at)| {
                if refuses && at % 3 == 0 {
                    return Err(refused(ErrorClass::Deterministic));
                }
                state.trace.note(format_args!("a letter: {partition}@{at}"));
                if !(state.has(Defect::LetterLost) && state.happens(300)) {
                    state.judge_letter(*partition, *at);
                }
                Ok(())
            });
            outcomes.collect::<Vec<_>>()
        });
        let away = || {
            letters
                .iter()
                .map(|_| Err(refused(ErrorClass::Infrastructure)))
                .collect()
        };
        answered.await.unwrap_or_else(away)
    }
}
