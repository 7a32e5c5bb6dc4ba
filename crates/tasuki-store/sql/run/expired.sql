-- run/expired: T13, whether its time is up.
select id from tasuki_run where id = :run_id and expires_at < :now
