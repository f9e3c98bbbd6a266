-- A job that crashed waits for its next start and keeps its lease meanwhile.
ALTER TABLE jobs DROP CONSTRAINT jobs_state_known;
ALTER TABLE jobs ADD CONSTRAINT jobs_state_known
    CHECK (state IN ('stopped', 'starting', 'running', 'stopping', 'backing-off', 'failed'));

-- Crashes that follow each other: how many restarts, the first cause and the newest, when the next start is.
ALTER TABLE jobs ADD COLUMN crash_loop json;

-- Begun by a server by itself: nobody goes back to such a start, so it is kept no longer than a periodic checkpoint.
ALTER TABLE checkpoints ADD COLUMN automatic boolean NOT NULL DEFAULT false;

-- Each run of a job.
CREATE TABLE attempts (
    job_uid       uuid        NOT NULL CONSTRAINT attempts_job REFERENCES jobs (uid),
    -- Counts the runs of the job. The largest is never deleted.
    id            bigint      NOT NULL CONSTRAINT attempts_id_positive CHECK (id >= 1),
    kind          text        NOT NULL
        CONSTRAINT attempts_kind_known CHECK (kind IN ('start', 'restart', 'after-crash', 'after-outage', 'recovery')),
    epoch         bigint      NOT NULL,
    instance      text        NOT NULL,
    generation    bigint      NOT NULL,
    operation_id  text,
    -- The `start` checkpoint that it began from.
    checkpoint_id bigint      NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    outcome       text
        CONSTRAINT attempts_outcome_known CHECK (outcome IN ('stopped', 'failed', 'crashed', 'outage', 'server-stopped', 'owner-lost')),
    cause         json,
    records       bigint,
    bytes         bigint,
    -- It began a crash loop: kept longer.
    first_of_loop boolean     NOT NULL DEFAULT false,
    CONSTRAINT attempts_pkey PRIMARY KEY (job_uid, id),
    CONSTRAINT attempts_outcome_if_ended CHECK ((ended_at IS NULL) = (outcome IS NULL))
);

-- A job has one run at a time.
CREATE UNIQUE INDEX attempts_one_open ON attempts (job_uid) WHERE ended_at IS NULL;
