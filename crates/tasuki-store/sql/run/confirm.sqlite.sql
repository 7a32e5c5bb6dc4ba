-- run/confirm: T15, RUNNING, NONE -> CONFIRMING; each run with its token and how long its lease lasts, which the deadline
-- never outlives.
update tasuki_run_life
   set continuation = 'CONFIRMING',
       continuation_started_at = :now,
       continuation_deadline = min(:now + :patience, json_extract(x.value, '$[2]')),
       version = version + 1
  from json_each(:runs) x
 where tasuki_run_life.id = json_extract(x.value, '$[0]')
   and state = 'RUNNING'
   and hex(lease_token) = json_extract(x.value, '$[1]')
   and coalesce(continuation, 'NONE') = 'NONE'
