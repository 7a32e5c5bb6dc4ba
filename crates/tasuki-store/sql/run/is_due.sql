-- run/is_due: whether the run is due.
select id from tasuki_run where id = :run_id and coalesce(next_retry_at, scheduled_for) <= :now
