-- Two more things that change a job: moving its consumer group, and deleting it.
ALTER TABLE operations DROP CONSTRAINT operations_kind_known;
ALTER TABLE operations ADD CONSTRAINT operations_kind_known
    CHECK (kind IN ('start', 'stop', 'checkpoint', 'reset-offsets', 'delete'));

-- One operation at a time changes what a job does, whatever kinds there will be.
DROP INDEX operations_one_open_change;
CREATE UNIQUE INDEX operations_one_open_change ON operations (job_uid)
    WHERE status IN ('queued', 'running') AND kind <> 'checkpoint';

-- For pruning: what belonged to deleted jobs.
CREATE INDEX jobs_by_deleted_at ON jobs (deleted_at) WHERE deleted_at IS NOT NULL;
CREATE INDEX events_by_job ON events (job_uid);
