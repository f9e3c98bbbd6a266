-- Two more things that change a job: stepping over a record that it failed at, and stopping and starting it in one go.
ALTER TABLE operations DROP CONSTRAINT operations_kind_known;
ALTER TABLE operations ADD CONSTRAINT operations_kind_known
    CHECK (kind IN ('start', 'stop', 'checkpoint', 'reset-offsets', 'delete', 'skip', 'restart'));

DROP INDEX operations_one_open_change;
CREATE UNIQUE INDEX operations_one_open_change ON operations (job_uid)
    WHERE status IN ('queued', 'running') AND kind <> 'checkpoint';

-- The last checkpoint of a run that failed at a record, and the one that steps over it.
ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_kind_known;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_kind_known
    CHECK (kind IN ('start', 'periodic', 'manual', 'stop', 'failure', 'skip'));

-- The record that the job failed at last, also after it was stopped or started: only this one may be stepped over.
ALTER TABLE jobs ADD COLUMN failed_record json;
