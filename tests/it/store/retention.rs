//! Thinning, against the same rules written down a second time.

use std::collections::{BTreeMap, BTreeSet};

use handover::engine::ports::CheckpointStore;
use proptest::{prelude::*, test_runner::TestRunner};

use super::World;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

#[derive(Debug, Clone)]
struct Row {
    id: i64,
    kind: String,
    completed: bool,
    superseded: bool,
    automatic: bool,
    /// Seconds since 1970.
    ended_at: i64,
}

/// What the retention keeps, as a person would explain it.
fn kept(rows: &BTreeMap<i64, Row>, now: i64) -> BTreeSet<i64> {
    let newest_first = |completed: bool| {
        rows.values()
            .rev()
            .filter(move |row| row.completed == completed)
    };
    let special =
        |row: &Row| matches!(row.kind.as_str(), "start" | "stop" | "manual") && !row.automatic;
    let mut kept = BTreeSet::new();
    kept.extend(newest_first(true).take(20).map(|row| row.id));
    for (span, within) in [(MINUTE, HOUR), (HOUR, 7 * DAY)] {
        let mut seen = BTreeSet::new();
        for row in newest_first(true) {
            if seen.insert(row.ended_at / span) && now - row.ended_at <= within {
                kept.insert(row.id);
            }
        }
    }
    let completed: Vec<&Row> = newest_first(true).collect();
    for (place, row) in completed.iter().enumerate() {
        if special(row) && now - row.ended_at <= 30 * DAY {
            kept.insert(row.id);
            kept.extend(completed.get(place + 1).map(|before| before.id));
        }
    }
    kept.extend(
        newest_first(true)
            .find(|row| !row.superseded)
            .map(|row| row.id),
    );
    kept.extend(
        newest_first(false)
            .take(50)
            .filter(|row| now - row.ended_at <= 7 * DAY)
            .map(|row| row.id),
    );
    kept.extend(rows.keys().next_back());
    kept
}

async fn rows(world: &World) -> (BTreeMap<i64, Row>, i64) {
    let now: i64 = sqlx::query_scalar("SELECT extract(epoch FROM now())::bigint")
        .fetch_one(&world.sql)
        .await
        .unwrap();
    let rows: Vec<(i64, String, bool, bool, bool, i64)> =
        sqlx::query_as("SELECT id, kind, status = 'completed', superseded, automatic, floor(extract(epoch FROM ended_at))::bigint FROM checkpoints")
            .fetch_all(&world.sql)
            .await
            .unwrap();
    let rows = rows
        .into_iter()
        .map(|(id, kind, completed, superseded, automatic, ended_at)| {
            (
                id,
                Row {
                    id,
                    kind,
                    completed,
                    superseded,
                    automatic,
                    ended_at,
                },
            )
        })
        .collect();
    (rows, now)
}

/// One checkpoint each ten seconds, over `days`: every hundredth failed, a stop and a start every four hours or so, every
/// third of these starts an automatic one, now and then a manual one. What is older than `superseded_after` days is set aside if that is asked for.
async fn fill(world: &World, days: i64, all_superseded: bool) {
    sqlx::query(
        "INSERT INTO checkpoints (job_uid, id, kind, status, epoch, started_at, ended_at, confirmed_at, failure, group_commit_status, superseded, automatic)
         SELECT j.uid, n, CASE WHEN n % 1500 = 0 THEN 'stop' WHEN n % 1500 = 1 THEN 'start' WHEN n % 3001 = 7 THEN 'manual' ELSE 'periodic' END,
                CASE WHEN f THEN 'failed' ELSE 'completed' END, 1, t, t, CASE WHEN NOT f THEN t END,
                CASE WHEN f THEN '{\"code\": \"x\", \"phase\": \"store\", \"summary\": \"\", \"slowest\": []}'::json END, 'off', $2, n % 4500 = 1
         FROM jobs j, generate_series(1, $1) n, LATERAL (SELECT n % 100 = 3 OR n > $1 - 2 AS f, clock_timestamp() - interval '10 seconds' * ($1 - n) AS t) x",
    )
    .bind(days * DAY / 10)
    .bind(all_superseded)
    .execute(&world.sql)
    .await
    .unwrap();
}

