-- lease/count_used_slots: how many slots of a worker are used by assigned runs: those that are running or due within
-- one second. Claimed runs have separate slots.
select count(*) as used_slots
  from tasuki_lease l
  join json_table(l.run_ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where l.worker_id = :worker_id
   and l.epoch is not null
   and r.lease_token = l.token
   and (r.state = 'RUNNING'
        or r.state = 'ASSIGNED' and coalesce(r.next_retry_at, r.scheduled_for) <= :now + 1000000)
