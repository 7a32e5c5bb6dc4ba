-- run/taken_stretch: what a worker must know of what it was given, where their ids follow one another, as one list: a row by
-- itself costs more than what is in it.
select json_group_array(json_array(
           r.id, r.job_id, r.job_version, r.origin,
           case when r.scope_kind <> 'global' or r.scope_id <> 'global' then json_array(r.scope_kind, r.scope_id) end,
           r.scheduled_for, r.next_retry_at, r.attempt_no, r.tries, r.event_id, cast(r.args as text))) as listed
  from tasuki_run r
 where r.id >= (select first_run from tasuki_lease where token = :token)
   and r.id <= (select last_run from tasuki_lease where token = :token)
