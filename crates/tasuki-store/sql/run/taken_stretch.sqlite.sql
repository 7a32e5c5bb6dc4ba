-- run/taken_stretch: what a worker must know of what it was given, where their ids follow one another, as one list: a row by
-- itself costs more than what is in it.
select json_group_array(json_array(
           r.id, b.job_id, b.job_version, b.origin,
           case when b.scope_kind <> 'global' or b.scope_id <> 'global' then json_array(b.scope_kind, b.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, b.event_id, cast(b.args as text))) as listed
  from tasuki_run_life r
 cross join tasuki_run_birth b on b.id = r.id
 where r.id >= (select first_run from tasuki_lease where token = :token)
   and r.id <= (select last_run from tasuki_lease where token = :token)
