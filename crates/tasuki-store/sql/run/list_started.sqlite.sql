-- run/list_started: the columns that a worker needs to execute these runs; as one JSON list.
select 'id job_id job_version origin scope_kind scope_id scheduled_for next_retry_at attempt_no tries event_id args' as column_names,
       json_group_array(json_array(
           id, job_id, job_version, origin, scope_kind, scope_id, scheduled_for, next_retry_at, attempt_no, tries, event_id,
           cast(args as text))) as rows_json
  from tasuki_run
 where id in (select value from json_each(:ids))
