-- run/lock_running: which of these runs are running, and under which tokens; locked.
select r.id, r.lease_token
  from json_table(:ids, '$[*]' columns (id bigint path '$')) x
  straight_join tasuki_run r force index (primary) on r.id = x.id
 where r.state = 'RUNNING'
   for update
