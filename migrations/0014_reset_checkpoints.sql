-- A position that the log did not hold any more, moved as the spec says, stored before the first fetch from there.
ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_kind_known;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_kind_known
    CHECK (kind IN ('start', 'periodic', 'manual', 'stop', 'failure', 'skip', 'discovery', 'reset'));
