//! Connections that break at a COMMIT, again and again.

use std::time::Instant;

use fault_proxy::CommitFault;

use super::*;
use crate::support::proxied;

/// Two hundred COMMITs in turn: cut before the target has them, cut after it, and at times two in a row. Every row is there
/// once, and the progress says so.
#[tokio::test]
async fn two_hundred_commits_are_cut_and_every_row_is_there_once() {
    let world = World::new().await;
    let (proxy, url) = proxied(&world.database.url());
    let sink = world.sink_by(&url, world.owner(new_job()), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1), (1, 0, 1)]).await;
    let mut cuts = 0;
    let mut next = 0;
    for round in 2.. {
        let faults: &[CommitFault] = match round % 8 {
            0 => &[CommitFault::BeforeServer, CommitFault::BeforeServer],
            // What is asked after the first one is written again, and loses its answer then.
            4 => &[CommitFault::BeforeServer, CommitFault::AnswerDropped],
            1 | 3 | 5 | 7 => &[CommitFault::AnswerDropped],
            _ => &[CommitFault::BeforeServer],
        };
        for fault in faults {
            proxy.arm(*fault, 1);
        }
        cuts += faults.len() as u64;
        let both = [records(0, next..next + 5), records(1, next..next + 5)].concat();
        writer.write(&batch(both)).await.unwrap();
        next += 5;
        let reached = positions(&[(0, next), (1, next)]);
        // What the writer is told of the trouble passes, and is asked again, as the engine does.
        let end = Instant::now() + DEADLINE;
        while let Err(trouble) = writer.prepare(CheckpointId(round), &reached).await {
            assert_eq!(trouble.class, ErrorClass::Infrastructure, "{trouble}");
            assert!(
                Instant::now() < end,
                "not durable within {DEADLINE:?}: {trouble}"
            );
            // The flusher waits out a pause of its own.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(proxy.effective().total(), cuts, "round {round}");
        if cuts >= 200 {
            break;
        }
    }
    let effective = proxy.effective();
    assert!(
        effective.before_server > 0 && effective.answer_dropped > 0,
        "{effective:?}"
    );
    for partition in [0, 1] {
        assert_eq!(
            world.offsets(partition).await,
            (0..next).collect::<Vec<_>>()
        );
    }
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, next, 1), (1, next, 1)])
    );
    writer.close().await;
}
