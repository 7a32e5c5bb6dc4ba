-- run/taken: what a worker must know of the runs it was given, as one list.
select json_group_array(json_object(
           'id', id, 'job_id', job_id, 'job_version', job_version, 'origin', origin, 'scope_kind', scope_kind,
           'scope_id', scope_id, 'scheduled_for', scheduled_for, 'next_retry_at', next_retry_at, 'attempt_no', attempt_no,
           'tries', tries, 'event_id', event_id, 'args', cast(args as text))) as listed
  from tasuki_run
 where id in (select value from json_each(:ids))
