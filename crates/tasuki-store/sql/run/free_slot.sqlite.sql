-- run/free_slot: the same where a run is two tables. With its birth the version of its life goes up.
update tasuki_run_birth
   set slot = :slot
 where id = :run_id
   and exists (
           select 1
             from tasuki_run_life l
            where l.id = tasuki_run_birth.id
              and l.state = 'CANCELED')
