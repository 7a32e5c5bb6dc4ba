-- lease/list_assignments: all assigned or running runs that the leader assigned, and their workers. The cross joins fix
-- the order, because SQLite would scan all runs and search the lease of each.
select l.worker_id, l.token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_state r on r.id = x.value
 where l.epoch is not null
   and r.lease_token = l.token
   and r.state in ('ASSIGNED', 'RUNNING')
