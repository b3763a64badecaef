-- Own a claim whose lease has lapsed. Conditional on the token that was seen, so that of several rivals one succeeds, and
-- on whether an operation had begun: until one has, nothing took effect, and the claim becomes one for the new owner's
-- request; after that, only the owner of the same request was let through.
CREATE FUNCTION idempotency_take_over_v1(
    p_id uuid,
    p_seen_token uuid,
    p_seen_begun boolean,
    p_token uuid,
    p_fingerprint bytea,
    p_fingerprint_scheme smallint,
    p_mode text,
    p_lease double precision,  -- seconds
    p_max_wait double precision  -- seconds
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    session_lock_timeout constant text := current_setting('lock_timeout');
    taken boolean := false;
BEGIN
    PERFORM set_config('lock_timeout', idempotency_milliseconds_v1(p_max_wait), true);
    BEGIN
        UPDATE idempotency_key_in_flight AS k SET
            owner_token = p_token,
            fingerprint = CASE WHEN p_seen_begun THEN k.fingerprint ELSE p_fingerprint END,
            fingerprint_scheme = CASE WHEN p_seen_begun THEN k.fingerprint_scheme ELSE p_fingerprint_scheme END,
            mode = p_mode,
            attempts = least(k.attempts + 1, 32767),
            lease_expires_at = clock_timestamp() + make_interval(secs => p_lease)
        WHERE k.id = p_id AND k.owner_token = p_seen_token AND k.lease_expires_at <= clock_timestamp()
            -- Where an operation has begun since it was seen, nothing but that operation may go on.
            AND (k.steps IS NOT NULL) = p_seen_begun
            AND (k.steps IS NULL OR p_mode = 'phased');
        taken := FOUND;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected THEN
            -- As in the claim: its owner is just sealing, unless the table itself is locked by DDL.
            LOCK TABLE idempotency_key_in_flight IN ROW EXCLUSIVE MODE NOWAIT;
        WHEN serialization_failure THEN
            -- The row has just moved.
            taken := false;
    END;
    PERFORM set_config('lock_timeout', session_lock_timeout, true);
    RETURN taken;
END
$$;