/// Compares what is left with what should be, apart from rows so near to a limit that the time of the test decides.
async fn thin_and_compare(
    world: &World,
    lease: &handover::engine::ports::JobLease,
) -> BTreeMap<i64, Row> {
    let (before, now) = rows(world).await;
    let expected = kept(&before, now);
    world.store.thin(lease).await.unwrap();
    let (after, _) = rows(world).await;
    let near_a_limit = |id: &i64| {
        // Also the one before it, which a special one keeps.
        [
            Some(&before[id]),
            before.range(id + 1..).next().map(|(_, row)| row),
        ]
        .into_iter()
        .flatten()
        .any(|row| {
            [HOUR, 7 * DAY, 30 * DAY]
                .iter()
                .any(|limit| (now - row.ended_at - limit).abs() < 2 * MINUTE)
        })
    };
    let left: BTreeSet<i64> = after.keys().copied().collect();
    let wrong: Vec<&Row> = left
        .symmetric_difference(&expected)
        .filter(|id| !near_a_limit(id))
        .map(|id| &before[id])
        .collect();
    assert!(
        wrong.is_empty(),
        "{} of {} rows: {:?}",
        wrong.len(),
        before.len(),
        &wrong[..wrong.len().min(5)]
    );
    after
}

#[tokio::test]
async fn eight_days_of_checkpoints_become_a_few_hundred() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    fill(&world, 8, false).await;
    let left = thin_and_compare(&world, &lease).await;
    // 20, 60 minutes, 168 hours, 4 rows each four hours, 50 failed ones: in the hundreds, from 69,120.
    assert!((300..600).contains(&left.len()), "{}", left.len());
    assert_eq!(left.values().filter(|row| !row.completed).count(), 50);
    assert!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .is_some()
    );
    // Again: only what time has moved over a limit.
    let again = thin_and_compare(&world, &lease).await;
    assert!(
        left.len() - again.len() <= 5,
        "{} and then {}",
        left.len(),
        again.len()
    );
}

#[tokio::test]
async fn after_a_long_silence_the_way_back_is_still_there() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    fill(&world, 1, false).await;
    // The job has stood still for 40 days.
    sqlx::query("UPDATE checkpoints SET ended_at = ended_at - interval '40 days'")
        .execute(&world.sql)
        .await
        .unwrap();
    let newest = world
        .store
        .latest_checkpoint(job.uid)
        .await
        .unwrap()
        .unwrap()
        .id;
    let left = thin_and_compare(&world, &lease).await;
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .id,
        newest
    );
    // The newest 20, and the failed one from which the next number is counted.
    assert_eq!(left.len(), 21);
}

#[tokio::test]
async fn the_newest_that_was_not_set_aside_outlives_those_that_were() {
    let world = World::new().await;
    let (job, _, lease) = world.owned_job("orders").await;
    fill(&world, 1, true).await;
    let standing = 50;
    sqlx::query("UPDATE checkpoints SET superseded = false, ended_at = now() - interval '90 days' WHERE id <= $1")
        .bind(standing)
        .execute(&world.sql)
        .await
        .unwrap();
    let left = thin_and_compare(&world, &lease).await;
    assert!(left.contains_key(&standing) && !left.contains_key(&(standing - 1)));
    assert_eq!(
        world
            .store
            .latest_checkpoint(job.uid)
            .await
            .unwrap()
            .unwrap()
            .id
            .0,
        standing
    );
}

