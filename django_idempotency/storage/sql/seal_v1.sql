-- Record the outcome and end the claim, in the transaction of the effect. The condition on the owner token is the
-- fence: an owner that lost its lease changes no row, and must roll everything back.
CREATE FUNCTION idempotency_seal_v1(
    p_id uuid,
    p_token uuid,
    p_status smallint,
    p_headers jsonb,
    p_body bytea,
    p_retention double precision,  -- seconds
    p_durable boolean,  -- the commit that follows is the one that the caller will be told about
    p_lease double precision,  -- seconds
    p_commits boolean DEFAULT false  -- COMMIT follows in the same message: raise where it must not be reached
) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    sealed_rows regclass := 'idempotency_key_sealed';  -- a variable: over a literal, the planner would look once
    sealing text;
    ignored text;
BEGIN
    IF p_durable THEN
        -- An answered request must survive a crash of the server. remote_apply, which is more, stays.
        IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
            ignored := set_config('synchronous_commit', 'on', true);
        END IF;
        IF NOT p_commits THEN
            -- Only COMMIT follows. An owner that falls silent before it would keep its row from whoever takes over.
            ignored := idempotency_limit_silence_v1(p_lease);
        END IF;
    END IF;
    -- As in the claim: notice partitions that were attached since this transaction looked.
    ignored := pg_partition_root(sealed_rows);
    BEGIN
        UPDATE idempotency_key AS k SET
            state = 'sealed',
            lease_expires_at = NULL,
            sealed_at = clock_timestamp(),
            expires_at = clock_timestamp() + make_interval(secs => p_retention),
            response_status = p_status,
            response_headers = p_headers,
            response_body = p_body,
            -- What it took to get here is nobody's business any more, and may be somebody's data.
            parameters = NULL,
            steps = NULL,
            held_reason = NULL,
            held_at = NULL,
            sweep_after = NULL
        WHERE k.id = p_id AND k.state = 'in_flight' AND k.owner_token = p_token;
        sealing := CASE WHEN FOUND THEN 'sealed' ELSE 'lost' END;
    EXCEPTION
        WHEN check_violation THEN
            sealing := 'no_partition';
        WHEN serialization_failure THEN
            -- The row is just being moved or changed by somebody else.
            sealing := 'lost';
    END;
    IF p_commits AND sealing <> 'sealed' THEN
        RAISE EXCEPTION 'not sealed: %', sealing;
    END IF;
    RETURN sealing;
END
$$;
