-- The least that keeps the promise of the library's two functions on the library's layout: an explicit answer, READ
-- COMMITTED only, a bounded wait, a look before the insert (or replays queue) and one after it (or a rival that sealed
-- meanwhile is missed), a view of the partitions that is not stale, and a seal that is fenced by the owner token.
CREATE TABLE floor_key (LIKE idempotency_key INCLUDING CONSTRAINTS) PARTITION BY LIST (state);
ALTER TABLE floor_key ALTER COLUMN sweeps SET DEFAULT 0;  -- which the floor knows nothing of

CREATE TABLE floor_key_in_flight PARTITION OF floor_key (PRIMARY KEY (id)) FOR VALUES IN ('in_flight')
WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 10000
);

CREATE TABLE floor_key_sealed PARTITION OF floor_key FOR VALUES IN ('sealed') PARTITION BY RANGE (expires_at);

-- As many leaves as the library has, with the same bounds.
DO $do$
DECLARE
    leaf record;
BEGIN
    FOR leaf IN
        SELECT c.relname AS name, pg_get_expr(c.relpartbound, c.oid) AS bounds
        FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'idempotency_key_sealed'::regclass
    LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF floor_key_sealed (PRIMARY KEY (id)) %s',
            replace(leaf.name, 'idempotency', 'floor'), leaf.bounds
        );
    END LOOP;
END
$do$;

CREATE FUNCTION floor_claim(
    p_id uuid,
    p_scope text,
    p_key text,
    p_fingerprint bytea,
    p_token uuid,
    p_mode text,
    p_lease double precision,
    OUT verdict text,
    OUT standing_scope text,
    OUT standing_key text,
    OUT standing_fingerprint bytea,
    OUT status smallint,
    OUT headers jsonb,
    OUT body bytea
) LANGUAGE plpgsql
SET enable_seqscan = off
SET lock_timeout = '1500ms'
AS $$
DECLARE
    standing floor_key;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a claim needs READ COMMITTED';
    END IF;
    LOOP
        SELECT k.* INTO standing FROM floor_key AS k
        WHERE k.id = p_id AND (k.state = 'in_flight' OR k.expires_at > clock_timestamp());
        EXIT WHEN FOUND;
        INSERT INTO floor_key_in_flight (
            id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
            lease_expires_at
        ) VALUES (
            p_id, 'in_flight', p_scope, p_key, p_fingerprint, 1, p_mode, p_token, 1, clock_timestamp(),
            clock_timestamp() + make_interval(secs => p_lease)
        ) ON CONFLICT (id) DO NOTHING;
        CONTINUE WHEN NOT FOUND;
        PERFORM 1 FROM pg_partition_ancestors('floor_key_sealed');
        SELECT k.* INTO standing FROM floor_key_sealed AS k WHERE k.id = p_id;
        IF NOT FOUND THEN
            verdict := 'claimed';
            RETURN;
        END IF;
        IF standing.expires_at <= clock_timestamp() THEN
            DELETE FROM floor_key_sealed AS k WHERE k.id = p_id AND k.expires_at <= clock_timestamp();
            verdict := 'claimed';
            RETURN;
        END IF;
        DELETE FROM floor_key_in_flight AS k WHERE k.id = p_id AND k.owner_token = p_token;
        EXIT;
    END LOOP;
    verdict := standing.state;
    standing_scope := standing.scope;
    standing_key := standing.key;
    standing_fingerprint := standing.fingerprint;
    status := standing.response_status;
    headers := standing.response_headers;
    body := standing.response_body;
END
$$;

CREATE FUNCTION floor_seal(
    p_id uuid, p_token uuid, p_retention double precision, p_status smallint, p_headers jsonb, p_body bytea
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    PERFORM 1 FROM pg_partition_ancestors('floor_key_sealed');
    UPDATE floor_key AS k SET
        state = 'sealed',
        lease_expires_at = NULL,
        sealed_at = clock_timestamp(),
        expires_at = clock_timestamp() + make_interval(secs => p_retention),
        response_status = p_status,
        response_headers = p_headers,
        response_body = p_body
    WHERE k.id = p_id AND k.state = 'in_flight' AND k.owner_token = p_token;
    RETURN FOUND;
END
$$;
