//! The services with everything real below them: jobs are created, started, moved and stopped as a caller would do it.

mod at_rest;
mod life;
mod outages;
mod start_positions;
mod startup_modes;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use handover::{
    app::{App, Parts},
    engine::ports::Clock,
    kafka::{Cluster as KafkaBrokers, KafkaConnection},
    model::{
        JobName, JobState,
        operation::{Operation, OperationStatus},
        start::{StartRequest, StopRequest},
        views::{JobView, OffsetsView},
    },
    service::{Caller, OffsetsQuery, Service, Settings, SpecPrecondition},
    sinks::{LogOutput, Sinks},
    store::{Store, StoreConfig},
};
use rdkafka::producer::{BaseRecord, Producer};
use serde_json::{Value, json};

use crate::{broker, support::eventually};

/// How long anything may take; an idle machine needs a fraction of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> chrono::DateTime<chrono::Utc> {
        chrono::Utc::now()
    }
}

/// One server on a database, as a process would be one.
pub(crate) struct Server {
    pub(crate) app: App,
    pub(crate) service: Service,
    /// Where its lock file lies; kept so that the next server of the same test uses it too.
    pub(crate) lock_dir: PathBuf,
}

impl Server {
    /// Starts one on the broker of the tests.
    pub(crate) async fn start(database: &str, lock_dir: PathBuf) -> Self {
        Self::start_on(database, lock_dir, &broker::bootstrap()).await
    }

    pub(crate) async fn start_on(database: &str, lock_dir: PathBuf, brokers: &str) -> Self {
        let store = Store::connect_lazy(&StoreConfig {
            url: database.to_owned(),
            max_connections: 4,
        })
        .unwrap();
        store.migrate().await.unwrap();
        let connection = KafkaConnection::new(
            "main",
            BTreeMap::from([("bootstrap.servers".to_owned(), brokers.to_owned())]),
            false,
        )
        .unwrap();
        let cluster: Arc<dyn handover::engine::ports::KafkaCluster> =
            Arc::new(KafkaBrokers::new(connection));
        let sinks = Sinks::new(LogOutput::new(std::io::sink()).unwrap());
        let app = App::start(Parts {
            store,
            clusters: BTreeMap::from([("main".to_owned(), cluster)]),
            sinks: Arc::new(sinks),
            clock: Arc::new(SystemClock),
            settings: Settings {
                public_url: "http://localhost:7070".to_owned(),
                instance: "test".to_owned(),
                host: "test-host".to_owned(),
                lock_dir: lock_dir.clone(),
                lease_ttl: Duration::from_secs(5),
                shutdown_deadline: Duration::from_secs(20),
            },
        })
        .unwrap();
        let service = app.service();
        Self {
            app,
            service,
            lock_dir,
        }
    }

    /// Creates a job that reads `topic` into a blackhole; `more` is merged into the spec.
    pub(crate) async fn create(&self, job: &JobName, topic: &str, more: Value) {
        let mut document = json!({
            "source": {"connection": "main", "topics": [topic], "group_id": topic},
            "startup_mode": {"mode": "earliest"},
            "checkpoint": {"interval": "1s"},
            "sink": {"type": "blackhole"},
        });
        for (name, value) in more.as_object().unwrap() {
            document[name] = value.clone();
        }
        let put = self
            .service
            .put_spec(
                job,
                &document,
                SpecPrecondition::default(),
                false,
                false,
                &caller(),
            )
            .await
            .unwrap();
        assert!(put.1, "created");
    }

    /// Starts a job and waits for the outcome.
    pub(crate) async fn start_job(&self, job: &JobName, body: Value) -> Operation {
        let request = StartRequest::read(&body).unwrap();
        let accepted = self.service.start(job, &request, &caller()).await.unwrap();
        self.end_of(&accepted.operation).await
    }

    /// Stops a job and waits for the outcome.
    pub(crate) async fn stop_job(&self, job: &JobName, body: Value) -> Operation {
        let request = StopRequest::read(&body).unwrap();
        let accepted = self.service.stop(job, &request, &caller()).await.unwrap();
        self.end_of(&accepted.operation).await
    }

    pub(crate) async fn end_of(&self, operation: &Operation) -> Operation {
        let ended = self
            .service
            .wait_for_operation(&operation.id, PATIENCE)
            .await
            .unwrap();
        assert!(ended.status.is_final(), "{ended:?}");
        ended
    }

    pub(crate) async fn view(&self, job: &JobName) -> JobView {
        self.service.job(job).await.unwrap()
    }

    pub(crate) async fn offsets(&self, job: &JobName) -> OffsetsView {
        let query = OffsetsQuery {
            fresh: true,
            ..OffsetsQuery::default()
        };
        self.service.offsets(job, &query).await.unwrap()
    }

    /// Waits until the job has read all there is.
    pub(crate) async fn read_all(&self, job: &JobName) {
        eventually("everything is read", PATIENCE, || async {
            let offsets = self.offsets(job).await;
            offsets.totals.position_lag == Some(0) && offsets.totals.unknown_partitions == 0
        })
        .await;
    }

    pub(crate) async fn in_state(&self, job: &JobName, state: JobState) {
        eventually(state.name(), PATIENCE, || async {
            self.view(job).await.state == state
        })
        .await;
    }
}

pub(crate) fn caller() -> Caller {
    Caller {
        requested_by: "test".to_owned(),
        request_id: "rq_test".to_owned(),
        ..Caller::default()
    }
}

/// A job name of its own.
pub(crate) fn job() -> JobName {
    JobName::new(&broker::unique("job")).unwrap()
}

pub(crate) fn succeeded(operation: &Operation) -> &Value {
    assert_eq!(
        operation.status,
        OperationStatus::Succeeded,
        "{operation:?}"
    );
    operation.result.as_ref().unwrap()
}

pub(crate) fn failed_with<'a>(operation: &'a Operation, code: &str) -> &'a Value {
    assert_eq!(operation.status, OperationStatus::Failed, "{operation:?}");
    let error = operation.error.as_ref().unwrap();
    assert_eq!(error["code"], code, "{error}");
    error
}

/// Writes records with the time stamps of 2024 to a partition.
pub(crate) fn produce(topic: &str, partition: i32, count: i64) {
    produce_at(topic, partition, count, 1_710_000_000_000);
}

/// Writes records a millisecond apart.
pub(crate) fn produce_at(topic: &str, partition: i32, count: i64, first_ms: i64) {
    broker::produce(&broker::producer(), topic, partition, count, first_ms);
}

/// Writes one record.
pub(crate) fn produce_value(topic: &str, partition: i32, value: &str) {
    let producer = broker::producer();
    let record = BaseRecord::<str, str>::to(topic)
        .partition(partition)
        .payload(value);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(PATIENCE).unwrap();
}
