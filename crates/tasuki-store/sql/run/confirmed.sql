-- run/confirmed: T15, RUNNING, CONFIRMING -> NONE. Only before the deadline.
update tasuki_run
   set continuation = 'NONE',
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
   and continuation = 'CONFIRMING'
   and continuation_deadline > :now
