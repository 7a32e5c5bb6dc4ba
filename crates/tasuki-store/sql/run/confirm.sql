-- run/confirm: T15, RUNNING, NONE -> CONFIRMING. The deadline never outlives the lease.
update tasuki_run
   set continuation = 'CONFIRMING',
       continuation_started_at = :now,
       continuation_deadline = case when :now + :patience < :lease_until then :now + :patience else :lease_until end,
       version = version + 1
 where id = :run_id
   and state = 'RUNNING'
   and lease_token = :token
   and coalesce(continuation, 'NONE') = 'NONE'
