//! Many calls at once on one job.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use reqwest::Method;

use super::{Scene, earliest};
use crate::support::wait::{SOON, eventually, throughout};

/// Calls that change a job wait for its row. Those that wait borrow no connection meanwhile, so that everything else is
/// answered as usual; and all of them are answered in the end.
#[test]
fn calls_that_wait_for_one_job_hold_up_no_other_call() {
    let scene = Scene::new("crowd", 1);
    scene.run(&earliest());
    let path = scene.job.at("/checkpoints");
    let ask = || {
        let answer = scene.job.api.try_send(&Method::POST, &path, None);
        answer.expect("an answer").status
    };
    let database = scene.server.database();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            database.run(&format!(
                "BEGIN; SELECT uid FROM jobs WHERE name = '{}' FOR NO KEY UPDATE; SELECT pg_sleep(3); COMMIT",
                scene.name
            ));
        });
        eventually("the row is locked", SOON, || {
            let asleep: Vec<i64> = database
                .column("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'");
            if asleep == [1] {
                Ok(())
            } else {
                Err("nobody sleeps")
            }
        });
        // Twice as many as the server has connections.
        let calls: Vec<_> = (0..20).map(|_| scope.spawn(ask)).collect();
        throughout(Duration::from_secs(2), || {
            let asked = Instant::now();
            scene.job.checkpoints("");
            let took = asked.elapsed();
            assert!(took < Duration::from_secs(1), "{took:?}");
            let waiting: Vec<i64> = database
                .column("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'");
            assert!(waiting[0] <= 2, "{waiting:?} connections wait for the row");
        });
        for call in calls {
            assert_eq!(call.join().expect("a call"), 202);
        }
    });

    let statuses = std::thread::scope(|scope| {
        let calls: Vec<_> = (0..200).map(|_| scope.spawn(ask)).collect();
        let mut statuses = BTreeMap::<u16, usize>::new();
        for call in calls {
            *statuses.entry(call.join().expect("a call")).or_default() += 1;
        }
        statuses
    });
    assert_eq!(statuses, [(202, 200)].into());
}
