CREATE TABLE checkpoints (
    job_uid             uuid        NOT NULL CONSTRAINT checkpoints_job REFERENCES jobs (uid),
    -- Grows strictly within a job, over all kinds and failed attempts too. The largest is never deleted, so none is used twice.
    id                  bigint      NOT NULL CONSTRAINT checkpoints_id_positive CHECK (id >= 1),
    kind                text        NOT NULL
        CONSTRAINT checkpoints_kind_known CHECK (kind IN ('start', 'periodic', 'manual', 'stop')),
    status              text        NOT NULL CONSTRAINT checkpoints_status_known CHECK (status IN ('completed', 'failed')),
    -- The lease under which it was taken.
    epoch               bigint      NOT NULL CONSTRAINT checkpoints_epoch_positive CHECK (epoch >= 1),
    -- These times come from the server that took it, so that they agree with its logs.
    started_at          timestamptz NOT NULL,
    ended_at            timestamptz NOT NULL,
    -- When its positions were last found unchanged.
    confirmed_at        timestamptz,
    barrier_ms          bigint,
    sink_flush_ms       bigint,
    store_ms            bigint,
    group_commit_ms     bigint,
    failure             json,
    group_commit_status text        NOT NULL
        CONSTRAINT checkpoints_group_commit_status_known CHECK (group_commit_status IN ('ok', 'pending', 'failed', 'displaced', 'off')),
    group_commit_error  text,
    -- A later start set it aside: nothing resumes from it unless it is named.
    superseded          boolean     NOT NULL DEFAULT false,
    has_output          boolean     NOT NULL DEFAULT false,
    -- Which target the sink wrote to.
    sink_identity       text        NOT NULL DEFAULT '',
    CONSTRAINT checkpoints_pkey PRIMARY KEY (job_uid, id),
    CONSTRAINT checkpoints_confirmed_if_completed CHECK ((status = 'completed') = (confirmed_at IS NOT NULL)),
    CONSTRAINT checkpoints_failure_if_failed CHECK ((status = 'failed') = (failure IS NOT NULL))
);

-- One row for each partition: readable by SQL alone when everything else is down.
CREATE TABLE checkpoint_offsets (
    job_uid       uuid    NOT NULL,
    checkpoint_id bigint  NOT NULL,
    topic         text    NOT NULL,
    partition     integer NOT NULL CONSTRAINT checkpoint_offsets_partition_non_negative CHECK (partition >= 0),
    -- Identity of the topic's incarnation (KIP-516), base64; null if the broker has none.
    topic_id      text,
    -- The next record to read. Null while the partition has no leader and never had a position. Below 2^53, so that JSON
    -- carries it exactly.
    next_offset   bigint  CONSTRAINT checkpoint_offsets_next_offset_possible CHECK (next_offset BETWEEN 0 AND 9007199254740991),
    -- The checkpoint that last decided this position from outside (a start); others copy it.
    position_id   bigint  NOT NULL CONSTRAINT checkpoint_offsets_position_id_positive CHECK (position_id >= 1),
    CONSTRAINT checkpoint_offsets_pkey PRIMARY KEY (job_uid, checkpoint_id, topic, partition),
    CONSTRAINT checkpoint_offsets_checkpoint FOREIGN KEY (job_uid, checkpoint_id)
        REFERENCES checkpoints (job_uid, id) ON DELETE CASCADE
);
