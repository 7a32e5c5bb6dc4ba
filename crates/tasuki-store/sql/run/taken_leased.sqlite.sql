-- run/taken_leased: the same where they do not.
select json_group_array(json_array(
           r.id, b.job_id, b.job_version, b.origin,
           case when b.scope_kind <> 'global' or b.scope_id <> 'global' then json_array(b.scope_kind, b.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, b.event_id, cast(b.args as text))) as listed
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run_life r on r.id = x.value
 cross join tasuki_run_birth b on b.id = r.id
 where l.token = :token
   and l.first_run is null
