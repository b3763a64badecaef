-- Record how far an operation has come, in the transaction of the phase that came so far. The condition on the owner
-- token is the fence, here as at the seal.
CREATE FUNCTION idempotency_advance_v1(
    p_id uuid,
    p_token uuid,
    p_operation text,
    p_parameters jsonb,
    p_steps jsonb,
    p_recovery_point text,
    p_lease double precision,  -- seconds
    p_stale_after double precision,  -- seconds from the end of the lease until a sweeper may take over
    p_durable boolean  -- a commit follows, on which the next call to another system will rely
) RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    ignored text;
BEGIN
    IF p_durable THEN
        IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
            ignored := set_config('synchronous_commit', 'on', true);
        END IF;
        ignored := idempotency_limit_silence_v1(p_lease);
    END IF;
    UPDATE idempotency_key_in_flight AS k SET
        operation = p_operation,
        parameters = p_parameters,
        steps = p_steps,
        recovery_point = p_recovery_point,
        -- Until it comes further, operators see since when it is held, however often it was tried again.
        held_reason = CASE WHEN k.recovery_point IS NOT DISTINCT FROM p_recovery_point THEN k.held_reason END,
        held_at = CASE WHEN k.recovery_point IS NOT DISTINCT FROM p_recovery_point THEN k.held_at END,
        sweep_after = NULL,
        stale_after = p_stale_after,
        lease_expires_at = clock_timestamp() + make_interval(secs => p_lease)
    WHERE k.id = p_id AND k.owner_token = p_token;
    RETURN FOUND;
EXCEPTION WHEN serialization_failure THEN
    RETURN false;
END
$$;
