-- run/assign: T1, a waiting run -> ASSIGNED: the leader assigns it to a worker. Guard: unchanged since it was read, not
-- canceled, due soon, and not past its skip time.
update tasuki_run
   set state = 'ASSIGNED',
       attempt_no = attempt_no + 1,
       worker_id = :worker_id,
       lease_token = :token,
       epoch = :epoch,
       assigned_at = :now,
       start_by = case when coalesce(next_retry_at, scheduled_for) > :now then coalesce(next_retry_at, scheduled_for) else :now end + :reassign_after,
       version = version + 1
 where id = :run_id
   and state in ('PENDING', 'ORPHANED', 'RETRY_WAIT')
   and attempt_no = :attempt_no
   and cancel_requested_at is null
   and coalesce(next_retry_at, scheduled_for) <= :now + :assign_ahead
   and (tries > 0 or skip_at is null or skip_at >= :now)
