-- run/taken_leased: the same where they do not.
select json_group_array(json_array(
           r.id, r.job_id, r.job_version, r.origin,
           case when r.scope_kind <> 'global' or r.scope_id <> 'global' then json_array(r.scope_kind, r.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, r.event_id, cast(r.args as text))) as listed
  from tasuki_lease l
 cross join json_each(l.run_ids) x
 cross join tasuki_run r on r.id = x.value
 where l.token = :token
   and l.first_run is null
