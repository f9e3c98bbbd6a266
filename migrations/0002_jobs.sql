-- Documents are json, not jsonb: they come back as they were written, members in order, and a text from outside may
-- contain the character U+0000 as an escape, which jsonb refuses.
CREATE TABLE jobs (
    -- Everything hangs on the uid: a job that is deleted and created again under its name inherits nothing.
    uid                   uuid        CONSTRAINT jobs_pkey PRIMARY KEY,
    name                  text        NOT NULL CONSTRAINT jobs_name_form CHECK (name ~ '^[a-z][a-z0-9-]{0,62}$'),
    spec                  json        NOT NULL,
    -- Counts the changes of the spec; it is the spec's ETag.
    generation            bigint      NOT NULL DEFAULT 1 CONSTRAINT jobs_generation_positive CHECK (generation >= 1),
    desired_state         text        NOT NULL DEFAULT 'stopped'
        CONSTRAINT jobs_desired_state_known CHECK (desired_state IN ('running', 'stopped')),
    state                 text        NOT NULL DEFAULT 'stopped'
        CONSTRAINT jobs_state_known CHECK (state IN ('stopped', 'starting', 'running', 'stopping', 'failed')),
    state_since           timestamptz NOT NULL DEFAULT clock_timestamp(),
    failure               json,
    -- A start asked for ahead of time. Not part of the spec: putting a spec never touches it, and the start that consumes
    -- it clears it by its id, so that a later intent is not lost.
    pending_start         json        CONSTRAINT jobs_pending_start_has_id CHECK (pending_start ->> 'id' IS NOT NULL OR pending_start IS NULL),
    -- The spec that runs, which the newest one replaces at the next start only.
    running_generation    bigint,
    running_spec          json,
    -- The startup mode was changed while there was a checkpoint to resume from, and no start has used it since.
    startup_mode_shadowed boolean     NOT NULL DEFAULT false,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The row stays: history refers to it.
    deleted_at            timestamptz,
    CONSTRAINT jobs_running_whole CHECK ((running_generation IS NULL) = (running_spec IS NULL))
);

CREATE UNIQUE INDEX jobs_name_unique ON jobs (name) WHERE deleted_at IS NULL;
