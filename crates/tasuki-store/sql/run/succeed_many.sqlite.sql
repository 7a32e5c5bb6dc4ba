-- run/succeed_many: T4 for runs with one token. Each element of the JSON list is the report of one run.
-- The clock may have been set back since the start; a run never ends before its start.
update tasuki_run_state
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = max(:now, started_at),
       exit_code = json_extract(x.value, '$.exit_code'),
       result = json_extract(x.value, '$.result'),
       rows_affected = json_extract(x.value, '$.rows_affected'),
       log_ref = json_extract(x.value, '$.log_ref'),
       version = version + 1
  from json_each(:reports) x
 where tasuki_run_state.id = json_extract(x.value, '$.id')
   and tasuki_run_state.state = 'RUNNING'
   and tasuki_run_state.lease_token = :token
