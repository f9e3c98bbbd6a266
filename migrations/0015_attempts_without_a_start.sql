-- A start that crashes before its positions are stored is a run of the job too: without a checkpoint that it began from.
ALTER TABLE attempts ALTER COLUMN checkpoint_id DROP NOT NULL;
