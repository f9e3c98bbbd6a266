-- Partitions that the last run did not read, each at a record or position that somebody has to decide about: kept over stops
-- and crashes, so that a record of one may be stepped over while nothing runs.
ALTER TABLE jobs ADD COLUMN parked json NOT NULL DEFAULT '[]';
