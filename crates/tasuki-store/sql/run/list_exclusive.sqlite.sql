-- run/list_exclusive: which of these runs have a hold to release.
select id, lease_token, job_id, scope_kind, scope_id
  from tasuki_run
 where id in (select value from json_each(:ids))
   and exclusive = 1
