-- log/insert: create the log of an attempt. Guard: the attempt exists. Late lines of a lost attempt are accepted; lines
-- of a run that retention has deleted are not.
insert into tasuki_log (run_id, attempt_no)
select id, :attempt_no
  from tasuki_run
 where id = :run_id
   and attempt_no >= :attempt_no
   and :attempt_no >= 1
on conflict do nothing
