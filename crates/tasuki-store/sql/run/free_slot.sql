-- run/free_slot: a run that was withdrawn before its time leaves its slot to the run that is made anew.
update tasuki_run
   set slot = :slot,
       version = version + 1
 where id = :run_id
   and state = 'CANCELED'
