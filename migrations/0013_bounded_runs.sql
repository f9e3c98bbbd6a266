-- Bounded jobs: a job that has read everything up to its ends is finished, which is not the same as stopped.
ALTER TABLE jobs DROP CONSTRAINT jobs_state_known;
ALTER TABLE jobs ADD CONSTRAINT jobs_state_known
    CHECK (state IN ('stopped', 'starting', 'running', 'stopping', 'backing-off', 'failed', 'finished'));

ALTER TABLE attempts DROP CONSTRAINT attempts_outcome_known;
ALTER TABLE attempts ADD CONSTRAINT attempts_outcome_known
    CHECK (outcome IN ('stopped', 'finished', 'failed', 'crashed', 'outage', 'server-stopped', 'owner-lost'));

-- The bounded run of a job, at most one: a start with other ends replaces it, in the transaction that stores its checkpoint.
CREATE TABLE bounded_runs (
    job_uid     uuid        CONSTRAINT bounded_runs_pkey PRIMARY KEY
        CONSTRAINT bounded_runs_job REFERENCES jobs (uid) ON DELETE CASCADE,
    -- What the ends were resolved from, as it stood in the spec: another wish begins another run.
    stop_at     json        NOT NULL,
    -- The start with which the ends were stored first. Its checkpoint may be gone.
    begun_by    bigint      NOT NULL CONSTRAINT bounded_runs_begun_by_positive CHECK (begun_by >= 1),
    begun_at    timestamptz NOT NULL,
    -- When the job came to be finished with it.
    finished_at timestamptz
);

-- Where each partition of it ends. Numbers, never wishes, and never changed while the run goes on.
CREATE TABLE bounded_run_ends (
    job_uid     uuid    NOT NULL CONSTRAINT bounded_run_ends_run REFERENCES bounded_runs (job_uid) ON DELETE CASCADE,
    topic       text    NOT NULL,
    partition   integer NOT NULL CONSTRAINT bounded_run_ends_partition_non_negative CHECK (partition >= 0),
    topic_id    text,
    -- The first offset that is not read.
    stop_offset bigint  NOT NULL CONSTRAINT bounded_run_ends_stop_offset_possible CHECK (stop_offset BETWEEN 0 AND 9007199254740991),
    CONSTRAINT bounded_run_ends_pkey PRIMARY KEY (job_uid, topic, partition)
);
