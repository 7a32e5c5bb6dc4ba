-- run/list_started_of_lease_list: like run/list_started_of_lease_range, for a lease whose ids are not consecutive.
select json_group_array(json_array(
           r.id, b.job_id, b.job_version, b.origin,
           case when b.scope_kind <> 'global' or b.scope_id <> 'global' then json_array(b.scope_kind, b.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, b.event_id, cast(b.args as text))) as rows_json
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_state r on r.id = x.value
 cross join tasuki_run_data b on b.id = r.id
 where l.token = :token
   and l.first_run is null
