-- run/late: T12, whether its time has passed.
select id from tasuki_run where id = :run_id and skip_at < :now
