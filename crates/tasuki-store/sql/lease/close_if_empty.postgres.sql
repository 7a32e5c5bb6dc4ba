-- lease/close_if_empty: deleted by its worker only where no run is left under it, in the write itself. Runs only ever leave
-- a lease, so what this does not see carried is not carried later either.
delete from tasuki_lease l
 where l.token = :token
   and not exists (
       select
         from json_array_elements_text(l.run_ids::json) as x (id)
         join tasuki_run r on r.id = x.id::bigint
        where r.lease_token = :token
          and r.state in ('ASSIGNED', 'RUNNING'))
