-- run/list_filter_fields: only those columns of these runs that a list filter compares.
select id, job_id, state, origin, scope_kind, scope_id, scheduled_for
  from tasuki_run
 where id in (select value from json_each(:ids))
