-- run/succeed_many: T4 for runs under one token; how each ended is an object in a JSON list.
update tasuki_run_life
   set state = 'SUCCEEDED',
       outcome = 'SUCCEEDED',
       finished_at = :now,
       exit_code = json_extract(x.value, '$.exit_code'),
       result = json_extract(x.value, '$.result'),
       rows_affected = json_extract(x.value, '$.rows_affected'),
       log_ref = json_extract(x.value, '$.log_ref'),
       version = version + 1
  from json_each(:ends) x
 where tasuki_run_life.id = json_extract(x.value, '$.id')
   and tasuki_run_life.state = 'RUNNING'
   and tasuki_run_life.lease_token = :token
