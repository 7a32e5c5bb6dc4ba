-- run/list_started_of_lease_range: the columns that a worker needs to execute the runs of a lease whose ids are
-- consecutive. As one JSON list, because the cost of a result row is higher than that of its values.
select json_group_array(json_array(
           r.id, b.job_id, b.job_version, b.origin,
           case when b.scope_kind <> 'global' or b.scope_id <> 'global' then json_array(b.scope_kind, b.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, b.event_id, cast(b.args as text))) as rows_json
  from tasuki_run_state r
 cross join tasuki_run_data b on b.id = r.id
 where r.id >= (select first_run from tasuki_lease where token = :token)
   and r.id <= (select last_run from tasuki_lease where token = :token)
