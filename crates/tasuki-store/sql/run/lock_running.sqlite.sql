-- run/lock_running: which of these runs are running, and under which tokens; as one JSON list. SQLite needs no lock: it
-- has one writer at a time.
select 'id lease_token' as column_names,
       json_group_array(json_array(id, hex(lease_token))) as rows_json
  from tasuki_run
 where id in (select value from json_each(:ids))
   and state = 'RUNNING'
