//! The store dies without a word under a running job and comes back.

use super::Scene;
use crate::support::{
    Cluster,
    kafka::Kafka,
    server::{Output, TestServer},
};

pub(super) fn run(file: &'static str) {
    let database = Cluster::create();
    let kafka = Kafka::shared();
    let server = TestServer::start_with(&kafka, database.url(), Output::Followed);
    let scene = Scene::with(server, kafka, "store-gone", 1);
    scene.produce(0, 10);
    scene.put_and_start(&scene.spec("earliest"));
    scene.await_exactly(0, &[(0, 0..10)]);
    scene.job.checkpoint();
    let before = scene.job.view();

    database.control(&["kill"]);
    scene.produce(0, 10);
    scene.await_view("the job waits", |view| {
        view["health"]["status"] == "waiting" && view["waiting"][0]["code"] == "store-unreachable"
    });
    let mut page = scene.page(file);
    page.run("Look");

    database.control(&["up", "--fast"]);
    page.run("Verify");
    page.end();

    // The same run, nothing lost and nothing twice.
    scene.produce(0, 10);
    scene.await_exactly(0, &[(0, 0..30)]);
    assert_eq!(scene.job.view()["owner"], before["owner"]);
    scene.job.stop();
    assert_eq!(scene.checkpointed(), [(0, Some(30))].into());
}
