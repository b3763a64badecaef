-- Every claim goes through the one unpartitioned leaf of the rows in flight, so its primary key serialises rivals
-- on both sides of midnight. Sealing is an UPDATE of "state" that moves the row to the leaf of its expiry.
CREATE TABLE idempotency_key (
    id uuid NOT NULL,
    state varchar(16) NOT NULL,
    scope text NOT NULL,
    key varchar(255) NOT NULL,
    fingerprint bytea NOT NULL,
    fingerprint_scheme smallint NOT NULL,
    mode varchar(16) NOT NULL,
    owner_token uuid NOT NULL,
    attempts smallint NOT NULL,
    claimed_at timestamptz NOT NULL,
    lease_expires_at timestamptz NULL,
    sealed_at timestamptz NULL,
    expires_at timestamptz NULL,
    response_status smallint NULL,
    response_headers jsonb NULL,
    response_body bytea NULL,
    operation varchar(255) NULL,
    parameters jsonb NULL,
    steps jsonb NULL,
    recovery_point varchar(255) NULL,
    held_reason text NULL,
    held_at timestamptz NULL,
    sweeps smallint NOT NULL,
    sweep_after timestamptz NULL,
    stale_after double precision NULL,
    CONSTRAINT idempotency_key_state CHECK (
        (state = 'in_flight' AND lease_expires_at IS NOT NULL AND sealed_at IS NULL AND response_status IS NULL)
        OR (
            state = 'sealed' AND lease_expires_at IS NULL AND sealed_at IS NOT NULL AND expires_at IS NOT NULL
            AND response_status IS NOT NULL
        )
    )
) PARTITION BY LIST (state);

-- Small and hot: each row lives here for the length of one request. Half-empty pages keep renewals on their page, and
-- vacuum is driven by the number of dead rows alone, because a fraction of an empty table means never or always.
CREATE TABLE idempotency_key_in_flight PARTITION OF idempotency_key (PRIMARY KEY (id))
FOR VALUES IN ('in_flight')
WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 10000
);

CREATE TABLE idempotency_key_sealed PARTITION OF idempotency_key
FOR VALUES IN ('sealed') PARTITION BY RANGE (expires_at);
