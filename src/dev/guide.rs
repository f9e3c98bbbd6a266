//! What `handover dev` prints once everything runs: where it is, and six calls to try, in an order that makes sense.

use std::fmt;

/// The facts to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guide {
    /// `http://host:port`.
    pub url: String,
    /// Bootstrap servers.
    pub kafka: String,
    /// What the broker cannot do, if it is the mock.
    pub limits: Option<&'static str>,
    /// The database, with its password: it is private, and people want to look into it.
    pub database: String,
    /// The topic.
    pub topic: String,
    /// Its partitions, as asked for.
    pub partitions: i32,
    /// Events a second.
    pub rate: u32,
    /// The job that the calls use.
    pub job: &'static str,
    /// Whether `jq` is there to make answers readable.
    pub jq: bool,
    /// Whether `psql` is there to look at the rows.
    pub psql: bool,
}

/// One side by side line for each partition.
const COMPARE: &str = r#" | jq -r '.partitions[] | "partition \(.partition): checkpoint \(.checkpointed), group \(.group_committed)"'"#;

impl fmt::Display for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url, job, topic, ..
        } = self;
        let api = format!("{url}/api/v1/jobs");
        let (pretty, compare) = if self.jq {
            (" | jq .", COMPARE)
        } else {
            ("", "")
        };
        writeln!(f, "\nhandover runs at   {url}")?;
        writeln!(f, "  web page         {url}/ui/")?;
        writeln!(f, "  API reference    {url}/docs")?;
        writeln!(f, "  Kafka            {}", self.kafka)?;
        if let Some(limits) = self.limits {
            writeln!(f, "                   ({limits})")?;
        }
        writeln!(f, "  PostgreSQL       {}", self.database)?;
        writeln!(
            f,
            "\n{} order events a second go to topic {topic} ({} partitions). Two jobs read them. Try:\n",
            self.rate, self.partitions
        )?;
        writeln!(
            f,
            "# 1. the jobs: state, health, lag\ncurl -s '{api}'{pretty}\n"
        )?;
        writeln!(
            f,
            "# 2. stop one; it takes a last checkpoint\ncurl -s -X POST '{api}/{job}/stop?wait=30s'{pretty}\n"
        )?;
        writeln!(
            f,
            "# 3. where would it start, partition by partition, and why?\ncurl -s '{api}/{job}/start-plan'{pretty}\n"
        )?;
        writeln!(
            f,
            "# 4. start it there\ncurl -s -X POST '{api}/{job}/start?wait=30s'{pretty}\n"
        )?;
        writeln!(
            f,
            "# 5. take a checkpoint now\ncurl -s -X POST '{api}/{job}/checkpoints?wait=30s'{pretty}\n"
        )?;
        writeln!(
            f,
            "# 6. compare the group's offsets with the checkpoint's\ncurl -s '{api}/{job}/offsets?fresh=true'{compare}\n"
        )?;
        if self.psql {
            writeln!(
                f,
                "# and what became of the events, each exactly once\npsql '{}' -c 'SELECT type, count(*), max(occurred_at) FROM orders GROUP BY type'\n",
                self.database
            )?;
        }
        write!(f, "Ctrl-C ends it.")
    }
}
