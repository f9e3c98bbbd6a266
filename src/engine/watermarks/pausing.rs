//! The partitions of a subtask that are held back because they are ahead of the others.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

use crate::model::topic::TopicPartition;

/// What the job task wants held back is a value to look at and not a queue of orders: a subtask that was busy with its sink for
/// an hour finds what is wanted now.
pub(in crate::engine) struct Pausing {
    wanted: watch::Receiver<Arc<BTreeSet<TopicPartition>>>,
    paused: BTreeSet<TopicPartition>,
}

/// What is to be done for what is wanted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct Changes {
    /// To be left.
    pub pause: Vec<TopicPartition>,
    /// To be read again.
    pub resume: Vec<TopicPartition>,
}

impl Pausing {
    pub(in crate::engine) fn new(wanted: watch::Receiver<Arc<BTreeSet<TopicPartition>>>) -> Self {
        Self {
            wanted,
            paused: BTreeSet::new(),
        }
    }

    /// Waits until something else is wanted. May be dropped and called again.
    pub(in crate::engine) async fn changed(&mut self) {
        if self.wanted.changed().await.is_err() {
            // The job task is gone, and ends this subtask.
            std::future::pending::<()>().await;
        }
    }

    /// What is wanted now and is not so. Partitions of other subtasks are passed over.
    pub(in crate::engine) fn changes(
        &mut self,
        reads: impl Fn(&TopicPartition) -> bool,
    ) -> Changes {
        let wanted = Arc::clone(&self.wanted.borrow_and_update());
        let resume: Vec<_> = self.paused.difference(&wanted).cloned().collect();
        for partition in &resume {
            self.paused.remove(partition);
        }
        let pause: Vec<_> = wanted
            .difference(&self.paused)
            .filter(|partition| reads(partition))
            .cloned()
            .collect();
        self.paused.extend(pause.iter().cloned());
        Changes { pause, resume }
    }

    /// Whether a partition is held back.
    pub(in crate::engine) fn holds(&self, partition: &TopicPartition) -> bool {
        self.paused.contains(partition)
    }

    /// A partition is given anew.
    pub(in crate::engine) fn forget(&mut self, partition: &TopicPartition) {
        self.paused.remove(partition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_for_partitions_that_are_not_read_are_passed_over() {
        let name = |partition| TopicPartition::new("orders", partition);
        let set = |partitions: &[i32]| Arc::new(partitions.iter().copied().map(name).collect());
        let (sender, receiver) = watch::channel(set(&[]));
        let mut pausing = Pausing::new(receiver);
        sender.send_replace(set(&[0, 1, 7]));
        let reads = |partition: &TopicPartition| partition.partition < 2;
        let first = pausing.changes(reads);
        assert_eq!(
            (first.pause, first.resume),
            (vec![name(0), name(1)], vec![])
        );
        assert_eq!(pausing.changes(reads), Changes::default());
        // One ends while it is held back: it is let go, and whoever asks sees that there is nothing to read.
        sender.send_replace(set(&[0]));
        assert_eq!(pausing.changes(|_| false).resume, [name(1)]);
        assert!(pausing.holds(&name(0)) && !pausing.holds(&name(1)));
        pausing.forget(&name(0));
        assert_eq!(pausing.changes(reads).pause, [name(0)]);
    }
}
