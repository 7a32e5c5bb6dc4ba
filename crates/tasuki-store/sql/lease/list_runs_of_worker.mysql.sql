-- lease/list_runs_of_worker: all assigned or running runs of a worker, assigned and claimed ones.
select l.worker_id, l.token, r.id, r.state, r.start_by, coalesce(r.next_retry_at, r.scheduled_for) as due_at
  from tasuki_lease l
  join json_table(l.run_ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where l.worker_id = :worker_id
   and r.lease_token = l.token
   and r.state in ('ASSIGNED', 'RUNNING')
