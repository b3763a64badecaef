-- What is left of expired records where the setting TOMBSTONES wants it. Pruning makes the leaves that it needs.
CREATE TABLE idempotency_tombstone (
    id uuid NOT NULL,
    fingerprint bytea NOT NULL,
    fingerprint_scheme smallint NOT NULL,
    forget_at timestamptz NOT NULL
) PARTITION BY RANGE (forget_at);
