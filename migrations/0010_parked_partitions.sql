-- Partitions that the last run did not read, each at a record or position that somebody has to decide about: kept over stops
-- and crashes, so that a record of one may be stepped over while nothing runs.
ALTER TABLE jobs ADD COLUMN parked json NOT NULL DEFAULT '[]';

-- A position that the log did not hold any more, moved as the spec says, stored before the first fetch from there.
ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_kind_known;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_kind_known
    CHECK (kind IN ('start', 'periodic', 'manual', 'stop', 'failure', 'skip', 'reset'));
