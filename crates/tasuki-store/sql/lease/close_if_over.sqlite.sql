-- lease/close_if_over: if it is to be closed, and no run is left under it: these are all that it was opened for, or the others
-- have ended, too.
delete from tasuki_lease
 where token = :token
   and :closes = 1
   and (run_ids = :ids
        or first_run = :first and last_run = :last
        or not exists (
               select 1
                 from json_each(tasuki_lease.run_ids) x
                cross join tasuki_run_life r on r.id = x.value
                where r.lease_token = :token
                  and r.state in ('ASSIGNED', 'RUNNING')))
