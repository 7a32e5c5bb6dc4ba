-- run/running: which of these run, and under which tokens, as one list.
select 'id lease_token' as names,
       json_group_array(json_array(id, hex(lease_token))) as listed
  from tasuki_run
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
