-- End this transaction when its client falls silent for so long, unless the session is set to end it sooner.
CREATE FUNCTION idempotency_limit_silence_v1(p_seconds double precision) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    session_limit constant text := current_setting('idle_in_transaction_session_timeout');
BEGIN
    IF session_limit = '0' OR session_limit::interval > make_interval(secs => p_seconds) THEN
        PERFORM set_config('idle_in_transaction_session_timeout', idempotency_milliseconds_v1(p_seconds), true);
    END IF;
END
$$;
