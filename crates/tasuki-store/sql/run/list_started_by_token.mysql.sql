-- run/list_started_by_token: the runs that run under a token, for a worker that got no response to its start or claim.
select r.id, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id, r.scheduled_for, r.next_retry_at, r.attempt_no,
       r.tries, r.event_id, r.args
  from tasuki_lease l
  join json_table(l.run_ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where l.token = :token
   and r.lease_token = :token
   and r.state = 'RUNNING'
