-- A run of a job without checkpoints has no `start` checkpoint, and says itself where it began.
ALTER TABLE attempts ADD COLUMN without_checkpoints text;
