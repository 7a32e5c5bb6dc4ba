-- run/requeue: T5, T7, T7w and T8: an assigned or running run waits again. Its attempt has been recorded, and the row
-- is cleared for the next attempt.
update tasuki_run
   set state = :state,
       next_retry_at = case when :state = 'RETRY_WAIT' then :now + :delay else next_retry_at end,
       releases = :releases,
       tries_allowed = :tries_allowed,
       isolated = :isolated,
       worker_id = null,
       lease_token = null,
       epoch = null,
       assigned_at = null,
       start_by = null,
       started_at = null,
       continuation = null,
       continuation_started_at = null,
       continuation_deadline = null,
       version = version + 1
 where id = :run_id
   and lease_token = :token
   and state = :from_state
