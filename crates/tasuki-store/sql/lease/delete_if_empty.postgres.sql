-- lease/delete_if_empty: delete a lease for its worker, if no assigned or running run is left under it; one statement
-- checks and deletes. Runs only ever leave a lease, so one that is not seen here does not appear later. The ids are
-- passed as a list, because in a join the planner may start with the runs and read all of them.
delete from tasuki_lease l
 where l.token = :token
   and not exists (
       select
         from tasuki_run r
        where r.id = any(array(
                  select x.id::bigint
                    from tasuki_lease o, json_array_elements_text(o.run_ids::json) as x (id)
                   where o.token = :token))
          and r.lease_token = :token
          and r.state in ('ASSIGNED', 'RUNNING'))
