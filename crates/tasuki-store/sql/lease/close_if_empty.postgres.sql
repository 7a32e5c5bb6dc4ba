-- lease/close_if_empty: deleted by its worker only where no run is left under it, in the write itself. Runs only ever leave
-- a lease, so what this does not see carried is not carried later either. The runs are asked for as a list: in a join the
-- planner may begin with the runs, and read all of them.
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
