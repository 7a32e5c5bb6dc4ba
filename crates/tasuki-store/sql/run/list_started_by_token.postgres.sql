-- run/list_started_by_token: the runs that run under a token, for a worker that got no response to its start or claim.
select id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries, event_id, args
  from tasuki_run
 where id = any(array(
           select x.id::bigint
             from tasuki_lease l, json_array_elements_text(l.run_ids::json) as x (id)
            where l.token = :token))
   and lease_token = :token
   and state = 'RUNNING'
