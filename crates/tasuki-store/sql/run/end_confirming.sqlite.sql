-- run/end_confirming: T15, RUNNING, CONFIRMING -> NONE, for runs that this transaction has found in time.
update tasuki_run_state
   set continuation = 'NONE',
       version = version + 1
  from json_each(:runs) x
 where tasuki_run_state.id = json_extract(x.value, '$[0]')
   and state = 'RUNNING'
   and hex(lease_token) = json_extract(x.value, '$[1]')
   and continuation in ('NONE', 'CONFIRMING')
