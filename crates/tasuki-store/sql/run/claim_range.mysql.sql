-- run/claim_range: T1c for runs with consecutive ids whose due rows this transaction has deleted. An update of a single
-- table runs while it reads; an update with a join first stores what it will change.
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
