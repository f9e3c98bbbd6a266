//! A topic for dead letters that keeps what it is given, and fails where a test says so.

use std::sync::Mutex;

use async_trait::async_trait;

use super::Pulse;
use crate::{
    engine::{
        error::{ErrorClass, KafkaError},
        ports::{DeadLetter, DeadLetterTopic},
    },
    model::Code,
};

pub(super) struct Letters {
    state: Mutex<State>,
    pulse: Pulse,
}

#[derive(Default)]
struct State {
    delivered: Vec<DeadLetter>,
    tried: usize,
    fails: Option<ErrorClass>,
}

impl Letters {
    pub(super) fn new(pulse: Pulse) -> Self {
        Self {
            state: Mutex::default(),
            pulse,
        }
    }

    pub(super) fn set_fails(&self, fails: Option<ErrorClass>) {
        self.state.lock().unwrap().fails = fails;
    }

    pub(super) fn delivered(&self) -> Vec<DeadLetter> {
        self.state.lock().unwrap().delivered.clone()
    }

    pub(super) fn tried(&self) -> usize {
        self.state.lock().unwrap().tried
    }
}

#[async_trait]
impl DeadLetterTopic for Letters {
    fn name(&self) -> &str {
        "letters"
    }

    async fn deliver(&self, letters: &[DeadLetter]) -> Vec<Result<(), KafkaError>> {
        let mut state = self.state.lock().unwrap();
        let outcomes = letters.iter().map(|letter| {
            state.tried += 1;
            match state.fails {
                None => {
                    state.delivered.push(letter.clone());
                    Ok(())
                }
                Some(class) => Err(KafkaError {
                    operation: "write a dead letter".to_owned(),
                    detail: "no".to_owned(),
                    code: Code::KafkaError,
                    class,
                }),
            }
        });
        let outcomes = outcomes.collect();
        drop(state);
        self.pulse.beat();
        outcomes
    }
}
