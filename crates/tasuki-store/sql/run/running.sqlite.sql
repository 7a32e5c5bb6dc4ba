-- run/running: which of these run under the token.
select id, job_id, scope_kind, scope_id, exclusive
  from tasuki_run
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
   and lease_token = :token
