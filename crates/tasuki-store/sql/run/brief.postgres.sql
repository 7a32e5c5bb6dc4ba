-- run/brief: of these runs only what a filter looks at.
select id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where id = any(:ids)
