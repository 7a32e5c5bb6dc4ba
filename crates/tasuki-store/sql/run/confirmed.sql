-- run/confirmed: T15, RUNNING, CONFIRMING -> NONE. Only before the deadline; or again, where the first answer was lost.
update tasuki_run
   set continuation = 'NONE',
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
   and (continuation = 'NONE' or continuation = 'CONFIRMING' and continuation_deadline > :now)
