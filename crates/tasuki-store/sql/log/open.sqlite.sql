-- log/open: the first lines of an attempt. Only of an attempt that there was: late lines of a lost one are welcome, lines of
-- a run that retention took are not.
insert into tasuki_log (run_id, attempt_no)
select id, :attempt_no
  from tasuki_run
 where id = :run_id
   and attempt_no >= :attempt_no
   and :attempt_no >= 1
on conflict do nothing
