-- Who lives: one row for each instance id of a server's file.
CREATE TABLE instances (
    id          text        CONSTRAINT instances_pkey PRIMARY KEY,
    -- Names the process; each claim of the instance id makes a new one, and the dead predecessor's is nowhere any more.
    incarnation uuid        NOT NULL CONSTRAINT instances_incarnation_unique UNIQUE,
    host        text        NOT NULL,
    -- By the database's clock. Compared with clock_timestamp(), never with now(), which stands still in a transaction.
    expires_at  timestamptz NOT NULL,
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Who owns which job: one row for each job, made with it.
--
-- A protected write begins with SELECT ... FOR SHARE on this row. A taker's UPDATE waits for that lock, so there are two
-- orders only: commit, then take; or take, then refuse. (FOR KEY SHARE would not conflict with the UPDATE.)
CREATE TABLE job_leases (
    job_uid        uuid   CONSTRAINT job_leases_pkey PRIMARY KEY
        CONSTRAINT job_leases_job REFERENCES jobs (uid),
    -- An incarnation, not an instance id; no foreign key, since an incarnation that was replaced may still be named here.
    owner          uuid,
    -- The owner's instance id, for people.
    owner_instance text,
    -- Grows with every change of owner, so an epoch belongs to one owner for ever.
    epoch          bigint NOT NULL DEFAULT 0 CONSTRAINT job_leases_epoch_non_negative CHECK (epoch >= 0),
    CONSTRAINT job_leases_owner_whole CHECK ((owner IS NULL) = (owner_instance IS NULL))
);
