-- run/taken: what a worker must know of the runs it was given, as one list.
select 'id job_id job_version origin scope_kind scope_id scheduled_for next_retry_at attempt_no tries event_id args' as names,
       json_group_array(json_array(
           id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries, event_id,
           cast(args as text))) as listed
  from tasuki_run
 where id in (select value from json_each(:ids))
