-- due/lock: what can be claimed, passing over what must wait for another run of its kind. As one list: a row by itself costs
-- more than what is in it.
select json_group_array(
           json_object('run_id', run_id, 'due_at', due_at, 'exclusive', exclusive, 'alone', alone)
           order by due_at, run_id) as listed
  from (select d.run_id, d.due_at, d.exclusive, d.alone
          from tasuki_due d
         where d.lane = :lane
           and d.due_at >= :after_at
           and d.due_at <= :now
           and (d.skip_at is null or d.skip_at >= :now)
           and (d.exclusive = 0 or not exists (
                   select 1
                     from tasuki_run r
                     join tasuki_hold h on h.job_id = r.job_id and h.scope_kind = r.scope_kind and h.scope_id = r.scope_id
                    where r.id = d.run_id))
         order by d.due_at, d.run_id
         limit :most)
