-- run/taken: what a worker must know of the runs it was given.
select id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries, event_id, args
  from tasuki_run
 where id in (select value from json_each(:ids))
