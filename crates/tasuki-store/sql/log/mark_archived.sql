-- log/mark_archived: record that the output is also stored elsewhere: it was uploaded and read back. Guard: only once,
-- and only if no line was added meanwhile.
update tasuki_log
   set log_ref = :log_ref,
       sha256 = :sha256,
       archived_at = :now
 where run_id = :run_id
   and attempt_no = :attempt_no
   and lines_count = :lines_count
   and archived_at is null
