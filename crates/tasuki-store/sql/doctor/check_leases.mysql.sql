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
                    cross join json_table(case when json_valid(l.run_ids) then l.run_ids else '[]' end, '$[*]' columns (value bigint path '$')) x
                    where l.token = r.lease_token
                      and x.value = r.id)
 order by r.id
 limit :limit
