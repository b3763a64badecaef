-- End this transaction when its client falls silent for so long, unless the session is set to end it sooner. Not a plain
-- expression: where it is a statement of its own, planning that would take longer than this plan, which is kept.
CREATE FUNCTION idempotency_limit_silence_v1(p_seconds double precision) RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
    present constant text := current_setting('idle_in_transaction_session_timeout');
BEGIN
    IF present = '0' OR present::interval > make_interval(secs => p_seconds) THEN
        RETURN set_config('idle_in_transaction_session_timeout', idempotency_milliseconds_v1(p_seconds), true);
    END IF;
    RETURN present;
END
$$;
