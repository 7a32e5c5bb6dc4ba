-- run/free_slot: change the slot text of a run that was canceled before its time, so that a new run can have the slot.
update tasuki_run
   set slot = :slot,
       version = version + 1
 where id = :run_id
   and state = 'CANCELED'
