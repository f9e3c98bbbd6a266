//! The schema `handover_sink` in the target, and roles that may not make it.

use super::*;

/// A role that may write to the table and to nothing else.
struct Clerk {
    name: String,
    url: String,
    world: World,
}

impl Clerk {
    async fn new() -> Self {
        let world = World::new().await;
        let name = format!("clerk_{}", Uuid::new_v4().simple());
        world
            .run(&format!("CREATE ROLE {name} LOGIN PASSWORD 'hush'"))
            .await;
        world
            .run(&format!("GRANT INSERT ON orders TO {name}"))
            .await;
        let url = world.database.url();
        let (_, place) = url.split_once('@').unwrap();
        Self {
            url: format!("postgres://{name}:hush@{place}"),
            name,
            world,
        }
    }

    async fn end(self) {
        self.world
            .run(&format!("DROP OWNED BY {}", self.name))
            .await;
        self.world.run(&format!("DROP ROLE {}", self.name)).await;
    }
}

#[tokio::test]
async fn a_role_that_may_not_create_is_told_what_an_owner_has_to_run() {
    let clerk = Clerk::new().await;
    let world = &clerk.world;
    let sink = world.sink_by(&clerk.url, world.owner(new_job()), &raw());
    assert!(sink.progress().await.unwrap().is_empty());
    let error = sink.recover(LeaseEpoch(1)).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Deterministic);
    let faults = sinks(&clerk.url).check(&sink_spec(&raw())).await.unwrap();
    let fault = faults
        .iter()
        .find(|fault| fault.pointer == "/sink/connection")
        .unwrap();
    for words in [&error.detail, &fault.message] {
        let (_, lines) = words.split_once("run: ").unwrap();
        assert!(lines.starts_with("CREATE SCHEMA handover_sink;"), "{lines}");
    }
    // As written.
    let (_, lines) = fault.message.split_once("run: ").unwrap();
    world.run(lines).await;
    assert!(sink.recover(LeaseEpoch(1)).await.unwrap().is_empty());
    let mut writer = sink.writer(0).await.unwrap();
    writer.assign(&beginnings(&[(0, 0, 1)])).await.unwrap();
    writer.write(&batch(records(0, 0..2))).await.unwrap();
    writer
        .prepare(CheckpointId(2), &positions(&[(0, 2)]))
        .await
        .unwrap();
    assert_eq!(world.rows().await, 2);
    // Each right that is taken away is asked for, and no more.
    for right in [
        "USAGE ON SCHEMA handover_sink",
        "SELECT, INSERT, UPDATE, DELETE ON handover_sink.progress",
    ] {
        world
            .run(&format!("REVOKE {right} FROM {}", clerk.name))
            .await;
        let error = sink.progress().await.unwrap_err();
        let grant = format!("run: GRANT {right} TO \"{}\";", clerk.name);
        assert!(error.detail.ends_with(&grant), "{error}");
        world.run(&format!("GRANT {right} TO {}", clerk.name)).await;
    }
    // Taken away while it runs.
    world
        .run(&format!("REVOKE INSERT ON orders FROM {}", clerk.name))
        .await;
    writer.write(&batch(records(0, 2..3))).await.unwrap();
    let error = writer
        .prepare(CheckpointId(3), &positions(&[(0, 3)]))
        .await
        .unwrap_err();
    assert_eq!(error.class, ErrorClass::Deterministic);
    let grant = format!(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON \"public\".\"orders\" TO \"{}\";",
        clerk.name
    );
    assert!(error.detail.contains(&grant), "{error}");
    writer.close().await;
    clerk.end().await;
}

#[tokio::test]
async fn jobs_that_begin_at_once_make_the_schema_together() {
    let world = World::new().await;
    let claims = (0..8).map(|_| {
        let sink = world.sink(new_job(), &raw());
        tokio::spawn(async move { sink.recover(LeaseEpoch(1)).await })
    });
    for claim in claims.collect::<Vec<_>>() {
        claim.await.unwrap().unwrap();
    }
    assert_eq!(
        world
            .number("SELECT count(*) FROM handover_sink.claims")
            .await,
        8
    );
}
