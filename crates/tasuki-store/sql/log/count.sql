-- log/count: with the lines that were added, from the count that was read.
update tasuki_log
   set lines_count = :lines_count,
       bytes = :bytes,
       truncated = :truncated
 where run_id = :run_id
   and attempt_no = :attempt_no
   and archived_at is null
