-- run/lock: lock one run while its transition is decided.
select * from tasuki_run where id = :run_id for update
