-- The identity of this installation: one database is one installation. It stands in the notes of group commits, so that
-- an offset committed by another installation is recognised.
CREATE TABLE installation (
    -- Always true: the table has exactly one row. It also serves as the lock under which specs are put.
    only_row   boolean     PRIMARY KEY DEFAULT true CONSTRAINT installation_one_row CHECK (only_row),
    install_id uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO installation DEFAULT VALUES;
