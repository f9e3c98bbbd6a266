CREATE TABLE operations (
    -- op_ and a ULID: sorts by time of creation.
    id                    text        COLLATE "C" CONSTRAINT operations_pkey PRIMARY KEY,
    job_uid               uuid        NOT NULL CONSTRAINT operations_job REFERENCES jobs (uid),
    kind                  text        NOT NULL CONSTRAINT operations_kind_known CHECK (kind IN ('start', 'stop', 'checkpoint')),
    status                text        NOT NULL
        CONSTRAINT operations_status_known CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'canceled')),
    changed               boolean,
    step                  text        NOT NULL,
    -- The body of the request, so that another owner can carry the operation on.
    request               json        NOT NULL,
    requested_by          text        NOT NULL,
    reason                text,
    request_id            text,
    result                json,
    error                 json,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at           timestamptz,
    -- The caller's key lives beside the operation, so it survives a restart of the server. Cleared after 24 hours.
    idempotency_scope     text,
    idempotency_key       text,
    idempotency_body_hash text,
    CONSTRAINT operations_idempotency_whole CHECK (
        (idempotency_key IS NULL) = (idempotency_scope IS NULL) AND (idempotency_key IS NULL) = (idempotency_body_hash IS NULL)),
    CONSTRAINT operations_finished_if_final CHECK ((status IN ('succeeded', 'failed', 'canceled')) = (finished_at IS NOT NULL))
);

-- One operation at a time changes what a job does.
CREATE UNIQUE INDEX operations_one_open_change ON operations (job_uid)
    WHERE status IN ('queued', 'running') AND kind IN ('start', 'stop');
-- One checkpoint runs, one waits for it, and whoever else asks shares the one that waits.
CREATE UNIQUE INDEX operations_one_queued_checkpoint ON operations (job_uid) WHERE status = 'queued' AND kind = 'checkpoint';
CREATE UNIQUE INDEX operations_idempotency_unique ON operations (idempotency_scope, idempotency_key);
-- The history of one job, newest first.
CREATE INDEX operations_by_job ON operations (job_uid, id);
-- For pruning.
CREATE INDEX operations_by_finished_at ON operations (finished_at);
