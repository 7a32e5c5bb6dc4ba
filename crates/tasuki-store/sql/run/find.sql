-- run/find: one run.
select * from tasuki_run where id = :run_id
