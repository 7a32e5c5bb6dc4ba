-- run/is_expired: T13: whether the run is past its expiry.
select id from tasuki_run where id = :run_id and expires_at < :now
