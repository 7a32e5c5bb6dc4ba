-- lease/delete_if_ended: delete a lease, if the worker requests it and no run is left under it: either these are all of
-- its runs, or the others have ended too.
delete from tasuki_lease
 where token = :token
   and :delete_lease = 1
   and (run_ids = :ids
        or first_run = :first and last_run = :last
        or not exists (
               select 1
                 from json_each(tasuki_lease.run_ids) x
                cross join tasuki_run_state r on r.id = x.value
                where r.lease_token = :token
                  and r.state in ('ASSIGNED', 'RUNNING')))
