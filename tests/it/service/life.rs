//! One job from its first start to the restart of the server.

use std::time::Duration;

use handover::{
    model::{
        Code, JobState,
        checkpoint::{CheckpointKind, GroupCommitStatus},
        job_state::DesiredState,
        skip::SkipRequest,
        start::{CheckpointRequest, StartRequest},
        views::DivergenceCause,
    },
    service::{Caller, CheckpointQuery, CheckpointRef},
};
use serde_json::json;

use super::{PATIENCE, Server, caller, failed_with, job, produce, produce_value, succeeded};
use crate::{
    broker::topic,
    support::{Database, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_created_planned_started_checkpointed_and_stopped() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("life", 2).await;
    produce(&topic, 0, 10);
    produce(&topic, 1, 5);
    let job = job();
    server.create(&job, &topic, json!({})).await;

    let plan = server
        .service
        .start_plan(&job, &StartRequest::auto())
        .await
        .unwrap();
    assert_eq!(plan.resolved.totals.to_read, 15);
    let started = server.start_job(&job, json!({"plan": plan.plan})).await;
    let report = succeeded(&started);
    assert_eq!(report["basis"], "startup-mode");
    assert_eq!(report["partitions"], 2);
    server.read_all(&job).await;
    let view = server.view(&job).await;
    assert_eq!((view.state, view.records), (JobState::Running, Some(15)));
    assert_eq!(view.summary, "running; everything readable is read");
    assert_eq!(view.next, []);

    let checkpoint = server
        .service
        .trigger_checkpoint(
            &job,
            &CheckpointRequest {
                timeout: None,
                reason: None,
            },
            &caller(),
        )
        .await
        .unwrap();
    let report = server.end_of(&checkpoint.operation).await;
    assert_eq!(succeeded(&report)["group_commit"]["status"], "ok");
    let offsets = server.offsets(&job).await;
    assert_eq!(offsets.totals.group_behind_checkpoint, Some(0));
    assert!(
        offsets
            .partitions
            .iter()
            .all(
                |partition| partition.divergence.cause == DivergenceCause::None
                    && partition.divergence.group_checkpoint.is_some()
            ),
        "{offsets:?}"
    );

    // What is asked for twice is done once.
    let again = server.start_job(&job, json!({})).await;
    assert_eq!(again.changed, Some(false));
    let named = StartRequest::read(&json!({"from": "earliest"})).unwrap();
    let refused = server.service.start(&job, &named, &caller()).await;
    assert_eq!(refused.unwrap_err().code, Code::JobRunning);

    let stopped = server
        .stop_job(&job, json!({"checkpoint": "required"}))
        .await;
    let report = succeeded(&stopped);
    assert_eq!(report["checkpoint"]["status"], "completed");
    assert_eq!(report["checkpoint"]["group_commit"]["status"], "ok");
    assert_eq!(report["will_replay"], 0);
    let view = server.view(&job).await;
    assert_eq!(view.state, JobState::Stopped);
    assert_eq!(view.desired_state, DesiredState::Stopped);
    assert_eq!(view.owner, None, "the lease is released");
    let again = server.stop_job(&job, json!({})).await;
    assert_eq!(again.changed, Some(false));

    // The offsets of a stopped job move with the topic.
    produce(&topic, 0, 3);
    eventually("the lag of the stopped job", PATIENCE, || async {
        server.offsets(&job).await.totals.checkpoint_lag == Some(3)
    })
    .await;
    let history = server
        .service
        .checkpoints(
            &job,
            &CheckpointQuery {
                limit: 500,
                ..CheckpointQuery::default()
            },
        )
        .await
        .unwrap();
    let kinds: Vec<CheckpointKind> = history.items.iter().map(|item| item.kind).collect();
    assert_eq!(kinds.first(), Some(&CheckpointKind::Stop));
    assert_eq!(kinds.last(), Some(&CheckpointKind::Start));
    assert!(kinds.contains(&CheckpointKind::Manual));
    let last = history.items.last().unwrap();
    assert_eq!(last.group_commit.status, GroupCommitStatus::Off);
    let newest = server
        .service
        .checkpoint(&job, CheckpointRef::Latest)
        .await
        .unwrap();
    assert_eq!(newest.id, history.items[0].id);
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_goes_on_where_it_was() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("reboot", 1).await;
    produce(&topic, 0, 7);
    let (runs, rests) = (job(), job());
    server.create(&runs, &topic, json!({})).await;
    server
        .create(
            &rests,
            &topic,
            json!({"source": {"connection": "main", "topics": [topic], "group_id": "other"}}),
        )
        .await;
    succeeded(&server.start_job(&runs, json!({})).await);
    server.read_all(&runs).await;
    let lock_dir = server.lock_dir.clone();
    server.app.shut_down().await;

    produce(&topic, 0, 2);
    let server = Server::start(&database.url(), lock_dir).await;
    server.in_state(&runs, JobState::Running).await;
    server.read_all(&runs).await;
    let view = server.view(&runs).await;
    assert_eq!(view.records, Some(2), "nothing is read twice");
    assert_eq!(view.desired_state, DesiredState::Running);
    assert_eq!(server.view(&rests).await.state, JobState::Stopped);
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_names_one_operation() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("keys", 1).await;
    let job = job();
    server.create(&job, &topic, json!({})).await;
    succeeded(&server.start_job(&job, json!({})).await);
    let keyed = Caller {
        idempotency_key: Some("k1".to_owned()),
        ..caller()
    };
    let body = |seconds: u64| CheckpointRequest {
        timeout: Some(handover::model::HumanDuration::from_secs(seconds)),
        reason: None,
    };
    let first = server
        .service
        .trigger_checkpoint(&job, &body(9), &keyed)
        .await
        .unwrap();
    let again = server
        .service
        .trigger_checkpoint(&job, &body(9), &keyed)
        .await
        .unwrap();
    assert_eq!(first.operation.id, again.operation.id);
    assert_eq!((first.replayed, again.replayed), (false, true));
    let other = server
        .service
        .trigger_checkpoint(&job, &body(8), &keyed)
        .await;
    assert_eq!(other.unwrap_err().code, Code::IdempotencyKeyReused);
    succeeded(&server.end_of(&first.operation).await);
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_not_what_the_format_says_fails_the_job_and_can_be_left_out() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("poison", 1).await;
    produce(&topic, 0, 3);
    produce_value(&topic, 0, "{");
    produce(&topic, 0, 2);
    let job = job();
    let source =
        json!({"connection": "main", "topics": [topic], "group_id": topic, "format": "json"});
    let errors = json!({"block": "job"});
    server
        .create(&job, &topic, json!({"source": source, "errors": errors}))
        .await;
    succeeded(&server.start_job(&job, json!({})).await);
    server.in_state(&job, JobState::Failed).await;
    let view = server.view(&job).await;
    let failure = view.failure.unwrap();
    assert_eq!(failure.code, Code::BlockedOnRecord);
    assert_eq!(failure.record.unwrap().offset, 3);
    // A start that is refused leaves the failure as it was.
    let refused = server
        .start_job(&job, json!({"from": "shift", "by": 1_000}))
        .await;
    failed_with(&refused, "start-blocked");
    let view = server.view(&job).await;
    assert_eq!(
        (view.state, view.failure.is_some()),
        (JobState::Failed, true)
    );
    let view = server.view(&job).await;
    let line = view
        .next
        .iter()
        .find(|step| step.why.contains("leave exactly that record out"))
        .unwrap();
    let body = line
        .curl
        .split("-d '")
        .nth(1)
        .unwrap()
        .trim_end_matches('\'');
    let skip = SkipRequest::read(&serde_json::from_str(body).unwrap()).unwrap();
    let skip = server.service.skip(&job, &skip, &caller()).await.unwrap();
    succeeded(&server.end_of(&skip.operation).await);
    // It should run, so it begins by itself.
    server.in_state(&job, JobState::Running).await;
    server.read_all(&job).await;
    assert_eq!(server.view(&job).await.records, Some(2));
    server.app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_needs_a_running_job_and_a_plan_needs_to_hold() {
    let database = Database::create().await;
    let locks = tempfile::tempdir().unwrap();
    let server = Server::start(&database.url(), locks.path().to_owned()).await;
    let topic = topic("stale", 1).await;
    let job = job();
    server.create(&job, &topic, json!({})).await;
    let nothing = CheckpointRequest {
        timeout: None,
        reason: None,
    };
    let refused = server
        .service
        .trigger_checkpoint(&job, &nothing, &caller())
        .await;
    assert_eq!(refused.unwrap_err().code, Code::JobNotRunning);

    let plan = server
        .service
        .start_plan(&job, &StartRequest::auto())
        .await
        .unwrap();
    let patch = json!({"labels": {"team": "a"}});
    server
        .service
        .patch_spec(&job, &patch, None, false, &caller())
        .await
        .unwrap();
    let stale = server.start_job(&job, json!({"plan": plan.plan})).await;
    failed_with(&stale, "plan-stale");
    let view = server.view(&job).await;
    assert_eq!(
        (view.state, view.desired_state),
        (JobState::Stopped, DesiredState::Stopped)
    );
    let request = StartRequest::read(&json!({"plan": "pl_none"})).unwrap();
    let gone = server.service.start(&job, &request, &caller()).await;
    assert_eq!(gone.unwrap_err().code, Code::PlanExpired);
    let ready = server.service.readiness().await;
    assert!(ready.ready, "{ready:?}");
    // Not by sleeping: a wait that nobody ends returns at its time.
    let stop = server.service.operation(&stale.id).await.unwrap();
    let again = server
        .service
        .wait_for_operation(&stop.id, Duration::from_secs(1))
        .await
        .unwrap();
    assert_eq!(again.id, stop.id);
    server.app.shut_down().await;
}
