-- run/free_slot: change the slot text of a run that was canceled before its time, so that a new run can have the slot.
-- The update of tasuki_run_data increments the version in tasuki_run_state through a trigger.
update tasuki_run_data
   set slot = :slot
 where id = :run_id
   and exists (
           select 1
             from tasuki_run_state l
            where l.id = tasuki_run_data.id
              and l.state = 'CANCELED')
