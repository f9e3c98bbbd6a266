-- What happened, for the audit: written in the transaction of what it tells.
CREATE TABLE events (
    id      bigint      GENERATED ALWAYS AS IDENTITY CONSTRAINT events_pkey PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_uid uuid        CONSTRAINT events_job REFERENCES jobs (uid),
    kind    text        NOT NULL,
    actor   text        NOT NULL,
    details json        NOT NULL
);

-- For pruning.
CREATE INDEX events_by_at ON events (at);
