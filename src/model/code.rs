//! One vocabulary of codes for HTTP problems, failed operations, blockers, warnings and health reasons.
//!
//! A code is stable: scripts and alerts compare it. Each has a page at `/problems/{code}` with its meaning and what to do.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $text:literal, $status:literal, $title:literal, $remedy:literal;)*) => {
        /// A stable code; see the module.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Code {
            $(#[doc = $title] #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// Every code, in the order of its HTTP status.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The code as it is written.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The HTTP status it comes with when it ends a request.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// What it means, in one line.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// What to do about it.
            #[must_use]
            pub fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy,)* }
            }
        }
    };
}

codes! {
    InvalidRequest = "invalid-request", 400, "The request cannot be understood", "Correct the member or parameter that the answer names.";
    InvalidJson = "invalid-json", 400, "The body is not valid JSON", "Correct the JSON at the place that the answer names; nothing was changed.";
    UnknownParameter = "unknown-parameter", 400, "A query parameter does not exist", "Correct the spelling: a misspelt dry_run must not execute for real, so unknown parameters are refused.";
    UnknownMember = "unknown-member", 400, "A member of the document does not exist", "Correct the spelling of the member that the answer points at.";
    InvalidCursor = "invalid-cursor", 400, "The cursor was not made for this list", "Start again without after=.";
    InvalidWait = "invalid-wait", 400, "The wait is out of range", "Use wait=1s to wait=120s.";
    TimestampWithoutOffset = "timestamp-without-offset", 400, "An instant has no explicit offset", "Write an offset: 2026-11-28T02:00:00+01:00 or 2026-11-28T01:00:00Z.";
    ReadOnlyServer = "read-only-server", 403, "The server refuses every change", "The server runs with server.read_only; use another one, or change its configuration.";
    HostNotAllowed = "host-not-allowed", 403, "The request names a host that this server is not", "Call the server by localhost, a loopback address or the host of server.public_url.";
    OriginNotAllowed = "origin-not-allowed", 403, "The request comes from another site", "Call from the server's own origin, or without an Origin header.";
    NotFound = "not-found", 404, "There is nothing at this path", "See /openapi.json or /docs for the paths.";
    JobNotFound = "job-not-found", 404, "There is no job of this name", "List the jobs: GET /api/v1/jobs.";
    CheckpointNotFound = "checkpoint-not-found", 404, "The job has no such checkpoint", "List them: GET /api/v1/jobs/{job}/checkpoints.";
    OperationNotFound = "operation-not-found", 404, "There is no such operation", "List them: GET /api/v1/operations?job={job}. Operations are kept for 30 days.";
    RecordNotFound = "record-not-found", 404, "There is no record at this offset", "A transaction's marker, or compacted away: the answer names the next record if there is one.";
    MethodNotAllowed = "method-not-allowed", 405, "The path does not take this method", "The Allow header names the methods.";
    NotAcceptable = "not-acceptable", 406, "The resource has no such representation", "Accept application/json.";
    RequestTimeout = "request-timeout", 408, "The body did not arrive in time", "Send the whole body within 30 seconds.";
    BodyTooLarge = "body-too-large", 413, "The body is too large", "Bodies are limited to 1 MiB.";
    UnsupportedMediaType = "unsupported-media-type", 415, "The body's media type is not taken here", "Send Content-Type: application/json.";
    OperationInProgress = "operation-in-progress", 409, "Another operation of the job is under way", "Follow it at the Location of the answer, then ask again.";
    JobRunning = "job-running", 409, "The job is running", "Stop it first: POST /api/v1/jobs/{job}/stop.";
    NotBlockedThere = "not-blocked-there", 409, "The job is not blocked at this record", "The job's view names the records that it stands at, in parked or in failure. Only those can be skipped.";
    CheckpointsOff = "checkpoints-off", 409, "The job takes no checkpoints", "Give checkpoint.interval a time (PATCH /api/v1/jobs/{job}/spec) and restart the job to have checkpoints. Without them a stop cannot require one, a start cannot go on from one, and a record is stepped over only while the job runs.";
    JobNotRunning = "job-not-running", 409, "The job is not running", "Start it first: POST /api/v1/jobs/{job}/start.";
    JobNotStopped = "job-not-stopped", 409, "The job has failed and was not stopped", "Stop it first, which settles what the failed run left: POST /api/v1/jobs/{job}/stop.";
    StartupModeShadowed = "startup-mode-shadowed", 409, "The startup mode would not be used", "State the intent: apply=next-start to set the checkpoint aside once, or apply=if-no-state to record it for a job without state.";
    StartBlocked = "start-blocked", 409, "The start is refused", "Read the blockers and choose: each names the choices there are.";
    RunFinished = "run-finished", 409, "The bounded run has ended", "Every partition is read up to its stop offset. Start with from=checkpoint to go on to new ends, with from=earliest to read it all again, or change source.stop_at.";
    NotPartOfTheRun = "not-part-of-the-run", 409, "A partition appeared after the bounded run had begun", "Nothing to do: the next run reads it. A start with from=checkpoint begins the next one.";
    StopOffsetUnknown = "stop-offset-unknown", 409, "It is not known where the bounded run ends", "Name the partition in source.stop_at.offsets, let the group commit an offset, or wait for the partition's leader: the summary says which.";
    WaitsForStopOffset = "waits-for-stop-offset", 409, "The log does not reach the end of the bounded run yet", "Nothing to do if more is to be written, or if the open transaction will end. Otherwise start with another source.stop_at.";
    PlanStale = "plan-stale", 409, "What the plan was made from has changed", "Ask for a new plan and look at it.";
    GroupIdTaken = "group-id-taken", 409, "Another job uses this consumer group", "Choose another group_id, or set allow_shared_group: true in both jobs if that is meant.";
    GroupInUse = "group-in-use", 409, "The consumer group has live members", "Stop the other consumers of the group, or give the job a group of its own.";
    PlanExpired = "plan-expired", 410, "The plan is no longer kept", "Ask for a new plan; plans are valid for 15 minutes.";
    StaleGeneration = "stale-generation", 412, "The spec has changed since it was read", "Read the spec again and apply the change to it.";
    AlreadyExists = "already-exists", 412, "The job exists already", "Leave out If-None-Match: * to replace it.";
    InvalidSpec = "invalid-spec", 422, "The document has faults", "Correct every fault that the answer lists; nothing was changed.";
    NotConfirmed = "not-confirmed", 422, "The deletion is not confirmed", "Repeat the job's name: ?confirm={job}. Try it first with ?dry_run=true.";
    IdempotencyKeyReused = "idempotency-key-reused", 422, "The idempotency key belongs to another request", "Use a new key.";
    OffsetOutOfRange = "offset-out-of-range", 422, "A position lies outside the log", "Choose on_out_of_range, or another position.";
    TimestampInFuture = "timestamp-in-future", 422, "The instant lies in the future", "Choose an instant that has passed, or the mode latest.";
    UnknownPartition = "unknown-partition", 422, "The partition does not exist", "Correct the topic or the partition number.";
    UnknownTopic = "unknown-topic", 422, "The topic does not exist", "Correct the name or create the topic.";
    Internal = "internal", 500, "The server made a mistake", "Report it with the request id; the server's log has the cause.";
    KafkaError = "kafka-error", 502, "Kafka refused", "Read the detail; the broker's words are in it.";
    KafkaNotAuthorized = "kafka-not-authorized", 502, "Kafka does not allow it", "Grant the ACL that the answer names.";
    CheckpointFailed = "checkpoint-failed", 502, "The checkpoint failed", "Read the failure: its phase names the part.";
    SinkError = "sink-error", 502, "The sink does not take the records", "Read the detail: its target cannot be reached, is busy, locked or full, or refuses. The job keeps its position and nothing is lost; where it waits, it goes on by itself when the target does.";
    SinkOutcomeUnknown = "sink-outcome-unknown", 502, "Whether the sink kept the last records is not known", "The next start settles it.";
    KafkaUnreachable = "kafka-unreachable", 503, "Kafka does not answer", "Nothing to do to the job: it waits and goes on by itself. Look at the brokers.";
    SinkUnreachable = "sink-unreachable", 503, "The sink cannot be reached", "Look at the target database and at the connection in the server's file. What was asked for does not wait for it; a job does, and goes on by itself.";
    StoreUnreachable = "store-unreachable", 503, "PostgreSQL does not answer", "Nothing to do to the jobs: they wait and go on by themselves. Look at the database.";
    NotReady = "not-ready", 503, "The server is not ready", "GET /readyz?verbose lists what is missing.";
    ShuttingDown = "shutting-down", 503, "The server is going down", "Ask again in a moment.";
    CheckpointTimeout = "checkpoint-timeout", 504, "The checkpoint did not complete in time", "Read the failure: its phase and the slowest parts say where the time went.";
    StopTimeout = "stop-timeout", 504, "The stop did not complete in time", "Look at the operation; a stop goes on after the wait.";
    KafkaTimeout = "kafka-timeout", 504, "Kafka did not answer in time", "Ask again; look at the brokers.";
    LagGrowing = "lag-growing", 409, "The job reads slower than the topic is written", "Look at bottleneck in the job's view first: it says what holds the job back, and what helps. Limits are raised or set to null; where a job cannot keep up, raise parallelism up to the number of partitions, or make the sink faster.";
    Stalled = "stalled", 409, "There are unread records and the position does not move", "Look at the sink and at the broker of the partitions named.";
    BlockedOnRecord = "blocked-on-record", 409, "A record cannot be processed", "The failure names topic, partition and offset. Mend the cause and start again, or leave exactly this record out: POST /api/v1/jobs/{job}/skip.";
    HeldByTransaction = "held-by-transaction", 409, "An open transaction holds the readers back", "Find its producer with kafka-transactions.sh find-hanging.";
    BelowEarliest = "below-earliest", 409, "The position lies before the log's beginning", "The records in between are gone. Choose on_out_of_range: earliest or latest.";
    BeyondLatest = "beyond-latest", 409, "The position lies beyond the log's end", "The log was cut or the topic recreated. Choose on_out_of_range: earliest or latest.";
    TopicRecreated = "topic-recreated", 409, "The topic was deleted and created again", "Its offsets mean other records now. A start or a restart takes on_topic_recreated: earliest or latest; to move the group, choose to.mode earliest or latest.";
    PartitionGone = "partition-gone", 409, "A partition that is read does not exist any more", "Its topic was deleted, or its broker knows nothing of it. Its position is kept: it goes on by itself where the same topic comes back. Where it never will: take the topic out of source.topics and restart; of a pattern's topics, and of a topic that was created again with fewer partitions, restart with on_partition_gone=forget.";
    NoTopics = "no-topics", 409, "The pattern matches no topic", "Nothing to do if the topics are still to come: the job finds them by itself. Otherwise correct source.topic_pattern, which must match whole names.";
    NewPartitions = "new-partitions", 409, "New partitions begin by the startup mode", "Records that were written before a new partition was found may be passed over. Choose partition_discovery.new_partitions: earliest, unless that is meant.";
    DiscoveryFailing = "discovery-failing", 409, "New partitions cannot be looked for", "The job reads what it has, and looks again by itself. Look at the brokers and at the permission to describe topics.";
    GroupMissing = "group-missing", 409, "The group has no committed offset", "Choose on_missing_group_offset: earliest or latest, or another startup mode.";
    CommitsFailing = "commits-failing", 409, "Commits to the consumer group fail", "The message says why. With checkpoints nothing is lost: they count. Without them what was not committed is read again: a commit also fails when the sink does not make everything durable in time. Otherwise look whether other consumers are members of the group.";
    GroupAhead = "group-ahead", 409, "The group's offset is ahead of the checkpoint", "Something else committed to the group. The job resumes from its checkpoint all the same.";
    NoLeader = "no-leader", 409, "A partition has no leader", "Its broker is down; the other partitions go on, this one follows by itself. A one-shot start waits for the leader or leaves the partition out.";
    CheckpointsFailing = "checkpoints-failing", 409, "Checkpoints fail", "GET /api/v1/jobs/{job}/checkpoints?status=failed names the phase.";
    CheckpointHasNoSubscribedPartition = "checkpoint-has-no-subscribed-partition", 409, "The checkpoint holds none of the topics read now", "Every partition begins at its earliest record. Start with from=earliest or latest if that is not meant.";
    GroupOnlyMoved = "group-only-moved", 409, "Only the group was moved", "The job resumes from its checkpoint, not from the group.";
    SinkBehindStore = "sink-behind-store", 409, "The sink holds less than the checkpoint says", "The sink's data was restored or deleted. Begin where the sink stands (the choice of the blocker), or start with from=checkpoint of an older one.";
    StoreBehindSink = "store-behind-sink", 409, "The sink is ahead of the store's checkpoints", "The store was restored from a backup. Begin where the sink stands: the choice of the blocker.";
    ProgressLost = "progress-lost", 409, "The sink no longer knows how far it has come", "The sink's progress was deleted or its target made anew. Begin where the checkpoint stands (the choice of the blocker); what was written after it is written again.";
    SinkChanged = "sink-changed", 409, "The job writes to another target than before", "Nothing to do if that is meant: it goes on from the checkpoint. To fill the new target from the beginning, start with from=earliest. As a blocker: the target holds records of this job beyond the checkpoint; choose to begin behind them, or at the checkpoint, which writes them again.";
    SinkMayDuplicate = "sink-may-duplicate", 409, "Rows that the sink holds are written again", "Delete them first, or write with write.mode upsert, if each record is to stand once.";
    SinkProgressUnknown = "sink-progress-unknown", 409, "The sink does not say how far it has come", "Ask again when the sink answers; until then a plan promises nothing and a start waits.";
    ProgressMismatch = "progress-mismatch", 409, "The sink's progress is not what the job left there", "Something else wrote to the sink's progress, or its database was restored while the job ran. Nothing was written over it. Start the job again: the plan shows where store and sink stand.";
    LeaseLost = "lease-lost", 409, "Another server took the job over", "Nothing to do: the job runs there.";
    InstanceIdInUse = "instance-id-in-use", 409, "Another server runs under this instance id", "Give each server its own instance.id.";
    OwnerLost = "owner-lost", 409, "The server that carried the operation out is gone", "Ask again.";
    Superseded = "superseded", 409, "A later request took its place", "Nothing to do.";
    JobFailed = "job-failed", 409, "The job ended while the operation waited for it", "GET /api/v1/jobs/{job} shows the failure.";
    CrashLoop = "crash-loop", 409, "The job was started again after a crash", "GET /api/v1/jobs/{job}/attempts shows how each run ended, with the first cause of the loop. The spec's restart strategy says how it goes on.";
    RateLimited = "rate-limited", 409, "The job's limits hold it back", "Nothing, if the limits are meant. They change at once: PATCH /api/v1/jobs/{job}/spec with another limits.records_per_s or bytes_per_s, or null.";
    Panicked = "panicked", 500, "A part of the job crashed", "Report it; the server's log has the cause. The spec's restart strategy starts the job again from its checkpoint, or an operator does.";
    StateNotUsed = "state-not-used", 409, "The checkpoint is set aside by this start", "Read replayed, skipped and lost in the plan before starting.";
}

// By hand: the derive does not see the names that the macro passes to serde.
impl PartialSchema for Code {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(Self::ALL.iter().map(|code| code.as_str())))
            .description(Some(
                "A stable code; each has a page at `/problems/{code}`.",
            ))
            .build()
            .into()
    }
}

impl ToSchema for Code {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Code")
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_distinct_kebab_words_with_a_remedy() {
        let texts: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(
                code.as_str()
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{code}"
            );
            assert!(code.remedy().ends_with('.'), "{code}");
            assert!((400..600).contains(&code.status()), "{code}");
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
