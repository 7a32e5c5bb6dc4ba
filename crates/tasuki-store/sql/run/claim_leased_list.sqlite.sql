-- run/claim_leased_list: T1c for the runs of a lease whose ids are not consecutive and whose due rows this transaction
-- has deleted.
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
 where id in (select x.value
                from tasuki_lease l
               cross join json_each(l.run_ids) x
               where l.token = :token
                 and l.first_run is null)
   and (state = 'PENDING' or state = 'ORPHANED' or state = 'RETRY_WAIT')
   and cancel_requested_at is null
   and tries < tries_allowed
