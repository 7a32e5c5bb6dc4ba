-- run/claim_between: T1c for runs whose ids follow one another, and whose due rows this transaction has deleted. An update of one
-- table is done as it goes; of two, what to do is written down first.
update tasuki_run
   set state = 'RUNNING',
       attempt_no = attempt_no + 1,
       tries = tries + 1,
       releases = 0,
       worker_id = :worker_id,
       lease_token = :token,
       assigned_at = :now,
       started_at = :now,
       version = version + 1
 where id between :first and :last
   and state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
   and cancel_requested_at is null
   and tries < tries_allowed
