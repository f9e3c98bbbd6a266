//! What a run tells for the history. Whoever follows its status writes it there.

use std::{collections::VecDeque, sync::Arc};

use serde_json::Value;

use crate::model::job_status::StatusNote;

/// Notes that are kept for a reader who is late; the oldest go.
const KEPT: usize = 64;

/// The newest notes of a run.
#[derive(Debug, Default)]
pub(super) struct Notes {
    told: u64,
    newest: Arc<VecDeque<StatusNote>>,
}

impl Notes {
    pub(super) fn tell(&mut self, kind: &'static str, details: Value) {
        self.told += 1;
        let newest = Arc::make_mut(&mut self.newest);
        newest.push_back(StatusNote {
            number: self.told,
            kind,
            details,
        });
        if newest.len() > KEPT {
            newest.pop_front();
        }
    }

    pub(super) fn newest(&self) -> Arc<VecDeque<StatusNote>> {
        Arc::clone(&self.newest)
    }
}
