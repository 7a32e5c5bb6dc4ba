-- run/list_started_in_range: like run/list_started, for runs with consecutive ids.
select r.id, r.job_id, r.job_version, r.origin, r.scope_kind, r.scope_id, r.scheduled_for, r.next_retry_at, r.attempt_no,
       r.tries, r.event_id, r.args
  from tasuki_run r
 where r.id between :first and :last
