-- run/is_due: whether its time has come.
select id from tasuki_run where id = :run_id and coalesce(next_retry_at, scheduled_for) <= :now
