//! Who may write: claims, zombies, and whose progress it is.

use super::*;

fn code(outcome: Result<(), SinkError>) -> Code {
    outcome.unwrap_err().code
}

#[tokio::test]
async fn a_writer_that_ends_in_the_middle_of_a_statement_does_not_keep_its_successor_waiting() {
    let world = World::new().await;
    world
        .run(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
               BEGIN PERFORM pg_sleep(50); RETURN NEW; END $$;
             CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION slow()",
        )
        .await;
    let sink = world.sink(new_job(), &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 0, 1)]).await;
    writer.write(&batch(records(0, 0..3))).await.unwrap();
    let sleeping = "SELECT count(*) FROM pg_stat_activity \
                    WHERE datname = current_database() AND wait_event = 'PgSleep'";
    until("the statement runs", async || {
        world.number(sleeping).await == 1
    })
    .await;
    writer.abort().await;
    writer.close().await;
    // It waits for the claim's lock for a few seconds only; the statement would go on for longer.
    let found = sink.recover(LeaseEpoch(2)).await.unwrap();
    assert_eq!(found, progress(&[(0, 0, 1)]));
    assert_eq!(world.number(sleeping).await, 0);
}

#[tokio::test]
async fn a_former_owner_writes_nothing() {
    let world = World::new().await;
    let job = new_job();
    let (old, new) = (world.sink(job, &raw()), world.sink(job, &raw()));
    let mut zombie = world.writer(&old, 1, &[(0, 0, 1), (1, 0, 1)]).await;
    zombie.write(&batch(records(0, 0..3))).await.unwrap();
    zombie
        .prepare(CheckpointId(2), &positions(&[(0, 3)]))
        .await
        .unwrap();

    assert_eq!(
        new.recover(LeaseEpoch(2)).await.unwrap(),
        progress(&[(0, 3, 1), (1, 0, 1)])
    );
    // Rows, positions, and partitions that the new owner does not know.
    zombie.write(&batch(records(0, 3..5))).await.unwrap();
    assert_eq!(
        code(zombie.prepare(CheckpointId(3), &positions(&[(0, 5)])).await),
        Code::LeaseLost
    );
    assert_eq!(
        code(zombie.write(&batch(records(1, 0..1))).await),
        Code::LeaseLost
    );
    let mut another = old.writer(1).await.unwrap();
    assert_eq!(
        code(another.assign(&beginnings(&[(7, 0, 9)])).await),
        Code::LeaseLost
    );
    assert_eq!(
        old.recover(LeaseEpoch(1)).await.unwrap_err().code,
        Code::LeaseLost
    );

    let mut writer = new.writer(0).await.unwrap();
    writer.assign(&beginnings(&[(0, 3, 1)])).await.unwrap();
    writer.write(&batch(records(0, 3..4))).await.unwrap();
    writer
        .prepare(CheckpointId(4), &positions(&[(0, 4)]))
        .await
        .unwrap();
    assert_eq!(world.offsets(0).await, [0, 1, 2, 3]);
    assert_eq!(
        new.progress().await.unwrap(),
        progress(&[(0, 4, 1), (1, 0, 1)])
    );
    writer.close().await;
}

#[tokio::test]
async fn a_run_that_is_begun_anew_under_the_same_lease_fences_the_former_one() {
    let world = World::new().await;
    let job = new_job();
    let old = world.sink(job, &raw());
    let mut zombie = world.writer(&old, 1, &[(0, 0, 1)]).await;
    let new = world.sink(job, &raw());
    new.recover(LeaseEpoch(1)).await.unwrap();
    zombie.write(&batch(records(0, 0..1))).await.unwrap();
    assert_eq!(
        code(zombie.prepare(CheckpointId(2), &positions(&[(0, 1)])).await),
        Code::LeaseLost
    );
    assert_eq!(world.rows().await, 0);
}

