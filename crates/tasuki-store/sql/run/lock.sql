-- run/lock: one run, held still while its move is decided.
select * from tasuki_run where id = :run_id for update
