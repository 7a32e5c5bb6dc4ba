-- lease/carried: everything the leader gave away that is still carried, and by whom. In this order: SQLite would go through all
-- runs there ever were, and look for the lease of each.
select l.worker_id, l.token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_life r on r.id = x.value
 where l.epoch is not null
   and r.lease_token = l.token
   and r.state in ('ASSIGNED', 'RUNNING')
