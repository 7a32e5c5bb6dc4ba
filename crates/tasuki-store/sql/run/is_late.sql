-- run/is_late: T12: whether the run is past its skip time.
select id from tasuki_run where id = :run_id and skip_at < :now
