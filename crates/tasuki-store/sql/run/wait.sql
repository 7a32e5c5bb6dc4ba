-- run/wait: T5, T7, T7w and T8, a carried run waits again. Its attempt has been appended; the row is clear for the next.
update tasuki_run
   set state = :state,
       next_retry_at = case when :state = 'RETRY_WAIT' then :now + :wait else next_retry_at end,
       releases = :releases,
       tries_allowed = :tries_allowed,
       alone = :alone,
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