#[tokio::test]
async fn positions_go_with_their_checkpoints_and_other_jobs_stay() {
    let world = World::new().await;
    let (_, _, lease) = world.owned_job("orders").await;
    fill(&world, 1, false).await;
    sqlx::query("INSERT INTO checkpoint_offsets SELECT job_uid, id, 'orders', 0, NULL, id, 1 FROM checkpoints WHERE status = 'completed'")
        .execute(&world.sql)
        .await
        .unwrap();
    let other = world.job("other").await;
    sqlx::query("INSERT INTO checkpoints (job_uid, id, kind, status, epoch, started_at, ended_at, confirmed_at, group_commit_status)
                 SELECT $1, n, 'periodic', 'completed', 1, 'epoch', 'epoch', 'epoch', 'off' FROM generate_series(1, 100) n")
        .bind(other.uid.0)
        .execute(&world.sql)
        .await
        .unwrap();
    world.store.thin(&lease).await.unwrap();
    let orphans = "SELECT count(*) FROM checkpoint_offsets o WHERE NOT EXISTS (SELECT FROM checkpoints c WHERE (c.job_uid, c.id) = (o.job_uid, o.checkpoint_id))";
    assert_eq!(world.count(orphans).await, 0);
    let bare = "SELECT count(*) FROM checkpoints c JOIN jobs j ON j.uid = c.job_uid WHERE j.name = 'orders' AND c.status = 'completed'
                AND NOT EXISTS (SELECT FROM checkpoint_offsets o WHERE (c.job_uid, c.id) = (o.job_uid, o.checkpoint_id))";
    assert_eq!(world.count(bare).await, 0);
    assert_eq!(world.count("SELECT count(*) FROM checkpoints c JOIN jobs j ON j.uid = c.job_uid WHERE j.name = 'other'").await, 100);
}

/// A history that may have come about in any way: kind, status, what stands beside it, and the pause before the next.
#[derive(Debug, Clone)]
struct Made {
    kind: &'static str,
    completed: bool,
    superseded: bool,
    automatic: bool,
    has_output: bool,
    pause_s: i64,
}

fn histories() -> impl Strategy<Value = Vec<Made>> {
    let kind = prop_oneof![
        12 => Just("periodic"),
        1 => prop::sample::select(&["start", "stop", "manual", "skip", "discovery", "failure", "reset"][..]),
    ];
    let pause = prop_oneof![6 => 0..90_i64, 3 => 0..2 * HOUR, 1 => 0..5 * DAY];
    let made = (
        kind,
        0..10_u8,
        0..10_u8,
        any::<bool>(),
        any::<bool>(),
        pause,
    );
    let made = made.prop_map(
        |(kind, status, standing, automatic, has_output, pause_s)| Made {
            kind,
            completed: status > 0,
            superseded: standing > 6,
            automatic: automatic && kind == "start",
            has_output,
            pause_s,
        },
    );
    prop::collection::vec(made, 1..400)
}

async fn write_down(world: &World, history: &[Made]) {
    let mut back = 0;
    let mut ages: Vec<i64> = history
        .iter()
        .rev()
        .map(|made| {
            back += made.pause_s;
            back
        })
        .collect();
    ages.reverse();
    let texts = |of: fn(&Made) -> bool| -> Vec<bool> { history.iter().map(of).collect() };
    let kinds: Vec<&str> = history.iter().map(|made| made.kind).collect();
    sqlx::query("DELETE FROM checkpoints")
        .execute(&world.sql)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO checkpoints (job_uid, id, kind, status, epoch, started_at, ended_at, confirmed_at, failure, group_commit_status, superseded, automatic, has_output)
         SELECT j.uid, n, kind, CASE WHEN completed THEN 'completed' ELSE 'failed' END, 1, at, at, CASE WHEN completed THEN at END,
                CASE WHEN NOT completed THEN '{\"code\": \"x\", \"phase\": \"store\", \"summary\": \"\", \"slowest\": []}'::json END, 'off', superseded, automatic, has_output
         FROM jobs j, unnest($1::text[], $2::bool[], $3::bool[], $4::bool[], $5::bool[], $6::bigint[]) WITH ORDINALITY
              AS made (kind, completed, superseded, automatic, has_output, age, n),
              LATERAL (SELECT clock_timestamp() - interval '1 second' * age AS at) t",
    )
    .bind(kinds)
    .bind(texts(|made| made.completed))
    .bind(texts(|made| made.superseded))
    .bind(texts(|made| made.automatic))
    .bind(texts(|made| made.has_output))
    .bind(ages)
    .execute(&world.sql)
    .await
    .unwrap();
}

/// Laws, whatever the history: what a restart needs is never thinned out, thinning twice is thinning once, and so much is
/// left at most.
#[test]
fn what_a_restart_needs_is_never_thinned_out() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (world, job, lease) = runtime.block_on(async {
        let world = World::new().await;
        let (job, _, lease) = world.owned_job("orders").await;
        (world, job, lease)
    });
    let config = ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&histories(), |history| {
        runtime.block_on(async {
            write_down(&world, &history).await;
            let newest = async || world.store.latest_checkpoint(job.uid).await.unwrap().map(|newest| newest.id);
            let with_output = async || world.count("SELECT coalesce(max(id), 0) FROM checkpoints WHERE status = 'completed' AND has_output").await;
            let next = async || world.store.next_checkpoint_id(job.uid).await.unwrap();
            let needed = (newest().await, with_output().await, next().await);
            world.store.thin(&lease).await.unwrap();
            prop_assert_eq!((newest().await, with_output().await, next().await), needed);
            let (left, _) = rows(&world).await;
            world.store.thin(&lease).await.unwrap();
            let (again, _) = rows(&world).await;
            prop_assert_eq!(left.keys().collect::<Vec<_>>(), again.keys().collect::<Vec<_>>());
            let asked_for = history.iter().filter(|made| made.completed && !made.automatic && !matches!(made.kind, "periodic" | "discovery" | "failure"));
            // The newest, one a minute and one an hour; failed ones; what was asked for, each with the one before it; and those
            // that a restart needs.
            let most = 20 + 61 + 7 * 24 + 1 + 50 + 2 * asked_for.count() + 3;
            prop_assert!(left.len() <= most, "{} of {} are left, {most} may be", left.len(), history.len());
            // The newest completed ones all stay.
            let completed = history.iter().enumerate().rev().filter(|(_, made)| made.completed);
            for (place, _) in completed.take(20) {
                prop_assert!(left.contains_key(&(i64::try_from(place).unwrap() + 1)));
            }
            Ok(())
        })
    });
    outcome.unwrap();
}
