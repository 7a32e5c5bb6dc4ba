-- run/running: which of these run, and under which tokens, as one list.
select json_group_array(json_object(
           'id', id, 'lease_token', hex(lease_token), 'job_id', job_id, 'scope_kind', scope_kind, 'scope_id', scope_id,
           'exclusive', exclusive)) as listed
  from tasuki_run
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
