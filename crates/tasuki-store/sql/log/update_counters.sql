-- log/update_counters: update the counters of captured output, from the values that were read under the lock.
update tasuki_log
   set lines_count = :lines_count,
       bytes = :bytes,
       truncated = :truncated
 where run_id = :run_id
   and attempt_no = :attempt_no
   and archived_at is null
