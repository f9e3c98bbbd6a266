//! The broker that all tests share, brokers of a test's own, and what tests ask of them past the product.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::Command,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use fault_proxy::{Protocol, Proxy};
use rdkafka::{
    ClientConfig, Offset, TopicPartitionList,
    admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication},
    client::DefaultClientContext,
    consumer::{BaseConsumer, CommitMode, Consumer},
    metadata::MetadataTopic,
};

use super::{
    client::block_on,
    wait::{SOON, eventually, lock},
};

const ANSWER: Duration = Duration::from_secs(20);

/// How long one client is given for a question that is asked again by another. Ample for an answer; and a client that asked
/// a broker just after it was frozen may have forgotten it for ever (librdkafka issue 5301).
pub(super) const ATTEMPT: Duration = Duration::from_secs(8);

/// A Kafka cluster as a test speaks to it.
#[derive(Debug, Clone)]
pub(crate) struct Kafka {
    pub(crate) bootstrap: String,
}

impl Kafka {
    /// The broker of `make test`.
    pub(crate) fn shared() -> Self {
        let bootstrap = std::env::var("HANDOVER_TEST_KAFKA")
            .expect("HANDOVER_TEST_KAFKA names a broker (docs/testing.md)");
        Self { bootstrap }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("an admin client")
    }

    /// Makes a topic that keeps records of any age, and waits until all its partitions have leaders.
    pub(crate) fn create_topic(&self, topic: &str, partitions: i32) {
        self.create_topic_with(topic, partitions, &[]);
    }

    pub(crate) fn create_topic_with(&self, topic: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1))
            .set("retention.ms", "-1")
            .set("message.timestamp.type", "CreateTime");
        for (key, value) in config {
            new = new.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answers = block_on(self.admin().create_topics([&new], &options)).expect("an answer");
        for answer in answers {
            answer.expect("the topic is made");
        }
        self.await_leaders(topic, partitions);
    }

    pub(crate) fn delete_topic(&self, topic: &str) {
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answers = block_on(self.admin().delete_topics(&[topic], &options)).expect("an answer");
        for answer in answers {
            answer.expect("the topic is deleted");
        }
    }

    /// Deletes a group that has no members, as an expiry of its offsets would.
    pub(crate) fn delete_group(&self, group: &str) {
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answers = block_on(self.admin().delete_groups(&[group], &options)).expect("an answer");
        for answer in answers {
            answer.expect("the group is deleted");
        }
    }

    /// Grows a topic to `partitions` partitions.
    pub(crate) fn add_partitions(&self, topic: &str, partitions: i32) {
        let count = usize::try_from(partitions).expect("a number of partitions");
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answers = block_on(
            self.admin()
                .create_partitions([&NewPartitions::new(topic, count)], &options),
        );
        for answer in answers.expect("an answer") {
            answer.expect("the topic is grown");
        }
        self.await_leaders(topic, partitions);
    }

    fn await_leaders(&self, topic: &str, partitions: i32) {
        let consumer: BaseConsumer = self.config().create().expect("a consumer");
        eventually(&format!("leaders of {topic}"), SOON, || {
            let metadata = consumer
                .fetch_metadata(Some(topic), ANSWER)
                .map_err(|error| error.to_string())?;
            let led = metadata
                .topics()
                .iter()
                .flat_map(MetadataTopic::partitions)
                .filter(|partition| partition.leader() >= 0 && partition.error().is_none())
                .count();
            let wanted = usize::try_from(partitions).unwrap_or(usize::MAX);
            if led == wanted {
                Ok(())
            } else {
                Err(format!("{led} of {partitions}"))
            }
        });
    }

    /// Which broker leads each partition.
    pub(crate) fn leaders(&self, topic: &str) -> BTreeMap<i32, i32> {
        let consumer: BaseConsumer = self.config().create().expect("a consumer");
        let metadata = consumer
            .fetch_metadata(Some(topic), ANSWER)
            .expect("metadata");
        metadata
            .topics()
            .iter()
            .flat_map(MetadataTopic::partitions)
            .map(|partition| (partition.id(), partition.leader()))
            .collect()
    }

    /// Removes the records before `before`, as retention does.
    pub(crate) fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(before))
            .expect("an offset");
        let options = AdminOptions::new().operation_timeout(Some(ANSWER));
        let answer = block_on(self.admin().delete_records(&list, &options)).expect("an answer");
        for element in answer.elements() {
            element.error().expect("the records are deleted");
        }
        eventually("the log begins later", SOON, || {
            match self.bounds(topic, partition).0 {
                low if low == before => Ok(()),
                low => Err(format!("it begins at {low}")),
            }
        });
    }

    /// First offset and end of a partition's log, as a consumer that sees all records finds them.
    pub(crate) fn bounds(&self, topic: &str, partition: i32) -> (i64, i64) {
        eventually("the ends of the log", SOON, || {
            let consumer: BaseConsumer = self
                .config()
                .set("isolation.level", "read_uncommitted")
                .create()
                .expect("a consumer");
            consumer.fetch_watermarks(topic, partition, ATTEMPT)
        })
    }

    /// The group's committed offsets as any consumer of it sees them; a partition without one is missing.
    pub(crate) fn group_offsets(
        &self,
        group: &str,
        topic: &str,
        partitions: i32,
    ) -> BTreeMap<i32, i64> {
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition(topic, partition);
        }
        let committed = eventually("the group's offsets", SOON, || {
            self.member(group).committed_offsets(list.clone(), ATTEMPT)
        });
        committed
            .elements()
            .iter()
            .filter_map(|element| match element.offset() {
                Offset::Offset(offset) => Some((element.partition(), offset)),
                _ => None,
            })
            .collect()
    }

    /// Commits to the group as a program that is not handover would.
    pub(crate) fn commit_as_another(&self, group: &str, topic: &str, offsets: &[(i32, i64)]) {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in offsets {
            list.add_partition_offset(topic, *partition, Offset::Offset(*offset))
                .expect("an offset");
        }
        let member = self.member(group);
        eventually("a commit by another program", SOON, || {
            member.commit(&list, CommitMode::Sync)
        });
    }

    fn member(&self, group: &str) -> BaseConsumer {
        self.config()
            .set("group.id", group)
            .create()
            .expect("a consumer")
    }
}

