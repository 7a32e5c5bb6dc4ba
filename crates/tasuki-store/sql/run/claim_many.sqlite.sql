-- run/claim_many: T1c for runs whose due rows this transaction has deleted.
update tasuki_run_state
   set state = 'RUNNING',
       attempt_no = attempt_no + 1,
       tries = tries + 1,
       releases = 0,
       worker_id = :worker_id,
       lease_token = :token,
       assigned_at = :now,
       started_at = :now,
       version = version + 1
 where id in (select value from json_each(:ids))
   and state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
   and cancel_requested_at is null
   and tries < tries_allowed
