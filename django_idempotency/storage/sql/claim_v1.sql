-- Become the owner of a key, or learn who is. The answer is always explicit.
--
-- Each statement of a volatile function takes a snapshot of its own under READ COMMITTED, and the order is the proof:
-- an INSERT that waited for a rival succeeds when that rival moved its row to "sealed", and only a look that starts
-- afterwards can see the sealed row. In any other isolation level the second look is blind, so nothing is claimed there.
CREATE FUNCTION idempotency_claim_v1(
    p_id uuid,
    p_scope text,
    p_key text,
    p_fingerprint bytea,
    p_scheme smallint,
    p_token uuid,
    p_mode text,
    p_lease double precision,  -- seconds
    p_max_wait double precision,  -- seconds
    p_limit_silence boolean,  -- the open transaction will carry the effect: end it when its client falls silent
    OUT verdict text,
    OUT standing idempotency_key
) LANGUAGE plpgsql
-- A vacuumed empty leaf makes a sequential scan look free; the cached plan would keep it when the leaf has filled.
SET enable_seqscan = off
AS $$
DECLARE
    started constant timestamptz := clock_timestamp();
    session_lock_timeout constant text := current_setting('lock_timeout');
    waited double precision := 0;
    inserted boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        verdict := 'wrong_isolation';
        RETURN;
    END IF;
    IF p_limit_silence THEN
        PERFORM idempotency_limit_silence_v1(p_lease);
    END IF;

    verdict := 'waited';
    WHILE waited < p_max_wait LOOP
        PERFORM set_config('lock_timeout', idempotency_milliseconds_v1(p_max_wait - waited), true);

        SELECT k.* INTO standing FROM idempotency_key AS k
        WHERE k.id = p_id AND (k.state = 'in_flight' OR k.expires_at > clock_timestamp());
        IF FOUND THEN
            verdict := 'found';
            EXIT;
        END IF;

        BEGIN
            INSERT INTO idempotency_key_in_flight (
                id, state, scope, key, fingerprint, fingerprint_scheme, mode, owner_token, attempts, claimed_at,
                lease_expires_at
            ) VALUES (
                p_id, 'in_flight', p_scope, p_key, p_fingerprint, p_scheme, p_mode, p_token, 1, clock_timestamp(),
                clock_timestamp() + make_interval(secs => p_lease)
            ) ON CONFLICT (id) DO NOTHING;
            inserted := FOUND;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            -- A rival's claim, unless the table itself is locked by DDL: then this raises, and the store is unavailable.
            LOCK TABLE idempotency_key_in_flight IN ROW EXCLUSIVE MODE NOWAIT;
            EXIT;
        END;

        IF inserted THEN
            -- The partitions that this transaction saw earlier are remembered; opening the catalog again makes it
            -- notice one that was attached meanwhile.
            PERFORM 1 FROM pg_partition_ancestors('idempotency_key_sealed');
            SELECT k.* INTO standing FROM idempotency_key_sealed AS k WHERE k.id = p_id;
            IF FOUND AND standing.expires_at > clock_timestamp() THEN
                DELETE FROM idempotency_key_in_flight AS k WHERE k.id = p_id AND k.owner_token = p_token;
                verdict := 'found';
            ELSE
                IF FOUND THEN
                    -- Left in place, an expired record would collide with the new one at the seal, after the effect.
                    DELETE FROM idempotency_key_sealed AS k WHERE k.id = p_id AND k.expires_at <= clock_timestamp();
                END IF;
                verdict := 'claimed';
            END IF;
            EXIT;
        END IF;
        -- Neither found nor inserted: the rival ended between the look and the insert. Go round.
        waited := extract(epoch FROM clock_timestamp() - started);
    END LOOP;
    PERFORM set_config('lock_timeout', session_lock_timeout, true);
END
$$;
