-- run/begin_confirming: T15, RUNNING, NONE -> CONFIRMING; each run with its token and the end of its lease. The
-- deadline is never later than the end of the lease.
update tasuki_run_state
   set continuation = 'CONFIRMING',
       continuation_started_at = :now,
       continuation_deadline = min(:now + :confirm_timeout, json_extract(x.value, '$[2]')),
       version = version + 1
  from json_each(:runs) x
 where tasuki_run_state.id = json_extract(x.value, '$[0]')
   and state = 'RUNNING'
   and hex(lease_token) = json_extract(x.value, '$[1]')
   and coalesce(continuation, 'NONE') = 'NONE'
