-- A duration as a setting of PostgreSQL: at least 1, since 0 would mean for ever, and within the range of the setting.
CREATE FUNCTION idempotency_milliseconds_v1(p_seconds double precision) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT least(greatest(ceil(p_seconds * 1000), 1), 2147483647)::bigint::text $$;