#[tokio::test]
async fn a_claim_waits_for_a_commit_that_is_under_way() {
    let world = World::new().await;
    let job = new_job();
    let (old, new) = (world.sink(job, &raw()), world.sink(job, &raw()));
    let mut zombie = world.writer(&old, 1, &[(0, 0, 1)]).await;
    let gate = Gate::close(&world).await;
    zombie.write(&batch(records(0, 0..3))).await.unwrap();
    gate.somebody_waits(&world).await;
    let claim = tokio::spawn(async move { new.recover(LeaseEpoch(2)).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
                   AND query LIKE '%handover_sink.claims%'";
    until("the claim waits", async || world.number(waiting).await == 1).await;
    assert!(!claim.is_finished());
    gate.open().await;
    assert_eq!(claim.await.unwrap().unwrap(), progress(&[(0, 3, 1)]));
    assert_eq!(world.offsets(0).await, [0, 1, 2]);
    zombie.close().await;
}

#[tokio::test]
async fn a_newer_decision_counts_and_the_same_one_is_not_written_over() {
    let world = World::new().await;
    let job = new_job();
    let sink = world.sink(job, &raw());
    let mut writer = world.writer(&sink, 1, &[(0, 100, 5)]).await;
    // As it stands: nothing to do.
    writer.assign(&beginnings(&[(0, 100, 5)])).await.unwrap();
    // An operator moved the position.
    writer
        .assign(&beginnings(&[(0, 7, 6), (1, 0, 6)]))
        .await
        .unwrap();
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 7, 6), (1, 0, 6)])
    );
    for wrong in [(0, 8, 6), (0, 7, 5)] {
        let mut writer = world.writer(&sink, 1, &[]).await;
        assert_eq!(
            code(writer.assign(&beginnings(&[wrong])).await),
            Code::ProgressMismatch,
            "{wrong:?}"
        );
    }
    assert_eq!(
        sink.progress().await.unwrap(),
        progress(&[(0, 7, 6), (1, 0, 6)])
    );
}

#[tokio::test]
async fn progress_that_something_else_has_changed_is_not_written_over() {
    let world = World::new().await;
    for change in [
        "UPDATE handover_sink.progress SET next_offset = 3",
        "UPDATE handover_sink.progress SET position_id = 9",
        // By just what is about to be written.
        "UPDATE handover_sink.progress SET next_offset = 12",
        "DELETE FROM handover_sink.progress",
    ] {
        let sink = world.sink(new_job(), &raw());
        let mut writer = world.writer(&sink, 1, &[(0, 10, 1)]).await;
        world.run(change).await;
        let before = sink.progress().await.unwrap();
        writer.write(&batch(records(0, 10..12))).await.unwrap();
        let outcome = writer
            .prepare(CheckpointId(2), &positions(&[(0, 12)]))
            .await;
        assert_eq!(code(outcome), Code::ProgressMismatch, "{change}");
        assert_eq!(sink.progress().await.unwrap(), before, "{change}");
        assert_eq!(world.rows().await, 0, "{change}");
    }
}

#[tokio::test]
async fn progress_belongs_to_one_job_of_one_installation_and_one_table() {
    let world = World::new().await;
    let job = new_job();
    let sink = world.sink(job, &raw());
    let mut writer = world.writer(&sink, 3, &[(0, 10, 1)]).await;
    writer.close().await;
    // Deleted and created again: another uid.
    assert!(
        world
            .sink(new_job(), &raw())
            .recover(LeaseEpoch(1))
            .await
            .unwrap()
            .is_empty()
    );
    let elsewhere = SinkOwner {
        install: InstallId(Uuid::new_v4()),
        job,
    };
    let other = world.sink_by(&world.database.url(), elsewhere, &raw());
    assert!(other.recover(LeaseEpoch(1)).await.unwrap().is_empty());
    other.forget().await.unwrap();
    world
        .run("CREATE TABLE public.orders_2 (LIKE public.orders)")
        .await;
    let mut spec = raw();
    spec["table"] = json!("public.orders_2");
    let moved = world.sink(job, &spec);
    assert!(moved.recover(LeaseEpoch(4)).await.unwrap().is_empty());
    // The claim is the job's, whatever its table.
    assert_eq!(
        sink.recover(LeaseEpoch(3)).await.unwrap_err().code,
        Code::LeaseLost
    );
    assert_eq!(sink.progress().await.unwrap(), progress(&[(0, 10, 1)]));
    sink.forget().await.unwrap();
    assert!(sink.progress().await.unwrap().is_empty());
    let mut late = moved.writer(0).await.unwrap();
    assert_eq!(
        code(late.assign(&beginnings(&[(0, 0, 1)])).await),
        Code::LeaseLost
    );
}
