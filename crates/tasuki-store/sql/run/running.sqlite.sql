-- run/running: which of these run, and under which tokens.
select id, lease_token, job_id, scope_kind, scope_id, exclusive
  from tasuki_run
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
