-- Plans that somebody looked at: a start that names one uses exactly its numbers, or fails because what the plan was made
-- from has changed.
CREATE TABLE start_plans (
    -- pl_ and a ULID.
    id            text        CONSTRAINT start_plans_pkey PRIMARY KEY,
    job_uid       uuid        NOT NULL CONSTRAINT start_plans_job REFERENCES jobs (uid),
    -- What the plan was made from: generation of the spec, newest completed checkpoint, pending one-shot start.
    generation    bigint      NOT NULL,
    checkpoint_id bigint,
    pending_start text,
    request       json        NOT NULL,
    resolved      json        NOT NULL,
    valid_until   timestamptz NOT NULL
);

-- For pruning.
CREATE INDEX start_plans_by_valid_until ON start_plans (valid_until);
