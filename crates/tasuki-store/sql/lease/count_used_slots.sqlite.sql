-- lease/count_used_slots: how many slots of a worker are used by assigned runs: those that are running or due within
-- one second. Claimed runs have separate slots. The cross joins fix the order, because SQLite would scan all runs and
-- search the lease of each.
select count(*) as used_slots
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_state r on r.id = x.value
 where l.worker_id = :worker_id
   and l.epoch is not null
   and r.lease_token = l.token
   and (r.state = 'RUNNING'
        or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= :now + 1000000)
