-- End this transaction when its client falls silent for so long, unless the session is set to end it sooner. A plain
-- expression, which the planner puts in the place of the call.
CREATE FUNCTION idempotency_limit_silence_v1(p_seconds double precision) RETURNS text LANGUAGE sql
AS $$
    SELECT CASE
        WHEN current_setting('idle_in_transaction_session_timeout') = '0'
            OR current_setting('idle_in_transaction_session_timeout')::interval > make_interval(secs => p_seconds)
        THEN set_config('idle_in_transaction_session_timeout', idempotency_milliseconds_v1(p_seconds), true)
    END
$$;
