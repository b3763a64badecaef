-- A record as one JSON text. A fresh request has none, and a single empty answer costs it less than a dozen empty
-- columns would.
CREATE FUNCTION idempotency_record_v1(k idempotency_key) RETURNS json LANGUAGE sql
AS $$
    SELECT json_build_object(
        'scope', k.scope,
        'key', k.key,
        'state', k.state,
        'mode', k.mode,
        'fingerprint', encode(k.fingerprint, 'hex'),
        'fingerprint_scheme', k.fingerprint_scheme,
        'owner_token', k.owner_token,
        'attempts', k.attempts,
        'lease_left', extract(epoch FROM k.lease_expires_at - clock_timestamp()),
        'response_status', k.response_status,
        'response_headers', k.response_headers,
        'response_body', encode(k.response_body, 'hex'),
        'operation', k.operation,
        'parameters', k.parameters,
        'steps', k.steps,
        'held_reason', k.held_reason,
        'sweeps', k.sweeps
    )
$$;