/// One private cluster at a time: each takes half a gigabyte and, while it starts, a processor.
static PRIVATE: Mutex<()> = Mutex::new(());

/// A cluster that a test may stop, kill and pause.
#[derive(Debug)]
pub(crate) struct PrivateKafka {
    pub(crate) kafka: Kafka,
    dir: PathBuf,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl PrivateKafka {
    pub(crate) fn start(brokers: u32) -> Self {
        Self::start_with(brokers, &[])
    }

    /// With settings of the brokers, `key=value` each.
    pub(crate) fn start_with(brokers: u32, settings: &[&str]) -> Self {
        let options: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
        Self::start_as(brokers, &options)
    }

    /// One broker that everybody reaches through a proxy only: it names the proxy's address as its own.
    pub(crate) fn start_behind_proxy() -> (Self, Proxy) {
        // Nobody listens there; the broker's port is known once it has one.
        let nowhere = "127.0.0.1:1";
        let proxy = block_on(async { Proxy::start(nowhere, Protocol::Bytes) }).expect("a proxy");
        let address = proxy.address().to_string();
        let mut cluster = Self::start_as(1, &["--advertise", &address]);
        proxy.aim(&cluster.kafka.bootstrap);
        cluster.kafka.bootstrap = address;
        (cluster, proxy)
    }

    fn start_as(brokers: u32, options: &[&str]) -> Self {
        let turn = lock(&PRIVATE);
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("kafka");
        let dir_text = dir.to_str().expect("a path in UTF-8").to_owned();
        let brokers = brokers.to_string();
        let mut arguments = vec![
            "up",
            "--dir",
            &dir_text,
            "--brokers",
            &brokers,
            "--heap",
            "384m",
        ];
        arguments.extend(options);
        let answer = run_script("kafka", &arguments);
        let bootstrap = answer
            .lines()
            .find_map(|line| line.strip_prefix("bootstrap="))
            .expect("the script names the brokers")
            .to_owned();
        Self {
            kafka: Kafka { bootstrap },
            dir,
            _folder: folder,
            _turn: turn,
        }
    }

    /// `stop-broker`, `start-broker`, `kill-broker`, `pause-broker` or `resume-broker`.
    pub(crate) fn broker(&self, command: &str, id: u32) {
        let dir = self.dir.to_str().expect("a path in UTF-8");
        run_script("kafka", &[command, &id.to_string(), "--dir", dir]);
    }
}

impl Drop for PrivateKafka {
    fn drop(&mut self) {
        let dir = self.dir.to_str().unwrap_or_default();
        let _ended = script("kafka", &["down", "--now", "--purge", "--dir", dir]).output();
    }
}

/// A command of the project's `scripts/`.
pub(crate) fn script(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(format!("{}/scripts/{name}", env!("CARGO_MANIFEST_DIR")));
    command.args(arguments);
    command
}

/// Runs a script to its end and returns what it printed.
pub(crate) fn run_script(name: &str, arguments: &[&str]) -> String {
    let output = script(name, arguments).output().expect("the script runs");
    assert!(
        output.status.success(),
        "scripts/{name} {arguments:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}
