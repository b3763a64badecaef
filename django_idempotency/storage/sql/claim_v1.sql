-- Become the owner of a key, or learn who is. The answer is always explicit.
--
-- Each statement of a volatile function takes a snapshot of its own under READ COMMITTED, and the order is the proof:
-- an INSERT that waited for a rival succeeds when that rival moved its row to "sealed", and only a look that starts
-- afterwards can see the sealed row. In any other isolation level the second look is blind, so nothing is claimed there.
--
-- Settings and catalog are reached by assignments: an expression costs a fraction of what PERFORM does.
CREATE FUNCTION idempotency_claim_v1(
    p_id uuid,
    p_scope text,
    p_key text,
    p_fingerprint bytea,
    p_token uuid,
    p_scheme smallint,
    p_mode text,
    p_lease double precision,  -- seconds
    p_max_wait double precision,  -- seconds
    p_limit_silence boolean,  -- the open transaction will carry the effect: end it when its client falls silent
    p_refuse_expired_for double precision DEFAULT 0  -- seconds after its expiry in which a key is not run as new
) RETURNS text LANGUAGE plpgsql  -- 'claimed', 'waited', 'expired', 'wrong_isolation', or the record that stands
-- A vacuumed empty leaf makes a sequential scan look free; the cached plan would keep it when the leaf has filled.
SET enable_seqscan = off
-- For what is locked before the body begins, such as the type of a row. Changed below, put back when the function ends.
SET lock_timeout = '2s'
AS $$
DECLARE
    started constant timestamptz := clock_timestamp();
    waited double precision := 0;
    standing text;
    sealed_until timestamptz;
    sealed_rows regclass := 'idempotency_key_sealed';  -- a variable: over a literal, the planner would look once
    tombstones regclass;
    ignored text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 'wrong_isolation';
    END IF;
    IF p_limit_silence THEN
        ignored := idempotency_limit_silence_v1(p_lease);
    END IF;

    WHILE waited < p_max_wait LOOP
        ignored := set_config('lock_timeout', idempotency_milliseconds_v1(p_max_wait - waited), true);

        SELECT idempotency_record_v1(k) INTO standing FROM idempotency_key AS k
        WHERE k.id = p_id AND (k.state = 'in_flight' OR k.expires_at > clock_timestamp());
        IF FOUND THEN
            RETURN standing;
        END IF;

        BEGIN
            INSERT INTO idempotency_key_in_flight (
                id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
                lease_expires_at, sweeps
            ) VALUES (
                p_id, 'in_flight', p_scope, p_key, p_fingerprint, p_scheme, p_mode, p_token, 1, clock_timestamp(),
                clock_timestamp() + make_interval(secs => p_lease), 0
            ) ON CONFLICT (id) DO NOTHING;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            -- A rival's claim, unless the table itself is locked by DDL: then this raises, and the store is unavailable.
            LOCK TABLE idempotency_key_in_flight IN ROW EXCLUSIVE MODE NOWAIT;
            EXIT;
        END;
        IF NOT FOUND THEN
            -- Neither found nor inserted: the rival ended between the look and the insert. Go round.
            waited := extract(epoch FROM clock_timestamp() - started);
            CONTINUE;
        END IF;

        -- The partitions that this transaction saw earlier are remembered; opening the catalog again makes it notice
        -- one that was attached meanwhile.
        ignored := pg_partition_root(sealed_rows);
        SELECT k.expires_at INTO sealed_until FROM idempotency_key_sealed AS k WHERE k.id = p_id;
        IF sealed_until > clock_timestamp() THEN
            DELETE FROM idempotency_key_in_flight AS k WHERE k.id = p_id AND k.owner_token = p_token;
            CONTINUE;
        END IF;
        IF p_refuse_expired_for > 0 THEN
            -- Looked for after the record: it is buried, and that is committed, before its leaf is detached.
            tombstones := 'idempotency_tombstone';
            ignored := pg_partition_root(tombstones);
            IF sealed_until + make_interval(secs => p_refuse_expired_for) > clock_timestamp()
                OR EXISTS (SELECT FROM idempotency_tombstone AS t WHERE t.id = p_id AND t.forget_at > clock_timestamp())
            THEN
                DELETE FROM idempotency_key_in_flight AS k WHERE k.id = p_id AND k.owner_token = p_token;
                RETURN 'expired';
            END IF;
        END IF;
        IF FOUND THEN
            -- Left in place, an expired record would collide with the new one at the seal, after the effect.
            DELETE FROM idempotency_key_sealed AS k WHERE k.id = p_id AND k.expires_at <= clock_timestamp();
        END IF;
        RETURN 'claimed';
    END LOOP;
    RETURN 'waited';
END
$$;
