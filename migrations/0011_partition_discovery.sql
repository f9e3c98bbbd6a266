-- Positions that were decided while a job ran: of partitions that appeared, and of topics that were created again.
ALTER TABLE checkpoints DROP CONSTRAINT checkpoints_kind_known;
ALTER TABLE checkpoints ADD CONSTRAINT checkpoints_kind_known
    CHECK (kind IN ('start', 'periodic', 'manual', 'stop', 'failure', 'skip', 'discovery'));
