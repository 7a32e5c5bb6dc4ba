-- run/taken_under: what runs under a token, for a worker whose start or claim got no answer.
select id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries, event_id, args
  from tasuki_run
 where id in (select x.value from tasuki_lease l, json_each(l.run_ids) x where l.token = :token)
   and lease_token = :token
   and state = 'RUNNING'
