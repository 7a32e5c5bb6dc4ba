-- doctor/check_leases: assigned or running runs of this id range that no lease lists. Only executed when the counts
-- differ.
select r.id,
       1 as not_leased
  from tasuki_run r
 where r.id >= :from
   and r.id <= :to
   and r.state in ('ASSIGNED', 'RUNNING')
   and not exists (select 1
                     from tasuki_lease l
                    cross join json_array_elements_text((case when l.run_ids ~ '^[[][0-9, ]*[]]$' then l.run_ids else '[]' end)::json) x(value)
                    where l.token = r.lease_token
                      and x.value::bigint = r.id)
 order by r.id
 limit :limit
